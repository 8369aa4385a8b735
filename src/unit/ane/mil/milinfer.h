/* milinfer.h: type inference: the result types of every operation from its operands, and the check of a
 * whole program. The engine's compiler only reports that it failed; these checks report the position and
 * both shapes.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILINFER_H
#define SG_UNIT_ANE_MILINFER_H

#include "unit/ane/mil/mil.h"
#include "unit/ane/mil/milfault.h"

enum { SG_MIL_OUTPUTS_MAX = 64 };

/* Result types of an operation into out[op->outputs], at most SG_MIL_OUTPUTS_MAX. op need not be part of f,
 * but its operands must be. EFORMAT: the operands do not fit together. EUNSUPPORTED: the operation has no
 * type rule. The error text has no prefix and no position. */
segue_status sg_mil_infer(const struct sg_mil_function *f, const struct sg_mil_op *op,
                          struct sg_mil_type *out, segue_error *err);
/* Checks all operations of a program: arguments known, complete and constant where required, declared types
 * equal to the inferred ones. Every finding is added to faults. */
void sg_mil_check_types(const struct sg_mil_program *p, struct sg_mil_faults *faults);

/* 1: the operation is a const or a constexpr_*, so its result is fixed when the program is compiled. */
int sg_mil_is_const_op(const struct sg_mil_op *op);
/* 1: the value is the result of such an operation, or of a dequantize of one. 0: a parameter or computed at run time. */
int sg_mil_is_const_value(const struct sg_mil_function *f, uint32_t value);
/* 1: a product both of whose operands are results of dequantize, which engines with 8-bit products compute in 8 bits. */
int sg_mil_is_int8_product(const struct sg_mil_function *f, const struct sg_mil_op *op);

/* The literal of an argument or, in the ios16 form of constexpr operations, of an attribute. NULL: absent,
 * or computed at run time. */
const struct sg_mil_literal *sg_mil_const_literal(const struct sg_mil_function *f, const struct sg_mil_op *op,
                                                  const char *name);
/* Integers of a constant argument into out[2 * SG_MIL_DIMS], their count into *n. 0: absent, computed at
 * run time, not numbers, in a blob, or more than fit. */
int sg_mil_const_ints(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name, int64_t *out,
                      uint32_t *n);
/* First integer of a constant argument, or its string; fallback or NULL when sg_mil_const_ints would return
 * 0 or the literal is not a string. */
int64_t sg_mil_const_int(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name,
                         int64_t fallback);
const char *sg_mil_const_text(const struct sg_mil_function *f, const struct sg_mil_op *op,
                              const char *name);
/* The argument "axes" as a bit set; all axes when it is absent. 0: an axis is out of range. */
uint32_t sg_mil_const_axes(const struct sg_mil_function *f, const struct sg_mil_op *op, uint32_t rank);
/* Resolves the bounds of a slice_by_index or slice_update of x: per axis the first element, the number of
 * elements and the step; *squeezed is the bit set of axes to remove. 0: the constants do not fit the shape. */
int sg_mil_slice(const struct sg_mil_function *f, const struct sg_mil_op *op, const struct sg_mil_type *x,
                 int64_t *begin, int64_t *count, int64_t *step, uint32_t *squeezed);
/* Geometry of a convolution; pairs are in the order (y, x). */
struct sg_mil_conv {
    int64_t stride[2], before[2], dilation[2], out[2], kernel[2], groups; /* before: padding; out: output size */
};
/* Reads the arguments of a conv. EFORMAT: operands or arguments do not fit together; the text has no
 * prefix. */
segue_status sg_mil_conv_geometry(const struct sg_mil_function *f, const struct sg_mil_op *op,
                                  struct sg_mil_conv *c, segue_error *err);
/* Equation of an einsum: the letters of both operands and of the result, as strings. */
struct sg_mil_einsum {
    char in[2][SG_MIL_DIMS + 1], out[SG_MIL_DIMS + 1];
};
/* 0: the equation is not one of two operands with single letters a-z. */
int sg_mil_einsum_parse(const struct sg_mil_function *f, const struct sg_mil_op *op, struct sg_mil_einsum *e);

#endif
