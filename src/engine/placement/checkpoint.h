/* checkpoint.h: immutable states of a sequence at one position, for rewind and for the prefix store. A checkpoint is a fork: it
 * shares K and V with the states that it was taken from, and is never run itself, only forked again. Reference counted,
 * any thread; the engine must outlive its checkpoints. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_CHECKPOINT_H
#define SG_ENGINE_CHECKPOINT_H

#include "engine/placement/layout.h"

struct sg_checkpoint {
    atomic_uint references;
    struct sg_layout layout; /* with states */
    uint64_t tokens_n;       /* in the states */
    float *logits;           /* [vocab] after the last token; NULL: not known */
};

/* Forks the states of `from`, which hold tokens_n tokens. logits [vocab] is copied; NULL: not known. One reference. */
segue_status sg_checkpoint_new(struct sg_checkpoint **out, const struct sg_layout *from, uint64_t tokens_n,
                               const float *logits, size_t vocab, segue_error *err);
/* The same, but takes over logits, which come from sg_alloc; on failure they stay the caller's. */
segue_status sg_checkpoint_take(struct sg_checkpoint **out, const struct sg_layout *from, uint64_t tokens_n, float *logits,
                                segue_error *err);
struct sg_checkpoint *sg_checkpoint_share(struct sg_checkpoint *p);
void sg_checkpoint_release(struct sg_checkpoint *p); /* NULL is allowed */
/* Bytes of states and logits; memory shared with other states is counted by the units' rules. */
uint64_t sg_checkpoint_bytes(const struct sg_checkpoint *p, size_t vocab);

#endif
