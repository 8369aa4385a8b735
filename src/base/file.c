/* file.c: see file.h. Mapping, reading, atomic writing, folders and paths.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif

#include "base/countdown.h"
#include "base/hash.h"
#include "base/mem.h"

#ifdef SEGUE_FAULTS
static atomic_ullong fault_countdown; /* writes left until the one that fails; 0 = off */

void sg_fault_write(uint64_t nth) { atomic_store(&fault_countdown, nth); }

static int fault_now(void) { return sg_countdown(&fault_countdown); }
#else
static int fault_now(void) { return 0; }
#endif

/* Fails with EIO (EMEMORY for ENOMEM): `what` names the operation, code is the errno. */
static segue_status io_failed(const char *what, const char *path, int code, segue_error *err)
{
    const char *remedy = code == ENOENT   ? "check the name"
                         : code == EACCES ? "check its permissions"
                         : code == ENOSPC ? "free some disk space"
                         : code == EISDIR ? "name a file"
                         : code == ENOTSUP ? "name a regular file"
                                          : "check the disk";
    return sg_fail(err, code == ENOMEM ? SEGUE_EMEMORY : SEGUE_EIO, "%s: %s: %s; %s", what, path, strerror(code), remedy);
}

/* The list holds local file systems only. Network file systems and tmpfs are excluded: there a
 * write through a mapping, or by another host, may not change ctime. */
int sg_file_id_is_exact(uint64_t kind, uint64_t changed_ns, uint64_t now_ns)
{
    static const uint64_t dated[] = {0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0x794C7630};
    int known = 0;                /* f_type of ext2-4, xfs, btrfs, f2fs, zfs, overlayfs */
    for (size_t i = 0; i < sizeof dated / sizeof dated[0]; i++) known |= kind == dated[i];
    return known && changed_ns <= now_ns && now_ns - changed_ns >= SG_FILE_ID_SETTLE_S * UINT64_C(1000000000);
}

static uint64_t ns_of(struct timespec t) { return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec; }

/* The id of an open file; fd and st belong to the same file. Only Linux reports the kind of file
 * system, so that ids on other systems are never exact. */
static struct sg_file_id file_id_of(int fd, const struct stat *st)
{
    struct sg_file_id s = {.device = (uint64_t)st->st_dev,
                         .inode = (uint64_t)st->st_ino,
                         .size = (uint64_t)st->st_size,
                         .owner = (uint32_t)st->st_uid,
                         .mode = (uint32_t)st->st_mode};
#ifdef __APPLE__
    s.modified_ns = ns_of(st->st_mtimespec);
    s.changed_ns = ns_of(st->st_ctimespec);
    (void)fd;
#else
    s.modified_ns = ns_of(st->st_mtim);
    s.changed_ns = ns_of(st->st_ctim);
#endif
#ifdef __linux__
    struct statfs fs;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (!fstatfs(fd, &fs)) s.exact = sg_file_id_is_exact((uint64_t)fs.f_type & 0xffffffffu, s.changed_ns, ns_of(now)) != 0;
#endif
    return s;
}

/* Opens a regular file; sets *size and, unless NULL, *id. O_NONBLOCK keeps open() from waiting when
 * the path is a FIFO, which is then refused. */
static segue_status open_regular(const char *path, int *fd, size_t *size, struct sg_file_id *id, segue_error *err)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return io_failed("open", path, errno, err);
    int code = fstat(*fd, &st) ? errno : S_ISDIR(st.st_mode) ? EISDIR : 0;
    if (!code && S_ISREG(st.st_mode)) {
        *size = (size_t)st.st_size;
        if (id) *id = file_id_of(*fd, &st);
        return SEGUE_OK;
    }
    close(*fd);
    if (code) return io_failed("open", path, code, err);
    return sg_fail(err, SEGUE_EIO, "open: %s: not a regular file; name a file", path);
}

/* Empty files are not mapped: mmap rejects a length of 0. */
segue_status sg_map_open(struct sg_map *out, const char *path, segue_error *err)
{
    int fd;
    size_t size = 0;
    struct sg_file_id id;
    SG_TRY(open_regular(path, &fd, &size, &id, err));
    if (!size) {
        close(fd);
        *out = (struct sg_map){.data = (const uint8_t *)"", .fd = -1};
        return SEGUE_OK;
    }
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    int code = errno;
    if (p == MAP_FAILED) {
        close(fd);
        return io_failed("map", path, code, err);
    }
    *out = (struct sg_map){p, size, id, fd};
    return SEGUE_OK;
}

