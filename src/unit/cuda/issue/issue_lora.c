/* issue_lora.c: adds LoRA adapters to the output of a linear: y += b (a x), in fp32, for the rows of each span. Adapters are
 * uploaded at first use and kept with the lane. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* Pairs of adapters that a lane keeps before it looks for unused ones: about 18 adapters of all matrices of an 8B model. */
enum { LORAS_KEPT = 4096 };

static int is_used(const struct cu_pass *p, uint64_t id)
{
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s]->loras_n; i++)
            if (p->spans[s]->loras[i]->id == id) return 1;
    return 0;
}

/* Frees adapters that no span of this pass has; cuMemFree waits for earlier passes. Without it a lane would keep every adapter
 * that a training run has sampled with. */
static void evict(struct cu_pass *p)
{
    struct cu_lane *l = p->lane;
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->loras_n; i++)
        if (is_used(p, l->loras[i].id))
            l->loras[n++] = l->loras[i];
        else
            cu_mem_free(p->program->base.unit, &l->loras[i].memory);
    l->loras_n = n;
}

/* GPU memory of an adapter's matrices for one weight, a then b. Uploaded when the lane uses it first. */
static segue_status lora_memory(struct cu_pass *p, uint64_t id, const struct sg_lora_pair *pair, cu_ptr *out)
{
    struct cu_lane *l = p->lane;
    size_t a_bytes = (size_t)pair->rank * pair->tensor->cols * sizeof(float),
           b_bytes = (size_t)pair->rank * pair->tensor->rows * sizeof(float);
    /* The id distinguishes adapters that were loaded at the same address one after the other. */
    for (uint32_t i = 0; i < l->loras_n; i++)
        if (l->loras[i].id == id && l->loras[i].pair == pair) {
            *out = l->loras[i].memory;
            return SEGUE_OK;
        }
    if (l->loras_n >= LORAS_KEPT) evict(p);
    if (l->loras_n == l->loras_cap) {
        uint32_t cap = l->loras_cap * 2 + 64;
        struct cu_lora *wider = sg_realloc(l->loras, cap * sizeof *wider);
        if (!wider) return sg_no_memory("adapters", cap * sizeof *wider, p->err);
        l->loras = wider;
        l->loras_cap = cap;
    }
    SG_TRY(cu_mem_alloc(p->program->base.unit, a_bytes + b_bytes, "adapter", out, p->err));
    l->loras[l->loras_n++] = (struct cu_lora){id, pair, *out};
    SG_TRY(cu_copy_to_gpu(p->program->base.unit, *out, pair->a, a_bytes, p->err));
    return cu_copy_to_gpu(p->program->base.unit, *out + a_bytes, pair->b, b_bytes, p->err);
}

/* Adds one adapter to rows [from, to): low = a x in scratch, then y += b low. at: first weight row that the linear uses. */
static segue_status add_lora(struct cu_pass *p, const struct sg_op *op, uint64_t id, const struct sg_lora_pair *pair,
                             uint32_t from, uint32_t to)
{
    struct sg_unit *u = p->program->base.unit;
    const struct sg_tensor *t = pair->tensor;
    cu_ptr memory;
    if (from == to) return SEGUE_OK;
    SG_TRY(lora_memory(p, id, pair, &memory));
    SG_TRY(cu_lane_grow(p, &p->lane->scratch, &p->lane->scratch_bytes, (size_t)(to - from) * pair->rank * sizeof(float)));
    struct ck_lora a = {.x = cu_view_of(p, &op->in[0]),
                        .y = cu_output_view(p, op),
                        .a = (const float *)(uintptr_t)memory,
                        .b = (const float *)(uintptr_t)(memory + (size_t)pair->rank * t->cols * sizeof(float)),
                        .low = (float *)(uintptr_t)p->lane->scratch,
                        .rank = pair->rank,
                        .from = from,
                        .to = to,
                        .k = (uint32_t)t->cols,
                        .n = op->u.linear.weight.rows,
                        .at = op->u.linear.weight.at};
    SG_TRY(cu_launch(p, u->k.lora_low, (pair->rank + 7) / 8, to - from, 1, 256, 0, &a));
    return cu_launch(p, u->k.lora_add, (a.n + 255) / 256, to - from, 1, 256, 0, &a);
}

/* Every span has its own adapters, so each is added to the rows of that span only. */
segue_status cu_issue_loras(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_tensor *t = p->program->base.graph->tensors[op->u.linear.weight.tensor];
    uint32_t wanted = p->program->base.graph->values[op->out].wanted;
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s]->loras_n; i++) {
            const struct sg_lora_pair *pair = sg_lora_find(p->spans[s]->loras[i], t);
            if (pair) SG_TRY(add_lora(p, op, p->spans[s]->loras[i]->id, pair, p->from[wanted][s], p->from[wanted][s + 1]));
        }
    return SEGUE_OK;
}
