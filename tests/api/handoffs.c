/* handoffs.c: sessions that read on one unit and write on another, on every ordered pair of units that is present: the
 * tokens are those of the unit that writes, whatever the chunks, shapes, storages and threads; two sessions on two units
 * work at the same time. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdatomic.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/placement/units.h"
#include "segue.h"
#include "plans.h"
#include "tiny.h"

enum { PROMPT_MAX = 240, ANSWER = 10, UNITS_MAX = 12, SPANS = 4096 };

static struct {
    segue_model *models[TINY_MODELS];
    segue_unit *units[UNITS_MAX];
    segue_unit_info info[UNITS_MAX];
    uint32_t units_n, fp16_n; /* behind units_n: units that round every number to fp16, and their processes */
    int32_t prompt[PROMPT_MAX];
} all;

static segue_error err;

/* gcc and clang tell sanitizers in different ways. */
#if defined(__has_feature)
#define HAS(feature) __has_feature(feature)
#else
#define HAS(feature) 0
#endif
/* Instruction sets of cpu: the threads, which the thread sanitizer watches, are the same with all of them. */
#if defined(__SANITIZE_THREAD__) || HAS(thread_sanitizer)
enum { ISAS = 2 };
#else
enum { ISAS = UNITS_MAX };
#endif

static void ok_(segue_status s, const char *what, int line)
{
    if (s != SEGUE_OK) fail_msg("line %d: %s: %d: %s", line, what, s, err.text);
}
#define OK(call) ok_(call, #call, __LINE__)

static int add_unit(const char *spec)
{
    segue_unit *u = NULL;
    uint32_t n = all.units_n + all.fp16_n;
    if (n == UNITS_MAX || segue_unit_open(&u, spec, &err) != SEGUE_OK) return 0;
    all.info[n] = SEGUE_INIT(segue_unit_info);
    OK(segue_unit_info_get(u, &all.info[n], &err));
    all.units[n] = u;
    return 1;
}

/* Every present kind; cpu once for each of ISAS instruction sets. */
static int open_all(void **state)
{
    (void)state;
    segue_unit_info info[16];
    size_t n = 0;
    for (int i = 0; i < 16; i++) info[i] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(info, 16, &n, &err) != SEGUE_OK) return -1;
    for (size_t i = 0; i < n && i < 16; i++) {
        char spec[96], *rest = NULL;
        if (!info[i].present || info[i].simulated) continue;
        if (strcmp(info[i].kind, "cpu") != 0) {
            all.units_n += (uint32_t)add_unit(info[i].spec);
            continue;
        }
        char *isa = strtok_r(info[i].features, " ", &rest);
        for (int k = 0; isa && k < ISAS; k++, isa = strtok_r(NULL, " ", &rest)) {
            snprintf(spec, sizeof spec, "cpu:isa=%.40s,threads=1", isa);
            all.units_n += (uint32_t)add_unit(spec);
        }
    }
    for (size_t i = 0; i < n && i < 16; i++) {
        char spec[96];
        if (!info[i].present || !info[i].simulated) continue;
        snprintf(spec, sizeof spec, "proc:%.80s", info[i].spec);
        all.fp16_n += (uint32_t)add_unit(info[i].spec);
        all.fp16_n += (uint32_t)add_unit(spec);
    }
    for (int i = 0; i < TINY_MODELS; i++) {
        char folder[512];
        tiny_folder(folder, sizeof folder, "handoffs", tiny_models[i].name);
        if (!tiny_write(&tiny_models[i], folder, 31u + (unsigned)i) ||
            segue_model_open(&all.models[i], folder, NULL, &err) != SEGUE_OK)
            return -1;
    }
    for (int i = 0; i < PROMPT_MAX; i++) all.prompt[i] = (i * 37 + 11) % 93 + 3;
    return all.units_n ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++) segue_model_close(all.models[i]);
    for (uint32_t i = 0; i < all.units_n + all.fp16_n; i++) segue_unit_close(all.units[i]);
    tiny_remove("handoffs");
    return 0;
}

static segue_engine *engine(int model, uint32_t a, uint32_t b, uint32_t kv)
{
    segue_engine *e = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    segue_unit *units[2] = {all.units[a], all.units[b]};
    o.chunk_tokens = 48;
    o.kv = kv;
    OK(segue_engine_open(&e, all.models[model], units, 2, &o, &err));
    return e;
}

