/* generate.c: see generate.h.
 * SPDX-License-Identifier: MIT */
#include "unit/generate.h"

#include <string.h>

/* The token's position is one after the row that its logits belong to. */
segue_status sg_choose_for_span(struct sg_chooser *chooser, const struct sg_sampler *sampler, const struct sg_span *span,
                                uint32_t s, float *logits, float *scratch, struct sg_result *result, int32_t *token,
                                segue_error *err)
{
    segue_logprob *logprobs = result->logprobs ? result->logprobs + (size_t)s * SG_LOGPROBS_MAX : NULL;
    uint64_t pos = span->first + span->wanted[span->wanted_n - 1] + 1;
    size_t n = 0;
    SG_TRY(scratch ? sg_choose_kept(chooser, sampler, logits, scratch, pos, token, logprobs, &n, err)
                   : sg_choose(chooser, sampler, logits, pos, token, logprobs, &n, err));
    if (result->logprobs_n) result->logprobs_n[s] = n;
    if (result->tokens) result->tokens[s] = *token;
    return SEGUE_OK;
}

int sg_is_stop(const struct sg_sampler *s, int32_t token)
{
    for (size_t i = 0; i < s->stops_n && !s->p.ignore_stops; i++)
        if (s->stops[i] == token) return 1;
    return 0;
}

void sg_generation_begin(struct sg_generation *g, struct sg_span *span, int32_t *history)
{
    *g = (struct sg_generation){.span = span, .sampler = *span->sampler, .history = history, .token = -1};
    if (g->sampler.history_n) memcpy(history, g->sampler.history, g->sampler.history_n * sizeof *history);
    g->sampler.history = history;
}

/* The token is written before the count, which readers load first. */
int sg_generation_publish(struct sg_generation *g, int32_t token)
{
    g->token = token;
    g->history[g->sampler.history_n++] = token;
    g->span->ring->tokens[g->published] = token;
    atomic_store(&g->span->ring->written, ++g->published);
    return g->published == g->span->steps || sg_is_stop(&g->sampler, token);
}

void sg_generation_next(struct sg_generation *g)
{
    g->span->first += g->span->rows;
    g->span->rows = g->span->wanted_n = 1;
    g->span->tokens = &g->token;
    g->span->wanted = &g->row;
}
