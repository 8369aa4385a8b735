/* milshape.c: type rules of operations that move or copy elements without computing; see miltypes.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/miltypes.h"

#include <string.h>

/* In shape, 0 copies the size of the same axis of x, and one -1 takes what remains. known is the product of
 * the sizes so far; testing it against all / known keeps the product within the element count. */
segue_status sg_mil_infer_reshape(struct sg_mil_infer_ctx *w)
{
    int64_t shape[2 * SG_MIL_DIMS], known = 1, all = (int64_t)sg_mil_elements(w->x);
    uint32_t n, inferred = SG_MIL_DIMS;
    if (!sg_mil_const_ints(w->f, w->op, "shape", shape, &n) || n > SG_MIL_DIMS)
        return SG_MIL_TYPE_ERROR("shape must have at most %d constants", SG_MIL_DIMS);
    for (uint32_t i = 0; i < n; i++) {
        if (shape[i] == 0 && i < w->x->rank) shape[i] = w->x->dim[i];
        if (shape[i] == -1 && inferred == SG_MIL_DIMS)
            inferred = i;
        else if (shape[i] < 1 || shape[i] > all / known)
            return SG_MIL_TYPE_ERROR("shape has more elements than x, or a dimension of %lld", (long long)shape[i]);
        else
            known *= shape[i];
    }
    /* The -1 takes the remaining factor; the comparison below rejects it when it is not an integer. */
    if (inferred < SG_MIL_DIMS) {
        shape[inferred] = all / known;
        known *= shape[inferred];
    }
    if (known != all)
        return SG_MIL_TYPE_ERROR("x has %lld elements, shape %lld", (long long)all, (long long)known);
    w->out[0] = sg_mil_tensor((enum sg_mil_dtype)w->x->dtype, n, shape);
    return SEGUE_OK;
}

/* Axis i of the result is axis perm[i] of x; perm must be a permutation. */
segue_status sg_mil_infer_transpose(struct sg_mil_infer_ctx *w)
{
    int64_t perm[2 * SG_MIL_DIMS];
    uint32_t n, seen = 0; /* seen: bit set of the axes named so far */
    if (!sg_mil_const_ints(w->f, w->op, "perm", perm, &n) || n != w->x->rank)
        return SG_MIL_TYPE_ERROR("perm must have as many constants as x has dimensions");
    w->out[0] = *w->x;
    for (uint32_t i = 0; i < n; i++) {
        int64_t from = perm[i] < 0 ? perm[i] + n : perm[i];
        if (from < 0 || from >= n || seen >> from & 1)
            return SG_MIL_TYPE_ERROR("perm names a dimension twice or one that x does not have");
        seen |= 1u << from;
        w->out[0].dim[i] = w->x->dim[from];
    }
    return SEGUE_OK;
}

/* The axes count in the result, not in x. */
segue_status sg_mil_infer_expand(struct sg_mil_infer_ctx *w)
{
    int64_t axes[2 * SG_MIL_DIMS];
    uint32_t n, set = 0, from = 0; /* set: bit set of the new axes; from: next axis of x */
    if (!sg_mil_const_ints(w->f, w->op, "axes", axes, &n) || w->x->rank + n > SG_MIL_DIMS)
        return SG_MIL_TYPE_ERROR("axes must be constants, the rank at most %d", SG_MIL_DIMS);
    struct sg_mil_type t = {.dtype = w->x->dtype, .rank = (uint8_t)(w->x->rank + n)};
    for (uint32_t i = 0; i < n; i++) {
        int64_t axis = axes[i] < 0 ? axes[i] + t.rank : axes[i];
        if (axis < 0 || axis >= t.rank || set >> axis & 1)
            return SG_MIL_TYPE_ERROR("an axis is given twice or outside the rank of %u", t.rank);
        set |= 1u << axis;
    }
    for (uint32_t i = 0; i < t.rank; i++) t.dim[i] = set >> i & 1 ? 1 : w->x->dim[from++];
    w->out[0] = t;
    return SEGUE_OK;
}