static segue_plan *plan_of(uint32_t prefill, uint32_t decode) { return two_phase_plan(prefill, decode, 3); }

static segue_session *session(segue_engine *e, const segue_plan *plan, size_t prompt)
{
    segue_session *s = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    greedy.ignore_stops = 1;
    o.sampling = &greedy;
    o.context = PROMPT_MAX + ANSWER;
    o.plan = plan;
    o.intervals = SPANS;
    OK(segue_session_open(&s, e, &o, &err));
    OK(segue_session_append(s, all.prompt, prompt, &err));
    return s;
}

/* Log-probabilities after the prompt and after each step of a fixed continuation: random weights make ties, so numbers are
 * compared, not choices. */
static void answer(segue_session *s, float *logits, size_t vocab)
{
    int32_t token;
    size_t n;
    OK(segue_session_next(s, &token, &err));
    OK(segue_session_logits(s, logits, vocab, &n, &err));
    for (int i = 1; i < ANSWER; i++) { /* the same tokens for everybody */
        size_t length = segue_session_tokens(s, NULL);
        OK(segue_session_rewind(s, length - 1, &err));
        OK(segue_session_append(s, &all.prompt[i], 1, &err));
        OK(segue_session_next(s, &token, &err));
        OK(segue_session_logits(s, logits + (size_t)i * vocab, vocab, &n, &err));
    }
}

static float distance(const float *a, const float *b, size_t n, float *scale)
{
    float max_error = 0;
    *scale = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(a[i]) && isfinite(b[i]));
        if (fabsf(a[i] - b[i]) > max_error) max_error = fabsf(a[i] - b[i]);
        if (fabsf(b[i]) > *scale) *scale = fabsf(b[i]);
    }
    return max_error;
}

/* Bounds as in tests/check/checkhandoff.c, for two units that round the same sums in other orders, or every number. */
static float bound_of(uint32_t a, uint32_t b, uint32_t kv)
{
    if (a >= all.units_n || b >= all.units_n) return 3e-2f;
    return kv == SEGUE_KV_F32 ? 5e-5f : kv == SEGUE_KV_Q8 ? 2e-2f : 2e-3f;
}

static void one_pair(int model, uint32_t a, uint32_t b, size_t prompt, uint32_t kv)
{
    static float got[ANSWER * TINY_VOCAB], want[ANSWER * TINY_VOCAB];
    segue_engine *e = engine(model, a, b, kv);
    segue_plan *split = plan_of(0, 1), *alone = plan_of(1, 1);
    segue_session *s = session(e, split, prompt), *t = session(e, alone, prompt);
    segue_plan_close(split);
    segue_plan_close(alone);
    segue_stats stats = SEGUE_INIT(segue_stats);
    float scale;
    answer(s, got, TINY_VOCAB);
    answer(t, want, TINY_VOCAB);
    OK(segue_session_stats_get(s, &stats, &err));
    int one_kind = !strcmp(all.info[a].kind, all.info[b].kind);
    assert_true(stats.handoff_bytes > 0 && stats.handoff_ns > 0 && stats.handoff_exposed_ns > 0);
    assert_true(stats.handoff_exposed_ns <= stats.handoff_ns);
    if (one_kind && !strcmp(all.info[a].kind, "cpu")) assert_int_equal(stats.copied_bytes, 0);
    int attaches = !strcmp(all.info[b].kind, "mlx"); /* recurrent slots of some units, without a copy */
    if (!one_kind && attaches) assert_true(stats.copied_bytes <= stats.handoff_bytes);
    if (!one_kind && !attaches) assert_int_equal(stats.copied_bytes, stats.handoff_bytes);
    float bound = bound_of(a, b, kv);
    float d = distance(got, want, ANSWER * TINY_VOCAB, &scale);
    if (d > bound * scale)
        fail_msg("%s, %s -> %s, %zu tokens, kv %u: %g of %g", tiny_models[model].name, all.info[a].spec,
                 all.info[b].spec, prompt, kv, (double)d, (double)scale);
    segue_session_close(s);
    segue_session_close(t);
    segue_engine_close(e);
}

