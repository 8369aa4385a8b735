/* cpu_model.h: the model of cpu_unit.c, built in memory with random weights: LAYERS attention layers (the second one with
 * a sliding window) and one recurrent layer (convolution and delta rule), each followed by a gated MLP. Every matrix has
 * another storage format, so that most packed layouts are used.
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_CPU_MODEL_H
#define TESTS_CPU_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "tensor/tensor.h"

enum { VOCAB = 96, WIDTH = 64, HEADS = 6, KV = 2, D = 32, FF = 96, LAYERS = 2, ROWS = 150, DK = 16 };

/* The graph, its memory, and a fixed token sequence. */
struct cpu_fixture {
    struct sg_arena arena;
    struct sg_builder b;
    struct sg_graph *graph;
    uint32_t seed;
    int32_t tokens[ROWS];
};

/* Reproducible numbers in [-0.3, 0.3). */
static float noise(struct cpu_fixture *f)
{
    f->seed = f->seed * 1664525u + 1013904223u;
    return ((float)(f->seed >> 8) / 8388608.0f - 1.0f) * 0.3f;
}

/* A random tensor, quantised to the storage. */
static const struct sg_tensor *tensor(struct cpu_fixture *f, enum sg_storage storage, uint32_t rows,
                                      uint32_t cols)
{
    struct sg_tensor *t = sg_arena_alloc(&f->arena, sizeof *t);
    uint64_t bytes;
    float row[256];
    assert_int_equal(sg_storage_row_bytes(storage, cols, &bytes, NULL), SEGUE_OK);
    uint8_t *data = sg_arena_alloc(&f->arena, rows * bytes);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++) row[c] = noise(f);
        assert_int_equal(sg_quant_row(storage, row, NULL, cols, data + r * bytes, NULL), SEGUE_OK);
    }
    *t = (struct sg_tensor){.name = "t",
                            .storage = storage,
                            .rank = 2,
                            .shape = {rows, cols},
                            .rows = rows,
                            .cols = cols,
                            .data = data,
                            .bytes = rows * bytes};
    return t;
}

/* A linear layer without bias; residual < 0: none. */
static int32_t linear(struct cpu_fixture *f, int32_t x, enum sg_storage s, uint32_t n, uint32_t k,
                      int32_t residual)
{
    struct sg_builder *b = &f->b;
    struct sg_operand none = sg_absent(), r = residual < 0 ? none : sg_whole(b, residual);
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, tensor(f, s, n, k)), sg_weight_of(b, NULL), r);
}

static int32_t norm(struct cpu_fixture *f, int32_t x)
{
    struct sg_norm p = {.kind = SG_NORM_RMS, .eps = 1e-5f, .groups = 1};
    p.weight = sg_weight_of(&f->b, tensor(f, SG_F32, 1, WIDTH));
    p.bias = sg_weight_of(&f->b, NULL);
    return sg_norm(&f->b, sg_whole(&f->b, x), p, sg_absent());
}

static int32_t mlp(struct cpu_fixture *f, int32_t x)
{
    int32_t h = norm(f, x), gate = linear(f, h, SG_Q4_1, FF, WIDTH, -1),
            up = linear(f, h, SG_Q4_1, FF, WIDTH, -1);
    h = sg_glu(&f->b, sg_whole(&f->b, gate), sg_whole(&f->b, up), SG_ACT_SILU);
    return linear(f, h, SG_Q8_0, WIDTH, FF, x);
}