/* Without axes, all dimensions of 1 are removed. */
segue_status sg_mil_infer_squeeze(struct sg_mil_infer_ctx *w)
{
    uint32_t axes = 0; /* bit set of the dimensions that may be removed */
    for (uint32_t i = 0; i < w->x->rank; i++)
        if (w->x->dim[i] == 1) axes |= 1u << i;
    if (sg_mil_arg_find(w->op, "axes")) {
        uint32_t requested = sg_mil_const_axes(w->f, w->op, w->x->rank);
        if (!requested || (requested & ~axes)) return SG_MIL_TYPE_ERROR("axes must name dimensions of 1");
        axes = requested;
    }
    sg_mil_reduced_shape(w->x, axes, 0, w->out);
    return SEGUE_OK;
}

/* size -1 means up to the end of the axis. Negative begin is not accepted. */
segue_status sg_mil_infer_slice_size(struct sg_mil_infer_ctx *w)
{
    int64_t begin[2 * SG_MIL_DIMS], size[2 * SG_MIL_DIMS];
    uint32_t nb, ns;
    if (!sg_mil_const_ints(w->f, w->op, "begin", begin, &nb) || !sg_mil_const_ints(w->f, w->op, "size", size, &ns) ||
        nb != w->x->rank || ns != nb)
        return SG_MIL_TYPE_ERROR("begin and size must have as many constants as x has dimensions");
    w->out[0] = *w->x;
    for (uint32_t i = 0; i < nb; i++) {
        int64_t dim = w->x->dim[i], n = size[i] == -1 && begin[i] >= 0 ? dim - begin[i] : size[i];
        if (begin[i] < 0 || n < 1 || begin[i] > dim || n > dim - begin[i])
            return SG_MIL_TYPE_ERROR("dimension %u: %lld from %lld is outside %lld", i, (long long)n,
                                     (long long)begin[i], (long long)dim);
        w->out[0].dim[i] = (int32_t)n;
    }
    return SEGUE_OK;
}

/* Axes of squeeze_mask are removed from the result. */
segue_status sg_mil_infer_slice_index(struct sg_mil_infer_ctx *w)
{
    int64_t begin[SG_MIL_DIMS], count[SG_MIL_DIMS], step[SG_MIL_DIMS];
    uint32_t squeezed;
    if (!sg_mil_slice(w->f, w->op, w->x, begin, count, step, &squeezed))
        return SG_MIL_TYPE_ERROR("begin, end and stride must select elements inside x");
    struct sg_mil_type t = {.dtype = w->x->dtype};
    for (uint32_t i = 0; i < w->x->rank; i++)
        if (!(squeezed >> i & 1)) t.dim[t.rank++] = (int32_t)count[i];
    w->out[0] = t;
    return SEGUE_OK;
}

/* update must have the shape that slice_by_index with the same arguments would give. */
segue_status sg_mil_infer_slice_update(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *update = sg_mil_infer_arg_type(w, "update");
    SG_TRY(sg_mil_infer_slice_index(w));
    if (!sg_mil_type_equal(update, &w->out[0]))
        return SG_MIL_TYPE_ERROR("update does not have the shape of the slice that it overwrites");
    w->out[0] = *w->x;
    return SEGUE_OK;
}

/* All values must have the same type, except for the size along the axis. */
segue_status sg_mil_infer_concat(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *in[256];
    uint32_t n = sg_mil_infer_list(w, "values", in, 256);
    if (!n) return SEGUE_EFORMAT;
    int64_t sum = 0; /* size of the result along the axis */
    uint32_t axis = sg_mil_infer_axis(w, "axis", 0, in[0]->rank);
    if (axis == SG_MIL_DIMS) return SEGUE_EFORMAT;
    for (uint32_t i = 0; i < n; i++) {
        /* Compared with the size along the axis made equal. */
        struct sg_mil_type same = *in[i];
        sum += same.dim[axis];
        same.dim[axis] = in[0]->dim[axis];
        if (!sg_mil_type_equal(&same, in[0]))
            return SG_MIL_TYPE_ERROR("value %u differs from value 0 outside the axis", i);
    }
    if (sum > INT32_MAX) return SG_MIL_TYPE_ERROR("the axis becomes longer than 2^31");
    w->out[0] = *in[0];
    w->out[0].dim[axis] = (int32_t)sum;
    return SEGUE_OK;
}

/* Equal parts (num_splits) or given sizes (split_sizes); one result per part, and the parts must cover the
 * axis. */
