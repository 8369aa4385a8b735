/* checkop.c: level op. Each op in random sizes, windows, storages, spans and continuations: on every unit
 * against `ref`, and on `ref` against the restatement of checknaive.c.
 *
 * Bounds are a share of the largest number that the result can be expected to have (w.tolerance and a floor):
 *   - 2e-5: sums of up to 512 products in fp32, in any order; recurrences, whose errors feed back
 *   - 1e-5: elementwise ops and softmax (exp and tanh within a few ulp); 1e-6 where only a product is rounded
 *   - 1e-4: angles in fp32 up to position 400
 *   - 3e-2: weights in blocks, on units other than ref: activations may be rounded to int8 per block of 32,
 *     whose step is 1/254 of the block's largest number; with outliers that is a few per cent of a sum
 *   - 1e-2, 3e-2 for recurrences: units that round every number to fp16; times 4 (check_half): to bf16
 *   - 2e-3, 1e-2: attention whose factors a unit may round to fp16 or bf16, as K and V are
 *   - 2e-2: K and V in q8: a unit may place blocks and round halves its own way, half a step of 1/127
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "check.h"

/* A case being made. */
struct maker {
    struct check_world *w;
    struct check_rng rng;
    struct sg_builder b;
    uint32_t index, columns;         /* of the case; reserved so far */
    enum sg_storage storage;
    enum check_data data;
    int32_t x;                       /* the input, or its wanted rows */
    double block_tolerance;          /* on other units than ref, when weights are in blocks; 0 = as ref */
    double floor;                    /* the least size that y is taken to have */
    int gradient;                    /* for checkgradient.c: no op `rows`, no adapters, smooth and small */
};

/* --- parts --- */

static uint32_t between(struct maker *m, uint32_t a, uint32_t b) { return check_between(&m->rng, a, b); }
/* A width of something that costs its square. What is normalised has 6 numbers or more there: gradients of fewer are all but
 * 0 or without bound. */
static uint32_t size(struct maker *m, uint32_t a, uint32_t b) { return between(m, a, m->gradient && b > 24 ? 24 : b); }
static int sometimes(struct maker *m) { return check_below(&m->rng, 2) == 0; }

/* A column window of the input that is yet to come, with a random gap before it. */
static struct sg_operand reserve(struct maker *m, uint32_t width)
{
    struct sg_operand x = {.at = m->columns + (sometimes(m) ? 0 : between(m, 1, 5)), .width = width};
    m->columns = x.at + width;
    return x;
}

static struct sg_operand maybe_reserve(struct maker *m, uint32_t width)
{
    return sometimes(m) ? reserve(m, width) : (struct sg_operand){.value = -1};
}

/* The input exists now: rows as wide as was reserved, or behind `rows`. */
static void input(struct maker *m, int behind_rows)
{
    m->w->input_width = m->columns + between(m, 0, 3);
    m->x = sg_input_rows(&m->b, m->w->input_width);
    m->b.layer = 0;
    if (behind_rows && !m->gradient) m->x = sg_rows(&m->b, sg_whole(&m->b, m->x));
}

static struct sg_operand at(const struct maker *m, struct sg_operand x)
{
    if (x.value >= 0) x.value = m->x;
    return x;
}

static struct sg_weight weight(struct maker *m, const struct sg_tensor *t) { return sg_weight_of(&m->b, t); }

static struct sg_weight vector(struct maker *m, uint32_t n, float mean, float scale, const char *name)
{
    return weight(m, check_vector(&m->w->arena, &m->rng, n, mean, scale, name));
}

static struct sg_weight maybe_vector(struct maker *m, uint32_t n, float mean, float scale, const char *name)
{
    return sometimes(m) ? vector(m, n, mean, scale, name) : weight(m, NULL);
}

static uint32_t block_of(enum sg_storage s)
{
    return s == SG_AFFINE || s == SG_Q8_GROUP || s == SG_CODED ? 32 : sg_storage_info(s)->block;
}

