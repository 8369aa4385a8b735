/* cpu_unit.c: properties of the cpu unit beyond correct numbers. Results do not depend on the number of
 * threads or, in short batches, on other rows; units of different instruction sets can run
 * concurrently; the division of a prompt changes results only within rounding; states fork and return
 * to marks; runs of several steps equal single steps; a canceled run leaves the state unchanged;
 * allocation failures are reported.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu_model.h"
#include "unit/cpu/cpu_types.h"
#include "unit/cpu/dispatch.h"
#include "unit/spec.h"
#include "unit/unit.h"

extern const struct sg_unit_ops sg_unit_cpu;

/* A unit with the compiled model. */

struct instance { const struct cpu_fixture *f; struct sg_unit *unit; struct sg_program *program; char spec[48]; };

/* Opens a unit and compiles the fixture's graph on it. */
static struct instance instance_open(const struct cpu_fixture *f, const char *spec)
{
    struct instance p = {.f = f};
    strncat(p.spec, spec, sizeof p.spec - 1);
    struct sg_unit_spec s;
    segue_error err = {0};
    const struct sg_graph *graphs[1] = {f->graph};
    assert_int_equal(sg_spec_parse(&s, spec, NULL), SEGUE_OK);
    if (sg_unit_cpu.open(&p.unit, &s, &err) != SEGUE_OK) fail_msg("%s", err.text);
    if (sg_unit_cpu.compile(p.unit, graphs, 1, NULL, &p.program, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return p;
}

static void instance_close(struct instance *p)
{
    sg_unit_cpu.discard(p->program);
    sg_unit_cpu.close(p->unit);
}

static struct sg_state *state_open(const struct instance *p, enum sg_storage kv)
{
    struct sg_state *s = NULL;
    struct sg_state_opts o = {.kv = kv, .rows = 64};
    assert_int_equal(sg_unit_cpu.state_new(p->unit, p->f->graph->slots, p->f->graph->slots_n, &o, &s, NULL),
                     SEGUE_OK);
    return s;
}

/* Number of rows in a state. */
static uint64_t held(const struct sg_state *s)
{
    uint64_t first, rows;
    sg_unit_cpu.state_held(s, 0, &first, &rows);
    return rows;
}

/* Starts a batch and waits for it. */
static segue_status run_batch(const struct instance *p, const struct sg_batch *b, struct sg_result *r)
{
    struct sg_run *run;
    segue_error err = {0};
    segue_status status = sg_unit_cpu.start(p->program, b, r, &run, &err);
    if (status == SEGUE_OK) do status = sg_unit_cpu.wait(run, 1000000000u, &err); while (status == SEGUE_END);
    return status;
}

/* Indices 0, 1, 2, ... for spans that want every row. */
static const uint32_t *all_rows(void)
{
    static uint32_t rows[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) rows[i] = i;
    return rows;
}

/* Appends tokens [at, at + n) of the fixture to s; logits [n, VOCAB]. */
static void feed(const struct instance *p, struct sg_state *s, uint32_t at, uint32_t n, uint32_t hint,
                 float *logits)
{
    struct sg_span span = {.state = s,
                           .rows = n,
                           .first = held(s),
                           .tokens = p->f->tokens + at,
                           .wanted = all_rows(),
                           .wanted_n = n,
                           .steps = 1};
    struct sg_batch b = {.spans = &span, .spans_n = 1, .inline_hint = hint};
    struct sg_result r = {.logits = logits};
    assert_int_equal(run_batch(p, &b, &r), SEGUE_OK);
}

/* Appends the whole prompt, `piece` rows per run, alternating between inline and queued runs. */
static float *prompt(const struct instance *p, struct sg_state *s, uint32_t piece)
{
    float *logits = malloc(sizeof *logits * ROWS * VOCAB);
    for (uint32_t at = 0; at < ROWS; at += piece)
        feed(p, s, at, ROWS - at < piece ? ROWS - at : piece, at / piece % 2, logits + (size_t)at * VOCAB);
    return logits;
}

/* Fails when two arrays differ by more than `most` anywhere, or contain NaN. */
static void assert_near(const float *a, const float *b, size_t n, float tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= tolerance)) fail_msg("number %zu: %g and %g", i, (double)a[i], (double)b[i]);
}