segue_status sg_mil_infer_split(struct sg_mil_infer_ctx *w)
{
    uint32_t axis = sg_mil_infer_axis(w, "axis", 0, w->x->rank), n = w->op->outputs, sizes = 0;
    int64_t size[2 * SG_MIL_DIMS], sum = 0;
    if (axis == SG_MIL_DIMS) return SEGUE_EFORMAT;
    /* Both arguments may be given; they must then agree. */
    int given = sg_mil_const_ints(w->f, w->op, "split_sizes", size, &sizes);
    int64_t parts = sg_mil_const_int(w->f, w->op, "num_splits", given ? sizes : 0);
    if (parts != n || (given && sizes != n))
        return SG_MIL_TYPE_ERROR("%lld parts for %u results", (long long)parts, n);
    for (uint32_t i = 0; i < n; i++) {
        int64_t part = given ? size[i] : w->x->dim[axis] / n;
        if (part < 1 || part > w->x->dim[axis]) return SG_MIL_TYPE_ERROR("part %u is empty or longer than the axis", i);
        sum += part;
        w->out[i] = *w->x;
        w->out[i].dim[axis] = (int32_t)part;
    }
    return sum == w->x->dim[axis]
               ? SEGUE_OK
               : SG_MIL_TYPE_ERROR("the parts have %lld elements, the axis %d", (long long)sum,
                                   (int)w->x->dim[axis]);
}

/* All values have one type; the new axis has one element per value. */
segue_status sg_mil_infer_stack(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *in[256];
    uint32_t n = sg_mil_infer_list(w, "values", in, 256), from = 0;
    if (!n) return SEGUE_EFORMAT;
    /* The axis counts in the result, which has one dimension more. */
    if (in[0]->rank + 1 > SG_MIL_DIMS) return SG_MIL_TYPE_ERROR("the rank becomes more than %d", SG_MIL_DIMS);
    struct sg_mil_type t = {.dtype = in[0]->dtype, .rank = (uint8_t)(in[0]->rank + 1)};
    uint32_t axis = sg_mil_infer_axis(w, "axis", 0, t.rank);
    if (axis == SG_MIL_DIMS) return SEGUE_EFORMAT;
    for (uint32_t i = 1; i < n; i++)
        if (!sg_mil_type_equal(in[i], in[0]))
            return SG_MIL_TYPE_ERROR("value %u has another type than value 0", i);
    for (uint32_t i = 0; i < t.rank; i++) t.dim[i] = i == axis ? (int32_t)n : in[0]->dim[from++];
    w->out[0] = t;
    return SEGUE_OK;
}

/* Each axis is repeated reps[i] times. */
segue_status sg_mil_infer_tile(struct sg_mil_infer_ctx *w)
{
    int64_t reps[2 * SG_MIL_DIMS];
    uint32_t n;
    if (!sg_mil_const_ints(w->f, w->op, "reps", reps, &n) || n != w->x->rank)
        return SG_MIL_TYPE_ERROR("reps must have as many constants as x has dimensions");
    w->out[0] = *w->x;
    for (uint32_t i = 0; i < n; i++) {
        /* reps is tested before the product, which then fits 64 bits. */
        if (reps[i] < 1 || reps[i] > INT32_MAX || reps[i] * w->x->dim[i] > INT32_MAX)
            return SG_MIL_TYPE_ERROR("reps must be 1 or more, and the result below 2^31 per dimension");
        w->out[0].dim[i] = (int32_t)(reps[i] * w->x->dim[i]);
    }
    return SEGUE_OK;
}

/* pad has (before, after) for each of the last n / 2 axes. Reflection cannot read past the elements that
 * exist, so it is limited to dim - 1. */
segue_status sg_mil_infer_pad(struct sg_mil_infer_ctx *w)
{
    int64_t pad[2 * SG_MIL_DIMS];
    uint32_t n;
    if (!sg_mil_const_ints(w->f, w->op, "pad", pad, &n) || n % 2 || n / 2 > w->x->rank)
        return SG_MIL_TYPE_ERROR("pad must be two constants for each of the last dimensions");
    w->out[0] = *w->x;
    const char *mode = sg_mil_const_text(w->f, w->op, "mode");
    int constant = !mode || !strcmp(mode, "constant");
    if (!constant && strcmp(mode, "reflect") != 0 && strcmp(mode, "replicate") != 0)
        return SG_MIL_TYPE_ERROR("mode must be constant, reflect or replicate");
    for (uint32_t i = 0; i < n / 2; i++) {
        int32_t *dim = &w->out[0].dim[w->x->rank - n / 2 + i];
        int64_t before = pad[2 * i], after = pad[2 * i + 1];
        int64_t max = constant || mode[2] == 'p' ? 65536 : *dim - 1; /* 'p': replicate */
        if (before < 0 || after < 0 || before > max || after > max || *dim + before + after > INT32_MAX)
            return SG_MIL_TYPE_ERROR("pad is negative or too large");
        *dim += (int32_t)(before + after);
    }
    return SEGUE_OK;
}

