/* advance.c: rows of one session through units: catching up with what waits, and choosing a token. After a
 * session's first token nothing here allocates. A run that fails leaves the session at the rows that were
 * finished. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/session.h"
#include "engine/store/prefixstore.h"

enum {
    ROOM_ROWS = 512, /* a new state expects this many rows beyond those that wait */
    FEW_ROWS = 16    /* so many new rows are read where the session writes: a move would cost more */
};

static size_t waiting(const struct segue_session *s) { return s->tokens_n - s->computed; }

/* --- one run --- */

segue_status sg_session_begin(struct segue_session *s, segue_error *err)
{
    struct sg_layout *l = &s->layouts[s->at];
    if (sg_layout_holds(l)) return SEGUE_OK;
    uint64_t rows = s->context - s->tokens_n < ROOM_ROWS ? s->context : s->tokens_n + ROOM_ROWS;
    s->computed = 0;
    sg_flow_close(s->flow);
    segue_error own, *why = err ? err : &own;
    segue_status status = sg_layout_states(l, rows, why);
    return status == SEGUE_ELOST ? sg_session_recover(s, why) : status;
}

/* After a failed run: stages that got further than the others are cut back. */
static void even_out(struct segue_session *s, uint32_t done)
{
    struct sg_layout *l = &s->layouts[s->at];
    s->computed += l->n == 1 ? done : 0;
    if (l->n == 1 || sg_layout_cut(l, s->computed, NULL) == SEGUE_OK) return;
    size_t rows = s->computed;
    s->computed = SIZE_MAX;
    sg_session_cut(s, rows);
}

/* One row that follows others is a token of the answer, but for prompts that are read row by row. */
static int is_writing(const struct segue_session *s, uint32_t rows)
{
    int by_row = s->layouts[SG_PREFILL_LAYOUT].chunk_rows == 1, reading = s->split && s->at == SG_PREFILL_LAYOUT;
    return rows == 1 && s->computed && !reading && !(by_row && s->computed < s->given_n);
}

/* Bytes of weights are reported for writing alone: there they are the roof that speed is measured against. */
static void count(struct segue_session *s, const struct sg_result *r, int writing)
{
    s->stats.dispatches += r->dispatches;
    if (writing) s->stats.weight_bytes_read += r->weight_bytes;
}

/* A lost unit took the states along; recover.c sees to that. */
static segue_status fail_run(struct segue_session *s, segue_status status, uint32_t done)
{
    sg_flow_close(s->flow);
    if (status != SEGUE_ELOST) even_out(s, done);
    if (status == SEGUE_ECANCELED) atomic_store(&s->cancel, 0);
    return status;
}

/* Rows leave for the layout of writing while they are made. What that takes beyond the run is exposed. */
static segue_status run_flowing(struct segue_session *s, uint32_t k, const struct sg_run_request *ask,
                                const struct sg_batch *b, struct sg_result *r, segue_error *err)
{
    const struct sg_layer_range *layer_range = s->layouts[s->at].stages[k].layer_range;
    struct sg_run *run = NULL;
    struct sg_batch batch = *b;
    batch.inline_hint = batch.quiet = 0;
    uint64_t begun = sg_now_ns();
    SG_TRY(sg_stretch_start(layer_range, &batch, r, &run, err));
    int done = sg_session_follow(s, k, ask->rows, ask->last);
    uint64_t sent = sg_now_ns();
    segue_status status = sg_stretch_wait(layer_range, &batch, run, err);
    if (!done) sg_flow_close(s->flow);
    if (status == SEGUE_OK && sent > begun + r->ns) s->stats.handoff_exposed_ns += sent - begun - r->ns;
    return status;
}

