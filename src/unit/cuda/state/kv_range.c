/* kv_range.c: see kv_range.h.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/state/kv_range.h"

#include "base/mem.h"

segue_status cu_kv_memory_new(struct sg_unit *u, size_t bytes, struct cu_kv_memory **out, segue_error *err)
{
    struct cu_kv_memory *m = sg_alloc(sizeof *m);
    if (!m) return sg_no_memory("state", sizeof *m, err);
    segue_status status = cu_pool_alloc(u, bytes, &m->p, err);
    if (status != SEGUE_OK) {
        sg_free(m);
        return status;
    }
    atomic_init(&m->refs, 1u);
    m->bytes = bytes;
    *out = m;
    return SEGUE_OK;
}

void cu_kv_memory_release(struct sg_unit *u, struct cu_kv_memory *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1u) != 1) return;
    cu_pool_free(u, &m->p, m->bytes);
    sg_free(m);
}

segue_status cu_kv_range_in(struct cu_kv_memory *m, size_t at, size_t bytes, struct cu_kv_range **out, segue_error *err)
{
    struct cu_kv_range *r = sg_alloc(sizeof *r);
    if (!r) return sg_no_memory("state", sizeof *r, err);
    atomic_init(&r->refs, 1u);
    atomic_fetch_add(&m->refs, 1u);
    r->memory = m;
    r->base = m->p + at;
    r->bytes = bytes;
    *out = r;
    return SEGUE_OK;
}

segue_status cu_kv_range_new(struct sg_unit *u, size_t bytes, struct cu_kv_range **out, segue_error *err)
{
    struct cu_kv_memory *m = NULL;
    *out = NULL;
    SG_TRY(cu_kv_memory_new(u, bytes, &m, err));
    segue_status status = cu_kv_range_in(m, 0, bytes, out, err);
    cu_kv_memory_release(u, m);
    return status;
}

void cu_kv_range_release(struct sg_unit *u, struct cu_kv_range *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1u) != 1) return;
    cu_kv_memory_release(u, r->memory);
    sg_free(r);
}

int cu_kv_range_may_write(struct cu_kv_range *r, int *writes, size_t at)
{
    if (atomic_load(&r->refs) == 1) {
        *writes = 1;
        atomic_store(&r->read, 0u);
    }
    return *writes && at >= atomic_load(&r->read);
}

/* Only the writing slot raises the limit; what others share is below it. */
void cu_kv_range_share(struct cu_kv_range *r, int *writes, size_t bytes)
{
    if (atomic_load(&r->refs) == 1) *writes = 1;
    if (*writes && atomic_load(&r->read) < bytes) atomic_store(&r->read, bytes);
    atomic_fetch_add(&r->refs, 1u);
}

uint64_t cu_kv_range_bytes(const struct cu_kv_range *r) { return r ? r->bytes / atomic_load(&r->refs) : 0; }