/* Bit-equal results with 1, 2 and 3 threads, for three divisions of the prompt. */

static void results_do_not_depend_on_threads(void **state)
{
    static const char *const specs[] = {"cpu:threads=1", "cpu:threads=2", "cpu:threads=3"};
    static const uint32_t pieces[] = {ROWS, 1, 13};
    float *want[3] = {NULL};
    for (int i = 0; i < 3; i++) {
        struct instance p = instance_open(*state, specs[i]);
        for (int j = 0; j < 3; j++) {
            struct sg_state *s = state_open(&p, SG_F16);
            float *got = prompt(&p, s, pieces[j]);
            if (want[j]) assert_memory_equal(got, want[j], sizeof *got * ROWS * VOCAB);
            if (want[j]) free(got);
            else want[j] = got;
            sg_unit_cpu.state_free(s);
        }
        instance_close(&p);
    }
    for (int j = 0; j < 3; j++) free(want[j]);
}

/* Three sequences of different lengths in one short batch: each row has the bits that it has alone. For
 * all instruction sets. */
static void rows_do_not_depend_on_the_batch(void **state)
{
    static const uint32_t rows[3] = {1, 5, 3}, before[3] = {130, 0, 17};
    for (int isa = SG_ISA_GENERIC; isa < SG_ISA_N; isa++) {
        if (!sg_isa_present((enum sg_isa)isa)) continue;
        char spec[48] = "cpu:threads=2,isa=";
        strcat(spec, sg_isa_name((enum sg_isa)isa));
        struct instance p = instance_open(*state, spec);
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
                                        .wanted = all_rows(),
                                        .wanted_n = rows[i],
                                        .steps = 1};
            at += rows[i];
        }
        struct sg_batch b = {.spans = spans, .spans_n = 3, .inline_hint = 1};
        struct sg_result r = {.logits = together};
        assert_int_equal(run_batch(&p, &b, &r), SEGUE_OK);
        assert_memory_equal(alone, together, sizeof alone);
        for (int i = 0; i < 3; i++) sg_unit_cpu.state_free(spans[i].state);
        instance_close(&p);
    }
}

/* Row conversion uses buffers of a fixed size, so a state with wider heads must be refused even if no
 * graph has them. */
static void heads_above_the_maximum_are_refused(void **state)
{
    struct instance p = instance_open(*state, "cpu:threads=1");
    struct sg_slot slots[2] = {{.kind = SG_SLOT_K, .layer = 3, .heads = 1, .width = 512},
                               {.kind = SG_SLOT_V, .layer = 3, .heads = 1, .width = 513}};
    struct sg_state_opts o = {.kv = SG_F32};
    struct sg_state *s = NULL;
    segue_error err;
    assert_int_equal(sg_unit_cpu.state_new(p.unit, slots, 1, &o, &s, &err), SEGUE_OK);
    sg_unit_cpu.state_free(s);
    assert_int_equal(sg_unit_cpu.state_new(p.unit, slots, 2, &o, &s, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "layer 3: head width 513"));
    instance_close(&p);
}

/* All instruction sets on one graph: first alone, equal within rounding; then all at the same time,
 * bit-equal to alone. */
