/* npu_move.c: handlers of operations that move elements without a change: slices, concatenation,
 * transposition, padding, gather. Nearly all of them are one or more strided copies. Nothing is
 * rounded: operands have the type of the result. See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/ane/mil/milinfer.h"
#include "unit/ane/npu/npu_plan.h"

void sg_npu_strides(const struct sg_mil_type *t, int64_t stride[SG_MIL_DIMS])
{
    int64_t step = 1;
    for (uint32_t i = t->rank; i-- > 0; step *= t->dim[i]) stride[i] = step;
}

/* --- strided copies --- */

/* rows: product of all dimensions but the last; rows_each: of a work item. */
struct copy_job {
    const struct sg_npu_copy *c;
    float *out;
    const float *in;
    uint64_t rows, rows_each;
};

/* One work item. The last dimension is the row; a row that is contiguous on both sides is one memcpy. */
static void copy_part(void *arg, uint32_t item, uint32_t thread)
{
    struct copy_job *j = arg;
    const struct sg_npu_copy *c = j->c;
    uint32_t last = c->ndim - 1;
    uint64_t to = ((uint64_t)item + 1) * j->rows_each;
    (void)thread;
    for (uint64_t row = (uint64_t)item * j->rows_each; row < to && row < j->rows; row++) {
        float *out = j->out;
        const float *in = j->in;
        uint64_t rest = row;
        for (uint32_t d = last; d-- > 0; rest /= (uint64_t)c->dim[d]) {
            int64_t index = (int64_t)(rest % (uint64_t)c->dim[d]);
            out += index * c->to[d];
            in += index * c->from[d];
        }
        if (c->to[last] == 1 && c->from[last] == 1)
            memcpy(out, in, (size_t)c->dim[last] * sizeof *out);
        else
            for (int64_t i = 0; i < c->dim[last]; i++) out[i * c->to[last]] = in[i * c->from[last]];
    }
}

/* Adjacent dimensions that are contiguous on both sides are merged first, so that rows are long. A work
 * item moves about 8192 elements. */
void sg_npu_copy(struct sg_npu_run *r, const struct sg_npu_copy *given, float *out, const float *in)
{
    struct sg_npu_copy c = *given;
    if (!c.ndim) c = (struct sg_npu_copy){1, {1}, {1}, {1}};
    /* From the last pair of dimensions to the first, so that a merged dimension can be merged again. */
    for (uint32_t i = c.ndim; i-- > 1;) {
        if (c.to[i - 1] != c.to[i] * c.dim[i] || c.from[i - 1] != c.from[i] * c.dim[i]) continue;
        c.dim[i - 1] *= c.dim[i];
        c.to[i - 1] = c.to[i];
        c.from[i - 1] = c.from[i];
        for (uint32_t k = i; k + 1 < c.ndim; k++) {
            c.dim[k] = c.dim[k + 1];
            c.to[k] = c.to[k + 1];
            c.from[k] = c.from[k + 1];
        }
        c.ndim--;
    }
    /* A row of 8192 elements or more is an item; shorter rows are grouped. */
    struct copy_job j = {&c, out, in, 1, 1};
    for (uint32_t i = 0; i + 1 < c.ndim; i++) j.rows *= (uint64_t)c.dim[i];
    j.rows_each = c.dim[c.ndim - 1] >= 8192 ? 1 : 8192 / (uint64_t)c.dim[c.ndim - 1];
    sg_npu_parallel(r, (j.rows + j.rows_each - 1) / j.rows_each, copy_part, &j);
}

/* The copy of a dense array of type t to a dense array. Callers replace the strides of one side. */
static struct sg_npu_copy dense_copy(const struct sg_mil_type *t)
{
    struct sg_npu_copy c = {.ndim = t->rank};
    for (uint32_t i = 0; i < t->rank; i++) c.dim[i] = t->dim[i];
    sg_npu_strides(t, c.to);
    sg_npu_strides(t, c.from);
    return c;
}

/* --- operations --- */

/* Reshape and similar operations. The result usually shares the memory of its operand (root); a
 * constant operand is copied. */
segue_status sg_npu_view(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    if (x == SG_MIL_NONE) x = sg_npu_operand(r, op, "input");
    if (r->plan->slots[op->first].root != op->first) return SEGUE_OK;
    memcpy(sg_npu_data(r, op->first), sg_npu_data(r, x), (size_t)r->plan->slots[x].n * sizeof(float));
    return SEGUE_OK;
}

