/* oprules.h: constraints on single operations; internal to the rules. rules.c calls this for every
 * operation.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_OPRULES_H
#define SG_UNIT_ANE_OPRULES_H

#include "unit/ane/rules/rules.h"

/* Operations that occur in a function; bits of sg_ane_check.has. */
enum { SG_ANE_HAS_MATMUL = 1, SG_ANE_HAS_SOFTMAX = 2 };
/* What the checks of one function need. */
struct sg_ane_check {
    const struct sg_mil_program *p;
    const struct sg_mil_function *f;
    const struct sg_ane_profile *profile;
    struct sg_mil_faults *faults;
    int target;   /* NN of the function's target iosNN */
    uint32_t has; /* SG_ANE_HAS_* of the whole function */
};
/* Checks one operation against all constraints. Operations without a type rule are skipped. */
void sg_ane_check_op(struct sg_ane_check *c, const struct sg_mil_op *op);

#endif
