/* checkopmake.c: the graphs of level op. Each function draws sizes and options and builds a graph whose last operation is the one
 * to be checked; it also sets the bounds of the comparison (checkop.c). SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "checkop.h"

/* --- parts --- */

/* A width of something that costs its square. What is normalised has 6 numbers or more there: gradients of fewer are all but
 * 0 or without bound. */
static uint32_t size(struct check_maker *m, uint32_t a, uint32_t b)
{
    return check_maker_between(m, a, m->gradient && b > 24 ? 24 : b);
}

/* A column window of the input that is yet to come, with a random gap before it. */
static struct sg_operand reserve(struct check_maker *m, uint32_t width)
{
    struct sg_operand x = {.at = m->columns + (check_maker_sometimes(m) ? 0 : check_maker_between(m, 1, 5)), .width = width};
    m->columns = x.at + width;
    return x;
}

static struct sg_operand maybe_reserve(struct check_maker *m, uint32_t width)
{
    return check_maker_sometimes(m) ? reserve(m, width) : (struct sg_operand){.value = -1};
}

/* The input exists now: rows as wide as was reserved, or behind `rows`. */
static void input(struct check_maker *m, int behind_rows)
{
    m->w->input_width = m->columns + check_maker_between(m, 0, 3);
    m->x = sg_input_rows(&m->b, m->w->input_width);
    m->b.layer = 0;
    if (behind_rows && !m->gradient) m->x = sg_rows(&m->b, sg_whole(&m->b, m->x));
}

static struct sg_operand at(const struct check_maker *m, struct sg_operand x)
{
    if (x.value >= 0) x.value = m->x;
    return x;
}

static struct sg_weight weight(struct check_maker *m, const struct sg_tensor *t) { return sg_weight_of(&m->b, t); }

static struct sg_weight vector(struct check_maker *m, uint32_t n, float mean, float scale, const char *name)
{
    return weight(m, check_vector(&m->w->arena, &m->rng, n, mean, scale, name));
}

static struct sg_weight maybe_vector(struct check_maker *m, uint32_t n, float mean, float scale, const char *name)
{
    return check_maker_sometimes(m) ? vector(m, n, mean, scale, name) : weight(m, NULL);
}

static uint32_t block_of(enum sg_storage s)
{
    return s == SG_AFFINE || s == SG_Q8_GROUP || s == SG_CODED ? 32 : sg_storage_info(s)->block;
}

static int in_blocks(enum sg_storage s) { return s != SG_F32 && s != SG_F16 && s != SG_BF16; }

/* A width that rows of this storage can have. */
static uint32_t width_for(struct check_maker *m, uint32_t width_max)
{
    uint32_t block = m->storage == SG_FP8 && m->index % 3 < 2 ? 64 : block_of(m->storage); /* as kernels like it, and odd */
    return block > 1 ? block * check_maker_between(m, 1, width_max / block > 1 ? width_max / block : 1)
                     : check_maker_between(m, 1, width_max);
}

static enum sg_act random_act(struct check_maker *m) { return (enum sg_act)check_maker_between(m, SG_ACT_NONE, SG_ACT_TANH); }

/* --- ops: each builds the graph and returns the value of y --- */

/* Token ids are drawn below `columns`, which stands for the vocabulary here. */
static int32_t make_embed(struct check_maker *m)
{
    uint32_t d = width_for(m, 256), vocab = check_maker_between(m, 1, 60);
    const struct sg_tensor *table = check_tensor(&m->w->arena, &m->rng, m->storage, vocab, d, 1, "table");
    const struct sg_tensor *positions =
        check_maker_sometimes(m) ? check_tensor(&m->w->arena, &m->rng, SG_F32, 600, d, 1, "positions") : NULL;
    int32_t tokens = sg_input_tokens(&m->b);
    m->columns = vocab; /* tokens are drawn below it */
    m->w->tolerance = 1e-6;
    return sg_embed(&m->b, tokens, table, positions, check_maker_sometimes(m) ? 1 : 3.5f);
}

