/* ref.c: the unit `ref` as its callers see it: what it refuses and how it says so, what a failed or canceled
 * run leaves behind, readers beside a run, and that threads change no bit. What the ops compute is checked by
 * `check`.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "unit/spec.h"
#include "unit/unit.h"

extern const struct sg_unit_ops sg_unit_ref;
static const struct sg_unit_ops *const ref = &sg_unit_ref;

enum { VOCAB = 40, WIDTH = 64, PLACES = 200, ROWS = 12 };

/* One attention layer with learnt positions, and a head; numbers by a fixed rule. */
struct model {
    float table[VOCAB * WIDTH], places[PLACES * WIDTH], q[WIDTH * WIDTH], head[VOCAB * WIDTH];
    struct sg_tensor table_t, places_t, q_t, head_t;
    struct sg_graph *graph;
    struct sg_unit *unit;
    struct sg_program *program;
    struct sg_state *state;
    int32_t tokens[PLACES + 8];
    float logits[PLACES * VOCAB];
    uint32_t wanted[2], done;
    struct sg_span span;
    struct sg_batch batch;
    struct sg_result result;
    segue_error err;
};

static struct sg_tensor fill(float *x, const char *name, uint64_t rows, uint32_t seed)
{
    for (uint64_t i = 0; i < rows * WIDTH; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) * 0x1p-24f - 0.5f) * 0.4f;
    }
    return (struct sg_tensor){.name = name,
                              .storage = SG_F32,
                              .rank = 2,
                              .shape = {rows, WIDTH},
                              .rows = rows,
                              .cols = WIDTH,
                              .data = (const uint8_t *)x,
                              .bytes = rows * WIDTH * 4};
}

static segue_status open_ref(struct model *m, const char *spec)
{
    struct sg_unit_spec parsed;
    SG_TRY(sg_spec_parse(&parsed, spec, &m->err));
    return ref->open(&m->unit, &parsed, &m->err);
}

static segue_status build(struct model *m)
{
    struct sg_builder b;
    SG_TRY(sg_builder_begin(&b, &m->err));
    struct sg_weight none = sg_weight_of(&b, NULL);
    int32_t x = sg_embed(&b, sg_input_tokens(&b), &m->table_t, &m->places_t, 1);
    b.layer = 0;
    int32_t q = sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, &m->q_t), none, sg_absent());
    struct sg_attend p = {.heads = 4, .kv_heads = 2, .d = 16, .dv = 16, .scale = 0.25f, .sinks = none};
    q = sg_attend(&b, sg_whole(&b, q), sg_columns(&b, q, 0, 32), sg_columns(&b, q, 32, 32), p, sg_absent());
    x = sg_add(&b, sg_whole(&b, x), sg_whole(&b, q));
    b.layer = -1;
    x = sg_rows(&b, sg_whole(&b, x));
    x = sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, &m->head_t), none, sg_absent());
    sg_output(&b, x, "logits");
    return sg_builder_end(&b, &m->graph, &m->err);
}

static segue_status model_begin(struct model *m, const char *spec)
{
    struct sg_state_opts opts = {.kv = SG_F32};
    memset(m, 0, sizeof *m);
    m->table_t = fill(m->table, "table", VOCAB, 1);
    m->places_t = fill(m->places, "places", PLACES, 2);
    m->q_t = fill(m->q, "q", WIDTH, 3);
    m->head_t = fill(m->head, "head", VOCAB, 4);
    for (int i = 0; i < PLACES; i++) m->tokens[i] = i * 7 % VOCAB;
    SG_TRY(open_ref(m, spec));
    SG_TRY(build(m));
    const struct sg_graph *graphs[] = {m->graph};
    SG_TRY(ref->compile(m->unit, graphs, 1, NULL, &m->program, &m->err));
    SG_TRY(ref->state_new(m->unit, m->graph->slots, m->graph->slots_n, &opts, &m->state, &m->err));
    m->wanted[0] = ROWS - 1;
    m->span = (struct sg_span){
        .state = m->state, .rows = ROWS, .tokens = m->tokens, .wanted = m->wanted, .wanted_n = 1, .steps = 1};
    m->batch = (struct sg_batch){.spans = &m->span, .spans_n = 1, .inline_hint = 1};
    m->result = (struct sg_result){.logits = m->logits, .rows_done = &m->done};
    return SEGUE_OK;
}

static void model_end(struct model *m)
{
    ref->state_free(m->state);
    ref->discard(m->program);
    if (m->unit) ref->close(m->unit);
    sg_graph_free(m->graph);
}

static segue_status run(struct model *m)
{
    struct sg_run *r;
    SG_TRY(ref->start(m->program, &m->batch, &m->result, &r, &m->err));
    return ref->wait(r, UINT64_MAX, &m->err);
}

