/* state_hashes.h: hashes of what each run of a session adds to its states and of the values between its layers, so that the same
 * tokens can be computed again elsewhere and compared. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_STATE_HASHES_H
#define SG_ENGINE_STATE_HASHES_H

#include "base/mem.h"
#include "engine/session/session.h"

/* One run: tokens [first, first + tokens). Hashes are the low halves of XXH3-128. */
struct sg_run_hash {
    uint64_t first;
    uint32_t tokens;
    uint32_t decode;    /* 1: counted as decode */
    uint32_t placement; /* of the first stage: index of the engine's unit */
    uint64_t *slots;    /* [slots_n] K, V: the rows of these tokens in the storage of the state; others: the whole slot in fp32 */
    uint64_t *hidden;   /* [hidden_n] values before each layer and after the last one, all tokens */
    uint32_t *rows;     /* [tokens] of each token's values after the last layer; NULL without hidden values */
};

/* All runs of a session since the recording began. */
struct sg_state_hashes {
    struct sg_arena arena; /* owns the arrays of runs and the buffers */
    struct sg_run_hash *runs;
    size_t runs_n, runs_cap;
    uint32_t slots_n, hidden_n;
    int32_t *outputs;  /* [hidden_n] graph outputs hidden.<i> */
    float **values;    /* [hidden_n] each [values_tokens, width] */
    size_t values_tokens;
    uint8_t *buffer;   /* [buffer_bytes] */
    size_t buffer_bytes;
};

/* Record from now on. The values between layers are recorded if the engine keeps them and each layout has one stage. EARG: it
 * records already. */
segue_status sg_session_record_hashes(struct segue_session *s, segue_error *err);
/* NULL: nothing is recorded. */
const struct sg_state_hashes *sg_session_hashes(const struct segue_session *s);
/* Name of a slot, such as "k.3". */
void sg_hashes_slot_name(const struct segue_session *s, uint32_t slot, char out[32]);

/* For run.c. Before a run of n tokens: adds the values between layers to the outputs of the last stage. */
segue_status sg_hashes_before(struct segue_session *s, struct sg_run_request *request, segue_error *err);
/* After it, with s->computed after the run. */
segue_status sg_hashes_after(struct segue_session *s, const struct sg_run_request *request, int decode, segue_error *err);
/* NULL is allowed. */
void sg_hashes_free(struct sg_state_hashes *h);

#endif
