/* explain.h: what a function costs, from its types alone: operations, bytes, and the time that a profile's
 * figures give. Simulated: no engine was asked. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_EXPLAIN_H
#define SG_UNIT_ANE_EXPLAIN_H

#include "unit/ane/mil/mil.h"
#include "unit/ane/rules/profile.h"

struct sg_mil_cost {
    uint64_t ops; /* less constants and operations that only rename */
    uint64_t flops;
    uint64_t weight_bytes;      /* as stored: compressed ones in their compressed size */
    uint64_t border_bytes;      /* surfaces of inputs and outputs */
    uint64_t working_set_bytes; /* of the widest operation: what it reads and writes */
    uint64_t logical_bytes;     /* of inputs and outputs, before padding */
};
/* Types must have been checked. */
void sg_mil_cost_of(struct sg_mil_cost *out, const struct sg_mil_function *f,
                    const struct sg_ane_profile *profile);
/* One dispatch in microseconds. */
double sg_mil_expected_us(const struct sg_mil_cost *c, const struct sg_ane_profile *profile);
/* Products and sums of an operation. */
uint64_t sg_mil_flops(const struct sg_mil_function *f, const struct sg_mil_op *op);
/* 1: the operation only gives another shape or name to the same numbers. */
int sg_mil_is_view(const struct sg_mil_op *op);

#endif
