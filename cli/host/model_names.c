/* model_names.c: installed models and their names, see model_names.h.
 * SPDX-License-Identifier: MIT */
#include "host/model_names.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include "host/folders.h"

bool model_names_is_gguf(const char *file)
{
    size_t len = strlen(file);
    const char *part = strstr(file, "-of-");
    bool later_part = part && part - file >= 6 && strncmp(part - 6, "-00001", 6) != 0;
    return len >= 6 && !strcasecmp(file + len - 5, ".gguf") && file[0] != '.' && !later_part;
}

/* Length of the name of a GGUF file without .gguf and -0000N-of-0000M. */
static size_t stem_length(const char *file)
{
    size_t n = strlen(file);
    if (n > 5 && !strcasecmp(file + n - 5, ".gguf")) n -= 5;
    if (n > 15 && file[n - 15] == '-' && !strncmp(file + n - 9, "-of-", 4)) n -= 15;
    return n;
}

/* True if a quantisation such as Q4_K_M, IQ2_XXS, BF16 or MXFP4 begins at s. */
static bool is_label(const char *s)
{
    static const char *const begins[] = {"iq", "tq", "q", "ud-q", "ud-iq", "bf", "fp", "f", "mxfp", "nvfp"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        size_t n = strlen(begins[i]);
        if (!strncasecmp(s, begins[i], n) && isdigit((unsigned char)s[n])) return true;
    }
    return false;
}

/* Offset of the quantisation in the stem of a file name; the length of the stem if there is none. */
static size_t label_at(const char *file, size_t stem)
{
    for (size_t i = 1; i < stem; i++)
        if (strchr("-._", file[i - 1]) && is_label(file + i)) return i;
    return stem;
}

char *model_names_label(const char *file)
{
    size_t stem = stem_length(file), at = label_at(file, stem);
    return at < stem ? out_printf("%.*s", (int)(stem - at), file + at) : out_printf("%.*s", (int)stem, file);
}

/* OWNER--NAME as OWNER/NAME; other names as they are. */
static char *id_of_entry(const char *entry)
{
    const char *dashes = strstr(entry, "--");
    return dashes && dashes > entry && dashes[2] ? out_printf("%.*s/%s", (int)(dashes - entry), entry, dashes + 2)
                                                 : out_strdup(entry);
}

/* Append a model; takes over name, path and label. */
static void add_model(struct installed_models *list, char *name, char *path, const char *entry, char *label)
{
    list->items = out_realloc(list->items, (list->n + 1) * sizeof *list->items);
    list->items[list->n++] = (struct installed_model){name, path, out_strdup(entry), label};
}

/* Append the GGUF files of a folder and its direct subfolders, with names NAME:LABEL for now. */
static void add_gguf_files(struct installed_models *list, const char *folder, const char *entry, bool deeper)
{
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        char *path = out_printf("%s/%s", folder, e->d_name);
        if (folders_is_folder(path) && deeper) add_gguf_files(list, path, entry, false);
        if (!folders_is_file(path) || !model_names_is_gguf(e->d_name)) {
            free(path);
            continue;
        }
        char *label = model_names_label(e->d_name), *id = id_of_entry(entry);
        add_model(list, out_printf("%s:%s", id, label), path, entry, label);
        free(id);
    }
    if (dir) closedir(dir);
}

/* True if a folder contains a file of weights. After a failed download it may be empty, or contain only JSON files. */
static bool has_weights(const char *folder)
{
    static const char *const ends[] = {".safetensors", ".gguf", ".bin"};
    bool found = false;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && !found && (e = readdir(dir));)
        for (size_t i = 0, n = strlen(e->d_name); i < 3 && e->d_name[0] != '.'; i++)
            found |= n > strlen(ends[i]) && !strcmp(e->d_name + n - strlen(ends[i]), ends[i]);
    if (dir) closedir(dir);
    return found;
}

