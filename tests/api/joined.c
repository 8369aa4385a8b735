/* joined.c: threads that call segue_session_next and segue_session_prefill beside each other and beside a scheduler share runs.
 * The unit of the test records the runs, and holds one until chosen threads wait in the queue, so that what follows is known: by
 * order and counts, not by time. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "engine/session/session.h"
#include "scheduling.h"

enum { RUNS_MAX = 2048, WORKERS = 4, LONG = 96, SHORTEST = 8, OTHER = WORKERS };

/* One run: tokens of each session, and which of them were answers. */
struct run_seen {
    uint32_t rows[WORKERS + 1]; /* [OTHER]: of all sessions that are no worker's */
    uint32_t answers, spans;
};

struct joined_worker {
    segue_session *session;
    pthread_t thread;
    int32_t prompt[LENGTH_MAX + 8], got[ANSWER];
    size_t prompt_n, answer_n; /* answer_n 0: segue_session_prefill */
    segue_status status;
};

/* What the unit does; one test at a time. */
static struct {
    pthread_mutex_t lock;
    struct sg_unit_ops ops;
    const struct sg_unit_ops *sound;
    struct sg_shared_queue *queue;
    struct joined_worker *workers; /* [WORKERS] */
    struct run_seen seen[RUNS_MAX];
    size_t seen_n;
    uint64_t turns;   /* offers before the test */
    atomic_uint hold; /* the next run waits until there were so many offers, its own included; then 0 */
} unit = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t queued(void)
{
    size_t n = 0;
    pthread_mutex_lock(&unit.queue->lock);
    for (const struct sg_run_group *g = unit.queue->first; g; g = g->next) n++;
    pthread_mutex_unlock(&unit.queue->lock);
    return n;
}

static void wait_offers(uint64_t n)
{
    for (uint64_t have = 0; have < n; sched_yield()) {
        pthread_mutex_lock(&unit.queue->lock);
        have = unit.queue->turns - unit.turns;
        pthread_mutex_unlock(&unit.queue->lock);
    }
}

static uint32_t owner(const int32_t *tokens)
{
    uint32_t i = 0;
    while (i < WORKERS && !(unit.workers[i].session && tokens >= unit.workers[i].session->tokens &&
                            tokens < unit.workers[i].session->tokens + unit.workers[i].session->context))
        i++;
    return i;
}

/* Every size of chunk is known, and slow: beside answers a prompt gets the fewest tokens, on any machine. */
static void make_slow(struct sg_shared_queue *q)
{
    pthread_mutex_lock(&q->lock);
    for (int k = 0; k < SG_PACE_SIZES; k++) q->pace.size[k] = (struct sg_pace_size){.token_ns = 1e12, .runs = 3};
    q->pace.answers_ns = 1;
    pthread_mutex_unlock(&q->lock);
}

static segue_status record_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                                 segue_error *err)
{
    pthread_mutex_lock(&unit.lock);
    struct run_seen *run = &unit.seen[unit.seen_n < RUNS_MAX - 1 ? unit.seen_n++ : unit.seen_n];
    memset(run, 0, sizeof *run);
    run->spans = b->spans_n;
    for (uint32_t i = 0; i < b->spans_n; i++) {
        run->rows[owner(b->spans[i].tokens)] += b->spans[i].rows;
        run->answers += b->spans[i].rows == 1 && b->spans[i].sampler;
    }
    pthread_mutex_unlock(&unit.lock);
    uint32_t hold = atomic_exchange(&unit.hold, 0);
    if (hold) wait_offers(hold);
    make_slow(unit.queue);
    return unit.sound->start(p, b, r, out, err);
}

static void watch(struct fixture *f, struct joined_worker *workers)
{
    struct sg_layer_range *range = f->engine->layer_ranges;
    struct sg_program_base *program = (struct sg_program_base *)(void *)range->program;
    unit.queue = range->queue;
    unit.turns = unit.queue->turns;
    unit.workers = workers;
    unit.seen_n = 0;
    unit.sound = program->ops;
    unit.ops = *unit.sound;
    unit.ops.start = record_start;
    program->ops = &unit.ops;
    make_slow(unit.queue); /* nor does the first run wait for sessions that are away */
}

/* --- workers --- */