/* One stage: tokens or rows in; rows out but for the last stage, which answers what was asked. */
static segue_status run_stage(struct segue_session *s, uint32_t k, struct sg_run_request *ask, uint32_t *done,
                              segue_error *err)
{
    struct sg_layout *l = &s->layouts[s->at];
    const struct sg_layer_range *layer_range = l->stages[k].layer_range;
    int last = k + 1 == l->n;
    float *out_rows = s->rows[k % 2];
    struct sg_span span = {.state = l->stages[k].state,
                           .rows = ask->rows,
                           .first = s->computed,
                           .loras = s->loras,
                           .loras_n = s->adapters_n,
                           .steps = 1};
    struct sg_batch batch = {.spans = &span, .spans_n = 1, .inline_hint = 1, .quiet = 1, .cancel = &s->cancel};
    struct sg_result result = {.rows_done = done};
    if (k == 0)
        span.tokens = s->tokens + s->computed;
    else
        span.values = s->rows[(k - 1) % 2];
    if (last) {
        span.wanted = ask->wanted;
        span.wanted_n = ask->wanted_n;
        span.sampler = ask->sampler;
        batch.outputs = ask->outputs;
        batch.outputs_n = ask->outputs_n;
        result.logits = ask->logits;
        result.values = ask->values;
        result.tokens = &ask->token;
        result.logprobs = s->stats.logprobs;
        result.logprobs_n = &s->stats.logprobs_n;
    } else {
        batch.outputs = &layer_range->hidden;
        batch.outputs_n = 1;
        result.values = &out_rows;
    }
#ifdef SEGUE_FAULTS
    if (sg_fault_is_lost(layer_range->unit, s->computed, ask->rows, err)) return SEGUE_ELOST;
#endif
    uint64_t begun = sg_now_ns();
    segue_status status = sg_session_flow_open(s) ? run_flowing(s, k, ask, &batch, &result, err)
                                                  : sg_stretch_run(layer_range, &batch, &result, err);
    count(s, &result, is_writing(s, ask->rows));
    if (status == SEGUE_OK)
        sg_record_run(s, &l->stages[k], is_writing(s, ask->rows) != 0, begun, ask->rows, &result);
    return status;
}

segue_status sg_session_run_once(struct segue_session *s, struct sg_run_request *ask, segue_error *err)
{
    uint64_t begun = sg_now_ns();
    int writing = is_writing(s, ask->rows);
    uint32_t done = 0;
    segue_status status = SEGUE_OK;
    if (!writing) sg_session_prewarm_peers(s);
    for (uint32_t k = 0; k < s->layouts[s->at].n && status == SEGUE_OK; k++) {
        done = 0;
        status = run_stage(s, k, ask, &done, err);
    }
    uint64_t *spent = writing ? &s->stats.decode_ns : &s->stats.prefill_ns;
    uint64_t ns = sg_now_ns() - begun;
    *spent += ns;
    if (status != SEGUE_OK) return fail_run(s, status, done);
    if (!writing) {
        s->read_ns += ns;
        s->read_rows += ask->rows;
    }
    s->computed += ask->rows;
    sg_recovery_ran(s, ask->rows);
    s->logits_known = 0;
    return SEGUE_OK;
}

segue_status sg_session_run(struct segue_session *s, struct sg_run_request *ask, segue_error *err)
{
    segue_error own, *why = err ? err : &own;
    segue_status status = sg_recovery_keep(s, ask->rows, why);
    if (status == SEGUE_OK) status = sg_session_run_once(s, ask, why);
    while (status == SEGUE_ELOST) {
        SG_TRY(sg_session_recover(s, why));  /* gives up by itself when it is of no use */
        status = sg_session_run_once(s, ask, why);
    }
    return status;
}

/* --- what waits --- */

static segue_status canceled(struct segue_session *s, segue_error *err)
{
    if (!atomic_exchange(&s->cancel, 0)) return SEGUE_OK;
    return sg_fail(err, SEGUE_ECANCELED, "canceled: session of %zu tokens: on request; call again to go on",
                   s->tokens_n);
}

void sg_session_after_run(struct segue_session *s)
{
    s->rewound = 0;
    /* taken by the next run, off the way to the first token */
    s->checkpoint_pending = (s->marking || s->stored) && s->computed <= s->given_n;
}

