/* mem.h: memory. Every allocation of the library goes through sg_alloc and its kin, so that a test can fail the n-th
 * one; sizes that come from files are multiplied by sg_mul only. An arena belongs to one object and dies with it.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_MEM_H
#define SG_BASE_MEM_H

#include "base/err.h"

/* Zeroed memory, aligned for any type; NULL when there is none. size 0 gives a pointer that may be freed. */
void *sg_alloc(size_t size);
void *sg_realloc(void *p, size_t size);      /* new bytes are not zeroed */
void sg_free(void *p);                       /* NULL allowed */
char *sg_strndup(const char *s, size_t n);   /* NUL-terminated copy of n bytes */
/* 64-byte aligned, zeroed; freed with sg_free_aligned. */
void *sg_alloc_aligned(size_t size);
void *sg_alloc_unset(size_t size);   /* as sg_alloc_aligned, but whatever was there */
void sg_free_aligned(void *p);
/* Asks the system to back these bytes by large pages where they are touched from now on: fewer page walks in memory that is
 * streamed. Small areas and systems without such pages are left as they are. */
void sg_huge_pages(void *p, size_t size);

/* *out = a * b. ELIMIT when it would not fit in size_t; `what` names the product in the text. */
segue_status sg_mul(size_t a, size_t b, size_t *out, const char *what, segue_error *err);
segue_status sg_no_memory(const char *what, size_t size, segue_error *err);   /* the EMEMORY text */

/* Chunks of memory that are freed together. Zero-initialise; not thread-safe. */
struct sg_arena {
    struct sg_arena_chunk *chunks;
    size_t used, cap;        /* of the newest chunk */
    size_t total;            /* bytes held in all chunks */
};
void *sg_arena_alloc(struct sg_arena *arena, size_t size);   /* zeroed, 16-byte aligned; NULL when there is none */
char *sg_arena_strndup(struct sg_arena *arena, const char *s, size_t n);
char *sg_arena_printf(struct sg_arena *arena, const char *format, ...) SG_FORMAT(2, 3);
void sg_arena_free(struct sg_arena *arena);                  /* all of it; the arena may be used again */

#ifdef SEGUE_FAULTS
/* Development builds: make the n-th allocation from now fail (0 = none). */
void sg_fault_alloc(uint64_t nth);
#endif

#endif