static int in_blocks(enum sg_storage s) { return s != SG_F32 && s != SG_F16 && s != SG_BF16; }

/* A width that rows of this storage can have. */
static uint32_t width_for(struct maker *m, uint32_t width_max)
{
    uint32_t block = m->storage == SG_FP8 && m->index % 3 < 2 ? 64 : block_of(m->storage); /* as kernels like it, and odd */
    return block > 1 ? block * between(m, 1, width_max / block > 1 ? width_max / block : 1) : between(m, 1, width_max);
}

static enum sg_act random_act(struct maker *m) { return (enum sg_act)between(m, SG_ACT_NONE, SG_ACT_TANH); }

/* --- ops: each builds the graph and returns the value of y --- */

/* Token ids are drawn below `columns`, which stands for the vocabulary here. */
static int32_t make_embed(struct maker *m)
{
    uint32_t d = width_for(m, 256), vocab = between(m, 1, 60);
    const struct sg_tensor *table = check_tensor(&m->w->arena, &m->rng, m->storage, vocab, d, 1, "table");
    const struct sg_tensor *positions =
        sometimes(m) ? check_tensor(&m->w->arena, &m->rng, SG_F32, 600, d, 1, "positions") : NULL;
    int32_t tokens = sg_input_tokens(&m->b);
    m->columns = vocab; /* tokens are drawn below it */
    m->w->tolerance = 1e-6;
    return sg_embed(&m->b, tokens, table, positions, sometimes(m) ? 1 : 3.5f);
}

/* Odd widths, and each of weight, bias, gate, +1 with and without. */
static int32_t make_norm(struct maker *m)
{
    struct sg_norm p = {
        .kind = sometimes(m) ? SG_NORM_RMS : SG_NORM_LAYER, .eps = 1e-5f, .groups = between(m, 1, 4)};
    uint32_t group = size(m, m->gradient ? 6 : 2, 90), width = p.groups * group;
    struct sg_operand x = reserve(m, width), gate = maybe_reserve(m, width);
    input(m, sometimes(m));
    p.plus_one = m->index & 1;
    p.weight = m->index % 6 == 5 ? weight(m, NULL) : vector(m, group, p.plus_one ? 0 : 1, 0.3f, "weight");
    p.bias = maybe_vector(m, group, 0, 0.3f, "bias");
    m->w->tolerance = 1e-5;
    m->floor = 1;
    return sg_norm(&m->b, at(m, x), p, at(m, gate));
}

