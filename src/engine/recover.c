/* recover.c: see recover.h. SPDX-License-Identifier: MIT */
#include "engine/recover.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/session.h"

enum {
    RUNS_MOST = 32, /* runs of few rows between two copies: each copy costs about one of them */
    TRIES = 4,      /* losses during one recovery */
    ROOM_ROWS = 512
};

/* --- what is remembered --- */

segue_status sg_recovery_room(struct segue_session *s, segue_error *err)
{
    size_t bytes = s->context / 8 + 1;
    s->recovery.edges = sg_alloc(bytes);
    return s->recovery.edges ? SEGUE_OK : sg_no_memory("session", bytes, err);
}

void sg_recovery_free(struct segue_session *s)
{
    sg_hostcopy_free(&s->recovery.copy);
    sg_free(s->recovery.edges);
}

void sg_recovery_ran(struct segue_session *s, uint32_t rows)
{
    uint8_t *edges = s->recovery.edges;
    for (uint64_t i = s->computed - rows; i < s->computed; i++) edges[i / 8] &= (uint8_t)~(1u << i % 8);
    edges[(s->computed - 1) / 8] |= (uint8_t)(1u << (s->computed - 1) % 8);
    s->recovery.runs++;
}

void sg_recovery_cut(struct segue_session *s, uint64_t rows)
{
    sg_hostcopy_cut(&s->recovery.copy, rows);
    if (s->recovery.moved_at > rows) s->recovery.moved_at = rows;
}

void sg_recovery_jumped(struct segue_session *s)
{
    sg_recovery_cut(s, 0);
    s->recovery.runs = RUNS_MOST;
}

void sg_recovery_fork(struct segue_session *to, const struct segue_session *from)
{
    memcpy(to->recovery.edges, from->recovery.edges, from->context / 8 + 1);
    to->recovery.moved_at = from->recovery.moved_at;
}

static int may_disconnect(const struct segue_session *s)
{
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < s->layouts[i].n; k++)
            if (s->layouts[i].stages[k].layer_range->unit->desc.may_disconnect) return 1;
    return 0;
}

/* A copy is due before the next chunk, and after a number of short runs; not just after a move, where it would stand
 * before the first token. No memory for it: a loss will cost more. */
segue_status sg_recovery_keep(struct segue_session *s, uint32_t rows, segue_error *err)
{
    struct sg_recovery *r = &s->recovery;
    uint64_t since = s->computed - (r->copy.whole ? r->copy.rows : 0);
    uint64_t ahead = s->context - s->tokens_n < ROOM_ROWS ? s->context : s->tokens_n + ROOM_ROWS;
    /* Room is made while a prompt is read: between two tokens nothing is allocated. */
    if ((rows > 1 || !s->computed) && may_disconnect(s))
        sg_hostcopy_room(&r->copy, s->engine->graph, &s->layouts[SG_DECODE_LAYOUT], ahead, NULL);
    int due = r->runs >= RUNS_MOST || (rows > 1 && since >= s->layouts[s->at].chunk_rows);
    if (!since || !due || !may_disconnect(s) || !sg_layout_holds(&s->layouts[s->at])) return SEGUE_OK;
    segue_status status = sg_hostcopy_take(&r->copy, s->engine->graph, &s->layouts[s->at], s->computed, err);
    r->runs = 0;
    return status == SEGUE_EMEMORY ? SEGUE_OK : status;
}

/* --- the units of a layout --- */

/* OK: the unit is there, maybe as a new process. Programs are valid again; they are the engine's and shared by sessions, so
 * the unit's queue is entered. */
static segue_status bring_back(struct segue_unit *u, segue_error *err)
{
    const struct sg_unit_ops *ops = sg_ops_of(u->unit);
    SG_TRY(sg_unit_enter(u, NULL, err));
    segue_status status = ops->restart(u->unit, err);
    sg_unit_leave(u);
    return status;
}

/* 1: every unit of the layout can be used again. `lost`: the layout that reported the loss; its units that know no restart
 * are given up. again: a unit that was lost in the same place before is given up, too. */
