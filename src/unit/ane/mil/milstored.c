/* milstored.c: type rules of conversions between element types and of compressed constants; see miltypes.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/miltypes.h"

#include <string.h>

/* The result has the shape of x and the element type that a string argument names. */
static segue_status set_named_dtype(struct sg_mil_infer_ctx *w, const char *arg)
{
    const char *word = sg_mil_const_text(w->f, w->op, arg);
    enum sg_mil_dtype d = word ? sg_mil_dtype_named(word, strlen(word)) : SG_MIL_DTYPES;
    if (d == SG_MIL_DTYPES || d == SG_MIL_STRING) return SG_MIL_TYPE_ERROR("%s must name a data type", arg);
    w->out[0] = *w->x;
    w->out[0].dtype = (uint8_t)d;
    return SEGUE_OK;
}

/* Any type may be named here; the constraint checks reject those that engines do not cast to. */
segue_status sg_mil_infer_cast(struct sg_mil_infer_ctx *w) { return set_named_dtype(w, "dtype"); }

/* scale and zero_point have one element for the whole tensor, or one per element of the axis. */
static segue_status check_scale(struct sg_mil_infer_ctx *w, const struct sg_mil_type *x)
{
    static const char *const names[] = {"scale", "zero_point"};
    /* The axis is read even where one element serves the whole tensor. */
    if (x->rank && sg_mil_infer_axis(w, "axis", 0, x->rank) == SG_MIL_DIMS) return SEGUE_EFORMAT;
    for (int i = 0; i < 2; i++) {
        const struct sg_mil_type *t = sg_mil_infer_arg_type(w, names[i]);
        if (!t || sg_mil_elements(t) == 1) continue; /* absent, or one for the whole tensor */
        uint32_t axis = sg_mil_infer_axis(w, "axis", 0, x->rank);
        if (axis == SG_MIL_DIMS) return SEGUE_EFORMAT; /* x has no axis */
        SG_TRY(sg_mil_infer_vector(w, names[i], (uint64_t)x->dim[axis]));
    }
    return SEGUE_OK;
}

/* round(x / scale) + zero_point, clamped to the 8-bit type. */
segue_status sg_mil_infer_quantize(struct sg_mil_infer_ctx *w)
{
    SG_TRY(set_named_dtype(w, "output_dtype"));
    if (w->out[0].dtype != SG_MIL_INT8 && w->out[0].dtype != SG_MIL_UINT8)
        return SG_MIL_TYPE_ERROR("output_dtype must be int8 or uint8");
    return check_scale(w, w->x);
}

/* (input - zero_point) * scale, in the type of scale. */
segue_status sg_mil_infer_dequantize(struct sg_mil_infer_ctx *w)
{
    if (w->x->dtype != SG_MIL_INT8 && w->x->dtype != SG_MIL_UINT8)
        return SG_MIL_TYPE_ERROR("input must be int8 or uint8");
    w->out[0] = *w->x;
    w->out[0].dtype = sg_mil_infer_arg_type(w, "scale")->dtype;
    return check_scale(w, w->x);
}

/* constexpr_affine_dequantize: (quantized_data - zero_point) * scale, computed when the program is
 * compiled. */
segue_status sg_mil_infer_affine(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *q = sg_mil_infer_arg_type(w, "quantized_data"), *s = sg_mil_infer_arg_type(w, "scale");
    if (!q || !s || (q->dtype != SG_MIL_INT8 && q->dtype != SG_MIL_UINT8) ||
        (s->dtype != SG_MIL_FP16 && s->dtype != SG_MIL_FP32))
        return SG_MIL_TYPE_ERROR("quantized_data must be int8 or uint8, scale fp16 or fp32; give both");
    w->out[0] = *q;
    w->out[0].dtype = s->dtype;
    return check_scale(w, q);
}

/* Bits of an index into a lookup table: 1, 2, 3, 4, 6 or 8. 0: no valid table size. */
static uint32_t index_bits(uint64_t entries)
{
    /* 1, 2, 4 and 8 bits; 3 and 6 are the other sizes that blob files can store. */
    for (uint32_t bits = 1; bits <= 8; bits *= 2)
        if (entries == (uint64_t)1 << bits) return bits;
    return entries == 8 ? 3 : entries == 64 ? 6 : 0;
}

/* constexpr_lut_to_dense in its two forms. ios16: indices as a packed byte vector, lut as a vector of 2^n
 * entries, and the shape. ios18: indices of an n-bit unsigned type, and lut of rank + 2 dimensions: tables
 * per block of each axis, entries, and a vector size of 1. */
