/* explain.h: estimated cost of a function from its types alone: operations, bytes, and time by the figures
 * of a profile. No engine is involved.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_EXPLAIN_H
#define SG_UNIT_ANE_EXPLAIN_H

#include "unit/ane/mil/mil.h"
#include "unit/ane/rules/profile.h"

struct sg_mil_cost {
    uint64_t ops;               /* operations without constants and views */
    uint64_t flops;             /* multiplications and additions */
    uint64_t int8_flops;        /* of flops, those of products in 8 bits */
    uint64_t weight_bytes;      /* constants as stored; compressed ones by their compressed size */
    uint64_t border_bytes;      /* surfaces of inputs and outputs */
    uint64_t working_set_bytes; /* operands and results of the widest operation */
    uint64_t logical_bytes;     /* inputs and outputs without padding */
    uint64_t layout_ops;        /* operations that only move numbers: sg_mil_is_layout */
    uint64_t transposes;        /* ... of these, transposes */
};
/* Sums up a function. Precondition: sg_mil_check_types found no error. */
void sg_mil_cost_of(struct sg_mil_cost *out, const struct sg_mil_function *f,
                    const struct sg_ane_profile *profile);
/* Estimated time of one dispatch in microseconds. */
double sg_mil_expected_us(const struct sg_mil_cost *c, const struct sg_ane_profile *profile);
/* Multiplications and additions of an operation; one per element for operations other than products. */
uint64_t sg_mil_flops(const struct sg_mil_function *f, const struct sg_mil_op *op);
/* 1: the operation only changes shape, layout or name. */
int sg_mil_is_view(const struct sg_mil_op *op);
/* Operations of a function that only move numbers, as in struct sg_mil_cost. */
uint64_t sg_mil_layout_ops(const struct sg_mil_function *f);
/* 1: the operation only moves numbers: shapes, transposes, slices, concatenations, copies, pads. */
int sg_mil_is_layout(const struct sg_mil_op *op);

#endif
