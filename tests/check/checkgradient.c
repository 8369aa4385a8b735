/* checkgradient.c: level gradient. Every op that has a backward, and small graphs of several, for sequences of unequal length:
 * L = sum dy y for a random dy. On `ref` against central differences of the restatement in double (checknaive.c), on every other
 * unit that trains against `ref`.
 *
 * Differences: of every operand and tensor all numbers at once, each moved up or down at random, and some numbers alone. The step
 * is 2^-15, which is exact in double except for the rounding of the moved fp32 number, and that is taken into account. Bounds:
 *   - 3e-5 of the norm of the gradient for all numbers at once, of its largest number for one alone: backward in fp32
 *   - 3e-5 of the largest number, for a unit against ref: sums of up to 512 products in any order
 *   - 3e-4 for graphs of several ops, whose errors add up
 *   - 6 2^-9 for every op of a graph where values are bf16: an op rounds operand, weight and result, forward and backward, by at
 *     most 2^-9 of each; to first order errors add up along a path, which passes each op at most once. The delta rule counts as
 *     seven: normalisation of q and k, softplus, decay, exponential, sigmoid, and the rule
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "check.h"
#include "train/train.h"

enum { ALONE = 4, RANK = 5 };
static const double STEP = 0x1p-15, TOLERANCE = 3e-5, TOLERANCE_MANY = 3e-4, TOLERANCE_BF16 = 6 * 0x1p-9;

/* Numbers that L depends on, and dL of each as the unit computed it. */
struct leaf { float **place, *gradient; size_t n; };

/* A case: a world of one run, dy, and, with adapters, what the world merges and what the trainer holds. */
struct gradient_case {
    struct check_world w;
    struct check_rng rng;
    float *dy;                       /* [rows, output_width] */
    uint32_t rows;
    float *lora[2];                  /* A and B; NULL: all tensors are trained */
    double tolerance;
};

/* What one unit gives. */
struct gradient {
    float *y, *dx;                   /* [rows, output_width], [rows, input_width] */
    float **tensors;                 /* of the graph's tensors, or of A and B */
    size_t *sizes, tensors_n;
    int bf16;                        /* values are kept in bf16 */
    struct sg_arena arena;
};

/* --- cases --- */

/* Case 3 passes two borders of 64 rows: blocks of queries, spans of the delta rule. */
static void plan(struct gradient_case *k, uint32_t index)
{
    static const uint32_t first[] = {65, 1, 17, 130, 64, 5, 33, 70}, more[] = {1, 2, 3, 5, 13, 21};
    struct check_world *w = &k->w;
    w->runs = 1;
    w->seqs = index % 4 == 1 ? CHECK_SEQS : check_between(&k->rng, 1, 3);
    for (uint32_t s = 0; s < w->seqs; s++) w->rows[0][s] = s ? more[check_below(&k->rng, 6)] : first[index % 8];
    k->rows = check_world_rows(w, 0, 0);
}

static struct sg_operand columns(struct sg_builder *b, int32_t v, uint32_t at, uint32_t width)
{
    return sg_columns(b, v, at, width);
}

static struct sg_weight vector(struct gradient_case *k, struct sg_builder *b, uint32_t n, float mean, float scale)
{
    return sg_weight_of(b, check_vector(&k->w.arena, &k->rng, n, mean, scale, "vector"));
}

static int32_t linear(struct gradient_case *k, struct sg_builder *b, int32_t x, uint32_t n, int bias, int32_t residual)
{
    uint32_t width = b->graph->values[x].width;
    const struct sg_tensor *t = check_tensor(&k->w.arena, &k->rng, SG_F32, n, width, 1 / sqrtf((float)width), "weight");
    struct sg_weight none = {.tensor = -1};
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, t), bias ? vector(k, b, n, 0, 0.3f) : none,
                     residual < 0 ? sg_absent() : sg_whole(b, residual));
}

static int32_t norm(struct gradient_case *k, struct sg_builder *b, struct sg_operand x, uint32_t groups, struct sg_operand gate)
{
    struct sg_norm p = {.kind = SG_NORM_RMS, .eps = 1e-5f, .groups = groups, .bias = {.tensor = -1}};
    p.weight = vector(k, b, x.width / groups, 1, 0.3f);
    return sg_norm(b, x, p, gate);
}

