/* memory.c: the current context, GPU memory, and the pool of freed state memory. The pool exists because cuMemAlloc and
 * cuMemFree synchronise with the GPU; its blocks are reused for requests of exactly the same size.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/driver/gpu.h"

/* The driver keeps a stack of contexts per thread, so a context that the caller has made current is restored. */
void cu_enter(struct sg_unit *u) { u->d.push(u->ctx); }

void cu_leave(struct sg_unit *u)
{
    cu_ctx before;
    u->d.pop(&before);
}

/* 16 bytes at least: cuMemAlloc refuses 0, and callers may have empty values. */
segue_status cu_mem_alloc(struct sg_unit *u, size_t bytes, const char *what, cu_ptr *out, segue_error *err)
{
    *out = 0;
    cu_enter(u);
    cu_result r = u->d.alloc(out, bytes ? bytes : 16);
    cu_leave(u);
    if (r == CU_OUT_OF_MEMORY)
        return sg_fail(err, SEGUE_EMEMORY,
                       "unit cuda: %s: %zu MB do not fit into GPU memory; use a smaller storage or context, or end other "
                       "programs on the GPU",
                       what, bytes >> 20);
    return cu_check(&u->d, r, what, err);
}

void cu_mem_free(struct sg_unit *u, cu_ptr *p)
{
    if (!*p) return;
    cu_enter(u);
    u->d.free(*p);
    cu_leave(u);
    *p = 0;
}

/* Frees before it allocates, so that the peak is the larger of both. */
segue_status cu_mem_grow(struct sg_unit *u, cu_ptr *p, size_t *have, size_t want, const char *what, segue_error *err)
{
    if (want <= *have) return SEGUE_OK;
    cu_mem_free(u, p);
    *have = 0;
    SG_TRY(cu_mem_alloc(u, want, what, p, err));
    *have = want;
    return SEGUE_OK;
}

/* When memory is full, and before the unit is closed. */
void cu_pool_empty(struct sg_unit *u)
{
    pthread_mutex_lock(&u->pool_lock);
    while (u->pool_n) cu_mem_free(u, &u->pool[--u->pool_n].p);
    u->pool_bytes = 0;
    pthread_mutex_unlock(&u->pool_lock);
}

/* Exact sizes only: states of one model and similar contexts repeat the same sizes, and nothing is wasted. When memory is full
 * the pool is emptied and the allocation repeated. */
segue_status cu_pool_alloc(struct sg_unit *u, size_t bytes, cu_ptr *out, segue_error *err)
{
    *out = 0;
    pthread_mutex_lock(&u->pool_lock);
    for (uint32_t i = 0; i < u->pool_n && !*out; i++)
        if (u->pool[i].bytes == bytes) {
            *out = u->pool[i].p;
            u->pool[i] = u->pool[--u->pool_n];
            u->pool_bytes -= bytes;
        }
    pthread_mutex_unlock(&u->pool_lock);
    /* Not under the lock: the driver may take milliseconds. */
    if (*out) return SEGUE_OK;
    segue_status status = cu_mem_alloc(u, bytes, "state", out, err);
    if (status != SEGUE_EMEMORY || !u->pool_n) return status;
    cu_pool_empty(u);
    return cu_mem_alloc(u, bytes, "state", out, err);
}

/* A full pool frees the block at once. */
void cu_pool_free(struct sg_unit *u, cu_ptr *p, size_t bytes)
{
    if (!*p) return;
    pthread_mutex_lock(&u->pool_lock);
    if (u->pool_n < CU_POOL_BLOCKS && u->pool_bytes + bytes <= (size_t)CU_POOL_MB << 20) {
        u->pool[u->pool_n++] = (struct cu_pool_block){*p, bytes};
        u->pool_bytes += bytes;
        *p = 0;
    }
    pthread_mutex_unlock(&u->pool_lock);
    cu_mem_free(u, p);
}
