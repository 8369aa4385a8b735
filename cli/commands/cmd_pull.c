/* cmd_pull.c: `segue pull`: download a model by Hugging Face id or URL into the models folder. Nothing is written
 * outside of the target folder, whatever file names a server sends, and no unchecked file gets its final name.
 * Output: the path of the model on stdout. A download goes to a hidden .part file next to its target;
 * it is resumed by the next call and renamed after its size and checksum were verified.
 * SPDX-License-Identifier: MIT */
#include "commands/pull.h"
#include "commands.h"

#include <errno.h>
#include <fnmatch.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "term/flags.h"
#include "host/folders.h"
#include "host/http.h"
#include "host/hub.h"
#include "host/model_names.h"
#include "term/interrupt.h"

/* One file to download. */
struct item {
    char *name;   /* path below the target folder */
    char *url;
    char *sha256; /* lower-case hexadecimal; "": not known */
    uint64_t bytes;       /* size; 0: not known */
    bool already_present; /* a valid copy exists, nothing is downloaded */
};

/* One call of the command. */
struct pull {
    const struct args *args; /* NULL: called by another command */
    char *folder;       /* target folder */
    char *result;       /* path to print, to use with -m; NULL: folder */
    char *note;         /* the model was linked from the Hugging Face cache; NULL: downloaded */
    struct item *items; /* [n] */
    size_t n;
    long timeout_s;     /* network timeout of --timeout */
    char endpoint[512]; /* URL of the hub, without a final slash */
    const char *label;  /* quantisation after the id, OWNER/NAME:LABEL; NULL: none */
    bool quiet;         /* no progress */
};

/* True if s has the suffix `end`. */
static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* SHA-256 of the file on disk, not of the stream, so that a resumed download is checked as a whole. */
static segue_status sha256_of(const char *path, char hex[65], segue_error *err)
{
    unsigned char digest[crypto_hash_sha256_BYTES], *block = out_alloc(1 << 20);
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    FILE *f = fopen(path, "rb");
    size_t n;
    errno = 0;
    /* Blocks of 1 MiB, because a model file may be larger than the memory. */
    while (f && (n = fread(block, 1, 1 << 20, f)) > 0) crypto_hash_sha256_update(&state, block, n);
    segue_status st = !f || ferror(f) ? out_fail_errno(err, "reading", path, NULL) : SEGUE_OK;
    if (f) fclose(f);
    free(block);
    crypto_hash_sha256_final(&state, digest);
    sodium_bin2hex(hex, 65, digest, sizeof digest);
    return st;
}

/* True for 64 hexadecimal digits in either case. */
static bool is_sha256_hex(const char *s) { return strlen(s) == 64 && strspn(s, "0123456789abcdefABCDEF") == 64; }

/* In place, ASCII only. Checksums are compared as lower-case text. */
static void to_lower(char *s)
{
    for (; *s; s++)
        if (*s >= 'A' && *s <= 'Z') *s = (char)(*s + 32);
}

/* Check size and SHA-256. A file that fails is deleted, so that a later pull does not resume from it. */
static segue_status check_download(const struct item *item, const char *part, segue_error *err)
{
    char hex[65];
    struct stat s;
    /* The size is checked even without a checksum. */
    if (stat(part, &s)) return out_fail_errno(err, "fetching", part, NULL);
    if (item->bytes && (uint64_t)s.st_size != item->bytes) {
        unlink(part);
        return out_fail(err, SEGUE_EFORMAT,
                        "fetching: %.250s: received %lld bytes, expected %llu; deleted, try again",
                        item->url, (long long)s.st_size, (unsigned long long)item->bytes);
    }
    if (hub_is_web_page(part)) {
        unlink(part);
        return out_fail(err, SEGUE_EFORMAT,
                        "fetching: %.250s: the server sent a web page, not a model; give OWNER/NAME or the address of a file",
                        item->url);
    }
    if (!*item->sha256) return SEGUE_OK;
    segue_status st = sha256_of(part, hex, err);
    if (!st && strcmp(hex, item->sha256) != 0) {
        unlink(part);
        st = out_fail(err, SEGUE_EFORMAT,
                      "fetching: %.150s: checksum mismatch: SHA-256 is %s, expected %s; deleted, do not trust this source",
                      item->url, hex, item->sha256);
    }
    return st;
}

