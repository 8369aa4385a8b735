/* cpu_unit.c: what the cpu unit promises beyond the right numbers: the number of threads changes no bit, nor
 * do a row's neighbours in a short batch; two units of different instruction sets live side by side; chunks
 * of a prompt agree; states fork, mark and go back; runs of several steps equal single steps; a cancelled run
 * leaves the state as it was.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/cpu/dispatch.h"
#include "unit/spec.h"
#include "unit/unit.h"

extern const struct sg_unit_ops sg_unit_cpu;

enum { VOCAB = 96, WIDTH = 64, HEADS = 6, KV = 2, D = 32, FF = 96, LAYERS = 2, ROWS = 150, DK = 16 };

/* --- a model of two attention layers and one recurrent layer, quantised --- */

struct fixture {
    struct sg_arena arena;
    struct sg_builder b;
    struct sg_graph *graph;
    uint32_t seed;
    int32_t tokens[ROWS];
};

static float noise(struct fixture *f)
{
    f->seed = f->seed * 1664525u + 1013904223u;
    return ((float)(f->seed >> 8) / 8388608.0f - 1.0f) * 0.3f;
}

static const struct sg_tensor *tensor(struct fixture *f, enum sg_storage storage, uint32_t rows,
                                      uint32_t cols)
{
    struct sg_tensor *t = sg_arena_alloc(&f->arena, sizeof *t);
    uint64_t bytes;
    float row[256];
    assert_int_equal(sg_storage_row_bytes(storage, cols, &bytes, NULL), SEGUE_OK);
    uint8_t *data = sg_arena_alloc(&f->arena, rows * bytes);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++) row[c] = noise(f);
        assert_int_equal(sg_quant_row(storage, row, cols, data + r * bytes, NULL), SEGUE_OK);
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

static int32_t linear(struct fixture *f, int32_t x, enum sg_storage s, uint32_t n, uint32_t k,
                      int32_t residual)
{
    struct sg_builder *b = &f->b;
    struct sg_operand none = sg_absent(), r = residual < 0 ? none : sg_whole(b, residual);
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, tensor(f, s, n, k)), sg_weight_of(b, NULL), r);
}

static int32_t norm(struct fixture *f, int32_t x)
{
    struct sg_norm p = {.kind = SG_NORM_RMS, .eps = 1e-5f, .groups = 1};
    p.weight = sg_weight_of(&f->b, tensor(f, SG_F32, 1, WIDTH));
    p.bias = sg_weight_of(&f->b, NULL);
    return sg_norm(&f->b, sg_whole(&f->b, x), p, sg_absent());
}

static int32_t mlp(struct fixture *f, int32_t x)
{
    int32_t h = norm(f, x), gate = linear(f, h, SG_Q4_1, FF, WIDTH, -1),
            up = linear(f, h, SG_Q4_1, FF, WIDTH, -1);
    h = sg_glu(&f->b, sg_whole(&f->b, gate), sg_whole(&f->b, up), SG_ACT_SILU);
    return linear(f, h, SG_Q8_0, WIDTH, FF, x);
}

static int32_t attention(struct fixture *f, int32_t x, int32_t table, uint32_t window)
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

static int32_t recurrence(struct fixture *f, int32_t x)
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

static int setup(void **state)
{
    static const float inverse[D / 2] = {1.0f, 0.5f, 0.2f, 0.1f, 0.05f, 0.02f, 0.01f, 0.005f};
    struct fixture *f = calloc(1, sizeof *f);
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
    sg_rows_early(&f->b);
    f->b.graph->layers = f->b.graph->layer_to = LAYERS + 1;
    segue_error err = {0};
    if (sg_builder_end(&f->b, &f->graph, &err) != SEGUE_OK) fail_msg("%s", err.text);
    for (int i = 0; i < ROWS; i++) f->tokens[i] = (int32_t)((i * 37 + i * i * 11) % VOCAB);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    sg_graph_free(f->graph);
    sg_arena_free(&f->arena);
    free(f);
    return 0;
}

/* --- a unit with the model on it --- */

struct place { const struct fixture *f; struct sg_unit *unit; struct sg_program *program; char spec[48]; };

