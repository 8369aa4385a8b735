/* milarith.c: type rules of operations that compute, and of const; see miltypes.h. Shapes follow Core ML's
 * definition of each operation.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/miltypes.h"

#include <string.h>

/* The type of a const is that of its literal. */
segue_status sg_mil_infer_const(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_literal *val = sg_mil_attr_find(w->op, "val");
    if (!val) return SG_MIL_TYPE_ERROR("a const needs the attribute val");
    w->out[0] = val->type;
    return SEGUE_OK;
}

/* Operations whose result has the type of x: elementwise functions, softmax, reverse and the norms. The
 * parameter vectors of a norm are checked against the axes that it normalizes: the given axes for
 * layer_norm, the channels (axis 1) for the others. */
segue_status sg_mil_infer_same(struct sg_mil_infer_ctx *w)
{
    const char *kind = w->op->kind;
    w->out[0] = *w->x;
    if (!strcmp(kind, "softmax"))
        return sg_mil_infer_axis(w, "axis", -1, w->x->rank) == SG_MIL_DIMS ? SEGUE_EFORMAT : SEGUE_OK;
    if (!strcmp(kind, "layer_norm") || !strcmp(kind, "reverse")) {
        uint32_t axes = sg_mil_const_axes(w->f, w->op, w->x->rank);
        uint64_t n = 1; /* elements that layer_norm normalizes together */
        if (!axes) return SG_MIL_TYPE_ERROR("axes are outside the rank of %u", w->x->rank);
        for (uint32_t i = 0; i < w->x->rank; i++)
            if (axes >> i & 1) n *= (uint64_t)w->x->dim[i];
        if (kind[0] == 'r') return SEGUE_OK; /* reverse has no parameter vectors */
        SG_TRY(sg_mil_infer_vector(w, "gamma", n));
        return sg_mil_infer_vector(w, "beta", n);
    }
    const char *mode = sg_mil_const_text(w->f, w->op, "mode");
    if (!strcmp(kind, "gelu") && mode && strcmp(mode, "EXACT") != 0 && strcmp(mode, "TANH_APPROXIMATION") != 0 &&
        strcmp(mode, "SIGMOID_APPROXIMATION") != 0)
        return SG_MIL_TYPE_ERROR("mode must be EXACT, TANH_APPROXIMATION or SIGMOID_APPROXIMATION");
    /* instance_norm, batch_norm, l2_norm: parameters per channel. */
    if (strstr(kind, "_norm")) {
        if (w->x->rank < 3) return SG_MIL_TYPE_ERROR("%s reads [N, C, ...]", kind);
        static const char *const names[] = {"gamma", "beta", "mean", "variance"};
        for (int i = 0; i < 4; i++) SG_TRY(sg_mil_infer_vector(w, names[i], (uint64_t)w->x->dim[1]));
    }
    return SEGUE_OK;
}

/* NumPy broadcasting: shapes are aligned at the last axis, missing leading axes count as 1, and each pair
 * of sizes must be equal or contain a 1. Both element types must be equal, because MIL has no implicit
 * conversion. */
static segue_status broadcast(struct sg_mil_infer_ctx *w, const struct sg_mil_type *a, const struct sg_mil_type *b,
                              struct sg_mil_type *out)
{
    char ta[96], tb[96];
    uint32_t rank = a->rank > b->rank ? a->rank : b->rank;
    struct sg_mil_type t = {.dtype = a->dtype, .rank = (uint8_t)rank};
    for (uint32_t i = 0; i < rank; i++) {
        /* Sizes of axis i of the result in a and b; missing leading axes count as 1. */
        int32_t p = i + a->rank >= rank ? a->dim[i + a->rank - rank] : 1,
                q = i + b->rank >= rank ? b->dim[i + b->rank - rank] : 1;
        if (p != q && p != 1 && q != 1)
            return SG_MIL_TYPE_ERROR("shapes %s and %s do not broadcast", sg_mil_type_text(a, ta),
                                     sg_mil_type_text(b, tb));
        t.dim[i] = p == 1 ? q : p;
    }
    if (a->dtype != b->dtype)
        return SG_MIL_TYPE_ERROR("data types differ: %s and %s; cast one of them", sg_mil_type_text(a, ta),
                                 sg_mil_type_text(b, tb));
    *out = t;
    return SEGUE_OK;
}

segue_status sg_mil_infer_broadcast(struct sg_mil_infer_ctx *w)
{
    return broadcast(w, w->x, sg_mil_infer_arg_type(w, "y"), w->out);
}

/* As arithmetic, but the result is bool. */
segue_status sg_mil_infer_compare(struct sg_mil_infer_ctx *w)
{
    SG_TRY(broadcast(w, w->x, sg_mil_infer_arg_type(w, "y"), w->out));
    w->out[0].dtype = SG_MIL_BOOL;
    return SEGUE_OK;
}

