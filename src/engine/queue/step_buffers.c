/* step_buffers.c: see step_buffers.h. SPDX-License-Identifier: MIT */
#include "engine/queue/step_buffers.h"

#include "base/mem.h"

void sg_step_free(struct sg_step *step)
{
    if (!step) return;
    sg_arena_free(&step->arena);
    sg_free(step);
}

/* Kept for the largest number of sessions seen; a larger one replaces it. */
segue_status sg_step_reserve(struct sg_step **step, size_t vocab, size_t n, segue_error *err)
{
    if (*step && (*step)->cap >= n) return SEGUE_OK;
    struct sg_step *t = sg_alloc(sizeof *t);
    if (!t) return sg_no_memory("step", sizeof *t, err);
    t->cap = n;
    t->spans = sg_arena_alloc(&t->arena, n * sizeof *t->spans);
    t->samplers = sg_arena_alloc(&t->arena, n * sizeof *t->samplers);
    t->last = sg_arena_alloc(&t->arena, n * sizeof *t->last);
    t->done = sg_arena_alloc(&t->arena, n * sizeof *t->done);
    t->tokens = sg_arena_alloc(&t->arena, n * sizeof *t->tokens);
    t->logprobs_n = sg_arena_alloc(&t->arena, n * sizeof *t->logprobs_n);
    t->logprobs = sg_arena_alloc(&t->arena, n * SG_LOGPROBS_MAX * sizeof *t->logprobs);
    t->logits = sg_arena_alloc(&t->arena, n * vocab * sizeof *t->logits);
    if (!t->spans || !t->samplers || !t->last || !t->done || !t->tokens || !t->logprobs_n || !t->logprobs || !t->logits) {
        sg_step_free(t);
        return sg_no_memory("step over sessions", n * vocab * sizeof(float), err);
    }
    sg_step_free(*step);
    *step = t;
    return SEGUE_OK;
}
