/* folders.c: see folders.h.
 * Must never do: write outside the data and cache folders, or follow a link when removing.
 * SPDX-License-Identifier: MIT */
#include "task/folders.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Set and empty counts as not set, as the XDG specification has it. */
static const char *variable(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* Without HOME the current folder must do: a service may have none. */
char *folders_home(const char *which)
{
    bool data = !strcmp(which, "data");
    const char *home = variable("SEGUE_HOME");
    if (home) return out_printf("%s/%s", home, which);
    home = variable(data ? "XDG_DATA_HOME" : "XDG_CACHE_HOME");
    if (home) return out_printf("%s/segue", home);
    home = variable("HOME");
    return out_printf("%s/%s/segue", home ? home : ".", data ? ".local/share" : ".cache");
}

char *folders_path(const char *which, const char *name)
{
    char *home = folders_home(which), *path = out_printf("%s/%s", home, name);
    free(home);
    return path;
}

/* Walks the path and makes what is missing, ignoring what is there. */
segue_status folders_make(const char *path, segue_error *err)
{
    char *copy = out_strdup(path);
    segue_status st = SEGUE_OK;
    for (char *c = copy + 1; !st; c++) {
        if (*c && *c != '/') continue;
        char was = *c;
        *c = 0;
        if (mkdir(copy, 0700) && errno != EEXIST) st = out_fail_errno(err, "making a folder", copy, NULL);
        *c = was;
        if (!was) break;
    }
    free(copy);
    return st;
}

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

/* Unreadable parts count as nothing: this is for showing, not for deciding. */
void folders_measure_ending(const char *path, const char *ending, uint64_t *bytes, size_t *files)
{
    struct stat s;
    if (lstat(path, &s)) return;
    size_t n = strlen(path), m = strlen(ending);
    if (!S_ISDIR(s.st_mode)) {
        if (n < m || strcmp(path + n - m, ending) != 0) return;
        *bytes += (uint64_t)s.st_size;
        *files += 1;
        return;
    }
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *inner = out_printf("%s/%s", path, e->d_name);
        folders_measure_ending(inner, ending, bytes, files);
        free(inner);
    }
    if (dir) closedir(dir);
}

void folders_measure(const char *path, uint64_t *bytes, size_t *files)
{
    folders_measure_ending(path, "", bytes, files);
}

/* lstat, so that a link is removed and not what it points to. */
segue_status folders_remove(const char *path, bool whole, segue_error *err)
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
    if (!st && whole && (folder ? rmdir(path) : unlink(path)))
        st = out_fail_errno(err, "removing", path, NULL);
    return st;
}

/* For names that come from users and servers, before they become part of a path. */
bool folders_plain_name(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > 200 || name[0] == '.') return false;
    for (; *name; name++)
        if (*name == '/' || *name == '\\' || (unsigned char)*name < 32 || *name == 127) return false;
    return true;
}

bool folders_plain_path(const char *path)
{
    char *copy = out_strdup(path);
    bool plain = *copy != 0;
    for (char *part = copy; plain && part;) {
        char *slash = strchr(part, '/');
        if (slash) *slash = 0;
        plain = folders_plain_name(part);
        part = slash ? slash + 1 : NULL;
    }
    free(copy);
    return plain;
}

/* org/name -> org--name */
static char *hub_name(const char *id)
{
    struct out_text t = {0};
    for (; *id; id++) out_add(&t, *id == '/' ? "--" : id, *id == '/' ? 2 : 1);
    return t.data ? t.data : out_strdup("");
}

/* A branch is a file in refs/ that holds the commit; a commit is named directly. */
char *folders_hub_snapshot(const char *id, const char *revision)
{
    if (!folders_plain_path(id) || (revision && !folders_plain_path(revision))) return NULL;
    const char *cache = variable("HF_HUB_CACHE"), *hf = variable("HF_HOME"), *home = variable("HOME");
    char *hub = cache ? out_strdup(cache)
                : hf  ? out_printf("%s/hub", hf)
                      : out_printf("%s/.cache/huggingface/hub", home ? home : ".");
    char *name = hub_name(id);
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

/* A folder without config.json that holds one model in GGUF form stands for that file. Takes path. */
static char *inside(char *path)
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

/* The name as given, or without the ending that its file has. */
static char *named(const char *name)
{
    static const char *const ends[] = {"", ".gguf", ".Q4_1.gguf"};
    char *plain = hub_name(name), *home = folders_home("data"), *path = NULL;
    for (size_t i = 0; i < 3 && !path && folders_plain_name(plain); i++) {
        path = out_printf("%s/models/%s%s", home, plain, ends[i]);
        if (!folders_is_file(path) && !folders_is_folder(path)) {
            free(path);
            path = NULL;
        }
    }
    free(home);
    free(plain);
    if (!path && strchr(name, '/')) path = folders_hub_snapshot(name, NULL);
    return path;
}

/* A path that exists goes before a name in the models folder. */
segue_status folders_model_named(const char *name, char **path, segue_error *err)
{
    struct stat s;
    char *found = !stat(name, &s) ? out_strdup(name) : named(name);
    if (!found)
        return out_fail(err, SEGUE_EIO,
                        "model: %.300s: no such file or folder, and no model of that name; see segue models, "
                        "or segue pull",
                        name);
    *path = inside(found);
    return SEGUE_OK;
}

segue_status folders_model(const struct args *args, char **path, segue_error *err)
{
    const char *name = args_text(args, "model");
    if (!name) name = variable("SEGUE_MODEL");
    if (name) return folders_model_named(name, path, err);
    char *found = named(FOLDERS_DEFAULT_MODEL);
    if (!found)
        return out_fail(
            err, SEGUE_EARG,
            "model: none given and the default one is not here: name one with -m, or fetch it with make run");
    *path = inside(found);
    return SEGUE_OK;
}
