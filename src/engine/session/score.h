/* score.h: computing what waits with every row's logits, and with values of the graph.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SCORE_H
#define SG_ENGINE_SCORE_H

#include "engine/session/session.h"

struct sg_score_request {
    float *logprobs;        /* [waiting] or NULL */
    float *logits;          /* [waiting, vocab] or NULL */
    uint32_t continues;     /* 1: the session's logits say what the first waiting token was worth */
    const int32_t *outputs; /* [outputs_n] of the graph */
    uint32_t outputs_n;
    float **values; /* [outputs_n] each [waiting, width] */
    size_t width;
};
/* All rows that wait, in chunks. */
segue_status sg_session_run_scored(struct segue_session *s, const struct sg_score_request *r, segue_error *err);

#endif