int sg_map_changed(const struct sg_map *map)
{
    struct stat st;
    if (map->fd < 0) return 0;
    if (fstat(map->fd, &st)) return 1;
    struct sg_file_id now = file_id_of(map->fd, &st);
    return now.size != map->id.size || now.modified_ns != map->id.modified_ns || now.changed_ns != map->id.changed_ns;
}

/* madvise over all pages that contain some of the n bytes. */
static void advise(const void *bytes, size_t n, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)bytes / page * page,
              to = ((uintptr_t)bytes + n + page - 1) / page * page;
    if (n) (void)madvise((void *)from, to - from, advice);
}

void sg_map_release(const void *p, size_t n) { advise(p, n, MADV_DONTNEED); }

void sg_map_prefetch(const struct sg_map *map)
{
#ifdef MADV_HUGEPAGE
    advise(map->data, map->size, MADV_HUGEPAGE);
#endif
    advise(map->data, map->size, MADV_WILLNEED);
}

void sg_map_populate(const void *p, size_t n)
{
#ifdef MADV_POPULATE_READ
    advise(p, n, MADV_POPULATE_READ);
#else
    (void)p;
    (void)n;
#endif
}

/* memcpy removes the const qualifier from the pointer without a warning. */
void sg_map_close(struct sg_map *map)
{
    if (map->size) {
        void *p;
        memcpy(&p, &map->data, sizeof p);
        munmap(p, map->size);
        close(map->fd);
    }
    *map = (struct sg_map){.fd = -1};
}

/* own: 1: refuse files of other users. */
static segue_status read_all(struct sg_buf *out, const char *path, size_t limit, int own, segue_error *err)
{
    int fd;
    size_t size = 0;
    struct sg_file_id id;
    SG_TRY(open_regular(path, &fd, &size, &id, err));
    segue_status s = own ? sg_file_check_owner(&id, path, err) : SEGUE_OK;
    out->len = 0;
    if (s != SEGUE_OK) {
        close(fd);
        return s;
    }
    if (size > limit)
        s = sg_fail(err, SEGUE_ELIMIT, "read: %s: %zu bytes, the limit is %zu; check that it is the right file", path,
                    size, limit);
    else if (sg_buf_reserve(out, size))
        s = sg_no_memory(path, size, err);
    while (s == SEGUE_OK && out->len < size) {
        ssize_t n = read(fd, out->data + out->len, size - out->len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) s = io_failed("read", path, errno, err);
        if (n <= 0) break;       /* 0: the file was truncated while it is read; return what there is */
        out->len += (size_t)n;
    }
    if (s == SEGUE_OK) out->data[out->len] = 0;
    close(fd);
    return s;
}

segue_status sg_file_read(struct sg_buf *out, const char *path, size_t limit, segue_error *err)
{
    return read_all(out, path, limit, 0, err);
}

segue_status sg_file_read_own(struct sg_buf *out, const char *path, size_t limit, segue_error *err)
{
    return read_all(out, path, limit, 1, err);
}

/* --- owners --- */

/* Root is trusted: it can read and replace everything anyway. */
segue_status sg_file_check_owner(const struct sg_file_id *id, const char *path, segue_error *err)
{
    if (id->owner != (uint32_t)geteuid() && id->owner)
        return sg_fail(err, SEGUE_EIO, "check owner: %s: it belongs to user %u; copy or delete it, or use another folder", path,
                       id->owner);
    if (id->mode & (S_IWGRP | S_IWOTH))
        return sg_fail(err, SEGUE_EIO, "check owner: %s: other users may write to it; run chmod go-w on it, or use another "
                       "folder", path);
    return SEGUE_OK;
}

segue_status sg_folder_check_owner(const char *path, segue_error *err)
{
    struct stat st;
    if (stat(path, &st)) return io_failed("open folder", path, errno, err);
    struct sg_file_id id = {.owner = (uint32_t)st.st_uid, .mode = (uint32_t)st.st_mode};
    return sg_file_check_owner(&id, path, err);
}

/* --- writing files --- */

/* The rename of sg_file_commit would replace a device or a pipe, and as root /dev/stdout for every program. 0: path may be
 * replaced; else the reason. */
static int not_replaceable(const char *path)
{
    struct stat s;
    if (!lstat(path, &s) && S_ISLNK(s.st_mode) && !strncmp(path, "/dev/", 5)) return ENOTSUP;
    if (stat(path, &s) || S_ISREG(s.st_mode)) return 0;
    return S_ISDIR(s.st_mode) ? EISDIR : ENOTSUP;
}

