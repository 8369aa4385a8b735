/* plan.c: plans: which unit runs which layers in which phase. segue_plan_make has no cost model yet: the first unit of the engine
 * prefills, the second one decodes. No unit is called. SPDX-License-Identifier: MIT */
#include "engine/placement/plan.h"

#include "base/buf.h"
#include "base/mem.h"
#include "engine/placement/layout.h"
#include "engine/sized.h"

enum { PARTS_MAX = 2 * SG_STAGES_MAX };

static segue_status plan_alloc(struct segue_plan **out, size_t parts_n, segue_error *err)
{
    struct segue_plan *p = sg_alloc(sizeof *p + parts_n * sizeof *p->parts);
    if (!p) return sg_no_memory("plan", sizeof *p + parts_n * sizeof *p->parts, err);
    p->info = (segue_plan_info){.size = sizeof p->info, .parts_n = parts_n};
    *out = p;
    return SEGUE_OK;
}

segue_status segue_plan_new(segue_plan **out, const segue_part *parts, size_t n, const segue_plan_opts *opts, segue_error *err)
{
    segue_plan_opts given;
    struct segue_plan *p = NULL;
    if (!out || !parts || !n)
        return sg_fail(err, SEGUE_EARG, "plan not made: out or parts is NULL, or there are no parts; pass at least one");
    if (n > PARTS_MAX)
        return sg_fail(err, SEGUE_EARG, "plan not made: %zu parts: the maximum is %d; merge some", n, (int)PARTS_MAX);
    SG_TRY(sg_sized_in(&given, sizeof given, opts, "plan options", err));
    SG_TRY(plan_alloc(&p, n, err));
    p->info.handoff_ns = given.handoff_ns;
    memcpy(p->info.shapes, given.shapes, sizeof given.shapes);
    for (size_t i = 0; i < n; i++) {
        segue_status status = sg_sized_in(&p->parts[i], sizeof p->parts[i], sg_sized_at(parts, i), "part of a plan", err);
        if (status == SEGUE_OK) continue;
        sg_free(p);
        return status;
    }
    *out = p;
    return SEGUE_OK;
}

segue_status sg_plan_copy(segue_plan **out, const struct segue_plan *plan, segue_error *err)
{
    SG_TRY(plan_alloc(out, plan->info.parts_n, err));
    (*out)->info = plan->info;
    memcpy((*out)->parts, plan->parts, plan->info.parts_n * sizeof *plan->parts);
    return SEGUE_OK;
}

/* All layers on one unit; cost unknown. */
static segue_part all_layers(uint32_t unit, segue_phase phase, uint32_t layers)
{
    return (segue_part){.size = sizeof(segue_part), .unit = unit, .phase = phase, .to = layers, .expect_j = -1};
}

segue_status segue_plan_make(segue_plan **out, const segue_engine *engine, const segue_task *task, segue_error *err)
{
    segue_task t;
    struct segue_plan *p = NULL;
    if (!engine || !out) return sg_fail(err, SEGUE_EARG, "plan not made: engine or out is NULL; pass both");
    SG_TRY(sg_sized_in(&t, sizeof t, task, "task", err));
    if ((unsigned)t.objective > SEGUE_OBJECTIVE_THROUGHPUT)
        return sg_fail(err, SEGUE_EARG, "plan not made: objective %d does not exist; use SEGUE_OBJECTIVE_*", (int)t.objective);
    SG_TRY(plan_alloc(&p, 2, err));
    p->parts[0] = all_layers(0, SEGUE_PREFILL, engine->graph->layers);
    p->parts[1] = all_layers(engine->placements_n > 1, SEGUE_DECODE, engine->graph->layers);
    *out = p;
    return SEGUE_OK;
}

segue_status segue_plan_info_get(const segue_plan *plan, segue_plan_info *out, segue_error *err)
{
    if (!plan) return sg_fail(err, SEGUE_EARG, "plan info not read: the plan is NULL; make one");
    return sg_sized_out(out, &plan->info, sizeof plan->info, "plan info", err);
}

segue_status segue_plan_part_get(const segue_plan *plan, size_t i, segue_part *out, segue_error *err)
{
    if (!plan) return sg_fail(err, SEGUE_EARG, "part of a plan not read: the plan is NULL; make one");
    if (i >= plan->info.parts_n) return SEGUE_END;
    return sg_sized_out(out, &plan->parts[i], sizeof plan->parts[i], "part of a plan", err);
}