static void open_worker(struct fixture *f, struct joined_worker *w, int i, size_t prompt_n, size_t answer_n)
{
    segue_sampling sampling = sampling_of(i);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_error err;
    memset(w, 0, sizeof *w);
    make_prompt(i, w->prompt);
    for (size_t k = 0; k < prompt_n; k++) w->prompt[k] = (int32_t)(3 + (k * 7 + (size_t)i * 31) % (TINY_VOCAB - 3));
    w->prompt_n = prompt_n;
    w->answer_n = answer_n;
    o.sampling = &sampling;
    o.no_store = 1;
    if (segue_session_open(&w->session, f->engine, &o, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_int_equal(segue_session_append(w->session, w->prompt, prompt_n, &err), SEGUE_OK);
    assert_int_equal(segue_session_prefill(w->session, 1, NULL, &err), SEGUE_OK); /* makes the states: no run may be held */
}

static void *work(void *arg)
{
    struct joined_worker *w = arg;
    if (!w->answer_n) w->status = segue_session_prefill(w->session, 0, NULL, NULL);
    for (size_t k = 0; k < w->answer_n && w->status == SEGUE_OK; k++)
        w->status = segue_session_next(w->session, &w->got[k], NULL);
    return NULL;
}

/* Starts a thread and waits until it is in the queue behind `before` others; a run is held meanwhile. */
static void start_behind(struct joined_worker *w, uint64_t before)
{
    assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
    wait_offers(before + 1);
}

/* The tokens are those of the same session alone. */
static void expect_alone(struct fixture *f, struct joined_worker *w, int i)
{
    struct joined_worker lone;
    float got[TINY_VOCAB], want[TINY_VOCAB];
    size_t n;
    segue_error err;
    assert_int_equal(w->status, SEGUE_OK);
    open_worker(f, &lone, i, w->prompt_n, w->answer_n);
    work(&lone);
    assert_memory_equal(w->got, lone.got, sizeof w->got);
    assert_int_equal(segue_session_logits(w->session, got, TINY_VOCAB, &n, &err), SEGUE_OK);
    assert_int_equal(segue_session_logits(lone.session, want, TINY_VOCAB, &n, &err), SEGUE_OK);
    assert_memory_equal(got, want, sizeof got);
    segue_session_close(lone.session);
    segue_session_close(w->session);
    w->session = NULL;
}

/* Tokens of a session in all runs: each is computed once. */
static size_t total(uint32_t who)
{
    size_t n = 0;
    for (size_t r = 0; r < unit.seen_n; r++) n += unit.seen[r].rows[who];
    return n;
}

/* Threads that arrive during a run have the next one together; a prefill is in it too. */
static void waiting_threads_share(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct fixture f;
        struct joined_worker w[WORKERS];
        open_fixture(&f, tiny_models[m].name, "ref", NULL, NULL);
        for (int i = 0; i < WORKERS; i++) open_worker(&f, &w[i], i, 5, i == 2 ? 0 : ANSWER);
        watch(&f, w);
        atomic_store(&unit.hold, WORKERS);
        for (int i = 0; i < WORKERS; i++) start_behind(&w[i], (uint64_t)i);
        for (int i = 0; i < WORKERS; i++) pthread_join(w[i].thread, NULL);
        assert_int_equal(unit.seen[0].spans, 1);
        assert_true(unit.seen[1].spans >= 2); /* worker 0 is away: it has the fewest tokens of prompts, for the first of them */
        assert_int_equal(unit.seen[1].rows[1], 4);
        for (uint32_t i = 0; i < WORKERS; i++) assert_int_equal(total(i), 4 + (w[i].answer_n ? ANSWER - 1 : 0));
        for (int i = 0; i < WORKERS; i++) expect_alone(&f, &w[i], i);
        close_fixture(&f);
    }
}

/* A prompt does not stall an answer of another thread: in a run with it, and in the one after, its chunk is short. */
static void prompts_do_not_stall(void **state)
{
    (void)state;
    for (int prefill = 0; prefill < 2; prefill++) {
        struct fixture f;
        struct joined_worker w[WORKERS] = {0};
        int beside = 0;
        open_fixture(&f, "hybrid", "ref", NULL, NULL);
        open_worker(&f, &w[0], 0, 5, ANSWER);
        open_worker(&f, &w[1], 1, LONG, prefill ? 0 : 2);
        watch(&f, w);
        atomic_store(&unit.hold, 2);
        start_behind(&w[0], 0);
        start_behind(&w[1], 1);
        for (int i = 0; i < 2; i++) pthread_join(w[i].thread, NULL);
        for (size_t r = 1; r < unit.seen_n; r++) {
            int answers = unit.seen[r].rows[0] + unit.seen[r - 1].rows[0] > 0;
            beside += answers && unit.seen[r].rows[1];
            if (answers) assert_true(unit.seen[r].rows[1] <= SHORTEST);
        }
        assert_true(beside > 0);
        assert_int_equal(total(1), LONG - 1 + (prefill ? 0 : 1));
        for (int i = 0; i < 2; i++) expect_alone(&f, &w[i], i);
        close_fixture(&f);
    }
}

/* The prompt that came first is read first. */
static void prompts_in_order(void **state)
{
    struct fixture f;
    struct joined_worker w[WORKERS];
    size_t last[WORKERS] = {0}, first[WORKERS] = {0};
    (void)state;
    open_fixture(&f, "llama", "ref", NULL, NULL);
    for (int i = 0; i < WORKERS; i++) open_worker(&f, &w[i], i, LONG, 1);
    watch(&f, w);
    atomic_store(&unit.hold, WORKERS);
    for (int i = 0; i < WORKERS; i++) start_behind(&w[i], (uint64_t)i);
    for (int i = 0; i < WORKERS; i++) pthread_join(w[i].thread, NULL);
    for (size_t r = unit.seen_n; r-- > 0;)
        for (int i = 0; i < WORKERS; i++)
            if (unit.seen[r].rows[i]) {
                first[i] = r;
                last[i] = last[i] > r ? last[i] : r;
            }
    for (int i = 1; i < WORKERS; i++) assert_true(last[i - 1] <= first[i]);
    for (int i = 0; i < WORKERS; i++) expect_alone(&f, &w[i], i);
    close_fixture(&f);
}

/* A request of a scheduler and a session of another thread that wait for the same run have it together. */
static void beside_a_scheduler(void **state)
{
    struct fixture f;
    struct joined_worker w[WORKERS] = {0};
    segue_scheduler *s;
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    segue_request_info info = SEGUE_INIT(segue_request_info);
    int32_t want[ANSWER], got[ANSWER];
    size_t n = 0, all = 0;
    segue_error err;
    (void)state;
    open_fixture(&f, "llama", "ref", NULL, NULL);
    alone(&f, NULL, 5, want);
    for (int i = 0; i < 2; i++) open_worker(&f, &w[i], i, 5, ANSWER);
    o.unread_tokens = 4;
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    segue_request *q = submit(s, 5, ANSWER);
    do assert_int_equal(segue_request_info_get(q, &info, &err), SEGUE_OK);
    while (info.tokens_unread < 4); /* it pauses, with its states */
    watch(&f, w);
    atomic_store(&unit.hold, 3);
    start_behind(&w[0], 0);
    while (all < ANSWER) {
        assert_int_equal(segue_request_read(q, got + all, NULL, ANSWER - all, &n, forever, &err), SEGUE_OK);
        if (!all) {
            wait_offers(2);
            start_behind(&w[1], 2);
        }
        all += n;
    }
    for (int i = 0; i < 2; i++) pthread_join(w[i].thread, NULL);
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(unit.seen[1].rows[OTHER], 1);
    assert_true(unit.seen[1].rows[1] > 0);
    assert_int_equal(total(OTHER), ANSWER - 4);
    assert_int_equal(segue_request_info_get(q, &info, &err), SEGUE_OK);
    assert_true(info.shared_runs > 0);
    for (int i = 0; i < 2; i++) expect_alone(&f, &w[i], i);
    segue_request_close(q);
    segue_scheduler_close(s);
    close_fixture(&f);
}

/* One that is canceled while it waits leaves the queue; the others do not notice. */
static void canceled_in_the_queue(void **state)
{
    struct fixture f;
    struct joined_worker w[WORKERS] = {0};
    (void)state;
    open_fixture(&f, "gemma3", "ref", NULL, NULL);
    for (int i = 0; i < WORKERS; i++) open_worker(&f, &w[i], i, 5, i == 1 ? 1 : ANSWER);
    watch(&f, w);
    atomic_store(&unit.hold, 4); /* the last is that of worker 3 */
    start_behind(&w[0], 0);
    start_behind(&w[1], 1);
    segue_session_cancel(w[1].session);
    pthread_join(w[1].thread, NULL);
    assert_int_equal(w[1].status, SEGUE_ECANCELED);
    assert_int_equal(queued(), 1);
    start_behind(&w[2], 1);
    w[1].status = SEGUE_OK; /* it continues, at its place in the order */
    assert_int_equal(pthread_create(&w[1].thread, NULL, work, &w[1]), 0);
    while (queued() < 3) sched_yield();
    start_behind(&w[3], 3);
    for (int i = 0; i < WORKERS; i++) pthread_join(w[i].thread, NULL);
    for (int i = 0; i < WORKERS; i++) expect_alone(&f, &w[i], i);
    close_fixture(&f);
}

/* A call that is canceled while its thread leads runs of others ends after the run in progress. */
static void canceled_leader(void **state)
{
    struct sg_shared_queue *q;
    struct sg_away away = {0};
    struct sg_share share = {.away = &away, .rows = 2, .chunk = 2, .whole = 1};
    struct sg_run_group g = {.shares = &share, .shares_n = 1, .stays = 1};
    atomic_int cancel = 0;
    segue_error err;
    (void)state;
    assert_int_equal(sg_shared_queue_new(&q, 1, &err), SEGUE_OK); /* no run takes the two tokens */
    assert_int_equal(sg_shared_queue_wait(q, &g, &cancel), SG_TURN_LEAD);
    assert_int_equal(q->chosen_n, 0);
    sg_shared_queue_leave(q, 0);
    atomic_store(&cancel, 1);
    assert_int_equal(sg_shared_queue_wait(q, &g, &cancel), SG_TURN_CANCELED);
    assert_null(q->first);
    assert_int_equal(q->busy, 0);
    sg_shared_queue_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_threads_share), cmocka_unit_test(prompts_do_not_stall),  cmocka_unit_test(prompts_in_order),
        cmocka_unit_test(beside_a_scheduler),    cmocka_unit_test(canceled_in_the_queue),
        cmocka_unit_test(canceled_leader),
    };
    return cmocka_run_group_tests(tests, write_models, remove_models);
}
