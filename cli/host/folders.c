/* folders.c: folder locations and file system helpers, see folders.h. Nothing outside the given path is written or
 * removed, and no link is followed while removing.
 * SPDX-License-Identifier: MIT */
#include "host/folders.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

/* The value of an environment variable; an empty one counts as unset, as in the XDG specification. */
static const char *env_value(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* Without $HOME, as in some services, paths are relative to the current folder. */
char *folders_home(const char *which)
{
    bool data = !strcmp(which, "data");
    const char *home = env_value("SEGUE_HOME");
    if (home) return out_printf("%s/%s", home, which);
    home = env_value(data ? "XDG_DATA_HOME" : "XDG_CACHE_HOME");
    if (home) return out_printf("%s/segue", home);
    home = env_value("HOME");
    return out_printf("%s/%s/segue", home ? home : ".", data ? ".local/share" : ".cache");
}

/* The path need not exist. */
char *folders_path(const char *which, const char *name)
{
    char *home = folders_home(which), *path = out_printf("%s/%s", home, name);
    free(home);
    return path;
}

/* mkdir for each prefix of the path; EEXIST is not an error. */
segue_status folders_make(const char *path, segue_error *err)
{
    char *copy = out_strdup(path);
    segue_status st = SEGUE_OK;
    for (char *c = copy + 1; !st; c++) {
        if (*c && *c != '/') continue;
        char was = *c;
        *c = 0;
        if (mkdir(copy, 0700) && errno != EEXIST) st = out_fail_errno(err, "creating a folder", copy, NULL);
        *c = was;
        if (!was) break;
    }
    free(copy);
    return st;
}

/* The library's rule (base/file.h); it applies to files as to folders. */
segue_status folders_check_owner(const char *path, segue_error *err) { return sg_folder_check_owner(path, err); }

/* stat follows symbolic links, so a link to a file counts as a file. */
bool folders_is_file(const char *path)
{
    struct stat s;
    return !stat(path, &s) && S_ISREG(s.st_mode);
}

bool folders_is_folder(const char *path)
{
    struct stat s;
    return !stat(path, &s) && S_ISDIR(s.st_mode);
}

/* Unreadable parts count as empty: the figures are for display only. */
void folders_usage_suffix(const char *path, const char *suffix, uint64_t *bytes, size_t *files)
{
    struct stat s;
    if (lstat(path, &s)) return;
    size_t n = strlen(path), m = strlen(suffix);
    if (!S_ISDIR(s.st_mode)) {
        if (n < m || strcmp(path + n - m, suffix) != 0) return;
        *bytes += (uint64_t)s.st_size;
        *files += 1;
        return;
    }
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *inner = out_printf("%s/%s", path, e->d_name);
        folders_usage_suffix(inner, suffix, bytes, files);
        free(inner);
    }
    if (dir) closedir(dir);
}

/* The empty suffix matches every file. */
void folders_usage(const char *path, uint64_t *bytes, size_t *files)
{
    folders_usage_suffix(path, "", bytes, files);
}

/* lstat, so that a link is removed and not its target. */
segue_status folders_remove(const char *path, bool remove_self, segue_error *err)
{
    struct stat s;
    if (lstat(path, &s)) return errno == ENOENT ? SEGUE_OK : out_fail_errno(err, "removing", path, NULL);
    segue_status st = SEGUE_OK;
    bool folder = S_ISDIR(s.st_mode);
    DIR *dir = folder ? opendir(path) : NULL;
    for (struct dirent *e; dir && !st && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *inner = out_printf("%s/%s", path, e->d_name);
        st = folders_remove(inner, true, err);
        free(inner);
    }
    if (dir) closedir(dir);
    if (!st && remove_self && (folder ? rmdir(path) : unlink(path)))
        st = out_fail_errno(err, "removing", path, NULL);
    return st;
}

/* Applied to names from users and servers before they become part of a path. */
bool folders_plain_name(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > 200 || name[0] == '.') return false;
    for (; *name; name++)
        if (*name == '/' || *name == '\\' || (unsigned char)*name < 32 || *name == 127) return false;
    return true;
}

/* Checks each component between slashes. */
bool folders_plain_path(const char *path)
{
    char *copy = out_strdup(path);
    bool valid = *copy != 0;
    for (char *part = copy; valid && part;) {
        char *slash = strchr(part, '/');
        if (slash) *slash = 0;
        valid = folders_plain_name(part);
        part = slash ? slash + 1 : NULL;
    }
    free(copy);
    return valid;
}

