/* advance.c: computing the pending tokens of a session: choosing the layout, searching the prefix store, taking checkpoints,
 * and running in chunks. After a session's first token nothing here allocates. SPDX-License-Identifier: MIT */
#include "engine/session/session.h"

enum { FEW_TOKENS = 16 /* up to this many new tokens use the decode layout: a hand-off would cost more */ };

void sg_session_after_run(struct segue_session *s)
{
    s->rewound = 0;
    /* taken before the next run, so that it does not delay the first token */
    s->checkpoint_pending = (s->needs_checkpoints || s->uses_store) && s->computed <= s->input_n;
}

/* Computes the next `rows` tokens. with_logits: also the logits after the last one. sampler (may be NULL) chooses *token. */
segue_status sg_session_run_chunk(struct segue_session *s, size_t rows, int with_logits,
                              const struct sg_sampler *sampler, int32_t *token, segue_error *err)
{
    uint32_t wanted = (uint32_t)rows - 1;
    struct sg_run_request request = {.tokens_n = (uint32_t)rows, .sampler = sampler, .token = -1, .is_last = with_logits != 0};
    uint32_t then = with_logits ? sg_session_logits_after_run(s) : 0;
    if (with_logits) {
        request.wanted = &wanted;
        request.wanted_n = 1;
        request.logits = then == SG_LOGITS_HERE ? s->logits : NULL;
    }
    SG_TRY(sg_session_check_cancel(s, err));
    if (s->checkpoint_pending) sg_session_checkpoint(s, 0);
    SG_TRY(sg_session_run(s, &request, err));
    s->logits_known = then;
    s->stats.tokens_in += rows;
    sg_session_after_run(s);
    if (token) *token = request.token;
    return SEGUE_OK;
}

/* Where this text diverges from a stored one, a state that cannot be cut gets a checkpoint, so that the next text with the same
 * beginning finds it; the run ends there. */
size_t sg_session_chunk(const struct segue_session *s)
{
    size_t chunk = s->layouts[s->active].chunk_tokens, end = s->computed;
    if (s->needs_checkpoints && s->store_matched > end && s->store_matched - end < chunk) return s->store_matched - end;
    while (s->engine->fixed_chunks && end < s->replay_until) {
        int edge = s->recovery.run_ends[end / 8] >> end % 8 & 1;
        end++;
        if (edge) return end - s->computed;
    }
    return s->engine->fixed_chunks ? chunk - s->computed % chunk : chunk;
}

/* Computes all pending tokens except the last `keep`. */
segue_status sg_session_catch_up(struct segue_session *s, size_t keep, int with_logits, segue_error *err)
{
    while (sg_session_pending(s) > keep) {
        size_t left = sg_session_pending(s) - keep, chunk = sg_session_chunk(s);
        SG_TRY(sg_session_run_chunk(s, left < chunk ? left : chunk, with_logits && left <= chunk, NULL, NULL, err));
    }
    return SEGUE_OK;
}

/* The first tokens of a session and long inputs are computed on the prefill layout, up to FEW_TOKENS on the decode layout. */
static segue_status choose_layout(struct segue_session *s, segue_error *err)
{
    if (!s->split || s->computed == 0 || s->active == SG_PREFILL_LAYOUT || sg_session_pending(s) <= FEW_TOKENS) return SEGUE_OK;
    return sg_session_to_layout_retry(s, SG_PREFILL_LAYOUT, err);
}

segue_status sg_session_prepare(struct segue_session *s, segue_error *err)
{
    if (!sg_session_pending(s) && !s->logits_known && s->computed) {
        sg_session_cut(s, s->computed - 1);
        if (s->stats.tokens_reused > s->computed) s->stats.tokens_reused = s->computed;
    }
    if (s->engine->fixed_chunks && sg_session_pending(s) > 1 && s->computed >= s->replay_until) sg_session_cut(s, 0);
    if (s->checkpoint_pending && sg_session_pending(s)) sg_session_checkpoint(s, 0);
    if (s->uses_store && !s->store_queried && sg_session_pending(s)) sg_session_query_store(s);
    s->store_queried = 1;
    SG_TRY(choose_layout(s, err));
    if (!sg_session_pending(s)) return SEGUE_OK;
    SG_TRY(sg_session_make_states(s, err));
    if (sg_session_pending(s) > 1) sg_session_checkpoint(s, 1);
    return SEGUE_OK;
}

segue_status sg_session_compute_all(struct segue_session *s, segue_error *err)
{
    SG_TRY(sg_session_prepare(s, err));
    return sg_session_catch_up(s, 0, 1, err);
}
