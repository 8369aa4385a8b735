/* handoff.c: moves the states of a session between its prefill and its decode layout: streamed during prefill (transfer/flow.h)
 * or in one piece after it (transfer/bridge.h).
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "engine/session/session.h"
#include "engine/transfer/bridge.h"

enum { AHEAD_TOKENS = 512 }; /* capacity of states beyond their tokens */

uint64_t sg_session_capacity(const struct segue_session *s, const struct sg_layout *l)
{
    const struct sg_host_memory *host = l->stages[0].host;
    int passed_on = s->split && l == &s->layouts[SG_PREFILL_LAYOUT] && host && host->attachable;
    if (passed_on) return s->tokens_n;
    return s->context - s->tokens_n < AHEAD_TOKENS ? s->context : s->tokens_n + AHEAD_TOKENS;
}

/* --- during prefill --- */

segue_status sg_session_make_flow(struct segue_session *s, segue_error *err)
{
    sg_flow_free(s->flow);
    s->flow = NULL;
    if (!s->split) return SEGUE_OK;
    return sg_flow_new(&s->flow, &s->layouts[SG_PREFILL_LAYOUT], &s->layouts[SG_DECODE_LAYOUT], s->engine->graph, err);
}

/* A unit runs one call at a time, so the states of the decode layout are created before prefill starts, and those that a
 * hand-off leaves in the prefill layout are freed when no run has to be waited for (sg_session_free_stale). */
int sg_session_flow_open(struct segue_session *s)
{
    struct sg_layout *to = &s->layouts[SG_DECODE_LAYOUT];
    if (!s->split || s->active != SG_PREFILL_LAYOUT) return 0;
    if (s->flow) return sg_flow_open(s->flow, sg_session_capacity(s, to));
    if (!sg_layout_holds(to)) (void)sg_layout_bare_states(to, NULL);
    return 0;
}

/* Wakes the links between units of one kind, which power down when idle: a hand-off by state_transfer may follow. */
void sg_session_prewarm_peers(const struct segue_session *s)
{
    const struct sg_layout *l = &s->layouts[s->active];
    for (uint32_t i = 0; i < l->n; i++) {
        struct sg_unit *from = l->stages[i].layer_range->unit->unit;
        const struct sg_unit_ops *ops = sg_ops_of(from);
        for (uint32_t k = 0; ops->peer_prewarm && k < s->engine->placements_n; k++) {
            struct sg_unit *to = s->engine->placements[k].unit->unit;
            if (to != from && sg_ops_of(to) == ops) ops->peer_prewarm(from, to);
        }
    }
}

void sg_session_free_stale(struct segue_session *s)
{
    if (s->split && s->active == SG_DECODE_LAYOUT) sg_layout_try_drop(&s->layouts[SG_PREFILL_LAYOUT]);
}

int sg_session_flow_send(struct segue_session *s, uint32_t k, uint32_t rows, int last)
{
    struct sg_flow_sums before, after;
    sg_flow_sums(s->flow, &before);
    int done = sg_flow_send(s->flow, k, s->computed, s->computed + rows, last);
    sg_flow_sums(s->flow, &after);
    s->stats.handoff_ns += after.ns - before.ns;
    s->stats.handoff_bytes += after.bytes - before.bytes;
    s->stats.copied_bytes += after.copied - before.copied;
    return done;
}

/* Completes a streamed hand-off; its remaining time is exposed. */
static segue_status finish_flow(struct segue_session *s, uint64_t start_ns, segue_error *err)
{
    struct sg_layout *from = &s->layouts[SG_PREFILL_LAYOUT];
    struct sg_flow_sums before, after;
    sg_flow_sums(s->flow, &before);
    segue_status status = sg_flow_finish(s->flow, s->computed, err);
    sg_flow_sums(s->flow, &after);
    s->stats.handoff_bytes += after.bytes - before.bytes;
    s->stats.copied_bytes += after.copied - before.copied;
    if (status != SEGUE_OK) return status;
    uint64_t ns = sg_now_ns() - start_ns;
    s->stats.handoff_ns += ns;
    s->stats.handoff_exposed_ns += ns;
    s->stats.direct = 0;
    sg_record_handoff(s, from, &s->layouts[SG_DECODE_LAYOUT], start_ns, s->computed);
    return SEGUE_OK;
}

/* --- after prefill --- */

segue_status sg_session_move_states(struct segue_session *s, struct sg_layout *from, struct sg_layout *to,
                                    segue_error *err)
{
    struct sg_move_stats moved;
    uint64_t start_ns = sg_now_ns();
    SG_TRY(sg_bridge_move(from, to, sg_session_capacity(s, to), &moved, err));
    s->stats.handoff_ns += moved.ns;
    s->stats.handoff_exposed_ns += moved.ns;
    s->stats.handoff_bytes += moved.bytes;
    s->stats.copied_bytes += moved.copied_bytes;
    s->stats.direct = !moved.copied_bytes;
    sg_record_handoff(s, from, to, start_ns, moved.tokens);
    return SEGUE_OK;
}

segue_status sg_session_to_layout(struct segue_session *s, uint32_t to, segue_error *err)
{
    if (s->active == to) return SEGUE_OK;
    uint64_t start_ns = sg_now_ns();
    sg_session_fetch_logits(s);
    if (to == SG_PREFILL_LAYOUT) sg_layout_drop_states(&s->layouts[to]); /* stale states of an earlier hand-off */
    if (sg_layout_holds(&s->layouts[s->active])) {
        int done = s->flow && to == SG_DECODE_LAYOUT && finish_flow(s, start_ns, NULL) == SEGUE_OK;
        if (!done) SG_TRY(sg_session_move_states(s, &s->layouts[s->active], &s->layouts[to], err));
    }
#ifdef SEGUE_FAULTS
    if (to == SG_DECODE_LAYOUT) sg_fault_ulp_now(&s->layouts[to]);
#endif
    s->active = to;
    if (to == SG_PREFILL_LAYOUT) sg_layout_drop_states(&s->layouts[SG_DECODE_LAYOUT]);
    sg_session_free_stale(s);
    return SEGUE_OK;
}

segue_status segue_session_move(segue_session *session, segue_unit *to, segue_error *err)
{
    struct sg_layout layout;
    SG_TRY(sg_session_check(session, "state not moved", err));
    if (!to) return sg_fail(err, SEGUE_EARG, "state not moved: the unit is NULL; pass one of the engine's units");
    struct segue_engine *e = session->engine;
    uint32_t placement = 0;
    while (placement < e->placements_n && e->placements[placement].unit != to) placement++;
    if (placement == e->placements_n)
        return sg_fail(err, SEGUE_EARG,
                       "state not moved: %s: the engine was opened without this unit; open it with both",
                       to->desc.info.spec);
    SG_TRY(sg_layout_of_placement(&layout, e, placement, err));
    sg_session_fetch_logits(session);
    sg_flow_close(session->flow);
    sg_layout_drop_states(&session->layouts[1 - session->active]);
    struct sg_layout *now = &session->layouts[session->active];
    if (sg_layout_same(now, &layout)) {
        layout = *now;
    } else if (sg_layout_holds(now)) {
        SG_TRY(sg_session_move_states(session, now, &layout, err));
        sg_layout_drop_states(now);
    }
    sg_flow_free(session->flow);
    session->flow = NULL;
    session->layouts[0] = session->layouts[1] = layout;
    for (uint32_t i = 0; i < layout.n; i++) session->layouts[SG_DECODE_LAYOUT].stages[i].state = NULL;
    session->active = SG_PREFILL_LAYOUT;
    session->split = 0;
    return SEGUE_OK;
}
