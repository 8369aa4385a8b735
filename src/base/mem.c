/* mem.c: allocation, arenas, checked products. The only file that calls malloc.
 * SPDX-License-Identifier: MIT */
#ifdef __linux__
#define _GNU_SOURCE /* madvise */
#endif
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "base/countdown.h"

#ifdef SEGUE_FAULTS
static atomic_ullong fault_countdown; /* development builds only: allocations until the one that fails */

void sg_fault_alloc(uint64_t nth) { atomic_store(&fault_countdown, nth); }

static int fault_now(void) { return sg_countdown(&fault_countdown); }
#else
static int fault_now(void) { return 0; }
#endif

void *sg_alloc(size_t size) { return fault_now() ? NULL : calloc(1, size ? size : 1); }

void *sg_realloc(void *p, size_t size) { return fault_now() ? NULL : realloc(p, size ? size : 1); }

void sg_free(void *p) { free(p); }

char *sg_strndup(const char *s, size_t n)
{
    char *copy = sg_alloc(n + 1);
    if (copy && n) memcpy(copy, s, n);
    return copy;
}

void *sg_alloc_unset(size_t size)
{
    void *p = NULL;
    if (fault_now() || size > SIZE_MAX - 64) return NULL;
    size = (size + 63) / 64 * 64;
    return posix_memalign(&p, 64, size ? size : 64) ? NULL : p;
}

void *sg_alloc_aligned(size_t size)
{
    void *p = sg_alloc_unset(size);
    if (p) memset(p, 0, (size + 63) / 64 * 64);
    return p;
}

void sg_free_aligned(void *p) { free(p); }

void sg_huge_pages(void *p, size_t size)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 2u << 20;
    uintptr_t skip = (page - (uintptr_t)p % page) % page;
    if (size > skip && size - skip >= page) (void)madvise((char *)p + skip, (size - skip) / page * page, MADV_HUGEPAGE);
#else
    (void)p;
    (void)size;
#endif
}

segue_status sg_mul(size_t a, size_t b, size_t *out, const char *what, segue_error *err)
{
    if (b && a > SIZE_MAX / b)
        return sg_fail(err, SEGUE_EFORMAT, "size overflows: %s: %zu times %zu; the file is damaged", what, a, b);
    *out = a * b;
    return SEGUE_OK;
}

segue_status sg_no_memory(const char *what, size_t size, segue_error *err)
{
    return sg_fail(err, SEGUE_EMEMORY, "out of memory: %s: %zu bytes wanted; close something or take a smaller model",
                   what, size);
}

/* --- arena --- */

struct sg_arena_chunk {
    struct sg_arena_chunk *next;
    size_t size;
};

enum { CHUNK_BYTES = 16 * 1024, CHUNK_HEAD = 32 };

void *sg_arena_alloc(struct sg_arena *arena, size_t size)
{
    if (size > SIZE_MAX / 2) return NULL;
    size = (size + 15) / 16 * 16;
    if (!size) size = 16;
    if (!arena->chunks || arena->cap - arena->used < size) {
        size_t body = size > CHUNK_BYTES ? size : CHUNK_BYTES;
        struct sg_arena_chunk *chunk = sg_alloc(CHUNK_HEAD + body);
        if (!chunk) return NULL;
        chunk->next = arena->chunks;
        chunk->size = body;
        arena->chunks = chunk;
        arena->used = 0;
        arena->cap = body;
        arena->total += body;
    }
    void *p = (char *)arena->chunks + CHUNK_HEAD + arena->used;
    arena->used += size;
    return p;
}

char *sg_arena_strndup(struct sg_arena *arena, const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? sg_arena_alloc(arena, n + 1) : NULL;
    if (copy && n) memcpy(copy, s, n);
    return copy;
}

char *sg_arena_printf(struct sg_arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    char *text = n < 0 ? NULL : sg_arena_alloc(arena, (size_t)n + 1);
    if (text) vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

void sg_arena_free(struct sg_arena *arena)
{
    for (struct sg_arena_chunk *c = arena->chunks, *next; c; c = next) {
        next = c->next;
        sg_free(c);
    }
    *arena = (struct sg_arena){0};
}
