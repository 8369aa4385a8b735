/* miltypes.h: the rules of types, a function each, and what they share. Inside the inference only: milinfer.c
 * calls them. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILRULES_H
#define SG_UNIT_ANE_MILRULES_H

#include "unit/ane/mil/milinfer.h"

/* What a rule reads and writes. */
struct sg_mil_work {
    const struct sg_mil_function *f;
    const struct sg_mil_op *op;
    struct sg_mil_type *out;     /* [op->outputs] */
    const struct sg_mil_type *x; /* of the first argument "x", "input" or "query"; NULL */
    segue_error *err;
};

#define SG_MIL_WRONG(...) sg_fail(w->err, SEGUE_EFORMAT, __VA_ARGS__)

/* The type of an argument or attribute; NULL: not given, or a list. */
const struct sg_mil_type *sg_mil_work_type(struct sg_mil_work *w, const char *name);
/* The types of a list argument: types[i] for i < returned count; 0 with the error set when it is no list or
 * empty. */
uint32_t sg_mil_work_list(struct sg_mil_work *w, const char *name, const struct sg_mil_type **types,
                          uint32_t most);
/* An axis argument within the rank; SG_MIL_DIMS with the error set when it is not. */
uint32_t sg_mil_work_axis(struct sg_mil_work *w, const char *name, int64_t otherwise, uint32_t rank);
/* OK when the vector is absent or has so many numbers. */
segue_status sg_mil_work_vector(struct sg_mil_work *w, const char *name, uint64_t elements);
/* x without the axes of the set, or with 1 in their places. */
void sg_mil_reduced(const struct sg_mil_type *x, uint32_t axes, int keep, struct sg_mil_type *out);

/* milshape.c: what moves numbers about */
segue_status sg_mil_rule_reshape(struct sg_mil_work *w);
segue_status sg_mil_rule_transpose(struct sg_mil_work *w);
segue_status sg_mil_rule_expand(struct sg_mil_work *w);
segue_status sg_mil_rule_squeeze(struct sg_mil_work *w);
segue_status sg_mil_rule_slice_size(struct sg_mil_work *w);
segue_status sg_mil_rule_slice_index(struct sg_mil_work *w);
segue_status sg_mil_rule_slice_update(struct sg_mil_work *w);
segue_status sg_mil_rule_concat(struct sg_mil_work *w);
segue_status sg_mil_rule_split(struct sg_mil_work *w);
segue_status sg_mil_rule_stack(struct sg_mil_work *w);
segue_status sg_mil_rule_tile(struct sg_mil_work *w);
segue_status sg_mil_rule_pad(struct sg_mil_work *w);
segue_status sg_mil_rule_blocks(struct sg_mil_work *w);
segue_status sg_mil_rule_gather(struct sg_mil_work *w);
segue_status sg_mil_rule_unbuffer(struct sg_mil_work *w);
segue_status sg_mil_rule_buffer(struct sg_mil_work *w);
/* milstored.c: numbers in other storages */
segue_status sg_mil_rule_cast(struct sg_mil_work *w);
segue_status sg_mil_rule_quantize(struct sg_mil_work *w);
segue_status sg_mil_rule_dequantize(struct sg_mil_work *w);
segue_status sg_mil_rule_affine(struct sg_mil_work *w);
segue_status sg_mil_rule_palette(struct sg_mil_work *w);
segue_status sg_mil_rule_sparse(struct sg_mil_work *w);
segue_status sg_mil_rule_blockwise(struct sg_mil_work *w);
/* milarith.c: what computes */
segue_status sg_mil_rule_const(struct sg_mil_work *w);
segue_status sg_mil_rule_same(struct sg_mil_work *w);
segue_status sg_mil_rule_broadcast(struct sg_mil_work *w);
segue_status sg_mil_rule_compare(struct sg_mil_work *w);
segue_status sg_mil_rule_select(struct sg_mil_work *w);
segue_status sg_mil_rule_conv(struct sg_mil_work *w);
segue_status sg_mil_rule_matmul(struct sg_mil_work *w);
segue_status sg_mil_rule_linear(struct sg_mil_work *w);
segue_status sg_mil_rule_einsum(struct sg_mil_work *w);
segue_status sg_mil_rule_reduce(struct sg_mil_work *w);
segue_status sg_mil_rule_arg(struct sg_mil_work *w);
segue_status sg_mil_rule_attention(struct sg_mil_work *w);
segue_status sg_mil_rule_topk(struct sg_mil_work *w);
segue_status sg_mil_rule_argsort(struct sg_mil_work *w);

#endif