static uint64_t rows_held(const struct model *m)
{
    uint64_t first, rows;
    ref->state_held(m->state, 0, &first, &rows);
    return rows;
}

static void expect_error(const struct model *m, segue_status status, segue_status wanted, const char *text)
{
    if (status != wanted || !strstr(m->err.text, text))
        fail_msg("%d '%s' lacks '%s'", status, m->err.text, text);
}

static void specs_are_refused_by_name(void **state)
{
    struct model *m = *state;
    struct sg_unit_desc d;
    expect_error(m, open_ref(m, "ref:speed=9"), SEGUE_EARG, "speed");
    expect_error(m, open_ref(m, "ref:threads=0"), SEGUE_EARG, "threads=0");
    expect_error(m, open_ref(m, "ref:0"), SEGUE_EARG, "0");
    assert_int_equal(open_ref(m, "ref:threads=3"), SEGUE_OK);
    ref->describe(m->unit, &d);
    assert_string_equal(d.info.spec, "ref:threads=3");
    assert_true(d.reference && d.samples);
    ref->close(m->unit);
}

static void wrong_batches_are_named(void **state)
{
    struct model *m = *state;
    struct sg_span good, pair[2];
    assert_int_equal(model_begin(m, "ref"), SEGUE_OK);
    good = m->span;
    m->tokens[3] = VOCAB;
    expect_error(m, run(m), SEGUE_EARG, "token 40 is not in the vocabulary of 40");
    m->tokens[3] = -1;
    expect_error(m, run(m), SEGUE_EARG, "token -1");
    m->tokens[3] = 0;
    m->span.rows = PLACES + 1;
    expect_error(m, run(m), SEGUE_ELIMIT, "position 200, the model has 200");
    m->span = good;
    m->span.first = 1;
    expect_error(m, run(m), SEGUE_EARG, "begins at position 1, its state holds 0");
    m->span = good;
    m->span.rows = 0;
    expect_error(m, run(m), SEGUE_EARG, "no tokens");
    m->span = good;
    m->span.tokens = NULL;
    expect_error(m, run(m), SEGUE_EARG, "no tokens");
    m->span = good;
    m->wanted[0] = ROWS;
    expect_error(m, run(m), SEGUE_EARG, "wanted row 12 of 12");
    m->wanted[0] = m->wanted[1] = 4;
    m->span.wanted_n = 2;
    expect_error(m, run(m), SEGUE_EARG, "ascending");
    m->span = good;
    pair[0] = pair[1] = good;
    m->wanted[0] = 0;
    m->batch.spans = pair;
    m->batch.spans_n = 2;
    expect_error(m, run(m), SEGUE_EARG, "share a state");
    m->batch.spans_n = 1;
    pair[0].steps = 5;
    expect_error(m, run(m), SEGUE_EARG, "5 steps need");
    m->batch.spans = &good;
    assert_int_equal(run(m), SEGUE_OK);
    assert_int_equal(m->done, ROWS);
    model_end(m);
}

static void wrong_states_are_named(void **state)
{
    struct model *m = *state;
    float row[32];
    uint32_t mark;
    assert_int_equal(model_begin(m, "ref"), SEGUE_OK);
    assert_int_equal(run(m), SEGUE_OK);
    expect_error(m, ref->state_get(m->state, 9, 0, 1, SG_F32, row, &m->err), SEGUE_EARG, "slot 9 of 2");
    expect_error(m, ref->state_get(m->state, 0, 11, 13, SG_F32, row, &m->err), SEGUE_EARG,
                 "[11, 13) are not all held; it holds [0, 12)");
    expect_error(m, ref->state_get(m->state, 0, 0, 1, SG_Q4_0, row, &m->err), SEGUE_EUNSUPPORTED, "use f32");
    expect_error(m, ref->state_put(m->state, 0, 14, 15, SG_F32, row, &m->err), SEGUE_EARG, "leave a gap");
    expect_error(m, ref->state_put(m->state, UINT32_MAX, 13, 13, SG_F32, NULL, &m->err), SEGUE_EARG,
         "lacks positions up to 13");
    expect_error(m, ref->state_cut(m->state, 13, &m->err), SEGUE_EARG, "to 13 tokens, it holds 12");
    expect_error(m, ref->state_back(m->state, 77, &m->err), SEGUE_EARG, "mark 77");
    for (int i = 0; i < 8; i++) assert_int_equal(ref->state_mark(m->state, &mark, &m->err), SEGUE_OK);
    expect_error(m, ref->state_mark(m->state, &mark, &m->err), SEGUE_ELIMIT, "8 marks exist");
    ref->state_drop(m->state, mark);
    assert_int_equal(ref->state_mark(m->state, &mark, &m->err), SEGUE_OK);
    struct sg_state_opts opts = {.kv = SG_Q4_0};
    struct sg_state *other;
    expect_error(m, ref->state_new(m->unit, m->graph->slots, 2, &opts, &other, &m->err), SEGUE_EUNSUPPORTED, "q4_0");
    model_end(m);
}

