/* limits.c: see limits.h. Each question is a separate graph, whose tensors are zeros.
 * SPDX-License-Identifier: MIT */
#include "engine/limits/limits.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { WIDTH = 256, HEADS = 2 };

/* A question: `size` is what a shape question varies. */
enum question { EMBED, NORM_RMS, NORM_LAYER, LINEAR, ROPE, ATTEND, ATTEND_WINDOW, ATTEND_SINKS, ATTEND_SOFTCAP, ATTEND_GATE, CONV,
                DELTA, GLU, ACT, ADD, SCALE, EXPERTS, ROWS };
struct probing {
    struct sg_arena arena;  /* owns the tensors */
    struct sg_builder b;
    const uint8_t *zeros;   /* enough for every tensor */
};

enum { ZEROS = 8 << 20 };

/* A tensor of zeros. */
static const struct sg_tensor *tensor(struct probing *a, enum sg_storage storage, uint64_t rows, uint64_t cols)
{
    struct sg_tensor *t = sg_arena_alloc(&a->arena, sizeof *t);
    uint64_t bytes = 0;
    if (!t) return NULL;
    *t = (struct sg_tensor){.name = "w", .stored_as = sg_storage_info(storage)->name, .storage = storage, .rank = 2, .rows = rows,
                            .cols = cols, .shape = {rows, cols}, .data = a->zeros};
    if (rows == 1) *t = (struct sg_tensor){.name = "w", .stored_as = t->stored_as, .storage = storage, .rank = 1, .rows = 1,
                                           .cols = cols, .shape = {cols}, .data = a->zeros};
    if (storage == SG_AFFINE) {
        t->affine = (struct sg_affine){a->zeros, a->zeros, SG_F16, 4, 64};
        bytes = cols / 2;
    } else if (storage == SG_CODED) { /* 4 bits with packed zeros */
        t->affine = (struct sg_affine){a->zeros, a->zeros, SG_F16, 4, 64};
        t->coded = (struct sg_coded){.zeros = SG_ZEROS_PACKED, .scale_rows = 1, .round = SG_F16, .divisor = 1};
        bytes = cols / 2;
    } else if (sg_storage_row_bytes(storage, cols, &bytes, NULL) != SEGUE_OK)
        return NULL;
    t->bytes = bytes * rows;
    return t->bytes <= ZEROS ? t : NULL;
}

static struct sg_weight weight(struct probing *a, enum sg_storage storage, uint64_t rows, uint64_t cols)
{
    return sg_weight_of(&a->b, tensor(a, storage, rows, cols));
}

static int32_t probe_attend(struct probing *a, enum question q, uint32_t size, int32_t x)
{
    struct sg_builder *b = &a->b;
    struct sg_attend p = {.heads = HEADS, .kv_heads = 1, .d = size, .dv = size, .scale = 1, .sinks = sg_weight_of(b, NULL)};
    struct sg_weight none = sg_weight_of(b, NULL);
    int32_t wide = sg_linear(b, sg_whole(b, x), weight(a, SG_F32, (uint64_t)HEADS * size, WIDTH), none, sg_absent());
    int32_t one = sg_linear(b, sg_whole(b, x), weight(a, SG_F32, size, WIDTH), none, sg_absent());
    if (q == ATTEND_WINDOW) p.window = 128;
    if (q == ATTEND_SOFTCAP) p.softcap = 30;
    if (q == ATTEND_SINKS) p.sinks = weight(a, SG_F32, 1, HEADS);
    return sg_attend(b, sg_whole(b, wide), sg_whole(b, one), sg_whole(b, one), p,
                     q == ATTEND_GATE ? sg_whole(b, wide) : sg_absent());
}

