/* graph.c: building a graph by hand, its dump, its slots; each kind of wrong graph is refused and named.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "graph/graph.h"
#include "graph/lora.h"

enum { VOCAB = 10, WIDTH = 8, HEADS = 2, KV = 1, D = 4, EXPERTS = 4, FF = 6 };

static struct sg_tensor tensor_of(const char *name, uint64_t rows, uint64_t cols)
{
    return (struct sg_tensor){.name = name, .storage = SG_F32, .rank = 2, .shape = {rows, cols}, .rows = rows,
                              .cols = cols, .bytes = rows * cols * 4};
}

/* One model with every op; each test spoils one thing of it before or after the building. */
struct graph_fixture {
    struct sg_tensor table, norm, q, k, v, o, conv, decay, dt, gate, router, up, down, vector;
    struct sg_builder b;
    uint32_t experts_k, kv_heads, pairs;
    float eps;
};

static void fixture_begin(struct graph_fixture *f)
{
    *f = (struct graph_fixture){.experts_k = 2, .kv_heads = KV, .pairs = D / 2, .eps = 1e-5f};
    f->table = tensor_of("table", VOCAB, WIDTH);
    f->norm = tensor_of("norm", 1, WIDTH);
    f->q = tensor_of("q", HEADS * D, WIDTH);
    f->k = tensor_of("k", KV * D, WIDTH);
    f->v = tensor_of("v", KV * D, WIDTH);
    f->o = tensor_of("o", WIDTH, HEADS * D);
    f->conv = tensor_of("conv", WIDTH, 4);
    f->decay = tensor_of("decay", 1, HEADS);
    f->dt = tensor_of("dt", 1, HEADS);
    f->gate = tensor_of("gate", EXPERTS * FF, WIDTH);
    f->up = tensor_of("up", EXPERTS * FF, WIDTH);
    f->router = tensor_of("router", EXPERTS, WIDTH);
    f->down = tensor_of("down", EXPERTS * WIDTH, FF);
    f->vector = tensor_of("vector", 1, WIDTH);
}

static int32_t attention(struct graph_fixture *f, int32_t x)
{
    struct sg_builder *b = &f->b;
    static const float inverse[D] = {1.0f, 0.01f, 0.001f, 0.0001f};
    struct sg_weight none = sg_weight_of(b, NULL);
    int32_t table = sg_rope_table_add(b, f->pairs, inverse, 1);
    int32_t q = sg_linear(b, sg_whole(b, x), sg_weight_of(b, &f->q), none, sg_absent());
    int32_t k = sg_linear(b, sg_whole(b, x), sg_weight_of(b, &f->k), none, sg_absent());
    int32_t v = sg_linear(b, sg_whole(b, x), sg_weight_of(b, &f->v), none, sg_absent());
    q = sg_rope(b, sg_whole(b, q), HEADS, table);
    k = sg_rope(b, sg_whole(b, k), KV, table);
    struct sg_attend p = {
        .heads = HEADS, .kv_heads = f->kv_heads, .d = D, .dv = D, .scale = 0.5f, .window = 5, .sinks = none};
    int32_t a = sg_attend(b, sg_whole(b, q), sg_whole(b, k), sg_whole(b, v), p, sg_absent());
    return sg_linear(b, sg_whole(b, a), sg_weight_of(b, &f->o), none, sg_whole(b, x));
}

static int32_t recurrence(struct graph_fixture *f, int32_t x)
{
    struct sg_builder *b = &f->b;
    struct sg_conv c = {.weight = sg_weight_of(b, &f->conv), .bias = sg_weight_of(b, NULL), .taps = 4,
                        .act = SG_ACT_SILU};
    int32_t y = sg_conv(b, sg_whole(b, x), c);
    struct sg_operand in[5] = {sg_columns(b, y, 0, 2), sg_columns(b, y, 2, 2), sg_columns(b, y, 4, 4),
                               sg_columns(b, x, 0, 2), sg_columns(b, x, 2, 2)};
    struct sg_delta d = {.k_heads = 1,
                         .v_heads = HEADS,
                         .dk = 2,
                         .dv = 2,
                         .decay = sg_weight_of(b, &f->decay),
                         .dt = sg_weight_of(b, &f->dt),
                         .decay_is_log = 1,
                         .l2_eps = 1e-6f};
    int32_t s = sg_delta(b, in, d);
    return sg_add(b, sg_columns(b, x, 0, 4), sg_whole(b, s));
}