/* A layer of a transformer; x is read three times, the result of one product by three ops. */
static int32_t make_layer(struct gradient_case *k, struct sg_builder *b, int32_t x, uint32_t index)
{
    struct sg_attend p = {.kv_heads = check_between(&k->rng, 1, 2), .sinks = {.tensor = -1}};
    uint32_t d = b->graph->values[x].width, ff = check_between(&k->rng, 3, 40), width;
    float inverse[6];
    p.heads = p.kv_heads * check_between(&k->rng, 1, 3);
    p.d = 2 * check_between(&k->rng, 1, 6);
    p.dv = p.d;
    p.scale = 1 / sqrtf((float)p.d);
    p.window = index % 2 ? check_between(&k->rng, 1, 20) : 0;
    for (uint32_t i = 0; i < p.d / 2; i++) inverse[i] = powf(100.0f, -(float)i / 6);
    int32_t table = sg_rope_table_add(b, p.d / 2, inverse, 1);
    width = (p.heads + 2 * p.kv_heads) * p.d;
    int32_t h = norm(k, b, sg_whole(b, x), 1, sg_absent()), qkv = linear(k, b, h, width, 1, -1);
    int32_t q = sg_rope(b, columns(b, qkv, 0, p.heads * p.d), p.heads, table);
    int32_t key = sg_rope(b, columns(b, qkv, p.heads * p.d, p.kv_heads * p.d), p.kv_heads, table);
    struct sg_operand v = columns(b, qkv, (p.heads + p.kv_heads) * p.d, p.kv_heads * p.d);
    int32_t a = sg_attend(b, sg_whole(b, q), sg_whole(b, key), v, p, sg_absent());
    x = linear(k, b, a, d, 0, x);
    h = norm(k, b, sg_whole(b, x), 1, sg_absent());
    int32_t gate = linear(k, b, h, ff, 0, -1), up = linear(k, b, h, ff, 0, -1);
    return linear(k, b, sg_glu(b, sg_whole(b, gate), sg_whole(b, up), SG_ACT_SILU), d, 0, x);
}

/* Attention alone, with heads of the widths that kernels without score matrices have. */
static int32_t make_flash(struct gradient_case *k, struct sg_builder *b, int32_t x, uint32_t index)
{
    struct sg_attend p = {.kv_heads = 1 + index / 2 % 2, .d = index % 2 ? 128 : 64, .sinks = {.tensor = -1}};
    p.heads = p.kv_heads * (1 + index % 3);
    p.dv = p.d;
    p.scale = 1 / sqrtf((float)p.d);
    p.window = index % 4 == 3 ? check_between(&k->rng, 1, 40) : 0;
    uint32_t q = p.heads * p.d, kv = p.kv_heads * p.d;
    int32_t qkv = linear(k, b, x, q + 2 * kv, 0, -1);
    return sg_attend(b, columns(b, qkv, 0, q), columns(b, qkv, q, kv), columns(b, qkv, q + kv, kv), p, sg_absent());
}

/* As a layer of GPT-2, in widths that are multiples of 8; every other one has a gated norm of its heads. */
static int32_t make_even_layer(struct gradient_case *k, struct sg_builder *b, int32_t x, uint32_t index)
{
    struct sg_attend p = {.heads = 2, .kv_heads = 2, .d = 64, .dv = 64, .scale = 0.125f, .sinks = {.tensor = -1}};
    struct sg_norm n = {.kind = SG_NORM_LAYER, .eps = 1e-5f, .groups = 1};
    uint32_t d = b->graph->values[x].width;
    n.weight = vector(k, b, d, 1, 0.3f);
    n.bias = vector(k, b, d, 0, 0.3f);
    int32_t qkv = linear(k, b, sg_norm(b, sg_whole(b, x), n, sg_absent()), 384, 1, -1);
    int32_t a = sg_attend(b, columns(b, qkv, 0, 128), columns(b, qkv, 128, 128), columns(b, qkv, 256, 128), p, sg_absent());
    if (index % 2) a = norm(k, b, sg_whole(b, a), 2, sg_whole(b, linear(k, b, x, 128, 0, -1)));
    x = linear(k, b, a, d, 1, x);
    int32_t up = linear(k, b, norm(k, b, sg_whole(b, x), 1, sg_absent()), 4 * d, 1, -1);
    return linear(k, b, sg_activate(b, sg_whole(b, up), SG_ACT_GELU_TANH), d, 1, x);
}