/* Download one file unless a valid copy exists. The token is sent to the hub only, never to another
 * host. Afterwards item->bytes is the size on disk. */
static segue_status fetch_item(struct pull *p, struct item *item, segue_error *err)
{
    char *path = out_printf("%s/%s", p->folder, item->name), *slash = strrchr(path, '/');
    char *part = out_printf("%.*s/.%s.part", (int)(slash - path), path, slash + 1);
    const char *token = getenv("HF_TOKEN");
    size_t host = strlen(p->endpoint);
    /* A URL on another host must not receive the access token. */
    bool same_host = !strncmp(item->url, p->endpoint, host) && item->url[host] == '/';
    struct http_request r = {item->url, same_host ? token : NULL, p->timeout_s};
    struct progress progress;
    struct stat s;
    char hex[65];
    long code;
    segue_status st = SEGUE_OK;
    /* A file with the expected checksum is not downloaded again; without a checksum the size decides, and the owner: a file of
     * another user, in a folder that is shared, is replaced. */
    if (!stat(path, &s) && (s.st_uid == geteuid() || !s.st_uid) && (!item->bytes || (uint64_t)s.st_size == item->bytes)) {
        st = *item->sha256 ? sha256_of(path, hex, err) : SEGUE_OK;
        item->already_present = !st && (*item->sha256 ? !strcmp(hex, item->sha256) : item->bytes > 0);
    }
    if (!st && !item->already_present) {
        /* Create the folder of the file: names of a repository may contain slashes. */
        char was = *slash;
        *slash = 0;
        st = folders_make(path, err);
        *slash = was;
        progress_begin(&progress, item->name, p->quiet);
        if (!st) st = http_file(&r, part, item->bytes, &progress, &code, err);
        progress_end(&progress);
        /* Only a file that passed the check gets its final name. */
        if (!st) st = check_download(item, part, err);
        if (!st && rename(part, path)) st = out_fail_errno(err, "fetching", path, NULL);
    }
    if (!st && !stat(path, &s)) item->bytes = (uint64_t)s.st_size;
    free(part);
    free(path);
    return st;
}

/* Append a file to the list; all strings are copied. */
static void add_item(struct pull *p, const char *name, const char *url, const char *sha256, uint64_t bytes)
{
    p->items = out_realloc(p->items, (p->n + 1) * sizeof *p->items);
    p->items[p->n] = (struct item){out_strdup(name), out_strdup(url), out_strdup(sha256), bytes, false};
    to_lower(p->items[p->n++].sha256);
}

/* True for the files that make up a model in Hugging Face format. */
static bool is_model_file(const char *name)
{
    static const char *const ends[] = {".safetensors", ".json",     ".jinja",
                                       "merges.txt",   "vocab.txt", "tokenizer.model"};
    /* Files in subfolders and consolidated.* are copies of the weights in other formats. */
    if (strchr(name, '/') || !strncmp(name, "consolidated", 12)) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i])) return true;
    return false;
}

/* The parts of a split GGUF differ in -0000N-of-; compare without it. */
static bool same_split(const char *a, const char *b)
{
    /* NAME-00001-of-00003.gguf: equal up to the five digits, and equal from -of- on. */
    const char *x = strstr(a, "-of-"), *y = strstr(b, "-of-");
    return x && y && x - a == y - b && x - a > 6 && !strncmp(a, b, (size_t)(x - a) - 5) && !strcmp(x, y);
}

/* True if a GGUF file has the quantisation that was asked for; always without one. */
static bool has_label(const struct pull *p, const char *name)
{
    if (!p->label) return true;
    const char *slash = strrchr(name, '/');
    char *label = model_names_label(slash ? slash + 1 : name);
    bool same = !strcasecmp(label, p->label);
    free(label);
    return same;
}