static int32_t attention(struct cpu_fixture *f, int32_t x, int32_t table, uint32_t window)
{
    struct sg_builder *b = &f->b;
    int32_t h = norm(f, x), q = linear(f, h, SG_Q4_0, HEADS * D, WIDTH, -1),
            k = linear(f, h, SG_Q4_0, KV * D, WIDTH, -1);
    int32_t v = linear(f, h, SG_F16, KV * D, WIDTH, -1);
    q = sg_rope(b, sg_whole(b, q), HEADS, table);
    k = sg_rope(b, sg_whole(b, k), KV, table);
    struct sg_attend p = {.heads = HEADS, .kv_heads = KV, .d = D, .dv = D, .scale = 0.2f, .window = window};
    p.sinks = sg_weight_of(b, NULL);
    h = sg_attend(b, sg_whole(b, q), sg_whole(b, k), sg_whole(b, v), p, sg_absent());
    return linear(f, h, SG_Q4_1, WIDTH, HEADS * D, x);
}

/* Convolution over q, k, v, then the delta rule with decay and beta from a small linear layer. */
static int32_t recurrence(struct cpu_fixture *f, int32_t x)
{
    struct sg_builder *b = &f->b;
    int32_t h = norm(f, x), qkv = linear(f, h, SG_Q8_0, 4 * DK, WIDTH, -1),
            ab = linear(f, h, SG_F32, 4, WIDTH, -1);
    struct sg_conv c = {.weight = sg_weight_of(b, tensor(f, SG_F32, 4 * DK, 4)),
                        .bias = sg_weight_of(b, NULL),
                        .taps = 4,
                        .act = SG_ACT_SILU};
    qkv = sg_conv(b, sg_whole(b, qkv), c);
    struct sg_delta d = {.k_heads = 1, .v_heads = 2, .dk = DK, .dv = DK, .decay_is_log = 1, .l2_eps = 1e-6f};
    d.decay = sg_weight_of(b, tensor(f, SG_F32, 1, 2));
    d.dt = sg_weight_of(b, tensor(f, SG_F32, 1, 2));
    const struct sg_operand in[5] = {sg_columns(b, qkv, 0, DK), sg_columns(b, qkv, DK, DK),
                                     sg_columns(b, qkv, 2 * DK, 2 * DK), sg_columns(b, ab, 0, 2),
                                     sg_columns(b, ab, 2, 2)};
    return linear(f, sg_delta(b, in, d), SG_F32, WIDTH, 2 * DK, x);
}

/* Group setup: builds the graph. Layer 0 has full attention, layer 1 a window of 40, then comes the
 * recurrent layer. */
static int setup(void **state)
{
    static const float inverse[D / 2] = {1.0f, 0.5f, 0.2f, 0.1f, 0.05f, 0.02f, 0.01f, 0.005f};
    struct cpu_fixture *f = calloc(1, sizeof *f);
    f->seed = 7;
    assert_int_equal(sg_builder_begin(&f->b, NULL), SEGUE_OK);
    int32_t x = sg_embed(&f->b, sg_input_tokens(&f->b), tensor(f, SG_Q8_0, VOCAB, WIDTH), NULL, 1.0f);
    int32_t table = sg_rope_table_add(&f->b, D / 2, inverse, 1.0f);
    for (f->b.layer = 0; f->b.layer < LAYERS; f->b.layer++)
        x = mlp(f, attention(f, x, table, f->b.layer ? 40 : 0));
    x = mlp(f, recurrence(f, x));
    f->b.layer = -1;
    x = norm(f, sg_rows(&f->b, sg_whole(&f->b, x)));
    sg_output(&f->b, linear(f, x, SG_Q8_0, VOCAB, WIDTH, -1), "logits");
    sg_hoist_rows(&f->b);
    f->b.graph->layers = f->b.graph->layer_to = LAYERS + 1;
    segue_error err = {0};
    if (sg_builder_end(&f->b, &f->graph, &err) != SEGUE_OK) fail_msg("%s", err.text);
    for (int i = 0; i < ROWS; i++) f->tokens[i] = (int32_t)((i * 37 + i * i * 11) % VOCAB);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct cpu_fixture *f = *state;
    sg_graph_free(f->graph);
    sg_arena_free(&f->arena);
    free(f);
    return 0;
}

#endif
