/* npu_reduce.c: handlers of operations along axes: reductions, softmax, norms, sorting. A tensor is
 * seen as [outer][along][inner], and the operation runs along the middle dimension. The order of
 * additions is fixed, so results do not depend on the number of threads. See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unit/ane/mil/milinfer.h"
#include "unit/ane/npu/npu_plan.h"

struct lanes {
    uint64_t outer, along, inner;
};

/* The view for a set of axes (bit mask). 0: the axes are not adjacent; see move_axes_last. */
static int lanes_of(const struct sg_mil_type *t, uint32_t axes, struct lanes *l)
{
    *l = (struct lanes){1, 1, 1};
    for (uint32_t i = 0; i < t->rank; i++) {
        int in = axes >> i & 1;
        if (in && l->inner > 1) return 0;
        *(in ? &l->along : l->along > 1 ? &l->inner : &l->outer) *= (uint64_t)t->dim[i];
    }
    return 1;
}

/* Copies x to the scratch with the reduced axes moved to the end, so that inner is 1. NULL: out of
 * memory. */
static float *move_axes_last(struct sg_npu_run *r, uint32_t x, uint32_t axes, struct lanes *l)
{
    const struct sg_mil_type *t = sg_npu_type(r, x);
    struct sg_npu_copy c = {.ndim = t->rank};
    int64_t stride[SG_MIL_DIMS], packed = 1;
    uint32_t at = 0;
    float *p = sg_npu_scratch(r, (size_t)r->plan->slots[x].n);
    if (!p) return NULL;
    *l = (struct lanes){1, 1, 1};
    sg_npu_strides(t, stride);
    /* Two passes: the axes that stay, then the reduced ones. */
    for (int last = 0; last < 2; last++)
        for (uint32_t i = 0; i < t->rank; i++) {
            if ((int)(axes >> i & 1) != last) continue;
            c.dim[at] = t->dim[i];
            c.from[at++] = stride[i];
            *(last ? &l->along : &l->outer) *= (uint64_t)t->dim[i];
        }
    for (uint32_t i = c.ndim; i-- > 0; packed *= c.dim[i]) c.to[i] = packed;
    sg_npu_copy(r, &c, p, sg_npu_data(r, x));
    return p;
}

/* --- reductions --- */

enum reduce { R_SUM, R_MEAN, R_MAX, R_MIN, R_L2, R_L1, R_LOG_SUM_EXP, R_SUM_SQUARE, R_LOG_SUM, R_NONE };
static const char *const reduce_names[R_NONE] = {"reduce_sum",         "reduce_mean",       "reduce_max",
                                                 "reduce_min",         "reduce_l2_norm",    "reduce_l1_norm",
                                                 "reduce_log_sum_exp", "reduce_sum_square", "reduce_log_sum"};
enum { BLOCK_COLS = 512 };       /* inner indices of a work item: its accumulators are on the stack */

/* An operation along axes. A work item is one outer index with up to BLOCK_COLS inner indices. */
struct lane_job {
    struct sg_npu_run *r;
    const struct sg_mil_op *op;
    const float *x, *gamma, *beta;
    float *out;
    struct lanes l;
    uint64_t columns;            /* work items per outer index */
    uint32_t value;
    enum reduce code;
    float epsilon;
    const struct sg_npu_tables *inverse; /* softmax: multiply by the table's 1 / sum; NULL: divide */
};

/* Neutral element of a reduction. */
static float neutral_of(enum reduce code) { return code == R_MAX ? -INFINITY : code == R_MIN ? INFINITY : 0; }

/* acc[i] = op(acc[i], x[i]) for n independent results. A NaN in x or acc stays in max and min. */
static void reduce_row(enum reduce code, float *acc, const float *x, uint64_t n)
{
    switch (code) {
    case R_MAX:
        for (uint64_t i = 0; i < n; i++) acc[i] = x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i];
        break;
    case R_MIN:
        for (uint64_t i = 0; i < n; i++) acc[i] = x[i] < acc[i] || x[i] != x[i] ? x[i] : acc[i];
        break;
    case R_L1:
        for (uint64_t i = 0; i < n; i++) acc[i] += fabsf(x[i]);
        break;
    case R_L2:
    case R_SUM_SQUARE:
        for (uint64_t i = 0; i < n; i++) acc[i] += x[i] * x[i];
        break;
    default:
        for (uint64_t i = 0; i < n; i++) acc[i] += x[i];
    }
}

