/* step.c: one token for each of many sessions in one run. Sessions that cannot join (a prompt is pending, the states are on another
 * unit, the unit cannot sample) take their step alone, as by segue_session_next; the tokens are the same. The buffers are owned
 * by the first session and kept, so that later steps do not allocate. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "engine/session/step_buffers.h"

enum { SESSIONS_MAX = 4096 };

/* Values of segue_session.busy during a step. */
enum { STEP_PENDING = 1, STEP_DONE = 2 };

/* The layer range on which this session can compute one token together with others; NULL: it must run alone. */
static const struct sg_layer_range *shared_range(const struct segue_session *s)
{
    const struct sg_layout *l = &s->layouts[s->active];
    int ready = s->tokens_n - s->computed == 1 && !s->checkpoint_pending && l->n == 1 && sg_layout_holds(l);
    return ready && !(s->split && s->active == SG_PREFILL_LAYOUT) && sg_session_unit_samples(s) ? l->stages[0].layer_range
                                                                                     : NULL;
}

/* Span i of the batch: the pending token of session s, which has index `index` in the caller's list. */
static void add_span(struct sg_step *t, uint32_t i, struct segue_session *s, uint32_t index)
{
    static const uint32_t first_row = 0;
    t->index[i] = index;
    t->done[i] = 0;
    sg_session_sampler(s, &t->samplers[i]);
    t->spans[i] = (struct sg_span){.state = s->layouts[s->active].stages[0].state,
                                   .rows = 1,
                                   .first = s->computed,
                                   .tokens = s->tokens + s->computed,
                                   .wanted = &first_row,
                                   .wanted_n = 1,
                                   .loras = s->loras,
                                   .loras_n = s->adapters_n,
                                   .sampler = &t->samplers[i],
                                   .steps = 1};
}

/* Updates a session from its span of a shared run and appends the chosen token. spans: number of spans of the run, which read the
 * weights once. ns: duration of the run. */
static segue_status take_result(struct sg_step *t, uint32_t i, struct segue_session *s,
                                const struct sg_result *r, uint32_t spans, uint64_t ns, int32_t *token)
{
    size_t vocab = s->engine->model->info.vocab;
    struct sg_result share = *r;
    share.columns = r->columns / spans;
    int decode = s->computed != 0;
    sg_record_run(s, &s->layouts[s->active].stages[0], decode ? SEGUE_DECODE : SEGUE_PREFILL, sg_now_ns() - ns, 1, &share);
    s->computed++;
    sg_recovery_after_run(s, 1);
    s->logits_known = r->logits ? SG_LOGITS_HERE : SG_LOGITS_LATE;
    sg_session_after_run(s);
    sg_session_free_stale(s);
    if (r->logits) memcpy(s->logits, t->logits + i * vocab, vocab * sizeof *s->logits);
    memcpy(s->logprobs, t->logprobs + (size_t)i * SG_LOGPROBS_MAX, sizeof s->logprobs);
    s->logprobs_n = t->logprobs_n[i];
    s->stats.tokens_in++;
    *(decode ? &s->stats.decode_ns : &s->stats.prefill_ns) += ns;
    s->stats.dispatches += r->dispatches;
    s->stats.weight_bytes_read += r->weight_bytes / spans;
    return sg_session_accept(s, t->tokens[i], token);
}

/* Sets the result of session i; `err` has the text of a failure. */
static void set_result(segue_error *each, segue_status status, const segue_error *err)
{
    if (status < 0 && err && err->status == status) *each = *err;
    each->status = status;
}

static void step_alone(struct segue_session *s, int32_t *token, segue_error *each)
{
    segue_error err = {0};
    atomic_store(&s->busy, STEP_DONE);
    set_result(each, sg_session_next_token(s, token, &err), &err);
}

/* Runs all sessions of the list that are pending on this layer range, as many as the unit takes in one run; step_all calls again
 * for the rest. If the run fails, each session tries alone, so that one session's failure does not affect the others. */