/* Reads x with permuted strides. Negative axes count from the end. */
segue_status sg_npu_transpose(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x"), n;
    int64_t perm[2 * SG_MIL_DIMS], stride[SG_MIL_DIMS];
    struct sg_npu_copy c = dense_copy(sg_npu_type(r, op->first));
    sg_mil_const_ints(r->plan->f, op, "perm", perm, &n);
    sg_npu_strides(sg_npu_type(r, x), stride);
    for (uint32_t i = 0; i < c.ndim; i++) c.from[i] = stride[perm[i] < 0 ? perm[i] + c.ndim : perm[i]];
    sg_npu_copy(r, &c, sg_npu_data(r, op->first), sg_npu_data(r, x));
    return SEGUE_OK;
}

/* Constraint 29: on M1 and M2, values beyond +-slice_limit (4094) become infinite in a slice of the
 * last axis that does not begin at 0. */
static void limit_slice(struct sg_npu_run *r, float *p, uint64_t n)
{
    float limit = (float)r->profile->slice_limit;
    for (uint64_t i = 0; i < n; i++)
        if (fabsf(p[i]) > limit) {
            p[i] = copysignf(INFINITY, p[i]);
            atomic_fetch_or_explicit(&r->flags, SG_NPU_SLICE_LIMIT, memory_order_relaxed);
        }
}

/* The copy that reads a slice of x to a dense array. *offset: index of its first element in x. *moved
 * 1: it does not begin at 0 on the last axis (constraint 29). The dimensions are those before axes are
 * squeezed, which does not change the elements. */
static struct sg_npu_copy slice_copy(struct sg_npu_run *r, const struct sg_mil_op *op,
                                 const struct sg_mil_type *x, int64_t *offset, int *moved)
{
    int64_t begin[2 * SG_MIL_DIMS] = {0}, count[SG_MIL_DIMS], step[SG_MIL_DIMS], stride[SG_MIL_DIMS];
    uint32_t squeezed, n;
    struct sg_npu_copy c = {.ndim = x->rank};
    if (!strcmp(op->kind, "slice_by_size")) {
        sg_mil_const_ints(r->plan->f, op, "begin", begin, &n);
        for (uint32_t i = 0; i < x->rank; i++) {
            count[i] = sg_npu_type(r, op->first)->dim[i];
            step[i] = 1;
        }
    } else
        sg_mil_slice(r->plan->f, op, x, begin, count, step, &squeezed);
    sg_npu_strides(x, stride);
    *offset = 0;
    for (uint32_t i = 0; i < x->rank; i++) {
        c.dim[i] = count[i];
        c.from[i] = stride[i] * step[i];
        *offset += begin[i] * stride[i];
    }
    *moved = x->rank && begin[x->rank - 1] != 0;
    int64_t packed = 1;
    for (uint32_t i = x->rank; i-- > 0; packed *= count[i]) c.to[i] = packed;
    return c;
}

/* slice_by_size and slice_by_index. */
segue_status sg_npu_slice(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    int64_t offset;
    int moved;
    struct sg_npu_copy c = slice_copy(r, op, sg_npu_type(r, x), &offset, &moved);
    float *out = sg_npu_data(r, op->first);
    sg_npu_copy(r, &c, out, sg_npu_data(r, x) + offset);
    if (moved && r->profile->slice_limit) limit_slice(r, out, r->plan->slots[op->first].n);
    return SEGUE_OK;
}

/* Copies x, then writes `update` into the slice: the copy of a slice with the strides of both sides
 * exchanged. */
segue_status sg_npu_slice_update(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x"), update = sg_npu_operand(r, op, "update");
    int64_t offset;
    int moved;
    struct sg_npu_copy c = slice_copy(r, op, sg_npu_type(r, x), &offset, &moved);
    float *out = sg_npu_data(r, op->first);
    memcpy(out, sg_npu_data(r, x), (size_t)r->plan->slots[x].n * sizeof *out);
    for (uint32_t i = 0; i < c.ndim; i++) {
        int64_t in = c.to[i];
        c.to[i] = c.from[i];
        c.from[i] = in;
    }
    sg_npu_copy(r, &c, out + offset, sg_npu_data(r, update));
    return SEGUE_OK;
}

/* The argument `axis` as an index from 0. */
static uint32_t axis_of(struct sg_npu_run *r, const struct sg_mil_op *op, int64_t otherwise, uint32_t rank)
{
    int64_t axis = sg_mil_const_int(r->plan->f, op, "axis", otherwise);
    return (uint32_t)(axis < 0 ? axis + rank : axis);
}

/* concat and stack: the operands one after the other along the axis. With interleave, which requires
 * operands of equal size, their indices alternate: index i of operand k becomes i * n + k. A stacked
 * operand has a new axis of size 1. */