/* Odd widths, and each of weight, bias, gate, +1 with and without. */
static int32_t make_norm(struct check_maker *m)
{
    struct sg_norm p = {
        .kind = check_maker_sometimes(m) ? SG_NORM_RMS : SG_NORM_LAYER, .eps = 1e-5f, .groups = check_maker_between(m, 1, 4)};
    uint32_t group = size(m, m->gradient ? 6 : 2, 90), width = p.groups * group;
    struct sg_operand x = reserve(m, width), gate = maybe_reserve(m, width);
    input(m, check_maker_sometimes(m));
    p.plus_one = m->index & 1;
    p.weight = m->index % 6 == 5 ? weight(m, NULL) : vector(m, group, p.plus_one ? 0 : 1, 0.3f, "weight");
    p.bias = maybe_vector(m, group, 0, 0.3f, "bias");
    m->w->tolerance = 1e-5;
    m->floor = 1;
    return sg_norm(&m->b, at(m, x), p, at(m, gate));
}

/* Low-rank changes for some sequences, two for some. */
static void add_loras(struct check_maker *m, const struct sg_tensor *t)
{
    struct sg_arena *arena = &m->w->arena;
    for (uint32_t s = 0; s < CHECK_SEQS; s++)
        for (uint32_t i = check_maker_between(m, 0, CHECK_LORAS); i; i--) {
            struct sg_lora *l = sg_arena_alloc(arena, sizeof *l);
            struct sg_lora_pair *pair = sg_arena_alloc(arena, sizeof *pair);
            uint32_t rank = check_maker_between(m, 1, 9);
            float *a = sg_arena_alloc(arena, rank * t->cols * sizeof *a),
                  *b = sg_arena_alloc(arena, rank * t->rows * 4);
            check_fill(&m->rng, a, rank * t->cols, CHECK_NORMAL, 1 / sqrtf((float)t->cols));
            check_fill(&m->rng, b, rank * t->rows, CHECK_NORMAL, 0.5f);
            *pair = (struct sg_lora_pair){.tensor = t, .rank = rank, .a = a, .b = b};
            *l = (struct sg_lora){.pairs = pair, .pairs_n = 1};
            memcpy(&l->id, a, sizeof l->id); /* random: units keep matrices by it */
            m->w->loras[s][m->w->loras_n[s]++] = l;
        }
}

/* Row windows begin at rows that no group of 16 divides: packed layouts must cope. */
static int32_t make_linear_of(struct check_maker *m, uint32_t k, uint32_t n)
{
    uint32_t before = check_maker_sometimes(m) ? 0 : check_maker_between(m, 1, 20);
    uint32_t rows = before + n + (before ? check_maker_between(m, 0, 9) : 0);
    float scale = 1 / sqrtf((float)k);
    struct sg_operand x = reserve(m, k), residual = maybe_reserve(m, n);
    input(m, check_maker_sometimes(m));
    const struct sg_tensor *t = check_tensor(&m->w->arena, &m->rng, m->storage, rows, k, scale, "weight");
    struct sg_weight w = sg_weight_rows(&m->b, t, before, n);
    if (m->index % 2 && !m->gradient) add_loras(m, t);
    m->w->tolerance = 2e-5;
    m->block_tolerance = in_blocks(m->storage) ? 3e-2 : 0;
    m->floor = m->data == CHECK_OUTLIERS ? 10 : m->data == CHECK_TINY ? 1e-33 : 1; /* denormals may be lost */
    return sg_linear(&m->b, at(m, x), w, maybe_vector(m, n, 0, 1, "bias"), at(m, residual));
}

static int32_t make_linear(struct check_maker *m)
{
    uint32_t k = width_for(m, 512);
    return make_linear_of(m, k, check_maker_between(m, 1, 70));
}

/* As wide as rows of large models are: kernels that take whole thousands of columns. */
static int32_t make_linear_wide(struct check_maker *m)
{
    static const uint32_t wide[] = {4096, 12288, 1024, 2048, 6144, 2560, 14336};
    return make_linear_of(m, wide[m->index % 7], check_maker_between(m, 1, 40));
}

/* Prompts: more rows than decode kernels take (plan_runs), of whole and cut tiles of weight rows. A unit may round x to the
 * 16-bit type of the weight there. */
