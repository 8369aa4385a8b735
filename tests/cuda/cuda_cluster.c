/* cuda_cluster.c: cluster fusions over the stub driver: which graphs have them, when partial sums are added up, which kernel
 * writes the next embedding, which kernels passes of several sequences use, and that failures leave nothing allocated. Their
 * results are checked on a GPU (check, cases rank.*).
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "stub.h"

enum { D = 256, FF = 96, FF8 = 256, VOCAB = 32, ODD = 80, HEAD = 128, WIDE = 128, TAPS = 4 };

static const uint16_t zeros[6 * WIDE * D];

#define MATRIX(NAME, STORAGE, ROWS, COLS)                                                                                  \
    static const struct sg_tensor NAME = {.name = #NAME, .storage = STORAGE, .rank = 2, .shape = {ROWS, COLS}, .rows = ROWS, \
                                          .cols = COLS, .data = (const uint8_t *)zeros, .bytes = sizeof zeros}
MATRIX(up_f16, SG_F16, FF, D);
MATRIX(down_f16, SG_F16, D, FF);
MATRIX(up_bf16, SG_BF16, FF, D);
MATRIX(down_bf16, SG_BF16, D, FF);
MATRIX(up_f32, SG_F32, FF, D);
MATRIX(down_f32, SG_F32, D, FF);
MATRIX(up_q8, SG_Q8_0, FF8, D);
MATRIX(down_q8, SG_Q8_0, D, FF8);
MATRIX(down_other, SG_F16, D, FF8);
MATRIX(up_wide, SG_F16, FF8, D);
MATRIX(up_narrow, SG_Q8_0, FF, D);
MATRIX(down_narrow, SG_Q8_0, D, FF);
MATRIX(up_odd, SG_F16, ODD, D);
MATRIX(down_odd, SG_F16, D, ODD);
MATRIX(square, SG_F16, D, D);
MATRIX(head, SG_F16, VOCAB, D);
MATRIX(table, SG_F16, VOCAB, D);
MATRIX(qkv, SG_F16, 4 * HEAD, D); /* two heads, one of K and V */
MATRIX(mixed, SG_F16, 6 * WIDE, D); /* two heads of q, k and v */
MATRIX(gates, SG_F16, 2 * WIDE, D);
MATRIX(back, SG_F16, D, 2 * WIDE);
MATRIX(pair, SG_F16, 2, D);
MATRIX(qkv_q8, SG_Q8_0, 4 * HEAD, D);
MATRIX(square_q8, SG_Q8_0, D, D);
MATRIX(mixed_q8, SG_Q8_0, 6 * WIDE, D);
MATRIX(gates_q8, SG_Q8_0, 2 * WIDE, D);
MATRIX(back_q8, SG_Q8_0, D, 2 * WIDE);
MATRIX(pair_q8, SG_Q8_0, 2, D);
MATRIX(up_q4, SG_Q4_K, FF8, D);
MATRIX(down_q6, SG_Q6_K, D, FF8);
MATRIX(qkv_q4, SG_Q4_0, 4 * HEAD, D);
MATRIX(square_q4, SG_Q5_1, D, D);
MATRIX(mixed_q4, SG_IQ4_NL, 6 * WIDE, D);
MATRIX(gates_q4, SG_Q4_0, 2 * WIDE, D);
MATRIX(back_q4, SG_Q4_0, D, 2 * WIDE);
MATRIX(pair_q4, SG_Q4_0, 2, D);
MATRIX(taps, SG_F32, 1, 6 * WIDE * TAPS);
MATRIX(numbers, SG_F32, 1, 2);

/* Weights of mixers, by layers.set: 16 bits, Q8_0, packed of several kinds. */
static const struct {
    const struct sg_tensor *qkv, *square, *mixed, *gates, *back, *pair;
} sets[] = {{&qkv, &square, &mixed, &gates, &back, &pair},
            {&qkv_q8, &square_q8, &mixed_q8, &gates_q8, &back_q8, &pair_q8},
            {&qkv_q4, &square_q4, &mixed_q4, &gates_q4, &back_q4, &pair_q4}};

