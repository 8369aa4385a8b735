/* mem.c: allocation, arenas, checked products. The only file that calls malloc. With an allocator of the caller
 * (segue_allocator_set) every block begins with a header that holds its size, because the caller's functions cannot resize.
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

#include <stdatomic.h>

#include "base/countdown.h"

/* The only mutable data of the library that is not part of an object: written once, before any other call. */
static segue_allocator hook; /* valid when hook_state is HOOK_SET */
enum { HOOK_OPEN, HOOK_SETTING, HOOK_SET, HOOK_CLOSED };
static atomic_int hook_state = HOOK_OPEN;

/* 1: the caller's allocator is used. The first allocation of the process ends the time in which one can be set. */
static int hooked(void)
{
    int state = atomic_load_explicit(&hook_state, memory_order_acquire);
    if (state == HOOK_OPEN && atomic_compare_exchange_strong(&hook_state, &state, HOOK_CLOSED)) return 0;
    return state == HOOK_SET;
}

segue_status segue_allocator_set(const segue_allocator *allocator, segue_error *err)
{
    int open = HOOK_OPEN;
    segue_allocator copy = {0};
    if (!allocator || allocator->size < sizeof allocator->size)
        return sg_fail(err, SEGUE_EARG, "allocator not set: it is NULL or its size is not set; use SEGUE_INIT");
    memcpy(&copy, allocator, allocator->size < sizeof copy ? allocator->size : sizeof copy);
    if (!copy.alloc || !copy.free)
        return sg_fail(err, SEGUE_EARG, "allocator not set: alloc or free is NULL; pass both");
    if (!atomic_compare_exchange_strong(&hook_state, &open, HOOK_SETTING))
        return sg_fail(err, SEGUE_EARG, "allocator not set: the library is in use already; set it before any other call");
    hook = copy;
    atomic_store_explicit(&hook_state, HOOK_SET, memory_order_release);
    return SEGUE_OK;
}

/* --- blocks of the caller's allocator --- */

enum { BLOCK_ALIGN = 64 };            /* of the header and of the memory after it */

static void *hook_alloc(size_t size, int zeroed)
{
    if (size > SIZE_MAX - 2 * BLOCK_ALIGN) return NULL;
    unsigned char *block = hook.alloc(hook.context, size + BLOCK_ALIGN, BLOCK_ALIGN);
    if (!block) return NULL;
    memcpy(block, &size, sizeof size);
    if (zeroed) memset(block + BLOCK_ALIGN, 0, size);
    return block + BLOCK_ALIGN;
}

static void hook_free(void *p)
{
    if (p) hook.free(hook.context, (unsigned char *)p - BLOCK_ALIGN);
}

static void *hook_realloc(void *p, size_t size)
{
    size_t old = 0;
    if (p) memcpy(&old, (unsigned char *)p - BLOCK_ALIGN, sizeof old);
    void *wider = hook_alloc(size, 0);
    if (!wider) return NULL;
    if (old) memcpy(wider, p, old < size ? old : size);
    hook_free(p);
    return wider;
}

#ifdef SEGUE_FAULTS
static atomic_ullong fault_countdown; /* allocations left until the one that fails; 0 = off */

void sg_fault_alloc(uint64_t nth) { atomic_store(&fault_countdown, nth); }

/* 1 when fault injection selects this allocation. */
static int fault_now(void) { return sg_countdown(&fault_countdown); }
#else
static int fault_now(void) { return 0; }
#endif

void *sg_alloc(size_t size)
{
    if (fault_now()) return NULL;
    return hooked() ? hook_alloc(size, 1) : calloc(1, size ? size : 1);
}

void *sg_realloc(void *p, size_t size)
{
    if (fault_now()) return NULL;
    return hooked() ? hook_realloc(p, size) : realloc(p, size ? size : 1);
}

void sg_free(void *p)
{
    if (hooked()) hook_free(p);
    else free(p);
}

char *sg_strndup(const char *s, size_t n)
{
    char *copy = sg_alloc(n + 1);
    if (copy && n) memcpy(copy, s, n);
    return copy;
}

/* The size is rounded up to whole cache lines, so that no two allocations share one. */
void *sg_alloc_unset(size_t size)
{
    void *p = NULL;
    if (fault_now() || size > SIZE_MAX - 64) return NULL;
    size = (size + 63) / 64 * 64;
    if (hooked()) return hook_alloc(size, 0);
    return posix_memalign(&p, 64, size ? size : 64) ? NULL : p;
}

void *sg_alloc_aligned(size_t size)
{
    void *p = sg_alloc_unset(size);
    if (p) memset(p, 0, (size + 63) / 64 * 64);
    return p;
}

void sg_free_aligned(void *p) { sg_free(p); }

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
    return sg_fail(err, SEGUE_EMEMORY, "out of memory: %s: %zu bytes needed; free some memory or use a smaller model",
                   what, size);
}

/* A chunk is one allocation: this header, padded to CHUNK_HEAD to keep the alignment of 16, then
 * the usable bytes. */
struct sg_arena_chunk {
    struct sg_arena_chunk *next;
    size_t size;             /* usable bytes */
};

enum { CHUNK_BYTES = 16 * 1024, CHUNK_HEAD = 32 };

/* Takes the next bytes of the newest chunk, or adds a chunk. A larger request gets a chunk of
 * exactly its size. The rest of the previous chunk stays unused. */
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

/* Formats twice: once to measure, once into the arena. */
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
