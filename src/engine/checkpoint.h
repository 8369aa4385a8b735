/* checkpoint.h: the states of a sequence at one of its rows, kept to go back to and to share. A point is a fork:
 * it shares K and V with the states it was taken from until those go on, and is never run itself, only forked
 * again. Counted references, any thread; the engine outlives its points. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_POINT_H
#define SG_ENGINE_POINT_H

#include "engine/placement/layout.h"

struct sg_checkpoint {
    atomic_uint references;
    struct sg_layout layout; /* holds the states */
    uint64_t rows;
    float *logits; /* [vocab] after the last row; NULL: not known */
};

/* Fork the states of `from`, which hold `rows` rows. logits [vocab] is copied; NULL: not known. */
segue_status sg_point_take(struct sg_checkpoint **out, const struct sg_layout *from, uint64_t rows,
                           const float *logits, size_t vocab, segue_error *err);
struct sg_checkpoint *sg_point_share(struct sg_checkpoint *p);
void sg_point_release(struct sg_checkpoint *p);
uint64_t sg_point_bytes(const struct sg_checkpoint *p, size_t vocab);

#endif