/* A layer with the delta rule: convolution of one product, gated norm by another. */
static int32_t make_delta_layer(struct gradient_case *k, struct sg_builder *b, int32_t x)
{
    struct sg_delta p = {.k_heads = check_between(&k->rng, 1, 2), .dk = check_between(&k->rng, 6, 12), .l2_eps = 1e-6f};
    struct sg_conv c = {.taps = check_between(&k->rng, 2, 4), .act = SG_ACT_SILU, .bias = {.tensor = -1}};
    p.v_heads = p.k_heads * check_between(&k->rng, 1, 2);
    p.dv = check_between(&k->rng, 1, 12);
    p.decay_is_log = 1;
    uint32_t d = b->graph->values[x].width, keys = p.k_heads * p.dk, values = p.v_heads * p.dv, width = 2 * keys + values;
    int32_t h = norm(k, b, sg_whole(b, x), 1, sg_absent()), qkv = linear(k, b, h, width, 0, -1);
    int32_t z = linear(k, b, h, values, 0, -1), gates = linear(k, b, h, 2 * p.v_heads, 0, -1);
    c.weight = vector(k, b, width * c.taps, 0, 0.6f);
    qkv = sg_conv(b, sg_whole(b, qkv), c);
    p.decay = vector(k, b, p.v_heads, -1, 0.3f);
    p.dt = vector(k, b, p.v_heads, 0, 1);
    const struct sg_operand in[5] = {columns(b, qkv, 0, keys), columns(b, qkv, keys, keys), columns(b, qkv, 2 * keys, values),
                                     columns(b, gates, 0, p.v_heads), columns(b, gates, p.v_heads, p.v_heads)};
    int32_t y = sg_delta(b, in, p);
    return linear(k, b, norm(k, b, sg_whole(b, y), p.v_heads, sg_whole(b, z)), d, 0, x);
}

/* A frozen weight in any storage with a pair A, B. The scale of 2 is exact: the world has it in B. */
static int32_t make_lora(struct gradient_case *k, struct sg_builder *b, int32_t x, uint32_t index)
{
    static const enum sg_storage storages[] = {SG_F32, SG_Q4_1, SG_AFFINE, SG_Q6_K};
    struct sg_arena *arena = &k->w.arena;
    uint32_t d = b->graph->values[x].width, n = check_between(&k->rng, 1, 70);
    const struct sg_tensor *t = check_tensor(arena, &k->rng, storages[index % 4], n, d, 1 / sqrtf((float)d), "weight");
    struct sg_lora *l = sg_arena_alloc(arena, sizeof *l);
    struct sg_lora_pair *pair = sg_arena_alloc(arena, sizeof *pair);
    k->lora[0] = sg_arena_alloc(arena, RANK * d * sizeof(float));
    k->lora[1] = sg_arena_alloc(arena, RANK * n * sizeof(float));
    check_fill(&k->rng, k->lora[0], RANK * d, CHECK_NORMAL, 1 / sqrtf((float)d));
    check_fill(&k->rng, k->lora[1], RANK * n, CHECK_NORMAL, 0.5f);
    *pair = (struct sg_lora_pair){.tensor = t, .rank = RANK, .a = k->lora[0], .b = k->lora[1]};
    *l = (struct sg_lora){.id = 1, .pairs = pair, .pairs_n = 1};
    for (uint32_t s = 0; s < CHECK_SEQS; s++) k->w.loras[s][0] = l, k->w.loras_n[s] = 1;
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, t), (struct sg_weight){.tensor = -1}, sg_absent());
}