/* Lengths at the edges of taps, of the window of 8, of blocks and of chunks of 48; all storages occur. Of each pair and model
 * every APART-th: with sanitizers one length. */
enum { LENGTHS = 15 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || HAS(address_sanitizer) || HAS(thread_sanitizer)
enum { APART = LENGTHS };
#else
enum { APART = 3 };
#endif

static void every_pair_equals_one_unit(void **state)
{
    (void)state;
    static const size_t lengths[LENGTHS] = {1, 2, 3, 4, 7, 8, 9, 47, 48, 49, 63, 64, 65, 100, 200};
    uint32_t kv = 0;
    for (int m = 0; m < TINY_MODELS; m++)
        for (uint32_t a = 0; a < all.units_n; a++)
            for (uint32_t b = 0; b < all.units_n; b++)
                for (size_t i = (a + 4 * b + 7 * (size_t)m) % APART; a != b && i < LENGTHS; i += APART)
                    one_pair(m, a, b, lengths[i], 1 + kv++ % 4);
}

static void every_pair_with_fp16_equals_one_unit(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 4, 9, 64, 100};
    if (!all.fp16_n) skip();
    for (int m = 0; m < TINY_MODELS; m++)
        for (uint32_t a = 0; a < all.units_n + all.fp16_n; a++)
            for (uint32_t b = 0; b < all.units_n + all.fp16_n; b++)
                if (a != b && (a >= all.units_n || b >= all.units_n))
                    one_pair(m, a, b, lengths[(a + 2 * b + (uint32_t)m) % 5], SEGUE_KV_F16);
}

/* The first layer on one unit and the others on another one, and the other way round for writing: as the model whole. */
static void layers_may_be_split(void **state)
{
    (void)state;
    static float got[ANSWER * TINY_VOCAB], want[ANSWER * TINY_VOCAB];
    for (int m = 0; m < TINY_MODELS; m++)
        for (uint32_t a = 0; a < all.units_n + all.fp16_n; a++) {
            uint32_t b = (a + 1) % (all.units_n + all.fp16_n);
            segue_engine *e = engine(m, a, b, SEGUE_KV_F16);
            segue_plan *split = NULL, *alone = plan_of(1, 1);
            segue_part parts[4];
            for (uint32_t i = 0; i < 4; i++)
                parts[i] = (segue_part){.size = sizeof *parts,
                                        .unit = (i == 1) | (i == 2),
                                        .phase = i < 2 ? SEGUE_PREFILL : SEGUE_DECODE,
                                        .from = i % 2,
                                        .to = i % 2 ? 3 : 1,
                                        .expect_j = -1};
            OK(segue_plan_new(&split, parts, 4, NULL, &err));
            segue_session *s = session(e, split, 70), *t = session(e, alone, 70);
            segue_plan_close(split);
            segue_plan_close(alone);
            segue_stats stats = SEGUE_INIT(segue_stats);
            float scale;
            answer(s, got, TINY_VOCAB);
            answer(t, want, TINY_VOCAB);
            OK(segue_session_stats_get(s, &stats, &err));
            assert_true(stats.handoff_exposed_ns <= stats.handoff_ns);
            size_t used = 0;
            segue_use use = SEGUE_INIT(segue_use);
            for (size_t i = 0; segue_session_use_get(s, i, &use, &err) == SEGUE_OK; i++) used += use.phase != SEGUE_HELPER;
            assert_int_equal(used, 4);
            float d = distance(got, want, ANSWER * TINY_VOCAB, &scale), bound = bound_of(a, b, SEGUE_KV_F16);
            if (d > bound * scale)
                fail_msg("%s, layers of %s and %s: %g of %g", tiny_models[m].name, all.info[a].spec, all.info[b].spec, (double)d,
                         (double)scale);
            segue_session_close(s);
            segue_session_close(t);
            segue_engine_close(e);
        }
}

static segue_plan *shaped_plan(uint32_t prefill, uint32_t decode, const uint32_t shapes[4])
{
    segue_plan *plan = NULL;
    segue_plan_opts opts = SEGUE_INIT(segue_plan_opts);
    const segue_part parts[2] = {
        {.size = sizeof *parts, .unit = prefill, .phase = SEGUE_PREFILL, .to = 3, .expect_j = -1},
        {.size = sizeof *parts, .unit = decode, .phase = SEGUE_DECODE, .to = 3, .expect_j = -1}};
    memcpy(opts.shapes, shapes, sizeof opts.shapes);
    OK(segue_plan_new(&plan, parts, 2, &opts, &err));
    return plan;
}