/* One chunk; with_logits: of its last row. sampler (may be NULL) chooses *token from them. */
static segue_status run_chunk(struct segue_session *s, size_t rows, int with_logits,
                              const struct sg_sampler *sampler, int32_t *token, segue_error *err)
{
    uint32_t wanted = (uint32_t)rows - 1;
    struct sg_run_request ask = {.rows = (uint32_t)rows, .sampler = sampler, .token = -1, .last = with_logits != 0};
    uint32_t then = with_logits ? sg_session_logits_then(s) : 0;
    if (with_logits) {
        ask.wanted = &wanted;
        ask.wanted_n = 1;
        ask.logits = then == SG_LOGITS_HERE ? s->logits : NULL;
    }
    SG_TRY(canceled(s, err));
    if (s->checkpoint_pending) sg_session_checkpoint(s, 0);
    SG_TRY(sg_session_run(s, &ask, err));
    s->logits_known = then;
    s->stats.tokens_in += rows;
    sg_session_after_run(s);
    if (token) *token = ask.token;
    return SEGUE_OK;
}

/* All that waits but the last `keep` rows. */
static segue_status catch_up(struct segue_session *s, size_t keep, int with_logits, segue_error *err)
{
    while (waiting(s) > keep) {
        size_t left = waiting(s) - keep, chunk = s->layouts[s->at].chunk_rows;
        SG_TRY(run_chunk(s, left < chunk ? left : chunk, with_logits && left <= chunk, NULL, NULL, err));
    }
    return SEGUE_OK;
}

/* Where the waiting rows are read: the first ones and long ones on the reading layout, a few on the writing
 * one. */
static segue_status bring_for_rows(struct segue_session *s, segue_error *err)
{
    if (!s->split || s->computed == 0 || s->at == SG_PREFILL_LAYOUT || waiting(s) <= FEW_ROWS) return SEGUE_OK;
    return sg_session_carry(s, SG_PREFILL_LAYOUT, err);
}

segue_status sg_session_ready(struct segue_session *s, segue_error *err)
{
    if (!waiting(s) && !s->logits_known && s->computed) {
        sg_session_cut(s, s->computed - 1);
        if (s->stats.tokens_reused > s->computed) s->stats.tokens_reused = s->computed;
    }
    if (s->checkpoint_pending && waiting(s)) sg_session_checkpoint(s, 0);
    if (s->stored && !s->store_queried && waiting(s)) sg_store_seek(s->engine->store, s);
    s->store_queried = 1;
    SG_TRY(bring_for_rows(s, err));
    if (!waiting(s)) return SEGUE_OK;
    SG_TRY(sg_session_begin(s, err));
    if (waiting(s) > 1) sg_session_checkpoint(s, 1);
    return SEGUE_OK;
}

/* Rows of the last chunk when those that wait are read in full chunks from the first on. */
static size_t last_chunk(const struct segue_session *s)
{
    size_t chunk = s->layouts[s->at].chunk_rows, over = waiting(s) % chunk;
    return over || !waiting(s) ? over : chunk;
}

segue_status sg_session_settle(struct segue_session *s, segue_error *err)
{
    SG_TRY(sg_session_ready(s, err));
    return catch_up(s, 0, 1, err);
}

segue_status segue_session_prefill(segue_session *session, size_t max_rows, size_t *n_done, segue_error *err)
{
    SG_TRY(sg_session_check(session, "tokens not computed", err));
    size_t before = session->computed, all = waiting(session);
    if (n_done) *n_done = 0;
    if (!all) return SEGUE_OK;
    SG_TRY(sg_session_ready(session, err));
    segue_status status = catch_up(session, max_rows && max_rows < all ? all - max_rows : 0, 1, err);
    if (n_done && session->computed > before) *n_done = session->computed - before;
    return status;
}

/* --- choosing --- */

/* Before a hand-off there is no unit to keep them. */
uint32_t sg_session_logits_then(const struct segue_session *s)
{
    const struct sg_layout *l = &s->layouts[s->at];
    int stays = !(s->split && s->at == SG_PREFILL_LAYOUT) && sg_session_unit_samples(s);
    return stays && sg_ops_of(l->stages[l->n - 1].layer_range->unit->unit)->state_logits ? SG_LOGITS_LATE : SG_LOGITS_HERE;
}

const float *sg_session_known_logits(const struct segue_session *s)
{
    const struct sg_layout *l = &s->layouts[s->at];
    if (s->logits_known != SG_LOGITS_LATE) return s->logits_known ? s->logits : NULL;
    const struct sg_stage *last = &l->stages[l->n - 1];
    if (!last->state || sg_unit_enter(last->layer_range->unit, NULL, NULL) != SEGUE_OK) return NULL;
    segue_status status = sg_ops_of(last->state)->state_logits(last->state, s->logits, NULL);
    sg_unit_leave(last->layer_range->unit);
    return status == SEGUE_OK ? s->logits : NULL;
}

