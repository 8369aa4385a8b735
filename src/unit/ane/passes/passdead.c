/* passdead.c: dead code elimination; see pass.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/passes/milrewrite.h"
#include "unit/ane/passes/pass.h"

/* Sets live[v] for every value that a result depends on. Operands have smaller numbers than results, so one
 * traversal from the end is enough. */
static void mark_live(const struct sg_mil_function *f, uint8_t *live)
{
    for (uint32_t i = 0; i < f->returns_n; i++) live[f->returns[i]] = 1;
    for (uint32_t o = f->ops_n; o-- > 0;) {
        const struct sg_mil_op *op = &f->ops[o];
        int live_op = 0;
        for (uint32_t i = 0; i < op->outputs; i++) live_op |= live[op->first + i];
        for (uint32_t i = 0; live_op && i < op->args_n; i++) {
            const struct sg_mil_arg *a = &op->args[i];
            if (a->kind == SG_MIL_REF) live[a->v.ref] = 1;
            for (uint32_t k = 0; a->kind == SG_MIL_LIST && k < a->n; k++) live[a->v.refs[k]] = 1;
        }
    }
}

/* An operation with several results stays when one of them is live. */
static void step(struct sg_mil_rewrite *r, const struct sg_mil_op *op)
{
    const uint8_t *live = r->ctx;
    int live_op = 0;
    for (uint32_t i = 0; i < op->outputs; i++) live_op |= live[op->first + i];
    if (live_op)
        sg_mil_rewrite_copy(r, op);
    else
        r->changes++;
}

/* Parameters are never removed: they are the program's interface. */
segue_status sg_pass_dead(struct sg_mil_program *p, uint64_t *changes, segue_error *err)
{
    static const struct sg_mil_pass pass = {.step = step};
    segue_status status = SEGUE_OK;
    for (uint32_t k = 0; k < p->functions_n && status == SEGUE_OK; k++) {
        uint8_t *live = sg_alloc((size_t)p->functions[k].values_n + 1);
        if (!live) return sg_no_memory("a pass over a program", p->functions[k].values_n, err);
        mark_live(&p->functions[k], live);
        status = sg_mil_rewrite(p, k, &pass, live, changes, err);
        sg_free(live);
    }
    return status;
}