/* O_EXCL and O_NOFOLLOW: what another user has put under the temporary name, in a folder that others can write, is neither
 * followed nor written to; the random part makes that unlikely, too. */
segue_status sg_file_begin(struct sg_file_out *out, const char *path, unsigned mode, segue_error *err)
{
    size_t n = strlen(path) + 64;
    int why = not_replaceable(path);
    *out = (struct sg_file_out){.fd = -1};
    if (why) return io_failed("create", path, why, err);
    *out = (struct sg_file_out){.path = sg_strndup(path, strlen(path)), .tmp_path = sg_alloc(n), .fd = -1};
    if (!out->path || !out->tmp_path) {
        sg_file_close(out);
        return sg_no_memory(path, n, err);
    }
    uint64_t random;
    sg_random(&random, sizeof random);
    snprintf(out->tmp_path, n, "%s.tmp-%ld-%016llx", path, (long)getpid(), (unsigned long long)random);
    out->fd = open(out->tmp_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (out->fd >= 0) return SEGUE_OK;
    int code = errno;
    sg_free(out->tmp_path); /* not ours: close must not delete it */
    out->tmp_path = NULL;
    segue_status s = io_failed("create", path, code, err);
    sg_file_close(out);
    return s;
}

/* Loops because pwrite may write less than requested. */
segue_status sg_file_put_at(struct sg_file_out *out, uint64_t offset, const void *bytes, size_t n, segue_error *err)
{
    const char *p = bytes;
    while (n) {
        ssize_t k = fault_now() ? (errno = ENOSPC, -1) : pwrite(out->fd, p, n, (off_t)offset);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return io_failed("write", out->path, errno, err);
        p += k;
        n -= (size_t)k;
        offset += (uint64_t)k;
    }
    return SEGUE_OK;
}

segue_status sg_file_put(struct sg_file_out *out, const void *bytes, size_t n, segue_error *err)
{
    SG_TRY(sg_file_put_at(out, out->written, bytes, n, err));
    out->written += n;
    return SEGUE_OK;
}

/* Sync the data, rename, then sync the folder: without the last step a power failure could undo the
 * rename. Truncates out->path to the folder's name on the way. */
segue_status sg_file_commit(struct sg_file_out *out, segue_error *err)
{
    int bad = fsync(out->fd);
    if (close(out->fd)) bad = 1;
    out->fd = -1;
    if (bad || rename(out->tmp_path, out->path)) return io_failed("write", out->path, errno, err);
    sg_free(out->tmp_path);
    out->tmp_path = NULL;
    char *slash = strrchr(out->path, '/');
    if (slash) *slash = 0;
    int folder = open(slash ? (slash == out->path ? "/" : out->path) : ".", O_RDONLY | O_CLOEXEC);
    if (folder >= 0) {
        (void)!fsync(folder); /* not all file systems support it; ignore the error */
        close(folder);
    }
    return SEGUE_OK;
}

/* Deletes the temporary file unless it was committed. */
void sg_file_close(struct sg_file_out *out)
{
    if (out->fd >= 0) close(out->fd);
    if (out->tmp_path) unlink(out->tmp_path);
    sg_free(out->tmp_path);
    sg_free(out->path);
    *out = (struct sg_file_out){.fd = -1};
}

segue_status sg_file_write_in(const char *folder, const char *name, const void *bytes, size_t n, segue_error *err)
{
    struct sg_file_out f;
    char *path = sg_path_join(folder, name);
    if (!path) return sg_no_memory("a path", strlen(folder), err);
    segue_status status = sg_file_begin(&f, path, 0644, err);
    if (status == SEGUE_OK) {
        status = sg_file_put(&f, bytes, n, err);
        if (status == SEGUE_OK) status = sg_file_commit(&f, err);
        sg_file_close(&f);
    }
    sg_free(path);
    return status;
}

/* --- file metadata --- */

segue_status sg_file_stat(const char *path, uint64_t *bytes, uint64_t *changed_ns, segue_error *err)
{
    struct stat st;
    if (stat(path, &st)) return io_failed("stat", path, errno, err);
    *bytes = (uint64_t)st.st_size;
    *changed_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    return SEGUE_OK;
}

void sg_file_remove(const char *path) { (void)!unlink(path); }

void sg_file_touch(const char *path) { (void)!utimensat(AT_FDCWD, path, NULL, 0); }

/* The process id follows ".tmp-". kill with signal 0 only tests whether the process exists. */
int sg_file_abandoned(const char *name)
{
    const char *suffix = strstr(name, ".tmp-");
    char *end;
    long pid = suffix ? strtol(suffix + 5, &end, 10) : 0;
    return pid > 0 && (*end == '-' || !*end) && kill((pid_t)pid, 0) && errno == ESRCH;
}

segue_status sg_folder_private(const char *path, segue_error *err)
{
    struct stat st;
    if (stat(path, &st)) return io_failed("stat", path, errno, err);
    struct sg_file_id id = {.owner = (uint32_t)st.st_uid};
    SG_TRY(sg_file_check_owner(&id, path, err));
    if ((st.st_mode & 077) && chmod(path, 0700)) return io_failed("restrict permissions", path, errno, err);
    return SEGUE_OK;
}

/* --- paths --- */

/* stat, not lstat: a link to a folder counts as a folder. */
int sg_path_kind(const char *path)
{
    struct stat st;
    if (stat(path, &st)) return SG_PATH_NONE;
    return S_ISREG(st.st_mode) ? SG_PATH_FILE : S_ISDIR(st.st_mode) ? SG_PATH_FOLDER : SG_PATH_OTHER;
}

char *sg_path_join(const char *folder, const char *name)
{
    size_t a = strlen(folder), b = strlen(name);
    while (a > 1 && folder[a - 1] == '/') a--;
    char *path = sg_alloc(a + b + 2);
    if (!path) return NULL;
    memcpy(path, folder, a);
    path[a] = '/';
    memcpy(path + a + 1, name, b);
    return path;
}

char *sg_path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (sg_path_kind(path) == SG_PATH_FOLDER) return sg_strndup(path, strlen(path));
    return slash ? sg_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : sg_strndup(".", 1);
}