/* The shapes of a plan determine the number of prefill runs. */
static void shapes_count_runs(void **state)
{
    (void)state;
    static const struct { uint32_t shapes[4]; size_t prompt; uint64_t runs; } cases[] = {
        {{1}, 9, 9}, {{32}, 33, 2}, {{32}, 32, 1}, {{8, 16, 32}, 40, 2}, {{8, 16, 32}, 5, 1}, {{0}, 100, 3}};
    uint32_t other = all.units_n > 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        segue_engine *e = engine(2, 0, other, SEGUE_KV_F32);
        segue_plan *p = shaped_plan(0, 1, cases[i].shapes);
        segue_session *s = session(e, p, cases[i].prompt);
        segue_plan_close(p);
        segue_stats stats = SEGUE_INIT(segue_stats);
        int32_t token;
        OK(segue_session_next(s, &token, &err));
        OK(segue_session_next(s, &token, &err));
        OK(segue_session_stats_get(s, &stats, &err));
        segue_use prefill = first_use(s, SEGUE_PREFILL), decode = first_use(s, SEGUE_DECODE);
        assert_int_equal(stats.uses_n, 2);
        assert_int_equal(prefill.runs, cases[i].runs);
        assert_int_equal(prefill.tokens, cases[i].prompt);
        assert_int_equal(decode.runs, 1);
        assert_int_equal(stats.intervals_n, prefill.runs + 1 + 1); /* prefill runs, hand-off, one decode run */
        segue_session_close(s);
        segue_engine_close(e);
    }
    segue_plan *bad = shaped_plan(0, 0, (const uint32_t[4]){64, 64});
    segue_session *s = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_engine *e = engine(0, 0, other, 0);
    o.plan = bad;
    assert_int_equal(segue_session_open(&s, e, &o, &err), SEGUE_EARG);
    segue_plan_close(bad);
    segue_engine_close(e);
}

struct canceler {
    segue_session *session;
    atomic_int done;
};

/* Cancels a call of segue_session_next from another thread until it takes effect. Afterwards some tokens may be computed. */
static void *cancel_until_done(void *arg)
{
    struct canceler *c = arg;
    while (!atomic_load(&c->done)) segue_session_cancel(c->session);
    return NULL;
}

/* The call may be over before the other thread runs; then it is repeated from the 60th token. */
static void cancel_during_next(segue_session *s)
{
    int32_t token;
    for (int i = 0; i < 1000; i++) {
        struct canceler c = {.session = s};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, cancel_until_done, &c), 0);
        segue_status status = segue_session_next(s, &token, &err);
        atomic_store(&c.done, 1);
        pthread_join(thread, NULL);
        if (status == SEGUE_ECANCELED) return;
        OK(status);
        OK(segue_session_rewind(s, 60, &err));
        OK(segue_session_append(s, all.prompt + 60, 140, &err));
    }
    fail_msg("no call was canceled");
}

/* Canceled while rows are on their way: what was sent is forgotten, and the answer is the same. */
static void canceled_flows_go_on(void **state)
{
    (void)state;
    for (uint32_t a = 0; a < all.units_n; a++) {
        uint32_t b = (a + 1) % all.units_n;
        segue_engine *e = engine(2, a, b, SEGUE_KV_F16);
        segue_plan *split = plan_of(0, 1);
        segue_session *s = session(e, split, 200), *t = session(e, split, 200);
        segue_plan_close(split);
        int32_t got[ANSWER], want[ANSWER], k = 0;
        for (int i = 0; i < ANSWER; i++) OK(segue_session_next(t, &want[i], &err));
        OK(segue_session_prefill(s, 96, NULL, &err)); /* two chunks, sent */
        segue_session_cancel(s); /* no call is in progress: no effect */
        cancel_during_next(s);
        OK(segue_session_rewind(s, 60, &err));
        OK(segue_session_append(s, all.prompt + 60, 140, &err));
        while (k < ANSWER) OK(segue_session_next(s, &got[k++], &err));
        assert_memory_equal(got, want, sizeof got);
        segue_session_close(s);
        segue_session_close(t);
        segue_engine_close(e);
    }
}

