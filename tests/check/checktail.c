/* checktail.c: the last layer of a model and its head, in graphs in which `rows` follows the mixer, against ref on the
 * same model with `rows` before the final norm: several sequences, each with other rows wanted (none, some, all) and adapters
 * of its own, after one another on the same states. A unit that wants late rows is held to the same numbers.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "check.h"

enum { WIDTH = 64, HEADS = 4, KV = 2, D = 32, KEYS = 2, VALUES = 4, DK = 16, FF = 96, VOCAB = 80, TAPS = 3, EXPERTS = 4 };
enum mixer { PLAIN, GATED, RECURRENT, MIXERS };

/* Tensors are made once, in the order in which the first of the two graphs asks for them. */
struct tail {
    struct check_world w;
    struct check_rng rng;
    struct sg_builder b;
    const struct sg_tensor *made[40];
    uint32_t made_n, asked;
    enum sg_storage storage;
    uint32_t index;
};

static const struct sg_tensor *tensor(struct tail *t, uint32_t rows, uint32_t cols)
{
    if (t->asked == t->made_n) {
        float scale = 1 / sqrtf((float)cols);
        t->made[t->made_n++] = rows == 1 ? check_vector(&t->w.arena, &t->rng, cols, 1, 0.1f, "vector")
                                         : check_tensor(&t->w.arena, &t->rng, t->storage, rows, cols, scale, "matrix");
    }
    return t->made[t->asked++];
}

static int32_t norm(struct tail *t, int32_t x, uint32_t groups, struct sg_operand gate)
{
    uint32_t width = t->b.graph->values[x].width;
    struct sg_norm p = {.kind = SG_NORM_RMS, .eps = 1e-5f, .groups = groups, .bias = sg_weight_of(&t->b, NULL)};
    p.weight = sg_weight_of(&t->b, tensor(t, 1, width / groups));
    return sg_norm(&t->b, sg_whole(&t->b, x), p, gate);
}

static int32_t linear(struct tail *t, int32_t x, uint32_t n, int32_t residual)
{
    const struct sg_tensor *w = tensor(t, n, t->b.graph->values[x].width);
    return sg_linear(&t->b, sg_whole(&t->b, x), sg_weight_of(&t->b, w), sg_weight_of(&t->b, NULL),
                     residual < 0 ? sg_absent() : sg_whole(&t->b, residual));
}

static int32_t attention(struct tail *t, int32_t h, int gated)
{
    static const float inverse[D / 2] = {1, 0.5f, 0.2f, 0.1f, 0.05f, 0.02f, 0.01f, 0.005f}; /* others stand still */
    struct sg_builder *b = &t->b;
    int32_t both = linear(t, h, 2 * HEADS * D, -1), table = sg_rope_table_add(b, D / 2, inverse, 1);
    int32_t q = sg_rope(b, sg_columns(b, both, 0, HEADS * D), HEADS, table);
    int32_t k = sg_rope(b, sg_whole(b, linear(t, h, KV * D, -1)), KV, table), v = linear(t, h, KV * D, -1);
    struct sg_attend p = {.heads = HEADS, .kv_heads = KV, .d = D, .dv = D, .scale = 0.2f, .sinks = sg_weight_of(b, NULL)};
    return sg_attend(b, sg_whole(b, q), sg_whole(b, k), sg_whole(b, v), p,
                     gated ? sg_columns(b, both, HEADS * D, HEADS * D) : sg_absent());
}

static int32_t recurrence(struct tail *t, int32_t h)
{
    struct sg_builder *b = &t->b;
    uint32_t keys = KEYS * DK, values = VALUES * DK, width = 2 * keys + values;
    int32_t z = linear(t, h, values, -1), u = linear(t, h, width, -1);
    struct sg_conv c = {.taps = TAPS, .act = SG_ACT_SILU, .bias = sg_weight_of(b, NULL)};
    c.weight = sg_weight_of(b, tensor(t, 1, width * TAPS));
    u = sg_conv(b, sg_whole(b, u), c);
    struct sg_delta d = {.k_heads = KEYS, .v_heads = VALUES, .dk = DK, .dv = DK, .decay_is_log = 1, .l2_eps = 1e-6f};
    d.decay = sg_weight_of(b, tensor(t, 1, VALUES));
    d.dt = sg_weight_of(b, tensor(t, 1, VALUES));
    struct sg_operand in[5] = {sg_columns(b, u, 0, keys), sg_columns(b, u, keys, keys), sg_columns(b, u, 2 * keys, values),
                               sg_whole(b, linear(t, h, VALUES, -1)), sg_whole(b, linear(t, h, VALUES, -1))};
    return norm(t, sg_delta(b, in, d), VALUES, sg_whole(b, z));
}

