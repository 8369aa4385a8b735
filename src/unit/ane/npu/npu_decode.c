/* npu_decode.c: decodes constants: those in the text, records of blob files of every type, and
 * compressed ones (constexpr operations). See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "unit/ane/blob/blob.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/npu/npu_plan.h"
#include "unit/ane/rules/rules.h"

enum { CONSTANT_MAX = 1 << 30 }; /* elements of one constant */

/* Arena memory for n elements and 64 spare bytes, so that a vector load at the end stays inside. NULL:
 * the error is set, ELIMIT or EMEMORY. */
static void *constant_alloc(struct sg_npu_plan *plan, uint64_t n, size_t each, segue_error *err)
{
    if (n > CONSTANT_MAX) {
        sg_fail(err, SEGUE_ELIMIT, "constant: it has %llu elements, the maximum is %d; split it", (unsigned long long)n,
                CONSTANT_MAX);
        return NULL;
    }
    void *p = sg_arena_alloc(&plan->arena, (size_t)n * each + 64);
    if (!p) sg_no_memory("a constant", (size_t)n * each, err);
    return p;
}

/* Element i of a dense little-endian array as fp32. Elements below 8 bits are packed from the least
 * significant bit on; those of 3 and 6 bits may cross a byte boundary. Of these types only int4 is
 * signed. */
static float packed_element(enum sg_mil_dtype d, const uint8_t *bytes, uint64_t i)
{
    switch (d) {
    case SG_MIL_FP16:
        return sg_f32_of_f16(sg_le16(bytes + 2 * i));
    case SG_MIL_BF16:
        return sg_f32_of_bf16(sg_le16(bytes + 2 * i));
    case SG_MIL_FP32:
        return sg_f32_of_bits(sg_le32(bytes + 4 * i));
    case SG_MIL_INT8:
        return (float)(int8_t)bytes[i];
    case SG_MIL_UINT8:
        return (float)bytes[i];
    case SG_MIL_INT16:
        return (float)(int16_t)sg_le16(bytes + 2 * i);
    case SG_MIL_UINT16:
        return (float)sg_le16(bytes + 2 * i);
    case SG_MIL_INT32:
        return (float)(int32_t)sg_le32(bytes + 4 * i);
    case SG_MIL_UINT32:
        return (float)sg_le32(bytes + 4 * i);
    default:
        break;
    }
    /* Below 8 bits: the two bytes that may have parts of the element. */
    uint32_t width = sg_mil_dtype_info(d)->bits, at = (uint32_t)(i * width % 8), bits16 = bytes[i * width / 8];
    if (at + width > 8) bits16 |= (uint32_t)bytes[i * width / 8 + 1] << 8;
    int32_t v = (int32_t)(bits16 >> at & ((1u << width) - 1));
    return (float)(d == SG_MIL_INT4 && v > 7 ? v - 16 : v);
}

/* Constraint 15 in faithful mode: a chip does not check the record. The data begins 64 bytes after the
 * offset, the size of a record header; after the end of the file it is zero. */
static segue_status read_unchecked(struct sg_npu_plan *plan, struct sg_blob *b, uint64_t bytes, uint64_t offset,
                                 const struct sg_ane_file *file, segue_error *err)
{
    uint8_t *made = sg_arena_alloc(&plan->arena, (size_t)bytes + 64);
    if (!made) return sg_no_memory("a constant", (size_t)bytes, err);
    uint64_t from = offset < file->bytes ? offset + 64 : file->bytes;
    uint64_t there = from < file->bytes ? file->bytes - from : 0;
    if (there) memcpy(made, file->data + from, (size_t)(there < bytes ? there : bytes));
    b->data = made;
    return SEGUE_OK;
}

/* Finds the record of a blob literal. EFORMAT: no such file, no record there, or its size or type
 * differ from the literal's. In faithful mode an invalid record gives other data instead. */
static segue_status find_blob(struct sg_npu_plan *plan, struct sg_blob *b, const struct sg_mil_literal *l,
                            const struct sg_ane_file *files, uint32_t files_n, segue_error *err)
{
    const struct sg_ane_file *file = sg_ane_file_of(files, files_n, l->v.blob.path);
    uint64_t bytes;
    if (!file)
        return sg_fail(err, SEGUE_EFORMAT, "constant: %s: no such blob file; put it beside the program",
                       l->v.blob.path);
    SG_TRY(sg_mil_type_size(&l->type, NULL, &bytes, err));
    segue_status status = sg_blob_at(b, file->data, file->bytes, l->v.blob.offset, file->path, err);
    if (plan->garbage && (status != SEGUE_OK || b->bytes != bytes || b->dtype != l->type.dtype))
        return read_unchecked(plan, b, bytes, l->v.blob.offset, file, err);
    SG_TRY(status);
    if (b->bytes != bytes || b->dtype != l->type.dtype)
        return sg_fail(err, SEGUE_EFORMAT, "constant: %s: the record has %llu bytes, the type needs %llu; write the file again",
                       file->path, (unsigned long long)b->bytes, (unsigned long long)bytes);
    return SEGUE_OK;
}

