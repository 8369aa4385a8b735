/* shared_run.c: one run over the pending tokens of several sessions: one token of a running answer each, or chunks of prompts,
 * mixed. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "engine/session/shared_run.h"

enum { STEP_MIN = 16 /* sessions of the first buffers */ };

/* States that wait for their hand-off run alone, since they are sent while they are computed; so do units that cannot sample, and
 * sessions of which each run is recorded. */
const struct sg_layer_range *sg_shared_range(struct segue_session *s, int masked)
{
    const struct sg_layout *l = &s->layouts[s->active];
    int ready = !s->hashes && s->tokens_n > s->computed && l->n == 1 && sg_layout_holds(l) &&
                !(s->split && s->active == SG_PREFILL_LAYOUT);
    /* Where no token is allowed, the session's own run says so. */
    ready = ready && sg_session_unit_samples(s) && (!masked || sg_session_mask(s, NULL) == SEGUE_OK);
    return ready ? l->stages[0].layer_range : NULL;
}

/* The sampler of span i; its mask is made during the run. */
static void add_sampler(struct sg_step *t, uint32_t i, struct segue_session *s)
{
    sg_session_sampler(s, &t->samplers[i]);
    s->constraint.error = (segue_error){0}; /* of a run that failed with its mask */
    if (!t->masks || sg_constraint_is_ready(&s->constraint, s->tokens_n, s->input_n)) return;
    if (!sg_mask_thread_add(t->masks, &(struct sg_mask_job){&s->constraint, s->tokens, s->tokens_n, s->input_n})) {
        s->constraint.error.status = sg_session_mask(s, &s->constraint.error);
        sg_session_sampler(s, &t->samplers[i]);
        return;
    }
    t->samplers[i].allowed = s->constraint.allowed;
    t->samplers[i].allowed_n = s->engine->model->info.vocab;
    t->samplers[i].gate = sg_mask_thread_gate(t->masks);
}

/* Span i of the batch. */
static void add_span(struct sg_step *t, uint32_t i, const struct sg_share *p)
{
    struct segue_session *s = p->session;
    t->done[i] = 0;
    t->last[i] = p->tokens_n - 1;
    if (p->does == SG_THEN_CHOOSE) add_sampler(t, i, s);
    t->spans[i] = (struct sg_span){.state = s->layouts[s->active].stages[0].state,
                                   .rows = p->tokens_n,
                                   .first = s->computed,
                                   .tokens = s->tokens + s->computed,
                                   .wanted = &t->last[i],
                                   .wanted_n = p->does != SG_THEN_NOTHING,
                                   .loras = s->loras,
                                   .loras_n = s->adapters_n,
                                   .sampler = p->does == SG_THEN_CHOOSE ? &t->samplers[i] : NULL,
                                   .steps = 1};
}

/* What all spans of one run have in common. */
struct run_facts {
    const struct sg_result *result;
    uint32_t spans, tokens; /* of the run, which read the weights once */
    uint64_t ns;
};

/* One session's share of the counters. */
static struct sg_result share_of(const struct run_facts *f)
{
    struct sg_result share = *f->result;
    share.columns = f->result->columns / f->spans;
    share.overflows = f->result->overflows / f->spans;
    share.underflows = f->result->underflows / f->spans;
    share.layout_ops = f->result->layout_ops / f->spans;
    return share;
}

static segue_phase phase_of(const struct segue_session *s, uint32_t tokens_n)
{
    return tokens_n == 1 && s->computed != 0 ? SEGUE_DECODE : SEGUE_PREFILL;
}

/* Updates the statistics of a session by its share of a run. */
static void count(struct segue_session *s, uint32_t tokens_n, const struct run_facts *f)
{
    struct sg_result share = share_of(f);
    int decode = phase_of(s, tokens_n) == SEGUE_DECODE;
    sg_record_run(s, &s->layouts[s->active].stages[0], phase_of(s, tokens_n), sg_now_ns() - f->ns, tokens_n, &share);
    s->stats.tokens_in += tokens_n;
    *(decode ? &s->stats.decode_ns : &s->stats.prefill_ns) += f->ns;
    s->stats.dispatches += f->result->dispatches;
    if (tokens_n == 1) s->stats.weight_bytes_read += f->result->weight_bytes / f->spans;
    if (decode) return;
    s->prefill_ns += f->ns * tokens_n / f->tokens;
    s->prefill_tokens += tokens_n;
}

/* Updates a session from its span and appends the chosen token. row: of its logits in the buffer. */
static void take_result(struct sg_step *t, struct sg_share *p, uint32_t i, uint32_t row, const struct run_facts *f)
{
    struct segue_session *s = p->session;
    size_t vocab = s->engine->model->info.vocab;
    count(s, p->tokens_n, f);
    s->computed += p->tokens_n;
    sg_recovery_after_run(s, p->tokens_n);
    /* those of a prompt go to the prefix store */
    int keeps = p->does != SG_THEN_NOTHING && !(s->drops_logits && s->computed > s->input_n);
    s->logits_known = !keeps ? 0 : f->result->logits ? SG_LOGITS_HERE : SG_LOGITS_LATE;
    sg_session_after_run(s);
    sg_session_free_stale(s);
    if (keeps && f->result->logits) memcpy(s->logits, t->logits + row * vocab, vocab * sizeof *s->logits);
    if (p->does != SG_THEN_CHOOSE) return;
    memcpy(s->logprobs, t->logprobs + (size_t)i * SG_LOGPROBS_MAX, sizeof s->logprobs);
    s->logprobs_n = t->logprobs_n[i];
    if (s->constraint.error.status == SEGUE_OK) {
        p->error.status = sg_session_accept(s, t->tokens[i], &p->token);
        return;
    }
    p->error = s->constraint.error; /* there was no mask, so the token means nothing */
    s->constraint.error = (segue_error){0};
}

