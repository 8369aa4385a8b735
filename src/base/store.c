/* store.c: see store.h. Only names of the form STEM.ENDING without a leading dot are looked at; the lock file has none.
 * SPDX-License-Identifier: MIT */
#include "base/store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { FILES_MOST = 4096 };

segue_status sg_store_lock(const char *folder, int *lock, segue_error *err)
{
    SG_TRY(sg_make_folders(folder, err));
    char *path = sg_path_join(folder, "lock");
    if (!path) return sg_no_memory(folder, strlen(folder), err);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), code = errno;
    segue_status s = SEGUE_OK;
    if (fd < 0) s = sg_fail(err, SEGUE_EIO, "lock: %s: %s; check the folder's permissions", path, strerror(code));
    else if (flock(fd, LOCK_EX | LOCK_NB)) {
        code = errno;
        close(fd);
        s = sg_fail(err, SEGUE_EIO, "lock: %s: %s; it goes on without", path,
                    code == EWOULDBLOCK ? "another process is writing there" : strerror(code));
    }
    sg_free(path);
    if (s == SEGUE_OK) *lock = fd;
    return s;
}

void sg_store_unlock(int lock) { close(lock); }

void sg_store_touch(const char *path) { (void)!utimensat(AT_FDCWD, path, NULL, 0); }

/* --- trimming --- */

struct entry {
    char *path;                  /* NULL: gone */
    size_t stem;                 /* bytes of the path before the name's first dot */
    uint64_t bytes, used_ns;
};

static int same_stem(const struct entry *a, const struct entry *b)
{
    return a->stem == b->stem && !memcmp(a->path, b->path, a->stem);
}

static segue_status entry_of(struct entry *e, const char *folder, const char *name, segue_error *err)
{
    struct stat st;
    e->path = sg_path_join(folder, name);
    if (!e->path) return sg_no_memory(name, strlen(name), err);
    e->stem = strlen(e->path) - strlen(name) + strcspn(name, ".");
    if (!name[strcspn(name, ".")] || lstat(e->path, &st) || !S_ISREG(st.st_mode)) {
        sg_free(e->path);
        e->path = NULL;
        return SEGUE_OK;
    }
    e->bytes = (uint64_t)st.st_size;
#ifdef __APPLE__
    e->used_ns = (uint64_t)st.st_mtimespec.tv_sec * 1000000000u + (uint64_t)st.st_mtimespec.tv_nsec;
#else
    e->used_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
#endif
    return SEGUE_OK;
}

static void entry_drop(struct entry *e, uint64_t *total)
{
    if (!unlink(e->path)) *total -= e->bytes;
    sg_free(e->path);
    e->path = NULL;
}

/* An entry was used when the latest of its files was. Names come sorted, so that those of one stem are neighbours. */
static void share_dates(struct entry *list, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        uint64_t last = 0;
        for (end = i + 1; end < n && list[i].path && list[end].path && same_stem(&list[i], &list[end]);) end++;
        for (size_t k = i; k < end; k++) last = list[k].used_ns > last ? list[k].used_ns : last;
        for (size_t k = i; k < end; k++) list[k].used_ns = last;
    }
}

/* A file of the entry used longest ago; the others of it have the same date and follow. */
static int drop_oldest(struct entry *list, size_t n, uint64_t *total)
{
    struct entry *oldest = NULL;
    for (size_t i = 0; i < n; i++)
        if (list[i].path && (!oldest || list[i].used_ns < oldest->used_ns)) oldest = &list[i];
    if (oldest) entry_drop(oldest, total);
    return oldest != NULL;
}

static void trim(struct entry *list, size_t n, uint64_t room, uint64_t most)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) total += list[i].path ? list[i].bytes : 0;
    for (size_t i = 0; i < n; i++)
        if (list[i].path && strstr(list[i].path + list[i].stem, ".tmp-")) entry_drop(&list[i], &total);
    share_dates(list, n);
    while (total + room > most && drop_oldest(list, n, &total)) {}
}

segue_status sg_store_trim(const char *folder, uint64_t room, uint64_t most, segue_error *err)
{
    char **names = NULL;
    size_t n = 0;
    if (room > most)
        return sg_fail(err, SEGUE_ELIMIT, "keep: %s: %llu bytes, the folder may hold %llu; raise its bound", folder,
                       (unsigned long long)room, (unsigned long long)most);
    SG_TRY(sg_folder_list(folder, "", FILES_MOST, &names, &n, err));
    struct entry *list = sg_alloc(n * sizeof *list);
    segue_status s = list ? SEGUE_OK : sg_no_memory(folder, n * sizeof *list, err);
    for (size_t i = 0; i < n && s == SEGUE_OK; i++) s = entry_of(&list[i], folder, names[i], err);
    if (s == SEGUE_OK) trim(list, n, room, most);
    for (size_t i = 0; i < n; i++) {
        if (list) sg_free(list[i].path);
        sg_free(names[i]);
    }
    sg_free(list);
    sg_free(names);
    return s;
}