void sg_session_keep_logits(struct segue_session *s)
{
    if (s->logits_known == SG_LOGITS_LATE) s->logits_known = sg_session_known_logits(s) ? SG_LOGITS_HERE : 0;
}

/* From the logits that are here already, or where the unit leaves the choice to us. */
static segue_status choose_here(struct segue_session *s, const struct sg_sampler *sampler, int32_t *token,
                                segue_error *err)
{
    size_t vocab = s->engine->model->info.vocab;
    if (!s->chooser) SG_TRY(sg_chooser_new(&s->chooser, (uint32_t)vocab, err));
    if (!s->work) s->work = sg_alloc(vocab * sizeof *s->work);
    if (!s->work) return sg_no_memory("logits", vocab * sizeof *s->work, err);
    const float *logits = sg_session_known_logits(s);
    if (!logits) {
        s->logits_known = 0;
        return sg_fail(err, SEGUE_ELOST, "no token chosen: the unit lost the logits; call again");
    }
    memcpy(s->work, logits, vocab * sizeof *s->work);
    return sg_choose(s->chooser, sampler, s->work, s->tokens_n, token, s->stats.logprobs,
                     &s->stats.logprobs_n, err);
}

segue_status sg_session_may_choose(const struct segue_session *s, segue_error *err)
{
    if (s->tokens_n == 0)
        return sg_fail(err, SEGUE_EARG,
                       "no token chosen: empty session: there is nothing to continue; append tokens first");
    if (s->tokens_n >= s->context)
        return sg_fail(err, SEGUE_ELIMIT,
                       "no token chosen: session of %zu tokens: its context of %zu is full; enlarge the"
                       " context or start anew",
                       s->tokens_n, s->context);
    return SEGUE_OK;
}

/* The unit that ends the layout has the logits; it chooses if it can. */
int sg_session_unit_samples(const struct segue_session *s)
{
    const struct sg_layout *l = &s->layouts[s->at];
    return l->stages[l->n - 1].layer_range->unit->desc.samples != 0;
}

/* The chosen token is appended; SEGUE_END when it ends the sequence. */
segue_status sg_session_accept(struct segue_session *s, int32_t token, int32_t *out)
{
    const struct segue_model *m = s->engine->model;
    s->tokens[s->tokens_n++] = token;
    s->stats.tokens_out++;
    *out = token;
    for (size_t i = 0; !s->sampling.ignore_stops && i < m->stops_n; i++)
        if (m->stops[i] == token) return SEGUE_END;
    return SEGUE_OK;
}

segue_status segue_session_next(segue_session *session, int32_t *token, segue_error *err)
{
    struct segue_session *s = session;
    struct sg_sampler sampler;
    int32_t chosen = -1;
    SG_TRY(sg_session_check(s, "no token chosen", err));
    if (!token) return sg_fail(err, SEGUE_EARG, "no token chosen: no place to write it; pass token");
    SG_TRY(sg_session_may_choose(s, err));
    SG_TRY(canceled(s, err));
    SG_TRY(sg_session_ready(s, err));
    if (s->verify_rows && s->split && s->at == SG_PREFILL_LAYOUT && waiting(s)) {
        SG_TRY(catch_up(s, sg_verify_count(s), 0, err));
        SG_TRY(sg_verify_rows(s, err));
    }
    SG_TRY(catch_up(s, last_chunk(s), 0, err));
    sg_session_sampler(s, &sampler);
    int here = !waiting(s) || !sg_session_unit_samples(s);
    if (waiting(s)) SG_TRY(run_chunk(s, waiting(s), 1, here ? NULL : &sampler, &chosen, err));
    if (s->split && s->at == SG_PREFILL_LAYOUT) SG_TRY(sg_session_carry(s, SG_DECODE_LAYOUT, err));
    else sg_session_free_stale(s);
    if (s->checker) SG_TRY(sg_verify_states(s, err));
    if (here) SG_TRY(choose_here(s, &sampler, &chosen, err));
    return sg_session_accept(s, chosen, token);
}
