/* npu_kept.c: see npu_plan.h: packed constants of a function as one entry of the cache folder, in the order of their
 * values. Programs of one part that differ only in their rows read the same constants, so they share an entry.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ane/milinfer.h"
#include "unit/ane/npu_plan.h"

enum { PACK_VERSION = 1, LEAST = 1024 }; /* numbers: smaller ones are decoded faster than found */

static const struct sg_mil_literal *blob_of(const struct sg_npu_plan *plan, uint32_t value)
{
    const struct sg_mil_literal *l =
        plan->f->values[value].op == SG_MIL_NONE ? NULL : sg_mil_value_literal(plan->f, value);
    return l && l->kind == SG_MIL_BLOB ? l : NULL;
}

uint64_t sg_npu_kept_bytes(const struct sg_npu_plan *plan, uint32_t value)
{
    const struct sg_npu_slot *s = &plan->slots[value];
    const struct sg_mil_type *t = &plan->f->values[value].type;
    if (s->wanted != SG_NPU_WANT_PACKED || t->dtype != SG_MIL_FP16 || s->n < LEAST || !blob_of(plan, value)) return 0;
    uint64_t mr = sg_npu_kernels_here()->mr, m = (uint64_t)t->dim[0];
    return ((m + mr - 1) / mr * mr * (s->n / m) * sizeof(uint16_t) + 63) / 64 * 64;
}

/* What the entry holds, and where each constant lies in it; 0 bytes: nothing is worth keeping. */
static uint64_t key_of(const struct sg_npu_plan *plan, const struct sg_ane_source *source, struct sg_hash *key)
{
    uint64_t total = 0;
    const uint64_t begin[] = {PACK_VERSION, sg_npu_kernels_here()->mr, source->weights.lo, source->weights.hi};
    *key = sg_ane_key((struct sg_hash){0}, begin, sizeof begin);
    for (uint32_t v = 0; v < plan->f->values_n; v++) {
        uint64_t bytes = sg_npu_kept_bytes(plan, v);
        if (!bytes) continue;
        const struct sg_mil_literal *l = blob_of(plan, v);
        const uint64_t one[] = {bytes, plan->slots[v].n, (uint64_t)l->type.dim[0], l->v.blob.offset};
        *key = sg_ane_key(*key, one, sizeof one);
        *key = sg_ane_key(*key, l->v.blob.path, strlen(l->v.blob.path));
        total += bytes;
    }
    return total;
}

int sg_npu_kept_find(struct sg_npu_plan *plan, const struct sg_ane_source *source)
{
    struct sg_hash key;
    uint64_t total = source->keep ? key_of(plan, source, &key) : 0, at = 0;
    if (!total || !sg_ane_keep_find(source->keep, key, "packed", &plan->kept)) return 0;
    if (plan->kept.bytes != total) {
        sg_ane_kept_close(&plan->kept);
        return 0;
    }
    for (uint32_t v = 0; v < plan->f->values_n; v++) {
        uint64_t bytes = sg_npu_kept_bytes(plan, v);
        if (bytes) plan->slots[v].packed = (const uint16_t *)(const void *)(plan->kept.data + at);
        at += bytes;
    }
    return 1;
}

segue_status sg_npu_kept_write(const struct sg_npu_plan *plan, const struct sg_ane_source *source, segue_error *err)
{
    static const uint8_t zeros[64];
    struct sg_hash key;
    uint32_t n = 0;
    uint64_t total = source->keep ? key_of(plan, source, &key) : 0;
    if (!total) return SEGUE_OK;
    struct sg_ane_piece *pieces = sg_alloc(2 * (size_t)plan->f->values_n * sizeof *pieces);
    if (!pieces) return sg_no_memory("packed weights", plan->f->values_n, err);
    for (uint32_t v = 0; v < plan->f->values_n; v++) {
        uint64_t bytes = sg_npu_kept_bytes(plan, v);
        if (!bytes) continue;
        uint64_t mr = sg_npu_kernels_here()->mr, m = (uint64_t)plan->f->values[v].type.dim[0];
        uint64_t own = (m + mr - 1) / mr * mr * (plan->slots[v].n / m) * sizeof(uint16_t);
        pieces[n++] = (struct sg_ane_piece){plan->slots[v].packed, (size_t)own};
        if (bytes > own) pieces[n++] = (struct sg_ane_piece){zeros, (size_t)(bytes - own)};
    }
    sg_ane_keep_write(source->keep, key, "packed", pieces, n);
    sg_free(pieces);
    return SEGUE_OK;
}