static void step_together(segue_session *const *sessions, size_t n, const struct sg_layer_range *layer_range,
                          struct sg_step *t, int32_t *tokens, segue_error *each)
{
    uint32_t spans = 0, max = layer_range->unit->desc.rows_max ? layer_range->unit->desc.rows_max : SESSIONS_MAX;
    uint64_t start_ns = sg_now_ns();
    segue_error err = {0};
    for (size_t i = 0; i < n && spans < max; i++)
        if (each[i].status == SEGUE_OK && atomic_load(&sessions[i]->busy) == STEP_PENDING &&
            shared_range(sessions[i]) == layer_range)
            add_span(t, spans++, sessions[i], (uint32_t)i);
    struct sg_batch batch = {.spans = t->spans, .spans_n = spans, .inline_hint = 1};
    int late = spans && sg_session_logits_after_run(sessions[t->index[0]]) == SG_LOGITS_LATE;
    struct sg_result result = {.logits = late ? NULL : t->logits,
                               .tokens = t->tokens,
                               .logprobs = t->logprobs,
                               .logprobs_n = t->logprobs_n,
                               .rows_done = t->done};
    segue_status status = sg_layer_range_run(layer_range, &batch, &result, &err);
    uint64_t ns = sg_now_ns() - start_ns;
    for (uint32_t k = 0; k < spans; k++) {
        size_t i = t->index[k];
        struct segue_session *s = sessions[i];
        atomic_store(&s->busy, STEP_DONE);
        if (status == SEGUE_OK) {
            each[i].status = take_result(t, k, s, &result, spans, ns, &tokens[i]);
        } else if (t->done[k] && status != SEGUE_ELOST) {
            s->computed += t->done[k];
            s->logits_known = 0;
            set_result(&each[i], status, &err);
        } else {
            step_alone(s, &tokens[i], &each[i]);
        }
    }
}

/* Marks the sessions as part of this step. EARG: NULL, another engine, or a session that is in the list twice, which would be
 * advanced twice. */
static segue_status claim(segue_session *const *sessions, size_t n, segue_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *why = NULL;
        if (!sessions[i])
            why = "is NULL; open it first";
        else if (sessions[i]->engine != sessions[0]->engine)
            why = "belongs to another engine; step it in another call";
        else if (atomic_exchange(&sessions[i]->busy, STEP_PENDING))
            why = "is in the list twice; pass it once";
        if (!why) continue;
        for (size_t k = 0; k < i; k++) atomic_store(&sessions[k]->busy, 0);
        return sg_fail(err, SEGUE_EARG, "no step taken: session %zu %s", i, why);
    }
    return SEGUE_OK;
}

/* Before the run: what would make a session with one pending token run alone, namely missing states or a due checkpoint. */
static segue_status make_ready(segue_session *s, segue_error *err)
{
    SG_TRY(sg_session_check_choose(s, err));
    SG_TRY(sg_session_check_cancel(s, err));
    if (s->tokens_n - s->computed != 1 || (s->computed && !s->checkpoint_pending)) return SEGUE_OK;
    return sg_session_prepare(s, err);
}

static void step_all(segue_session *const *sessions, size_t n, int32_t *tokens, segue_error *each)
{
    struct sg_step *t = sessions[0]->step;
    for (size_t i = 0; i < n; i++) {
        segue_error err = {0};
        tokens[i] = -1;
        each[i] = (segue_error){0};
        set_result(&each[i], make_ready(sessions[i], &err), &err);
    }
    for (size_t i = 0; i < n; i++) {
        if (each[i].status != SEGUE_OK || atomic_load(&sessions[i]->busy) != STEP_PENDING) continue;
        const struct sg_layer_range *layer_range = shared_range(sessions[i]);
        if (layer_range) step_together(sessions, n, layer_range, t, tokens, each);
        else step_alone(sessions[i], &tokens[i], &each[i]);
    }
}

segue_status segue_session_step(segue_session *const *sessions, size_t n, int32_t *tokens, segue_error *each,
                                segue_error *err)
{
    if (!sessions || !tokens || !each || n == 0 || n > SESSIONS_MAX)
        return sg_fail(err, SEGUE_EARG, "no step taken: %zu sessions, from 1 to %d are allowed, or a list is NULL; pass all lists", n,
                       SESSIONS_MAX);
    SG_TRY(claim(sessions, n, err));
    for (size_t i = 0; i < n; i++) sg_session_begin_call(sessions[i]);
    segue_status status = sg_step_reserve(sessions[0], n, err);
    if (status == SEGUE_OK) step_all(sessions, n, tokens, each);
    for (size_t i = 0; i < n; i++) atomic_store(&sessions[i]->busy, 0);
    return status;
}