static int usable(const struct sg_layout *l, const struct sg_layout *lost, int again)
{
    int all = l->n > 0;
    for (uint32_t i = 0; i < l->n && all; i++) {
        struct segue_unit *u = l->stages[i].layer_range->unit;
        int suspect = 0;
        for (uint32_t k = 0; k < lost->n; k++) suspect |= lost->stages[k].layer_range->unit == u;
        if (!sg_ops_of(u->unit)->restart) all = !suspect;
        else all = !(suspect && again) && bring_back(u, NULL) == SEGUE_OK;
    }
    return all;
}

/* All layers on the first place of the engine that is none of the lost ones; a slower unit is better than none. */
static segue_status elsewhere(struct segue_session *s, const struct sg_layout *lost, struct sg_layout *out, segue_error *err)
{
    struct segue_engine *e = s->engine;
    for (uint32_t p = 0; p < e->places_n; p++) {
        struct segue_unit *u = e->places[p].unit;
        int suspect = 0;
        for (uint32_t k = 0; k < lost->n; k++) suspect |= lost->stages[k].layer_range->unit == u;
        if (suspect || (sg_ops_of(u->unit)->restart && bring_back(u, NULL) != SEGUE_OK)) continue;
        if (sg_layout_of_place(out, e, p, NULL) == SEGUE_OK) return SEGUE_OK;
    }
    return err ? err->status : SEGUE_ELOST;  /* the text of the loss stays */
}

/* --- recovery --- */

static void drop_states(struct segue_session *s)
{
    sg_flow_close(s->flow);
    sg_flow_close(s->flow);
    for (uint32_t i = 0; i < 2; i++) sg_layout_drop_states(&s->layouts[i]);
}

/* Both layouts on units that are there. */
static segue_status settle_layouts(struct segue_session *s, const struct sg_layout *lost, int again, segue_error *err)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct sg_layout other;
        if (usable(&s->layouts[i], lost, again)) continue;
        SG_TRY(elsewhere(s, lost, &other, err));
        s->layouts[i] = other;
        sg_flow_free(s->flow); /* it knew the slots of the old ones; the next hand-off goes at once */
        s->flow = NULL;
    }
    s->split = !sg_layout_same(&s->layouts[0], &s->layouts[1]);
    return sg_session_find_flow(s, err);
}

/* Where the next run of a replay begins and how far it went before. */
static uint32_t replay_rows(const struct segue_session *s, uint64_t target)
{
    uint64_t most = s->layouts[s->at].chunk_rows, at = s->computed, end = at;
    while (end < target && end - at < most) {
        int edge = s->recovery.edges[end / 8] >> end % 8 & 1;
        end++;
        if (edge) break;
    }
    return (uint32_t)(end - at);
}

static segue_status replay(struct segue_session *s, uint64_t target, uint32_t at, segue_error *err)
{
    while (s->computed < target) {
        uint64_t until = target;
        if (s->split && s->at == SG_PREFILL_LAYOUT && at == SG_DECODE_LAYOUT && s->recovery.moved_at < target)
            until = s->recovery.moved_at;
        if (s->computed >= until) {
            SG_TRY(sg_session_to_layout(s, SG_DECODE_LAYOUT, err));
            continue;
        }
        struct sg_run_request ask = {.rows = replay_rows(s, until), .token = -1};
        SG_TRY(sg_session_run_once(s, &ask, err));
    }
    return s->split && s->at != at ? sg_session_to_layout(s, at, err) : SEGUE_OK;
}

/* The copy where it can be gone on from, else nothing; then all rows behind it. */
static segue_status restore(struct segue_session *s, uint64_t target, uint32_t at, uint64_t *kept, segue_error *err)
{
    const struct sg_recovery *r = &s->recovery;
    *kept = r->copy.whole && r->copy.rows <= target ? r->copy.rows : 0;
    s->at = s->split && at == SG_DECODE_LAYOUT && *kept < r->moved_at ? SG_PREFILL_LAYOUT : at;
    s->computed = 0;
    SG_TRY(sg_layout_states(&s->layouts[s->at], s->context < target + 512 ? s->context : target + 512, err));
    if (*kept) SG_TRY(sg_hostcopy_give(&r->copy, s->engine->graph, &s->layouts[s->at], err));
    s->computed = *kept;
    return replay(s, target, at, err);
}

