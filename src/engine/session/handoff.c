/* handoff.c: the states of a session between the layout where it reads and the one where it writes.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "engine/session/session.h"
#include "engine/transfer/bridge.h"

/* A moved state expects about as much to come as a new one. */
static uint64_t room_rows(const struct segue_session *s)
{
    return s->context - s->tokens_n < 512 ? s->context : s->tokens_n + 512;
}

/* --- beside runs --- */

segue_status sg_session_make_flow(struct segue_session *s, segue_error *err)
{
    sg_flow_free(s->flow);
    s->flow = NULL;
    if (!s->split) return SEGUE_OK;
    return sg_flow_new(&s->flow, &s->layouts[SG_PREFILL_LAYOUT], &s->layouts[SG_DECODE_LAYOUT], s->engine->graph, err);
}

/* A unit that is at work lets nobody in until it is done, so states are made before the reading begins, and
 * what is left behind is freed when it can be without waiting. */
int sg_session_flow_open(struct segue_session *s)
{
    struct sg_layout *to = &s->layouts[SG_DECODE_LAYOUT];
    if (!s->split || s->active != SG_PREFILL_LAYOUT) return 0;
    if (s->flow) return sg_flow_open(s->flow, room_rows(s));
    if (!sg_layout_holds(to)) (void)sg_layout_bare_states(to, NULL);
    return 0;
}

/* States may leave for any unit of the engine that takes them as they lie; ways between units rest when they are not used. */
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
    s->stats.copied_bytes += after.bytes - before.bytes;
    return done;
}

/* The rest of a hand-off that was on its way. */
static segue_status finish(struct segue_session *s, uint64_t begun, segue_error *err)
{
    struct sg_layout *from = &s->layouts[SG_PREFILL_LAYOUT];
    struct sg_flow_sums before, after;
    sg_flow_sums(s->flow, &before);
    segue_status status = sg_flow_finish(s->flow, s->computed, err);
    sg_flow_sums(s->flow, &after);
    s->stats.handoff_bytes += after.bytes - before.bytes;
    s->stats.copied_bytes += after.bytes - before.bytes;
    if (status != SEGUE_OK) return status;
    uint64_t ns = sg_now_ns() - begun;
    s->stats.handoff_ns += ns;
    s->stats.handoff_exposed_ns += ns;
    s->stats.direct = 0;
    sg_record_handoff(s, from, &s->layouts[SG_DECODE_LAYOUT], begun, s->computed);
    return SEGUE_OK;
}

/* --- at once --- */

segue_status sg_session_move_states(struct segue_session *s, struct sg_layout *from, struct sg_layout *to,
                                    segue_error *err)
{
    struct sg_move_stats moved;
    uint64_t begun = sg_now_ns();
    SG_TRY(sg_bridge_move(from, to, room_rows(s), &moved, err));
    s->stats.handoff_ns += moved.ns;
    s->stats.handoff_exposed_ns += moved.ns;
    s->stats.handoff_bytes += moved.bytes;
    s->stats.copied_bytes += moved.copied_bytes;
    s->stats.direct = !moved.copied_bytes;
    sg_record_handoff(s, from, to, begun, moved.rows);
    return SEGUE_OK;
}

segue_status sg_session_to_layout(struct segue_session *s, uint32_t to, segue_error *err)
{
    if (s->active == to) return SEGUE_OK;
    uint64_t begun = sg_now_ns();
    sg_session_fetch_logits(s);
    if (to == SG_PREFILL_LAYOUT) sg_layout_drop_states(&s->layouts[to]); /* what was left behind there */
    if (sg_layout_holds(&s->layouts[s->active])) {
        int done = s->flow && to == SG_DECODE_LAYOUT && finish(s, begun, NULL) == SEGUE_OK;
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
    if (!to) return sg_fail(err, SEGUE_EARG, "state not moved: no unit given; pass one of the engine's");
    struct segue_engine *e = session->engine;
    uint32_t place = 0;
    while (place < e->placements_n && e->placements[place].unit != to) place++;
    if (place == e->placements_n)
        return sg_fail(err, SEGUE_EARG,
                       "state not moved: %s: the engine was not opened with this unit; open it with both",
                       to->desc.info.spec);
    SG_TRY(sg_layout_of_placement(&layout, e, place, err));
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