static segue_status make_graph(struct gradient_case *k, const char *name, uint32_t index, segue_error *err)
{
    struct sg_builder b;
    int adapter = !strcmp(name, "lora"), flash = !strcmp(name, "flash"), even = !strcmp(name, "evenlayer");
    SG_TRY(sg_builder_begin(&b, err));
    k->tolerance = adapter ? TOLERANCE : TOLERANCE_MANY;
    k->w.kv = SG_F32;
    k->w.input_width = adapter ? 256 : flash || even ? 16 : check_between(&k->rng, 2, 24);
    int32_t x = sg_input_rows(&b, k->w.input_width);
    b.layer = 0;
    int32_t y = adapter ? make_lora(k, &b, x, index)
                : flash ? make_flash(k, &b, x, index)
                : even  ? make_even_layer(k, &b, x, index)
                : !strcmp(name, "layer") ? make_layer(k, &b, x, index) : make_delta_layer(k, &b, x);
    sg_output(&b, y, "y");
    SG_TRY(sg_builder_end(&b, &k->w.graph, err));
    k->w.output_width = k->w.graph->values[y].width;
    for (uint32_t s = 0; s < k->w.seqs; s++) {
        size_t n = (size_t)k->w.rows[0][s] * k->w.input_width;
        k->w.values[s] = sg_arena_alloc(&k->w.arena, n * sizeof(float));
        check_fill(&k->rng, k->w.values[s], n, CHECK_NORMAL, 1);
    }
    return SEGUE_OK;
}

/* Numbers that differ by `gap` or more, in random order. */
static void space_out(struct gradient_case *k, float *x, uint32_t n, float gap)
{
    for (uint32_t i = 0; i < n; i++) x[i] = ((float)i - (float)n / 2 + 0.5f) * gap;
    for (uint32_t i = n; i-- > 1;) {
        uint32_t j = check_below(&k->rng, i + 1);
        float swap = x[i];
        x[i] = x[j], x[j] = swap;
    }
}

/* Logits of a token differ by 1/8, biases by 2, which is more than any score: no step of a difference changes the choice. */
static void space_logits(struct gradient_case *k)
{
    for (uint32_t s = 0; s < k->w.seqs; s++)
        for (uint32_t t = 0; t < k->w.rows[0][s]; t++)
            space_out(k, k->w.values[s] + (size_t)t * k->w.input_width, k->w.input_width, 0.125f);
    for (uint32_t i = 0; i < k->w.graph->tensors_n; i++)
        space_out(k, (float *)(uintptr_t)k->w.graph->tensors[i]->data, (uint32_t)k->w.graph->tensors[i]->cols, 2);
}

static segue_status make_case(struct gradient_case *k, const char *name, int op, uint32_t index, segue_error *err)
{
    k->tolerance = TOLERANCE;
    plan(k, index);
    if (op) SG_TRY(check_op_world(&k->w, k->rng, name, index, err));
    else SG_TRY(make_graph(k, name, index, err));
    if (!strcmp(name, "route")) space_logits(k);
    for (uint32_t s = 0; s < k->w.seqs && k->w.input_width; s++) /* away from the bend of relu */
        for (size_t i = 0; i < (size_t)k->w.rows[0][s] * k->w.input_width; i++)
            if (fabsf(k->w.values[s][i]) < 1e-3f) k->w.values[s][i] = 1e-3f;
    size_t n = (size_t)k->rows * k->w.output_width;
    k->dy = sg_arena_alloc(&k->w.arena, n * sizeof *k->dy);
    if (!k->dy) return sg_no_memory("check", n * sizeof *k->dy, err);
    check_fill(&k->rng, k->dy, n, CHECK_NORMAL, 1);
    return SEGUE_OK;
}

/* --- a unit's gradients --- */

/* Parameter i, [rows, cols], with these numbers. */
static segue_status add_param(struct segue_trainer *t, size_t i, uint64_t rows, uint64_t cols, const float *values,
                              segue_error *err)
{
    struct sg_param *p = &t->params[i];
    p->n = (size_t)(rows * cols);
    p->info.rows = (size_t)rows;
    if (i >= t->info.params_n) t->info.params_n = i + 1;
    for (int f = 0; f < 2; f++) SG_TRY(sg_train_new(t, p->n, "parameter", &p->field[f], err));
    SG_TRY(sg_train_write(t, p->field[0], values, p->n, err));
    return sg_train_zero(t, p->field[1], p->n, err);
}

