/* score.h: computes pending tokens and returns the logits of every position, and values of the graph;
 * embeddings.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SCORE_H
#define SG_ENGINE_SCORE_H

#include "engine/session/session.h"

struct sg_score_request {
    float *logprobs;        /* [pending] or NULL */
    float *logits;          /* [pending, vocab] or NULL */
    uint32_t continues;     /* 1: the session's logits score the first pending token; 0: it is the first of all */
    const int32_t *outputs; /* [outputs_n] of the graph */
    uint32_t outputs_n;
    float **values; /* [outputs_n] each [pending, width] */
    size_t width;
};
/* Computes all pending tokens in chunks. */
segue_status sg_session_run_scored(struct segue_session *s, const struct sg_score_request *r, segue_error *err);

/* --- embeddings --- */
/* EUNSUPPORTED: the engine or the plan has no embeddings. */
segue_status sg_session_check_embed(const struct segue_session *s, segue_error *err);
/* Computes the next n pending tokens and adds their final hidden values to sum [width], zeroed before the first part. */
segue_status sg_session_embed_part(struct segue_session *s, size_t n, segue_pooling pooling, double *sum, segue_error *err);
/* The pooled vector of all computed tokens, out [width]. */
void sg_session_embed_end(const struct segue_session *s, segue_pooling pooling, int normalize, const double *sum, float *out);

#endif