static int32_t feed_forward(struct tail *t, int32_t h, int32_t residual)
{
    int32_t gate = linear(t, h, FF, -1), up = linear(t, h, FF, -1);
    return linear(t, sg_glu(&t->b, sg_whole(&t->b, gate), sg_whole(&t->b, up), SG_ACT_SILU), WIDTH, residual);
}

static int32_t mixture(struct tail *t, int32_t h)
{
    struct sg_builder *b = &t->b;
    struct sg_route r = {.experts = EXPERTS, .k = 2, .renormalise = 1, .scale = 1, .bias = sg_weight_of(b, NULL)};
    struct sg_experts e = {.experts = EXPERTS, .k = 2, .ff = FF, .act = SG_ACT_SILU};
    int32_t routing = sg_route(b, sg_whole(b, linear(t, h, EXPERTS, -1)), r);
    e.gate = sg_weight_of(b, tensor(t, EXPERTS * FF, WIDTH));
    e.up = sg_weight_of(b, tensor(t, EXPERTS * FF, WIDTH));
    e.down = sg_weight_of(b, tensor(t, EXPERTS * WIDTH, FF));
    return sg_experts(b, sg_whole(b, h), sg_whole(b, routing), e);
}

/* Norms on both sides in some cases, experts in others: only with fp32 weights, where no rounding turns a near-tie. */
static int32_t layer(struct tail *t, int32_t x)
{
    /* A norm of small heads makes much of what blocks of weights round off. */
    enum mixer mixer = t->index % (t->storage == SG_F32 || t->storage == SG_F16 ? MIXERS : RECURRENT);
    int32_t h = norm(t, x, 1, sg_absent()), a = mixer == RECURRENT ? recurrence(t, h) : attention(t, h, mixer == GATED);
    int both_sides = t->index % 4 == 3;
    if (both_sides) x = sg_add(&t->b, sg_whole(&t->b, x), sg_whole(&t->b, norm(t, linear(t, a, WIDTH, -1), 1, sg_absent())));
    else x = linear(t, a, WIDTH, x);
    h = norm(t, x, 1, sg_absent());
    if (t->storage == SG_F32 && t->index % 5 == 4) return sg_add(&t->b, sg_whole(&t->b, x), sg_whole(&t->b, mixture(t, h)));
    return feed_forward(t, h, x);
}

static segue_status build(struct tail *t, int late, struct sg_graph **out, segue_error *err)
{
    struct sg_builder *b = &t->b;
    SG_TRY(sg_builder_begin(b, err));
    t->asked = 0;
    int32_t x = sg_embed(b, sg_input_tokens(b), tensor(t, VOCAB, WIDTH), NULL, 1);
    b->layer = 0;
    x = layer(t, x);
    b->layer = -1;
    x = norm(t, sg_rows(b, sg_whole(b, x)), 1, sg_absent());
    sg_output(b, linear(t, x, VOCAB, -1), "logits");
    if (!late) sg_hoist_rows(b);
    return sg_builder_end(b, out, err);
}

/* --- runs --- */

/* Passes of few rows and of many, of which the kernels' switches lie between: 16, 32, 64. */
static void plan_runs(struct tail *t)
{
    static const uint32_t many[] = {1, 1, 2, 5, 15, 17, 33, 70, 130};
    struct check_world *w = &t->w;
    w->seqs = t->index ? check_between(&t->rng, 1, CHECK_SEQS) : 1;
    w->runs = CHECK_RUNS;
    for (uint32_t r = 0; r < w->runs; r++)
        for (uint32_t s = 0; s < w->seqs; s++) {
            uint32_t n = t->index ? many[check_below(&t->rng, 9)] : 1, how = check_below(&t->rng, 4);
            if (!t->index) how = 2;
            w->rows[r][s] = n;
            w->wanted[r][s] = sg_arena_alloc(&w->arena, (n + 1) * sizeof(uint32_t));
            for (uint32_t i = 0; i < n; i++)
                if ((how == 1 && i + 1 == n) || how == 2 || (how == 3 && check_below(&t->rng, 3)))
                    w->wanted[r][s][w->wanted_n[r][s]++] = i;
        }
    for (uint32_t s = 0; s < w->seqs; s++) {
        uint32_t rows = check_world_first(w, w->runs, s);
        w->tokens[s] = sg_arena_alloc(&w->arena, (rows + 1) * sizeof(int32_t));
        for (uint32_t i = 0; i < rows; i++) w->tokens[s][i] = (int32_t)check_below(&t->rng, VOCAB);
    }
}