static int32_t make_linear_many(struct check_maker *m)
{
    static const uint32_t widths[] = {512, 256, 768};
    int32_t y = make_linear_of(m, widths[m->index % 3], check_maker_between(m, 1, 200));
    if (m->storage == SG_F16) m->block_tolerance = 1e-3;
    if (m->storage == SG_BF16) m->block_tolerance = 5e-3;
    return y;
}

/* As large as the heads of vocabularies that decode reads as a stream, in the forms that such kernels have; other storages
 * small. */
static int32_t make_head(struct check_maker *m)
{
    const enum sg_storage s = m->storage;
    int large = s == SG_F16 || s == SG_BF16 || s == SG_Q8_0;
    uint32_t k = s == SG_F16 ? 576 : s == SG_BF16 ? 1024 : 768, n = large ? (8 << 20) / k + 27 : 40;
    m->w->input_width = m->columns = k;
    m->x = sg_input_rows(&m->b, k);
    m->b.layer = 0;
    struct sg_weight w = weight(m, check_tensor(&m->w->arena, &m->rng, s, n, k, 1 / sqrtf((float)k), "weight"));
    m->w->tolerance = 2e-5;
    m->block_tolerance = in_blocks(s) ? 3e-2 : 0;
    m->floor = 1;
    return sg_linear(&m->b, sg_whole(&m->b, m->x), w, weight(m, NULL), sg_absent());
}

static int32_t make_rope(struct check_maker *m)
{
    uint32_t heads = check_maker_between(m, 1, 4), width = check_maker_between(m, 2, 70),
             pairs = check_maker_sometimes(m) ? width / 2 : check_maker_between(m, 1, width / 2);
    float inverse[35];
    struct sg_operand x = reserve(m, heads * width);
    input(m, 0);
    for (uint32_t i = 0; i < pairs; i++) inverse[i] = powf(10000.0f, -(float)i / (float)pairs);
    int32_t table = sg_rope_table_add(&m->b, pairs, inverse, check_maker_sometimes(m) ? 1 : 1.3f);
    m->w->tolerance = 1e-4;
    int32_t y = sg_rope(&m->b, at(m, x), heads, table);
    if (y >= 0 && m->index % 4 == 3) m->b.graph->ops[m->b.graph->ops_n - 1].u.rope.sign = -1;
    return y;
}

/* Each storage of K and V in turn; windows around the 64 rows of a block. */
static int32_t make_attend(struct check_maker *m)
{
    static const enum sg_storage storages[] = {SG_F32, SG_F16, SG_BF16, SG_Q8_0};
    struct sg_attend p = {.kv_heads = check_maker_between(m, 1, 3), .d = size(m, 1, 80), .dv = size(m, 1, 80)};
    p.heads = p.kv_heads * check_maker_between(m, 1, 4);
    p.scale = 1 / sqrtf((float)p.d);
    p.window = check_maker_sometimes(m) ? 0 : check_maker_between(m, 1, 150);
    p.softcap = check_maker_sometimes(m) ? 0 : 3;
    struct sg_operand q = reserve(m, p.heads * p.d), k = reserve(m, p.kv_heads * p.d),
                      v = reserve(m, p.kv_heads * p.dv);
    struct sg_operand gate = maybe_reserve(m, p.heads * p.dv);
    input(m, 0);
    p.sinks = maybe_vector(m, p.heads, 0, 1, "sinks");
    m->w->kv = m->gradient ? SG_F32 : storages[m->index % 4];
    m->w->tolerance = 1e-5;
    m->block_tolerance = m->w->kv == SG_Q8_0 ? 2e-2 : 0;
    return sg_attend(&m->b, at(m, q), at(m, k), at(m, v), p, at(m, gate));
}

/* Heads as models have them, K and V in 16 bits: units may take many rows on tensor cores. Factors of 16 bits: 8 of the bits
 * of q, of K and V as they are stored, of weights. */
