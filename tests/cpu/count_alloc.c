/* count_alloc.c: a library that is preloaded into a process. It counts calls of the allocator and of
 * mmap, and writes the counts to the file named by COUNT_ALLOC_OUT when the process ends.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);
int posix_memalign(void **out, size_t align, size_t n);
void *aligned_alloc(size_t align, size_t n);
void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t from);

enum { MALLOC, CALLOC, REALLOC, ALIGNED, MMAP, KINDS };
/* Counted functions; each forwards to the implementation of glibc. */
static atomic_ullong counts[KINDS];

void *malloc(size_t n)
{
    atomic_fetch_add(&counts[MALLOC], 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&counts[CALLOC], 1);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&counts[REALLOC], 1);
    return __libc_realloc(p, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    atomic_fetch_add(&counts[ALIGNED], 1);
    void *p = __libc_memalign(align, n);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void *aligned_alloc(size_t align, size_t n)
{
    atomic_fetch_add(&counts[ALIGNED], 1);
    return __libc_memalign(align, n);
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t from)
{
    static void *(*next)(void *, size_t, int, int, int, off_t);
    if (!next) {
        void *found = dlsym(RTLD_NEXT, "mmap");
        memcpy(&next, &found, sizeof next);
    }
    atomic_fetch_add(&counts[MMAP], 1);
    return next(at, n, protection, flags, fd, from);
}

/* Runs at exit; write and open do not allocate. */
__attribute__((destructor)) static void write_counts(void)
{
    char line[160];
    const char *path = getenv("COUNT_ALLOC_OUT");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd < 0) return;
    int n = snprintf(line, sizeof line, "malloc %llu calloc %llu realloc %llu aligned %llu mmap %llu\n", counts[MALLOC],
                     counts[CALLOC], counts[REALLOC], counts[ALIGNED], counts[MMAP]);
    if (write(fd, line, (size_t)n) != n) _exit(99);
    close(fd);
}
