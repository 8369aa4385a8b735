/* miltypes.h: type inference, internal: one function per type rule and the helpers that they share. Only
 * milinfer.c calls the rules. Each rule checks the operands of one operation and writes the types of its
 * results. Required arguments are known to be present, because milinfer.c checks them first.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILTYPES_H
#define SG_UNIT_ANE_MILTYPES_H

#include "unit/ane/mil/milinfer.h"

/* Inputs and outputs of a rule. */
struct sg_mil_infer_ctx {
    const struct sg_mil_function *f;
    const struct sg_mil_op *op;
    struct sg_mil_type *out;     /* [op->outputs] */
    const struct sg_mil_type *x; /* type of the argument "x", "input" or "query", whichever exists; NULL: none */
    segue_error *err;
};

/* Reports EFORMAT; expects the context in a variable named w. The text has no prefix and no position. */
#define SG_MIL_TYPE_ERROR(...) sg_fail(w->err, SEGUE_EFORMAT, __VA_ARGS__)

/* Type of the argument or attribute with this name. NULL: absent, or a list. */
const struct sg_mil_type *sg_mil_infer_arg_type(struct sg_mil_infer_ctx *w, const char *name);
/* Types of a list argument into types[max]; a single value counts as a list of one. Returns the count, or 0
 * with the error set when there is no list, or it is empty or longer than max. */
uint32_t sg_mil_infer_list(struct sg_mil_infer_ctx *w, const char *name, const struct sg_mil_type **types,
                           uint32_t max);
/* Value of an axis argument, with negative axes counted from the end; fallback when it is absent. Returns
 * SG_MIL_DIMS with the error set when it is out of range. */
uint32_t sg_mil_infer_axis(struct sg_mil_infer_ctx *w, const char *name, int64_t fallback, uint32_t rank);
/* Checks that the argument is absent or has exactly this many elements. */
segue_status sg_mil_infer_vector(struct sg_mil_infer_ctx *w, const char *name, uint64_t elements);
/* Shape of x after a reduction over a bit set of axes: those axes become 1 (keep) or disappear. */
void sg_mil_reduced_shape(const struct sg_mil_type *x, uint32_t axes, int keep, struct sg_mil_type *out);

/* milshape.c: data movement: reshape, slice, concat, pad, gather and tensor_buffer conversion */
segue_status sg_mil_infer_reshape(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_transpose(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_expand(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_squeeze(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_slice_size(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_slice_index(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_slice_update(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_concat(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_split(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_stack(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_tile(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_pad(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_blocks(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_gather(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_unbuffer(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_buffer(struct sg_mil_infer_ctx *w);
/* milstored.c: conversion between element types, and compressed constants (constexpr_*) */
segue_status sg_mil_infer_cast(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_quantize(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_dequantize(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_affine(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_palette(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_sparse(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_blockwise(struct sg_mil_infer_ctx *w);
/* milarith.c: arithmetic: elementwise, convolution, products, reductions, attention, sorting */
segue_status sg_mil_infer_const(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_same(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_broadcast(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_compare(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_select(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_conv(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_matmul(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_linear(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_einsum(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_reduce(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_arg(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_attention(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_topk(struct sg_mil_infer_ctx *w);
segue_status sg_mil_infer_argsort(struct sg_mil_infer_ctx *w);

#endif