/* Reduces a contiguous row with 16 partial results, which the compiler vectorizes: element i belongs to
 * partial result i % 16; the last n % 16 elements belong to the first. */
static float fold(enum reduce code, const float *x, uint64_t n)
{
    float part[16], all = neutral_of(code);
    uint64_t a = 0;
    for (int i = 0; i < 16; i++) part[i] = all;
    if (code == R_SUM)
        for (; a + 16 <= n; a += 16)
            for (int i = 0; i < 16; i++) part[i] += x[a + (uint64_t)i];
    else
        for (; a + 16 <= n; a += 16) reduce_row(code, part, x + a, 16);
    for (; a < n; a++) reduce_row(code, part, x + a, 1);
    /* Partial results of the other kinds are sums already: of magnitudes, squares or values. */
    for (int i = 0; i < 16; i++) reduce_row(code == R_MAX || code == R_MIN ? code : R_SUM, &all, part + i, 1);
    return all;
}

/* Up to BLOCK_COLS inner indices of one outer index. Log-sum-exp subtracts the maximum before exp. */
static void reduce_part(void *arg, uint32_t item, uint32_t thread)
{
    struct lane_job *j = arg;
    uint64_t o = item / j->columns, from = item % j->columns * BLOCK_COLS,
             n = j->l.inner - from < BLOCK_COLS ? j->l.inner - from : BLOCK_COLS;
    const float *x = j->x + o * j->l.along * j->l.inner + from;
    float acc[BLOCK_COLS], max[BLOCK_COLS];
    (void)thread;
    for (uint64_t i = 0; i < n; i++) {
        acc[i] = neutral_of(j->code);
        max[i] = -INFINITY;
    }
    if (j->code == R_LOG_SUM_EXP) {
        for (uint64_t a = 0; a < j->l.along; a++) reduce_row(R_MAX, max, x + a * j->l.inner, n);
        for (uint64_t a = 0; a < j->l.along; a++)
            for (uint64_t i = 0; i < n; i++) acc[i] += expf(x[a * j->l.inner + i] - max[i]);
    } else if (j->l.inner == 1) {
        acc[0] = fold(j->code, x, j->l.along);
    } else
        for (uint64_t a = 0; a < j->l.along; a++) reduce_row(j->code, acc, x + a * j->l.inner, n);
    /* The last step of kinds that are not a plain sum or extremum. */
    for (uint64_t i = 0; i < n; i++) {
        if (j->code == R_MEAN) acc[i] /= (float)j->l.along;
        if (j->code == R_L2) acc[i] = sqrtf(acc[i]);
        if (j->code == R_LOG_SUM) acc[i] = logf(acc[i]);
        if (j->code == R_LOG_SUM_EXP) acc[i] = logf(acc[i]) + max[i];
    }
    float *out = j->out + o * j->l.inner + from;
    memcpy(out, acc, n * sizeof *out);
    sg_npu_round_result(j->r, j->value, out, (size_t)n);
}

/* The job of an operation on value x, without its view. */
static struct lane_job lane_job(struct sg_npu_run *r, const struct sg_mil_op *op, uint32_t x)
{
    return (struct lane_job){.r = r,
                             .op = op,
                             .x = sg_npu_data(r, x),
                             .out = sg_npu_data(r, op->first),
                             .value = op->first,
                             .code = R_NONE};
}

/* Calls part for all outer indices and blocks of inner indices. */
static void run_columns(struct lane_job *j, void (*part)(void *, uint32_t, uint32_t))
{
    j->columns = (j->l.inner + BLOCK_COLS - 1) / BLOCK_COLS;
    sg_npu_parallel(j->r, j->l.outer * j->columns, part, j);
}