static int32_t experts(struct graph_fixture *f, int32_t x)
{
    struct sg_builder *b = &f->b;
    struct sg_weight none = sg_weight_of(b, NULL);
    int32_t logits = sg_linear(b, sg_whole(b, x), sg_weight_of(b, &f->router), none, sg_absent());
    struct sg_route r = {.experts = EXPERTS, .k = f->experts_k, .renormalise = 1, .scale = 1, .bias = none};
    int32_t routing = sg_route(b, sg_whole(b, logits), r);
    struct sg_experts e = {.gate = sg_weight_of(b, &f->gate), .up = sg_weight_of(b, &f->up),
                           .down = sg_weight_of(b, &f->down), .experts = EXPERTS, .k = f->experts_k, .ff = FF,
                           .act = SG_ACT_SILU};
    return sg_experts(b, sg_whole(b, x), sg_whole(b, routing), e);
}

/* Everything up to, not including, sg_builder_end. */
static int32_t build(struct graph_fixture *f)
{
    struct sg_builder *b = &f->b;
    assert_int_equal(sg_builder_begin(b, NULL), SEGUE_OK);
    struct sg_norm n = {.kind = SG_NORM_RMS, .bias = sg_weight_of(b, NULL), .eps = f->eps, .groups = 1};
    int32_t x = sg_embed(b, sg_input_tokens(b), &f->table, NULL, 1);
    b->layer = 0;
    x = attention(f, x);
    b->layer = 1;
    int32_t half = recurrence(f, x);
    int32_t act = sg_activate(b, sg_whole(b, half), SG_ACT_GELU);
    sg_glu(b, sg_whole(b, act), sg_whole(b, half), SG_ACT_SILU);
    x = experts(f, x);
    x = sg_scale(b, sg_whole(b, x), 0, sg_weight_of(b, &f->vector));
    b->layer = -1;
    x = sg_rows(b, sg_whole(b, x));
    n.weight = sg_weight_of(b, &f->norm);
    x = sg_norm(b, sg_whole(b, x), n, sg_absent());
    x = sg_linear(b, sg_whole(b, x), sg_weight_of(b, &f->table), sg_weight_of(b, NULL), sg_absent());
    sg_output(b, x, "logits");
    return x;
}