static void run_alone(struct sg_share *p)
{
    p->alone = 1;
    p->error.status = p->does == SG_THEN_CHOOSE
                          ? sg_session_next_token(p->session, &p->token, &p->error)
                          : sg_session_run_chunk(p->session, p->tokens_n, p->does == SG_THEN_LOGITS, NULL, NULL, &p->error);
}

/* After a run that failed: tokens that the state has received are kept, and the error is that of the session. */
static void take_failure(struct sg_step *t, struct sg_share *p, uint32_t i, const struct run_facts *f, const segue_error *err)
{
    struct segue_session *s = p->session;
    struct sg_result share = share_of(f);
    sg_record_failed_run(s, &s->layouts[s->active].stages[0], phase_of(s, p->tokens_n), sg_now_ns() - f->ns, &share);
    s->stats.dispatches += share.dispatches;
    if (!t->done[i] || err->status == SEGUE_ELOST) {
        run_alone(p);
        return;
    }
    s->computed += t->done[i];
    s->logits_known = 0;
    p->error = *err;
}

/* One run of all shares; the time that it took, 0: it failed. */
static uint64_t run_together(const struct sg_layer_range *range, struct sg_step *t, struct sg_share *const *shares, uint32_t n)
{
    uint64_t start_ns = sg_now_ns();
    segue_error err = {0};
    struct run_facts facts = {.spans = n};
    for (uint32_t i = 0; i < n; i++) {
        facts.tokens += shares[i]->tokens_n;
        sg_session_checkpoint_due(shares[i]->session);
        add_span(t, i, shares[i]);
    }
    /* quiet: hand-offs during a run are those of sg_session_run_once alone. */
    struct sg_batch batch = {.spans = t->spans, .spans_n = n, .inline_hint = 1, .quiet = 1};
    int late = sg_session_logits_after_run(shares[0]->session) == SG_LOGITS_LATE;
    struct sg_result result = {.logits = late ? NULL : t->logits,
                               .tokens = t->tokens,
                               .logprobs = t->logprobs,
                               .logprobs_n = t->logprobs_n,
                               .rows_done = t->done};
    if (t->masks) sg_mask_thread_start(t->masks);
    err.status = sg_layer_range_run(range, &batch, &result, &err);
    if (t->masks) sg_mask_thread_wait(t->masks); /* a run that failed has not waited */
    facts.result = &result;
    facts.ns = sg_now_ns() - start_ns;
    for (uint32_t i = 0, row = 0; i < n; i++) {
        if (err.status == SEGUE_OK) take_result(t, shares[i], i, row, &facts);
        else take_failure(t, shares[i], i, &facts, &err);
        row += shares[i]->does != SG_THEN_NOTHING;
        sg_share_again(shares[i], range);
    }
    return err.status == SEGUE_OK ? facts.ns : 0;
}

/* --- through the queue --- */

void sg_share_init(struct sg_share *p, struct segue_session *s, size_t keep, enum sg_then wish)
{
    size_t left = sg_session_pending(s) - keep, chunk = sg_session_chunk(s);
    *p = (struct sg_share){.session = s,
                           .away = &s->away,
                           .keep = keep,
                           .wish = wish,
                           .rows = (uint32_t)(left < chunk ? left : chunk),
                           .chunk = s->layouts[s->active].chunk_tokens,
                           .is_answer = sg_session_pending(s) == 1 && s->computed,
                           .whole = s->engine->fixed_chunks,
                           .then = left <= chunk ? wish : SG_THEN_NOTHING,
                           .token = -1};
}

int sg_share_has_own_lane(const struct sg_layer_range *range, const struct sg_share *p)
{
    const struct sg_unit_desc *d = &range->unit->desc;
    return d->lanes > 1 && d->long_rows && p->rows > d->long_rows;
}

void sg_share_again(struct sg_share *p, const struct sg_layer_range *range)
{
    struct segue_session *s = p->session;
    struct sg_run_group *g = p->group;
    struct sg_share next;
    if (!g->stays || p->error.status != SEGUE_OK || p->token >= 0 || sg_session_pending(s) <= p->keep) return;
    if (atomic_load(&s->cancel) || sg_shared_range(s, 0) != range) return;
    sg_share_init(&next, s, p->keep, p->wish);
    if (sg_share_has_own_lane(range, &next)) return;
    next.group = g;
    next.again = 1;
    *p = next;
}

void sg_shared_run(const struct sg_layer_range *range)
{
    struct sg_shared_queue *q = range->queue;
    size_t vocab = range->model->info.vocab, cap = STEP_MIN;
    uint64_t ns = 0;
    while (cap < q->chosen_n) cap *= 2;
    if (sg_step_reserve(&q->step, vocab, cap, NULL) == SEGUE_OK) {
        q->step->masks = q->masks;
        ns = run_together(range, q->step, q->chosen, (uint32_t)q->chosen_n);
    } else {
        for (size_t i = 0; i < q->chosen_n; i++) run_alone(q->chosen[i]); /* memory is short */
    }
    sg_shared_queue_leave(q, ns);
}

void sg_shared_run_group(const struct sg_layer_range *range, struct sg_run_group *g)
{
    while (sg_shared_queue_wait(range->queue, g, NULL) == SG_TURN_LEAD) sg_shared_run(range);
}
