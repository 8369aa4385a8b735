/* anehost.c: operations of the unit `ane` that run on the host in fp32: embeddings, and the operations after the selection of
 * wanted rows, whose output projection is larger than an engine accepts. Results do not depend on the number of threads. See
 * struct ane_host in aneunit.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/ane/aneunit.h"

/* A whole small weight as fp32, to be freed by the caller; *out NULL: the operation has none. */
static segue_status read_weight(struct ane_host *h, const struct sg_weight *w, float **out)
{
    *out = NULL;
    if (w->tensor < 0) return SEGUE_OK;
    const struct sg_tensor *t = h->g->tensors[w->tensor];
    *out = sg_alloc((size_t)(t->rows * t->cols) * sizeof **out);
    if (!*out) return sg_no_memory("a weight", (size_t)(t->rows * t->cols) * sizeof **out, h->err);
    sg_tensor_read(t, *out);
    return SEGUE_OK;
}

/* out[t] = table[tokens[t]] * scale + positions[first + t]; not every model has learned positions. */
segue_status ane_embed(struct ane_host *h, const struct sg_op *op, const int32_t *tokens, uint64_t first, uint32_t n,
                       float *out)
{
    const struct sg_embed *e = &op->u.embed;
    const struct sg_tensor *table = h->g->tensors[e->table.tensor];
    const struct sg_tensor *positions = e->positions.tensor < 0 ? NULL : h->g->tensors[e->positions.tensor];
    uint32_t d = h->g->values[op->out].width;
    float *pos_row = sg_alloc(d * sizeof *pos_row);
    if (!pos_row) return sg_no_memory("an embedding", d * sizeof *pos_row, h->err);
    for (uint32_t t = 0; t < n; t++, out += d) {
        sg_tensor_row(table, (uint64_t)e->table.at + (uint32_t)tokens[t], 0, d, out);
        for (uint32_t c = 0; c < d; c++) out[c] *= e->scale;
        if (!positions) continue;
        sg_tensor_row(positions, e->positions.at + first + t, 0, d, pos_row);
        for (uint32_t c = 0; c < d; c++) out[c] += pos_row[c];
    }
    sg_free(pos_row);
    return SEGUE_OK;
}

/* Row of an operand, which may be a range of columns of its value. */
static const float *row_of(const struct ane_host *h, const struct sg_operand *x, uint32_t row)
{
    return h->values[x->value] + (size_t)row * h->g->values[x->value].width + x->at;
}

/* Constants: 1 / sqrt(2), sqrt(2 / pi). */
static float act(enum sg_act a, float x)
{
    float s = 1.0f / (1.0f + expf(-x));
    switch (a) {
    case SG_ACT_SILU: return x * s;
    case SG_ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case SG_ACT_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case SG_ACT_GELU_QUICK: return x / (1.0f + expf(-1.702f * x));
    case SG_ACT_RELU: return x > 0 ? x : 0;
    case SG_ACT_RELU2: return x > 0 ? x * x : 0;
    case SG_ACT_SIGMOID: return s;
    case SG_ACT_TANH: return tanhf(x);
    default: return x;
    }
}

/* Layer norm or RMS norm of `width` values with sums in double. RMS norm uses 0 as the mean. */
static void norm_group(const struct sg_norm *n, const float *x, uint32_t width, float *y)
{
    double mean = 0, squares = 0;
    for (uint32_t c = 0; n->kind == SG_NORM_LAYER && c < width; c++) mean += (double)x[c] / width;
    for (uint32_t c = 0; c < width; c++) squares += (x[c] - mean) * (x[c] - mean);
    double inverse = 1 / sqrt(squares / width + (double)n->eps);
    for (uint32_t c = 0; c < width; c++) y[c] = (float)((x[c] - mean) * inverse);
}

/* Norm of each group of columns, with optional weight and bias, which all groups share, and an optional SiLU gate. */
static segue_status norm(struct ane_host *h, const struct sg_op *op, float *out)
{
    const struct sg_norm *n = &op->u.norm;
    uint32_t width = op->in[0].width, group = width / n->groups;
    float *weight, *bias = NULL;
    SG_TRY(read_weight(h, &n->weight, &weight));
    segue_status status = read_weight(h, &n->bias, &bias);
    for (uint32_t t = 0; status == SEGUE_OK && t < h->rows; t++, out += width) {
        const float *x = row_of(h, &op->in[0], t), *gate = op->in[1].value < 0 ? NULL : row_of(h, &op->in[1], t);
        for (uint32_t c = 0; c < width; c += group) norm_group(n, x + c, group, out + c);
        for (uint32_t c = 0; c < width; c++) {
            if (weight) out[c] *= n->plus_one ? 1 + weight[c % group] : weight[c % group];
            if (bias) out[c] += bias[c % group];
            if (gate) out[c] *= act(SG_ACT_SILU, gate[c]);
        }
    }
    sg_free(weight);
    sg_free(bias);
    return status;
}