static struct place place_open(const struct fixture *f, const char *spec)
{
    struct place p = {.f = f};
    strncat(p.spec, spec, sizeof p.spec - 1);
    struct sg_unit_spec s;
    segue_error err = {0};
    const struct sg_graph *graphs[1] = {f->graph};
    assert_int_equal(sg_spec_parse(&s, spec, NULL), SEGUE_OK);
    if (sg_unit_cpu.open(&p.unit, &s, &err) != SEGUE_OK) fail_msg("%s", err.text);
    if (sg_unit_cpu.compile(p.unit, graphs, 1, NULL, &p.program, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return p;
}

static void place_close(struct place *p)
{
    sg_unit_cpu.discard(p->program);
    sg_unit_cpu.close(p->unit);
}

static struct sg_state *state_open(const struct place *p, enum sg_storage kv)
{
    struct sg_state *s = NULL;
    struct sg_state_opts o = {.kv = kv, .rows = 64};
    assert_int_equal(sg_unit_cpu.state_new(p->unit, p->f->graph->slots, p->f->graph->slots_n, &o, &s, NULL),
                     SEGUE_OK);
    return s;
}

static uint64_t held(const struct sg_state *s)
{
    uint64_t first, rows;
    sg_unit_cpu.state_held(s, 0, &first, &rows);
    return rows;
}

static segue_status run_batch(const struct place *p, const struct sg_batch *b, struct sg_result *r)
{
    struct sg_run *run;
    segue_error err = {0};
    segue_status status = sg_unit_cpu.start(p->program, b, r, &run, &err);
    if (status == SEGUE_OK) do status = sg_unit_cpu.wait(run, 1000000000u, &err); while (status == SEGUE_END);
    return status;
}

static const uint32_t *every_row(void)
{
    static uint32_t rows[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) rows[i] = i;
    return rows;
}

/* Tokens [at, at + n) of the fixture behind what s holds; logits [n, VOCAB]. */
static void feed(const struct place *p, struct sg_state *s, uint32_t at, uint32_t n, uint32_t hint,
                 float *logits)
{
    struct sg_span span = {.state = s,
                           .rows = n,
                           .first = held(s),
                           .tokens = p->f->tokens + at,
                           .wanted = every_row(),
                           .wanted_n = n,
                           .steps = 1};
    struct sg_batch b = {.spans = &span, .spans_n = 1, .inline_hint = hint};
    struct sg_result r = {.logits = logits};
    assert_int_equal(run_batch(p, &b, &r), SEGUE_OK);
}

/* The whole prompt in pieces of `piece` rows. */
static float *prompt(const struct place *p, struct sg_state *s, uint32_t piece)
{
    float *logits = malloc(sizeof *logits * ROWS * VOCAB);
    for (uint32_t at = 0; at < ROWS; at += piece)
        feed(p, s, at, ROWS - at < piece ? ROWS - at : piece, at / piece % 2, logits + (size_t)at * VOCAB);
    return logits;
}

static void assert_near(const float *a, const float *b, size_t n, float most)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= most)) fail_msg("number %zu: %g and %g", i, (double)a[i], (double)b[i]);
}

/* --- tests --- */

static void threads_change_no_bit(void **state)
{
    static const char *const specs[] = {"cpu:threads=1", "cpu:threads=2", "cpu:threads=3"};
    static const uint32_t pieces[] = {ROWS, 1, 13};
    float *want[3] = {NULL};
    for (int i = 0; i < 3; i++) {
        struct place p = place_open(*state, specs[i]);
        for (int j = 0; j < 3; j++) {
            struct sg_state *s = state_open(&p, SG_F16);
            float *got = prompt(&p, s, pieces[j]);
            if (want[j]) assert_memory_equal(got, want[j], sizeof *got * ROWS * VOCAB);
            if (want[j]) free(got);
            else want[j] = got;
            sg_unit_cpu.state_free(s);
        }
        place_close(&p);
    }
    for (int j = 0; j < 3; j++) free(want[j]);
}