static float *tensor_values(struct segue_trainer *t, const struct sg_tensor *x)
{
    float *all = sg_arena_alloc(&t->arena, (size_t)(x->rows * x->cols) * sizeof *all);
    sg_tensor_read(x, all);
    return all;
}

static segue_status add_pair(const struct gradient_case *k, struct segue_trainer *t, const struct sg_tensor *x, segue_error *err)
{
    size_t n = (size_t)(x->rows * x->cols);
    float *half = sg_arena_alloc(&t->arena, (size_t)x->rows * RANK * sizeof *half);
    t->tensors[0] = (struct sg_train_tensor){.param = -1, .pair = 0};
    t->info.lora_rank = RANK;
    t->info.lora_scale = 2;
    for (size_t i = 0; i < (size_t)x->rows * RANK; i++) half[i] = k->lora[1][i] / 2;
    SG_TRY(add_param(t, 0, RANK, x->cols, k->lora[0], err));
    SG_TRY(add_param(t, 1, x->rows, RANK, half, err));
    if (!t->resident) return SEGUE_OK;
    SG_TRY(sg_train_new(t, n, "weight", &t->tensors[0].frozen, err));
    return sg_train_write(t, t->tensors[0].frozen, tensor_values(t, x), n, err);
}

/* A trainer of the graph alone: what src/train reads of it. */
static segue_status make_trainer(const struct gradient_case *k, const struct check_unit *u, struct segue_trainer *t,
                                 segue_error *err)
{
    struct sg_graph *g = k->w.graph;
    *t = (struct segue_trainer){.graph = g};
    if (u->ops->train_resident) SG_TRY(u->ops->train_resident(u->unit, &t->resident, err));
    else u->ops->train_math(u->unit, &t->math);
    for (uint32_t s = 0; s < k->w.seqs; s++)
        if (k->w.rows[0][s] > t->info.sequence_tokens) t->info.sequence_tokens = k->w.rows[0][s];
    t->needs = sg_arena_alloc(&t->arena, g->values_n);
    t->tensors = sg_arena_alloc(&t->arena, (g->tensors_n + 1) * sizeof *t->tensors);
    t->params = sg_arena_alloc(&t->arena, (g->tensors_n + 2) * sizeof *t->params);
    memset(t->needs, 1, g->values_n);
    for (uint32_t i = 0; i < g->tensors_n && !k->lora[0]; i++) {
        t->tensors[i] = (struct sg_train_tensor){.param = (int32_t)i, .pair = -1};
        SG_TRY(add_param(t, i, g->tensors[i]->rows, g->tensors[i]->cols, tensor_values(t, g->tensors[i]), err));
    }
    if (k->lora[0]) SG_TRY(add_pair(k, t, g->tensors[0], err));
    SG_TRY(sg_train_scratch(t, err));
    return sg_train_angles(t, err);
}

static void set_rows(const struct gradient_case *k, struct sg_train_pass *p, struct sg_arena *arena)
{
    int32_t *tokens = sg_arena_alloc(arena, k->rows * sizeof *tokens);
    p->from = sg_arena_alloc(arena, (k->w.seqs + 1) * sizeof *p->from);
    p->position = sg_arena_alloc(arena, k->rows * sizeof *p->position);
    p->values = sg_arena_alloc(arena, p->g->values_n * sizeof *p->values);
    p->grads = sg_arena_alloc(arena, p->g->values_n * sizeof *p->grads);
    p->tokens = tokens;
    p->sequences = k->w.seqs;
    p->rows[0] = k->rows;
    p->longest = p->t->info.sequence_tokens;
    for (uint32_t s = 0, at = 0; s < k->w.seqs; s++) {
        for (uint32_t i = 0; i < k->w.rows[0][s]; i++, at++) {
            p->position[at] = i;
            if (k->w.tokens[s]) tokens[at] = k->w.tokens[s][i];
        }
        p->from[s + 1] = at;
    }
}

/* The sequences one after the other. */
static float *all_values(const struct gradient_case *k, struct sg_arena *arena)
{
    float *all = sg_arena_alloc(arena, ((size_t)k->rows * k->w.input_width + 1) * sizeof *all), *at = all;
    for (uint32_t s = 0; s < k->w.seqs && k->w.input_width; s++) {
        size_t n = (size_t)k->w.rows[0][s] * k->w.input_width;
        memcpy(at, k->w.values[s], n * sizeof *all);
        at += n;
    }
    return all;
}