/* What the report says of it. */
static void note(struct segue_session *s, const struct sg_layout *lost, uint64_t target, uint64_t kept, const char *why,
                 uint64_t begun)
{
    const struct sg_layout *now = &s->layouts[s->at];
    struct segue_loss *l = &s->stats.losses[s->stats.losses_n % (sizeof s->stats.losses / sizeof *s->stats.losses)];
    *l = (struct segue_loss){.rows = target, .replayed = target - kept, .ns = sg_now_ns() - begun};
    snprintf(l->unit, sizeof l->unit, "%s", lost->n ? lost->stages[0].layer_range->unit->desc.info.spec : "");
    snprintf(l->to, sizeof l->to, "%s", now->n ? now->stages[0].layer_range->unit->desc.info.spec : "");
    snprintf(l->why, sizeof l->why, "%.255s", why);
    s->stats.losses_n++;
}

segue_status sg_session_recover(struct segue_session *s, segue_error *err)
{
    struct sg_recovery *r = &s->recovery;
    const struct sg_layout gone = s->layouts[s->at];
    struct sg_layout lost = gone;
    uint64_t target = s->computed, kept = 0, begun = sg_now_ns();
    uint32_t at = s->at, known = s->logits_known;
    segue_error first = {.status = SEGUE_ELOST, .text = ""}, later;
    if (err) first = *err;
    segue_status status = SEGUE_ELOST;
    for (int i = 0; i < TRIES && status == SEGUE_ELOST; i++) {
        r->lost_again = r->lost_at == target ? r->lost_again + 1 : 0;
        r->lost_at = target;
        drop_states(s);
        sg_session_lose_checkpoints(s, &lost);
        status = settle_layouts(s, &lost, r->lost_again > 1, &first);
        if (status != SEGUE_OK) break;
        later = first;
        status = restore(s, target, at, &kept, &later);
        lost = s->layouts[s->at];
    }
    if (status == SEGUE_OK) {
        note(s, &gone, target, kept, first.text, begun);
        s->logits_known = known == SG_LOGITS_HERE; /* late ones went with the unit */
        return SEGUE_OK;
    }
    drop_states(s);
    s->computed = 0;
    s->logits_known = 0;
    return sg_fail(err, status, "%s", status == SEGUE_ELOST || !later.text[0] ? first.text : later.text);
}

segue_status sg_session_carry(struct segue_session *s, uint32_t to, segue_error *err)
{
    segue_error own, *why = err ? err : &own;
    struct sg_recovery *r = &s->recovery;
    segue_status status = SEGUE_OK;
    /* Of two moves since the copy a replay would know only the last. */
    if (r->moved_at > (r->copy.whole ? r->copy.rows : 0)) {
        r->runs = RUNS_MOST;
        status = sg_recovery_keep(s, 0, why);
    }
    if (status == SEGUE_OK) status = sg_session_to_layout(s, to, why);
    for (int i = 0; i < TRIES && status == SEGUE_ELOST; i++) {
        SG_TRY(sg_session_recover(s, why));
        status = s->split ? sg_session_to_layout(s, to, why) : SEGUE_OK;
    }
    if (status == SEGUE_OK && to == SG_DECODE_LAYOUT) r->moved_at = s->computed;
    return status;
}

/* --- development builds --- */

#ifdef SEGUE_FAULTS
static char fault_spec[64];
static atomic_ullong fault_row;      /* one more than the token; 0: none */

void sg_fault_lost(const char *spec, uint64_t row)
{
    snprintf(fault_spec, sizeof fault_spec, "%s", spec ? spec : "");
    atomic_store(&fault_row, spec ? row + 1 : 0);
}

int sg_fault_is_lost(const struct segue_unit *u, uint64_t first, uint32_t rows, segue_error *err)
{
    unsigned long long row = atomic_load(&fault_row);
    if (!row || row - 1 < first || row - 1 >= first + rows || strcmp(fault_spec, u->desc.info.spec)) return 0;
    atomic_store(&fault_row, 0);
    sg_fail(err, SEGUE_ELOST, "unit lost: %s: SEGUE_FAULT says so at token %llu", u->desc.info.spec, row - 1);
    return 1;
}
#endif