static int32_t probe_delta(struct probing *a, uint32_t size, int32_t x)
{
    struct sg_builder *b = &a->b;
    struct sg_weight none = sg_weight_of(b, NULL);
    int32_t wide = sg_linear(b, sg_whole(b, x), weight(a, SG_F32, (uint64_t)HEADS * size, WIDTH), none, sg_absent());
    int32_t small = sg_linear(b, sg_whole(b, x), weight(a, SG_F32, HEADS, WIDTH), none, sg_absent());
    struct sg_delta p = {.k_heads = HEADS, .v_heads = HEADS, .dk = size, .dv = size, .decay = weight(a, SG_F32, 1, HEADS),
                         .dt = weight(a, SG_F32, 1, HEADS), .l2_eps = 1e-6f};
    const struct sg_operand w = sg_whole(b, wide), s = sg_whole(b, small), in[5] = {w, w, w, s, s};
    return sg_delta(b, in, p);
}

static int32_t probe_experts(struct probing *a, int32_t x)
{
    struct sg_builder *b = &a->b;
    struct sg_weight none = sg_weight_of(b, NULL);
    int32_t logits = sg_linear(b, sg_whole(b, x), weight(a, SG_F32, 4, WIDTH), none, sg_absent());
    int32_t routing = sg_route(b, sg_whole(b, logits), (struct sg_route){.experts = 4, .k = 2, .scale = 1, .bias = none});
    struct sg_experts p = {.gate = weight(a, SG_F32, 4 * WIDTH, WIDTH), .up = weight(a, SG_F32, 4 * WIDTH, WIDTH),
                           .down = weight(a, SG_F32, 4 * WIDTH, WIDTH), .experts = 4, .k = 2, .ff = WIDTH, .act = SG_ACT_SILU};
    return sg_experts(b, sg_whole(b, x), sg_whole(b, routing), p);
}

/* Appends the op of a question; returns its value. */
static int32_t append(struct probing *a, enum question q, uint32_t size, enum sg_storage storage)
{
    struct sg_builder *b = &a->b;
    struct sg_weight none = sg_weight_of(b, NULL);
    if (q == EMBED) return sg_embed(b, sg_input_tokens(b), tensor(a, storage, 64, WIDTH), NULL, 1);
    int32_t x = sg_input_rows(b, WIDTH);
    float inverse[WIDTH / HEADS / 2] = {1};
    enum sg_norm_kind kind = q == NORM_LAYER ? SG_NORM_LAYER : SG_NORM_RMS;
    struct sg_norm norm = {.kind = kind, .weight = none, .bias = none, .eps = 1e-6f, .groups = 1};
    switch (q) {
    case NORM_RMS:
    case NORM_LAYER: norm.weight = weight(a, SG_F32, 1, WIDTH); return sg_norm(b, sg_whole(b, x), norm, sg_absent());
    case LINEAR: return sg_linear(b, sg_whole(b, x), weight(a, storage, WIDTH, WIDTH), none, sg_absent());
    case ROPE: return sg_rope(b, sg_whole(b, x), HEADS, sg_rope_table_add(b, WIDTH / HEADS / 2, inverse, 1));
    case CONV:
        return sg_conv(b, sg_whole(b, x), (struct sg_conv){.weight = weight(a, SG_F32, WIDTH, size), .bias = none, .taps = size,
                                                           .act = SG_ACT_SILU});
    case DELTA: return probe_delta(a, size, x);
    case GLU: return sg_glu(b, sg_whole(b, x), sg_whole(b, x), SG_ACT_SILU);
    case ACT: return sg_activate(b, sg_whole(b, x), SG_ACT_GELU_TANH);
    case ADD: return sg_add(b, sg_whole(b, x), sg_whole(b, x));
    case SCALE: return sg_scale(b, sg_whole(b, x), 2, none);
    case EXPERTS: return probe_experts(a, x);
    case ROWS: return sg_rows(b, sg_whole(b, x));
    default: return probe_attend(a, q, size, x);
    }
}