static void instruction_sets_run_concurrently(void **state)
{
    struct instance p[SG_ISA_N];
    struct sg_state *s[SG_ISA_N];
    struct sg_span spans[SG_ISA_N];
    struct sg_result r[SG_ISA_N];
    struct sg_run *runs[SG_ISA_N];
    float *alone[SG_ISA_N], *concurrent[SG_ISA_N];
    const uint32_t *every = all_rows(); /* once: runs read it while others are started */
    int n = 0;
    for (int isa = SG_ISA_GENERIC; isa < SG_ISA_N; isa++) {
        if (!sg_isa_present((enum sg_isa)isa)) continue;
        char spec[48] = "cpu:threads=2,isa=";
        strcat(spec, sg_isa_name((enum sg_isa)isa));
        p[n++] = instance_open(*state, spec);
    }
    for (int i = 0; i < n; i++) {
        s[i] = state_open(&p[i], SG_F32);
        alone[i] = prompt(&p[i], s[i], ROWS);
        sg_unit_cpu.state_free(s[i]);
        /* Long prompts quantise activations to bf16 (amx) or to 8 bits per superblock. The sums of
         * avx512 are inexact by a few units, after which some numbers round to another byte. */
        float tolerance = strstr(p[i].spec, "amx") ? 0.15f : strstr(p[i].spec, "avx512") ? 8e-3f : 4e-3f;
        assert_near(alone[i], alone[0], (size_t)ROWS * VOCAB, tolerance);
    }
    for (int i = 0; i < n; i++) {
        s[i] = state_open(&p[i], SG_F32);
        concurrent[i] = malloc(sizeof **concurrent * ROWS * VOCAB);
        spans[i] = (struct sg_span){.state = s[i], .rows = ROWS, .tokens = p[i].f->tokens, .steps = 1,
                                    .wanted = every, .wanted_n = ROWS};
        r[i] = (struct sg_result){.logits = concurrent[i]};
        struct sg_batch b = {.spans = &spans[i], .spans_n = 1};
        assert_int_equal(sg_unit_cpu.start(p[i].program, &b, &r[i], &runs[i], NULL), SEGUE_OK);
    }
    for (int i = 0; i < n; i++) {
        while (sg_unit_cpu.wait(runs[i], 1000000000u, NULL) == SEGUE_END) continue;
        assert_memory_equal(alone[i], concurrent[i], sizeof **concurrent * ROWS * VOCAB);
        sg_unit_cpu.state_free(s[i]);
        free(alone[i]);
        free(concurrent[i]);
        instance_close(&p[i]);
    }
}

/* The same prompt in pieces of several sizes, for all KV storages. */
static void prompt_division_changes_little(void **state)
{
    static const uint32_t pieces[] = {1, 16, 40, 128};
    static const enum sg_storage kinds[] = {SG_F32, SG_F16, SG_BF16, SG_Q8_0};
    struct instance p = instance_open(*state, "cpu:threads=2");
    for (int k = 0; k < 4; k++) {
        struct sg_state *s = state_open(&p, kinds[k]);
        float *whole = prompt(&p, s, ROWS);
        sg_unit_cpu.state_free(s);
        for (int i = 0; i < 4; i++) {
            s = state_open(&p, kinds[k]);
            float *got = prompt(&p, s, pieces[i]);
            assert_near(got, whole, (size_t)ROWS * VOCAB,
                        0.15f); /* long runs use 8 bits for activations, short ones 16 */
            free(got);
            sg_unit_cpu.state_free(s);
        }
        free(whole);
    }
    instance_close(&p);
}

/* A fork and a restored state continue with the bits of the original; newer marks become invalid. */
static void state_forks_and_restores_marks(void **state)
{
    struct instance p = instance_open(*state, "cpu:threads=2");
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
    feed(&p, s, 20, 9, 1, ignored);          /* a different continuation, which the fork must not see */
    feed(&p, fork, 125, 10, 1, again);
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(sg_unit_cpu.state_back(s, mark, NULL), SEGUE_OK);
    feed(&p, s, 125, 10, 0, again);
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(sg_unit_cpu.state_cut(s, 100, NULL),
                     SEGUE_EUNSUPPORTED); /* the recurrent layer cannot be cut */
    assert_int_equal(sg_unit_cpu.state_cut(s, 0, NULL), SEGUE_OK);
    feed(&p, s, 0, 4, 1, ignored);
    assert_int_equal(held(s), 4);
    sg_unit_cpu.state_free(fork);
    sg_unit_cpu.state_free(s);
    instance_close(&p);
}

/* Greedy generation in one run of 12 steps and in 12 runs. */
static void run_of_steps_equals_single_steps(void **state)
{
    struct instance p = instance_open(*state, "cpu:threads=2");
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
    instance_close(&p);
}