segue_status sg_mil_infer_palette(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *at = sg_mil_infer_arg_type(w, "indices"), *lut = sg_mil_infer_arg_type(w, "lut");
    int64_t shape[2 * SG_MIL_DIMS];
    uint32_t n;
    if (!at || !lut) return SG_MIL_TYPE_ERROR("give indices and lut");
    /* A shape is present in the ios16 form only. */
    if (sg_mil_const_ints(w->f, w->op, "shape", shape, &n)) {
        if (n > SG_MIL_DIMS || lut->rank != 1 || at->rank != 1 || at->dtype != SG_MIL_UINT8)
            return SG_MIL_TYPE_ERROR("with shape, indices must be a vector of uint8 and lut a vector");
        struct sg_mil_type t = sg_mil_tensor((enum sg_mil_dtype)lut->dtype, n, shape);
        uint64_t elements, bits = index_bits((uint64_t)lut->dim[0]);
        SG_TRY(sg_mil_type_size(&t, &elements, NULL, w->err));
        if (!bits || (uint64_t)at->dim[0] != (elements * bits + 7) / 8)
            return SG_MIL_TYPE_ERROR("%d bytes of indices with %d table entries do not make %llu elements",
                                     (int)at->dim[0], (int)lut->dim[0], (unsigned long long)elements);
        w->out[0] = t;
        return SEGUE_OK;
    }
    uint32_t bits = sg_mil_dtype_info((enum sg_mil_dtype)at->dtype)->bits;
    if (sg_mil_dtype_info((enum sg_mil_dtype)at->dtype)->class != SG_MIL_UNSIGNED || bits > 8 ||
        lut->rank != at->rank + 2 || lut->dim[at->rank] != 1 << bits || lut->dim[at->rank + 1] != 1)
        return SG_MIL_TYPE_ERROR(
            "indices must be uint1 to uint8; lut needs two more dimensions, of 2^bits entries and 1");
    /* lut has one table per block; the number of blocks must divide each dimension. */
    for (uint32_t i = 0; i < at->rank; i++)
        if (lut->dim[i] < 1 || at->dim[i] % lut->dim[i])
            return SG_MIL_TYPE_ERROR("dimension %u is not divisible by its number of tables", i);
    w->out[0] = *at;
    w->out[0].dtype = lut->dtype;
    return SEGUE_OK;
}

/* constexpr_sparse_to_dense in its two forms. ios16: mask as a packed byte vector, one bit per element, and
 * the shape. ios18: mask of uint1 with the shape of the result. */
segue_status sg_mil_infer_sparse(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *data = sg_mil_infer_arg_type(w, "nonzero_data"), *mask = sg_mil_infer_arg_type(w, "mask");
    int64_t shape[2 * SG_MIL_DIMS];
    uint32_t n;
    uint64_t elements;
    if (!data || !mask || data->rank != 1) return SG_MIL_TYPE_ERROR("give nonzero_data as a vector, and mask");
    if (sg_mil_const_ints(w->f, w->op, "shape", shape, &n)) {
        if (n > SG_MIL_DIMS || mask->rank != 1 || mask->dtype != SG_MIL_UINT8)
            return SG_MIL_TYPE_ERROR("with shape, mask must be a vector of uint8");
        w->out[0] = sg_mil_tensor((enum sg_mil_dtype)data->dtype, n, shape);
        SG_TRY(sg_mil_type_size(&w->out[0], &elements, NULL, w->err));
        return (uint64_t)mask->dim[0] == (elements + 7) / 8
                   ? SEGUE_OK
                   : SG_MIL_TYPE_ERROR("mask must have one bit per element");
    }
    if (mask->dtype != SG_MIL_UINT1) return SG_MIL_TYPE_ERROR("mask must be uint1, or a vector of uint8 with shape");
    w->out[0] = *mask;
    w->out[0].dtype = data->dtype;
    return SEGUE_OK;
}

/* constexpr_blockwise_shift_scale: scale and offset have one element per block of data; the block sizes are
 * the quotients of the dimensions. */
segue_status sg_mil_infer_blockwise(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *q = sg_mil_infer_arg_type(w, "data"), *s = sg_mil_infer_arg_type(w, "scale"),
                             *o = sg_mil_infer_arg_type(w, "offset");
    uint8_t class = sg_mil_dtype_info((enum sg_mil_dtype)q->dtype)->class;
    if ((class != SG_MIL_SIGNED && class != SG_MIL_UNSIGNED) || s->rank != q->rank ||
        (o && o->rank != q->rank))
        return SG_MIL_TYPE_ERROR("data must be integers; scale and offset need the rank of data");
    for (uint32_t i = 0; i < q->rank; i++)
        if (s->dim[i] < 1 || q->dim[i] % s->dim[i] || (o && o->dim[i] != s->dim[i]))
            return SG_MIL_TYPE_ERROR("dimension %u of data is not divisible by the one of scale, or offset differs", i);
    w->out[0] = *q;
    w->out[0].dtype = s->dtype;
    return SEGUE_OK;
}