/* Numbers of the trainer; zeros for NULL, and after an error, which the unit reports again. */
static float *copy(const struct segue_trainer *t, struct sg_arena *arena, const float *x, size_t n)
{
    segue_error err;
    float *to = sg_arena_alloc(arena, (n + 1) * sizeof *to);
    if (x) (void)sg_train_read(t, to, x, n, &err);
    return to;
}

static float *copy_value(const struct segue_trainer *t, struct sg_arena *arena, const float *x, size_t rows, uint32_t width)
{
    segue_error err;
    float *to = sg_arena_alloc(arena, (rows * width + 1) * sizeof *to);
    if (x) (void)sg_train_read_value(t, to, x, rows, width, &err);
    return to;
}

static segue_status forward_and_back(const struct gradient_case *k, struct sg_train_pass *p, struct gradient *out)
{
    const struct sg_graph *g = k->w.graph;
    int32_t x = g->inputs[0].value, y = g->ops[g->ops_n - 1].out;
    size_t inputs = (size_t)k->rows * k->w.input_width;
    if (p->t->resident) SG_TRY(sg_resident_tokens_put(p));
    if (inputs) {
        p->values[x] = sg_train_take(p, sg_train_words(p->t, k->rows, k->w.input_width));
        if (!p->values[x]) return SEGUE_EMEMORY;
        SG_TRY(sg_train_write_value(p->t, p->values[x], all_values(k, &out->arena), k->rows, k->w.input_width, p->err));
    }
    for (uint32_t i = 0; i < g->ops_n; i++) SG_TRY(sg_train_op(p, i));
    out->y = copy_value(p->t, &out->arena, p->values[y], k->rows, k->w.output_width);
    p->grads[y] = sg_train_take_live(p, y);
    if (!p->grads[y]) return SEGUE_EMEMORY;
    SG_TRY(sg_train_write_value(p->t, p->grads[y], k->dy, k->rows, k->w.output_width, p->err));
    for (uint32_t i = g->ops_n; i-- > 0;) SG_TRY(sg_train_op_back(p, i));
    out->dx = copy_value(p->t, &out->arena, p->grads[x], k->rows, k->w.input_width);
    return SEGUE_OK;
}

static segue_status gradients_of(const struct gradient_case *k, const struct check_unit *u, struct gradient *out,
                                 segue_error *err)
{
    struct segue_trainer t;
    *out = (struct gradient){0};
    if (!u->ops->train_math && !u->ops->train_resident) return sg_fail(err, SEGUE_EUNSUPPORTED, "unit %s cannot train", u->spec);
    segue_status status = make_trainer(k, u, &t, err);
    if (status == SEGUE_OK) {
        struct sg_train_pass p = {.t = &t, .g = t.graph, .m = &t.math, .err = err};
        set_rows(k, &p, &t.arena);
        status = forward_and_back(k, &p, out);
    }
    out->bf16 = t.resident && sg_resident_value_bytes(t.resident) == 2;
    out->tensors_n = t.info.params_n;
    out->tensors = sg_arena_alloc(&out->arena, (out->tensors_n + 1) * sizeof *out->tensors);
    out->sizes = sg_arena_alloc(&out->arena, (out->tensors_n + 1) * sizeof *out->sizes);
    for (size_t i = 0; i < out->tensors_n; i++) {
        out->sizes[i] = t.params[i].n;
        out->tensors[i] = copy(&t, &out->arena, t.params[i].field[1], t.params[i].n);
    }
    sg_train_free_numbers(&t);
    sg_free_aligned(t.math.scratch);
    sg_arena_free(&t.arena);
    return status;
}

/* --- differences --- */

