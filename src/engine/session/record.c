/* record.c: records what a session ran: sums per part of the plan, losses, and the last intervals if they were requested. All
 * memory is allocated when the session is opened. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/session/session.h"

enum { INTERVALS_MAX = 1 << 20 };

segue_status sg_record_alloc(struct segue_session *s, size_t intervals, segue_error *err)
{
    if (!intervals) return SEGUE_OK;
    if (intervals > INTERVALS_MAX)
        return sg_fail(err, SEGUE_EARG, "session not opened: %zu intervals: the maximum is %d; use a smaller number", intervals,
                       (int)INTERVALS_MAX);
    s->intervals = sg_alloc(2 * intervals * sizeof *s->intervals);
    if (!s->intervals) return sg_no_memory("record of a session", 2 * intervals * sizeof *s->intervals, err);
    s->intervals_cap = intervals;
    return SEGUE_OK;
}

/* The list has twice the requested capacity: when it is full, the older half is dropped at once and the rest stays contiguous. */
static void add_interval(struct segue_session *s, const segue_interval *interval)
{
    if (!s->intervals_cap) return;
    if (s->intervals_n == 2 * s->intervals_cap) {
        memmove(s->intervals, s->intervals + s->intervals_cap, s->intervals_cap * sizeof *s->intervals);
        s->intervals_n = s->intervals_cap;
    }
    s->intervals[s->intervals_n] = *interval;
    s->intervals[s->intervals_n++].size = sizeof *interval;
    s->stats.intervals_total++;
}

/* The entry of a part in a phase, added when it is missing; NULL: SG_USES_MAX parts were used. */
static segue_use *use_of(struct segue_session *s, const struct sg_layout_stage *stage, segue_phase phase)
{
    const struct sg_layer_range *t = stage->layer_range;
    segue_use *u = s->uses;
    size_t i = 0;
    while (i < s->stats.uses_n &&
           (u[i].unit != stage->placement || u[i].phase != phase || u[i].from != t->from || u[i].to != t->to))
        i++;
    if (i == SG_USES_MAX) return NULL;
    if (i == s->stats.uses_n)
        u[s->stats.uses_n++] =
            (segue_use){.size = sizeof *u, .unit = stage->placement, .phase = phase, .from = t->from, .to = t->to};
    return &u[i];
}

/* What a run did, whether it completed or failed. Returns the entry that it was added to; NULL: none is left. */
static segue_use *add_counters(struct segue_session *s, const struct sg_layout_stage *stage, segue_phase phase, uint64_t ns,
                               const struct sg_result *r)
{
    segue_use *use = use_of(s, stage, phase);
    if (!use) return NULL;
    use->dispatches += r->dispatches;
    use->ns += ns;
    use->host_bytes += r->host_bytes;
    use->overflows += r->overflows;
    use->underflows += r->underflows;
    use->layout_ops += r->layout_ops;
    return use;
}

void sg_record_failed_run(struct segue_session *s, const struct sg_layout_stage *stage, segue_phase phase, uint64_t start_ns,
                          const struct sg_result *r)
{
    if (r->dispatches || r->overflows || r->underflows) add_counters(s, stage, phase, sg_now_ns() - start_ns, r);
}

void sg_record_run(struct segue_session *s, const struct sg_layout_stage *stage, segue_phase phase, uint64_t start_ns,
                   uint32_t tokens_n, const struct sg_result *r)
{
    const struct sg_layer_range *t = stage->layer_range;
    uint64_t now = sg_now_ns();
    segue_use *use = add_counters(s, stage, phase, now - start_ns, r);
    segue_use *helper = r->helper_ns ? use_of(s, stage, SEGUE_HELPER) : NULL;
    if (use) {
        use->runs++;
        use->tokens += tokens_n;
        use->padded_tokens += r->columns;
        if (r->unseen > use->tokens_truncated) use->tokens_truncated = r->unseen;
    }
    if (helper) {
        helper->runs++;
        helper->tokens += tokens_n;
        helper->ns += r->helper_ns;
    }
    add_interval(s, &(segue_interval){.begin_ns = start_ns,
                                      .end_ns = now,
                                      .phase = phase,
                                      .unit = stage->placement,
                                      .to_unit = stage->placement,
                                      .from = t->from,
                                      .to = t->to,
                                      .pos = s->computed,
                                      .tokens = tokens_n});
}

void sg_record_handoff(struct segue_session *s, const struct sg_layout *from, const struct sg_layout *to, uint64_t start_ns,
                       uint64_t tokens_n)
{
    add_interval(s, &(segue_interval){.begin_ns = start_ns,
                                      .end_ns = sg_now_ns(),
                                      .phase = SEGUE_HANDOFF,
                                      .unit = from->stages[0].placement,
                                      .to_unit = to->stages[0].placement,
                                      .to = s->engine->graph->layers,
                                      .tokens = tokens_n});
}

void sg_record_loss(struct segue_session *s, const segue_loss *loss)
{
    s->losses[s->stats.losses_n++ % SG_LOSSES_MAX] = *loss;
}
