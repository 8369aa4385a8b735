/* oprules.h: the rules that single operations must hold; rules.c walks.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_OPRULES_H
#define SG_UNIT_ANE_OPRULES_H

#include "unit/ane/rules/rules.h"

enum { SG_ANE_HAS_MATMUL = 1, SG_ANE_HAS_SOFTMAX = 2 };
struct sg_ane_check {
    const struct sg_mil_program *p;
    const struct sg_mil_function *f;
    const struct sg_ane_profile *profile;
    struct sg_mil_faults *faults;
    int target;   /* of the function: 16, 17, 18 */
    uint32_t has; /* what stands beside it in the function */
};
void sg_ane_check_op(struct sg_ane_check *c, const struct sg_mil_op *op);

#endif
