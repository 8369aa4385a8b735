/* checkpoint.c: see checkpoint.h. SPDX-License-Identifier: MIT */
#include "engine/placement/checkpoint.h"

#include <string.h>

#include "base/mem.h"

/* The logits are copied last, when nothing can fail any more. */
segue_status sg_checkpoint_new(struct sg_checkpoint **out, const struct sg_layout *from, uint64_t tokens_n,
                           const float *logits, size_t vocab, segue_error *err)
{
    struct sg_checkpoint *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("checkpoint", sizeof *p, err);
    atomic_init(&p->references, 1);
    p->tokens_n = tokens_n;
    p->logits = logits ? sg_alloc(vocab * sizeof *logits) : NULL;
    segue_status status = logits && !p->logits ? sg_no_memory("checkpoint", vocab * sizeof *logits, err)
                                               : sg_layout_fork(from, &p->layout, err);
    if (status != SEGUE_OK) {
        sg_free(p->logits);
        sg_free(p);
        return status;
    }
    if (logits) memcpy(p->logits, logits, vocab * sizeof *logits);
    *out = p;
    return SEGUE_OK;
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