/* True if the file is to be downloaded: named by --file, or part of the model, or a part of the only GGUF. */
static bool is_selected(const struct pull *p, const char *name, bool folder, const char *gguf)
{
    const char *pattern;
    if (p->args && args_has(p->args, "file")) {
        for (size_t i = 0; (pattern = args_nth(p->args, "file", i)); i++)
            if (!fnmatch(pattern, name, 0)) return true;
        return false;
    }
    if (folder) return is_model_file(name);
    return gguf && (!strcmp(name, gguf) || same_split(name, gguf));
}

/* File name of the i-th entry of the list "siblings" that the hub sends; NULL if it has none. */
static const char *sibling_name(const json_t *list, size_t i)
{
    return json_string_value(json_object_get(json_array_get(list, i), "rfilename"));
}

/* The error for a repository without safetensors and without exactly one GGUF model. Several GGUF
 * files are variants of the same model, so the user must select one. */
static segue_status fail_ambiguous(const struct pull *p, const json_t *list, const char *id, size_t ggufs, segue_error *err)
{
    if (ggufs == 0 && !p->label)
        return out_fail(err, SEGUE_EFORMAT,
                        "pull: %.150s: the repository has no .safetensors and no .gguf file; choose another one, or select "
                        "files with --file",
                        id);
    struct out_text names = {0};
    for (size_t i = 0; i < json_array_size(list); i++)
        if (sibling_name(list, i) && ends_with(sibling_name(list, i), ".gguf") && names.len < 300)
            out_addf(&names, "%s%s", names.len ? ", " : "", sibling_name(list, i));
    if (ggufs == 0)
        out_fail(err, SEGUE_EARG, "pull: %.100s: no GGUF file with the quantisation %.40s; the repository has %.330s", id,
                 p->label, names.data ? names.data : "none");
    else
        out_fail(err, SEGUE_EARG,
                 "pull: %.100s: the repository has %zu GGUF files; select one with --file, or by its quantisation with "
                 "%.100s:Q4_K_M: %.330s",
                 id, ggufs, id, names.data);
    free(names.data);
    return SEGUE_EARG;
}

/* Add the files of a repository to the list. answer: the response of the hub; revision: the commit
 * that it reported, so that a push during the download cannot mix versions. */
static segue_status select_files(struct pull *p, const json_t *answer, const char *id, const char *revision,
                           segue_error *err)
{
    const json_t *list = json_object_get(answer, "siblings");
    const char *gguf = NULL;
    size_t ggufs = 0;
    bool folder = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = sibling_name(list, i);
        if (!name || !folders_plain_path(name)) continue;
        /* Several parts of one split GGUF count as one model. */
        folder |= !p->label && !strchr(name, '/') && ends_with(name, ".safetensors");
        if (ends_with(name, ".gguf") && has_label(p, name) && !(gguf && same_split(gguf, name))) {
            gguf = name;
            ggufs++;
        }
    }
    /* First pass, above: does the repository have safetensors, and how many GGUF models? Second pass,
     * below: select. */
    bool by_file = p->args && args_has(p->args, "file");
    if (!by_file && !folder && ggufs != 1) return fail_ambiguous(p, list, id, ggufs, err);
    /* Ids and names may contain characters that URLs do not allow. */
    char *safe_id = http_escape(id), *safe_revision = http_escape(revision);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *lfs = json_object_get(entry, "lfs");
        const char *name = sibling_name(list, i), *sha = json_string_value(json_object_get(lfs, "sha256"));
        if (!name || !is_selected(p, name, folder, gguf)) continue;
        if (!folders_plain_path(name)) { /* such as "../x" or "/x": the server is not trustworthy */
            free(safe_id);
            free(safe_revision);
            return out_fail(err, SEGUE_EFORMAT,
                            "pull: %.100s: the server sent the unsafe file name \"%.100s\"; do not trust this source", id,
                            name);
        }
        /* size and lfs.sha256 are sent because of ?blobs=true; small files have no checksum. */
        json_int_t bytes = json_integer_value(json_object_get(entry, "size"));
        char *safe = http_escape(name),
             *url = out_printf("%s/%s/resolve/%s/%s", p->endpoint, safe_id, safe_revision, safe);
        add_item(p, name, url, sha && is_sha256_hex(sha) ? sha : "", bytes > 0 ? (uint64_t)bytes : 0);
        free(url);
        free(safe);
    }
    free(safe_id);
    free(safe_revision);
    return p->n ? SEGUE_OK
                : out_fail(err, SEGUE_EARG, "pull: %.150s: the repository has no file that matches --file; see its page", id);
}

