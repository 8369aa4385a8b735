/* checkpoint.c: see checkpoint.h. SPDX-License-Identifier: MIT */
#include "engine/placement/checkpoint.h"

#include <string.h>

#include "base/mem.h"

segue_status sg_checkpoint_take(struct sg_checkpoint **out, const struct sg_layout *from, uint64_t tokens_n, float *logits,
                                segue_error *err)
{
    struct sg_checkpoint *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("checkpoint", sizeof *p, err);
    atomic_init(&p->references, 1);
    p->tokens_n = tokens_n;
    segue_status status = sg_layout_fork(from, &p->layout, err);
    if (status != SEGUE_OK) {
        sg_free(p);
        return status;
    }
    p->logits = logits;
    *out = p;
    return SEGUE_OK;
}

segue_status sg_checkpoint_new(struct sg_checkpoint **out, const struct sg_layout *from, uint64_t tokens_n,
                           const float *logits, size_t vocab, segue_error *err)
{
    float *copy = logits ? sg_alloc(vocab * sizeof *logits) : NULL;
    if (logits && !copy) return sg_no_memory("checkpoint", vocab * sizeof *logits, err);
    if (logits) memcpy(copy, logits, vocab * sizeof *logits);
    segue_status status = sg_checkpoint_take(out, from, tokens_n, copy, err);
    if (status != SEGUE_OK) sg_free(copy);
    return status;
}

struct sg_checkpoint *sg_checkpoint_share(struct sg_checkpoint *p)
{
    atomic_fetch_add(&p->references, 1);
    return p;
}

void sg_checkpoint_release(struct sg_checkpoint *p)
{
    if (!p || atomic_fetch_sub(&p->references, 1) != 1) return;
    sg_layout_drop_states(&p->layout);
    sg_free(p->logits);
    sg_free(p);
}

uint64_t sg_checkpoint_bytes(const struct sg_checkpoint *p, size_t vocab)
{
    return sg_layout_bytes(&p->layout) + (p->logits ? vocab * sizeof *p->logits : 0) + sizeof *p;
}
