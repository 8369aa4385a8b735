/* mem.h: memory allocation, checked multiplication of sizes, arenas. All allocations of the library
 * use these functions, so that tests can make the n-th one fail. Products of sizes read from files
 * must use sg_mul.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_MEM_H
#define SG_BASE_MEM_H

#include "base/err.h"

/* Zeroed memory, aligned for any type; NULL when out of memory. Size 0 returns a unique pointer
 * that can be freed. */
void *sg_alloc(size_t size);
void *sg_realloc(void *p, size_t size);      /* added bytes are not zeroed; on NULL, p is still valid */
void sg_free(void *p);                       /* NULL allowed */
char *sg_strndup(const char *s, size_t n);   /* NUL-terminated copy of n bytes */
/* Aligned to 64 bytes (a cache line, an AVX-512 register) and zeroed, size rounded up to 64; free
 * with sg_free_aligned. */
void *sg_alloc_aligned(size_t size);
void *sg_alloc_unset(size_t size);           /* the same, contents undefined */
void sg_free_aligned(void *p);
/* Ask the kernel to use huge pages for this memory from the next page fault on, which saves TLB
 * misses on streamed data. Only whole 2 MiB pages inside [p, p + size) are affected. No effect on
 * systems without transparent huge pages. */
void sg_huge_pages(void *p, size_t size);

/* *out = a * b. EFORMAT when the product exceeds size_t; `what` names it in the message. */
segue_status sg_mul(size_t a, size_t b, size_t *out, const char *what, segue_error *err);
/* Fails with EMEMORY; `what` names the object of `size` bytes that could not be allocated. */
segue_status sg_no_memory(const char *what, size_t size, segue_error *err);

/* Bump allocator: many small objects that are freed together. Zero-initialise. Not thread-safe. */
struct sg_arena {
    struct sg_arena_chunk *chunks;   /* linked list, newest first; owned */
    size_t used, cap;                /* bytes used and usable in the newest chunk */
    size_t total;                    /* usable bytes of all chunks */
};
void *sg_arena_alloc(struct sg_arena *arena, size_t size);   /* zeroed, 16-byte aligned; NULL when out of memory */
char *sg_arena_strndup(struct sg_arena *arena, const char *s, size_t n);
char *sg_arena_printf(struct sg_arena *arena, const char *format, ...) SG_FORMAT(2, 3);
void sg_arena_free(struct sg_arena *arena);                  /* frees everything; the arena can be reused */

#ifdef SEGUE_FAULTS
/* Development builds: make the n-th allocation from now on fail (0 = none). */
void sg_fault_alloc(uint64_t nth);
#endif

#endif