/* A graph. what: one letter per layer, each with a residual connection: f feed-forward, p norm and product, h attention, l delta
 * rule. o: keep a copy of x, a: add the copy. */
struct layers {
    const char *what;
    const struct sg_tensor *up, *down;
    int alone;  /* 1: feed-forward without gate */
    int other;  /* 1: the residual is another value than the norm's input */
    int early;  /* 1: rows are selected after the last mixer */
    int set;    /* of weights in mixers */
    int tokens; /* 1: the input is tokens, else rows */
};

static int32_t norm(struct sg_builder *b, int32_t x)
{
    struct sg_norm p = {.kind = SG_NORM_RMS,
                        .eps = 1e-5f,
                        .groups = 1,
                        .weight = sg_weight_of(b, NULL),
                        .bias = sg_weight_of(b, NULL)};
    return sg_norm(b, sg_whole(b, x), p, sg_absent());
}

static int32_t linear(struct sg_builder *b, int32_t x, const struct sg_tensor *w, int32_t residual)
{
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, w), sg_weight_of(b, NULL),
                     residual < 0 ? sg_absent() : sg_whole(b, residual));
}

static int32_t feed_forward(struct sg_builder *b, const struct layers *l, int32_t x)
{
    int32_t h = norm(b, x), up = linear(b, h, l->up, -1), residual = l->other ? linear(b, x, &square, -1) : x;
    if (l->alone) return linear(b, sg_activate(b, sg_whole(b, up), SG_ACT_SILU), l->down, residual);
    int32_t gate = linear(b, h, l->up, -1);
    return linear(b, sg_glu(b, sg_whole(b, gate), sg_whole(b, up), SG_ACT_SILU), l->down, residual);
}

static int32_t attention(struct sg_builder *b, const struct layers *l, int32_t x)
{
    int32_t all = linear(b, norm(b, x), sets[l->set].qkv, -1);
    struct sg_attend p = {.heads = 2, .kv_heads = 1, .d = HEAD, .dv = HEAD, .scale = 1, .sinks = sg_weight_of(b, NULL)};
    b->layer++;
    return linear(b,
                  sg_attend(b, sg_columns(b, all, 0, 2 * HEAD), sg_columns(b, all, 2 * HEAD, HEAD),
                            sg_columns(b, all, 3 * HEAD, HEAD), p, sg_absent()),
                  sets[l->set].square, x);
}

static int32_t rule(struct sg_builder *b, const struct layers *l, int32_t x)
{
    const struct sg_tensor *few = sets[l->set].pair;
    int32_t h = norm(b, x), z = linear(b, h, sets[l->set].gates, -1), u = linear(b, h, sets[l->set].mixed, -1);
    struct sg_conv c = {.weight = sg_weight_of(b, &taps), .bias = sg_weight_of(b, NULL), .taps = TAPS, .act = SG_ACT_SILU};
    struct sg_norm n = {.kind = SG_NORM_RMS,
                        .eps = 1e-5f,
                        .groups = 2,
                        .weight = sg_weight_of(b, NULL),
                        .bias = sg_weight_of(b, NULL)};
    struct sg_delta d =
        {.k_heads = 2, .v_heads = 2, .dk = WIDE, .dv = WIDE, .decay = sg_weight_of(b, &numbers), .dt = sg_weight_of(b, &numbers)};
    b->layer++;
    u = sg_conv(b, sg_whole(b, u), c);
    struct sg_operand in[5] = {sg_columns(b, u, 0, 2 * WIDE), sg_columns(b, u, 2 * WIDE, 2 * WIDE),
                               sg_columns(b, u, 4 * WIDE, 2 * WIDE), sg_whole(b, linear(b, h, few, -1)),
                               sg_whole(b, linear(b, h, few, -1))};
    return linear(b, sg_norm(b, sg_whole(b, sg_delta(b, in, d)), n, sg_whole(b, z)), sets[l->set].back, x);
}

