/* folders.c: folder locations and file system helpers, see folders.h. Nothing outside the given path is written or
 * removed, and no link is followed while removing.
 * SPDX-License-Identifier: MIT */
#include "host/folders.h"

#include <dirent.h>
#include <errno.h>
#include <pwd.h>
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

/* $HOME, else the home folder of the user's entry in the password file. Without either, as for some services, a folder that
 * does not exist: nothing may be written to or read from the current folder. */
static const char *user_home(void)
{
    const char *home = env_value("HOME");
    if (home) return home;
    const struct passwd *user = getpwuid(getuid());
    return user && user->pw_dir && user->pw_dir[0] == '/' && user->pw_dir[1] ? user->pw_dir : "/nonexistent";
}

/* A variable of the XDG specification, which says that relative paths are ignored. */
static const char *xdg_value(const char *name)
{
    const char *v = env_value(name);
    return v && v[0] == '/' ? v : NULL;
}

char *folders_home(const char *which)
{
    bool data = !strcmp(which, "data"), config = !strcmp(which, "config");
    const char *home = env_value("SEGUE_HOME");
    if (home) return out_printf("%s/%s", home, which);
    home = xdg_value(data ? "XDG_DATA_HOME" : config ? "XDG_CONFIG_HOME" : "XDG_CACHE_HOME");
    if (home) return out_printf("%s/segue", home);
    return out_printf("%s/%s/segue", user_home(), data ? ".local/share" : config ? ".config" : ".cache");
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

/* The library's rule (base/file.h); it applies to files and to folders. */
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

static struct timespec file_clock(void)
{
    struct timespec now;
#ifdef CLOCK_REALTIME_COARSE
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
#else
    clock_gettime(CLOCK_REALTIME, &now);
#endif
    return now;
}

/* Linux dates files by the coarse clock, which may be behind the other one and has one value for some milliseconds. Waits for
 * its next value, so that files written before this call are older than the result. */
struct timespec folders_now(void)
{
    const struct timespec before = file_clock(), pause = {0, 200000};
    struct timespec now = before;
    while (now.tv_sec == before.tv_sec && now.tv_nsec == before.tv_nsec) {
        nanosleep(&pause, NULL);
        now = file_clock();
    }
    return now;
}

static bool changed_since(const struct stat *s, struct timespec since)
{
#ifdef __APPLE__
    struct timespec t = s->st_mtimespec;
#else
    struct timespec t = s->st_mtim;
#endif
    return t.tv_sec != since.tv_sec ? t.tv_sec > since.tv_sec : t.tv_nsec >= since.tv_nsec;
}

/* Files of one entry follow each other in the sorted list: their names are hashes of one length with different endings. */
void folders_usage_since(const char *path, struct timespec since, uint64_t *bytes)
{
    struct dirent **list = NULL;
    int n = scandir(path, &list, NULL, alphasort);
    uint64_t entry_bytes = 0;
    bool used = false;
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        size_t stem = strcspn(name, ".");
        char *inner = out_printf("%s/%s", path, name);
        struct stat s;
        if (stem && !lstat(inner, &s) && S_ISDIR(s.st_mode)) {
            folders_usage_since(inner, since, bytes);
        } else if (stem && !lstat(inner, &s)) {
            entry_bytes += (uint64_t)s.st_size;
            used = used || changed_since(&s, since);
        }
        free(inner);
        if (i + 1 < n && !strncmp(list[i + 1]->d_name, name, stem) && strcspn(list[i + 1]->d_name, ".") == stem) continue;
        if (used) *bytes += entry_bytes;
        entry_bytes = 0;
        used = false;
    }
    for (int i = 0; i < n; i++) free(list[i]);
    free(list);
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
    const char *cache = env_value("HF_HUB_CACHE"), *hf = env_value("HF_HOME");
    char *hub = cache ? out_strdup(cache)
                : hf  ? out_printf("%s/hub", hf)
                      : out_printf("%s/.cache/huggingface/hub", user_home());
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
