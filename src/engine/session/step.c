/* step.c: one token for each of many sessions in one run. Sessions that are not at the same point (a prompt
 * waits, the states are elsewhere, the unit does not choose) take their step alone, by segue_session_next;
 * the tokens are the same. Its room belongs to the first session and is kept, so that the second step does
 * not allocate. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "engine/session/step_buffers.h"

enum { SESSIONS_MAX = 4096 };

/* The layer_range on which this session can take one row together with others; NULL: it goes alone. */
static const struct sg_layer_range *shared_stretch(const struct segue_session *s)
{
    const struct sg_layout *l = &s->layouts[s->active];
    int ready = s->tokens_n - s->computed == 1 && !s->checkpoint_pending && l->n == 1 && sg_layout_holds(l);
    return ready && !(s->split && s->active == SG_PREFILL_LAYOUT) && sg_session_unit_samples(s) ? l->stages[0].layer_range
                                                                                     : NULL;
}

static void add_span(struct sg_step *t, uint32_t i, struct segue_session *s, uint32_t place)
{
    static const uint32_t first_row = 0;
    t->index[i] = place;
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

/* What segue_session_next does after its run, for one span of many. */
static segue_status take_result(struct sg_step *t, uint32_t i, struct segue_session *s,
                                const struct sg_result *r, uint32_t spans, uint64_t ns, int32_t *token)
{
    size_t vocab = s->engine->model->info.vocab;
    struct sg_result own = *r;
    own.columns = r->columns / spans; /* each has one row of it */
    int writing = s->computed != 0;
    sg_record_run(s, &s->layouts[s->active].stages[0], writing, sg_now_ns() - ns, 1, &own);
    s->computed++;
    sg_recovery_after_run(s, 1);
    s->logits_known = r->logits ? SG_LOGITS_HERE : SG_LOGITS_LATE;
    sg_session_after_run(s);
    sg_session_free_stale(s);
    if (r->logits) memcpy(s->logits, t->logits + i * vocab, vocab * sizeof *s->logits);
    memcpy(s->stats.logprobs, t->logprobs + (size_t)i * SG_STEP_LOGPROBS, sizeof s->stats.logprobs);
    s->stats.logprobs_n = t->logprobs_n[i];
    s->stats.tokens_in++;
    *(writing ? &s->stats.decode_ns : &s->stats.prefill_ns) += ns;
    s->stats.dispatches += r->dispatches;
    s->stats.weight_bytes_read += r->weight_bytes / spans; /* one reading serves all */
    return sg_session_accept(s, t->tokens[i], token);
}

/* The sessions of the list that wait on this layer_range, as many as the unit takes in one run; the caller comes
 * again for the others. */
static void step_together(segue_session *const *sessions, size_t n, const struct sg_layer_range *layer_range,
                          struct sg_step *t, int32_t *tokens, segue_status *each, segue_error *err)
{
    uint32_t spans = 0, most = layer_range->unit->desc.rows_max ? layer_range->unit->desc.rows_max : SESSIONS_MAX;
    uint64_t begun = sg_now_ns();
    for (size_t i = 0; i < n && spans < most; i++)
        if (each[i] == SEGUE_OK && atomic_load(&sessions[i]->busy) == 1 &&
            shared_stretch(sessions[i]) == layer_range)
            add_span(t, spans++, sessions[i], (uint32_t)i);
    struct sg_batch batch = {.spans = t->spans, .spans_n = spans, .inline_hint = 1};
    int late = spans && sg_session_logits_after_run(sessions[t->index[0]]) == SG_LOGITS_LATE;
    struct sg_result result = {.logits = late ? NULL : t->logits,
                               .tokens = t->tokens,
                               .logprobs = t->logprobs,
                               .logprobs_n = t->logprobs_n,
                               .rows_done = t->done};
    segue_status status = sg_layer_range_run(layer_range, &batch, &result, err);
    uint64_t ns = sg_now_ns() - begun;
    for (uint32_t k = 0; k < spans; k++) {
        size_t i = t->index[k];
        struct segue_session *s = sessions[i];
        atomic_store(&s->busy, 2); /* served */
        if (status == SEGUE_OK) {
            each[i] = take_result(t, k, s, &result, spans, ns, &tokens[i]);
        } else if (t->done[k] && status != SEGUE_ELOST) {
            s->computed += t->done[k];
            s->logits_known = 0;
            each[i] = status;
        } else {
            each[i] =
                segue_session_next(s, &tokens[i], err); /* one session's trouble is not that of the others */
        }
    }
}

/* A session that stood in the list twice would be advanced twice by one row. */
static segue_status claim(segue_session *const *sessions, size_t n, segue_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *why = NULL;
        if (!sessions[i])
            why = "it is NULL; open it first";
        else if (sessions[i]->engine != sessions[0]->engine)
            why = "it is of another engine; step those apart";
        else if (atomic_exchange(&sessions[i]->busy, 1))
            why = "it is in the list twice; name it once";
        if (!why) continue;
        for (size_t k = 0; k < i; k++) atomic_store(&sessions[k]->busy, 0);
        return sg_fail(err, SEGUE_EARG, "no step taken: session %zu: %s", i, why);
    }
    return SEGUE_OK;
}

/* Of first rows, and of rows behind which a point is due, what would make them go alone is done before the run. */
static segue_status make_ready(segue_session *s, segue_error *err)
{
    if (s->tokens_n - s->computed != 1 || (s->computed && !s->checkpoint_pending)) return SEGUE_OK;
    return sg_session_prepare(s, err);
}

/* busy: 1 = its turn is still to come, 2 = served. The list is walked until all were. */
static void step_all(segue_session *const *sessions, size_t n, int32_t *tokens, segue_status *each,
                     segue_error *err)
{
    struct sg_step *t = sessions[0]->step;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = -1;
        each[i] = sg_session_check_choose(sessions[i], err);
        if (each[i] == SEGUE_OK && atomic_exchange(&sessions[i]->cancel, 0)) each[i] = SEGUE_ECANCELED;
        if (each[i] == SEGUE_OK) each[i] = make_ready(sessions[i], err);
    }
    for (size_t i = 0; i < n; i++) {
        if (each[i] != SEGUE_OK || atomic_load(&sessions[i]->busy) != 1) continue;
        const struct sg_layer_range *layer_range = shared_stretch(sessions[i]);
        if (layer_range) {
            step_together(sessions, n, layer_range, t, tokens, each, err);
        } else {
            atomic_store(&sessions[i]->busy, 2);
            each[i] = segue_session_next(sessions[i], &tokens[i], err);
        }
    }
}

segue_status segue_session_step(segue_session *const *sessions, size_t n, int32_t *tokens, segue_status *each,
                                segue_error *err)
{
    if (!sessions || !tokens || !each || n == 0 || n > SESSIONS_MAX)
        return sg_fail(err, SEGUE_EARG,
                       "no step taken: %zu sessions: 1 to %d, and places for tokens and statuses, are wanted",
                       n, SESSIONS_MAX);
    SG_TRY(claim(sessions, n, err));
    segue_status status = sg_step_reserve(sessions[0], n, err);
    if (status == SEGUE_OK) step_all(sessions, n, tokens, each, err);
    for (size_t i = 0; i < n; i++) atomic_store(&sessions[i]->busy, 0);
    return status;
}
