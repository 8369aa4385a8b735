/* train_flash.c: attention with bf16 values without score matrices (k_train_flash.cu), for heads of 64 and 128 numbers without
 * sinks, soft cap or gate; others use train_attend.c.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/train/cu_train.h"

static int can(const struct sg_resident_call *c)
{
    const struct sg_attend *a = &c->op->u.attend;
    int plain = (a->d == 64 || a->d == 128) && a->dv == a->d && !c->weight[0].value && !c->in[3].data && !(a->softcap > 0);
    for (int i = 0; i < 3; i++) plain &= cu_train_even(c->in[i]) && cu_train_even(c->grad[i]);
    return plain && (!c->back || c->grad[0].data || c->grad[1].data || c->grad[2].data);
}

/* [heads, rows] that forward writes and backward reads. An op has at most one forward pass before its backward pass. */
static segue_status lines_of(struct cu_train *t, const struct sg_op *op, size_t numbers, float **out, segue_error *err)
{
    size_t i = 0;
    while (i < t->lines_n && t->lines[i].op != op) i++;
    if (i == t->lines_n) {
        struct cu_train_lines *more = sg_alloc((i + 1) * sizeof *more);
        if (!more) return sg_no_memory("list of attentions", (i + 1) * sizeof *more, err);
        if (i) memcpy(more, t->lines, i * sizeof *more);
        sg_free(t->lines);
        t->lines = more;
        t->lines[t->lines_n++] = (struct cu_train_lines){.op = op};
    }
    SG_TRY(cu_mem_grow(t->u, &t->lines[i].p, &t->lines[i].bytes, numbers * sizeof **out, "rows of attention", err));
    *out = (float *)(uintptr_t)t->lines[i].p;
    return SEGUE_OK;
}

segue_status cu_train_flash(struct cu_train *t, const struct sg_resident_call *c, int *done, segue_error *err)
{
    const struct sg_attend *o = &c->op->u.attend;
    if (!can(c)) return SEGUE_OK;
    *done = 1;
    struct ct_flash a = {.q = cu_train_half(c->in[0]), .k = cu_train_half(c->in[1]), .v = cu_train_half(c->in[2]),
                         .dq = cu_train_half(c->grad[0]), .dk = cu_train_half(c->grad[1]), .dv = cu_train_half(c->grad[2]),
                         .dout = (const uint16_t *)(const void *)c->dout, .result = (const uint16_t *)(const void *)c->out,
                         .out = (uint16_t *)(void *)c->out, .from = c->tokens->from, .heads = o->heads, .kv_heads = o->kv_heads,
                         .window = o->window, .rows = c->rows, .scale = o->scale};
    uint32_t tiles = cu_pieces(c->tokens->longest, CT_FLASH_ROWS), sequences = c->tokens->sequences, wide = o->d == 128;
    size_t numbers = (size_t)o->heads * c->rows;
    SG_TRY(lines_of(t, c->op, numbers, &a.lse, err));
    if (!c->back)
        return cu_train_launch(t, wide ? t->k.flash_128 : t->k.flash_64, tiles, o->heads, sequences, CT_FLASH_THREADS, &a, err);
    SG_TRY(cu_train_scratch(t, numbers, &a.along, err));
    SG_TRY(cu_train_launch(t, wide ? t->k.flash_queries_128 : t->k.flash_queries_64, tiles, o->heads, sequences, CT_FLASH_THREADS,
                           &a, err));
    /* With an adapter of q alone, the first layer's k and v need no gradient. The pass by queries has sums for that by keys. */
    if (!c->grad[1].data && !c->grad[2].data) return SEGUE_OK;
    return cu_train_launch(t, wide ? t->k.flash_keys_128 : t->k.flash_keys_64, tiles, o->kv_heads, sequences, CT_FLASH_THREADS,
                           &a, err);
}