/* Columns [at, at + width) of the input. */
static struct leaf input_leaf(struct gradient_case *k, const struct gradient *g, uint32_t at, uint32_t width)
{
    struct leaf l = {.n = (size_t)k->rows * width};
    l.place = sg_arena_alloc(&k->w.arena, (l.n + 1) * sizeof *l.place);
    l.gradient = sg_arena_alloc(&k->w.arena, (l.n + 1) * sizeof *l.gradient);
    size_t row = 0, i = 0;
    for (uint32_t s = 0; s < k->w.seqs; s++)
        for (uint32_t t = 0; t < k->w.rows[0][s]; t++, row++)
            for (uint32_t c = at; c < at + width; c++, i++) {
                l.place[i] = &k->w.values[s][(size_t)t * k->w.input_width + c];
                l.gradient[i] = g->dx[row * k->w.input_width + c];
            }
    return l;
}

/* Tensor i of the graph, or A (0) or B (1). */
static struct leaf tensor_leaf(struct gradient_case *k, const struct gradient *g, uint32_t i)
{
    const struct sg_tensor *t = k->w.graph->tensors[k->lora[0] ? 0 : i];
    struct leaf l = {.n = g->sizes[i], .gradient = g->tensors[i]};
    l.place = sg_arena_alloc(&k->w.arena, l.n * sizeof *l.place);
    for (size_t j = 0; j < l.n; j++) {
        uint64_t row = sg_perm_stored(&t->row_perm, j / t->cols), column = j % t->cols;
        float *data = (float *)(uintptr_t)t->data;
        l.place[j] = k->lora[0] ? &k->lora[i][j] : &data[t->transposed ? column * t->rows + row : row * t->cols + column];
        if (k->lora[0] && i) l.gradient[j] /= 2;
    }
    return l;
}

/* |difference - gradient . move| / STEP when number j moves by way[j] steps; way NULL: number `alone` by one. */
static double miss(struct gradient_case *k, const struct leaf *l, const signed char *way, size_t alone)
{
    double up, down, expected = 0;
    size_t from = way ? 0 : alone, to = way ? l->n : alone + 1;
    float *old = sg_alloc_unset((to - from) * sizeof *old);
    for (size_t j = from; j < to; j++) {
        float step = (float)STEP * (float)(way ? way[j] : 1);
        old[j - from] = *l->place[j];
        *l->place[j] = old[j - from] + step;
        expected += ((double)*l->place[j] - (double)(old[j - from] - step)) * (double)l->gradient[j];
    }
    up = check_naive_dot(&k->w, k->dy);
    for (size_t j = from; j < to; j++) *l->place[j] = old[j - from] - (float)STEP * (float)(way ? way[j] : 1);
    down = check_naive_dot(&k->w, k->dy);
    for (size_t j = from; j < to; j++) *l->place[j] = old[j - from];
    sg_free_aligned(old);
    return fabs(up - down - expected) / (2 * STEP);
}

/* The worst miss as a share of what it is compared with. A sum that happens to be near 0 is compared with `least`. */
static double leaf_error(struct gradient_case *k, const struct leaf *l)
{
    double squares = 0, largest = 0, worst, least = l->n == 1 ? 1 : 1e-2;
    signed char *way = sg_alloc(l->n + 1);
    for (size_t j = 0; j < l->n; j++) {
        squares += (double)l->gradient[j] * (double)l->gradient[j];
        if (fabs((double)l->gradient[j]) > largest) largest = fabs((double)l->gradient[j]);
        way[j] = check_below(&k->rng, 2) ? 1 : -1;
    }
    worst = miss(k, l, way, 0) / fmax(sqrt(squares), least);
    for (int i = 0; i < ALONE; i++) {
        double one = miss(k, l, NULL, check_below(&k->rng, (uint32_t)l->n)) / fmax(largest, least);
        if (!(one <= worst)) worst = one;
    }
    sg_free(way);
    return worst;
}

static double against_differences(struct gradient_case *k, const struct gradient *g)
{
    const struct sg_op *op = &k->w.graph->ops[0];
    double worst = 0, e;
    uint32_t many = k->w.graph->ops_n > 1;
    for (int i = 0; i < SG_OP_INPUTS && k->w.input_width && (!many || !i); i++) {
        if (op->in[i].value < 0) continue;
        uint32_t at = many ? 0 : op->in[i].at, width = many ? k->w.input_width : op->in[i].width;
        if (op->code == SG_OP_EXPERTS && i == 1) at += op->u.experts.k, width -= op->u.experts.k; /* numbers of experts stay */
        struct leaf l = input_leaf(k, g, at, width);
        e = leaf_error(k, &l);
        if (!(e <= worst)) worst = e;
    }
    for (uint32_t i = 0; i < g->tensors_n; i++) {
        struct leaf l = tensor_leaf(k, g, i);
        e = leaf_error(k, &l);
        if (!(e <= worst)) worst = e;
    }
    return worst;
}