/* --- linear --- */

enum { BLOCK_ROWS = 64, SUMS = 16 };      /* weight rows per work item; partial sums of a dot product */

struct linear {
    struct ane_host *h;
    const struct sg_op *op;
    const float *bias;               /* [n] or NULL */
    float *rows;                     /* [threads][k] the weight row that a thread is using */
    float *out;                      /* [rows of h][n] */
};

/* Dot product with SUMS partial sums, which the compiler vectorizes; the order of additions depends on n only. */
static float dot(const float *a, const float *b, size_t n)
{
    float sums[SUMS] = {0}, sum = 0;
    size_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (size_t j = 0; j < SUMS; j++) sums[j] += a[i + j] * b[i + j];
    for (; i < n; i++) sum += a[i] * b[i];
    for (size_t j = 0; j < SUMS; j++) sum += sums[j];
    return sum;
}

/* One block of BLOCK_ROWS weight rows: each row is dequantized once and used for all activation rows. */
static void linear_part(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    const struct linear *w = arg;
    const struct sg_linear *p = &w->op->u.linear;
    uint32_t k = w->op->in[0].width, n = p->weight.rows, to = (item + 1) * BLOCK_ROWS;
    float *row = w->rows + (size_t)thread * k;
    (void)stage;
    for (uint32_t r = item * BLOCK_ROWS; r < n && r < to; r++) {
        sg_tensor_row(w->h->g->tensors[p->weight.tensor], (uint64_t)p->weight.at + r, 0, k, row);
        for (uint32_t t = 0; t < w->h->rows; t++) {
            float y = dot(row, row_of(w->h, &w->op->in[0], t), k);
            if (w->bias) y += w->bias[r];
            if (w->op->in[1].value >= 0) y += row_of(w->h, &w->op->in[1], t)[r];
            w->out[(size_t)t * n + r] = y;
        }
    }
}

/* out = x W^T + bias + residual. */
static segue_status linear(struct ane_host *h, const struct sg_op *op, float *out)
{
    const struct sg_tensor *t = h->g->tensors[op->u.linear.weight.tensor];
    float *bias;
    SG_TRY(read_weight(h, &op->u.linear.bias, &bias));
    size_t floats = (size_t)op->in[0].width * sg_pool_threads(h->pool);
    struct linear w = {h, op, bias, sg_alloc(floats * sizeof(float)), out};
    /* Weight rows are the unit of work: few activation rows share a large weight. */
    uint32_t items = (op->u.linear.weight.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    if (w.rows) sg_pool_run(h->pool, &(struct sg_job){.items = &items, .stages = 1, .work = linear_part, .arg = &w});
    sg_free(bias);
    if (!w.rows) return sg_no_memory("rows of a weight", floats * sizeof(float), h->err);
    sg_free(w.rows);
    h->weight_bytes += t->bytes / t->rows * op->u.linear.weight.rows;
    return SEGUE_OK;
}

/* --- other operations --- */

/* Multiplication by a vector, by a weight of one element, or by a constant. */

static segue_status scale(struct ane_host *h, const struct sg_op *op, float *out)
{
    uint32_t width = op->in[0].width;
    const struct sg_weight *p = &op->u.scale.weight;
    float *w;
    SG_TRY(read_weight(h, p, &w));
    int one_element = w && h->g->tensors[p->tensor]->rows * h->g->tensors[p->tensor]->cols == 1;
    for (uint32_t t = 0; t < h->rows; t++)
        for (uint32_t c = 0; c < width; c++)
            *out++ = row_of(h, &op->in[0], t)[c] * (w ? w[one_element ? 0 : c] : op->u.scale.value);
    sg_free(w);
    return SEGUE_OK;
}

/* The operations without a function here work on single elements: gated activation, activation, addition. */
segue_status ane_host_op(struct ane_host *h, const struct sg_op *op, float *out)
{
    uint32_t width = op->in[0].width;
    if (op->code == SG_OP_NORM) return norm(h, op, out);
    if (op->code == SG_OP_LINEAR) return linear(h, op, out);
    if (op->code == SG_OP_SCALE) return scale(h, op, out);
    for (uint32_t t = 0; t < h->rows; t++)
        for (uint32_t c = 0; c < width; c++, out++) {
            float x = row_of(h, &op->in[0], t)[c];
            if (op->code == SG_OP_GLU)
                *out = act(op->u.glu.act, x) * row_of(h, &op->in[1], t)[c];
            else if (op->code == SG_OP_ACT)
                *out = act(op->u.act.act, x);
            else
                *out = x + row_of(h, &op->in[1], t)[c];
        }
    return SEGUE_OK;
}