/* Link a complete model from the local Hugging Face cache into the models folder instead of
 * downloading it. Returns false if it is not there, or if --out or --file was given. */
static bool link_hub_cache(struct pull *p, const char *id, const char *revision)
{
    segue_error ignored;
    struct stat s;
    if (p->label || (p->args && (args_has(p->args, "out") || args_has(p->args, "file")))) return false;
    char *snapshot = folders_hub_snapshot(id, revision), *models = folders_path("data", "models");
    bool found = snapshot && hub_snapshot_complete(snapshot) && folders_make(models, &ignored) == SEGUE_OK;
    /* An old link is replaced; a folder with a downloaded model is kept, and symlink fails. */
    if (found && !lstat(p->folder, &s) && S_ISLNK(s.st_mode)) unlink(p->folder);
    if (found) found = symlink(snapshot, p->folder) == 0;
    if (found) p->note = out_printf("found in the local Hugging Face cache: %s", snapshot);
    free(models);
    free(snapshot);
    return found;
}

/* Resolve OWNER/NAME[@REVISION]: link the model from the local cache, or ask the hub for its list
 * of files. */
static segue_status resolve_id(struct pull *p, const char *operand, segue_error *err)
{
    char *id = out_strdup(operand), *at = strchr(id, '@'), *colon = strrchr(id, ':');
    const char *revision = at ? at + 1 : NULL, *slash;
    if (at) *at = 0;
    if (colon && colon[1]) {
        *colon = 0;
        p->label = operand + (colon - id) + 1;
    }
    slash = strchr(id, '/');
    segue_status st = SEGUE_OK;
    if (!slash || strchr(slash + 1, '/') || !folders_plain_path(id) ||
        (revision && !folders_plain_path(revision)))
        st = out_fail(err, SEGUE_EARG,
                      "pull: \"%.150s\": neither an id nor a URL; expected OWNER/NAME[@REVISION][:LABEL] or https://...",
                      operand);
    char *name = st ? NULL : out_printf("%.*s--%s", (int)(slash - id), id, slash + 1);
    if (!st && !p->folder) {
        char *models = folders_path("data", "models");
        p->folder = out_printf("%s/%s", models, name);
        free(models);
    }
    free(name);
    if (!st && !link_hub_cache(p, id, revision)) {
        char *safe = http_escape(id), *safe_revision = revision ? http_escape(revision) : NULL;
        char *url = out_printf("%s/api/models/%s%s%s?blobs=true", p->endpoint, safe,
                               revision ? "/revision/" : "", safe_revision ? safe_revision : "");
        struct http_request r = {url, getenv("HF_TOKEN"), p->timeout_s};
        struct out_text text = {0};
        long code;
        st = http_text(&r, (size_t)16 << 20, &text, &code, err);
        json_t *answer = st ? NULL : out_json_load(text.data ? text.data : "", text.len, 0, NULL);
        /* The commit of the revision; later requests name it instead of the branch. */
        const char *sha = json_string_value(json_object_get(answer, "sha"));
        if (!st && !json_is_array(json_object_get(answer, "siblings")))
            st = out_fail(err, SEGUE_EFORMAT, "pull: %.250s: the response has no list of files; check HF_ENDPOINT",
                          url);
        if (!st)
            st = select_files(p, answer, id,
                        sha && folders_plain_name(sha) ? sha
                        : revision                     ? revision
                                                       : "main",
                        err);
        json_decref(answer);
        free(text.data);
        free(url);
        free(safe_revision);
        free(safe);
    }
    free(id);
    return st;
}

/* Resolve a URL: one file, named by the last component of the path. Percent escapes in the name are
 * rejected. The size and the checksum are not known. */
