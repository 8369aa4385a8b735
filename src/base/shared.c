/* shared.c: see shared.h. Linux uses memfd_create and seals. Other systems use shm_open with a
 * random name that is unlinked at once.
 * SPDX-License-Identifier: MIT */
#ifdef __linux__
#define _GNU_SOURCE                  /* memfd_create, seals */
#endif
#include "base/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#ifdef __linux__
/* A descriptor of new memory of size 0 that no other process can open; -1 on failure. */
static int open_unnamed(void) { return memfd_create("segue", MFD_CLOEXEC | MFD_ALLOW_SEALING); }

/* 0 or an errno. posix_fallocate reserves the pages now: without it, touching a page when memory
 * has run out raises SIGBUS instead of giving an error. */
static int set_size(int fd, size_t size)
{
    if (ftruncate(fd, (off_t)size)) return errno;
    int code = posix_fallocate(fd, 0, (off_t)size);
    if (code) return code;
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ? errno : 0;
}

/* 1: the file could still be shortened, and accesses beyond its new end would raise SIGBUS. */
static int may_shrink(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals < 0 || !(seals & F_SEAL_SHRINK);
}
#else
static int open_unnamed(void)
{
    char name[32];
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "/segue-%x-%llx", (unsigned)getpid(),
                 (unsigned long long)(sg_now_ns() + i) & 0xffffff);
        int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd >= 0) {
            shm_unlink(name);
            fcntl(fd, F_SETFD, FD_CLOEXEC);
        }
        return fd;
    }
    return -1;
}

static int set_size(int fd, size_t size) { return ftruncate(fd, (off_t)size) ? errno : 0; }

static int may_shrink(int fd)
{
    (void)fd;
    return 0;                        /* no seals on this system: a peer that shrinks the memory causes SIGBUS here */
}
#endif

/* Takes ownership of fd. */
static segue_status map_fd(struct sg_shared *out, int fd, size_t size, int writable, segue_error *err)
{
    void *p = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        close(fd);
        return sg_no_memory("shared memory", size, err);
    }
    *out = (struct sg_shared){p, size, fd};
    return SEGUE_OK;
}

segue_status sg_shared_new(struct sg_shared *out, size_t size, segue_error *err)
{
    if (!size || size > PTRDIFF_MAX) return sg_no_memory("shared memory", size, err);
    int fd = open_unnamed();
    if (fd < 0) return sg_no_memory("shared memory", size, err);
    if (set_size(fd, size)) {
        close(fd);
        return sg_no_memory("shared memory", size, err);
    }
    return map_fd(out, fd, size, 1, err);
}

segue_status sg_shared_map(struct sg_shared *out, int fd, size_t size, int writable, segue_error *err)
{
    struct stat st;
    if (fd < 0) return sg_fail(err, SEGUE_EFORMAT, "message refused: shared memory: no descriptor was sent with it");
    if (!size || size > PTRDIFF_MAX || fstat(fd, &st) || st.st_size < 0 || (uint64_t)st.st_size < size ||
        (writable && may_shrink(fd))) {
        close(fd);
        return sg_fail(err, SEGUE_EFORMAT,
                       "message refused: shared memory of %zu bytes: the descriptor is shorter, or its size is not sealed", size);
    }
    return map_fd(out, fd, size, writable, err);
}

/* Other processes keep their mapping. */
void sg_shared_free(struct sg_shared *s)
{
    if (s->data) munmap(s->data, s->size);
    if (s->data) close(s->fd);
    *s = (struct sg_shared){.fd = -1};
}
