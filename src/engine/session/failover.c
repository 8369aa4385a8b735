/* failover.c: continuing after a unit was lost, and the calls that use it to retry: making states, running tokens, changing the
 * layout. The lost unit is restarted or another unit of the engine takes its layers; the host copy (recovery.c) is loaded
 * and the tokens after it are computed again in the same runs. SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "base/clock.h"
#include "engine/session/session.h"

enum { TRIES = 4 }; /* losses during one recovery */

/* --- the units of a layout --- */

/* Restarts a unit, for example as a new process. On success its programs are valid again. They are shared by all sessions of
 * the engine, so the unit is entered. */
static segue_status restart(struct segue_unit *u, segue_error *err)
{
    const struct sg_unit_ops *ops = sg_ops_of(u->unit);
    SG_TRY(sg_unit_enter(u, NULL, err));
    segue_status status = ops->restart(u->unit, err);
    sg_unit_leave(u);
    return status;
}

/* 1: every unit of the layout can be used again. `lost`: the layout that reported the loss; its units that cannot
 * be restarted are not used again. again: neither are those that were lost at the same position before. */
static int usable(const struct sg_layout *l, const struct sg_layout *lost, int again)
{
    int all = l->n > 0;
    for (uint32_t i = 0; i < l->n && all; i++) {
        struct segue_unit *u = l->stages[i].layer_range->unit;
        int suspect = 0;
        for (uint32_t k = 0; k < lost->n; k++) suspect |= lost->stages[k].layer_range->unit == u;
        if (!sg_ops_of(u->unit)->restart) all = !suspect;
        else all = !(suspect && again) && restart(u, NULL) == SEGUE_OK;
    }
    return all;
}

/* All layers on the first placement of the engine whose unit was not lost. If there is none, the error of the loss stays. */
static segue_status other_placement(struct segue_session *s, const struct sg_layout *lost, struct sg_layout *out,
                                    segue_error *err)
{
    struct segue_engine *e = s->engine;
    for (uint32_t p = 0; p < e->placements_n; p++) {
        struct segue_unit *u = e->placements[p].unit;
        int suspect = 0;
        for (uint32_t k = 0; k < lost->n; k++) suspect |= lost->stages[k].layer_range->unit == u;
        if (suspect || (sg_ops_of(u->unit)->restart && restart(u, NULL) != SEGUE_OK)) continue;
        if (sg_layout_of_placement(out, e, p, NULL) == SEGUE_OK) return SEGUE_OK;
    }
    return err ? err->status : SEGUE_ELOST;
}

/* --- recovery --- */

static void drop_states(struct segue_session *s)
{
    sg_flow_close(s->flow);
    for (uint32_t i = 0; i < 2; i++) sg_layout_drop_states(&s->layouts[i]);
}

/* Moves both layouts to units that can be used. */
static segue_status replace_layouts(struct segue_session *s, const struct sg_layout *lost, int again, segue_error *err)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct sg_layout other;
        if (usable(&s->layouts[i], lost, again)) continue;
        SG_TRY(other_placement(s, lost, &other, err));
        s->layouts[i] = other;
        sg_flow_free(s->flow); /* refers to the old layouts */
        s->flow = NULL;
    }
    s->split = !sg_layout_same(&s->layouts[0], &s->layouts[1]);
    return sg_session_make_flow(s, err);
}

/* Length of the next run of a replay: the same as of the original run, since the bits of the result depend on it. */
static uint32_t replay_rows(const struct segue_session *s, uint64_t target)
{
    uint64_t max = s->layouts[s->active].chunk_tokens, at = s->computed, end = at;
    while (end < target && end - at < max) {
        int edge = s->recovery.run_ends[end / 8] >> end % 8 & 1;
        end++;
        if (edge) break;
    }
    return (uint32_t)(end - at);
}

/* Computes the tokens up to `target` again, each on the layout that computed it before, and ends on layout `at`. */
static segue_status replay(struct segue_session *s, uint64_t target, uint32_t at, segue_error *err)
{
    while (s->computed < target) {
        uint64_t until = target;
        if (s->split && s->active == SG_PREFILL_LAYOUT && at == SG_DECODE_LAYOUT && s->recovery.handoff_pos < target)
            until = s->recovery.handoff_pos;
        if (s->computed >= until) {
            SG_TRY(sg_session_to_layout(s, SG_DECODE_LAYOUT, err));
            continue;
        }
        struct sg_run_request request = {.tokens_n = replay_rows(s, until), .token = -1};
        SG_TRY(sg_session_run_once(s, &request, err));
    }
    return s->split && s->active != at ? sg_session_to_layout(s, at, err) : SEGUE_OK;
}

