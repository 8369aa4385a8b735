/* anehead.c: the program of option head=engine (lower/lowerhead.h): output head and greedy choice for one row. It does not depend
 * on the shape of a dispatch, so a graph has one. See aneunit.h.
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "unit/ane/aneunit.h"

segue_status ane_head_ready(struct sg_program *p, segue_error *err)
{
    return p->head_program ? SEGUE_OK : ane_head_load(p, &p->head_program, err);
}

void ane_head_drop(struct sg_program *p)
{
    if (p->head_program) sg_ane_ops_of(p->head_program)->unload(p->head_program);
    p->head_program = NULL;
}

/* Column 0 of the channels of the result. */
static segue_status read_choice(struct sg_program *p, struct sg_ane_surface *s, float choice[SG_ANE_CHOICE], segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(s);
    const struct sg_ane_port *in, *out;
    uint32_t in_n, out_n;
    void *bytes;
    SG_TRY(ops->ports(p->head_program, 0, &in, &in_n, &out, &out_n, err));
    SG_TRY(ops->lock(s, 0, &bytes, NULL, err));
    for (int c = 0; c < SG_ANE_CHOICE; c++)
        choice[c] = sg_f32_of_f16(*(const uint16_t *)(const void *)((const char *)bytes + (size_t)c * out[0].row_bytes));
    ops->unlock(s);
    return SEGUE_OK;
}

/* A highest logit that is not finite is the only sign of an overflow on an engine that does not count. */
segue_status ane_head_evaluate(struct sg_program *p, int turn, int32_t *token, segue_error *err)
{
    struct sg_ane_surface *in[] = {p->x[turn]}, *out[] = {p->x[!turn]};
    const uint32_t vocab = p->head.linear->u.linear.weight.rows;
    float choice[SG_ANE_CHOICE];
    if (!p->head_program)
        return sg_fail(err, SEGUE_ELIMIT, "run: ane: head=engine: its program does not fit the compile budget; use head=helper");
    SG_TRY(sg_ane_ops_of(p->head_program)->evaluate(p->head_program, 0, in, out, err));
    SG_TRY(read_choice(p, out[0], choice, err));
    if (!(choice[2] > -65505.0f && choice[2] < 65505.0f))
        return sg_fail(err, SEGUE_EUNSUPPORTED, "run: ane: the highest logit exceeds fp16; use head=helper");
    float at = choice[0] * SG_ANE_HEAD_SLICE + choice[1];
    if (!(at >= 0 && at < (float)vocab))
        return sg_fail(err, SEGUE_EUNIT, "run: ane: the engine chose %g, which is not one of %u tokens; use head=helper",
                       (double)at, vocab);
    *token = (int32_t)at;
    return SEGUE_OK;
}