static int32_t attend_16(struct check_maker *m, uint32_t kv_heads, uint32_t share, uint32_t d, uint32_t window_min,
                         uint32_t window_max)
{
    struct sg_attend p = {.kv_heads = kv_heads, .heads = kv_heads * share, .d = d};
    p.dv = p.d;
    p.scale = 1 / sqrtf((float)p.d);
    p.window = m->index % 4 == 3 ? check_maker_between(m, window_min, window_max) : 0;
    p.softcap = m->index % 4 == 2 ? 3 : 0;
    struct sg_operand q = reserve(m, p.heads * p.d), k = reserve(m, p.kv_heads * p.d), v = reserve(m, p.kv_heads * p.d);
    struct sg_operand gate = maybe_reserve(m, p.heads * p.d);
    input(m, 0);
    p.sinks = maybe_vector(m, p.heads, 0, 1, "sinks");
    m->w->kv = m->index % 2 ? SG_BF16 : SG_F16;
    m->w->tolerance = 1e-5;
    m->block_tolerance = m->index % 2 ? 1e-2 : 2e-3;
    return sg_attend(&m->b, at(m, q), at(m, k), at(m, v), p, at(m, gate));
}

static int32_t make_attend_wide(struct check_maker *m)
{
    uint32_t kv_heads = check_maker_between(m, 1, 2);
    return attend_16(m, kv_heads, check_maker_between(m, 1, 3), 64u << m->index % 3, 1, 150);
}

/* The same far into a context (plan_long_runs), behind more keys than the 1,536 from which a unit may take other kernels; case 3
 * with a window that has so many keys and ends before the first ones. */
static int32_t make_attend_long(struct check_maker *m)
{
    static const uint32_t widths[] = {64, 128, 256, 128, 80, 96};
    return attend_16(m, 1, 2, widths[m->index % 6], 1537, 1590);
}

/* Many positions behind few rows (plan_deep_runs): head widths and storages that units have kernels for, and others; as many
 * query heads per K and V head as models have. */
static int32_t make_attend_deep(struct check_maker *m)
{
    static const enum sg_storage storages[] = {SG_F16, SG_BF16, SG_F16, SG_BF16, SG_Q8_0, SG_F32};
    static const uint32_t widths[] = {64, 128, 256, 64, 128, 80}, shares[] = {1, 2, 3, 4, 7, 8, 9};
    struct sg_attend p = {.kv_heads = check_maker_between(m, 1, 2), .d = widths[m->index % 6]};
    p.dv = p.d == 80 ? 48 : p.d;
    p.heads = p.kv_heads * shares[check_maker_between(m, 0, p.d > 128 ? 3 : 6)];
    p.scale = 1 / sqrtf((float)p.d);
    p.window = m->index % 3 == 1 ? check_maker_between(m, 100, 500) : 0;
    p.softcap = m->index % 5 == 4 ? 3 : 0;
    struct sg_operand q = reserve(m, p.heads * p.d), k = reserve(m, p.kv_heads * p.d), v = reserve(m, p.kv_heads * p.dv);
    struct sg_operand gate = maybe_reserve(m, p.heads * p.dv);
    input(m, 0);
    p.sinks = maybe_vector(m, p.heads, 0, 1, "sinks");
    m->w->kv = storages[m->index % 6];
    m->w->tolerance = 1e-5;
    m->block_tolerance = m->w->kv == SG_Q8_0 ? 2e-2 : 0;
    return sg_attend(&m->b, at(m, q), at(m, k), at(m, v), p, at(m, gate));
}

static int32_t make_conv(struct check_maker *m)
{
    struct sg_conv p = {.taps = check_maker_between(m, 1, 5), .act = random_act(m)};
    if (m->gradient && p.act == SG_ACT_RELU) p.act = SG_ACT_RELU2; /* a difference across the bend says nothing */
    uint32_t width = check_maker_between(m, 1, 90);
    struct sg_operand x = reserve(m, width);
    input(m, 0);
    p.weight = vector(m, width * p.taps, 0, 0.6f, "weight");
    p.bias = maybe_vector(m, width, 0, 0.5f, "bias");
    m->w->tolerance = 1e-5;
    return sg_conv(&m->b, at(m, x), p);
}