/* Element i of a constant in the text, rounded to its type. */
static float dense_element(const struct sg_mil_literal *l, uint64_t i)
{
    float v = (float)sg_mil_literal_real(l, i);
    return l->type.dtype == SG_MIL_FP16   ? sg_f32_of_f16(sg_f16_of_f32(v))
           : l->type.dtype == SG_MIL_BF16 ? sg_f32_of_bf16(sg_bf16_of_f32(v))
                                          : v;
}

/* as_half is used for fp16 types only, so the bits of a blob are copied. */
segue_status sg_npu_decode(struct sg_npu_plan *plan, const struct sg_mil_literal *l,
                           const struct sg_ane_file *files, uint32_t files_n, int as_half, const void **out,
                           segue_error *err)
{
    uint64_t n;
    struct sg_blob b = {0};
    SG_TRY(sg_mil_type_size(&l->type, &n, NULL, err));
    if (n <= CONSTANT_MAX && l->kind == SG_MIL_BLOB) SG_TRY(find_blob(plan, &b, l, files, files_n, err));
    void *p = constant_alloc(plan, n, as_half ? 2 : 4, err);
    if (!p) return n > CONSTANT_MAX ? SEGUE_ELIMIT : SEGUE_EMEMORY;
    enum sg_mil_dtype d = (enum sg_mil_dtype)l->type.dtype;
    uint16_t *half = p;
    float *real = p;
    for (uint64_t i = 0; i < n; i++) {
        if (as_half)
            half[i] = b.data ? sg_le16(b.data + 2 * i) : sg_f16_of_f32(dense_element(l, i));
        else
            real[i] = b.data ? packed_element(d, b.data, i) : dense_element(l, i);
    }
    *out = p;
    return SEGUE_OK;
}

/* --- compressed constants --- */

/* A constexpr operation that is being expanded. */
struct constexpr_op {
    struct sg_npu_plan *plan;
    const struct sg_mil_op *op;
    const struct sg_ane_file *files;
    uint32_t files_n;
    segue_error *err;
};

/* Decodes an argument of a constexpr operation to fp32. type NULL: the argument is optional, *out NULL
 * when it is absent. */
static segue_status constexpr_arg(struct constexpr_op *s, const char *name, const float **out,
                         const struct sg_mil_type **type)
{
    const struct sg_mil_literal *l = sg_mil_const_literal(s->plan->f, s->op, name);
    const void *data = NULL;
    *out = NULL;
    if (!l && type)
        return sg_fail(s->err, SEGUE_EFORMAT, "constant: %s has no %s; add it", s->op->kind, name);
    if (!l) return SEGUE_OK;
    SG_TRY(sg_npu_decode(s->plan, l, s->files, s->files_n, 0, &data, s->err));
    *out = data;
    if (type) *type = &l->type;
    return SEGUE_OK;
}

/* constexpr_affine_dequantize, and dequantize of a constant: (q - zero) * scale, with one scale and zero point for the tensor or
 * one per index of the axis. inner: elements after the axis. */
static segue_status expand_affine(struct constexpr_op *s, float *out, uint64_t n)
{
    const float *q, *scale, *zero;
    const struct sg_mil_type *t = NULL, *ts = NULL, *tz = NULL;
    SG_TRY(constexpr_arg(s, s->op->kind[0] == 'd' ? "input" : "quantized_data", &q, &t));
    SG_TRY(constexpr_arg(s, "scale", &scale, &ts));
    SG_TRY(constexpr_arg(s, "zero_point", &zero, NULL));
    if (zero) tz = &sg_mil_const_literal(s->plan->f, s->op, "zero_point")->type;
    int64_t axis = sg_mil_const_int(s->plan->f, s->op, "axis", 0);
    if (axis < 0) axis += t->rank;
    uint64_t inner = 1, places = t->rank ? (uint64_t)t->dim[axis] : 1;
    for (uint32_t i = (uint32_t)axis + 1; i < t->rank; i++) inner *= (uint64_t)t->dim[i];
    int one_scale = sg_mil_elements(ts) == 1, one_zero = !tz || sg_mil_elements(tz) == 1;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = i / inner % places;
        out[i] = (q[i] - (zero ? zero[one_zero ? 0 : at] : 0)) * scale[one_scale ? 0 : at];
    }
    return SEGUE_OK;
}

/* Index of the quantization block of element i. blocks->dim: the number of blocks along each dimension
 * of `shape`. */
