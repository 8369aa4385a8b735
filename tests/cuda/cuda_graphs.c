/* cuda_graphs.c: memory of captured graphs, over the stub driver: what they may take is kept free and reported; where memory is
 * for few graphs the oldest are freed, and where there is none passes are issued without them.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stub.h"

enum { D = 256, HEAD = 64, LAYERS = 3, SEQUENCES = 3 };

static const uint8_t zeros[4 * HEAD * D * 4]; /* of every weight */

static int32_t linear(struct sg_builder *b, int32_t x, uint64_t rows, uint64_t cols)
{
    static struct sg_tensor made[2 * LAYERS + 1];
    static uint32_t n;
    struct sg_tensor *t = &made[n++ % (2 * LAYERS + 1)];
    *t = (struct sg_tensor){.name = "w", .storage = SG_F32, .rank = 2, .shape = {rows, cols}, .rows = rows, .cols = cols,
                            .data = zeros, .bytes = rows * cols * 4};
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, t), sg_weight_of(b, NULL), sg_absent());
}

/* Layers of attention, then logits. */
static struct sg_graph *make(void)
{
    struct sg_builder b;
    struct sg_graph *g = NULL;
    segue_error err;
    assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
    const struct sg_attend p = {.heads = 2, .kv_heads = 1, .d = HEAD, .dv = HEAD, .scale = 1, .sinks = sg_weight_of(&b, NULL)};
    int32_t x = sg_input_rows(&b, D);
    for (b.layer = 0; b.layer < LAYERS; b.layer++) {
        int32_t all = linear(&b, x, 4 * HEAD, D);
        int32_t y = sg_attend(&b, sg_columns(&b, all, 0, 2 * HEAD), sg_columns(&b, all, 2 * HEAD, HEAD),
                              sg_columns(&b, all, 3 * HEAD, HEAD), p, sg_absent());
        x = linear(&b, y, D, 2 * HEAD);
    }
    b.layer = -1;
    sg_output(&b, linear(&b, sg_rows(&b, sg_whole(&b, x)), D, D), "logits");
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

/* A unit with a program and states. */
struct graphs_test {
    struct sg_unit *u;
    struct sg_graph *g;
    struct sg_program *p;
    struct sg_state *s[SEQUENCES];
    uint64_t first[SEQUENCES];
};

static void open_all(struct graphs_test *f, const char *spec)
{
    const struct sg_state_opts o = {.kv = SG_F16, .rows = 64};
    segue_error err = {0};
    *f = (struct graphs_test){.g = make()};
    const struct sg_graph *graphs[] = {f->g};
    stub("");
    assert_int_equal(open_unit(&f->u, spec, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.compile(f->u, graphs, 1, NULL, &f->p, &err), SEGUE_OK);
    for (int i = 0; i < SEQUENCES; i++)
        assert_int_equal(sg_unit_cuda.state_new(f->u, f->g->slots, f->g->slots_n, &o, &f->s[i], &err), SEGUE_OK);
}

static void close_all(struct graphs_test *f)
{
    stub("");
    for (int i = 0; i < SEQUENCES; i++) sg_unit_cuda.state_free(f->s[i]);
    sg_unit_cuda.discard(f->p);
    assert_int_equal(atomic_load(&f->u->graphs_reserved), 0);
    sg_unit_cuda.close(f->u);
    sg_graph_free(f->g);
    assert_int_equal(alive(), 0);
}

/* A row of each of the first n sequences, logits to the host. Returns the status. */
static segue_status step(struct graphs_test *f, uint32_t n, segue_error *err)
{
    static const float x[D];
    static float logits[SEQUENCES * D];
    static const uint32_t wanted[1] = {0};
    struct sg_span spans[SEQUENCES];
    struct sg_result result = {.logits = logits};
    struct sg_run *run;
    for (uint32_t i = 0; i < n; i++)
        spans[i] = (struct sg_span){.state = f->s[i], .first = f->first[i], .rows = 1, .values = x, .wanted = wanted,
                                    .wanted_n = 1, .steps = 1};
    const struct sg_batch batch = {.spans = spans, .spans_n = n, .inline_hint = 1};
    segue_status status = sg_unit_cuda.start(f->p, &batch, &result, &run, err);
    if (status == SEGUE_OK) status = sg_unit_cuda.wait(run, UINT64_MAX, err);
    for (uint32_t i = 0; i < n; i++) f->first[i] += status == SEGUE_OK;
    return status;
}

/* Steps of one, two and three sequences in turn, often enough that each is captured. Returns the graphs that exist then. */
static int steps(struct graphs_test *f, const char *mode)
{
    segue_error err = {0};
    stub(mode);
    for (uint32_t i = 0; i < 4 * SEQUENCES; i++)
        if (step(f, 1 + i % SEQUENCES, &err) != SEGUE_OK) fail_msg("%s, step %u: %s", mode, i, err.text);
    return stub_count("stub_graphs");
}

static void memory_of_graphs_is_kept_free(void **state)
{
    struct graphs_test f;
    uint64_t scratch, without;
    (void)state;
    open_all(&f, "cuda:0");
    const size_t max = cu_graphs_bytes_max(f.p->fused_n);
    assert_true(max >= 2 << 20 && max <= CU_GRAPHS_BYTES);
    assert_int_equal(atomic_load(&f.u->graphs_reserved), CU_LANES * max);
    sg_unit_cuda.footprint(f.p, NULL, NULL, &scratch);
    assert_true(scratch > CU_LANES * max);
    /* What is captured is no longer kept free, since the driver has it. */
    assert_int_equal(steps(&f, ""), SEQUENCES);
    const struct cu_lane *l = &f.p->lanes[CU_LANE_DECODE];
    assert_true(l->graphs_bytes > 0 && l->graphs_bytes % CU_GRAPH_LAUNCH_BYTES == 0);
    assert_int_equal(atomic_load(&f.u->graphs_reserved), CU_LANES * max - l->graphs_bytes);
    close_all(&f);
    open_all(&f, "cuda:0,graphs=0");
    assert_int_equal(atomic_load(&f.u->graphs_reserved), 0);
    sg_unit_cuda.footprint(f.p, NULL, NULL, &without);
    assert_int_equal(without, scratch - CU_LANES * max);
    close_all(&f);
}

/* A state that would take the graphs' memory is refused. */
static void states_leave_memory(void **state)
{
    static const char *const specs[] = {"cuda:0", "cuda:0,graphs=0"};
    const struct sg_state_opts o = {.kv = SG_F16, .rows = 4096}; /* 3 MB */
    struct graphs_test f;
    char mb[16];
    (void)state;
    open_all(&f, "cuda:0");
    uint64_t reserved = atomic_load(&f.u->graphs_reserved);
    /* Of these less than 2 are for states. */
    snprintf(mb, sizeof mb, "%d", stub_count("stub_used_mb") + (int)(reserved >> 20) + 2);
    close_all(&f);
    assert_true(reserved >= 3 << 20);
    for (int i = 0; i < 2; i++) {
        struct sg_state *more = NULL;
        segue_error err = {0};
        assert_int_equal(setenv("SEGUE_STUB_MB", mb, 1), 0);
        open_all(&f, specs[i]);
        segue_status status = sg_unit_cuda.state_new(f.u, f.g->slots, f.g->slots_n, &o, &more, &err);
        assert_int_equal(unsetenv("SEGUE_STUB_MB"), 0);
        assert_int_equal(status, i ? SEGUE_OK : SEGUE_EMEMORY);
        sg_unit_cuda.state_free(more);
        close_all(&f);
    }
}

static void full_memory_costs_graphs_not_runs(void **state)
{
    struct graphs_test f;
    (void)state;
    open_all(&f, "cuda:0");
    assert_int_equal(steps(&f, "graphs:2"), 1);
    close_all(&f);
    open_all(&f, "cuda:0");
    assert_int_equal(steps(&f, "graphs:1"), 0);
    assert_int_equal(f.p->lanes[CU_LANE_DECODE].graphs_bytes, 0);
    assert_int_equal(steps(&f, ""), SEQUENCES); /* memory is free again */
    close_all(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_of_graphs_is_kept_free), cmocka_unit_test(states_leave_memory),
                                       cmocka_unit_test(full_memory_costs_graphs_not_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
