/* ane_shapes.c: the dispatches into which the unit `ane` cuts a prompt: full shapes have no padding, no fixed number of rows
 * takes less simulated time; programs of different shapes share the weights; linear operations with the same input are one
 * convolution.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../api/tiny.h"
#include "engine/engine.h"
#include "unit/ane/aneunit.h"
#include "unit/ane/npu/npu.h"

enum { LONGEST = 1200 };

static segue_model *models[TINY_MODELS];
static int32_t text[LONGEST];
static segue_error err;

static void ok_(segue_status s, const char *what, int line)
{
    if (s != SEGUE_OK) fail_msg("line %d: %s: %d: %s", line, what, s, err.text);
}
#define OK(call) ok_(call, #call, __LINE__)

static int open_models(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++) {
        char folder[512];
        tiny_folder(folder, sizeof folder, "shapes", tiny_models[i].name);
        if (!tiny_write(&tiny_models[i], folder, 3) || segue_model_open(&models[i], folder, NULL, &err) != SEGUE_OK) return -1;
    }
    for (int i = 0; i < LONGEST; i++) text[i] = (i * 31 + 7) % 93 + 3;
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++) segue_model_close(models[i]);
    tiny_remove("shapes");
    return 0;
}

struct shape_setup {
    segue_unit *unit;
    segue_engine *engine;
    struct sg_program *program;
};

static void open_setup(struct shape_setup *p, int model, const char *spec)
{
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    o.chunk_tokens = LONGEST;
    OK(segue_unit_open(&p->unit, spec, &err));
    OK(segue_engine_open(&p->engine, models[model], &p->unit, 1, &o, &err));
    p->program = p->engine->layer_ranges->program;
}

static void close_setup(struct shape_setup *p)
{
    segue_engine_close(p->engine);
    segue_unit_close(p->unit);
}

static struct sg_ane_counters counters(const struct shape_setup *p)
{
    struct sg_ane_counters c;
    struct sg_ane_device *d = p->program->base.unit->device;
    sg_ane_ops_of(d)->count(d, &c);
    return c;
}

/* The usage that the engine reports for a prompt of n tokens. */
static segue_use read_prompt(struct shape_setup *p, size_t n)
{
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_session *s = NULL;
    segue_use use = {0};
    o.context = 4096;
    o.no_store = 1;
    OK(segue_session_open(&s, p->engine, &o, &err));
    OK(segue_session_append(s, text, n, &err));
    OK(segue_session_prefill(s, 0, NULL, &err));
    segue_use entry = SEGUE_INIT(segue_use);
    for (size_t i = 0; segue_session_use_get(s, i, &entry, &err) == SEGUE_OK; i++)
        if (entry.phase != SEGUE_HELPER) use = entry;
    segue_session_close(s);
    return use;
}

static void filled_shapes_have_no_padding(void **state)
{
    (void)state;
    static const size_t shapes[] = {32, 64, 128, 256, 512};
    for (int m = 0; m < TINY_MODELS; m++) {
        struct shape_setup p;
        open_setup(&p, m, "ane:soft,threads=2");
        uint32_t parts = p.program->cut[0].parts_n;
        for (size_t i = 0; i < 5; i++) {
            segue_use use = read_prompt(&p, shapes[i]);
            assert_int_equal(use.padded_tokens, shapes[i]);
            assert_int_equal(use.dispatches, parts);
        }
        segue_use use = read_prompt(&p, 1);
        assert_int_equal(use.padded_tokens, 32);
        use = read_prompt(&p, 1024 + 130);
        assert_true(use.padded_tokens >= 1024 + 160 && use.padded_tokens <= 1024 + 256);
        close_setup(&p);
    }
}

/* Simulated time of a prompt of n tokens, when all programs are loaded. */
static uint64_t simulated(struct shape_setup *p, size_t n)
{
    read_prompt(p, n);
    uint64_t before = counters(p).simulated_ns;
    read_prompt(p, n);
    return counters(p).simulated_ns - before;
}

static void no_fixed_shape_is_faster(void **state)
{
    (void)state;
    static const char *const specs[] = {"ane:soft,profile=m1,threads=2,rows=32", "ane:soft,profile=m1,threads=2,rows=64",
                                        "ane:soft,profile=m1,threads=2,rows=128", "ane:soft,profile=m1,threads=2,rows=256",
                                        "ane:soft,profile=m1,threads=2,rows=512"};
    static const size_t lengths[] = {2, 33, 65, 130, 300, 410, 700};
    enum { LENGTHS = sizeof lengths / sizeof *lengths };
    struct shape_setup free_one, fixed;
    uint64_t chosen[LENGTHS];
    open_setup(&free_one, 0, "ane:soft,profile=m1,threads=2");
    for (size_t i = 0; i < LENGTHS; i++) chosen[i] = simulated(&free_one, lengths[i]);
    close_setup(&free_one);
    for (size_t k = 0; k < 5; k++) {
        open_setup(&fixed, 0, specs[k]);
        for (size_t i = 0; i < LENGTHS; i++)
            if (chosen[i] > simulated(&fixed, lengths[i])) fail_msg("%zu tokens: %s is faster", lengths[i], specs[k]);
        close_setup(&fixed);
    }
}

