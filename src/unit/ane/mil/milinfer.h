/* milinfer.h: types and shapes: what every operation gives from what it takes, and the check of a whole
 * program against it. The engine's own compiler says FAILED and no more; here each disagreement has a place
 * and both shapes. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILINFER_H
#define SG_UNIT_ANE_MILINFER_H

#include "unit/ane/mil/mil.h"
#include "unit/ane/mil/milfault.h"

enum { SG_MIL_OUTPUTS_MAX = 64 };

/* The types of an operation's results, out[op->outputs <= SG_MIL_OUTPUTS_MAX]; op need not be in f yet, what
 * it reads must be. EFORMAT: operands that do not fit together; EUNSUPPORTED: an operation without a rule.
 * The text has no prefix. */
segue_status sg_mil_infer(const struct sg_mil_function *f, const struct sg_mil_op *op,
                          struct sg_mil_type *out, segue_error *err);
/* Arguments known, complete, constant where they must be; declared types equal to inferred ones. Every
 * finding is listed. */
void sg_mil_check_types(const struct sg_mil_program *p, struct sg_mil_faults *faults);

/* 1: the operation is a const or a constexpr_*: its result is fixed when the program is compiled. */
int sg_mil_is_const_op(const struct sg_mil_op *op);
/* 1: the value is the result of such an operation. 0: a parameter or computed at run time. */
int sg_mil_is_const_value(const struct sg_mil_function *f, uint32_t value);

/* An argument or, in the ios16 form of constexpr operations, an attribute, as a literal; NULL: none or
 * computed. */
const struct sg_mil_literal *sg_mil_const_literal(const struct sg_mil_function *f, const struct sg_mil_op *op,
                                             const char *name);
/* Whole numbers of a constant: out[SG_MIL_DIMS], how many in *n. 0: absent, not constant, not in the text, or
 * too many. */
int sg_mil_const_ints(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name, int64_t *out,
                  uint32_t *n);
int64_t sg_mil_const_int(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name,
                     int64_t fallback);
const char *sg_mil_const_text(const struct sg_mil_function *f, const struct sg_mil_op *op,
                           const char *name); /* NULL */
/* Axes of a reduction as a set of bits; all axes when none are given. 0: one is out of range. */
uint32_t sg_mil_const_axes(const struct sg_mil_function *f, const struct sg_mil_op *op, uint32_t rank);
/* Where a slice_by_index or slice_update begins and how it steps: begin[rank], count[rank], step[rank];
 * *squeezed bits. 0: the constants do not fit the shape. */
int sg_mil_slice(const struct sg_mil_function *f, const struct sg_mil_op *op, const struct sg_mil_type *x,
                 int64_t *begin, int64_t *count, int64_t *step, uint32_t *squeezed);
/* Padding of a convolution before (y, x), and its output's height and width. */
struct sg_mil_conv {
    int64_t stride[2], before[2], dilation[2], out[2], kernel[2], groups;
};
segue_status sg_mil_conv_geometry(const struct sg_mil_function *f, const struct sg_mil_op *op,
                            struct sg_mil_conv *c, segue_error *err);
/* An einsum's equation as letters: in[2][SG_MIL_DIMS], out; counts. 0: not two operands of single letters. */
struct sg_mil_einsum {
    char in[2][SG_MIL_DIMS + 1], out[SG_MIL_DIMS + 1];
};
int sg_mil_einsum_parse(const struct sg_mil_function *f, const struct sg_mil_op *op, struct sg_mil_einsum *e);

#endif