/* Three sequences of unlike length in one short batch: each row has the bits that it has alone. */
static void a_row_ignores_its_neighbours(void **state)
{
    static const uint32_t rows[3] = {1, 5, 3}, before[3] = {130, 0, 17};
    for (int isa = SG_ISA_GENERIC; isa < SG_ISA_N; isa++) {
        if (!sg_isa_present((enum sg_isa)isa)) continue;
        char spec[48] = "cpu:threads=2,isa=";
        strcat(spec, sg_isa_name((enum sg_isa)isa));
        struct place p = place_open(*state, spec);
        struct sg_span spans[3];
        static float alone[9 * VOCAB], together[9 * VOCAB], ignored[ROWS * VOCAB];
        uint32_t at = 0;
        for (int i = 0; i < 3; i++) {
            struct sg_state *s = state_open(&p, SG_BF16), *fork = NULL;
            if (before[i]) feed(&p, s, 0, before[i], 1, ignored);
            assert_int_equal(sg_unit_cpu.state_fork(s, &fork, NULL), SEGUE_OK);
            for (uint32_t n = 0; n < rows[i]; n++)
                feed(&p, fork, before[i] + n, 1, 1, alone + (size_t)(at + n) * VOCAB);
            sg_unit_cpu.state_free(fork);
            spans[i] = (struct sg_span){.state = s,
                                        .rows = rows[i],
                                        .first = before[i],
                                        .tokens = p.f->tokens + before[i],
                                        .wanted = every_row(),
                                        .wanted_n = rows[i],
                                        .steps = 1};
            at += rows[i];
        }
        struct sg_batch b = {.spans = spans, .spans_n = 3, .inline_hint = 1};
        struct sg_result r = {.logits = together};
        assert_int_equal(run_batch(&p, &b, &r), SEGUE_OK);
        assert_memory_equal(alone, together, sizeof alone);
        for (int i = 0; i < 3; i++) sg_unit_cpu.state_free(spans[i].state);
        place_close(&p);
    }
}

/* Rows on their way lie in room of a fixed size: a state of wider heads, which no graph here has, is refused before. */
static void wide_heads_are_refused(void **state)
{
    struct place p = place_open(*state, "cpu:threads=1");
    struct sg_slot slots[2] = {{.kind = SG_SLOT_K, .layer = 3, .heads = 1, .width = 512},
                               {.kind = SG_SLOT_V, .layer = 3, .heads = 1, .width = 513}};
    struct sg_state_opts o = {.kv = SG_F32};
    struct sg_state *s = NULL;
    segue_error err;
    assert_int_equal(sg_unit_cpu.state_new(p.unit, slots, 1, &o, &s, &err), SEGUE_OK);
    sg_unit_cpu.state_free(s);
    assert_int_equal(sg_unit_cpu.state_new(p.unit, slots, 2, &o, &s, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "layer 3: heads of 513"));
    place_close(&p);
}

/* All instruction sets on one graph: each alone, alike within rounding; then all at the same time, every bit as alone. */
static void units_live_side_by_side(void **state)
{
    struct place p[SG_ISA_N];
    struct sg_state *s[SG_ISA_N];
    struct sg_span spans[SG_ISA_N];
    struct sg_result r[SG_ISA_N];
    struct sg_run *runs[SG_ISA_N];
    float *alone[SG_ISA_N], *beside[SG_ISA_N];
    int n = 0;
    for (int isa = SG_ISA_GENERIC; isa < SG_ISA_N; isa++) {
        if (!sg_isa_present((enum sg_isa)isa)) continue;
        char spec[48] = "cpu:threads=2,isa=";
        strcat(spec, sg_isa_name((enum sg_isa)isa));
        p[n++] = place_open(*state, spec);
    }
    for (int i = 0; i < n; i++) {
        s[i] = state_open(&p[i], SG_F32);
        alone[i] = prompt(&p[i], s[i], ROWS);
        sg_unit_cpu.state_free(s[i]);
        /* long pieces: activations in bf16 instead of 8 bits of a span; avx512: sums within units of the integers, after
         * which some numbers round to another byte */
        float most = strstr(p[i].spec, "amx") ? 0.15f : strstr(p[i].spec, "avx512") ? 8e-3f : 4e-3f;
        assert_near(alone[i], alone[0], (size_t)ROWS * VOCAB, most);
    }
    for (int i = 0; i < n; i++) {
        s[i] = state_open(&p[i], SG_F32);
        beside[i] = malloc(sizeof **beside * ROWS * VOCAB);
        spans[i] = (struct sg_span){.state = s[i], .rows = ROWS, .tokens = p[i].f->tokens, .steps = 1,
                                    .wanted = every_row(), .wanted_n = ROWS};
        r[i] = (struct sg_result){.logits = beside[i]};
        struct sg_batch b = {.spans = &spans[i], .spans_n = 1};
        assert_int_equal(sg_unit_cpu.start(p[i].program, &b, &r[i], &runs[i], NULL), SEGUE_OK);
    }
    for (int i = 0; i < n; i++) {
        while (sg_unit_cpu.wait(runs[i], 1000000000u, NULL) == SEGUE_END) continue;
        assert_memory_equal(alone[i], beside[i], sizeof **beside * ROWS * VOCAB);
        sg_unit_cpu.state_free(s[i]);
        free(alone[i]);
        free(beside[i]);
        place_close(&p[i]);
    }
}