/* Logits that are NaN: choosing fails, and the state is as it was. */
static void failed_choices_leave_no_rows(void **state)
{
    struct model *m = *state;
    struct sg_sampler greedy = {.p = {.size = sizeof greedy.p}};
    assert_int_equal(model_begin(m, "ref"), SEGUE_OK);
    m->head[5] = NAN;
    m->span.sampler = &greedy;
    assert_int_equal(run(m), SEGUE_EFORMAT);
    assert_int_equal(m->done, 0);
    assert_int_equal(rows_held(m), 0);
    m->head[5] = 0;
    assert_int_equal(run(m), SEGUE_OK);
    assert_int_equal(rows_held(m), ROWS);
    model_end(m);
}

/* Cancel beside a run: either it was over, or nothing of it stays. */
static void canceled_runs_leave_no_rows(void **state)
{
    struct model *m = *state;
    for (int i = 0; i < 30; i++) {
        atomic_int cancel = 0;
        struct sg_run *r;
        assert_int_equal(model_begin(m, "ref"), SEGUE_OK);
        m->span.rows = PLACES;
        m->batch.inline_hint = 0;
        m->batch.cancel = &cancel;
        assert_int_equal(ref->start(m->program, &m->batch, &m->result, &r, &m->err), SEGUE_OK);
        for (volatile int spin = 0; spin < i * 2000; spin++) {}
        atomic_store(&cancel, 1);
        segue_status status = ref->wait(r, UINT64_MAX, &m->err);
        assert_true(status == SEGUE_OK || status == SEGUE_ECANCELED);
        assert_int_equal(m->done, status == SEGUE_OK ? PLACES : 0);
        assert_int_equal(rows_held(m), m->done);
        model_end(m);
    }
}

/* The last wanted row chooses, by the rule of sample.h, with the number of the position behind it. */
static void choices_are_those_of_the_chooser(void **state)
{
    struct model *m = *state;
    struct sg_chooser *chooser;
    struct sg_sampler s = {.p = {.size = sizeof s.p, .temperature = 3}};
    int32_t expected, chosen[1];
    size_t n;
    assert_int_equal(sg_chooser_new(&chooser, VOCAB, NULL), SEGUE_OK);
    for (s.p.seed = 0; s.p.seed < 20; s.p.seed++) {
        assert_int_equal(model_begin(m, "ref"), SEGUE_OK);
        m->span.sampler = &s;
        m->result.tokens = chosen;
        assert_int_equal(run(m), SEGUE_OK);
        assert_int_equal(sg_choose(chooser, &s, m->logits, ROWS, &expected, NULL, &n, NULL), SEGUE_OK);
        assert_int_equal(chosen[0], expected);
        model_end(m);
    }
    sg_chooser_free(chooser);
}

/* A mark beyond a cut would bring back rows that are gone. */
static void cuts_forget_later_marks(void **state)
{
    struct model *m = *state;
    uint32_t early, late;
    assert_int_equal(model_begin(m, "ref"), SEGUE_OK);
    assert_int_equal(ref->state_mark(m->state, &early, &m->err), SEGUE_OK);
    assert_int_equal(run(m), SEGUE_OK);
    assert_int_equal(ref->state_mark(m->state, &late, &m->err), SEGUE_OK);
    assert_int_equal(ref->state_cut(m->state, ROWS - 1, &m->err), SEGUE_OK);
    assert_int_equal(ref->state_back(m->state, late, &m->err), SEGUE_EARG);
    assert_int_equal(ref->state_back(m->state, early, &m->err), SEGUE_OK);
    assert_int_equal(rows_held(m), 0);
    model_end(m);
}

static void steps_end_at_a_stop(void **state)
{
    struct model *m = *state;
    int32_t ring_tokens[6], chosen[1];
    struct sg_ring ring = {.tokens = ring_tokens, .cap = 6};
    struct sg_sampler greedy = {.p = {.size = sizeof greedy.p}};
    assert_int_equal(model_begin(m, "ref"), SEGUE_OK);
    m->span.sampler = &greedy;
    m->span.steps = 6;
    m->span.ring = &ring;
    m->result.tokens = chosen;
    assert_int_equal(run(m), SEGUE_OK);
    assert_int_equal(ring.written, 6);
    assert_int_equal(m->done, ROWS + 5);
    int32_t stop = ring_tokens[2];
    uint32_t at = 0; /* the first place where that token was chosen */
    while (ring_tokens[at] != stop) at++;
    greedy.stops = &stop;
    greedy.stops_n = 1;
    atomic_store(&ring.written, 0u);
    assert_int_equal(ref->state_cut(m->state, 0, &m->err), SEGUE_OK);
    assert_int_equal(run(m), SEGUE_OK);
    assert_int_equal(ring.written, at + 1);
    assert_int_equal(m->done, ROWS + at);
    assert_int_equal(chosen[0], stop);
    model_end(m);
}