/* SEGUE_OK: the unit runs the op. EUNSUPPORTED: *why has the reason. */
static segue_status probe(struct segue_unit *u, const uint8_t *zeros, enum question q, uint32_t size, enum sg_storage storage,
                        segue_error *why)
{
    struct probing a = {.zeros = zeros};
    struct sg_graph *g = NULL;
    segue_status st = sg_builder_begin(&a.b, why);
    if (st == SEGUE_OK) {
        a.b.layer = 0;
        a.b.graph->layers = 1;
        a.b.graph->layer_to = 1;
        sg_output(&a.b, append(&a, q, size, storage), "hidden.1");
        st = sg_builder_end(&a.b, &g, why);
    }
    for (uint32_t i = 0; st == SEGUE_OK && i < g->ops_n; i++) st = sg_ops_of(u->unit)->can(u->unit, g, &g->ops[i], why);
    if (g) sg_graph_free(g);
    sg_arena_free(&a.arena);
    return st;
}

static void answer(struct sg_limit *out, const char *what, const char *name, segue_status st, const segue_error *why)
{
    *out = (struct sg_limit){.can = st == SEGUE_OK};
    snprintf(out->what, sizeof out->what, "%s", what);
    snprintf(out->name, sizeof out->name, "%s", name);
    if (!out->can) snprintf(out->why, sizeof out->why, "%.255s", why->text);
}

segue_status sg_unit_limits(struct segue_unit *u, struct sg_limit *out, uint32_t *n, segue_error *err)
{
    static const struct { const char *name; enum question q; } ops[] = {
        {"embed", EMBED}, {"norm, RMS", NORM_RMS}, {"norm, layer", NORM_LAYER}, {"linear", LINEAR}, {"rope", ROPE},
        {"attend", ATTEND}, {"attend, window", ATTEND_WINDOW}, {"attend, sinks", ATTEND_SINKS},
        {"attend, softcap", ATTEND_SOFTCAP}, {"attend, gate", ATTEND_GATE}, {"conv", CONV}, {"delta", DELTA}, {"glu", GLU},
        {"act", ACT}, {"add", ADD}, {"scale", SCALE}, {"route and experts", EXPERTS}, {"rows", ROWS}};
    static const struct { const char *name; enum question q; uint32_t from, to; } shapes[] = {
        {"attend: head width", ATTEND, 32, 4096}, {"delta: key and value width", DELTA, 32, 2048}, {"conv: taps", CONV, 2, 128}};
    segue_error why;
    const uint8_t *zeros = sg_alloc(ZEROS);
    *n = 0;
    if (!zeros) return sg_no_memory("limits of a unit", ZEROS, err);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        segue_status st = probe(u, zeros, ops[i].q, ops[i].q == CONV ? 4 : 64, SG_F32, &why);
        answer(&out[(*n)++], "operation", ops[i].name, st, &why);
    }
    for (int s = 0; s < SG_STORAGE_N && *n < SG_LIMITS_MAX - 3; s++) {
        /* The last two are made from others at load. */
        if (!sg_storage_info((enum sg_storage)s)->computable || s == SG_Q8_GROUP || s == SG_FP8) continue;
        segue_status st = probe(u, zeros, LINEAR, 0, (enum sg_storage)s, &why);
        answer(&out[(*n)++], "storage", sg_storage_info((enum sg_storage)s)->name, st, &why);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        segue_status st = SEGUE_OK;
        struct sg_limit *l = &out[(*n)++];
        uint64_t largest = 0;
        for (uint32_t size = shapes[i].from; st == SEGUE_OK && size <= shapes[i].to; size *= 2) {
            st = probe(u, zeros, shapes[i].q, size, SG_F32, &why);
            if (st == SEGUE_OK) largest = size;
        }
        answer(l, "shape", shapes[i].name, st, &why);
        l->largest = largest;
        l->can = largest != 0;
    }
    sg_free((void *)(uintptr_t)zeros);
    return SEGUE_OK;
}