/* Low-rank changes for some sequences, two for some. */
static void add_loras(struct maker *m, const struct sg_tensor *t)
{
    struct sg_arena *arena = &m->w->arena;
    for (uint32_t s = 0; s < CHECK_SEQS; s++)
        for (uint32_t i = between(m, 0, CHECK_LORAS); i; i--) {
            struct sg_lora *l = sg_arena_alloc(arena, sizeof *l);
            struct sg_lora_pair *pair = sg_arena_alloc(arena, sizeof *pair);
            uint32_t rank = between(m, 1, 9);
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
static int32_t make_linear_of(struct maker *m, uint32_t k, uint32_t n)
{
    uint32_t before = sometimes(m) ? 0 : between(m, 1, 20);
    uint32_t rows = before + n + (before ? between(m, 0, 9) : 0);
    float scale = 1 / sqrtf((float)k);
    struct sg_operand x = reserve(m, k), residual = maybe_reserve(m, n);
    input(m, sometimes(m));
    const struct sg_tensor *t = check_tensor(&m->w->arena, &m->rng, m->storage, rows, k, scale, "weight");
    struct sg_weight w = sg_weight_rows(&m->b, t, before, n);
    if (m->index % 2 && !m->gradient) add_loras(m, t);
    m->w->tolerance = 2e-5;
    m->block_tolerance = in_blocks(m->storage) ? 3e-2 : 0;
    m->floor = m->data == CHECK_OUTLIERS ? 10 : m->data == CHECK_TINY ? 1e-33 : 1; /* denormals may be lost */
    return sg_linear(&m->b, at(m, x), w, maybe_vector(m, n, 0, 1, "bias"), at(m, residual));
}

static int32_t make_linear(struct maker *m)
{
    uint32_t k = width_for(m, 512);
    return make_linear_of(m, k, between(m, 1, 70));
}

/* As wide as rows of large models are: kernels that take whole thousands of columns. */
static int32_t make_linear_wide(struct maker *m)
{
    static const uint32_t wide[] = {4096, 12288, 1024, 2048, 6144, 2560, 14336};
    return make_linear_of(m, wide[m->index % 7], between(m, 1, 40));
}

/* Prompts: more rows than decode kernels take (plan_runs), of whole and cut tiles of weight rows. A unit may round x to the
 * 16-bit type of the weight there. */
static int32_t make_linear_many(struct maker *m)
{
    static const uint32_t widths[] = {512, 256, 768};
    int32_t y = make_linear_of(m, widths[m->index % 3], between(m, 1, 200));
    if (m->storage == SG_F16) m->block_tolerance = 1e-3;
    if (m->storage == SG_BF16) m->block_tolerance = 5e-3;
    return y;
}

/* As large as the heads of vocabularies that decode reads as a stream, in the forms that such kernels have; other storages
 * small. */
static int32_t make_head(struct maker *m)
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

static int32_t make_rope(struct maker *m)
{
    uint32_t heads = between(m, 1, 4), width = between(m, 2, 70),
             pairs = sometimes(m) ? width / 2 : between(m, 1, width / 2);
    float inverse[35];
    struct sg_operand x = reserve(m, heads * width);
    input(m, 0);
    for (uint32_t i = 0; i < pairs; i++) inverse[i] = powf(10000.0f, -(float)i / (float)pairs);
    int32_t table = sg_rope_table_add(&m->b, pairs, inverse, sometimes(m) ? 1 : 1.3f);
    m->w->tolerance = 1e-4;
    int32_t y = sg_rope(&m->b, at(m, x), heads, table);
    if (y >= 0 && m->index % 4 == 3) m->b.graph->ops[m->b.graph->ops_n - 1].u.rope.sign = -1;
    return y;
}

/* Each storage of K and V in turn; windows around the 64 rows of a block. */
static int32_t make_attend(struct maker *m)
{
    static const enum sg_storage storages[] = {SG_F32, SG_F16, SG_BF16, SG_Q8_0};
    struct sg_attend p = {.kv_heads = between(m, 1, 3), .d = size(m, 1, 80), .dv = size(m, 1, 80)};
    p.heads = p.kv_heads * between(m, 1, 4);
    p.scale = 1 / sqrtf((float)p.d);
    p.window = sometimes(m) ? 0 : between(m, 1, 150);
    p.softcap = sometimes(m) ? 0 : 3;
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
static int32_t make_attend_wide(struct maker *m)
{
    struct sg_attend p = {.kv_heads = between(m, 1, 2), .d = 64u << m->index % 3};
    p.dv = p.d;
    p.heads = p.kv_heads * between(m, 1, 3);
    p.scale = 1 / sqrtf((float)p.d);
    p.window = m->index % 4 == 3 ? between(m, 1, 150) : 0;
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

/* Many positions behind few rows (plan_deep_runs): head widths and storages that units have kernels for, and others; as many
 * query heads per K and V head as models have. */
static int32_t make_attend_deep(struct maker *m)
{
    static const enum sg_storage storages[] = {SG_F16, SG_BF16, SG_F16, SG_BF16, SG_Q8_0, SG_F32};
    static const uint32_t widths[] = {64, 128, 256, 64, 128, 80}, shares[] = {1, 2, 3, 4, 7, 8, 9};
    struct sg_attend p = {.kv_heads = between(m, 1, 2), .d = widths[m->index % 6]};
    p.dv = p.d == 80 ? 48 : p.d;
    p.heads = p.kv_heads * shares[between(m, 0, p.d > 128 ? 3 : 6)];
    p.scale = 1 / sqrtf((float)p.d);
    p.window = m->index % 3 == 1 ? between(m, 100, 500) : 0;
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

static int32_t make_conv(struct maker *m)
{
    struct sg_conv p = {.taps = between(m, 1, 5), .act = random_act(m)};
    if (m->gradient && p.act == SG_ACT_RELU) p.act = SG_ACT_RELU2; /* a difference across the bend says nothing */
    uint32_t width = between(m, 1, 90);
    struct sg_operand x = reserve(m, width);
    input(m, 0);
    p.weight = vector(m, width * p.taps, 0, 0.6f, "weight");
    p.bias = maybe_vector(m, width, 0, 0.5f, "bias");
    m->w->tolerance = 1e-5;
    return sg_conv(&m->b, at(m, x), p);
}

/* Decays between slow and fast; without l2 the keys are shortened (shorten_keys). */
static int32_t make_delta(struct maker *m)
{
    struct sg_delta p = {
        .k_heads = between(m, 1, 3), .dk = size(m, m->gradient ? 6 : 1, 40), .dv = size(m, 1, 40), .l2_eps = 1e-6f};
    p.v_heads = p.k_heads * between(m, 1, 3);
    if (m->index % 4 == 2) p.l2_eps = 0;
    struct sg_operand in[5] = {reserve(m, p.k_heads * p.dk), reserve(m, p.k_heads * p.dk),
                               reserve(m, p.v_heads * p.dv), reserve(m, p.v_heads), reserve(m, p.v_heads)};
    input(m, 0);
    p.decay_is_log = (uint32_t)sometimes(m);
    p.decay = vector(m, p.v_heads, p.decay_is_log ? -1 : -0.5f, 0.1f, "decay");
    p.dt = vector(m, p.v_heads, 0, 1, "dt");
    for (int i = 0; i < 5; i++) in[i] = at(m, in[i]);
    m->w->tolerance = 2e-5;
    return sg_delta(&m->b, in, p);
}

/* Heads of 128, as models have them, with k and v at places that take 16 bytes at once: units may take many rows in chunks. */
static int32_t make_delta_wide(struct maker *m)
{
    enum { HEAD = 128 };
    struct sg_delta p = {.k_heads = between(m, 1, 2), .dk = HEAD, .dv = HEAD, .l2_eps = 1e-6f, .decay_is_log = 1};
    p.v_heads = p.k_heads * between(m, 1, 2);
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

static int32_t make_glu(struct maker *m)
{
    uint32_t width = between(m, 1, 200);
    struct sg_operand gate = reserve(m, width), up = reserve(m, width);
    input(m, sometimes(m));
    m->w->tolerance = 1e-5;
    return sg_glu(&m->b, at(m, gate), at(m, up), random_act(m));
}

static int32_t make_act(struct maker *m)
{
    struct sg_operand x = reserve(m, between(m, 1, 200));
    input(m, sometimes(m));
    m->w->tolerance = 1e-5;
    return sg_activate(&m->b, at(m, x), (enum sg_act)(m->index % (SG_ACT_TANH + 1)));
}

static int32_t make_add(struct maker *m)
{
    uint32_t width = between(m, 1, 200);
    struct sg_operand x = reserve(m, width), y = reserve(m, width);
    input(m, sometimes(m));
    m->w->tolerance = 1e-6;
    return sg_add(&m->b, at(m, x), at(m, y));
}

/* In turn a constant, a vector, one number. */
static int32_t make_scale(struct maker *m)
{
    uint32_t width = between(m, 1, 200), kind = m->index % 3;
    struct sg_operand x = reserve(m, width);
    input(m, sometimes(m));
    m->w->tolerance = 1e-6;
    return sg_scale(&m->b, at(m, x), 1.7f,
                    kind == 0 ? weight(m, NULL) : vector(m, kind == 1 ? width : 1, 1, 0.5f, "weight"));
}

static int32_t make_route(struct maker *m)
{
    struct sg_route p = {.experts = between(m, 1, 64), .scale = sometimes(m) ? 1 : 2.5f};
    p.k = between(m, 1, p.experts < 8 ? p.experts : 8);
    struct sg_operand x = reserve(m, p.experts);
    input(m, sometimes(m));
    p.sigmoid = (uint32_t)sometimes(m);
    p.renormalise = (uint32_t)sometimes(m);
    p.bias = maybe_vector(m, p.experts, 0, 0.3f, "bias");
    m->w->tolerance = 1e-5;
    m->floor = 0.1;
    return sg_route(&m->b, at(m, x), p);
}

/* Few and small experts: the point is which rows of the stacks are read. */
static int32_t make_experts(struct maker *m)
{
    struct sg_experts p = {.experts = between(m, 1, 6), .ff = width_for(m, 64), .act = SG_ACT_SILU};
    uint32_t width = width_for(m, 64), d = between(m, 1, 40);
    struct sg_arena *arena = &m->w->arena;
    p.k = between(m, 1, p.experts);
    struct sg_operand x = reserve(m, width), routing = reserve(m, 2 * p.k);
    input(m, sometimes(m));
    float in = 1 / sqrtf((float)width), hidden = 1 / sqrtf((float)p.ff);
    p.gate = weight(m, check_tensor(arena, &m->rng, m->storage, p.experts * p.ff, width, in, "gate"));
    p.up = weight(m, check_tensor(arena, &m->rng, m->storage, p.experts * p.ff, width, in, "up"));
    p.down = weight(m, check_tensor(arena, &m->rng, m->storage, p.experts * d, p.ff, hidden, "down"));
    m->w->tolerance = 2e-5;
    m->block_tolerance = in_blocks(m->storage) ? 5e-2 : 0;
    m->floor = 0.5;
    return sg_experts(&m->b, at(m, x), at(m, routing), p);
}

static int32_t make_rows(struct maker *m)
{
    struct sg_operand x = reserve(m, between(m, 1, 100));
    input(m, 0);
    m->w->tolerance = 0;
    return sg_rows(&m->b, at(m, x));
}

static const struct kind {
    const char *name;
    int32_t (*make)(struct maker *m);
    int by_storage, cases, quick;    /* cases per storage where by_storage */
    uint32_t data;                   /* how many kinds of data it stands */
} kinds[] = {
    {"embed", make_embed, 1, 2, 1, 1},       {"norm", make_norm, 0, 12, 4, CHECK_DATA_N},
    {"linear", make_linear, 1, 6, 2, 4},     {"rope", make_rope, 0, 8, 4, 2},
    {"attend", make_attend, 0, 16, 4, 1},    {"conv", make_conv, 0, 8, 3, 2},
    {"delta", make_delta, 0, 10, 4, 1},      {"glu", make_glu, 0, 9, 3, 2},
    {"act", make_act, 0, 18, 9, 2},          {"add", make_add, 0, 4, 2, 4},
    {"scale", make_scale, 0, 6, 3, 4},       {"route", make_route, 0, 10, 4, 1},
    {"experts", make_experts, 1, 3, 1, 1},   {"rows", make_rows, 0, 4, 2, 4},
    {"linearwide", make_linear_wide, 1, 7, 2, 4}, {"head", make_head, 1, 1, 1, 1},
    {"deltawide", make_delta_wide, 0, 6, 3, 1}, {"attendwide", make_attend_wide, 0, 12, 4, 1},
    {"linearmany", make_linear_many, 1, 3, 1, 2},
    {"attenddeep", make_attend_deep, 0, 12, 1, 1},
};

/* --- runs and data --- */

/* Case 0 is one sequence with one row a run: decode. The others mix lengths around 16, 64 and 100. */
static void plan_runs(struct maker *m, int heavy, int prompts)
{
    static const uint32_t many[] = {1, 1, 2, 3, 5, 13, 17, 64, 65, 100};
    struct check_world *w = m->w;
    w->seqs = m->index ? between(m, 1, CHECK_SEQS) : 1;
    w->runs = between(m, 1, CHECK_RUNS);
    for (uint32_t r = 0; r < w->runs; r++)
        for (uint32_t s = 0; s < w->seqs; s++) {
            uint32_t n = m->index ? many[between(m, 0, heavy ? 6 : 9)] : 1;
            if (prompts) n = between(m, 33, 130);
            if (s && check_below(&m->rng, 4) == 0) n = 0; /* this sequence rests */
            w->rows[r][s] = n;
            w->wanted[r][s] = sg_arena_alloc(&w->arena, (n + 1) * sizeof(uint32_t));
            for (uint32_t t = 0; t < n; t++)
                if (sometimes(m) || (!s && t + 1 == n)) w->wanted[r][s][w->wanted_n[r][s]++] = t;
        }
}

/* The first sequence grows by 16 rows a run, the others more slowly; the last runs have one row of each, as decoding has. */
static void plan_deep_runs(struct maker *m)
{
    struct check_world *w = m->w;
    w->seqs = m->index ? between(m, 1, CHECK_SEQS) : 1;
    w->runs = CHECK_RUNS_MAX;
    for (uint32_t r = 0; r < w->runs; r++)
        for (uint32_t s = 0; s < w->seqs; s++) {
            uint32_t n = r + 4 >= w->runs ? 1 : s ? between(m, 0, 4) : 16;
            w->rows[r][s] = n;
            w->wanted[r][s] = sg_arena_alloc(&w->arena, (n + 1) * sizeof(uint32_t));
            if (n) w->wanted[r][s][w->wanted_n[r][s]++] = n - 1;
        }
}

/* Router logits on a grid of distinct numbers, with exact ties in some cases: no near-tie that rounding could
 * turn. */
static void grid_logits(struct maker *m, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] = ((float)i - (float)n / 2) * 0.2f;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = check_below(&m->rng, i);
        float v = x[i - 1];
        x[i - 1] = x[k];
        x[k] = v;
    }
    if (m->index % 3 == 1)
        for (uint32_t i = 0; i + 1 < n; i += 3) x[i] = x[i + 1];
}

/* Any expert may come twice: units must not assume that they differ. */
static void fill_routing(struct maker *m, float *x, const struct sg_experts *e)
{
    for (uint32_t i = 0; i < e->k; i++) {
        x[i] = (float)check_below(&m->rng, e->experts);
        x[e->k + i] = 0.6f + 0.4f * check_uniform(&m->rng);
    }
}

/* Keys that are not normalised must be short, or the recurrence grows without bound. */
static void shorten_keys(float *x, const struct sg_op *op)
{
    const struct sg_delta *d = &op->u.delta;
    for (int i = 0; i < 2 && !(d->l2_eps > 0); i++)
        for (uint32_t c = 0; c < op->in[i].width; c++) x[op->in[i].at + c] *= 0.5f / sqrtf((float)d->dk);
}

static void fill_inputs(struct maker *m)
{
    struct check_world *w = m->w;
    const struct sg_op *op = &w->graph->ops[w->graph->ops_n - 1];
    double width_max = 0;
    for (uint32_t s = 0; s < w->seqs; s++) {
        size_t rows = check_world_first(w, w->runs, s), n = rows * w->input_width;
        if (!w->input_width) {
            w->tokens[s] = sg_arena_alloc(&w->arena, (rows + 1) * sizeof(int32_t));
            for (size_t t = 0; t < rows; t++) w->tokens[s][t] = (int32_t)check_below(&m->rng, m->columns);
            continue;
        }
        float *x = w->values[s] = sg_arena_alloc(&w->arena, (n + 1) * sizeof *x);
        check_fill(&m->rng, x, n, m->data, 1);
        for (size_t i = 0; i < n; i++)
            if (fabs((double)x[i]) > width_max) width_max = fabs((double)x[i]);
        for (size_t t = 0; t < rows; t++) {
            if (op->code == SG_OP_ROUTE)
                grid_logits(m, x + t * w->input_width + op->in[0].at, op->in[0].width);
            if (op->code == SG_OP_EXPERTS)
                fill_routing(m, x + t * w->input_width + op->in[1].at, &op->u.experts);
            if (op->code == SG_OP_DELTA) shorten_keys(x + t * w->input_width, op);
        }
    }
    if (!(m->floor > 0)) m->floor = width_max;
}

segue_status check_op_world(struct check_world *w, struct check_rng rng, const char *name, uint32_t index, segue_error *err)
{
    struct maker m = {.w = w, .rng = rng, .index = index, .storage = SG_F32, .data = CHECK_NORMAL, .gradient = 1};
    const struct kind *k = kinds;
    while (strcmp(k->name, name) != 0) k++;
    SG_TRY(sg_builder_begin(&m.b, err));
    int32_t y = k->make(&m);
    sg_output(&m.b, y, "y");
    SG_TRY(sg_builder_end(&m.b, &w->graph, err));
    w->output_width = w->graph->values[y].width;
    fill_inputs(&m);
    return SEGUE_OK;
}

/* The op is the last one of its graph: checknaive.c relies on it. */
static segue_status make_world(struct maker *m, const struct kind *k, struct check_world *w, segue_error *err)
{
    *w = (struct check_world){0};
    m->w = w;
    m->data = (enum check_data)(m->index % k->data);
    if (k->make == make_attend_deep)
        plan_deep_runs(m);
    else
        plan_runs(m, k->by_storage && m->storage != SG_F32, k->make == make_linear_many);
    SG_TRY(sg_builder_begin(&m->b, err));
    int32_t y = k->make(m);
    sg_output(&m->b, y, "y");
    SG_TRY(sg_builder_end(&m->b, &w->graph, err));
    w->output_width = w->graph->values[y].width;
    fill_inputs(m);
    return SEGUE_OK;
}

/* --- comparing --- */

/* Numbers below the smallest normal one may be taken as zero (tile units do). */
#define DENORMAL 1e-37

/* y, and on units other than ref the slots too. */
static void compare(struct check *c, struct check_case *k, const struct check_world *w, const struct maker *m,
                    const struct check_result *a, const struct check_result *b, int is_ref)
{
    double scale, tolerance = !is_ref && m->block_tolerance > 0 ? m->block_tolerance : w->tolerance;
    double half = w->graph->ops[w->graph->ops_n - 1].code == SG_OP_DELTA ? 3e-2 : 1e-2;
    if (tolerance < half * c->half) tolerance = half * c->half;
    double floor = c->half > 0 && m->floor < 6e-5 ? 6e-5 : m->floor; /* fp16's smallest */
    k->max_abs = check_distance(a->y, a->y_n, b->y, b->y_n, &scale);
    k->bound = tolerance * (scale > floor ? scale : floor) + DENORMAL;
    k->ns = a->ns;
    k->against_ns = b->ns;
    check_report(c, k);
    if (is_ref || !b->slots_n) return;
    struct check_case slots = *k;
    strncat(slots.name, ".state", sizeof slots.name - strlen(slots.name) - 1);
    slots.max_abs = check_distance(a->slots, a->slots_n, b->slots, b->slots_n, &scale);
    slots.bound = tolerance * (scale > floor ? scale : floor) + DENORMAL;
    check_report(c, &slots);
}

/* A unit that says EUNSUPPORTED is skipped with its reason; anything else has failed. */
static void fail_case(struct check *c, struct check_case *k, segue_status status, const segue_error *err)
{
    char why[sizeof err->text];
    snprintf(why, sizeof why, "%s", err->text);
    if (status == SEGUE_EUNSUPPORTED) {
        k->skipped = why;
    } else {
        fprintf(stderr, "check: %s %s: %s\n", k->unit, k->name, why);
        k->max_abs = INFINITY;
        k->ok = -1;
    }
    check_report(c, k);
}

/* --bench: the shortest of five. */
static segue_status timed_run(const struct check *c, const struct check_world *w, const struct check_unit *u,
                              struct check_result *out, segue_error *err)
{
    SG_TRY(check_world_run(w, u, out, err));
    for (int i = 0; c->bench && i < 4; i++) {
        struct check_result again = {0};
        SG_TRY(check_world_run(w, u, &again, err));
        if (again.ns < out->ns) out->ns = again.ns;
        check_result_free(&again);
    }
    return SEGUE_OK;
}

/* A case is made once for all units, and computed once on ref: data and ref take longer than most units. */
struct shared_case {
    struct maker m;
    struct check_world w;
    struct check_result ref;
    segue_status made;
    segue_error error;               /* of making it */
    int has_world, has_ref;
};

static void one_case(struct check *c, const struct check_unit *u, struct shared_case *s, struct check_case *k)
{
    struct check_result a = {0}, naive = {0};
    segue_error err = s->error;
    int is_ref = u->desc.reference != 0;
    c->half = check_half(u);
    segue_status status = s->made;
    if (status == SEGUE_OK) status = timed_run(c, &s->w, u, &a, &err);
    if (status == SEGUE_OK && is_ref) status = check_world_naive(&s->w, &naive, &err);
    if (status == SEGUE_OK && !is_ref && !s->has_ref) {
        status = timed_run(c, &s->w, &c->ref, &s->ref, &err);
        s->has_ref = status == SEGUE_OK;
    }
    if (status == SEGUE_OK) compare(c, k, &s->w, &s->m, &a, is_ref ? &naive : &s->ref, is_ref);
    else fail_case(c, k, status, &err);
    check_result_free(&a);
    check_result_free(&naive);
}

static void case_on_units(struct check *c, const struct kind *kind, enum sg_storage storage, int index)
{
    struct shared_case s = {.m = {.index = (uint32_t)index, .storage = storage}};
    for (uint32_t i = 0; i < c->units_n; i++) {
        const struct check_unit *u = &c->units[i];
        struct check_case k = {.level = "op", .unit = u->spec, .against = u->desc.reference ? "naive" : "ref"};
        if (kind->by_storage) snprintf(k.name, sizeof k.name, "%s.%s.%d", kind->name, sg_storage_info(storage)->name, index);
        else snprintf(k.name, sizeof k.name, "%s.%d", kind->name, index);
        if (!check_wants(c, &k)) continue;
        if (!s.has_world) {
            s.m.rng = check_rng_of(c->seed, k.name, (uint64_t)index);
            s.made = make_world(&s.m, kind, &s.w, &s.error);
            s.has_world = 1;
        }
        one_case(c, u, &s, &k);
    }
    check_result_free(&s.ref);
    if (s.has_world) check_world_free(&s.w);
}

void check_ops(struct check *c)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int s = 0; s < SG_STORAGE_N; s++)
            if (kinds[k].by_storage ? sg_storage_info((enum sg_storage)s)->computable : s == SG_F32)
                for (int i = 0; i < (c->quick ? kinds[k].quick : kinds[k].cases); i++)
                    case_on_units(c, &kinds[k], (enum sg_storage)s, i);
    for (uint32_t i = 0; i < c->units_n; i++) {
        check_tails(c, &c->units[i]);
        check_samples(c, &c->units[i]);
        check_ranks(c, &c->units[i]);
    }
}
