/* next.c: choosing the next token of one session: computes what is pending, hands the states off to the decode layout and
 * samples on the unit or on the host. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/mem.h"
#include "engine/session/session.h"
#include "engine/session/verify.h"

/* Tokens of the last chunk when the pending ones are computed in full chunks from the first on. */
static size_t last_chunk(const struct segue_session *s, size_t chunk)
{
    if (s->engine->fixed_chunks || (s->needs_checkpoints && s->store_matched > s->computed)) return chunk; /* up to a position */
    size_t over = sg_session_pending(s) % chunk;
    return over || !sg_session_pending(s) ? over : chunk;
}

/* Chooses on the host: from logits that are known already, or because the unit cannot sample. */
static segue_status choose_on_host(struct segue_session *s, const struct sg_sampler *sampler, int32_t *token,
                                segue_error *err)
{
    size_t vocab = s->engine->model->info.vocab;
    if (!s->chooser) SG_TRY(sg_chooser_new(&s->chooser, (uint32_t)vocab, err));
    if (!s->sampler_logits) s->sampler_logits = sg_alloc(vocab * sizeof *s->sampler_logits);
    if (!s->sampler_logits) return sg_no_memory("logits", vocab * sizeof *s->sampler_logits, err);
    const float *logits = sg_session_known_logits(s);
    if (!logits) {
        s->logits_known = 0;
        return sg_fail(err, SEGUE_ELOST, "no token chosen: the unit lost the logits; call again");
    }
    memcpy(s->sampler_logits, logits, vocab * sizeof *s->sampler_logits);
    return sg_choose(s->chooser, sampler, s->sampler_logits, s->tokens_n, token, s->logprobs, &s->logprobs_n, err);
}

segue_status sg_session_check_choose(const struct segue_session *s, segue_error *err)
{
    if (s->tokens_n == 0)
        return sg_fail(err, SEGUE_EARG,
                       "no token chosen: the session is empty; append tokens first");
    if (s->tokens_n >= s->context)
        return sg_fail(err, SEGUE_ELIMIT,
                       "no token chosen: the session has %zu tokens, the context holds %zu; enlarge the context or start again",
                       s->tokens_n, s->context);
    return SEGUE_OK;
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

/* Computes the last pending tokens and chooses the next one: on the unit where possible, else on the host after the hand-off. */
static segue_status finish_token(struct segue_session *s, int32_t *token, segue_error *err)
{
    struct sg_sampler sampler;
    int32_t chosen = -1;
    SG_TRY(sg_session_mask(s, err));
    sg_session_sampler(s, &sampler);
    int on_host = !sg_session_pending(s) || !sg_session_unit_samples(s);
    if (sg_session_pending(s)) SG_TRY(sg_session_run_chunk(s, sg_session_pending(s), 1, on_host ? NULL : &sampler, &chosen, err));
    if (s->split && s->active == SG_PREFILL_LAYOUT) SG_TRY(sg_session_to_layout_retry(s, SG_DECODE_LAYOUT, err));
    else sg_session_free_stale(s);
    if (s->verifier) {
        SG_TRY(sg_verify_states(s, err));
        sg_session_store_checkpoints(s);
    }
    if (on_host) SG_TRY(choose_on_host(s, &sampler, &chosen, err));
    return sg_session_accept(s, chosen, token);
}

/* Order: the prompt up to its last chunk, in chunks (or up to its last tokens, which both units compute if a hand-off is
 * verified), then the rest with the choice. */
segue_status sg_session_next_part(struct segue_session *s, size_t chunk, int32_t *token, segue_error *err)
{
    size_t max = sg_session_chunk(s), pending = sg_session_pending(s);
    int verifies = s->verify_tokens && s->split && s->active == SG_PREFILL_LAYOUT && pending;
    if (!chunk || chunk > max) chunk = max;
    size_t keep = verifies ? sg_verify_token_count(s) : last_chunk(s, chunk);
    *token = -1;
    SG_TRY(sg_session_check_choose(s, err));
    SG_TRY(sg_session_check_cancel(s, err));
    if (pending > keep) return sg_session_run_chunk(s, pending - keep < chunk ? pending - keep : chunk, 0, NULL, NULL, err);
    if (verifies) {
        SG_TRY(sg_verify_logits(s, err));
        sg_session_after_run(s); /* a checkpoint, after the verification */
    }
    return finish_token(s, token, err);
}

segue_status sg_session_next_token(struct segue_session *s, int32_t *token, segue_error *err)
{
    SG_TRY(sg_session_check_choose(s, err));
    SG_TRY(sg_session_check_cancel(s, err));
    SG_TRY(sg_session_prepare(s, err));
    segue_status status;
    int32_t chosen;
    do status = sg_session_next_part(s, 0, &chosen, err);
    while (status == SEGUE_OK && chosen < 0);
    if (status >= 0) *token = chosen;
    return status;
}