/* The three operands broadcast together. cond takes the data type of a and b first, so that broadcast
 * accepts the pair. */
segue_status sg_mil_infer_select(struct sg_mil_infer_ctx *w)
{
    struct sg_mil_type cond = *sg_mil_infer_arg_type(w, "cond"), data;
    if (cond.dtype != SG_MIL_BOOL) return SG_MIL_TYPE_ERROR("cond must be bool");
    SG_TRY(broadcast(w, sg_mil_infer_arg_type(w, "a"), sg_mil_infer_arg_type(w, "b"), &data));
    cond.dtype = data.dtype;
    SG_TRY(broadcast(w, &cond, &data, w->out));
    return SEGUE_OK;
}

/* x [N, C, H, W], weight [O, C / groups, kh, kw] and bias [O] give [N, O, H', W']. */
segue_status sg_mil_infer_conv(struct sg_mil_infer_ctx *w)
{
    struct sg_mil_conv c;
    SG_TRY(sg_mil_conv_geometry(w->f, w->op, &c, w->err));
    const struct sg_mil_type *k = sg_mil_infer_arg_type(w, "weight");
    if (k->dtype != w->x->dtype) return SG_MIL_TYPE_ERROR("weight and x must have one data type");
    SG_TRY(sg_mil_infer_vector(w, "bias", (uint64_t)k->dim[0]));
    int64_t dim[4] = {w->x->dim[0], k->dim[0], c.out[0], c.out[1]};
    w->out[0] = sg_mil_tensor((enum sg_mil_dtype)w->x->dtype, 4, dim);
    return SEGUE_OK;
}

/* [.., m, k] times [.., k, n], each operand optionally transposed; the leading axes broadcast. */
segue_status sg_mil_infer_matmul(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *x = w->x, *y = sg_mil_infer_arg_type(w, "y");
    char tx[96], ty[96];
    if (x->rank < 2 || y->rank < 2)
        return SG_MIL_TYPE_ERROR("matmul reads matrices; both operands need a rank of 2 or more");
    /* A transpose exchanges the last two axes, so the flag is also the distance of k (or n) from the end. */
    int tr_x = sg_mil_const_int(w->f, w->op, "transpose_x", 0) != 0,
        tr_y = sg_mil_const_int(w->f, w->op, "transpose_y", 0) != 0;
    int32_t m = x->dim[x->rank - 1 - !tr_x], k = x->dim[x->rank - 1 - tr_x];
    int32_t k2 = y->dim[y->rank - 1 - !tr_y], n = y->dim[y->rank - 1 - tr_y];
    if (k != k2)
        return SG_MIL_TYPE_ERROR("matmul of %s and %s: inner sizes %d and %d differ", sg_mil_type_text(x, tx),
                                 sg_mil_type_text(y, ty), (int)k, (int)k2);
    /* Batch shapes: everything but the last two axes. */
    struct sg_mil_type bx = *x, by = *y, t;
    bx.rank -= 2;
    by.rank -= 2;
    SG_TRY(broadcast(w, &bx, &by, &t));
    t.dim[t.rank++] = m;
    t.dim[t.rank++] = n;
    w->out[0] = t;
    return SEGUE_OK;
}

/* y = x W^T + b: x [.., I], weight [O, I] and bias [O] give [.., O]. */
segue_status sg_mil_infer_linear(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *k = sg_mil_infer_arg_type(w, "weight");
    if (k->rank != 2 || !w->x->rank || k->dim[1] != w->x->dim[w->x->rank - 1])
        return SG_MIL_TYPE_ERROR("linear reads x [.., I] and weight [O, I]");
    SG_TRY(sg_mil_infer_vector(w, "bias", (uint64_t)k->dim[0]));
    w->out[0] = *w->x;
    w->out[0].dim[w->x->rank - 1] = k->dim[0];
    return SEGUE_OK;
}

/* Two operands, one letter per axis. size[] holds the extent of each letter; a letter in both operands must
 * have the same extent, and each letter of the result must occur in an operand. */