static struct sg_graph *make(const struct layers *l)
{
    struct sg_builder b;
    struct sg_graph *g = NULL;
    segue_error err;
    assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
    int32_t x = l->tokens ? sg_embed(&b, sg_input_tokens(&b), &table, NULL, 1) : sg_input_rows(&b, D), old = x;
    b.layer = 0;
    for (const char *c = l->what; *c; c++) {
        if (*c == 'f') x = feed_forward(&b, l, x);
        if (*c == 'p') x = linear(&b, norm(&b, x), &square, x);
        if (*c == 'h') x = attention(&b, l, x);
        if (*c == 'l') x = rule(&b, l, x);
        if (*c == 'o') old = x;
        if (*c == 'a') x = sg_add(&b, sg_whole(&b, x), sg_whole(&b, old));
    }
    b.layer = -1;
    sg_output(&b, linear(&b, sg_rows(&b, sg_whole(&b, x)), &head, -1), "logits");
    if (l->early) sg_hoist_rows(&b);
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

/* Opens, compiles, executes `runs` runs of `rows` rows of which the last one is wanted. The mode is set before the unit is
 * opened. */
static segue_status run(const struct layers *l, const char *spec, const char *mode, uint32_t runs, uint32_t rows,
                        segue_error *err)
{
    static const float x[4 * D];
    const struct sg_state_opts o = {.kv = SG_F16, .rows = 64};
    float logits[VOCAB];
    const uint32_t wanted[1] = {rows - 1};
    struct life of = {.spec = spec,
                      .early = mode,
                      .state = &o,
                      .runs = runs,
                      .span = {.rows = rows, .values = x, .wanted = wanted, .wanted_n = 1, .steps = 1},
                      .result = {.logits = logits}};
    return live(&of, make(l), err);
}

static void fusions_are_one_launch(void **state)
{
    const struct layers f16 = {.up = &up_f16, .down = &down_f16}, bf16 = {.up = &up_bf16, .down = &down_bf16},
                        f32 = {.up = &up_f32, .down = &down_f32}, odd = {.up = &up_odd, .down = &down_odd},
                        q8 = {.up = &up_q8, .down = &down_q8}, both = {.up = &up_q8, .down = &down_other},
                        narrow = {.up = &up_narrow, .down = &down_narrow}, q4 = {.up = &up_q4, .down = &down_q6};
    const struct {
        const char *what, *spec, *mode;
        struct layers of;
        uint32_t rows;
        int alone, other, fusions, sums;
    } cases[] = {
        {"f", "cuda:0", "", f16, 1, 0, 0, 1, 1},         {"f", "cuda:0", "", bf16, 1, 0, 0, 1, 1},
        {"f", "cuda:0", "", f16, 1, 1, 0, 1, 1},         {"ff", "cuda:0", "", f16, 1, 0, 0, 2, 1},
        {"fpf", "cuda:0", "", f16, 1, 0, 0, 2, 2},       {"pff", "cuda:0", "", f16, 1, 0, 0, 2, 1},
        {"foffa", "cuda:0", "", f16, 1, 0, 0, 3, 2}, /* the first result is added up: the third one needs its entry */
        {"fofa", "cuda:0", "", f16, 1, 0, 0, 2, 2},      {"ff", "cuda:0,rank=0", "", f16, 1, 0, 0, 0, 0},
        {"ff", "cuda:0,rank=1", "", f16, 1, 0, 0, 2, 1}, {"ff", "cuda:0", "", f16, 2, 0, 0, 0, 0},
        {"ff", "cuda:0", "", f32, 1, 0, 0, 0, 0},        {"ff", "cuda:0", "", odd, 1, 0, 0, 0, 0},
        {"ff", "cuda:0", "", f16, 1, 0, 1, 0, 0},        {"ff", "cuda:0", "mapless", f16, 1, 0, 0, 0, 0},
        {"ff", "cuda:0", "", q8, 1, 0, 0, 2, 1},         {"f", "cuda:0", "", q8, 1, 1, 0, 1, 1},
        {"ff", "cuda:0", "", both, 1, 0, 0, 0, 0},       {"ff", "cuda:0", "", q8, 2, 0, 0, 0, 0},
        {"ff", "cuda:0", "", narrow, 1, 0, 0, 0, 0},
        {"ff", "cuda:0", "", q4, 1, 0, 0, 2, 1},         {"f", "cuda:0", "", q4, 1, 1, 0, 1, 1},
        {"ff", "cuda:0,packed=0", "", q4, 1, 0, 0, 0, 0},
        {"p", "cuda:0", "", f16, 1, 0, 0, 0, 0},         {"ff", "cuda:0,graphs=0", "", f16, 1, 0, 0, 2, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct layers l = cases[i].of;
        segue_error err = {0};
        l.what = cases[i].what;
        l.alone = cases[i].alone;
        l.other = cases[i].other;
        assert_int_equal(run(&l, cases[i].spec, cases[i].mode, 1, cases[i].rows, &err), SEGUE_OK);
        assert_int_equal(launches_of_kernel("mlp_f16_1") + launches_of_kernel("mlp_bf16_1") + launches_of_kernel("mlp_q8_2") +
                             launches_of_kernel("mlp_packed"),
                         cases[i].fusions);
        assert_int_equal(launches_of_kernel("sum_parts"), cases[i].sums);
    }
}

/* Mixers, and a selection of rows between the steps of a fusion. */
static void mixers_are_one_launch(void **state)
{
    const struct layers cases[] = {{.what = "lfhf"},  {.what = "lfhf", .early = 1}, {.what = "hflf", .early = 1},
                                   {.what = "flpfh"}, {.what = "lflf", .set = 1},    {.what = "lfhf", .set = 1},
                                   {.what = "lfhf", .set = 2}};
    /* rule, attention, feed-forward, sums */
    const int counts[][4] = {{1, 1, 2, 1}, {1, 1, 2, 1}, {1, 1, 2, 1}, {1, 1, 2, 2}, {2, 0, 2, 1}, {1, 1, 2, 1}, {1, 1, 2, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct layers l = cases[i];
        segue_error err = {0};
        l.up = &up_f16;
        l.down = &down_f16;
        assert_int_equal(run(&l, "cuda:0", "", 1, 1, &err), SEGUE_OK);
        assert_int_equal(launches_of_kernel("linear_f16_2") + launches_of_kernel("linear_q8_2") +
                             launches_of_kernel("linear_packed_1"),
                         counts[i][0]);
        assert_int_equal(launches_of_kernel("heads_f16_f16_2_128") + launches_of_kernel("heads_q8_f16_2_128") +
                             launches_of_kernel("heads_packed_f16_128"),
                         counts[i][1]);
        assert_int_equal(launches_of_kernel("mlp_f16_1"), counts[i][2]);
        assert_int_equal(launches_of_kernel("sum_parts"), counts[i][3]);
    }
}

/* The first pass is issued, the second one captured, the third one launched as a graph. */
static void fusions_are_captured(void **state)
{
    const struct layers l = {.what = "fpff", .up = &up_f16, .down = &down_f16};
    segue_error err = {0};
    (void)state;
    assert_int_equal(run(&l, "cuda:0", "", 3, 1, &err), SEGUE_OK);
    assert_int_equal(launches_of_kernel("mlp_f16_1"), 2 * 3);
    assert_int_equal(launches_of_kernel("sum_parts"), 2 * 2);
}

static int chosen, embedding; /* launches of choose_best; those that write the embedding of the chosen token */

static void see_choice(const char *name, const void *args)
{
    const struct ck_choose *c = args;
    if (strcmp(name, "choose_best")) return;
    chosen++;
    embedding += c->embed.y.p != NULL;
}

static void generate_six(const char *what, const char *spec)
{
    const struct layers l = {.what = what, .up = &up_f16, .down = &down_f16, .tokens = 1};
    const struct sg_state_opts o = {.kv = SG_F16, .rows = 64};
    const uint32_t wanted[1] = {0};
    const int32_t tokens[1] = {1};
    const struct sg_sampler greedy = {0};
    segue_error err;
    int32_t arrived[8] = {0};
    struct sg_ring ring = {.tokens = arrived, .cap = 8};
    struct life of =
        {.spec = spec,
         .state = &o,
         .span = {.rows = 1, .tokens = tokens, .wanted = wanted, .wanted_n = 1, .steps = 6, .sampler = &greedy, .ring = &ring}};
    chosen = embedding = 0;
    watch(see_choice);
    segue_status status = live(&of, make(&l), &err);
    watch(NULL);
    if (status != SEGUE_OK) fail_msg("%s", err.text);
}

/* With fusions the choice kernel writes the embedding of the chosen token, except in the first step, which is issued before
 * passes are captured. Without fusions a separate launch does it. */
static void choice_writes_embedding(void **state)
{
    const struct {
        const char *what, *spec;
        int fusions, chosen, embedding;
    } cases[] = {{"f", "cuda:0", 1, 4, 3},
                 {"f", "cuda:0,rank=0", 0, 3, 0},
                 {"p", "cuda:0", 0, 3, 0},
                 {"f", "cuda:0,graphs=0", 1, 6, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        generate_six(cases[i].what, cases[i].spec);
        assert_int_equal(launches_of_kernel("mlp_f16_1") > 0, cases[i].fusions);
        assert_int_equal(chosen, cases[i].chosen);
        assert_int_equal(embedding, cases[i].embedding);
    }
}

static int early, late; /* fusions that start their dependents at once; those that issue their weight loads first */

static void see_late(const char *name, const void *args)
{
    uint32_t is = 2;
    if (!strncmp(name, "mlp_", 4)) is = ((const struct ck_mlp *)args)->late;
    if (!strncmp(name, "linear_", 7)) is = ((const struct ck_linear *)args)->late;
    if (!strncmp(name, "heads_", 6)) is = ((const struct ck_heads *)args)->late;
    early += is == 0;
    late += is == 1;
}

/* A unit, a program and up to three states; lora: adapter of the second state, or NULL. */
struct cluster_fixture {
    struct sg_graph *g;
    struct sg_unit *u;
    struct sg_program *p;
    struct sg_state *s[3];
    const struct sg_lora *lora;
};

static struct cluster_fixture fixture_open(const char *spec, const char *mode, const struct layers *l, uint32_t states)
{
    const struct sg_state_opts o = {.kv = SG_F16, .rows = 64};
    struct cluster_fixture d = {.g = make(l)};
    const struct sg_graph *graphs[] = {d.g};
    segue_error err = {0};
    stub(mode);
    assert_int_equal(open_unit(&d.u, spec, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.compile(d.u, graphs, 1, NULL, &d.p, &err), SEGUE_OK);
    for (uint32_t i = 0; i < states; i++)
        assert_int_equal(sg_unit_cuda.state_new(d.u, d.g->slots, d.g->slots_n, &o, &d.s[i], &err), SEGUE_OK);
    return d;
}

static void fixture_close(struct cluster_fixture *d)
{
    for (uint32_t i = 0; i < 3; i++) sg_unit_cuda.state_free(d->s[i]);
    sg_unit_cuda.discard(d->p);
    sg_unit_cuda.close(d->u);
    sg_graph_free(d->g);
    assert_int_equal(alive(), 0);
    stub("");
}

/* Decodes one row at position `at` of states [from, from + n), with logits. */
static void decode_states(struct cluster_fixture *d, uint64_t at, uint32_t from, uint32_t n)
{
    static const float x[D];
    static const uint32_t wanted[1] = {0};
    float logits[3 * VOCAB];
    struct sg_run *r;
    struct sg_result result = {.logits = logits};
    struct sg_span spans[3];
    struct sg_batch batch = {.spans = spans, .inline_hint = 1};
    segue_error err = {0};
    for (uint32_t i = from; i < from + n && d->s[i]; i++)
        spans[batch.spans_n++] = (struct sg_span){.state = d->s[i],
                                                  .first = at,
                                                  .rows = 1,
                                                  .values = x,
                                                  .loras = &d->lora,
                                                  .loras_n = i == 1 && d->lora,
                                                  .wanted = wanted,
                                                  .wanted_n = 1,
                                                  .steps = 1};
    assert_int_equal(sg_unit_cuda.start(d->p, &batch, &result, &r, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.wait(r, UINT64_MAX, &err), SEGUE_OK);
}

static void decode_all(struct cluster_fixture *d, uint64_t at) { decode_states(d, at, 0, 3); }

/* In an SM partition fusions start their dependents late; on all multiprocessors at once, also beside a prefill run when the GPU
 * is not partitioned. */
static void partitions_start_dependents_late(void **state)
{
    static const struct {
        const char *spec, *mode;
        int beside, late;
    } cases[] = {{"cuda:0,graphs=0", "", 0, 0},
                 {"cuda:0,graphs=0", "", 1, 1},
                 {"cuda:0,graphs=0,part=0", "", 1, 0},
                 {"cuda:0,graphs=0", "whole", 1, 0}};
    const struct layers l = {.what = "lfhf", .up = &up_f16, .down = &down_f16};
    (void)state;
    watch(see_late);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cluster_fixture d = fixture_open(cases[i].spec, cases[i].mode, &l, 1);
        for (uint64_t at = 0; at < 2; at++) { /* second time: alone */
            int beside = cases[i].beside && !at, want = cases[i].late && !at;
            early = late = 0;
            if (beside) cu_partition_run_begin(d.u, CU_LANE_PREFILL);
            decode_all(&d, at);
            if (beside) cu_partition_run_end(d.u, CU_LANE_PREFILL);
            assert_int_equal(late, want ? 4 : 0);
            assert_int_equal(early, want ? 0 : 4);
        }
        fixture_close(&d);
    }
    watch(NULL);
}

static char launched[2048]; /* kernel names in launch order, without the number of rows of the instance */

static void see_kernels(const char *name, const void *args)
{
    size_t n = strlen(launched), keep = strlen(name);
    (void)args;
    if (!strcmp(name, "rows")) return; /* depends on the wanted rows */
    if (!strncmp(name, "gemv_", 5)) keep = (size_t)(strrchr(name, '_') - name);
    assert_true(n + keep + 2 < sizeof launched);
    snprintf(launched + n, sizeof launched - n, "%.*s ", (int)keep, name);
}

/* A pass of several sequences has five launches per layer, as one sequence without fusions. Without tensor maps x is split by a
 * separate launch, which computes a norm of groups in another kernel than one of whole rows. */
static void launches_of_several_sequences(void **state)
{
    static const struct {
        const char *what, *mode, *launches;
    } cases[] = {{"lf", "", "tiles_f16 delta_slabs tiles_f16 tiles_f16 tiles_f16 tiles_f16 "},
                 {"hf", "", "tiles_f16 single_f16_128 tiles_f16 tiles_f16 tiles_f16 tiles_f16 "},
                 {"lf", "mapless",
                  "split_x batch_f16_16_8 conv_step delta_slabs narrow batch_f16_16_8 split_x batch_f16_32_8 "
                  "split_x batch_f16_16_8 split_x batch_f16_16_8 "}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct layers l = {.what = cases[i].what, .up = &up_wide, .down = &down_other};
        struct cluster_fixture d = fixture_open("cuda:0,graphs=0", cases[i].mode, &l, 3);
        launched[0] = 0;
        watch(see_kernels);
        decode_all(&d, 0);
        watch(NULL);
        assert_string_equal(launched, cases[i].launches);
        fixture_close(&d);
    }
}

/* invariant=1: one row uses the kernels of several rows, so that the order of additions is the same. */
static void invariant_uses_batch_kernels(void **state)
{
    const struct layers cases[] = {{.what = "lfhf", .up = &up_f16, .down = &down_f16},
                                   {.what = "hflf", .up = &up_bf16, .down = &down_bf16, .early = 1},
                                   {.what = "lfhf", .up = &up_q8, .down = &down_q8, .set = 1},
                                   {.what = "fpf", .up = &up_f32, .down = &down_f32}};
    (void)state;
    watch(see_kernels);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const specs[] = {"cuda:0,graphs=0,invariant=1", "cuda:0,graphs=0,invariant=1", "cuda:0,graphs=0"};
        char of[3][sizeof launched];
        for (uint32_t k = 0; k < 3; k++) {
            segue_error err = {0};
            launched[0] = 0;
            assert_int_equal(run(&cases[i], specs[k], "", 1, k == 1 ? 2 : 1, &err), SEGUE_OK);
            memcpy(of[k], launched, sizeof launched);
        }
        assert_string_equal(of[0], of[1]);
        assert_string_not_equal(of[0], of[2]);
    }
    watch(NULL);
    segue_error err = {0};
    struct sg_unit *u = NULL;
    assert_int_equal(open_unit(&u, "cuda:0,invariant=1,screen=1", &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "screen and rank change results of single rows"));
    assert_int_equal(open_unit(&u, "cuda:0,invariant=1,rank=16", &err), SEGUE_EUNSUPPORTED);
    assert_int_equal(open_unit(&u, "cuda:0,invariant=2", &err), SEGUE_EARG);
    assert_non_null(strstr(err.text, "cuda:0,invariant=2: invariant=2; give a number from 0 to 1"));
    static const char *const promise[] = {"cuda:0", "cuda:0,invariant=1", "cuda:0-1,invariant=1"};
    for (uint32_t i = 0; i < 3; i++) {
        struct sg_unit_desc d;
        assert_int_equal(open_unit(&u, promise[i], &err), SEGUE_OK);
        sg_ops_of(u)->describe(u, &d);
        assert_int_equal(d.invariant, i > 0);
        sg_ops_of(u)->close(u);
    }
    assert_int_equal(alive(), 0);
}

/* One of three sequences has an adapter, and its pass uses unfused steps. With invariant=1 the other sequences have the launches
 * that they have alone; without it all are in one pass. */
static void adapters_do_not_change_others(void **state)
{
    static const float a[D], b[FF];
    static const struct sg_lora_pair pairs[] = {{.tensor = &up_f16, .rank = 1, .a = a, .b = b}};
    static const struct sg_lora lora = {.id = 1, .pairs = pairs, .pairs_n = 1};
    const struct layers l = {.what = "lfhf", .up = &up_f16, .down = &down_f16};
    (void)state;
    for (int invariant = 0; invariant < 2; invariant++) {
        struct cluster_fixture d = fixture_open(invariant ? "cuda:0,graphs=0,invariant=1" : "cuda:0,graphs=0", "", &l, 3);
        char alone[sizeof launched];
        d.lora = &lora;
        watch(see_kernels);
        launched[0] = 0;
        for (uint32_t i = 0; i < 3; i++) decode_states(&d, 0, i, 1);
        memcpy(alone, launched, sizeof alone);
        launched[0] = 0;
        decode_all(&d, 1);
        watch(NULL);
        if (invariant) assert_string_equal(launched, alone);
        else assert_string_not_equal(launched, alone);
        assert_non_null(strstr(launched, "lora_add"));
        fixture_close(&d);
    }
}

/* Every driver call fails, alone and together with all later ones; the same for allocations. */
static void fails_anywhere(void **state)
{
    const struct layers l = {.what = "lfphf", .up = &up_f16, .down = &down_f16};
    static const char *const forms[] = {"once", "from", "alloc"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        long failures = 0;
        segue_status status = SEGUE_OK;
        for (long n = 1; n < (i == 2 ? 100 : 2000); n += 1 + n / 7) {
            segue_error err = {0};
            char mode[32];
            snprintf(mode, sizeof mode, "%s:%ld", forms[i], n);
            status = run(&l, "cuda:0", mode, 3, 1, &err);
            assert_true(status == SEGUE_OK || status == SEGUE_EUNIT || status == (i == 2 ? SEGUE_EMEMORY : SEGUE_ELOST));
            failures += status != SEGUE_OK;
        }
        assert_int_equal(status, SEGUE_OK);
        assert_true(failures > 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fusions_are_one_launch),
                                       cmocka_unit_test(mixers_are_one_launch),
                                       cmocka_unit_test(fusions_are_captured),
                                       cmocka_unit_test(choice_writes_embedding),
                                       cmocka_unit_test(partitions_start_dependents_late),
                                       cmocka_unit_test(launches_of_several_sequences),
                                       cmocka_unit_test(invariant_uses_batch_kernels),
                                       cmocka_unit_test(adapters_do_not_change_others),
                                       cmocka_unit_test(fails_anywhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