/* One entry of the models folder: a file, a folder in Hugging Face format, or a folder of GGUF files. */
static void add_entry(struct installed_models *list, const char *folder, const char *entry)
{
    char *path = out_printf("%s/%s", folder, entry), *config = out_printf("%s/config.json", path);
    size_t before = list->n;
    if (folders_is_folder(path) && !folders_is_file(config)) {
        add_gguf_files(list, path, entry, true);
        if (list->n == before + 1) { /* the only file needs no label */
            free(list->items[before].name);
            list->items[before].name = id_of_entry(entry);
        }
    }
    free(config);
    if (list->n > before || (folders_is_folder(path) && !has_weights(path))) {
        free(path);
        return;
    }
    bool gguf = model_names_is_gguf(entry);
    add_model(list, folders_is_folder(path) ? id_of_entry(entry) : out_strdup(entry), path, entry,
              gguf ? model_names_label(entry) : out_strdup(""));
}

/* Order for qsort. */
static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct installed_model *)a)->name, ((const struct installed_model *)b)->name);
}

void model_names_list(struct installed_models *out)
{
    *out = (struct installed_models){0};
    char *folder = folders_path("data", "models");
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.') add_entry(out, folder, e->d_name);
    if (dir) closedir(dir);
    free(folder);
    if (out->n) qsort(out->items, out->n, sizeof *out->items, by_name);
}

void model_names_free(struct installed_models *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free(list->items[i].name);
        free(list->items[i].path);
        free(list->items[i].entry);
        free(list->items[i].label);
    }
    free(list->items);
    *list = (struct installed_models){0};
}

/* True if two texts of n and strlen(b) characters are equal without case. */
static bool same(const char *a, size_t n, const char *b) { return strlen(b) == n && !strncasecmp(a, b, n); }

/* True if the n characters of `asked` name a model: its entry, OWNER/NAME, NAME, NAME without -GGUF, or a file name without
 * .gguf or without the quantisation. */
static bool has_name(const struct installed_model *m, const char *asked, size_t n)
{
    char *id = id_of_entry(m->entry);
    const char *slash = strchr(id, '/'), *file = m->entry;
    const char *plain = slash ? slash + 1 : id;
    size_t stem = stem_length(file), at = label_at(file, stem), plain_n = strlen(plain);
    bool ends_gguf = plain_n > 5 && !strcasecmp(plain + plain_n - 5, "-gguf");
    bool found = same(asked, n, m->name) || same(asked, n, id) || same(asked, n, m->entry) || same(asked, n, plain) ||
                 (ends_gguf && n == plain_n - 5 && !strncasecmp(asked, plain, n)) ||
                 (n == stem && !strncasecmp(asked, file, n)) ||
                 (at < stem && at > 1 && n == at - 1 && !strncasecmp(asked, file, n));
    free(id);
    return found;
}

/* The models of that name; :LABEL after it selects one. Returns their number, and one of them. */
static size_t matches(const struct installed_models *list, const char *asked, const struct installed_model **one,
                      struct out_text *names)
{
    size_t n = strlen(asked), count = 0;
    const char *colon = strrchr(asked, ':');
    if (colon && (strchr(colon, '/') || !colon[1])) colon = NULL;
    for (size_t i = 0; i < list->n; i++) {
        const struct installed_model *m = &list->items[i];
        bool labelled = colon && !strcasecmp(colon + 1, m->label) && has_name(m, asked, (size_t)(colon - asked));
        if (!labelled && !has_name(m, asked, n)) continue;
        if (!strcmp(m->name, asked)) { /* the exact name is never ambiguous */
            *one = m;
            return 1;
        }
        *one = m;
        if (names->len < 300) out_addf(names, "%s%s", count ? ", " : "", m->name);
        count++;
    }
    return count;
}

/* The installed name most similar to `asked`, or NULL. Names are compared in lower case, also without owner and label. */
static char *similar_name(const struct installed_models *list, const char *asked)
{
    const char **typed = out_alloc((3 * list->n + 1) * sizeof *typed);
    char **owned = out_alloc((3 * list->n + 1) * sizeof *owned), *lower = out_strdup(asked), *found = NULL;
    size_t n = 0;
    for (char *c = lower; *c; c++) *c = (char)tolower((unsigned char)*c);
    for (size_t i = 0; i < list->n; i++) {
        const char *name = list->items[i].name, *slash = strchr(name, '/'), *plain = slash ? slash + 1 : name;
        size_t stem = stem_length(plain), at = label_at(plain, stem), before = strcspn(plain, ":");
        if (before > 5 && !strncasecmp(plain + before - 5, "-gguf", 5)) stem = at = before - 5;
        owned[n++] = out_strdup(name);
        owned[n++] = out_printf("%.*s", (int)strcspn(plain, ":"), plain);
        owned[n++] = out_printf("%.*s", (int)(at < stem && at > 1 ? at - 1 : stem), plain);
    }
    for (size_t i = 0; i < n; i++) {
        for (char *c = owned[i]; *c; c++) *c = (char)tolower((unsigned char)*c);
        typed[i] = owned[i];
    }
    const char *best = args_suggest(lower, typed, n);
    for (size_t i = 0; best && i < n && !found; i++)
        if (typed[i] == best) found = out_strdup(list->items[i / 3].name);
    for (size_t i = 0; i < n; i++) free(owned[i]);
    free(owned);
    free(typed);
    free(lower);
    return found;
}