/* Axes that are not adjacent are moved to the end by a copy first. The result has the same order of
 * elements either way. */
segue_status sg_npu_reduce(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    struct lane_job j = lane_job(r, op, x);
    uint32_t axes = sg_mil_const_axes(r->plan->f, op, sg_npu_type(r, x)->rank);
    for (int i = 0; i < R_NONE; i++)
        if (!strcmp(reduce_names[i], op->kind)) j.code = (enum reduce)i;
    if (!lanes_of(sg_npu_type(r, x), axes, &j.l) && !(j.x = move_axes_last(r, x, axes, &j.l)))
        return sg_no_memory("a reduction", (size_t)r->plan->slots[x].n * 4, r->err);
    run_columns(&j, reduce_part);
    return SEGUE_OK;
}

/* --- along one axis --- */

/* The argument `axis` as a bit mask; default: the last axis. */
static uint32_t axis_bit(struct sg_npu_run *r, const struct sg_mil_op *op, uint32_t rank)
{
    int64_t axis = sg_mil_const_int(r->plan->f, op, "axis", -1);
    return 1u << (axis < 0 ? axis + rank : axis);
}

/* reduce_argmax, reduce_argmin: the index of the first maximum or minimum. */
segue_status sg_npu_arg(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    struct lane_job j = lane_job(r, op, x);
    int is_min = !strcmp(op->kind, "reduce_argmin");
    lanes_of(sg_npu_type(r, x), axis_bit(r, op, sg_npu_type(r, x)->rank), &j.l);
    for (uint64_t o = 0; o < j.l.outer * j.l.inner; o++) {
        const float *p = j.x + o / j.l.inner * j.l.along * j.l.inner + o % j.l.inner;
        uint64_t best = 0;
        for (uint64_t a = 1; a < j.l.along; a++)
            if (is_min ? p[a * j.l.inner] < p[best * j.l.inner] : p[a * j.l.inner] > p[best * j.l.inner])
                best = a;
        j.out[o] = (float)best;
    }
    return SEGUE_OK;
}

/* Softmax in fp32, with the maximum subtracted. With inner > 1 a block of inner indices is computed at
 * a time, so that memory is read contiguously. Only the result is rounded. */