/* --- at once --- */

struct handoff_work {
    segue_session *s;
    size_t tokens;
    int32_t got[PROMPT_MAX];
    pthread_barrier_t *begin;
    segue_status status;
};

static void *work_main(void *arg)
{
    struct handoff_work *w = arg;
    segue_error mine;
    pthread_barrier_wait(w->begin);
    for (size_t i = 0; i < w->tokens && w->status == SEGUE_OK; i++)
        w->status = segue_session_next(w->s, &w->got[i], &mine);
    return NULL;
}

/* Two sessions at once, each on one unit: the tokens are those of the session alone. */
static void two_sessions_at_once(segue_engine *e, segue_plan *const plans[2])
{
    pthread_barrier_t begin;
    pthread_t threads[2];
    struct handoff_work work[2] = {{0}};
    assert_int_equal(pthread_barrier_init(&begin, NULL, 2), 0);
    for (int i = 0; i < 2; i++) {
        work[i] = (struct handoff_work){.s = session(e, plans[i], 100), .tokens = 24, .begin = &begin};
        assert_int_equal(pthread_create(&threads[i], NULL, work_main, &work[i]), 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        segue_session *alone = session(e, plans[i], 100);
        int32_t token;
        assert_int_equal(work[i].status, SEGUE_OK);
        for (size_t k = 0; k < work[i].tokens; k++) {
            OK(segue_session_next(alone, &token, &err));
            assert_int_equal(token, work[i].got[k]);
        }
        segue_session_close(alone);
        segue_session_close(work[i].s);
    }
    pthread_barrier_destroy(&begin);
}

/* A session on one unit does not wait for another unit: all lanes of that one are taken, and it answers. */
static void answers_beside_a_busy_unit(segue_engine *e, segue_plan *plan, segue_unit *busy)
{
    int32_t token;
    unsigned lanes = 0;
    segue_session *s = session(e, plan, 100);
    while (sg_unit_try_enter(busy)) lanes++;
    assert_true(lanes > 0);
    for (int k = 0; k < ANSWER; k++) OK(segue_session_next(s, &token, &err));
    while (lanes--) sg_unit_leave(busy);
    segue_session_close(s);
}

static void two_units_work_at_once(void **state)
{
    (void)state;
    if (all.units_n < 2) skip();
    segue_engine *e = engine(2, 0, 1, SEGUE_KV_F32);
    segue_plan *plans[2] = {plan_of(0, 0), plan_of(1, 1)};
    two_sessions_at_once(e, plans);
    for (int i = 0; i < 2; i++) answers_beside_a_busy_unit(e, plans[i], all.units[!i]);
    for (int i = 0; i < 2; i++) segue_plan_close(plans[i]);
    segue_engine_close(e);
}

/* Another storage on one unit must be of the same shape. */
static void storages_may_be_paired(void **state)
{
    (void)state;
    segue_engine *e = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    segue_unit *units[2] = {all.units[0], all.units[all.units_n - 1]};
    segue_model *again = NULL, *models[2] = {NULL, all.models[1]};
    char folder[512];
    o.models = models;
    assert_int_equal(segue_engine_open(&e, all.models[0], units, 2, &o, &err), SEGUE_EFORMAT);
    assert_non_null(strstr(err.text, "shape"));
    tiny_folder(folder, sizeof folder, "handoffs", tiny_models[0].name);
    OK(segue_model_open(&again, folder, NULL, &err));
    models[1] = again;
    OK(segue_engine_open(&e, all.models[0], units, 2, &o, &err));
    segue_model_close(again); /* the engine holds it */
    segue_plan *split = plan_of(0, 1);
    segue_session *s = session(e, split, 20);
    segue_plan_close(split);
    int32_t token;
    for (int i = 0; i < 4; i++) OK(segue_session_next(s, &token, &err));
    segue_session_close(s);
    segue_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_equals_one_unit), cmocka_unit_test(every_pair_with_fp16_equals_one_unit),
        cmocka_unit_test(layers_may_be_split),        cmocka_unit_test(shapes_count_runs),
        cmocka_unit_test(canceled_flows_go_on),       cmocka_unit_test(two_units_work_at_once),
        cmocka_unit_test(storages_may_be_paired),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