/* OWNER/NAME to OWNER--NAME, the name of the folder of a downloaded model. */
static char *dashed_id(const char *id)
{
    struct out_text t = {0};
    for (; *id; id++) out_add(&t, *id == '/' ? "--" : id, *id == '/' ? 2 : 1);
    return t.data ? t.data : out_strdup("");
}

/* A branch is a file in refs/ that contains the commit; a revision without such a file is taken as a commit. */
char *folders_hub_snapshot(const char *id, const char *revision)
{
    if (!folders_plain_path(id) || (revision && !folders_plain_path(revision))) return NULL;
    const char *cache = env_value("HF_HUB_CACHE"), *hf = env_value("HF_HOME"), *home = env_value("HOME");
    char *hub = cache ? out_strdup(cache)
                : hf  ? out_printf("%s/hub", hf)
                      : out_printf("%s/.cache/huggingface/hub", home ? home : ".");
    char *name = dashed_id(id);
    char *ref = out_printf("%s/models--%s/refs/%s", hub, name, revision ? revision : "main");
    char hash[128] = "";
    FILE *f = fopen(ref, "r");
    if (f) {
        size_t n = fread(hash, 1, sizeof hash - 1, f);
        hash[n] = 0;
        hash[strcspn(hash, " \r\n")] = 0;
        fclose(f);
    } else if (revision)
        snprintf(hash, sizeof hash, "%.120s", revision);
    char *found = out_printf("%s/models--%s/snapshots/%s", hub, name, hash);
    if (!folders_plain_name(hash) || !folders_is_folder(found)) {
        free(found);
        found = NULL;
    }
    free(ref);
    free(name);
    free(hub);
    return found;
}

/* If path is a folder without config.json that contains exactly one GGUF model, return the path of that file,
 * otherwise path. The parts 00002 and later of a split model are not counted. Frees path if it returns another
 * string. */
static char *resolve_gguf(char *path)
{
    char *config = out_printf("%s/config.json", path);
    bool whole = folders_is_file(config) || !folders_is_folder(path);
    free(config);
    DIR *dir = whole ? NULL : opendir(path);
    char *only = NULL;
    size_t n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        size_t len = strlen(e->d_name);
        const char *part = strstr(e->d_name, "-of-");
        bool later_part = part && part - e->d_name >= 6 && strncmp(part - 6, "-00001", 6) != 0;
        if (len < 6 || strcmp(e->d_name + len - 5, ".gguf") != 0 || e->d_name[0] == '.' || later_part)
            continue;
        if (n++ == 0) only = out_printf("%s/%s", path, e->d_name);
    }
    if (dir) closedir(dir);
    if (n != 1) {
        free(only);
        return path;
    }
    free(path);
    return only;
}

/* Search the models folder for the name as given and with the usual suffixes, then the Hugging Face cache. NULL: not
 * found. */
static char *find_model(const char *name)
{
    static const char *const ends[] = {"", ".gguf", ".Q4_1.gguf"};
    char *valid = dashed_id(name), *home = folders_home("data"), *path = NULL;
    for (size_t i = 0; i < 3 && !path && folders_plain_name(valid); i++) {
        path = out_printf("%s/models/%s%s", home, valid, ends[i]);
        if (!folders_is_file(path) && !folders_is_folder(path)) {
            free(path);
            path = NULL;
        }
    }
    free(home);
    free(valid);
    if (!path && strchr(name, '/')) path = folders_hub_snapshot(name, NULL);
    return path;
}

/* An existing path takes precedence over a name in the models folder. */
segue_status folders_model_named(const char *name, char **path, segue_error *err)
{
    struct stat s;
    char *found = !stat(name, &s) ? out_strdup(name) : find_model(name);
    if (!found)
        return out_fail(err, SEGUE_EIO,
                        "model: %.300s: no such file or folder, and no downloaded model of that name; see "
                        "segue models and segue pull",
                        name);
    *path = resolve_gguf(found);
    return SEGUE_OK;
}

/* The flag takes precedence over the environment variable. */
segue_status folders_model(const struct args *args, char **path, segue_error *err)
{
    const char *name = args_text(args, "model");
    if (!name) name = env_value("SEGUE_MODEL");
    if (name) return folders_model_named(name, path, err);
    char *found = find_model(FOLDERS_DEFAULT_MODEL);
    if (!found)
        return out_fail(
            err, SEGUE_EARG,
            "model: none given, and the default model is not installed; give -m, or download it with make run");
    *path = resolve_gguf(found);
    return SEGUE_OK;
}