static void softmax_part(void *arg, uint32_t item, uint32_t thread)
{
    struct lane_job *j = arg;
    const struct sg_npu_tables *by = j->inverse;
    uint64_t o = item / j->columns, from = item % j->columns * BLOCK_COLS,
             n = j->l.inner - from < BLOCK_COLS ? j->l.inner - from : BLOCK_COLS;
    const float *x = j->x + o * j->l.along * j->l.inner + from;
    float *out = j->out + o * j->l.along * j->l.inner + from;
    (void)thread;
    if (j->l.inner == 1) {
        float max = fold(R_MAX, x, j->l.along);
        for (uint64_t a = 0; a < j->l.along; a++) out[a] = x[a] - max;
        sg_npu_exp(j->r, out, out, (size_t)j->l.along);
        float sum = fold(R_SUM, out, j->l.along);
        for (uint64_t a = 0; a < j->l.along; a++)
            out[a] = by ? out[a] * sg_npu_table_value(by, SG_NPU_INVERSE, sum) : out[a] / sum;
        sg_npu_round_result(j->r, j->value, out, (size_t)j->l.along);
        return;
    }
    /* Three passes over the axis: maximum, exponentials with their sum, division. */
    float max[BLOCK_COLS], sum[BLOCK_COLS];
    for (uint64_t i = 0; i < n; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    for (uint64_t a = 0; a < j->l.along; a++) reduce_row(R_MAX, max, x + a * j->l.inner, n);
    for (uint64_t a = 0; a < j->l.along; a++) {
        float *row = out + a * j->l.inner;
        for (uint64_t i = 0; i < n; i++) row[i] = x[a * j->l.inner + i] - max[i];
        sg_npu_exp(j->r, row, row, (size_t)n);
        reduce_row(R_SUM, sum, row, n);
    }
    if (by) sg_npu_table_row(by, SG_NPU_INVERSE, sum, sum, (size_t)n);
    for (uint64_t a = 0; a < j->l.along; a++) {
        float *row = out + a * j->l.inner;
        for (uint64_t i = 0; i < n; i++) row[i] = by ? row[i] * sum[i] : row[i] / sum[i];
        sg_npu_round_result(j->r, j->value, row, (size_t)n);
    }
}

segue_status sg_npu_softmax(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    struct lane_job j = lane_job(r, op, x);
    const struct sg_mil_type *t = sg_npu_type(r, x);
    uint32_t axis = axis_bit(r, op, t->rank);
    lanes_of(t, axis, &j.l);
    /* Engines multiply by the inverse where the axis is C or H, and divide elsewhere. */
    if (t->rank == 4 && (axis == 2 || axis == 4)) j.inverse = r->tables;
    run_columns(&j, softmax_part);
    return SEGUE_OK;
}

/* --- norms --- */

/* Normalizes n values with a stride of `step`: to mean 0 and variance 1, or (l2) to length 1. The sums
 * are double. */
static void norm_lane(struct lane_job *j, const float *x, float *out, uint64_t step, uint64_t n, int l2)
{
    /* Two passes, mean first: the difference of large sums of squares would lose digits. */
    double mean = 0, square = 0;
    for (uint64_t a = 0; a < n && !l2; a++) mean += x[a * step];
    mean /= (double)n;
    if (l2) mean = 0;
    for (uint64_t a = 0; a < n; a++) square += (x[a * step] - mean) * (x[a * step] - mean);
    float scale = (float)(1 / sqrt((l2 ? square : square / (double)n) + (double)j->epsilon));
    for (uint64_t a = 0; a < n; a++) out[a * step] = (x[a * step] - (float)mean) * scale;
}

/* gamma and beta have one element per index along the axes. */
static void layer_norm_part(void *arg, uint32_t item, uint32_t thread)
{
    struct lane_job *j = arg;
    uint64_t o = item / j->columns, from = item % j->columns * BLOCK_COLS,
             n = j->l.inner - from < BLOCK_COLS ? j->l.inner - from : BLOCK_COLS;
    uint64_t at = o * j->l.along * j->l.inner + from;
    (void)thread;
    for (uint64_t i = 0; i < n; i++) {
        float *out = j->out + at + i;
        norm_lane(j, j->x + at + i, out, j->l.inner, j->l.along, 0);
        for (uint64_t a = 0; a < j->l.along; a++) {
            float *v = out + a * j->l.inner;
            *v = *v * (j->gamma ? j->gamma[a] : 1) + (j->beta ? j->beta[a] : 0);
        }
    }
    for (uint64_t a = 0; a < j->l.along; a++)
        sg_npu_round_result(j->r, j->value, j->out + at + a * j->l.inner, (size_t)n);
}

/* gamma, beta and epsilon, of which each may be absent. */
static void norm_arguments(struct lane_job *j, float epsilon)
{
    uint32_t gamma = sg_npu_operand(j->r, j->op, "gamma"), beta = sg_npu_operand(j->r, j->op, "beta");
    const struct sg_mil_literal *e = sg_mil_const_literal(j->r->plan->f, j->op, "epsilon");
    j->gamma = gamma == SG_MIL_NONE ? NULL : sg_npu_data(j->r, gamma);
    j->beta = beta == SG_MIL_NONE ? NULL : sg_npu_data(j->r, beta);
    j->epsilon = e ? (float)sg_mil_literal_real(e, 0) : epsilon;
}

/* Axes that are not adjacent are not supported: gamma and beta would need the same permutation. */
segue_status sg_npu_layer_norm(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    struct lane_job j = lane_job(r, op, x);
    norm_arguments(&j, 1e-5f);
    if (!lanes_of(sg_npu_type(r, x), sg_mil_const_axes(r->plan->f, op, sg_npu_type(r, x)->rank), &j.l))
        return sg_fail(r->err, SEGUE_EUNSUPPORTED,
                       "layer_norm: %s: the axes are not adjacent; transpose first",
                       r->plan->f->values[op->first].name);
    run_columns(&j, layer_norm_part);
    return SEGUE_OK;
}

/* instance_norm normalizes the elements of each channel, l2_norm all elements of a batch index;
 * batch_norm uses given means and variances. x is [N][channels][elements]. */
segue_status sg_npu_channel_norm(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x"), mean = sg_npu_operand(r, op, "mean"),
             variance = sg_npu_operand(r, op, "variance");
    const struct sg_mil_type *t = sg_npu_type(r, x);
    struct lane_job j = lane_job(r, op, x);
    uint64_t channels = (uint64_t)t->dim[1], places = r->plan->slots[x].n / (uint64_t)t->dim[0] / channels;
    int l2 = op->kind[0] == 'l', batch = op->kind[0] == 'b';
    norm_arguments(&j, l2 ? 1e-6f : 1e-5f);
    /* i: one channel of one batch index, or with l2 one batch index. */
    for (uint64_t i = 0; i < (uint64_t)t->dim[0] * (l2 ? 1 : channels); i++) {
        uint64_t n = l2 ? places * channels : places, c = i % channels;
        float *out = j.out + i * n;
        float from = batch ? sg_npu_data(r, mean)[c] : 0,
              scale = batch ? 1 / sqrtf(sg_npu_data(r, variance)[c] + j.epsilon) : 1;
        if (!batch) norm_lane(&j, j.x + i * n, out, 1, n, l2);
        for (uint64_t a = 0; batch && a < n; a++) out[a] = (j.x[i * n + a] - from) * scale;
        for (uint64_t a = 0; a < n && !l2; a++)
            out[a] = out[a] * (j.gamma ? j.gamma[c] : 1) + (j.beta ? j.beta[c] : 0);
        sg_npu_round_result(r, op->first, out, (size_t)n);
    }
    return SEGUE_OK;
}

/* --- sorting --- */

struct indexed_value {
    float v;
    uint32_t at;                 /* index along the axis */
};

/* Orders for qsort. Equal numbers keep their order. */

static int descending(const void *a, const void *b)
{
    const struct indexed_value *x = a, *y = b;
    if (x->v != y->v) return x->v < y->v ? 1 : -1;
    return (x->at > y->at) - (x->at < y->at);
}

static int ascending(const void *a, const void *b)
{
    const struct indexed_value *x = a, *y = b;
    if (x->v != y->v) return x->v > y->v ? 1 : -1;
    return (x->at > y->at) - (x->at < y->at);
}

/* topk: the k largest (or smallest) values and their indices; argsort: the indices of all. */
segue_status sg_npu_sorted(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    int top = !strcmp(op->kind, "topk"), up = sg_mil_const_int(r->plan->f, op, "ascending", 0) != 0;
    struct lane_job j = lane_job(r, op, x);
    lanes_of(sg_npu_type(r, x), axis_bit(r, op, sg_npu_type(r, x)->rank), &j.l);
    uint64_t k = top ? (uint64_t)sg_mil_const_int(r->plan->f, op, "k", 1) : j.l.along;
    float *indices = !top ? j.out : op->outputs > 1 ? sg_npu_data(r, op->first + 1) : NULL;
    struct indexed_value *list = sg_alloc((size_t)j.l.along * sizeof *list);
    if (!list) return sg_no_memory("a sort", (size_t)j.l.along * sizeof *list, r->err);
    for (uint64_t o = 0; o < j.l.outer * j.l.inner; o++) {
        const float *p = j.x + o / j.l.inner * j.l.along * j.l.inner + o % j.l.inner;
        for (uint64_t a = 0; a < j.l.along; a++) list[a] = (struct indexed_value){p[a * j.l.inner], (uint32_t)a};
        qsort(list, (size_t)j.l.along, sizeof *list, up ? ascending : descending);
        uint64_t to = o / j.l.inner * k * j.l.inner + o % j.l.inner;
        for (uint64_t a = 0; a < k; a++) {
            if (top) j.out[to + a * j.l.inner] = list[a].v;
            if (indices) indices[to + a * j.l.inner] = (float)list[a].at;
        }
    }
    sg_free(list);
    return SEGUE_OK;
}