/* A long run that is canceled at the start: the state continues as if the run had not happened. */
static void canceled_run_changes_nothing(void **state)
{
    struct instance p = instance_open(*state, "cpu:threads=2");
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
    instance_close(&p);
}

/* Three runs are started while the unit is busy, the last one with a higher priority: it is done when the one before it is. */
static void higher_priority_runs_first(void **state)
{
    struct instance p = instance_open(*state, "cpu:threads=2");
    struct sg_cpu_unit *u = (struct sg_cpu_unit *)(void *)p.unit;
    struct sg_state *states[3];
    struct sg_span spans[3];
    struct sg_result results[3] = {{0}};
    struct sg_run *runs[3];
    pthread_mutex_lock(&u->work);
    for (uint32_t i = 0; i < 3; i++) {
        states[i] = state_open(&p, SG_F16);
        spans[i] = (struct sg_span){.state = states[i], .rows = 2, .tokens = p.f->tokens, .steps = 1};
        struct sg_batch b = {.spans = &spans[i], .spans_n = 1, .priority = i == 2};
        assert_int_equal(sg_unit_cpu.start(p.program, &b, &results[i], &runs[i], NULL), SEGUE_OK);
    }
    assert_int_equal(sg_unit_cpu.wait(runs[1], 0, NULL), SEGUE_END);
    pthread_mutex_unlock(&u->work);
    assert_int_equal(sg_unit_cpu.wait(runs[1], UINT64_MAX, NULL), SEGUE_OK);
    assert_int_equal(sg_unit_cpu.wait(runs[2], 0, NULL), SEGUE_OK);
    assert_int_equal(sg_unit_cpu.wait(runs[0], UINT64_MAX, NULL), SEGUE_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(held(states[i]), 2);
        sg_unit_cpu.state_free(states[i]);
    }
    instance_close(&p);
}

/* Each violation of the batch rules gives EARG and changes nothing. */
static void invalid_batches_are_refused(void **state)
{
    struct instance p = instance_open(*state, "cpu:threads=1");
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
    assert_int_equal(run_batch(&p, &b, &r), SEGUE_EARG);     /* a gap in the positions */
    span.first = 0;
    twice[0] = twice[1] = span;
    b.spans = twice;
    b.spans_n = 2;
    assert_int_equal(run_batch(&p, &b, &r), SEGUE_EARG);     /* one state in two spans */
    b.spans_n = 0;
    assert_int_equal(run_batch(&p, &b, &r), SEGUE_EARG);
    sg_unit_cpu.state_free(s);
    instance_close(&p);
}

/* Invalid options of the unit's spec. */
static void invalid_specs_are_refused(void **state)
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

static void bandwidth_is_measured(void **state)
{
    struct instance p = instance_open(*state, "cpu");
    double gb_s = 0;
    assert_int_equal(sg_unit_cpu.stream(p.unit, 4u << 20, &gb_s, NULL), SEGUE_OK);
    assert_true(gb_s > 0.01);
    instance_close(&p);
}

#ifdef SEGUE_FAULTS
/* After one batch of a size, further tokens allocate nothing: the first allocation would fail and end
 * the run. */
static void tokens_allocate_nothing(void **state)
{
    struct instance p = instance_open(*state, "cpu:threads=2");
    struct sg_state *s = state_open(&p, SG_F16);
    static float ignored[ROWS * VOCAB];
    feed(&p, s, 0, 3, 1, ignored);
    feed(&p, s, 3, 1, 1, ignored);
    sg_fault_alloc(1);
    for (uint32_t i = 4; i < 64; i++) feed(&p, s, i, 1, 1, ignored);
    sg_fault_alloc(0);
    sg_unit_cpu.state_free(s);
    instance_close(&p);
}

/* Open, compile, prompt, fork, mark, one token. Returns 1 when nothing failed; otherwise the status was
 * EMEMORY. */
