/* narrow.c: converts a model's matrices to fp8 (tensor/fp8.c) when loading: every weight that is
 * multiplied with activations, including the head. A tied embedding uses the head's fp8 table too.
 * Separate embeddings, norms, biases, convolutions and routers keep their storage. Replaces views
 * only; no weights are read here.
 * SPDX-License-Identifier: MIT */
#include "model/family.h"

/* 1 for the roles that are converted. */
static const uint8_t multiplied[SG_ROLE_N] = {
    [SG_HEAD] = 1,      [SG_Q] = 1,         [SG_K] = 1,         [SG_V] = 1,         [SG_QKV] = 1,         [SG_O] = 1,
    [SG_GATE] = 1,      [SG_UP] = 1,        [SG_DOWN] = 1,      [SG_DELTA_QKV] = 1, [SG_DELTA_Z] = 1,     [SG_DELTA_A] = 1,
    [SG_DELTA_B] = 1,   [SG_DELTA_OUT] = 1, [SG_EXPERT_GATE] = 1, [SG_EXPERT_UP] = 1, [SG_EXPERT_DOWN] = 1,
};

/* The original views stay in the arena: the fp8 views convert their rows on the fly. */
segue_status sg_weights_fp8(struct segue_model *m, segue_error *err)
{
    size_t n = ((size_t)m->numbers->layers + 1) * SG_ROLE_N;
    struct sg_bound *whole = &m->weights[n - SG_ROLE_N];
    int tied = whole[SG_HEAD].weight == whole[SG_EMBED].weight;
    for (size_t i = 0; i < n; i++) {
        struct sg_bound *b = &m->weights[i];
        if (!b->weight || !multiplied[i % SG_ROLE_N]) continue;
        struct sg_tensor *view = sg_arena_alloc(&m->arena, sizeof *view);
        if (!view) return sg_no_memory("tensor views", sizeof *view, err);
        /* Biases keep their storage. */
        *view = sg_tensor_fp8(b->weight);
        b->weight = view;
    }
    if (tied) whole[SG_EMBED].weight = whole[SG_HEAD].weight;
    return SEGUE_OK;
}