static void pieces_of_a_prompt_agree(void **state)
{
    static const uint32_t pieces[] = {1, 16, 40, 128};
    static const enum sg_storage kinds[] = {SG_F32, SG_F16, SG_BF16, SG_Q8_0};
    struct place p = place_open(*state, "cpu:threads=2");
    for (int k = 0; k < 4; k++) {
        struct sg_state *s = state_open(&p, kinds[k]);
        float *whole = prompt(&p, s, ROWS);
        sg_unit_cpu.state_free(s);
        for (int i = 0; i < 4; i++) {
            s = state_open(&p, kinds[k]);
            float *got = prompt(&p, s, pieces[i]);
            assert_near(got, whole, (size_t)ROWS * VOCAB,
                        0.15f); /* 8 bits of activation in long pieces, 16 in short */
            free(got);
            sg_unit_cpu.state_free(s);
        }
        free(whole);
    }
    place_close(&p);
}

static void a_state_forks_and_goes_back(void **state)
{
    struct place p = place_open(*state, "cpu:threads=2");
    struct sg_state *s = state_open(&p, SG_F16), *fork = NULL;
    static float first[10 * VOCAB], again[10 * VOCAB], ignored[ROWS * VOCAB];
    uint32_t mark = 0, later = 0;
    feed(&p, s, 0, 125, 1, ignored);
    assert_int_equal(sg_unit_cpu.state_mark(s, &mark, NULL), SEGUE_OK);
    assert_int_equal(sg_unit_cpu.state_fork(s, &fork, NULL), SEGUE_OK);
    feed(&p, s, 125, 10, 1, first);
    assert_int_equal(sg_unit_cpu.state_mark(s, &later, NULL), SEGUE_OK);
    assert_int_equal(sg_unit_cpu.state_back(s, mark, NULL), SEGUE_OK);
    assert_int_equal(sg_unit_cpu.state_back(s, later, NULL), SEGUE_EARG);
    assert_int_equal(held(s), 125);
    feed(&p, s, 20, 9, 1, ignored);          /* another way on, which the fork must not see */
    feed(&p, fork, 125, 10, 1, again);
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(sg_unit_cpu.state_back(s, mark, NULL), SEGUE_OK);
    feed(&p, s, 125, 10, 0, again);
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(sg_unit_cpu.state_cut(s, 100, NULL),
                     SEGUE_EUNSUPPORTED); /* the recurrent layer forbids it */
    assert_int_equal(sg_unit_cpu.state_cut(s, 0, NULL), SEGUE_OK);
    feed(&p, s, 0, 4, 1, ignored);
    assert_int_equal(held(s), 4);
    sg_unit_cpu.state_free(fork);
    sg_unit_cpu.state_free(s);
    place_close(&p);
}