struct reader {
    struct model *m;
    float rows[PLACES * 32];
    segue_status status;
};

static void *read_rows(void *arg)
{
    struct reader *r = arg;
    r->status = ref->state_get(r->m->state, 1, 0, PLACES, SG_F32, r->rows, NULL);
    return NULL;
}

/* A reader on another thread gets the rows as soon as they exist, without waiting for the end by itself. */
static void readers_wait_for_rows(void **state)
{
    struct model *m = *state;
    static struct reader reader;
    static float after[PLACES * 32];
    struct sg_run *r;
    pthread_t thread;
    assert_int_equal(model_begin(m, "ref"), SEGUE_OK);
    m->span.rows = PLACES;
    m->batch.inline_hint = 0;
    reader.m = m;
    assert_int_equal(ref->start(m->program, &m->batch, &m->result, &r, &m->err), SEGUE_OK);
    assert_int_equal(pthread_create(&thread, NULL, read_rows, &reader), 0);
    pthread_join(thread, NULL);
    assert_int_equal(ref->wait(r, UINT64_MAX, &m->err), SEGUE_OK);
    assert_int_equal(reader.status, SEGUE_OK);
    assert_int_equal(ref->state_get(m->state, 1, 0, PLACES, SG_F32, after, &m->err), SEGUE_OK);
    assert_memory_equal(after, reader.rows, sizeof after);
    model_end(m);
}

static void threads_change_no_bit(void **state)
{
    static const char *const specs[] = {"ref:threads=1", "ref:threads=2", "ref:threads=7"};
    static uint32_t all[PLACES];
    static float first[PLACES * VOCAB];
    struct model *m = *state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(model_begin(m, specs[i]), SEGUE_OK);
        for (uint32_t t = 0; t < PLACES; t++) all[t] = t;
        m->span.rows = m->span.wanted_n = PLACES;
        m->span.wanted = all;
        assert_int_equal(run(m), SEGUE_OK);
        if (!i) memcpy(first, m->logits, sizeof first);
        assert_memory_equal(first, m->logits, sizeof first);
        model_end(m);
    }
}

#ifdef SEGUE_FAULTS
static segue_status everything(struct model *m)
{
    struct sg_state *copy;
    uint32_t mark;
    SG_TRY(model_begin(m, "ref:threads=1"));
    SG_TRY(run(m));
    SG_TRY(ref->state_mark(m->state, &mark, &m->err));
    SG_TRY(ref->state_fork(m->state, &copy, &m->err));
    m->span.first = ROWS;
    segue_status status = run(m);
    ref->state_free(copy);
    return status;
}

/* Every n-th allocation fails once: out of memory is said, nothing leaks (the address sanitizer looks), the
 * next try works. */
static void every_allocation_may_fail(void **state)
{
    struct model *m = *state;
    segue_status status = SEGUE_EMEMORY;
    uint64_t n = 0;
    while (status != SEGUE_OK) {
        sg_fault_alloc(++n);
        status = everything(m);
        sg_fault_alloc(0);
        if (status != SEGUE_OK) assert_int_equal(status, SEGUE_EMEMORY);
        model_end(m);
    }
    assert_true(n > 50);
}
#else
static void every_allocation_may_fail(void **state)
{
    (void)state;
    print_message("SKIP every_allocation_may_fail: built without SEGUE_FAULTS\n");
    skip();
}
#endif

int main(void)
{
    static struct model m;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(specs_are_refused_by_name, &m),
        cmocka_unit_test_prestate(wrong_batches_are_named, &m),
        cmocka_unit_test_prestate(wrong_states_are_named, &m),
        cmocka_unit_test_prestate(failed_choices_leave_no_rows, &m),
        cmocka_unit_test_prestate(canceled_runs_leave_no_rows, &m),
        cmocka_unit_test_prestate(choices_are_those_of_the_chooser, &m),
        cmocka_unit_test_prestate(cuts_forget_later_marks, &m),
        cmocka_unit_test_prestate(steps_end_at_a_stop, &m),
        cmocka_unit_test_prestate(readers_wait_for_rows, &m),
        cmocka_unit_test_prestate(threads_change_no_bit, &m),
        cmocka_unit_test_prestate(every_allocation_may_fail, &m),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