/* Without a cache folder. The packed weights are freed with the last program that uses them. */
static void weights_are_shared(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct shape_setup p;
        open_setup(&p, m, "ane:soft,threads=2");
        assert_int_equal(counters(&p).packed_bytes, 0);
        read_prompt(&p, 1);
        uint64_t one = counters(&p).packed_bytes, loaded = counters(&p).loaded;
        assert_true(one > 0);
        static const size_t lengths[] = {32, 64, 128, 256};
        for (size_t i = 0; i < 4; i++) read_prompt(&p, lengths[i]);
        assert_int_equal(counters(&p).loaded, 5 * loaded);
        assert_int_equal(counters(&p).packed_bytes, one);
        ane_sets_drop(p.program);
        assert_int_equal(counters(&p).packed_bytes, 0);
        close_setup(&p);
    }
}

/* More shapes than the budget of loaded programs: the least recently used are unloaded. */
static void budget_of_loaded_programs(void **state)
{
    (void)state;
    struct shape_setup p;
    open_setup(&p, 0, "ane:soft,layers=1,threads=2");
    for (size_t keys = 100; keys <= 1100; keys += 500)
        for (size_t rows = 1; rows <= 64; rows *= 2) {
            segue_session_opts o = SEGUE_INIT(segue_session_opts);
            segue_session *s = NULL;
            o.context = 4096;
            o.no_store = 1;
            OK(segue_session_open(&s, p.engine, &o, &err));
            OK(segue_session_append(s, text, keys, &err));
            OK(segue_session_prefill(s, 0, NULL, &err));
            OK(segue_session_append(s, text, rows, &err));
            OK(segue_session_prefill(s, 0, NULL, &err));
            segue_session_close(s);
            assert_true(counters(&p).loaded <= ANE_LOADED_MAX);
        }
    assert_true(counters(&p).loaded > 3);
    close_setup(&p);
}

/* The linear operation of a layer whose weight's name ends with `end`. */
static uint32_t op_named(const struct sg_graph *g, int32_t layer, const char *end)
{
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        const char *name = op->code == SG_OP_LINEAR ? g->tensors[op->u.linear.weight.tensor]->name : "";
        if (op->layer == layer && strlen(name) > strlen(end) && !strcmp(name + strlen(name) - strlen(end), end)) return i;
    }
    fail_msg("layer %d has no %s", layer, end);
    return 0;
}

static void together(const struct sg_graph *g, const struct sg_ane_part *part, const char *const *names, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t out[SG_ANE_FUSED_MAX];
        assert_int_equal(sg_ane_fused_linears(g, part, op_named(g, 0, names[i]), out), n);
        for (uint32_t k = 0; k < n; k++) assert_int_equal(out[k], op_named(g, 0, names[k]));
    }
}

static uint32_t convolutions(const struct sg_mil_program *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->functions[0].ops_n; i++) n += !strcmp(p->functions[0].ops[i].kind, "conv");
    return n;
}

/* q, k and v are one convolution, gate and up another, unless it would have too many channels. */
static void inputs_are_read_once(void **state)
{
    (void)state;
    static const char *const qkv[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight"},
                             *const wide[] = {"gate_proj.weight", "up_proj.weight"}, *const alone[] = {"o_proj.weight"},
                             *const down[] = {"down_proj.weight"};
    struct shape_setup p;
    open_setup(&p, 0, "ane:soft,layers=1,threads=2");
    struct sg_graph *g = (struct sg_graph *)(uintptr_t)p.program->base.graph;
    const struct sg_ane_part *part = &p.program->cut[0].parts[0];
    together(g, part, qkv, 3);
    together(g, part, wide, 2);
    together(g, part, alone, 1);
    together(g, part, down, 1);
    read_prompt(&p, 32);
    for (int i = 0; i < ANE_SETS; i++)
        if (p.program->sets[i]) assert_int_equal(convolutions(sg_npu_program_of(p.program->sets[i]->programs[0])), 4);
    struct sg_linear *up = &g->ops[op_named(g, 0, wide[1])].u.linear;
    uint32_t rows = up->weight.rows;
    up->weight.rows = SG_ANE_FUSED_CHANNELS_MAX; /* gate and up together exceed the limit */
    together(g, part, wide, 1);
    up->weight.rows = rows;
    close_setup(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filled_shapes_have_no_padding), cmocka_unit_test(no_fixed_shape_is_faster),
        cmocka_unit_test(inputs_are_read_once),
        cmocka_unit_test(weights_are_shared),            cmocka_unit_test(budget_of_loaded_programs)};
    return cmocka_run_group_tests(tests, open_models, close_models);
}