static void steps_equal_single_steps(void **state)
{
    struct place p = place_open(*state, "cpu:threads=2");
    struct sg_state *one = state_open(&p, SG_F16), *many = state_open(&p, SG_F16);
    struct sg_sampler sampler = {.p = {.size = sizeof sampler.p}};
    int32_t ring_tokens[12], token = -1, fed = p.f->tokens[0];
    struct sg_ring ring = {.tokens = ring_tokens, .cap = 12};
    static const uint32_t last[1] = {0};
    struct sg_span span = {.state = many,
                           .rows = 1,
                           .tokens = &fed,
                           .wanted = last,
                           .wanted_n = 1,
                           .sampler = &sampler,
                           .steps = 12,
                           .ring = &ring};
    struct sg_batch b = {.spans = &span, .spans_n = 1, .inline_hint = 1};
    uint32_t rows = 0;
    struct sg_result r = {.tokens = &token, .rows_done = &rows};
    assert_int_equal(run_batch(&p, &b, &r), SEGUE_OK);
    assert_int_equal(rows, 12);
    assert_int_equal(atomic_load(&ring.written), 12);
    assert_int_equal(held(many), 12);
    for (uint32_t i = 0; i < 12; i++) {
        span = (struct sg_span){.state = one,
                                .rows = 1,
                                .first = i,
                                .tokens = &fed,
                                .wanted = last,
                                .wanted_n = 1,
                                .sampler = &sampler,
                                .steps = 1};
        assert_int_equal(run_batch(&p, &b, &r), SEGUE_OK);
        assert_int_equal(token, ring_tokens[i]);
        fed = token;
    }
    sg_unit_cpu.state_free(one);
    sg_unit_cpu.state_free(many);
    place_close(&p);
}

static void a_cancelled_run_changes_nothing(void **state)
{
    struct place p = place_open(*state, "cpu:threads=2");
    struct sg_state *s = state_open(&p, SG_F16);
    static float first[4 * VOCAB], again[4 * VOCAB], ignored[ROWS * VOCAB];
    struct sg_state *fork = NULL;
    feed(&p, s, 0, 30, 1, ignored);
    assert_int_equal(sg_unit_cpu.state_fork(s, &fork, NULL), SEGUE_OK);
    feed(&p, fork, 30, 4, 1, first);
    atomic_int cancel = 1;
    uint32_t rows = 99;
    for (uint32_t n = 1; n <= 100; n += 99) {
        struct sg_span span = {.state = s, .rows = n, .first = 30, .tokens = p.f->tokens, .steps = 1};
        struct sg_batch b = {.spans = &span, .spans_n = 1, .cancel = &cancel};
        struct sg_result r = {.rows_done = &rows};
        assert_int_equal(run_batch(&p, &b, &r), SEGUE_ECANCELED);
        assert_int_equal(rows, 0);
        assert_int_equal(held(s), 30);
    }
    feed(&p, s, 30, 4, 1, again);
    assert_memory_equal(first, again, sizeof first);
    sg_unit_cpu.state_free(fork);
    sg_unit_cpu.state_free(s);
    place_close(&p);
}

static void wrong_batches_are_refused(void **state)
{
    struct place p = place_open(*state, "cpu:threads=1");
    struct sg_state *s = state_open(&p, SG_F16);
    int32_t bad[2] = {0, VOCAB};
    struct sg_span span = {.state = s, .rows = 2, .tokens = bad, .steps = 1}, twice[2];
    struct sg_batch b = {.spans = &span, .spans_n = 1, .inline_hint = 1};
    struct sg_result r = {0};
    assert_int_equal(run_batch(&p, &b, &r), SEGUE_EARG);     /* a token beyond the vocabulary */
    bad[1] = -1;
    assert_int_equal(run_batch(&p, &b, &r), SEGUE_EARG);
    bad[1] = 1;
    span.first = 1;
    assert_int_equal(run_batch(&p, &b, &r), SEGUE_EARG);     /* a gap */
    span.first = 0;
    twice[0] = twice[1] = span;
    b.spans = twice;
    b.spans_n = 2;
    assert_int_equal(run_batch(&p, &b, &r), SEGUE_EARG);     /* one state twice */
    b.spans_n = 0;
    assert_int_equal(run_batch(&p, &b, &r), SEGUE_EARG);
    sg_unit_cpu.state_free(s);
    place_close(&p);
}

static void specs_are_read(void **state)
{
    static const struct { const char *spec; segue_status status;
    } cases[] = {{"cpu:threads=0", SEGUE_EARG},
                 {"cpu:threads=x", SEGUE_EARG},
                 {"cpu:isa=mmx", SEGUE_EARG},
                 {"cpu:speed=1", SEGUE_EARG}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sg_unit_spec s;
        struct sg_unit *u;
        assert_int_equal(sg_spec_parse(&s, cases[i].spec, NULL), SEGUE_OK);
        assert_int_equal(sg_unit_cpu.open(&u, &s, NULL), cases[i].status);
    }
}