static uint64_t block_of(const struct sg_mil_type *shape, const struct sg_mil_type *blocks, uint64_t i)
{
    uint64_t at = 0, stride = 1;
    for (uint32_t d = shape->rank; d-- > 0;) {
        uint64_t index = i % (uint64_t)shape->dim[d];
        i /= (uint64_t)shape->dim[d];
        at += index / ((uint64_t)shape->dim[d] / (uint64_t)blocks->dim[d]) * stride;
        stride *= (uint64_t)blocks->dim[d];
    }
    return at;
}

/* constexpr_lut_to_dense: each element is an entry of a lookup table. A table of one dimension serves
 * the whole tensor; the indices are then packed bits in bytes, from the least significant bit on.
 * Otherwise there is one table per block, and an index is an element. */
static segue_status expand_palette(struct constexpr_op *s, float *out, uint64_t n)
{
    const float *at, *lut;
    const struct sg_mil_type *ta = NULL, *tl = NULL;
    SG_TRY(constexpr_arg(s, "indices", &at, &ta));
    SG_TRY(constexpr_arg(s, "lut", &lut, &tl));
    /* bits: width of an index, from the size of the table. */
    if (tl->rank == 1) {
        uint32_t bits = 0;
        while (1 << bits < tl->dim[0]) bits++;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t bit = i * bits;
            uint32_t bits16 = (uint32_t)at[bit / 8];
            if (bit % 8 + bits > 8) bits16 |= (uint32_t)at[bit / 8 + 1] << 8;
            out[i] = lut[bits16 >> bit % 8 & ((1u << bits) - 1)];
        }
        return SEGUE_OK;
    }
    for (uint64_t i = 0; i < n; i++)
        out[i] = lut[block_of(ta, tl, i) * (uint64_t)tl->dim[ta->rank] + (uint64_t)at[i]];
    return SEGUE_OK;
}

/* constexpr_sparse_to_dense: elements whose mask bit is set are the nonzero data in order, all others
 * are 0. */
static segue_status expand_sparse(struct constexpr_op *s, float *out, uint64_t n)
{
    const float *data, *mask;
    const struct sg_mil_type *td = NULL, *tm = NULL;
    uint64_t used = 0;
    SG_TRY(constexpr_arg(s, "nonzero_data", &data, &td));
    SG_TRY(constexpr_arg(s, "mask", &mask, &tm));
    for (uint64_t i = 0; i < n; i++) {
        /* The mask is one bit per element: a tensor of uint1, or bytes of 8 bits each. */
        int set = tm->dtype == SG_MIL_UINT1 ? mask[i] != 0 : (uint32_t)mask[i / 8] >> i % 8 & 1;
        if (set && used == (uint64_t)td->dim[0])
            return sg_fail(s->err, SEGUE_EFORMAT,
                           "constant: the mask has more ones than nonzero_data has elements; write it again");
        out[i] = set ? data[used++] : 0;
    }
    return SEGUE_OK;
}

/* constexpr_blockwise_shift_scale: (data - offset) * scale, with one scale and offset per block. */
static segue_status expand_blockwise(struct constexpr_op *s, float *out, uint64_t n)
{
    const float *data, *scale, *offset;
    const struct sg_mil_type *td = NULL, *ts = NULL;
    SG_TRY(constexpr_arg(s, "data", &data, &td));
    SG_TRY(constexpr_arg(s, "scale", &scale, &ts));
    SG_TRY(constexpr_arg(s, "offset", &offset, NULL));
    for (uint64_t i = 0; i < n; i++) {
        uint64_t b = block_of(td, ts, i);
        out[i] = (data[i] - (offset ? offset[b] : 0)) * scale[b];
    }
    return SEGUE_OK;
}

/* The result is rounded to fp16 when that is its type. */
segue_status sg_npu_expand(struct sg_npu_plan *plan, const struct sg_mil_op *op,
                           const struct sg_ane_file *files, uint32_t files_n, float **out, segue_error *err)
{
    struct constexpr_op s = {plan, op, files, files_n, err};
    const struct sg_mil_type *t = &plan->f->values[op->first].type;
    uint64_t n = sg_mil_elements(t);
    float *p = constant_alloc(plan, n, sizeof *p, err);
    if (!p) return n > CONSTANT_MAX ? SEGUE_ELIMIT : SEGUE_EMEMORY;
    segue_status status = !strcmp(op->kind, "constexpr_lut_to_dense")              ? expand_palette(&s, p, n)
                          : !strcmp(op->kind, "constexpr_sparse_to_dense")         ? expand_sparse(&s, p, n)
                          : !strcmp(op->kind, "constexpr_blockwise_shift_scale") ? expand_blockwise(&s, p, n)
                                                                                 : expand_affine(&s, p, n);
    if (t->dtype == SG_MIL_FP16)
        for (uint64_t i = 0; i < n; i++) p[i] = sg_f32_of_f16(sg_f16_of_f32(p[i]));
    *out = p;
    return status;
}