/* Loads the host copy if it is complete, then replays the tokens after it. *kept = tokens that came from the copy. */
static segue_status restore(struct segue_session *s, uint64_t target, uint32_t at, uint64_t *kept, segue_error *err)
{
    const struct sg_recovery *r = &s->recovery;
    *kept = r->copy.complete && r->copy.tokens <= target ? r->copy.tokens : 0;
    s->active = s->split && at == SG_DECODE_LAYOUT && *kept < r->handoff_pos ? SG_PREFILL_LAYOUT : at;
    s->computed = 0;
    SG_TRY(sg_layout_states(&s->layouts[s->active], s->context < target + 512 ? s->context : target + 512, err));
    if (*kept) SG_TRY(sg_hostcopy_restore(&r->copy, s->engine->graph, &s->layouts[s->active], err));
    s->computed = *kept;
    return replay(s, target, at, err);
}

/* Adds a loss to the record: which unit was lost, where the session continues, and what that cost. */
static void note_loss(struct segue_session *s, const struct sg_layout *lost, uint64_t target, uint64_t kept, const char *why,
                 uint64_t start_ns)
{
    const struct sg_layout *now = &s->layouts[s->active];
    segue_loss l = {.size = sizeof l, .tokens = target, .replayed = target - kept, .ns = sg_now_ns() - start_ns};
    snprintf(l.unit, sizeof l.unit, "%s", lost->n ? lost->stages[0].layer_range->unit->desc.info.spec : "");
    snprintf(l.to, sizeof l.to, "%s", now->n ? now->stages[0].layer_range->unit->desc.info.spec : "");
    snprintf(l.why, sizeof l.why, "%.255s", why);
    sg_record_loss(s, &l);
}

/* Restores the states after a loss, on the same or on other units. err: in, the text of the loss. Another loss during recovery
 * starts it again, up to TRIES times. On failure the session has no states; its tokens are kept. */
static segue_status recover(struct segue_session *s, segue_error *err)
{
    struct sg_recovery *r = &s->recovery;
    const struct sg_layout gone = s->layouts[s->active];
    struct sg_layout lost = gone;
    uint64_t target = s->computed, kept = 0, start_ns = sg_now_ns();
    uint32_t at = s->active, known = s->logits_known;
    segue_error first = {.status = SEGUE_ELOST, .text = ""}, later = {0};
    if (err) first = *err;
    segue_status status = SEGUE_ELOST;
    for (int i = 0; i < TRIES && status == SEGUE_ELOST; i++) {
        r->losses_there = r->loss_pos == target ? r->losses_there + 1 : 0;
        r->loss_pos = target;
        drop_states(s);
        sg_session_drop_lost_checkpoints(s, &lost);
        status = replace_layouts(s, &lost, r->losses_there > 1, &first);
        if (status != SEGUE_OK) break;
        later = first;
        status = restore(s, target, at, &kept, &later);
        lost = s->layouts[s->active];
    }
    if (status == SEGUE_OK) {
        note_loss(s, &gone, target, kept, first.text, start_ns);
        s->logits_known = known == SG_LOGITS_HERE; /* logits on the unit are lost */
        return SEGUE_OK;
    }
    drop_states(s);
    s->computed = 0;
    s->logits_known = 0;
    return sg_fail(err, status, "%s", status == SEGUE_ELOST || !later.text[0] ? first.text : later.text);
}

/* --- calls that retry --- */

segue_status sg_session_to_layout_retry(struct segue_session *s, uint32_t to, segue_error *err)
{
    segue_error local, *why = err ? err : &local;
    struct sg_recovery *r = &s->recovery;
    segue_status status = SEGUE_OK;
    /* A replay knows one hand-off only: copies the states before a second one since the last copy. */
    if (r->handoff_pos > (r->copy.complete ? r->copy.tokens : 0)) {
        r->runs_since_copy = SG_RECOVERY_RUNS_MAX;
        status = sg_recovery_update(s, 0, why);
    }
    if (status == SEGUE_OK) status = sg_session_to_layout(s, to, why);
    for (int i = 0; i < TRIES && status == SEGUE_ELOST; i++) {
        SG_TRY(recover(s, why));
        status = s->split ? sg_session_to_layout(s, to, why) : SEGUE_OK;
    }
    if (status == SEGUE_OK && to == SG_DECODE_LAYOUT) r->handoff_pos = s->computed;
    return status;
}

segue_status sg_session_make_states(struct segue_session *s, segue_error *err)
{
    struct sg_layout *l = &s->layouts[s->active];
    if (sg_layout_holds(l)) return SEGUE_OK;
    s->computed = 0;
    sg_flow_close(s->flow);
    segue_error local, *why = err ? err : &local;
    segue_status status = sg_layout_states(l, sg_session_capacity(s, l), why);
    return status == SEGUE_ELOST ? recover(s, why) : status;
}

segue_status sg_session_run(struct segue_session *s, struct sg_run_request *request, segue_error *err)
{
    segue_error local, *why = err ? err : &local;
    segue_status status = sg_recovery_update(s, request->tokens_n, why);
    if (status == SEGUE_OK) status = sg_session_run_once(s, request, why);
    while (status == SEGUE_ELOST) {
        SG_TRY(recover(s, why));  /* bounds the number of attempts */
        status = sg_session_run_once(s, request, why);
    }
    return status;
}
