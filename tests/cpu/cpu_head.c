/* cpu_head.c: the head, and everything in the last layer after its memory, is computed only for rows
 * whose logits are wanted. The test counts calls of the fp32 kernel, which only those matrices use.
 * When all rows are wanted, selecting them is not a dispatch.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/cpu/cpu_types.h"
#include "unit/spec.h"

extern const struct sg_unit_ops sg_unit_cpu;

enum { VOCAB = 40, WIDTH = 32, ROWS = 90 };

static struct sg_kernels original;
static atomic_ulong outputs_n;         /* numbers that products of the head produced */

/* Counts the results of the fp32 kernel. */
static void few(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, float *out, size_t ldo)
{
    outputs_n += (unsigned long)rows * nt;
    original.few[SG_PACK_F32](w, k, rows, x, nt, fine, out, ldo);
}

/* The batches are short, so the bf16 kernel must not be called. */
static void bf16_mm(const struct sg_bf16_shape *m, const uint16_t *w, const uint16_t *x, float *out, size_t ldo)
{
    fail_msg("a wide product of %u rows, where none was expected", m->tiles * SG_BF16_ROWS);
    original.bf16_mm(m, w, x, out, ldo);
}

/* A tensor with a simple pattern, quantised to the storage. */
static const struct sg_tensor *tensor(struct sg_arena *arena, enum sg_storage storage, uint32_t rows)
{
    struct sg_tensor *t = sg_arena_alloc(arena, sizeof *t);
    uint64_t bytes;
    float row[WIDTH];
    assert_int_equal(sg_storage_row_bytes(storage, WIDTH, &bytes, NULL), SEGUE_OK);
    uint8_t *data = sg_arena_alloc(arena, rows * bytes);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < WIDTH; c++) row[c] = (float)((r * 7 + c * 5) % 11) / 11.0f - 0.5f;
        assert_int_equal(sg_quant_row(storage, row, NULL, WIDTH, data + r * bytes, NULL), SEGUE_OK);
    }
    *t = (struct sg_tensor){.name = "t", .storage = storage, .rank = 2, .shape = {rows, WIDTH}, .rows = rows, .cols = WIDTH,
                            .data = data, .bytes = rows * bytes};
    return t;
}

static const struct sg_tensor *taps(struct sg_arena *arena)
{
    struct sg_tensor *t = sg_arena_alloc(arena, sizeof *t);
    float *data = sg_arena_alloc(arena, 2 * WIDTH * sizeof *data);
    for (int i = 0; i < 2 * WIDTH; i++) data[i] = 0.25f * (float)(1 + i % 3);
    *t = (struct sg_tensor){.name = "taps", .storage = SG_F32, .rank = 2, .shape = {WIDTH, 2}, .rows = WIDTH, .cols = 2,
                            .data = (const uint8_t *)data, .bytes = 2 * WIDTH * sizeof *data};
    return t;
}

/* Embedding, one q8 matrix, a convolution (memory), then one fp32 matrix and the fp32 head. */
static struct sg_graph *graph_of(struct sg_arena *arena)
{
    struct sg_builder b;
    struct sg_graph *g = NULL;
    struct sg_operand none = sg_absent();
    assert_int_equal(sg_builder_begin(&b, NULL), SEGUE_OK);
    int32_t x = sg_embed(&b, sg_input_tokens(&b), tensor(arena, SG_Q8_0, VOCAB), NULL, 1.0f);
    b.layer = 0;
    x = sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, tensor(arena, SG_Q8_0, WIDTH)), sg_weight_of(&b, NULL), none);
    struct sg_conv c = {.weight = sg_weight_of(&b, taps(arena)), .bias = sg_weight_of(&b, NULL), .taps = 2};
    int32_t y = sg_conv(&b, sg_whole(&b, x), c);
    x = sg_linear(&b, sg_whole(&b, y), sg_weight_of(&b, tensor(arena, SG_F32, WIDTH)), sg_weight_of(&b, NULL), sg_whole(&b, x));
    b.layer = -1;
    x = sg_rows(&b, sg_whole(&b, x));
    x = sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, tensor(arena, SG_F32, VOCAB)), sg_weight_of(&b, NULL), none);
    sg_output(&b, x, "logits");
    sg_hoist_rows(&b);
    b.graph->layers = b.graph->layer_to = 1;
    segue_error err = {0};
    if (sg_builder_end(&b, &g, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return g;
}

static void unwanted_rows_are_not_computed(void **state)
{
    (void)state;
    static struct { uint32_t n, rows[ROWS], from, dispatches; } wanted[] = {
        {1, {ROWS - 1}, ROWS, 8}, {0, {0}, ROWS, 4}, {3, {0, 44, 89}, ROWS, 8}, {5, {1, 2, 3, 5, 8}, ROWS, 10},
        {ROWS, {0}, ROWS, 8}, {1, {0}, 1, 5}};
    static float logits[ROWS * VOCAB];
    static int32_t tokens[ROWS];
    struct sg_arena arena = {0};
    struct sg_graph *g = graph_of(&arena);
    const struct sg_graph *graphs[1] = {g};
    struct sg_unit_spec spec;
    struct sg_unit *unit = NULL;
    struct sg_program *program = NULL;
    segue_error err = {0};
    for (int i = 0; i < ROWS; i++) tokens[i] = i % VOCAB;
    for (uint32_t i = 0; i < ROWS; i++) wanted[4].rows[i] = i;
    assert_int_equal(sg_spec_parse(&spec, "cpu:isa=generic,threads=2", NULL), SEGUE_OK);
    if (sg_unit_cpu.open(&unit, &spec, &err) != SEGUE_OK) fail_msg("%s", err.text);
    struct sg_cpu_unit *u = (struct sg_cpu_unit *)(void *)unit;
    original = u->k;
    u->k.few[SG_PACK_F32] = few;
    u->k.bf16_mm = bf16_mm;
    if (sg_unit_cpu.compile(unit, graphs, 1, NULL, &program, &err) != SEGUE_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct sg_state_opts o = {.rows = ROWS};
        struct sg_state *s = NULL;
        assert_int_equal(sg_unit_cpu.state_new(unit, g->slots, g->slots_n, &o, &s, NULL), SEGUE_OK);
        struct sg_span span =
            {.state = s, .rows = wanted[i].from, .tokens = tokens, .wanted = wanted[i].rows, .wanted_n = wanted[i].n, .steps = 1};
        struct sg_batch b = {.spans = &span, .spans_n = 1, .inline_hint = 1};
        struct sg_result r = {.logits = logits};
        struct sg_run *run;
        outputs_n = 0;
        segue_status status = sg_unit_cpu.start(program, &b, &r, &run, &err);
        if (status == SEGUE_OK) status = sg_unit_cpu.wait(run, UINT64_MAX, &err);
        if (status != SEGUE_OK) fail_msg("%s", err.text);
        assert_int_equal(outputs_n, (unsigned long)wanted[i].n * (WIDTH + VOCAB));
        assert_int_equal(r.dispatches, wanted[i].dispatches);
        sg_unit_cpu.state_free(s);
    }
    sg_unit_cpu.discard(program);
    sg_unit_cpu.close(unit);
    sg_graph_free(g);
    sg_arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(unwanted_rows_are_not_computed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