/* Decays between slow and fast; without l2 the keys are shortened (shorten_keys). */
static int32_t make_delta(struct check_maker *m)
{
    struct sg_delta p = {
        .k_heads = check_maker_between(m, 1, 3), .dk = size(m, m->gradient ? 6 : 1, 40), .dv = size(m, 1, 40), .l2_eps = 1e-6f};
    p.v_heads = p.k_heads * check_maker_between(m, 1, 3);
    if (m->index % 4 == 2) p.l2_eps = 0;
    struct sg_operand in[5] = {reserve(m, p.k_heads * p.dk), reserve(m, p.k_heads * p.dk),
                               reserve(m, p.v_heads * p.dv), reserve(m, p.v_heads), reserve(m, p.v_heads)};
    input(m, 0);
    p.decay_is_log = (uint32_t)check_maker_sometimes(m);
    p.decay = vector(m, p.v_heads, p.decay_is_log ? -1 : -0.5f, 0.1f, "decay");
    p.dt = vector(m, p.v_heads, 0, 1, "dt");
    for (int i = 0; i < 5; i++) in[i] = at(m, in[i]);
    m->w->tolerance = 2e-5;
    return sg_delta(&m->b, in, p);
}

/* Heads of 128, as models have them, with k and v at places that take 16 bytes at once: units may take many rows in chunks. */
static int32_t make_delta_wide(struct check_maker *m)
{
    enum { HEAD = 128 };
    struct sg_delta p = {.k_heads = check_maker_between(m, 1, 2), .dk = HEAD, .dv = HEAD, .l2_eps = 1e-6f, .decay_is_log = 1};
    p.v_heads = p.k_heads * check_maker_between(m, 1, 2);
    uint32_t keys = p.k_heads * HEAD, values = p.v_heads * HEAD, gates = 2 * keys + values;
    m->columns = gates + 4 * ((2 * p.v_heads + 3) / 4);
    m->w->input_width = m->columns;
    m->x = sg_input_rows(&m->b, m->columns);
    m->b.layer = 0;
    p.decay = vector(m, p.v_heads, -1, 1, "decay");
    p.dt = vector(m, p.v_heads, 0, 1, "dt");
    const struct sg_operand in[5] = {{m->x, 0, keys}, {m->x, keys, keys}, {m->x, 2 * keys, values}, {m->x, gates, p.v_heads},
                                     {m->x, gates + p.v_heads, p.v_heads}};
    m->w->tolerance = 2e-5;
    return sg_delta(&m->b, in, p);
}

static int32_t make_glu(struct check_maker *m)
{
    uint32_t width = check_maker_between(m, 1, 200);
    struct sg_operand gate = reserve(m, width), up = reserve(m, width);
    input(m, check_maker_sometimes(m));
    m->w->tolerance = 1e-5;
    return sg_glu(&m->b, at(m, gate), at(m, up), random_act(m));
}

static int32_t make_act(struct check_maker *m)
{
    struct sg_operand x = reserve(m, check_maker_between(m, 1, 200));
    input(m, check_maker_sometimes(m));
    m->w->tolerance = 1e-5;
    return sg_activate(&m->b, at(m, x), (enum sg_act)(m->index % (SG_ACT_TANH + 1)));
}

static int32_t make_add(struct check_maker *m)
{
    uint32_t width = check_maker_between(m, 1, 200);
    struct sg_operand x = reserve(m, width), y = reserve(m, width);
    input(m, check_maker_sometimes(m));
    m->w->tolerance = 1e-6;
    return sg_add(&m->b, at(m, x), at(m, y));
}

/* In turn a constant, a vector, one number. */
static int32_t make_scale(struct check_maker *m)
{
    uint32_t width = check_maker_between(m, 1, 200), kind = m->index % 3;
    struct sg_operand x = reserve(m, width);
    input(m, check_maker_sometimes(m));
    m->w->tolerance = 1e-6;
    return sg_scale(&m->b, at(m, x), 1.7f,
                    kind == 0 ? weight(m, NULL) : vector(m, kind == 1 ? width : 1, 1, 0.5f, "weight"));
}

