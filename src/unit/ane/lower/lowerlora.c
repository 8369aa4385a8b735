/* lowerlora.c: see lowerlora.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lowerlora.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/analysis/weight_exponent.h"
#include "unit/ane/lower/lowercommon.h"

/* Channels of A and B of an operation; 0: not linear. */
static uint64_t op_channels(const struct sg_op *op)
{
    return op->code == SG_OP_LINEAR ? (uint64_t)op->in[0].width + op->u.linear.weight.rows : 0;
}

uint64_t sg_ane_lora_at(const struct sg_graph *g, const struct sg_ane_part *part, uint32_t op)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < part->ops_n && part->ops[i] != op; i++) at += op_channels(&g->ops[part->ops[i]]);
    return at;
}

uint64_t sg_ane_lora_channels(const struct sg_graph *g, const struct sg_ane_part *part)
{
    return (sg_ane_lora_at(g, part, UINT32_MAX) + SG_ANE_PAD - 1) / SG_ANE_PAD * SG_ANE_PAD;
}

uint32_t sg_ane_lora_rank(const struct sg_graph *g, const struct sg_lora *const *loras, uint32_t n)
{
    uint32_t max = 0;
    for (uint32_t t = 0; t < g->tensors_n; t++) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            const struct sg_lora_pair *pair = sg_lora_find(loras[i], g->tensors[t]);
            sum += pair ? pair->rank : 0;
        }
        max = sum > max ? sum : max;
    }
    return max;
}

/* Writes A and B of one adapter for one operation into columns at, at + 1, ... of out[channels][rank].
 * pair->a is [pair->rank][k] and is transposed; pair->b is [rows of the tensor][pair->rank]. A is multiplied by
 * 2^exponent as the matrix is, because both read the same scaled norm. 0: a value exceeds the fp16 range. */
static int put_pair(const struct sg_lora_pair *pair, const struct sg_op *op, int exponent, uint32_t rank, uint32_t at,
                    uint16_t *out)
{
    uint32_t k = op->in[0].width, n = op->u.linear.weight.rows, overflow = 0;
    const float *b = pair->b + (size_t)op->u.linear.weight.at * pair->rank;
    for (uint32_t r = 0; r < pair->rank; r++) {
        for (uint32_t c = 0; c < k; c++) {
            uint16_t v = sg_f16_of_f32(ldexpf(pair->a[(size_t)r * k + c], exponent));
            out[(size_t)c * rank + at + r] = v;
            overflow |= (v & 0x7c00) == 0x7c00;
        }
        for (uint32_t c = 0; c < n; c++) {
            uint16_t v = sg_f16_of_f32(b[(size_t)c * pair->rank + r]);
            out[((size_t)k + c) * rank + at + r] = v;
            overflow |= (v & 0x7c00) == 0x7c00;
        }
    }
    return !overflow;
}

segue_status sg_ane_lora_fill(const struct sg_graph *g, const struct sg_ane_part *part, const struct sg_lora *const *loras,
                              uint32_t n, uint32_t rank, uint16_t *out, segue_error *err)
{
    memset(out, 0, (size_t)sg_ane_lora_channels(g, part) * rank * sizeof *out);
    for (uint32_t i = 0; i < part->ops_n; i++) {
        const struct sg_op *op = &g->ops[part->ops[i]];
        uint32_t at = 0;
        if (op->code != SG_OP_LINEAR) continue;
        for (uint32_t k = 0; k < n; k++) {
            const struct sg_tensor *t = g->tensors[op->u.linear.weight.tensor];
            const struct sg_lora_pair *pair = sg_lora_find(loras[k], t);
            int exponent;
            if (!pair) continue;
            SG_TRY(sg_ane_weight_exponent(g, (uint32_t)op->u.linear.weight.tensor, &exponent, err));
            if (!put_pair(pair, op, exponent, rank, at, out))
                return sg_fail(err, SEGUE_EUNSUPPORTED,
                               "run: ane: the adapter's change of %s exceeds the fp16 range; use another unit", t->name);
            at += pair->rank;
        }
        out += op_channels(op) * rank;
    }
    return SEGUE_OK;
}

/* n channels of the port as [1, 1, n, rank]. */
static uint32_t lora_matrix(struct sg_lowering *l, uint64_t at, int64_t n)
{
    uint32_t x = sg_ane_channels(l, l->lora, (int64_t)at, n);
    return sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, 1, n, l->shape->rank});
}

/* y + B (A^T x), with A [k, rank] and B [n, rank]: the product with the small rank first. */
uint32_t sg_ane_lower_lora(struct sg_lowering *l, const struct sg_op *op, uint32_t x, uint32_t y)
{
    int64_t k = op->in[0].width, n = op->u.linear.weight.rows;
    if (!l->shape->rank) return y;
    uint64_t at = sg_ane_lora_at(l->g, l->part, (uint32_t)(op - l->g->ops));
    uint32_t rows = sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, 1, k, l->s});
    uint32_t low = sg_mil_build_matmul(&l->b, lora_matrix(l, at, k), rows, 1, 0);
    uint32_t change = sg_mil_build_matmul(&l->b, lora_matrix(l, at + (uint64_t)k, n), low, 0, 0);
    return SG_ANE_BIN("add", y, sg_mil_build_reshape(&l->b, change, 4, (int64_t[]){1, n, 1, l->s}));
}