static struct sg_graph *built(struct graph_fixture *f)
{
    struct sg_graph *g = NULL;
    segue_error err = {0};
    fixture_begin(f);
    build(f);
    if (sg_builder_end(&f->b, &g, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return g;
}

static void whole_graph_is_accepted(void **state)
{
    (void)state;
    struct graph_fixture f;
    struct sg_graph *g = built(&f);
    assert_int_equal(g->vocab, VOCAB);
    assert_int_equal(g->slots_n, 4);
    assert_int_equal(g->slots[0].kind, SG_SLOT_K);
    assert_int_equal(g->slots[1].window, 5);
    assert_int_equal(g->slots[2].heads, 3);
    assert_int_equal(g->slots[2].layer, 1);
    assert_int_equal(g->slots[3].depth, 2);
    assert_int_equal(sg_graph_output(g, "hidden.0"), -1);
    assert_int_equal(sg_graph_output(g, "logits"), 0);
    sg_graph_free(g);
}

static void dump_is_stable(void **state)
{
    (void)state;
    struct graph_fixture f;
    struct sg_graph *g = built(&f);
    struct sg_buf out = {0};
    assert_int_equal(sg_graph_dump(g, &out), SEGUE_OK);
    assert_non_null(strstr(out.data, "%0 = input tokens -> 1\n%1 = embed %0 table [10x8 f32] -> 8\n"));
    assert_non_null(strstr(out.data, "%2 = linear %1 q [8x8 f32] -> 8   # layer 0\n"));
    assert_non_null(
        strstr(out.data, "%7 = attend %5 %6 %4 heads=2/1 d=4/4 scale=0.5 window=5 slots=0,1 -> 8"));
    assert_non_null(
        strstr(out.data, "%10 = delta %9[0:2] %9[2:4] %9[4:8] a=%8[0:2] b=%8[2:4] heads=1/2 d=2/2"));
    assert_non_null(strstr(out.data, "output logits = %"));
    assert_non_null(strstr(out.data, "slot 3 = delta 2x2x2   # layer 1\n"));
    sg_buf_free(&out);
    sg_graph_free(g);
}

static void slot_bytes_follow_the_storage(void **state)
{
    (void)state;
    struct sg_slot k = {.kind = SG_SLOT_K, .heads = 3, .width = 40},
                   delta = {.kind = SG_SLOT_DELTA, .heads = 2, .depth = 3, .width = 5},
                   conv = {.kind = SG_SLOT_CONV, .heads = 3, .width = 7};
    assert_int_equal(sg_slot_row_bytes(&k, SG_F32), 480);
    assert_int_equal(sg_slot_row_bytes(&k, SG_BF16), 240);
    assert_int_equal(sg_slot_row_bytes(&k, SG_Q8_0), 3 * (2 + 32 + 2 + 8));
    assert_int_equal(sg_slot_row_bytes(&k, SG_Q4_0), 0);
    assert_int_equal(sg_slot_fixed_bytes(&k), 0);
    assert_int_equal(sg_slot_fixed_bytes(&delta), 120);
    assert_int_equal(sg_slot_fixed_bytes(&conv), 84);
    assert_int_equal(sg_slot_row_bytes(&conv, SG_F32), 0);
}

/* What a storage keeps, it keeps for good: encode(decode(encode(x))) = encode(x), and x is restored within its
 * step. */
static void storages_round_once(void **state)
{
    (void)state;
    static const enum sg_storage storages[] = {SG_F32, SG_F16, SG_BF16, SG_Q8_0};
    static const float steps[] = {0, 1.0f / 2048, 1.0f / 256, 0.501f / 127};
    struct sg_slot k = {.kind = SG_SLOT_K, .heads = 2, .width = 37};
    float row[74], back[74];
    unsigned char a[400], b[400];
    for (int i = 0; i < 74; i++) row[i] = sinf((float)(i * i)) * (float)(i % 7);
    for (int s = 0; s < 4; s++) {
        size_t n = sg_slot_row_bytes(&k, storages[s]);
        memset(a, 0xa5, sizeof a);
        sg_slot_encode(&k, storages[s], row, a);
        assert_int_equal(a[n], 0xa5);
        sg_slot_decode(&k, storages[s], a, back);
        for (int i = 0; i < 74; i++) {
            float scale = storages[s] == SG_Q8_0 ? 6 : fabsf(row[i]);
            assert_true(fabsf(row[i] - back[i]) <= steps[s] * scale * 1.001f);
        }
        sg_slot_encode(&k, storages[s], back, b);
        if (storages[s] != SG_Q8_0) assert_memory_equal(a, b, n);
    }
    row[3] = NAN;
    sg_slot_encode(&k, SG_Q8_0, row, a);
    sg_slot_decode(&k, SG_Q8_0, a, back);
    assert_true(isnan(back[0]) && isnan(back[31]) && !isnan(back[32]));
}

/* --- wrong graphs --- */

static void refused(struct graph_fixture *f, segue_status status, const char *a, const char *b)
{
    struct sg_graph *g = NULL;
    segue_error err = {0};
    assert_int_equal(sg_builder_end(&f->b, &g, &err), status);
    assert_null(g);
    if (!strstr(err.text, a) || !strstr(err.text, b)) fail_msg("'%s' lacks '%s' or '%s'", err.text, a, b);
}

static void wrong_tensors_are_named(void **state)
{
    (void)state;
    struct graph_fixture f;
    static const struct { size_t at; uint64_t rows, cols; const char *op, *what;
    } cases[] = {
        {offsetof(struct graph_fixture, q), HEADS * D, WIDTH + 1, "op 1 linear (layer 0)",
         "weight q is 8 x 9, expected 8 x 8"},
        {offsetof(struct graph_fixture, q), HEADS * D - 1, WIDTH, "rope (layer 0)",
         "7 columns are not 2 heads of 3"},
        {offsetof(struct graph_fixture, v), 3, WIDTH, "attend (layer 0)", "v has 3 columns, expected 4"},
        {offsetof(struct graph_fixture, norm), 1, WIDTH - 1, "norm", "weight norm has 1 x 7 numbers, expected 8"},
        {offsetof(struct graph_fixture, conv), WIDTH, 3, "conv (layer 1)",
         "weight conv has 8 x 3 numbers, expected 32"},
        {offsetof(struct graph_fixture, decay), 1, 3, "delta (layer 1)", "decay"},
        {offsetof(struct graph_fixture, dt), 2, 2, "delta (layer 1)", "dt"},
        {offsetof(struct graph_fixture, router), 3, WIDTH, "route (layer 1)", "logits has 3 columns, expected 4"},
        {offsetof(struct graph_fixture, gate), 23, WIDTH, "experts (layer 1)", "gate gate is 23 x 8, expected 24 x 8"},
        {offsetof(struct graph_fixture, down), 33, FF, "experts (layer 1)", "down"},
        {offsetof(struct graph_fixture, vector), 1, 3, "scale (layer 1)", "weight vector"},
        {offsetof(struct graph_fixture, table), 0, WIDTH, "op 0 embed", "rows [0, 0) of table"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture_begin(&f);
        struct sg_tensor *t = (struct sg_tensor *)(void *)((char *)&f + cases[i].at);
        *t = tensor_of(t->name, cases[i].rows, cases[i].cols);
        build(&f);
        refused(&f, SEGUE_EFORMAT, cases[i].op, cases[i].what);
    }
}

static void wrong_numbers_are_named(void **state)
{
    (void)state;
    struct graph_fixture f;
    fixture_begin(&f);
    f.kv_heads = 3;
    build(&f);
    refused(&f, SEGUE_EFORMAT, "attend (layer 0)", "2 heads, 3 KV heads");
    fixture_begin(&f);
    f.pairs = D;
    build(&f);
    refused(&f, SEGUE_EFORMAT, "rope (layer 0)", "4 rotated pairs do not fit in heads of 4 columns");
    fixture_begin(&f);
    f.experts_k = EXPERTS + 1;
    build(&f);
    refused(&f, SEGUE_EFORMAT, "route (layer 1)", "5 of 4 experts");
    fixture_begin(&f);
    f.eps = NAN;
    build(&f);
    refused(&f, SEGUE_EFORMAT, "norm (layer -1)", "eps");
    fixture_begin(&f);
    f.q.storage = SG_I32;
    build(&f);
    refused(&f, SEGUE_EUNSUPPORTED, "linear (layer 0)", "q uses i32");
}

static void wrong_builders_are_named(void **state)
{
    (void)state;
    struct graph_fixture f;
    fixture_begin(&f);
    int32_t x = build(&f);
    sg_output(&f.b, x, "logits");
    refused(&f, SEGUE_EINTERNAL, "output logits", "duplicate");
    fixture_begin(&f);
    build(&f);
    sg_output(&f.b, 999, "hidden.%d", 3);
    refused(&f, SEGUE_EINTERNAL, "hidden.3", "999");
    fixture_begin(&f);
    x = build(&f);
    sg_rows(&f.b, sg_whole(&f.b, x));
    refused(&f, SEGUE_EINTERNAL, "rows", "rows after rows");
    fixture_begin(&f);
    x = build(&f);
    sg_add(&f.b, sg_columns(&f.b, x, 0, 8), sg_whole(&f.b, 1));
    refused(&f, SEGUE_EINTERNAL, "add", "all tokens");
    fixture_begin(&f);
    x = build(&f);
    sg_columns(&f.b, x, 0, 4);
    sg_activate(&f.b, sg_columns(&f.b, x, 8, 4), SG_ACT_RELU);
    refused(&f, SEGUE_EINTERNAL, "act", "columns [8, 12)");
    fixture_begin(&f);
    build(&f);
    sg_conv(&f.b, sg_whole(&f.b, 1), (struct sg_conv){.taps = 2});
    refused(&f, SEGUE_EINTERNAL, "state outside a layer", "");
    fixture_begin(&f);
    assert_int_equal(sg_builder_begin(&f.b, NULL), SEGUE_OK);
    refused(&f, SEGUE_EINTERNAL, "no input", "");
}

/* A graph that was sound and is spoilt afterwards: what a wire or a later pass could do to it. */
static void spoilt_graphs_are_named(void **state)
{
    (void)state;
    struct graph_fixture f;
    segue_error err;
    struct sg_graph *g = built(&f);
    struct sg_op *attend = &g->ops[6], saved = *attend;
    assert_int_equal(attend->code, SG_OP_ATTEND);

    attend->in[0].value = (int32_t)g->values_n - 1;
    assert_int_equal(sg_graph_check(g, &err), SEGUE_EINTERNAL);
    assert_non_null(strstr(err.text, "is defined later"));
    *attend = saved;
    attend->u.attend.slot_v = attend->u.attend.slot_k;
    assert_int_equal(sg_graph_check(g, &err), SEGUE_EINTERNAL);
    assert_non_null(strstr(err.text, "slot 0 does not match"));
    *attend = saved;
    attend->out = 0;
    assert_int_equal(sg_graph_check(g, &err), SEGUE_EINTERNAL);
    *attend = saved;
    g->slots_n++; /* a slot that no op uses */
    g->slots[4] = g->slots[0];
    assert_int_equal(sg_graph_check(g, &err), SEGUE_EINTERNAL);
    assert_non_null(strstr(err.text, "slot 4 is used by 0 ops"));
    g->slots_n--;
    g->ops[0].u.embed.table.tensor = 99;
    assert_int_equal(sg_graph_check(g, &err), SEGUE_EINTERNAL);
    assert_non_null(strstr(err.text, "tensor index 99"));
    g->ops[0].u.embed.table.tensor = 0;
    g->values[1].width++;
    assert_int_equal(sg_graph_check(g, &err), SEGUE_EINTERNAL);
    g->values[1].width--;
    g->layer_to = 1;
    assert_int_equal(sg_graph_check(g, &err), SEGUE_EINTERNAL);
    assert_non_null(strstr(err.text, "outside of the graph's layers [0, 1)"));
    g->layer_to = 2;
    assert_int_equal(sg_graph_check(g, &err), SEGUE_OK);
    sg_graph_free(g);
}

/* Behind the delta rule: one `rows` for what it makes and one for x, which the ops behind it read in two widths. */
static void rows_are_chosen_behind_the_last_state(void **state)
{
    (void)state;
    struct graph_fixture f;
    struct sg_graph *late = built(&f), *g = NULL;
    fixture_begin(&f);
    build(&f);
    sg_hoist_rows(&f.b);
    assert_int_equal(sg_builder_end(&f.b, &g, NULL), SEGUE_OK);
    assert_int_equal(g->ops_n, late->ops_n + 1);
    assert_int_equal(g->vocab, VOCAB);
    for (uint32_t i = 0, behind = 0; i < g->ops_n; i++) {
        int chooses = g->ops[i].code == SG_OP_ROWS;
        assert_true(!chooses || g->ops[i - 1].code == SG_OP_DELTA || g->ops[i - 1].code == SG_OP_ROWS);
        behind |= (uint32_t)chooses;
        assert_int_equal(g->values[g->ops[i].out].wanted, behind);
        assert_int_equal(g->ops[i].layer == 1 && chooses, chooses);
    }
    sg_graph_free(g);
    /* again: there is no better place. Of a value that somebody asks for by name all rows are made. */
    fixture_begin(&f);
    int32_t x = build(&f);
    sg_hoist_rows(&f.b);
    uint32_t ops = f.b.graph->ops_n;
    sg_hoist_rows(&f.b);
    assert_int_equal(f.b.graph->ops_n, ops);
    assert_int_equal(sg_builder_end(&f.b, &g, NULL), SEGUE_OK);
    sg_graph_free(g);
    fixture_begin(&f);
    x = build(&f);
    sg_output(&f.b, x - 3, "hidden.2");
    sg_hoist_rows(&f.b);
    assert_int_equal(f.b.graph->ops_n, late->ops_n);
    assert_int_equal(sg_builder_end(&f.b, &g, NULL), SEGUE_OK);
    sg_graph_free(g);
    sg_graph_free(late);
}

static void adapters_are_found_by_tensor(void **state)
{
    (void)state;
    static const struct sg_tensor t[5];
    struct sg_lora_pair pairs[3] = {{.tensor = &t[0]}, {.tensor = &t[2]}, {.tensor = &t[3]}};
    struct sg_lora l = {.pairs = pairs, .pairs_n = 3};
    assert_ptr_equal(sg_lora_find(&l, &t[2]), &pairs[1]);
    assert_ptr_equal(sg_lora_find(&l, &t[0]), &pairs[0]);
    assert_null(sg_lora_find(&l, &t[1]));
    assert_null(sg_lora_find(&l, &t[4]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_graph_is_accepted),   cmocka_unit_test(dump_is_stable),
        cmocka_unit_test(slot_bytes_follow_the_storage), cmocka_unit_test(storages_round_once),
        cmocka_unit_test(wrong_tensors_are_named),   cmocka_unit_test(wrong_numbers_are_named),
        cmocka_unit_test(wrong_builders_are_named),  cmocka_unit_test(spoilt_graphs_are_named),
        cmocka_unit_test(adapters_are_found_by_tensor), cmocka_unit_test(rows_are_chosen_behind_the_last_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
