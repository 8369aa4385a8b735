/* cpu_pool.c: the pool executes every item once and every stage after the previous one, with fewer, as
 * many and more threads than processors, over many jobs, after idle periods, and with stages without
 * items.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "unit/pool.h"

enum { STAGES = 5, ITEMS_MAX = 64, IDLE_NS = 3000000 };   /* longer than threads stay awake without a job */

static void busy_wait_ns(uint64_t ns)
{
    for (uint64_t until = sg_now_ns() + ns; sg_now_ns() < until;) continue;
}

struct pool_work {
    uint32_t items[STAGES];
    atomic_uint done[STAGES][ITEMS_MAX];
    atomic_uint stage_done[STAGES];
    atomic_uint too_early;               /* items that ran before the previous stage was complete */
};

/* Checks that the previous stage is complete, then counts the item. */
static void item(void *arg, uint32_t stage, uint32_t i, uint32_t thread)
{
    struct pool_work *w = arg;
    (void)thread;
    if (stage && atomic_load(&w->stage_done[stage - 1]) != w->items[stage - 1])
        atomic_fetch_add(&w->too_early, 1u);
    atomic_fetch_add(&w->done[stage][i], 1u);
    atomic_fetch_add(&w->stage_done[stage], 1u);
}

/* Many jobs on one pool; every 64th is followed by an idle period. */
static void run_many(uint32_t threads, int jobs)
{
    static struct pool_work w;
    struct sg_pool *pool;
    assert_int_equal(sg_pool_open(&pool, threads, NULL), SEGUE_OK);
    assert_int_equal(sg_pool_threads(pool), threads);
    for (int j = 0; j < jobs; j++) {
        w = (struct pool_work){.items = {1, 7, 0, ITEMS_MAX, (uint32_t)j % ITEMS_MAX}};
        struct sg_job job = {.items = w.items, .stages = STAGES, .work = item, .arg = &w};
        w.stage_done[2] = 0;
        sg_pool_run(pool, &job);
        assert_int_equal(atomic_load(&w.too_early), 0);
        for (uint32_t s = 0; s < STAGES; s++)
            for (uint32_t i = 0; i < ITEMS_MAX; i++) assert_int_equal(atomic_load(&w.done[s][i]), i < w.items[s]);
        if (j % 64 == 5) busy_wait_ns(IDLE_NS);
    }
    sg_pool_close(pool);
}

/* A job that one of its items stops: items that no thread has started are skipped, and the next job
 * runs completely. */
struct stop_case {
    atomic_int stopped;
    atomic_uint after;
    uint32_t at;
};

static void stop_item(void *arg, uint32_t stage, uint32_t i, uint32_t thread)
{
    struct stop_case *s = arg;
    (void)i;
    (void)thread;
    if (atomic_load(&s->stopped)) atomic_fetch_add(&s->after, 1u);
    if (stage == s->at) atomic_store(&s->stopped, 1);
}

static void stopped_jobs_return(void **state)
{
    enum { MANY = 500, THREADS = 4 };
    static uint32_t items[MANY];
    struct sg_pool *pool;
    (void)state;
    for (int i = 0; i < MANY; i++) items[i] = ITEMS_MAX;
    assert_int_equal(sg_pool_open(&pool, THREADS, NULL), SEGUE_OK);
    for (uint32_t at = 0; at < MANY; at += 7) {
        static struct pool_work w;
        struct stop_case s = {.at = at};
        struct sg_job job = {.items = items, .stages = MANY, .work = stop_item, .arg = &s, .stopped = &s.stopped};
        sg_pool_run(pool, &job);
        assert_true(atomic_load(&s.after) < THREADS); /* those threads had checked the flag but not started their item */
        w = (struct pool_work){.items = {1, 7, 0, ITEMS_MAX, 3}};
        job = (struct sg_job){.items = w.items, .stages = STAGES, .work = item, .arg = &w};
        sg_pool_run(pool, &job);
        assert_int_equal(atomic_load(&w.too_early), 0);
        for (uint32_t i = 0; i < STAGES; i++) assert_int_equal(atomic_load(&w.stage_done[i]), w.items[i]);
    }
    sg_pool_close(pool);
}

static void one_thread(void **state) { (void)state; run_many(1, 20); }
static void two_threads(void **state) { (void)state; run_many(2, 200); }
static void many_threads(void **state) { (void)state; run_many(9, 60); }

static void close_unused(void **state)
{
    struct sg_pool *pool;
    (void)state;
    assert_int_equal(sg_pool_open(&pool, 3, NULL), SEGUE_OK);
    sg_pool_close(pool);
    sg_pool_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_thread), cmocka_unit_test(two_threads),
                                       cmocka_unit_test(many_threads), cmocka_unit_test(stopped_jobs_return),
                                       cmocka_unit_test(close_unused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
