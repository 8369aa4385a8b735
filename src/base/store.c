/* store.c: see store.h. Only regular files named STEM.ENDING without a leading dot are considered;
 * the lock file, named "lock", is therefore never evicted. The time of last use is the file's
 * modification time, which readers update with sg_file_touch.
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

enum { FILES_MAX = 4096 };       /* files per folder; more fail with ELIMIT */

/* The lock is an flock, which the kernel releases when the process ends, so that no stale locks
 * remain. */
segue_status sg_store_lock(const char *folder, int *lock, segue_error *err)
{
    SG_TRY(sg_make_folders(folder, err));
    SG_TRY(sg_folder_check_owner(folder, err));
    char *path = sg_path_join(folder, "lock");
    if (!path) return sg_no_memory(folder, strlen(folder), err);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), code = errno;
    segue_status s = SEGUE_OK;
    if (fd < 0) s = sg_fail(err, SEGUE_EIO, "lock cache: %s: %s; check the folder's permissions", path, strerror(code));
    else if (flock(fd, LOCK_EX | LOCK_NB)) {
        code = errno;
        close(fd);
        s = sg_fail(err, SEGUE_EIO, "lock cache: %s: %s; continuing without writing to it", path,
                    code == EWOULDBLOCK ? "another process is writing to it" : strerror(code));
    }
    sg_free(path);
    if (s == SEGUE_OK) *lock = fd;
    return s;
}

/* Closing the descriptor releases the flock. */
void sg_store_unlock(int lock) { close(lock); }


/* One file of the folder while it is trimmed. */
struct stored_file {
    char *path;                  /* owned; NULL: not considered, or already deleted */
    size_t stem;                 /* length of the path up to the name's first dot; files with equal stems are one entry */
    uint64_t bytes, used_ns;     /* size; time of last use, wall clock */
};

/* 1: both files belong to the same entry. */
static int same_stem(const struct stored_file *a, const struct stored_file *b)
{
    return a->stem == b->stem && !memcmp(a->path, b->path, a->stem);
}

/* e->path stays NULL for names without a dot and for anything but regular files; symbolic links are
 * not followed. */
static segue_status entry_of(struct stored_file *e, const char *folder, const char *name, segue_error *err)
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

/* Subtracts the size from *total only if the file could be deleted. */
static void entry_delete(struct stored_file *e, uint64_t *total)
{
    if (!unlink(e->path)) *total -= e->bytes;
    sg_free(e->path);
    e->path = NULL;
}

/* Set the time of every file of an entry to the latest of them. The names are sorted, so that files
 * with the same stem are adjacent. */
static void propagate_last_use(struct stored_file *list, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        uint64_t last = 0;
        for (end = i + 1; end < n && list[i].path && list[end].path && same_stem(&list[i], &list[end]);) end++;
        for (size_t k = i; k < end; k++) last = list[k].used_ns > last ? list[k].used_ns : last;
        for (size_t k = i; k < end; k++) list[k].used_ns = last;
    }
}

/* Delete one file of the least recently used entry; 0 when none is left. The entry's other files
 * have the same time and are the next candidates. */
static int evict_oldest(struct stored_file *list, size_t n, uint64_t *total)
{
    struct stored_file *oldest = NULL;
    for (size_t i = 0; i < n; i++)
        if (list[i].path && (!oldest || list[i].used_ns < oldest->used_ns)) oldest = &list[i];
    if (oldest) entry_delete(oldest, total);
    return oldest != NULL;
}

/* Temporary files can only be leftovers here: their writer would hold the lock. */
static void evict(struct stored_file *list, size_t n, uint64_t reserve, uint64_t max)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) total += list[i].path ? list[i].bytes : 0;
    for (size_t i = 0; i < n; i++)
        if (list[i].path && strstr(list[i].path + list[i].stem, ".tmp-")) entry_delete(&list[i], &total);
    propagate_last_use(list, n);
    while (total + reserve > max && evict_oldest(list, n, &total)) {}
}

segue_status sg_store_trim(const char *folder, uint64_t reserve, uint64_t max, segue_error *err)
{
    char **names = NULL;
    size_t n = 0;
    if (reserve > max)
        return sg_fail(err, SEGUE_ELIMIT,
                       "write cache: %s: %llu bytes needed, the folder's limit is %llu; raise the limit", folder,
                       (unsigned long long)reserve, (unsigned long long)max);
    SG_TRY(sg_folder_list(folder, "", FILES_MAX, &names, &n, err));
    struct stored_file *list = sg_alloc(n * sizeof *list);
    segue_status s = list ? SEGUE_OK : sg_no_memory(folder, n * sizeof *list, err);
    for (size_t i = 0; i < n && s == SEGUE_OK; i++) s = entry_of(&list[i], folder, names[i], err);
    if (s == SEGUE_OK) evict(list, n, reserve, max);
    for (size_t i = 0; i < n; i++) {
        if (list) sg_free(list[i].path);
        sg_free(names[i]);
    }
    sg_free(list);
    sg_free(names);
    return s;
}