static segue_status resolve_url(struct pull *p, const char *url, segue_error *err)
{
    /* The query and the fragment are not part of the file name. */
    const char *path = strstr(url, "://") + 3, *end = path + strcspn(path, "?#"), *slash = end;
    while (slash > path && slash[-1] != '/') slash--;
    char *name = out_printf("%.*s", (int)(end - slash), slash);
    segue_status st = SEGUE_OK;
    if (!memchr(path, '/', (size_t)(end - path)) || !folders_plain_name(name) || strchr(name, '%'))
        st = out_fail(err, SEGUE_EARG,
                      "pull: %.250s: the URL does not end in a plain file name; give the URL of a file", url);
    if (!st && !p->folder) p->folder = folders_path("data", "models");
    if (!st) {
        p->result = out_printf("%s/%s", p->folder, name);
        add_item(p, name, url, "", 0);
    }
    free(name);
    return st;
}

/* The address of a page of the hub, or of a file. */
static segue_status resolve_address(struct pull *p, const char *url, segue_error *err)
{
    char *file = NULL, *id = hub_id_of_page(p->endpoint, url, &file);
    segue_status st = id ? resolve_id(p, id, err) : resolve_url(p, file ? file : url, err);
    free(file);
    free(id);
    return st;
}

/* A checksum given by the user replaces the one of the hub. */
static segue_status set_sha256(struct pull *p, segue_error *err)
{
    const char *sha = p->args ? args_text(p->args, "sha256") : NULL;
    if (!sha) return SEGUE_OK;
    if (!is_sha256_hex(sha))
        return out_fail(err, SEGUE_EARG, "flag --sha256: \"%.80s\": invalid value; expected 64 hexadecimal digits", sha);
    if (p->n != 1)
        return out_fail(err, SEGUE_EARG,
                        "flag --sha256: %zu files selected, the checksum applies to one; select it with --file", p->n);
    free(p->items[0].sha256);
    p->items[0].sha256 = out_strdup(sha);
    to_lower(p->items[0].sha256);
    return SEGUE_OK;
}

/* Print the path, or the JSON object. A linked model has no list of files. */
static int print_result(const struct pull *p)
{
    json_t *o = json_object(), *files = json_array();
    const char *path = p->result ? p->result : p->folder;
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->n; i++) {
        json_t *f = json_object();
        json_object_set_new(f, "name", json_string(p->items[i].name));
        json_object_set_new(f, "bytes", json_integer((json_int_t)p->items[i].bytes));
        if (*p->items[i].sha256)
            json_object_set_new(f, "sha256", json_string(p->items[i].sha256));
        else
            out_null(f, "sha256", "the server reports no checksum; use --sha256");
        json_object_set_new(f, "already_present", json_boolean(p->items[i].already_present));
        json_array_append_new(files, f);
        bytes += p->items[i].bytes;
    }
    json_object_set_new(o, "path", out_string(path, strlen(path)));
    json_object_set_new(o, "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(o, "files", files);
    json_object_set_new(o, "linked", json_boolean(p->note != NULL));
    if (p->note && !p->quiet) out_note("pull: %s", p->note);
    if (args_has(p->args, "json")) return out_json_exit(o);
    json_decref(o);
    segue_error err;
    char *line = out_printf("%s\n", path);
    segue_status st = out_write(line, strlen(line), &err);
    free(line);
    return st ? out_error(&err, EXIT_UNAVAILABLE) : EXIT_DONE;
}