static segue_status join(struct sg_npu_run *r, const struct sg_mil_op *op, int stacked)
{
    const struct sg_mil_type *t = sg_npu_type(r, op->first);
    const struct sg_mil_arg *a = sg_mil_arg_find(op, "values");
    uint32_t axis = axis_of(r, op, 0, t->rank), n = a->kind == SG_MIL_LIST ? a->n : 1;
    int interleave = !stacked && sg_mil_const_int(r->plan->f, op, "interleave", 0) != 0;
    int64_t stride[SG_MIL_DIMS], at = 0;
    sg_npu_strides(t, stride);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v = a->kind == SG_MIL_LIST ? a->v.refs[i] : a->v.ref;
        struct sg_mil_type in = *t;
        in.dim[axis] = stacked ? 1 : sg_npu_type(r, v)->dim[axis];
        struct sg_npu_copy c = dense_copy(&in);
        memcpy(c.to, stride, sizeof stride);
        if (interleave) c.to[axis] *= n;
        sg_npu_copy(r, &c, sg_npu_data(r, op->first) + at * stride[axis], sg_npu_data(r, v));
        at += interleave ? 1 : in.dim[axis];
    }
    return SEGUE_OK;
}

segue_status sg_npu_concat(struct sg_npu_run *r, const struct sg_mil_op *op) { return join(r, op, 0); }
segue_status sg_npu_stack(struct sg_npu_run *r, const struct sg_mil_op *op) { return join(r, op, 1); }

/* Each result is a slice of x along the axis. On the last axis constraint 29 applies to all but the
 * first. */
segue_status sg_npu_split(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    const struct sg_mil_type *t = sg_npu_type(r, x);
    uint32_t axis = axis_of(r, op, 0, t->rank);
    int64_t stride[SG_MIL_DIMS], at = 0;
    sg_npu_strides(t, stride);
    for (uint32_t i = 0; i < op->outputs; i++) {
        struct sg_npu_copy c = dense_copy(sg_npu_type(r, op->first + i));
        memcpy(c.from, stride, sizeof stride);
        float *out = sg_npu_data(r, op->first + i);
        sg_npu_copy(r, &c, out, sg_npu_data(r, x) + at * stride[axis]);
        if (i && axis + 1 == t->rank && r->profile->slice_limit)
            limit_slice(r, out, r->plan->slots[op->first + i].n);
        at += c.dim[axis];
    }
    return SEGUE_OK;
}

/* One copy of x for each repetition. k enumerates the repetitions, the last axis fastest. */
segue_status sg_npu_tile(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x"), n;
    const struct sg_mil_type *t = sg_npu_type(r, x);
    int64_t reps[2 * SG_MIL_DIMS], in[SG_MIL_DIMS], out[SG_MIL_DIMS];
    float *to = sg_npu_data(r, op->first);
    sg_mil_const_ints(r->plan->f, op, "reps", reps, &n);
    sg_npu_strides(t, in);
    sg_npu_strides(sg_npu_type(r, op->first), out);
    uint64_t times = 1;
    for (uint32_t i = 0; i < t->rank; i++) times *= (uint64_t)reps[i];
    for (uint64_t k = 0; k < times; k++) {
        struct sg_npu_copy c = dense_copy(t);
        uint64_t rest = k;
        int64_t at = 0;
        for (uint32_t i = t->rank; i-- > 0; rest /= (uint64_t)reps[i])
            at += (int64_t)(rest % (uint64_t)reps[i]) * t->dim[i] * out[i];
        memcpy(c.to, out, sizeof out);
        sg_npu_copy(r, &c, to + at, sg_npu_data(r, x));
    }
    return SEGUE_OK;
}

/* Finds the source index of each element of the result. mode "constant" fills, "reflect" mirrors
 * without repeating the edge, "replicate" repeats the edge; the letters tested are c and the f of
 * reflect. pad: (before, after) of the last n / 2 dimensions. */
segue_status sg_npu_pad(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x"), n;
    const struct sg_mil_type *t = sg_npu_type(r, x), *to = sg_npu_type(r, op->first);
    const char *mode = sg_mil_const_text(r->plan->f, op, "mode");
    const struct sg_mil_literal *constant = sg_mil_const_literal(r->plan->f, op, "constant_val");
    float fill = constant ? (float)sg_mil_literal_real(constant, 0) : 0, *out = sg_npu_data(r, op->first);
    const float *in = sg_npu_data(r, x);
    int64_t pad[2 * SG_MIL_DIMS], stride[SG_MIL_DIMS];
    sg_mil_const_ints(r->plan->f, op, "pad", pad, &n);
    sg_npu_strides(t, stride);
    for (uint64_t i = 0; i < r->plan->slots[op->first].n; i++) {
        uint64_t rest = i;
        int64_t from = 0;
        int inside = 1;
        for (uint32_t d = t->rank; d-- > 0; rest /= (uint64_t)to->dim[d]) {
            int64_t index = (int64_t)(rest % (uint64_t)to->dim[d]), dim = t->dim[d];
            if (d + n / 2 >= t->rank) index -= pad[2 * (d + n / 2 - t->rank)];
            /* In the padding: the index is reflected or limited to the edge, or the element is filled. */
            if (index < 0 || index >= dim) {
                if (!mode || mode[0] == 'c') inside = 0;
                index = mode && mode[2] == 'f' ? (index < 0 ? -index : 2 * (dim - 1) - index)
                        : index < 0            ? 0
                                               : dim - 1;
            }
            from += index * stride[d];
        }
        out[i] = inside ? in[from] : fill;
    }
    return SEGUE_OK;
}