segue_status sg_mil_infer_einsum(struct sg_mil_infer_ctx *w)
{
    struct sg_mil_einsum e;
    const struct sg_mil_type *in[2];
    int32_t size[26] = {0};
    uint32_t n = sg_mil_infer_list(w, "values", in, 2);
    if (n != 2) return n ? SG_MIL_TYPE_ERROR("einsum reads two values") : SEGUE_EFORMAT;
    if (!sg_mil_einsum_parse(w->f, w->op, &e) || strlen(e.in[0]) != in[0]->rank ||
        strlen(e.in[1]) != in[1]->rank)
        return SG_MIL_TYPE_ERROR("the equation must have two operands with one letter per dimension, such as "
                                 "\"bhqd,bhkd->bhqk\"");
    if (in[0]->dtype != in[1]->dtype) return SG_MIL_TYPE_ERROR("einsum needs operands of one data type");
    for (int i = 0; i < 2; i++)
        for (uint32_t d = 0; d < in[i]->rank; d++) {
            int32_t *s = &size[e.in[i][d] - 'a'];
            if (*s && *s != in[i]->dim[d])
                return SG_MIL_TYPE_ERROR("letter %c has the sizes %d and %d", e.in[i][d], (int)*s,
                                         (int)in[i]->dim[d]);
            *s = in[i]->dim[d];
        }
    w->out[0] = (struct sg_mil_type){.dtype = in[0]->dtype};
    for (const char *c = e.out; *c; c++) {
        if (!size[*c - 'a']) return SG_MIL_TYPE_ERROR("letter %c of the result is in no operand", *c);
        w->out[0].dim[w->out[0].rank++] = size[*c - 'a'];
    }
    return SEGUE_OK;
}

/* An empty axis set means that an axis was out of range, except for a scalar x. */
segue_status sg_mil_infer_reduce(struct sg_mil_infer_ctx *w)
{
    uint32_t axes = sg_mil_const_axes(w->f, w->op, w->x->rank);
    if (!axes && w->x->rank) return SG_MIL_TYPE_ERROR("axes are outside the rank of %u", w->x->rank);
    sg_mil_reduced_shape(w->x, axes, sg_mil_const_int(w->f, w->op, "keep_dims", 0) != 0, w->out);
    return SEGUE_OK;
}

/* reduce_argmax and reduce_argmin: one axis, int32 indices. */
segue_status sg_mil_infer_arg(struct sg_mil_infer_ctx *w)
{
    uint32_t axis = sg_mil_infer_axis(w, "axis", -1, w->x->rank);
    if (axis == SG_MIL_DIMS) return SEGUE_EFORMAT;
    sg_mil_reduced_shape(w->x, 1u << axis, sg_mil_const_int(w->f, w->op, "keep_dims", 0) != 0, w->out);
    w->out[0].dtype = SG_MIL_INT32;
    return SEGUE_OK;
}

/* query [.., L, E], key [.., S, E] and value [.., S, F] give [.., L, F]. The leading axes must be equal.
 * The mask is not checked, because engines ignore it (constraint 14). */
segue_status sg_mil_infer_attention(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *q = w->x, *k = sg_mil_infer_arg_type(w, "key"), *v = sg_mil_infer_arg_type(w, "value");
    if (q->rank < 3 || k->rank != q->rank || v->rank != q->rank)
        return SG_MIL_TYPE_ERROR("query, key and value need one rank of 3 or more");
    /* Batch and heads: all axes but the last two. */
    for (uint32_t i = 0; i + 2 < q->rank; i++)
        if (k->dim[i] != q->dim[i] || v->dim[i] != q->dim[i])
            return SG_MIL_TYPE_ERROR("dimension %u differs between query, key and value", i);
    if (k->dim[q->rank - 1] != q->dim[q->rank - 1] || k->dim[q->rank - 2] != v->dim[q->rank - 2])
        return SG_MIL_TYPE_ERROR("query [.., L, E], key [.., S, E], value [.., S, F] are needed");
    w->out[0] = *q;
    w->out[0].dim[q->rank - 1] = v->dim[q->rank - 1];
    return SEGUE_OK;
}

/* Result 0: the values; result 1, if any: their int32 indices. */
segue_status sg_mil_infer_topk(struct sg_mil_infer_ctx *w)
{
    uint32_t axis = sg_mil_infer_axis(w, "axis", -1, w->x->rank);
    if (axis == SG_MIL_DIMS) return SEGUE_EFORMAT;
    int64_t k = sg_mil_const_int(w->f, w->op, "k", 1);
    if (k < 1 || k > w->x->dim[axis]) return SG_MIL_TYPE_ERROR("k of %lld is outside the axis", (long long)k);
    /* Values and indices have the same shape. */
    for (uint32_t i = 0; i < w->op->outputs; i++) {
        w->out[i] = *w->x;
        w->out[i].dim[axis] = (int32_t)k;
    }
    if (w->op->outputs > 1) w->out[1].dtype = SG_MIL_INT32;
    return w->op->outputs <= 2 ? SEGUE_OK : SG_MIL_TYPE_ERROR("topk gives values and indices");
}

/* int32 indices with the shape of x. */
segue_status sg_mil_infer_argsort(struct sg_mil_infer_ctx *w)
{
    if (sg_mil_infer_axis(w, "axis", -1, w->x->rank) == SG_MIL_DIMS) return SEGUE_EFORMAT;
    w->out[0] = *w->x;
    w->out[0].dtype = SG_MIL_INT32;
    return SEGUE_OK;
}
