/* npu_packed.c: packed constants that plans share. The programs of one part for different shapes read
 * the same weights, so there is one buffer with all of them, in the order of the values of the
 * function: in memory, and as an entry of the cache folder. See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ane/mil/milinfer.h"
#include "unit/ane/npu/npu_plan.h"

enum {
    PACK_VERSION = 1,            /* changes with the packed layout */
    SHARED_MIN = 1024,           /* elements; smaller constants are decoded faster than they are found */
};

/* The blob literal of a constant; NULL for computed values and for constants in the text. */
static const struct sg_mil_literal *blob_of(const struct sg_npu_plan *plan, uint32_t value)
{
    const struct sg_mil_literal *l =
        plan->f->values[value].op == SG_MIL_NONE ? NULL : sg_mil_value_literal(plan->f, value);
    return l && l->kind == SG_MIL_BLOB ? l : NULL;
}

/* Bytes of a constant in the buffer, a multiple of 64; 0: it is not shared. Only fp16 weights that all
 * readers want packed are shared. Their rows are padded to a multiple of the tile height mr. */
static uint64_t packed_bytes(const struct sg_npu_plan *plan, uint32_t value)
{
    const struct sg_npu_slot *s = &plan->slots[value];
    const struct sg_mil_type *t = &plan->f->values[value].type;
    if (s->wanted != SG_NPU_WANT_PACKED || t->dtype != SG_MIL_FP16 || s->n < SHARED_MIN || !blob_of(plan, value)) return 0;
    uint64_t mr = sg_npu_kernels_here()->mr, m = (uint64_t)t->dim[0];
    return ((m + mr - 1) / mr * mr * (s->n / m) * sizeof(uint16_t) + 63) / 64 * 64;
}

/* Hash of everything that determines the contents of the buffer: layout version, tile height, hash of
 * the blob files, and the size, shape and record of each constant. Returns the bytes of the buffer; 0:
 * nothing is shared. */
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

/* Maps the entry of the cache folder. 1: found; an entry of another size is ignored. */
static int entry_found(struct sg_npu_packed *p, const struct sg_ane_source *source)
{
    if (!source->cache || !sg_ane_cache_find(source->cache, p->key, "packed", &p->entry)) return 0;
    if (p->entry.bytes == p->bytes) {
        p->data = p->entry.data;
        return 1;
    }
    sg_ane_cache_entry_close(&p->entry);
    return 0;
}

static void packed_free(struct sg_npu_packed *p)
{
    sg_free_aligned(p->memory);
    sg_ane_cache_entry_close(&p->entry);
    sg_free(p);
}

/* A buffer with one reference: mapped from the cache folder, or zeroed memory that the plan must fill.
 * Zeros, because the rows that pad a weight are never written. */
static segue_status packed_new(struct sg_npu_packed **out, struct sg_hash key, uint64_t bytes, const struct sg_ane_source *source,
                               segue_error *err)
{
    struct sg_npu_packed *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("packed weights", sizeof *p, err);
    *p = (struct sg_npu_packed){.key = key, .bytes = bytes, .refs = 1};
    if (!entry_found(p, source)) p->data = p->memory = sg_alloc_aligned((size_t)bytes);
    if (!p->data) {
        packed_free(p);
        return sg_no_memory("packed weights", (size_t)bytes, err);
    }
    if (p->memory) memset(p->memory, 0, (size_t)bytes);
    *out = p;
    return SEGUE_OK;
}

/* A buffer that was just made in memory is incomplete: this plan fills it through sg_npu_packed_dest
 * and then calls sg_npu_packed_publish. Plans are made one at a time, so no other plan sees it before. */
segue_status sg_npu_packed_acquire(struct sg_npu_plan *plan, struct sg_npu_weight_cache *cache,
                                   const struct sg_ane_source *source, segue_error *err)
{
    struct sg_hash key;
    uint64_t total = cache && (source->weights.lo | source->weights.hi) ? key_of(plan, source, &key) : 0, at = 0;
    if (!total) return SEGUE_OK;
    struct sg_npu_packed *p = cache->first;
    while (p && memcmp(&p->key, &key, sizeof key) != 0) p = p->next;
    if (p) {
        p->refs++;
    } else {
        SG_TRY(packed_new(&p, key, total, source, err));
        cache->bytes += total;
        p->next = cache->first;
        cache->first = p;
    }
    plan->weight_cache = cache;
    plan->packed = p;
    for (uint32_t v = 0; v < plan->f->values_n && (p->filled || p->entry.data); v++) {
        uint64_t bytes = packed_bytes(plan, v);
        if (bytes) plan->slots[v].packed = (const uint16_t *)(const void *)(p->data + at);
        at += bytes;
    }
    return SEGUE_OK;
}

/* The offset of a value is the sum of the sizes before it, in the order of key_of. */
uint16_t *sg_npu_packed_dest(const struct sg_npu_plan *plan, uint32_t value)
{
    uint64_t at = 0;
    if (!plan->packed || !plan->packed->memory || !packed_bytes(plan, value)) return NULL;
    for (uint32_t v = 0; v < value; v++) at += packed_bytes(plan, v);
    return (uint16_t *)(void *)(plan->packed->memory + at);
}

/* A failed write to the cache folder is not an error: the next start packs again. */
void sg_npu_packed_publish(const struct sg_npu_plan *plan, const struct sg_ane_source *source)
{
    struct sg_npu_packed *p = plan->packed;
    if (!p || !p->memory || p->filled) return;
    p->filled = 1;
    if (source->cache) sg_ane_cache_write(source->cache, p->key, "packed", &(struct sg_ane_piece){p->data, (size_t)p->bytes}, 1);
}

/* The last reference removes the buffer from the list and frees it. */
void sg_npu_packed_release(struct sg_npu_plan *plan)
{
    struct sg_npu_packed *p = plan->packed;
    plan->packed = NULL;
    if (!p || --p->refs) return;
    plan->weight_cache->bytes -= p->bytes;
    for (struct sg_npu_packed **at = &plan->weight_cache->first; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    packed_free(p);
}