/* Reads x from the last index of each reversed axis with a negative stride. */
segue_status sg_npu_reverse(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    const struct sg_mil_type *t = sg_npu_type(r, x);
    uint32_t axes = sg_mil_const_axes(r->plan->f, op, t->rank);
    struct sg_npu_copy c = dense_copy(t);
    int64_t at = 0;
    for (uint32_t i = 0; i < t->rank; i++)
        if (axes >> i & 1) {
            at += (c.dim[i] - 1) * c.from[i];
            c.from[i] = -c.from[i];
        }
    sg_npu_copy(r, &c, sg_npu_data(r, op->first), sg_npu_data(r, x) + at);
    return SEGUE_OK;
}

/* depth_to_space reads x as [N, b, b, C', H, W] and writes [N, C', H, b, W, b]. pixel_shuffle reads [N,
 * C', b, b, H, W]. space_to_depth is the inverse of depth_to_space. The copy has the dimensions N, C',
 * H, b, W, b; the arrays below are the strides of the spread and of the deep side. */
segue_status sg_npu_blocks(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    int down = !strcmp(op->kind, "space_to_depth"), shuffle = op->kind[0] == 'p';
    const struct sg_mil_type *deep = sg_npu_type(r, down ? op->first : x);
    int64_t b = sg_mil_const_int(r->plan->f, op, shuffle ? "upscale_factor" : "block_size", 1);
    int64_t h = deep->dim[2], w = deep->dim[3], channels = deep->dim[1] / (b * b), plane = h * w;
    struct sg_npu_copy c = {.ndim = 6, .dim = {deep->dim[0], channels, h, b, w, b}};
    /* Strides of N, C', H, b, W, b: in the spread array, and in the deep one in the two orders of its
     * channels. */
    int64_t wide[6] = {deep->dim[1] * plane, plane * b * b, w * b * b, w * b, b, 1};
    int64_t by_block[6] = {deep->dim[1] * plane, plane, w, b * channels * plane, 1, channels * plane};
    int64_t by_channel[6] = {deep->dim[1] * plane, b * b * plane, w, b * plane, 1, plane};
    const int64_t *thin = shuffle ? by_channel : by_block;
    memcpy(c.to, down ? thin : wide, sizeof wide);
    memcpy(c.from, down ? wide : thin, sizeof wide);
    sg_npu_copy(r, &c, sg_npu_data(r, op->first), sg_npu_data(r, x));
    return SEGUE_OK;
}

/* Copies slices of x along one axis, x as [outer][axis][inner], in the order of `indices`. Negative
 * indices count from the end. EUNSUPPORTED: an index is out of range. */
segue_status sg_npu_gather(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x"), at = sg_npu_operand(r, op, "indices");
    const struct sg_mil_type *t = sg_npu_type(r, x);
    uint32_t axis = axis_of(r, op, 0, t->rank);
    uint64_t outer = 1, inner = 1, n = r->plan->slots[at].n, places = (uint64_t)t->dim[axis];
    for (uint32_t i = 0; i < axis; i++) outer *= (uint64_t)t->dim[i];
    for (uint32_t i = axis + 1; i < t->rank; i++) inner *= (uint64_t)t->dim[i];
    const float *in = sg_npu_data(r, x), *index = sg_npu_data(r, at);
    float *out = sg_npu_data(r, op->first);
    for (uint64_t o = 0; o < outer; o++)
        for (uint64_t i = 0; i < n; i++, out += inner) {
            float v = index[i] < 0 ? index[i] + (float)places : index[i];
            if (!(v >= 0 && v < (float)places))
                return sg_fail(r->err, SEGUE_EUNSUPPORTED,
                               "gather: %s: index %g is outside of an axis of %llu; use indices within it",
                               r->plan->f->values[op->first].name, (double)index[i],
                               (unsigned long long)places);
            memcpy(out, in + (o * places + (uint64_t)v) * inner, (size_t)inner * sizeof *out);
        }
    return SEGUE_OK;
}