static void the_stream_is_measured(void **state)
{
    struct place p = place_open(*state, "cpu");
    double gb_s = 0;
    assert_int_equal(sg_unit_cpu.stream(p.unit, 4u << 20, &gb_s, NULL), SEGUE_OK);
    assert_true(gb_s > 0.01);
    place_close(&p);
}

#ifdef SEGUE_FAULTS
/* Once a batch of this size was seen, a token needs no memory: were one byte asked for, the run would fail.
 */
static void tokens_need_no_memory(void **state)
{
    struct place p = place_open(*state, "cpu:threads=2");
    struct sg_state *s = state_open(&p, SG_F16);
    static float ignored[ROWS * VOCAB];
    feed(&p, s, 0, 3, 1, ignored);
    feed(&p, s, 3, 1, 1, ignored);
    sg_fault_alloc(1);
    for (uint32_t i = 4; i < 64; i++) feed(&p, s, i, 1, 1, ignored);
    sg_fault_alloc(0);
    sg_unit_cpu.state_free(s);
    place_close(&p);
}

/* Open, compile, prompt, fork, mark, one token: 1 when nothing failed; else the status was EMEMORY. */
static int whole_life(const struct fixture *f)
{
    struct place p = {.f = f};
    struct sg_unit_spec spec;
    const struct sg_graph *graphs[1] = {f->graph};
    struct sg_state *s = NULL, *fork = NULL;
    struct sg_state_opts o = {.kv = SG_F16};
    uint32_t mark;
    static float ignored[ROWS * VOCAB];
    assert_int_equal(sg_spec_parse(&spec, "cpu:threads=2", NULL), SEGUE_OK);
    segue_status status = sg_unit_cpu.open(&p.unit, &spec, NULL);
    if (status == SEGUE_OK) status = sg_unit_cpu.compile(p.unit, graphs, 1, NULL, &p.program, NULL);
    if (status == SEGUE_OK)
        status = sg_unit_cpu.state_new(p.unit, f->graph->slots, f->graph->slots_n, &o, &s, NULL);
    if (status == SEGUE_OK) {
        struct sg_span span = {
            .state = s, .rows = 140, .tokens = f->tokens, .wanted = every_row(), .wanted_n = 2, .steps = 1};
        struct sg_batch b = {.spans = &span, .spans_n = 1, .inline_hint = 1};
        struct sg_result r = {.logits = ignored};
        status = run_batch(&p, &b, &r);
        if (status == SEGUE_OK) status = sg_unit_cpu.state_fork(s, &fork, NULL);
        if (status == SEGUE_OK) status = sg_unit_cpu.state_mark(fork, &mark, NULL);
        span = (struct sg_span){.state = fork,
                                .rows = 1,
                                .first = 140,
                                .tokens = f->tokens,
                                .wanted = every_row(),
                                .wanted_n = 1,
                                .steps = 1};
        r.logits = NULL;
        if (status == SEGUE_OK) status = run_batch(&p, &b, &r);
    }
    sg_fault_alloc(0);
    if (status != SEGUE_OK) assert_int_equal(status, SEGUE_EMEMORY);
    if (fork) sg_unit_cpu.state_free(fork);
    if (s) sg_unit_cpu.state_free(s);
    if (p.program) sg_unit_cpu.discard(p.program);
    if (p.unit) sg_unit_cpu.close(p.unit);
    return status == SEGUE_OK;
}

static void failing_allocations_are_survived(void **state)
{
    uint64_t n = 1;
    for (int done = 0; !done; n++) {
        sg_fault_alloc(n);
        done = whole_life(*state);
    }
    assert_true(n > 40);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef SEGUE_FAULTS
        cmocka_unit_test(tokens_need_no_memory),     cmocka_unit_test(failing_allocations_are_survived),
#endif

        cmocka_unit_test(threads_change_no_bit),     cmocka_unit_test(a_row_ignores_its_neighbours),
        cmocka_unit_test(units_live_side_by_side),   cmocka_unit_test(pieces_of_a_prompt_agree),
        cmocka_unit_test(a_state_forks_and_goes_back), cmocka_unit_test(steps_equal_single_steps),
        cmocka_unit_test(a_cancelled_run_changes_nothing), cmocka_unit_test(wrong_batches_are_refused),
        cmocka_unit_test(wide_heads_are_refused),
        cmocka_unit_test(specs_are_read),            cmocka_unit_test(the_stream_is_measured)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