static int32_t make_route(struct check_maker *m)
{
    struct sg_route p = {.experts = check_maker_between(m, 1, 64), .scale = check_maker_sometimes(m) ? 1 : 2.5f};
    p.k = check_maker_between(m, 1, p.experts < 8 ? p.experts : 8);
    struct sg_operand x = reserve(m, p.experts);
    input(m, check_maker_sometimes(m));
    p.sigmoid = (uint32_t)check_maker_sometimes(m);
    p.renormalise = (uint32_t)check_maker_sometimes(m);
    p.bias = maybe_vector(m, p.experts, 0, 0.3f, "bias");
    m->w->tolerance = 1e-5;
    m->floor = 0.1;
    return sg_route(&m->b, at(m, x), p);
}

/* Few and small experts: the point is which rows of the stacks are read. */
static int32_t make_experts(struct check_maker *m)
{
    struct sg_experts p = {.experts = check_maker_between(m, 1, 6), .ff = width_for(m, 64), .act = SG_ACT_SILU};
    uint32_t width = width_for(m, 64), d = check_maker_between(m, 1, 40);
    struct sg_arena *arena = &m->w->arena;
    p.k = check_maker_between(m, 1, p.experts);
    struct sg_operand x = reserve(m, width), routing = reserve(m, 2 * p.k);
    input(m, check_maker_sometimes(m));
    float in = 1 / sqrtf((float)width), hidden = 1 / sqrtf((float)p.ff);
    p.gate = weight(m, check_tensor(arena, &m->rng, m->storage, p.experts * p.ff, width, in, "gate"));
    p.up = weight(m, check_tensor(arena, &m->rng, m->storage, p.experts * p.ff, width, in, "up"));
    p.down = weight(m, check_tensor(arena, &m->rng, m->storage, p.experts * d, p.ff, hidden, "down"));
    m->w->tolerance = 2e-5;
    m->block_tolerance = in_blocks(m->storage) ? 5e-2 : 0;
    m->floor = 0.5;
    return sg_experts(&m->b, at(m, x), at(m, routing), p);
}

static int32_t make_rows(struct check_maker *m)
{
    struct sg_operand x = reserve(m, check_maker_between(m, 1, 100));
    input(m, 0);
    m->w->tolerance = 0;
    return sg_rows(&m->b, at(m, x));
}

const struct check_op_kind check_op_kinds[CHECK_OP_KINDS] = {
    {"embed", make_embed, 1, 2, 1, 1, CHECK_PLAN_MIXED},
    {"norm", make_norm, 0, 12, 4, CHECK_DATA_N, CHECK_PLAN_MIXED},
    {"linear", make_linear, 1, 6, 2, 4, CHECK_PLAN_MIXED},
    {"rope", make_rope, 0, 8, 4, 2, CHECK_PLAN_MIXED},
    {"attend", make_attend, 0, 16, 4, 1, CHECK_PLAN_MIXED},
    {"conv", make_conv, 0, 8, 3, 2, CHECK_PLAN_MIXED},
    {"delta", make_delta, 0, 10, 4, 1, CHECK_PLAN_MIXED},
    {"glu", make_glu, 0, 9, 3, 2, CHECK_PLAN_MIXED},
    {"act", make_act, 0, 18, 9, 2, CHECK_PLAN_MIXED},
    {"add", make_add, 0, 4, 2, 4, CHECK_PLAN_MIXED},
    {"scale", make_scale, 0, 6, 3, 4, CHECK_PLAN_MIXED},
    {"route", make_route, 0, 10, 4, 1, CHECK_PLAN_MIXED},
    {"experts", make_experts, 1, 3, 1, 1, CHECK_PLAN_MIXED},
    {"rows", make_rows, 0, 4, 2, 4, CHECK_PLAN_MIXED},
    {"linearwide", make_linear_wide, 1, 7, 2, 4, CHECK_PLAN_MIXED},
    {"head", make_head, 1, 1, 1, 1, CHECK_PLAN_MIXED},
    {"deltawide", make_delta_wide, 0, 6, 3, 1, CHECK_PLAN_MIXED},
    {"attendwide", make_attend_wide, 0, 12, 4, 1, CHECK_PLAN_MIXED},
    {"linearmany", make_linear_many, 1, 3, 1, 2, CHECK_PLAN_PROMPTS},
    {"attenddeep", make_attend_deep, 0, 12, 1, 1, CHECK_PLAN_DEEP},
    {"attendlong", make_attend_long, 0, 6, 1, 1, CHECK_PLAN_LONG},
};