/* For qsort: the order of bytes, independent of the locale. */
static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Appends the matching names to *names, which has *n entries also on failure. */
static segue_status list_names(DIR *dir, const char *path, const char *ending, size_t max, char ***names, size_t *n,
                               segue_error *err)
{
    size_t end = strlen(ending);
    for (const struct dirent *d; (d = readdir(dir));) {
        size_t len = strlen(d->d_name);
        if (d->d_name[0] == '.' || len < end || strcmp(d->d_name + len - end, ending)) continue;
        if (*n == max)
            return sg_fail(err, SEGUE_ELIMIT, "list folder: %s: more than %zu files end in \"%s\"; name one of them", path,
                           max, ending);
        char **more = sg_realloc(*names, (*n + 1) * sizeof *more);
        if (!more) return sg_no_memory(path, len, err);
        *names = more;
        more[*n] = sg_strndup(d->d_name, len);
        if (!more[*n]) return sg_no_memory(path, len, err);
        ++*n;
    }
    return SEGUE_OK;
}

segue_status sg_folder_list(const char *path, const char *ending, size_t max, char ***names, size_t *n,
                            segue_error *err)
{
    char **list = NULL;
    size_t count = 0;
    DIR *dir = opendir(path);
    if (!dir) return io_failed("list folder", path, errno, err);
    segue_status s = list_names(dir, path, ending, max, &list, &count, err);
    closedir(dir);
    if (s != SEGUE_OK) {
        while (count) sg_free(list[--count]);
        sg_free(list);
        return s;
    }
    if (count) qsort(list, count, sizeof *list, compare_names);
    *names = list;
    *n = count;
    return SEGUE_OK;
}

/* Creates every prefix of the path that ends before a slash, then the path itself. EEXIST is not an
 * error. */
segue_status sg_make_folders(const char *path, segue_error *err)
{
    char *copy = sg_strndup(path, strlen(path));
    if (!copy) return sg_no_memory(path, strlen(path), err);
    segue_status s = SEGUE_OK;
    for (char *p = copy + 1; s == SEGUE_OK; p++) {
        if (*p && *p != '/') continue;
        char end = *p;
        *p = 0;
        if (mkdir(copy, 0700) && errno != EEXIST) s = io_failed("make folder", copy, errno, err);
        if (!end) break;
        *p = end;
    }
    sg_free(copy);
    return s;
}

char *sg_home(const char *which)
{
    int cache = !strcmp(which, "cache");
    const char *segue_home = getenv("SEGUE_HOME"), *xdg = getenv(cache ? "XDG_CACHE_HOME" : "XDG_DATA_HOME");
    const char *home = getenv("HOME");
    if (segue_home && *segue_home) return sg_path_join(segue_home, which);
    if (xdg && *xdg) return sg_path_join(xdg, "segue");
    return sg_path_join(home && *home ? home : "/tmp", cache ? ".cache/segue" : ".local/share/segue");
}