/* For some sequences an adapter on all matrices that products take: behind `rows` each must meet its own rows. */
static void add_loras(struct tail *t)
{
    struct sg_arena *arena = &t->w.arena;
    const uint32_t rank = 3;
    for (uint32_t s = 0; s < t->w.seqs; s += 1 + s % 2) {
        struct sg_lora *l = sg_arena_alloc(arena, sizeof *l);
        struct sg_lora_pair *pairs = sg_arena_alloc(arena, t->made_n * sizeof *pairs);
        for (uint32_t i = 1; i < t->made_n; i++) {
            const struct sg_tensor *m = t->made[i];
            if (m->rows == 1 || m->rows > 4 * FF - 1) continue;
            float *a = sg_arena_alloc(arena, rank * m->cols * sizeof *a), *b = sg_arena_alloc(arena, rank * m->rows * 4);
            check_fill(&t->rng, a, rank * m->cols, CHECK_NORMAL, 1 / sqrtf((float)m->cols));
            check_fill(&t->rng, b, rank * m->rows, CHECK_NORMAL, 0.3f);
            uint32_t at = l->pairs_n++;
            for (; at && pairs[at - 1].tensor > m; at--) pairs[at] = pairs[at - 1];
            pairs[at] = (struct sg_lora_pair){.tensor = m, .rank = rank, .a = a, .b = b};
        }
        *l = (struct sg_lora){.id = 1 + s, .pairs = pairs, .pairs_n = l->pairs_n};
        if (l->pairs_n) memcpy(&l->id, pairs[0].a, sizeof l->id); /* random: units keep matrices by it */
        t->w.loras[s][t->w.loras_n[s]++] = l;
    }
}

/* --- comparing --- */

static void one_case(struct check *c, const struct check_unit *u, struct tail *t, struct check_case *k)
{
    struct check_result a = {0}, b = {0};
    struct sg_graph *late = NULL, *own = NULL;
    segue_error err = {0};
    char why[sizeof err.text];
    int exact = t->storage == SG_F32 || u->desc.reference;
    double scale, tolerance = u->desc.reference ? 0 : u->desc.half ? 4e-2 * check_half(u) : exact ? 1e-4 : 5e-2;
    t->w.output_width = VOCAB;
    t->w.kv = exact && !u->desc.half ? SG_F32 : SG_F16;
    segue_status status = build(t, 1, &late, &err);
    if (status == SEGUE_OK) status = build(t, (int)u->desc.select_late, &own, &err);
    plan_runs(t);
    if (t->index % 2) add_loras(t);
    t->w.graph = own;
    if (status == SEGUE_OK) status = check_world_run(&t->w, u, &a, &err);
    t->w.graph = late;
    if (status == SEGUE_OK) status = check_world_run(&t->w, &c->ref, &b, &err);
    k->max_abs = status == SEGUE_OK ? check_distance(a.y, a.y_n, b.y, b.y_n, &scale) : INFINITY;
    k->bound = tolerance * (status == SEGUE_OK ? scale : 1);
    snprintf(why, sizeof why, "%s", err.text);
    if (status == SEGUE_EUNSUPPORTED) k->skipped = why;
    else if (status != SEGUE_OK) fprintf(stderr, "check: %s %s: %s\n", k->unit, k->name, why);
    struct check_world ran = t->w;
    ran.graph = own;
    if (status == SEGUE_OK && u->desc.invariant && t->w.seqs > 1) check_alone(u, &ran, &a, k);
    check_report(c, k);
    check_result_free(&a);
    check_result_free(&b);
    sg_graph_free(own);
    check_world_free(&t->w);
}

void check_tails(struct check *c, const struct check_unit *u)
{
    static const enum sg_storage storages[] = {SG_F32, SG_F16, SG_Q8_0, SG_Q4_1};
    for (size_t s = 0; s < sizeof storages / sizeof *storages; s++)
        for (uint32_t i = 0; i < (c->quick ? 4 : 12); i++) {
            struct check_case k = {.level = "op", .unit = u->spec, .against = "ref"};
            struct tail t = {.index = i, .storage = storages[s]};
            snprintf(k.name, sizeof k.name, "tail.%s.%u", sg_storage_info(t.storage)->name, i);
            t.rng = check_rng_of(c->seed, k.name, i);
            if (check_wants(c, &k)) one_case(c, u, &t, &k);
        }
}
