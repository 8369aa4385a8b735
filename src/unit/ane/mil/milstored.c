/* milstored.c: types of operations between storages, and of compressed constants; see miltypes.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/miltypes.h"

#include <string.h>

static segue_status set_named_dtype(struct sg_mil_infer_ctx *w, const char *arg)
{
    const char *word = sg_mil_const_text(w->f, w->op, arg);
    enum sg_mil_dtype d = word ? sg_mil_dtype_named(word, strlen(word)) : SG_MIL_DTYPES;
    if (d == SG_MIL_DTYPES || d == SG_MIL_STRING) return SG_MIL_TYPE_ERROR("%s must name a data type", arg);
    w->out[0] = *w->x;
    w->out[0].dtype = (uint8_t)d;
    return SEGUE_OK;
}

segue_status sg_mil_infer_cast(struct sg_mil_infer_ctx *w) { return set_named_dtype(w, "dtype"); }

/* Scale and zero point: one for all, or one for each place of the axis. */
static segue_status check_scale(struct sg_mil_infer_ctx *w, const struct sg_mil_type *x)
{
    static const char *const names[] = {"scale", "zero_point"};
    for (int i = 0; i < 2; i++) {
        const struct sg_mil_type *t = sg_mil_infer_arg_type(w, names[i]);
        if (!t || sg_mil_elements(t) == 1) continue;
        uint32_t axis = sg_mil_infer_axis(w, "axis", 0, x->rank);
        if (axis == SG_MIL_DIMS) return SEGUE_EFORMAT;
        SG_TRY(sg_mil_infer_vector(w, names[i], (uint64_t)x->dim[axis]));
    }
    return SEGUE_OK;
}

segue_status sg_mil_infer_quantize(struct sg_mil_infer_ctx *w)
{
    SG_TRY(set_named_dtype(w, "output_dtype"));
    if (w->out[0].dtype != SG_MIL_INT8 && w->out[0].dtype != SG_MIL_UINT8)
        return SG_MIL_TYPE_ERROR("output_dtype must be int8 or uint8");
    return check_scale(w, w->x);
}

segue_status sg_mil_infer_dequantize(struct sg_mil_infer_ctx *w)
{
    if (w->x->dtype != SG_MIL_INT8 && w->x->dtype != SG_MIL_UINT8)
        return SG_MIL_TYPE_ERROR("input must be int8 or uint8");
    w->out[0] = *w->x;
    w->out[0].dtype = sg_mil_infer_arg_type(w, "scale")->dtype;
    return check_scale(w, w->x);
}

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

static uint32_t index_bits(uint64_t entries)
{
    for (uint32_t bits = 1; bits <= 8; bits *= 2)
        if (entries == (uint64_t)1 << bits) return bits;
    return entries == 8 ? 3 : entries == 64 ? 6 : 0;
}

/* ios16: a packed byte vector, a vector of 2^n entries, and the shape. ios18: indices of n bits and a table
 * of rank + 2. */
segue_status sg_mil_infer_palette(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *at = sg_mil_infer_arg_type(w, "indices"), *lut = sg_mil_infer_arg_type(w, "lut");
    int64_t shape[2 * SG_MIL_DIMS];
    uint32_t n;
    if (!at || !lut) return SG_MIL_TYPE_ERROR("give indices and lut");
    if (sg_mil_const_ints(w->f, w->op, "shape", shape, &n)) {
        if (n > SG_MIL_DIMS || lut->rank != 1 || at->rank != 1 || at->dtype != SG_MIL_UINT8)
            return SG_MIL_TYPE_ERROR("with shape, indices are packed in one row of uint8 and lut is one row");
        struct sg_mil_type t = sg_mil_tensor((enum sg_mil_dtype)lut->dtype, n, shape);
        uint64_t elements, bits = index_bits((uint64_t)lut->dim[0]);
        SG_TRY(sg_mil_type_size(&t, &elements, NULL, w->err));
        if (!bits || (uint64_t)at->dim[0] != (elements * bits + 7) / 8)
            return SG_MIL_TYPE_ERROR("%d bytes of indices and %d entries do not give %llu numbers",
                                (int)at->dim[0], (int)lut->dim[0], (unsigned long long)elements);
        w->out[0] = t;
        return SEGUE_OK;
    }
    uint32_t bits = sg_mil_dtype_info((enum sg_mil_dtype)at->dtype)->bits;
    if (sg_mil_dtype_info((enum sg_mil_dtype)at->dtype)->class != SG_MIL_UNSIGNED || bits > 8 ||
        lut->rank != at->rank + 2 || lut->dim[at->rank] != 1 << bits || lut->dim[at->rank + 1] != 1)
        return SG_MIL_TYPE_ERROR(
            "indices must be uint1 to uint8, lut of their rank + 2 with 2^bits entries of one number");
    for (uint32_t i = 0; i < at->rank; i++)
        if (lut->dim[i] < 1 || at->dim[i] % lut->dim[i])
            return SG_MIL_TYPE_ERROR("tables do not divide dimension %u", i);
    w->out[0] = *at;
    w->out[0].dtype = lut->dtype;
    return SEGUE_OK;
}

segue_status sg_mil_infer_sparse(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *data = sg_mil_infer_arg_type(w, "nonzero_data"), *mask = sg_mil_infer_arg_type(w, "mask");
    int64_t shape[2 * SG_MIL_DIMS];
    uint32_t n;
    uint64_t elements;
    if (!data || !mask || data->rank != 1) return SG_MIL_TYPE_ERROR("give nonzero_data as one row, and mask");
    if (sg_mil_const_ints(w->f, w->op, "shape", shape, &n)) {
        if (n > SG_MIL_DIMS || mask->rank != 1 || mask->dtype != SG_MIL_UINT8)
            return SG_MIL_TYPE_ERROR("with shape, mask is one row of uint8");
        w->out[0] = sg_mil_tensor((enum sg_mil_dtype)data->dtype, n, shape);
        SG_TRY(sg_mil_type_size(&w->out[0], &elements, NULL, w->err));
        return (uint64_t)mask->dim[0] == (elements + 7) / 8
                   ? SEGUE_OK
                   : SG_MIL_TYPE_ERROR("the mask has not one bit for each number");
    }
    if (mask->dtype != SG_MIL_UINT1) return SG_MIL_TYPE_ERROR("mask must be uint1, or a row of uint8 with shape");
    w->out[0] = *mask;
    w->out[0].dtype = data->dtype;
    return SEGUE_OK;
}

segue_status sg_mil_infer_blockwise(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_type *q = sg_mil_infer_arg_type(w, "data"), *s = sg_mil_infer_arg_type(w, "scale"),
                             *o = sg_mil_infer_arg_type(w, "offset");
    uint8_t class = sg_mil_dtype_info((enum sg_mil_dtype)q->dtype)->class;
    if ((class != SG_MIL_SIGNED && class != SG_MIL_UNSIGNED) || s->rank != q->rank ||
        (o && o->rank != q->rank))
        return SG_MIL_TYPE_ERROR("data must be whole numbers, scale and offset of its rank");
    for (uint32_t i = 0; i < q->rank; i++)
        if (s->dim[i] < 1 || q->dim[i] % s->dim[i] || (o && o->dim[i] != s->dim[i]))
            return SG_MIL_TYPE_ERROR("blocks do not divide dimension %u", i);
    w->out[0] = *q;
    w->out[0].dtype = s->dtype;
    return SEGUE_OK;
}
