/* anelora.c: LoRA adapters of the unit `ane`. Programs of a shape with a LoRA rank read the matrices A and B from a surface, as
 * an input, so another combination of adapters needs no compile. The last ANE_LORAS combinations stay in surfaces; a new one
 * replaces the least recently used. Adapters of host operations are computed here in fp32. See aneunit.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ane/aneunit.h"

/* Makes the entry free. Also after a failure of load_adapters. */
void ane_lora_free(struct sg_program *p, struct ane_lora *l)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    for (uint32_t i = 0; l->surfaces && i < p->cut[0].parts_n; i++)
        if (l->surfaces[i]) ops->surface_free(l->surfaces[i]);
    sg_free(l->surfaces);
    sg_free(l->ids);
    *l = (struct ane_lora){0};
}

/* 1: these surfaces have exactly the adapters of the span, in the same order, for this padded rank and surface size. */
static int is_loaded(const struct ane_lora *l, const struct sg_span *span, uint32_t rank, uint64_t bytes)
{
    if (!l->surfaces || l->n != span->loras_n || l->lora_rank != rank || l->bytes != bytes) return 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->ids[i] != span->loras[i]->id) return 0;
    return 1;
}

/* Makes and fills a surface for each part with adapter channels. After a failure the caller frees what was made. */
static segue_status load_adapters(struct sg_program *p, struct ane_lora *l, const struct sg_span *span, uint64_t *host_bytes,
                         segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    const struct sg_graph *g = p->base.graph;
    l->surfaces = sg_alloc((p->cut[0].parts_n + 1) * sizeof(struct sg_ane_surface *));
    l->ids = sg_alloc((span->loras_n + (size_t)1) * sizeof *l->ids);
    if (!l->surfaces || !l->ids) return sg_no_memory("adapters on ane", 0, err);
    for (l->n = 0; l->n < span->loras_n; l->n++) l->ids[l->n] = span->loras[l->n]->id;
    for (uint32_t i = 0; i < p->cut[0].parts_n; i++) {
        const struct sg_ane_part *part = &p->cut[0].parts[i];
        void *bytes;
        if (!sg_ane_lora_channels(g, part)) continue;
        SG_TRY(ops->surface_new(p->base.unit->device, l->bytes, &l->surfaces[i], err));
        SG_TRY(ops->lock(l->surfaces[i], 1, &bytes, NULL, err));
        segue_status status = sg_ane_lora_fill(g, part, span->loras, span->loras_n, l->lora_rank, bytes, err);
        ops->unlock(l->surfaces[i]);
        SG_TRY(status);
        *host_bytes += 2 * sg_ane_lora_channels(g, part) * l->lora_rank;
    }
    return SEGUE_OK;
}

/* The ranks of the adapters of one tensor are added; the largest sum is padded to a power of two of at least
 * sg_unit.columns, because each padded rank is another compiled shape. */
uint32_t ane_lora_columns(const struct sg_program *p, const struct sg_span *span)
{
    uint32_t rank = span->loras_n ? sg_ane_lora_rank(p->base.graph, span->loras, span->loras_n) : 0;
    uint32_t columns = p->base.unit->columns;
    while (columns < rank) columns *= 2;
    return rank ? columns : 0;
}

/* Searches the loaded combinations first; an entry that was never used has the smallest `used`. */
segue_status ane_lora_of(struct sg_program *p, const struct ane_set *set, const struct sg_span *span, struct ane_lora **out,
                         uint64_t *host_bytes, segue_error *err)
{
    uint32_t rank = set->shape.rank;
    struct ane_lora *oldest = &p->loras[0];
    *out = NULL;
    if (!rank) return SEGUE_OK;
    for (uint32_t i = 0; i < ANE_LORAS; i++) {
        struct ane_lora *l = &p->loras[i];
        if (is_loaded(l, span, rank, set->lora_bytes)) {
            l->used = ++p->uses;
            *out = l;
            return SEGUE_OK;
        }
        if (l->used < oldest->used) oldest = l;
    }
    ane_lora_free(p, oldest);
    *oldest = (struct ane_lora){.lora_rank = rank, .bytes = set->lora_bytes};
    segue_status status = load_adapters(p, oldest, span, host_bytes, err);
    if (status != SEGUE_OK) {
        ane_lora_free(p, oldest);
        return status;
    }
    oldest->used = ++p->uses;
    *out = oldest;
    return SEGUE_OK;
}

/* --- host operations --- */

/* out += B (A x) for one row. A is [rank][width of x], B [rows of the weight][rank]; the scale is part of B. low: [rank]. */
static void add_pair(const struct sg_lora_pair *pair, const struct sg_op *op, const float *x, float *low, float *out)
{
    uint32_t k = op->in[0].width;
    for (uint32_t r = 0; r < pair->rank; r++) {
        low[r] = 0;
        for (uint32_t c = 0; c < k; c++) low[r] += pair->a[(size_t)r * k + c] * x[c];
    }
    const float *b = pair->b + (size_t)op->u.linear.weight.at * pair->rank;
    for (uint32_t i = 0; i < op->u.linear.weight.rows; i++)
        for (uint32_t r = 0; r < pair->rank; r++) out[i] += b[(size_t)i * pair->rank + r] * low[r];
}

/* `out` is dense [rows][n]: the result of the linear operation before its adapters. */
segue_status ane_host_lora(struct ane_host *h, const struct sg_op *op, const struct sg_span *span, uint32_t from, float *out)
{
    const struct sg_tensor *t = op->code == SG_OP_LINEAR ? h->g->tensors[op->u.linear.weight.tensor] : NULL;
    for (uint32_t i = 0; t && i < span->loras_n; i++) {
        const struct sg_lora_pair *pair = sg_lora_find(span->loras[i], t);
        if (!pair) continue;
        float *low = sg_alloc(pair->rank * sizeof *low);
        if (!low) return sg_no_memory("an adapter's row", pair->rank * sizeof *low, h->err);
        uint32_t stride = h->g->values[op->in[0].value].width, n = op->u.linear.weight.rows;
        for (uint32_t r = from; r < from + span->wanted_n; r++)
            add_pair(pair, op, h->values[op->in[0].value] + (size_t)r * stride + op->in[0].at, low, out + (size_t)r * n);
        sg_free(low);
    }
    return SEGUE_OK;
}