static int life_cycle(const struct cpu_fixture *f)
{
    struct instance p = {.f = f};
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
            .state = s, .rows = 140, .tokens = f->tokens, .wanted = all_rows(), .wanted_n = 2, .steps = 1};
        struct sg_batch b = {.spans = &span, .spans_n = 1, .inline_hint = 1};
        struct sg_result r = {.logits = ignored};
        status = run_batch(&p, &b, &r);
        if (status == SEGUE_OK) status = sg_unit_cpu.state_fork(s, &fork, NULL);
        if (status == SEGUE_OK) status = sg_unit_cpu.state_mark(fork, &mark, NULL);
        span = (struct sg_span){.state = fork,
                                .rows = 1,
                                .first = 140,
                                .tokens = f->tokens,
                                .wanted = all_rows(),
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

/* Fails the first, second, ... allocation of a life cycle until none fails. */
static void failed_allocations_are_reported(void **state)
{
    uint64_t n = 1;
    for (int done = 0; !done; n++) {
        sg_fault_alloc(n);
        done = life_cycle(*state);
    }
    assert_true(n > 40);
}
#endif

/* NaN is not the storage's fault, whatever else the head has; numbers beyond the storage, or lost in it, are. */
static void heads_that_do_not_fit_have_a_reason(void **state)
{
    (void)state;
    static const struct { float x[3]; enum sg_storage storage; enum sg_kv_fit fit; } heads[] = {
        {{1, -65504, 0}, SG_F16, SG_KV_FITS},          {{0, 0, 0}, SG_F16, SG_KV_FITS},
        {{1, 65520, 0}, SG_F16, SG_KV_INFINITE},       {{-INFINITY, 1, 0}, SG_F16, SG_KV_INFINITE},
        {{-65520, 1, 0}, SG_Q8_0, SG_KV_FITS},         {{0x1p-21f, 0, 0}, SG_F16, SG_KV_LOST},
        {{INFINITY, NAN, 0}, SG_F16, SG_KV_NAN},       {{0, -NAN, 1}, SG_Q8_0, SG_KV_NAN},
        {{NAN, 1e30f, 0}, SG_BF16, SG_KV_FITS}, /* not counted there */
    };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        assert_int_equal(sg_kv_fit(heads[i].x, 3, heads[i].storage), heads[i].fit);
    struct sg_op op = {.code = SG_OP_ATTEND, .layer = 4};
    struct sg_kv_count few = {.heads = {[SG_KV_LOST] = 4}, .all = 8};
    struct sg_kv_count nan = {.heads = {[SG_KV_INFINITE] = 2, [SG_KV_NAN] = 1}, .all = 8};
    segue_error err;
    assert_true(sg_kv_count_fits(&few) && !sg_kv_count_fits(&nan));
    assert_int_equal(sg_kv_fit_fail("cpu", &op, 1, &nan, SG_F16, &err), SEGUE_EUNSUPPORTED);
    assert_true(strstr(err.text, "V of layer 4: 1 of 8") && strstr(err.text, "NaN") && !strstr(err.text, "--kv"));
    nan.heads[SG_KV_NAN] = 0;
    assert_int_equal(sg_kv_fit_fail("cpu", &op, 0, &nan, SG_Q8_0, &err), SEGUE_EUNSUPPORTED);
    assert_true(strstr(err.text, "K of layer 4: 2 of 8") && strstr(err.text, "q8") && strstr(err.text, "--kv"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef SEGUE_FAULTS
        cmocka_unit_test(tokens_allocate_nothing),     cmocka_unit_test(failed_allocations_are_reported),
#endif

        cmocka_unit_test(results_do_not_depend_on_threads),     cmocka_unit_test(rows_do_not_depend_on_the_batch),
        cmocka_unit_test(instruction_sets_run_concurrently),   cmocka_unit_test(prompt_division_changes_little),
        cmocka_unit_test(state_forks_and_restores_marks), cmocka_unit_test(run_of_steps_equals_single_steps),
        cmocka_unit_test(canceled_run_changes_nothing),      cmocka_unit_test(higher_priority_runs_first),
        cmocka_unit_test(invalid_batches_are_refused),       cmocka_unit_test(heads_that_do_not_fit_have_a_reason),
        cmocka_unit_test(heads_above_the_maximum_are_refused),
        cmocka_unit_test(invalid_specs_are_refused),            cmocka_unit_test(bandwidth_is_measured)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
