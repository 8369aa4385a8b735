/* kv_estimate.c: see kv_fit.h. What a K or V is computed from shows its size: a norm makes numbers of magnitude 1 times its
 * weight g, and a product with row w of a matrix then has about sqrt(sum (w g)^2), as the sum of many numbers of either sign.
 * SPDX-License-Identifier: MIT */
#include "unit/kv/kv_fit.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "tensor/tensor.h"

#define F16_TOP 65504.0f
#define F16_FEW 0x1p-22f /* below sg_kv_fit's bound, since the largest of a head is 2 to 4 times the usual number */
enum { SAMPLE = 16 };

static const struct sg_op *maker_of(const struct sg_graph *g, int32_t value)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].out == value) return &g->ops[i];
    return NULL;
}

/* The factors of a norm, [cols]; a shorter weight repeats, as that of groups does. */
static segue_status gains_of(const struct sg_graph *g, const struct sg_op *norm, size_t cols, float *gains, segue_error *err)
{
    const struct sg_norm *n = &norm->u.norm;
    for (size_t i = 0; i < cols; i++) gains[i] = 1;
    if (n->weight.tensor < 0) return SEGUE_OK;
    const struct sg_tensor *t = g->tensors[n->weight.tensor];
    size_t have = (size_t)t->rows * t->cols;
    float *w = sg_alloc(have * sizeof *w);
    if (!w) return sg_no_memory("weights of a norm", have * sizeof *w, err);
    sg_tensor_read(t, w);
    for (size_t i = 0; i < cols; i++) gains[i] = w[i % have] + (n->plus_one ? 1.0f : 0.0f);
    sg_free(w);
    return SEGUE_OK;
}

static float length_of(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i] * ((double)a[i] * b[i]);
    return (float)sqrt(sum);
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Estimates of SAMPLE columns of the operand, rising; *n 0: nothing is known of it. */
static segue_status sample(const struct sg_graph *g, struct sg_operand x, float out[SAMPLE], uint32_t *n, segue_error *err)
{
    const struct sg_op *op = maker_of(g, x.value);
    *n = 0;
    for (; op && op->code == SG_OP_ROPE; op = maker_of(g, x.value)) x = op->in[0];
    const struct sg_op *norm = op && op->code == SG_OP_LINEAR ? maker_of(g, op->in[0].value) : NULL;
    /* a bias may be the larger part */
    if (!norm || norm->code != SG_OP_NORM || norm->u.norm.bias.tensor >= 0 || op->u.linear.bias.tensor >= 0) return SEGUE_OK;
    const struct sg_tensor *t = g->tensors[op->u.linear.weight.tensor];
    segue_error ignored;
    if (sg_tensor_computable(t, &ignored)) return SEGUE_OK; /* refused by the unit */
    float *gains = sg_alloc(2 * t->cols * sizeof *gains);
    if (!gains) return sg_no_memory("a row of a matrix", 2 * t->cols * sizeof *gains, err);
    float *row = gains + t->cols;
    segue_status status = gains_of(g, norm, t->cols, gains, err);
    for (uint32_t i = 0; status == SEGUE_OK && i < SAMPLE; i++) {
        sg_tensor_row(t, op->u.linear.weight.at + x.at + (uint64_t)x.width * i / SAMPLE, 0, t->cols, row);
        out[(*n)++] = length_of(gains, row, t->cols);
    }
    qsort(out, *n, sizeof *out, by_size);
    sg_free(gains);
    return status;
}

segue_status sg_kv_estimate(const char *unit, const struct sg_graph *g, enum sg_storage storage, segue_error *err)
{
    float scale = storage == SG_Q8_0 ? 127.0f : 1.0f, v[SAMPLE];
    for (uint32_t i = 0; (storage == SG_F16 || storage == SG_Q8_0) && i < 2 * g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i / 2];
        uint32_t n = 0;
        if (op->code != SG_OP_ATTEND) continue;
        SG_TRY(sample(g, op->in[1 + i % 2], v, &n, err));
        /* numbers that are not finite are refused by the unit */
        if (!n || !isfinite(v[n / 2]) || !isfinite(v[n - 1])) continue;
        if (v[n / 2] <= F16_TOP * scale && (v[n - 1] >= F16_FEW * scale || v[n - 1] == 0)) continue;
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "engine not opened: %s: %s of layer %d is about %.2g by its weights, which %s cannot hold; use --kv "
                       "bf16 or f32", unit, i % 2 ? "V" : "K", op->layer, (double)v[n / 2], storage == SG_Q8_0 ? "q8" : "f16");
    }
    return SEGUE_OK;
}