/* A folder without config.json that contains GGUF files: the only one, or an error that lists them. Frees path if it
 * returns another string. */
static segue_status resolve_folder(char *path, char **out, segue_error *err)
{
    struct installed_models list = {0};
    struct out_text names = {0};
    char *config = out_printf("%s/config.json", path);
    if (folders_is_folder(path) && !folders_is_file(config)) add_gguf_files(&list, path, path, true);
    free(config);
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < list.n && names.len < 300; i++) out_addf(&names, "%s%s", i ? ", " : "", list.items[i].path);
    if (list.n == 1)
        *out = out_strdup(list.items[0].path);
    else if (list.n > 1)
        st = out_fail(err, SEGUE_EARG, "model: %.200s: the folder has %zu GGUF files; give one of them: %.400s", path, list.n,
                      names.data);
    else
        *out = out_strdup(path);
    free(path);
    free(names.data);
    model_names_free(&list);
    return st;
}

/* Search the models folder, then the Hugging Face cache. */
static segue_status find_installed(const char *name, char **path, segue_error *err)
{
    struct installed_models list;
    struct out_text names = {0};
    const struct installed_model *one = NULL;
    model_names_list(&list);
    size_t n = matches(&list, name, &one, &names);
    char *snapshot = n == 0 && strchr(name, '/') ? folders_hub_snapshot(name, NULL) : NULL, *similar = NULL;
    segue_status st = SEGUE_OK;
    if (n == 1)
        *path = out_strdup(one->path);
    else if (n > 1)
        st = out_fail(err, SEGUE_EARG, "model: %.200s: %zu models have this name; give one of them: %.400s", name, n, names.data);
    else if (snapshot)
        *path = out_strdup(snapshot);
    else if ((similar = similar_name(&list, name)))
        st = out_fail(err, SEGUE_EIO, "model: %.300s: no such file, folder or model; did you mean %.200s?", name, similar);
    else
        st = out_fail(err, SEGUE_EIO,
                      "model: %.300s: no such file or folder, and no downloaded model of that name; see "
                      "segue models and segue pull",
                      name);
    free(similar);
    free(snapshot);
    free(names.data);
    model_names_free(&list);
    return st;
}

segue_status model_names_find(const char *name, char **path, segue_error *err)
{
    struct stat s;
    if (!stat(name, &s)) return resolve_folder(out_strdup(name), path, err);
    char *found;
    segue_status st = find_installed(name, &found, err);
    return st ? st : resolve_folder(found, path, err);
}

/* The file of `make run` first; then any model of the default's short name, for example one that `segue pull` got. */
static segue_status find_default(char **path, segue_error *err)
{
    static const char *const names[] = {MODEL_NAMES_DEFAULT ".Q4_1.gguf", MODEL_NAMES_DEFAULT_ID, MODEL_NAMES_DEFAULT};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (find_installed(names[i], path, err) == SEGUE_OK) return SEGUE_OK;
    return out_fail(err, SEGUE_EIO, "model: none given, and the default model is not installed; give -m, or download it with "
                                    "segue pull " MODEL_NAMES_DEFAULT_ID);
}

segue_status model_names_of_args(const struct args *args, char **path, const char **wanted, segue_error *err)
{
    const char *name = args_text(args, "model"), *set = getenv("SEGUE_MODEL");
    if (!name && set && *set) name = set;
    *wanted = name;
    return name ? model_names_find(name, path, err) : find_default(path, err);
}