/* Resolve the operand and download its files. */
static segue_status fetch_all(struct pull *p, const char *operand, segue_error *err)
{
    const char *endpoint = getenv("HF_ENDPOINT"), *scheme = strstr(operand, "://");
    segue_status st = SEGUE_OK;
    snprintf(p->endpoint, sizeof p->endpoint, "%.500s",
             endpoint && *endpoint ? endpoint : "https://huggingface.co");
    /* Paths are appended with a slash. */
    while (ends_with(p->endpoint, "/")) p->endpoint[strlen(p->endpoint) - 1] = 0;
    if (!scheme)
        st = resolve_id(p, operand, err);
    else if (!strncmp(operand, "http://", 7) || !strncmp(operand, "https://", 8))
        st = resolve_address(p, operand, err);
    else
        st = out_fail(err, SEGUE_EARG, "pull: \"%.150s\": unsupported scheme; use http or https",
                      operand);
    if (!st && !p->note) st = set_sha256(p, err);
    for (size_t i = 0; i < p->n && !st; i++) st = fetch_item(p, &p->items[i], err);
    /* A failed download leaves no empty folder; partial files, to be resumed, keep it. */
    if (st && p->folder) rmdir(p->folder);
    /* A single file is a model by itself: print its path instead of the folder. A split GGUF is opened by its first part. */
    for (size_t i = 0; !st && !p->result && i < p->n; i++)
        if (p->n == 1 || (ends_with(p->items[i].name, ".gguf") && strstr(p->items[i].name, "-00001-of-")))
            p->result = out_printf("%s/%s", p->folder, p->items[i].name);
    return st;
}

static void free_pull(struct pull *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->items[i].name);
        free(p->items[i].url);
        free(p->items[i].sha256);
    }
    free(p->items);
    free(p->folder);
    free(p->result);
    free(p->note);
}

/* Signals are deferred: an interrupted transfer must flush its partial file so that it can be resumed. */
segue_status pull_model(const char *id, bool quiet, char **path, segue_error *err)
{
    struct pull p = {.timeout_s = 30, .quiet = quiet};
    interrupt_defer(true);
    segue_status st = fetch_all(&p, id, err);
    interrupt_defer(false);
    if (!st) *path = out_strdup(p.result ? p.result : p.folder);
    free_pull(&p);
    return st;
}

static int run(struct args *args)
{
    struct pull p = {.args = args, .timeout_s = (long)args_number(args, "timeout", 30), .quiet = args_has(args, "quiet")};
    segue_error err;
    if (args_has(args, "out")) p.folder = out_strdup(args_text(args, "out"));
    interrupt_defer(true);
    segue_status st = fetch_all(&p, args->operands[0], &err);
    int code = st ? out_error(&err, EXIT_UNAVAILABLE) : print_result(&p);
    free_pull(&p);
    return code;
}

/* Flags of pull only. */
static const struct arg_def flag_defs[] = {
    {"sha256", 0, ARG_TEXT, 0, "H", "as listed by the hub", 0, 0, "expected SHA-256 of the file"},
    {"out", 'o', ARG_FOLDER, 0, "DIR", "the models folder", 0, 0, "target folder"},
    {"file", 0, ARG_TEXT, ARG_REPEATABLE, "NAME", NULL, 0, 0,
     "download only these files of a repository; * and ? are wildcards; may be repeated"},
    {"timeout", 0, ARG_COUNT, 0, "S", "30", 1, 86400, "network timeout in seconds"},
    {"quiet", 'q', ARG_SWITCH, 0, NULL, NULL, 0, 0, "print no progress on stderr"},
    ARG_END};
static const struct arg_group command_flags = {"Source", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_output, NULL};
const struct command cmd_pull = {.name = "pull",
                                 .summary = "download a model by Hugging Face id or URL",
                                 .operands = "OWNER/NAME[@REVISION][:LABEL]|URL",
                                 .operands_min = 1,
                                 .operands_max = 1,
                                 .groups = groups,
                                 .example = "segue pull HuggingFaceTB/SmolLM2-135M-Instruct",
                                 .run = run,
                                 .about = "Downloads the files of a model into the models folder. For an id these are "
                                          "the safetensors files with their JSON files, or the only GGUF file, or "
                                          "the GGUF file with the quantisation LABEL, such as Q4_K_M, or "
                                          "the files selected with --file. An interrupted download resumes when "
                                          "the command is repeated. Each file is checked against the SHA-256 of "
                                          "the hub before it gets its final name. A model that is already in the "
                                          "local Hugging Face cache is linked instead. HF_ENDPOINT selects another "
                                          "hub; HF_TOKEN gives access to gated models. Prints the path of the "
                                          "downloaded model."};
