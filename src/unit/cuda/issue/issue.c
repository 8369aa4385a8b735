/* issue.c: selects how a step is issued: as the beginning of a cluster fusion, or as a product, attention, delta rule or
 * single op. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* A single op that is not a linear. */
static segue_status issue_op(struct cu_pass *p, const struct sg_op *op)
{
    switch (op->code) {
    case SG_OP_ATTEND:
        return cu_issue_attention(p, NULL, op);
    case SG_OP_CONV:
        return cu_issue_conv(p, op);
    case SG_OP_DELTA:
        return cu_issue_delta(p, op, NULL);
    case SG_OP_JOIN:
        return cu_issue_join(p, op);
    default:
        return cu_issue_small(p, op);
    }
}

/* cu_cluster_settle: a step that is not a fusion reads values, not partial sums. */
segue_status cu_issue(struct cu_pass *p, const struct cu_step *s, uint32_t *steps)
{
    SG_TRY(cu_cluster_issue(p, s, steps));
    if (*steps) return SEGUE_OK;
    *steps = 1;
    SG_TRY(cu_cluster_settle(p, s));
    if (s->kind == CU_STEP_PRODUCT) return cu_issue_product(p, s);
    if (s->kind == CU_STEP_ATTEND) return cu_issue_attention(p, s, s->attend);
    return s->conv ? cu_issue_delta(p, s->op, s->conv) : issue_op(p, s->op);
}