void segue_plan_close(segue_plan *plan) { sg_free(plan); }

/* --- use with an engine --- */

/* The parts of a phase cover all layers once and in order, since rows are passed from part to part. */
static segue_status check_phase(const struct segue_engine *e, const struct segue_plan *plan, segue_phase phase, segue_error *err)
{
    static const char *const names[2] = {"prefill", "decode"};
    uint32_t at = 0, stages = 0;
    for (size_t i = 0; i < plan->info.parts_n; i++) {
        const segue_part *p = &plan->parts[i];
        if (p->phase != phase) continue;
        if (p->unit >= e->placements_n)
            return sg_fail(err, SEGUE_EARG,
                           "plan refused: part %zu: unit %u does not exist, the engine has %u; use a smaller index", i, p->unit,
                           e->placements_n);
        if (p->from != at || p->to <= p->from || p->to > e->graph->layers)
            return sg_fail(
                err, SEGUE_EARG,
                "plan refused: part %zu: layers %u to %u of %s do not follow layer %u of %u; cover every layer once, in "
                "order",
                i, p->from, p->to, names[phase], at, e->graph->layers);
        at = p->to;
        if (++stages > SG_STAGES_MAX)
            return sg_fail(err, SEGUE_EARG, "plan refused: %s: more than %d parts; merge some", names[phase], (int)SG_STAGES_MAX);
    }
    if (at == e->graph->layers) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "plan refused: %s: layers from %u of %u are in no part; cover all layers", names[phase], at,
                   e->graph->layers);
}

segue_status sg_plan_check(const struct segue_engine *e, const struct segue_plan *plan, segue_error *err)
{
    const uint32_t *shapes = plan->info.shapes;
    for (size_t i = 0; i < plan->info.parts_n; i++)
        if (plan->parts[i].phase != SEGUE_PREFILL && plan->parts[i].phase != SEGUE_DECODE)
            return sg_fail(err, SEGUE_EARG, "plan refused: part %zu: phase %d; use SEGUE_PREFILL or SEGUE_DECODE", i,
                           (int)plan->parts[i].phase);
    for (int i = 1; i < SEGUE_PLAN_SHAPES; i++)
        if (shapes[i] && shapes[i] <= shapes[i - 1])
            return sg_fail(err, SEGUE_EARG, "plan refused: shapes: %u tokens after %u; list them in ascending order", shapes[i],
                           shapes[i - 1]);
    SG_TRY(check_phase(e, plan, SEGUE_PREFILL, err));
    return check_phase(e, plan, SEGUE_DECODE, err);
}

/* One line per part; expected cost only when it is known. */
static void part_text(struct sg_buf *b, const struct segue_engine *e, const segue_part *p)
{
    sg_buf_printf(b, "%-7s %s layers %u-%u", p->phase == SEGUE_DECODE ? "decode" : "prefill",
                  e->placements[p->unit].unit->desc.info.spec, p->from, p->to - 1);
    if (p->expect_ns) sg_buf_printf(b, " %.3f ms", (double)p->expect_ns * 1e-6);
    if (p->expect_ns && p->expect_j >= 0) sg_buf_printf(b, " %.3f J", p->expect_j);
    sg_buf_puts(b, "\n");
}

segue_status segue_plan_text(const segue_engine *engine, const segue_plan *plan, char *text, size_t cap, size_t *len,
                             segue_error *err)
{
    struct sg_buf b = {0};
    if (!engine || !plan || !len || (cap && !text))
        return sg_fail(err, SEGUE_EARG, "plan not written: engine, plan, text or len is NULL; pass all");
    SG_TRY(sg_plan_check(engine, plan, err));
    for (size_t i = 0; i < plan->info.parts_n; i++) part_text(&b, engine, &plan->parts[i]);
    if (plan->info.handoff_ns) sg_buf_printf(&b, "handoff %.3f ms\n", (double)plan->info.handoff_ns * 1e-6);
    segue_status status = b.failed ? sg_no_memory("text of a plan", b.len, err)
                                   : sg_text_out(b.data, b.len, text, cap, len, "plan", err);
    sg_buf_free(&b);
    return status;
}
