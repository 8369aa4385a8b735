/* npu_packed.c: see npu_plan.h: packed constants of a function, in the order of their values. Programs of one part that
 * differ only in their rows read the same constants, so they share one copy: in memory, and as an entry of the cache
 * folder. SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ane/mil/milinfer.h"
#include "unit/ane/npu/npu_plan.h"

enum { PACK_VERSION = 1, LEAST = 1024 }; /* numbers: smaller ones are decoded faster than found */

/* The blob literal of a constant; NULL for computed values and inline numbers. */
static const struct sg_mil_literal *blob_of(const struct sg_npu_plan *plan, uint32_t value)
{
    const struct sg_mil_literal *l =
        plan->f->values[value].op == SG_MIL_NONE ? NULL : sg_mil_value_literal(plan->f, value);
    return l && l->kind == SG_MIL_BLOB ? l : NULL;
}

/* Size of a constant in the shared buffer, a multiple of 64 bytes; 0: not shared. Only fp16
 * weights that products read in packed form are shared. Rows are padded to the tile height mr. */
static uint64_t packed_bytes(const struct sg_npu_plan *plan, uint32_t value)
{
    const struct sg_npu_slot *s = &plan->slots[value];
    const struct sg_mil_type *t = &plan->f->values[value].type;
    if (s->wanted != SG_NPU_WANT_PACKED || t->dtype != SG_MIL_FP16 || s->n < LEAST || !blob_of(plan, value)) return 0;
    uint64_t mr = sg_npu_kernels_here()->mr, m = (uint64_t)t->dim[0];
    return ((m + mr - 1) / mr * mr * (s->n / m) * sizeof(uint16_t) + 63) / 64 * 64;
}

/* Hash of everything that determines the packed bytes: format version, tile height, hash of the
 * weight files, and size, shape and blob offset of each constant in buffer order. Returns the
 * total size; 0: nothing to share. */
static uint64_t key_of(const struct sg_npu_plan *plan, const struct sg_ane_source *source, struct sg_hash *key)
{
    uint64_t total = 0;
    const uint64_t begin[] = {PACK_VERSION, plan->garbage, sg_npu_kernels_here()->mr, source->weights.lo, source->weights.hi};
    *key = sg_ane_key((struct sg_hash){0}, begin, sizeof begin);
    for (uint32_t v = 0; v < plan->f->values_n; v++) {
        uint64_t bytes = packed_bytes(plan, v);
        if (!bytes) continue;
        const struct sg_mil_literal *l = blob_of(plan, v);
        const uint64_t one[] = {bytes, plan->slots[v].n, (uint64_t)l->type.dim[0], l->v.blob.offset};
        *key = sg_ane_key(*key, one, sizeof one);
        *key = sg_ane_key(*key, l->v.blob.path, strlen(l->v.blob.path));
        total += bytes;
    }
    return total;
}

/* Maps the entry of the cache folder. An entry of another size is stale and ignored. */
static int entry_found(struct sg_npu_packed *p, const struct sg_ane_source *source)
{
    if (!source->keep || !sg_ane_cache_find(source->keep, p->key, "packed", &p->kept)) return 0;
    if (p->kept.bytes == p->bytes) {
        p->data = p->kept.data;
        return 1;
    }
    sg_ane_cache_entry_close(&p->kept);
    return 0;
}

static void packed_free(struct sg_npu_packed *p)
{
    sg_free_aligned(p->own);
    sg_ane_cache_entry_close(&p->kept);
    sg_free(p);
}

/* A new buffer with one user: mapped from the cache folder, or zeroed memory for the plan to fill. */
static segue_status packed_new(struct sg_npu_packed **out, struct sg_hash key, uint64_t bytes, const struct sg_ane_source *source,
                               segue_error *err)
{
    struct sg_npu_packed *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("packed weights", sizeof *p, err);
    *p = (struct sg_npu_packed){.key = key, .bytes = bytes, .users = 1};
    if (!entry_found(p, source)) p->data = p->own = sg_alloc_aligned((size_t)bytes);
    if (!p->data) {
        packed_free(p);
        return sg_no_memory("packed weights", (size_t)bytes, err);
    }
    if (p->own) memset(p->own, 0, (size_t)bytes);
    *out = p;
    return SEGUE_OK;
}

/* Finds or makes the buffer of this plan and takes a reference. Slots are set only when its
 * contents are complete; otherwise the plan fills it through sg_npu_packed_dest and calls
 * sg_npu_packed_publish. Without a hash of the weights nothing is shared. */
segue_status sg_npu_packed_acquire(struct sg_npu_plan *plan, struct sg_npu_weight_cache *shelf,
                                   const struct sg_ane_source *source, segue_error *err)
{
    struct sg_hash key;
    uint64_t total = shelf && (source->weights.lo | source->weights.hi) ? key_of(plan, source, &key) : 0, at = 0;
    if (!total) return SEGUE_OK;
    struct sg_npu_packed *p = shelf->first;
    while (p && memcmp(&p->key, &key, sizeof key) != 0) p = p->next;
    if (p) {
        p->users++;
    } else {
        SG_TRY(packed_new(&p, key, total, source, err));
        shelf->bytes += total;
        p->next = shelf->first;
        shelf->first = p;
    }
    plan->shelf = shelf;
    plan->packed = p;
    for (uint32_t v = 0; v < plan->f->values_n && (p->filled || p->kept.data); v++) {
        uint64_t bytes = packed_bytes(plan, v);
        if (bytes) plan->slots[v].packed = (const uint16_t *)(const void *)(p->data + at);
        at += bytes;
    }
    return SEGUE_OK;
}

/* The offset of a value is the sum of the sizes before it, in value order as in key_of. */
uint16_t *sg_npu_packed_dest(const struct sg_npu_plan *plan, uint32_t value)
{
    uint64_t at = 0;
    if (!plan->packed || !plan->packed->own || !packed_bytes(plan, value)) return NULL;
    for (uint32_t v = 0; v < value; v++) at += packed_bytes(plan, v);
    return (uint16_t *)(void *)(plan->packed->own + at);
}

/* Marks the buffer as complete and writes it to the cache folder. A failed write only costs time
 * at the next start. */
void sg_npu_packed_publish(const struct sg_npu_plan *plan, const struct sg_ane_source *source)
{
    struct sg_npu_packed *p = plan->packed;
    if (!p || !p->own || p->filled) return;
    p->filled = 1;
    if (source->keep) sg_ane_cache_write(source->keep, p->key, "packed", &(struct sg_ane_piece){p->data, (size_t)p->bytes}, 1);
}

/* Drops the reference of a plan; the last one removes the buffer from the list and frees it. */
void sg_npu_packed_release(struct sg_npu_plan *plan)
{
    struct sg_npu_packed *p = plan->packed;
    plan->packed = NULL;
    if (!p || --p->users) return;
    plan->shelf->bytes -= p->bytes;
    for (struct sg_npu_packed **at = &plan->shelf->first; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    packed_free(p);
}