/* --- comparing --- */

static double distance(const float *a, const float *b, size_t n)
{
    double scale, d = check_distance(a, n, b, n, &scale);
    return d / fmax(scale, 1e-2);
}

static double against_ref(const struct gradient_case *k, const struct gradient *a, const struct gradient *b)
{
    double worst = fmax(distance(a->y, b->y, (size_t)k->rows * k->w.output_width),
                        distance(a->dx, b->dx, (size_t)k->rows * k->w.input_width));
    for (size_t i = 0; i < a->tensors_n; i++) worst = fmax(worst, distance(a->tensors[i], b->tensors[i], a->sizes[i]));
    return worst;
}

static uint32_t steps_of(const struct sg_graph *g)
{
    uint32_t steps = g->ops_n;
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_DELTA) steps += 6;
    return steps;
}

static void on_unit(struct check *c, struct gradient_case *k, const struct check_unit *u, const struct gradient *ref,
                    struct check_case *out)
{
    struct gradient g;
    segue_error err = {0};
    segue_status status = gradients_of(k, u, &g, &err);
    out->bound = g.bf16 ? TOLERANCE_BF16 * steps_of(k->w.graph) : k->tolerance;
    if (status == SEGUE_EUNSUPPORTED) out->skipped = err.text;
    else if (status != SEGUE_OK) {
        fprintf(stderr, "check: %s %s: %s\n", out->unit, out->name, err.text);
        out->ok = -1;
    } else out->max_abs = u->desc.reference ? against_differences(k, &g) : against_ref(k, &g, ref);
    check_report(c, out);
    sg_arena_free(&g.arena);
}

static void one_case(struct check *c, const char *name, int op, uint32_t index)
{
    struct gradient_case k = {0};
    struct gradient ref = {0};
    segue_error err = {0};
    segue_status status = SEGUE_OK;
    int made = 0;
    for (uint32_t i = 0; i < c->units_n; i++) {
        const struct check_unit *u = &c->units[i];
        struct check_case out = {.level = "gradient", .unit = u->spec, .against = u->desc.reference ? "differs" : "ref"};
        snprintf(out.name, sizeof out.name, "%s.%u", name, index);
        if (!check_wants(c, &out)) continue;
        if (!made) {
            k.rng = check_rng_of(c->seed, out.name, index);
            status = make_case(&k, name, op, index, &err);
            if (status == SEGUE_OK) status = gradients_of(&k, &c->ref, &ref, &err);
            made = 1;
        }
        if (status == SEGUE_OK) {
            on_unit(c, &k, u, &ref, &out);
            continue;
        }
        fprintf(stderr, "check: %s: %s\n", out.name, err.text);
        out.ok = -1;
        check_report(c, &out);
    }
    if (!made) return;
    sg_arena_free(&ref.arena);
    check_world_free(&k.w);
}

void check_gradients(struct check *c)
{
    static const struct { const char *name; int op; uint32_t cases, quick; } kinds[] = {
        {"embed", 1, 4, 2},  {"norm", 1, 12, 4}, {"linear", 1, 8, 3}, {"rope", 1, 8, 3},  {"attend", 1, 12, 5},
        {"conv", 1, 8, 3},   {"delta", 1, 12, 4}, {"glu", 1, 9, 4},   {"act", 1, 9, 9},   {"add", 1, 4, 2},
        {"scale", 1, 6, 3},  {"route", 1, 10, 4}, {"experts", 1, 6, 3},
        {"lora", 0, 8, 4},  {"layer", 0, 8, 4},  {"deltalayer", 0, 8, 4},
        {"flash", 0, 8, 2},  {"evenlayer", 0, 4, 1},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (uint32_t n = 0; n < (c->quick ? kinds[i].quick : kinds[i].cases); n++) one_case(c, kinds[i].name, kinds[i].op, n);
}
