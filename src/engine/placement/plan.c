/* plan.c: which unit runs which layers in which phase. A pure function of engine and task: no unit is called. It has no cost
 * model yet: the first unit of the engine prefills, the second one decodes. SPDX-License-Identifier: MIT */
#include "base/buf.h"
#include "engine/placement/layer_range.h"
#include "engine/sized.h"

enum { PARTS_MAX = sizeof(((segue_plan *)0)->parts) / sizeof(segue_part) };

/* All layers on one unit; cost unknown. */
static segue_part whole(uint32_t unit, uint32_t phase, uint32_t layers)
{
    return (segue_part){.unit = unit, .phase = phase, .from = 0, .to = layers, .expect_j = -1};
}

segue_status segue_plan_make(const segue_engine *engine, const segue_task *task, segue_plan *out,
                             segue_error *err)
{
    segue_task t;
    if (!engine || !out)
        return sg_fail(err, SEGUE_EARG, "plan not made: engine or result missing; pass both");
    SG_TRY(sg_sized_in(&t, sizeof t, task, "task", err));
    if (t.objective > 2)
        return sg_fail(err, SEGUE_EARG, "plan not made: objective %u does not exist; use 0, 1 or 2",
                       t.objective);
    segue_plan p = {.size = sizeof p, .parts_n = 2};
    p.parts[0] = whole(0, 0, engine->graph->layers);
    p.parts[1] = whole(engine->placements_n > 1, 1, engine->graph->layers);
    return sg_sized_out(out, &p, sizeof p, "plan", err);
}

/* The parts of a phase cover all layers once and in order, since rows are passed from part to part. */
static segue_status check_phase(const struct segue_engine *e, const segue_plan *plan, uint32_t phase,
                                segue_error *err)
{
    static const char *const names[2] = {"prefill", "decode"};
    uint32_t at = 0;
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        const segue_part *p = &plan->parts[i];
        if (p->phase != phase) continue;
        if (p->unit >= e->placements_n)
            return sg_fail(err, SEGUE_EARG,
                           "plan refused: part %u: unit %u does not exist, the engine has %u; use a smaller index", i,
                           p->unit, e->placements_n);
        if (p->from != at || p->to <= p->from || p->to > e->graph->layers)
            return sg_fail(err, SEGUE_EARG,
                           "plan refused: part %u: layers %u to %u of %s do not follow layer %u of %u; cover"
                           " every layer once, in order",
                           i, p->from, p->to, names[phase], at, e->graph->layers);
        at = p->to;
    }
    if (at == e->graph->layers) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "plan refused: %s: layers from %u of %u are in no part; cover all layers",
                   names[phase], at, e->graph->layers);
}

segue_status sg_plan_check(const struct segue_engine *e, const segue_plan *plan, segue_error *err)
{
    if (plan->parts_n > PARTS_MAX)
        return sg_fail(err, SEGUE_EARG, "plan refused: %u parts: the maximum is %d; join some", plan->parts_n,
                       (int)PARTS_MAX);
    for (uint32_t i = 0; i < plan->parts_n; i++)
        if (plan->parts[i].phase > 1)
            return sg_fail(err, SEGUE_EARG, "plan refused: part %u: phase %u does not exist; use 0 or 1", i,
                           plan->parts[i].phase);
    for (int i = 1; i < 4; i++)
        if (plan->shapes[i] && plan->shapes[i] <= plan->shapes[i - 1])
            return sg_fail(err, SEGUE_EARG,
                           "plan refused: shapes: %u tokens after %u; list them in ascending order",
                           plan->shapes[i], plan->shapes[i - 1]);
    SG_TRY(check_phase(e, plan, 0, err));
    return check_phase(e, plan, 1, err);
}

/* One line per part; expected cost only when it is known. */
static void part_text(struct sg_buf *b, const struct segue_engine *e, const segue_part *p)
{
    sg_buf_printf(b, "%-7s %s layers %u-%u", p->phase ? "decode" : "prefill",
                  e->placements[p->unit].unit->desc.info.spec, p->from, p->to - 1);
    if (p->expect_ns) sg_buf_printf(b, " %.3f ms", (double)p->expect_ns * 1e-6);
    if (p->expect_ns && p->expect_j >= 0) sg_buf_printf(b, " %.3f J", p->expect_j);
    sg_buf_puts(b, "\n");
}

segue_status segue_plan_text(const segue_engine *engine, const segue_plan *plan, char *text, size_t cap,
                             size_t *len, segue_error *err)
{
    segue_plan p;
    struct sg_buf b = {0};
    if (!engine || !plan || !len || (cap && !text))
        return sg_fail(err, SEGUE_EARG,
                       "plan not written: engine, plan, text or len is NULL; pass all");
    SG_TRY(sg_sized_in(&p, sizeof p, plan, "plan", err));
    SG_TRY(sg_plan_check(engine, &p, err));
    for (uint32_t i = 0; i < p.parts_n; i++) part_text(&b, engine, &p.parts[i]);
    if (p.handoff_ns) sg_buf_printf(&b, "handoff %.3f ms\n", (double)p.handoff_ns * 1e-6);
    segue_status status = b.failed ? sg_no_memory("text of a plan", b.len, err)
                                   : sg_text_out(b.data, b.len, text, cap, len, "plan", err);
    sg_buf_free(&b);
    return status;
}