/* space_to_depth moves blocks of b x b pixels into channels; depth_to_space and pixel_shuffle do the
 * inverse. */
segue_status sg_mil_infer_blocks(struct sg_mil_infer_ctx *w)
{
    int down = !strcmp(w->op->kind, "space_to_depth"); /* 1: channels grow, height and width shrink */
    int64_t b = sg_mil_const_int(w->f, w->op, w->op->kind[0] == 'p' ? "upscale_factor" : "block_size", 0);
    const struct sg_mil_type *x = w->x;
    if (x->rank != 4 || b < 1 || b > 1024)
        return SG_MIL_TYPE_ERROR("%s reads [N, C, H, W] and a block size from 1 to 1024", w->op->kind);
    if (down ? x->dim[2] % b || x->dim[3] % b : x->dim[1] % (b * b))
        return SG_MIL_TYPE_ERROR("x is not divisible into blocks of %lld", (long long)b);
    int64_t dim[4] = {x->dim[0], down ? x->dim[1] * b * b : x->dim[1] / (b * b),
                      down ? x->dim[2] / b : x->dim[2] * b, down ? x->dim[3] / b : x->dim[3] * b};
    w->out[0] = sg_mil_tensor((enum sg_mil_dtype)x->dtype, 4, dim);
    return SEGUE_OK;
}

/* The axis of x is replaced by the dimensions of indices. */
segue_status sg_mil_infer_gather(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *at = sg_mil_infer_arg_type(w, "indices");
    uint32_t axis = sg_mil_infer_axis(w, "axis", 0, w->x->rank);
    if (axis == SG_MIL_DIMS) return SEGUE_EFORMAT;
    uint8_t class = sg_mil_dtype_info((enum sg_mil_dtype)at->dtype)->class;
    if (class != SG_MIL_SIGNED && class != SG_MIL_UNSIGNED)
        return SG_MIL_TYPE_ERROR("indices must be whole numbers");
    if (sg_mil_const_int(w->f, w->op, "batch_dims", 0)) return SG_MIL_TYPE_ERROR("batch_dims other than 0 is not supported");
    if (w->x->rank - 1 + at->rank > SG_MIL_DIMS)
        return SG_MIL_TYPE_ERROR("the rank becomes more than %d", SG_MIL_DIMS);
    struct sg_mil_type t = {.dtype = w->x->dtype};
    /* Axes of x before the gathered one, those of indices, and the rest of x. */
    for (uint32_t i = 0; i < axis; i++) t.dim[t.rank++] = w->x->dim[i];
    for (uint32_t i = 0; i < at->rank; i++) t.dim[t.rank++] = at->dim[i];
    for (uint32_t i = axis + 1; i < w->x->rank; i++) t.dim[t.rank++] = w->x->dim[i];
    w->out[0] = t;
    return SEGUE_OK;
}

/* tensor_buffer_to_tensor: the same shape without a layout. */
segue_status sg_mil_infer_unbuffer(struct sg_mil_infer_ctx *w)
{
    if (!w->x->buffer) return SG_MIL_TYPE_ERROR("input must be a tensor_buffer");
    w->out[0] = *w->x;
    w->out[0].buffer = NULL;
    return SEGUE_OK;
}

/* Only whether a type is a tensor_buffer is compared (sg_mil_type_equal), so an empty layout is enough; the
 * declared type has the real one. */
segue_status sg_mil_infer_buffer(struct sg_mil_infer_ctx *w)
{
    int64_t v[2 * SG_MIL_DIMS];
    uint32_t n;
    w->out[0] = *w->x;
    if (w->x->buffer) return SG_MIL_TYPE_ERROR("input is a tensor_buffer already");
    if (!sg_mil_const_ints(w->f, w->op, "strides", v, &n) || n != w->x->rank)
        return SG_MIL_TYPE_ERROR("strides must have as many constants as input has dimensions");
    static const struct sg_mil_layout any_layout = {{0}, {0}};
    w->out[0].buffer = &any_layout;
    return SEGUE_OK;
}
