/* pool.c: see pool.h. Each thread has an equal range of a stage's items and takes them in order; a thread without items takes
 * from the ranges of the others (work stealing). A stage ends when the number of finished items is reached, so a thread that
 * was preempted before it took an item delays nothing.
 *
 * Generation counter: odd = a job is open. A worker sets `inside` and then reads the generation again; sg_pool_run closes the
 * job and waits until no worker is inside. Only then may the job change. Both sides use sequentially consistent accesses.
 * SPDX-License-Identifier: MIT */
#ifdef __linux__
#define _GNU_SOURCE /* pinning */
#endif
#include "unit/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { LINE = 64, SPINS = 2000, SPINS_OVERSUBSCRIBED = 20, THREADS_MAX = 256 };

/* How long a worker waits for the next job before it sleeps: longer than the host work between two tokens (sampling from 250,000
 * logits, detokenizing), because waking a thread costs about 50 us per token. */
enum { AWAKE_NS = 2000000 };

/* One thread. cursor and inside are on separate cache lines. */
struct worker {
    _Alignas(LINE) atomic_ullong cursor;     /* stage number << 32 | items taken from this thread's range */
    char pad[LINE];                          /* CPUs prefetch cache lines in pairs */
    _Alignas(LINE) atomic_uint inside;       /* 1: may access pool->job */
    struct sg_pool *pool;
    uint32_t index;
    pthread_t thread;
};

struct sg_pool {
    _Alignas(LINE) atomic_uint generation;   /* odd: a job is open */
    char pad[LINE];
    _Alignas(LINE) atomic_ullong done;       /* items finished since the pool was opened */
    char pad_done[LINE];
    _Alignas(LINE) atomic_uint sleepers;
    atomic_uint stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    const struct sg_job *job;
    uint32_t stage_base;                     /* number of the job's first stage; wraps */
    unsigned long long done_base;
    uint32_t threads, started;               /* with the caller; without it */
    uint32_t spins;                          /* iterations of a wait before it yields the CPU */
    struct worker *workers;                      /* [threads] */
};

/* One iteration of a wait: a pause instruction, or a yield after pool->spins of them. */
static inline void relax(const struct sg_pool *pool, uint32_t turn)
{
    if (turn < pool->spins) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    } else {
        sched_yield();
    }
}

/* Takes one item of a thread's range [from, to) in stage `number`; -1 when none is left. A cursor of an older stage counts as
 * empty, so cursors need no reset. Stage numbers wrap; their difference is signed. */
static int64_t take_item(struct worker *w, uint32_t number, uint32_t from, uint32_t to)
{
    unsigned long long seen = atomic_load_explicit(&w->cursor, memory_order_relaxed);
    for (;;) {
        int32_t age = (int32_t)((uint32_t)(seen >> 32) - number);
        uint32_t taken = age < 0 ? 0 : (uint32_t)seen;
        if (age > 0 || taken >= to - from) return -1;
        unsigned long long next = (unsigned long long)number << 32 | (taken + 1);
        if (atomic_compare_exchange_weak_explicit(&w->cursor, &seen, next, memory_order_relaxed,
                                                  memory_order_relaxed))
            return from + taken;
    }
}

/* A stopped job also skips the barriers, each of which could wait for a preempted thread. */
static int stopped(const struct sg_job *job)
{
    return job->stopped && atomic_load_explicit(job->stopped, memory_order_relaxed);
}

/* All stages of the open job on thread `self`: its own range first, then those of the following threads. */
static void job_run(struct sg_pool *pool, uint32_t self)
{
    const struct sg_job *job = pool->job;
    unsigned long long target = pool->done_base;
    uint32_t n = pool->threads;
    for (uint32_t s = 0; s < job->stages && !stopped(job); s++) {
        uint32_t items = job->items[s], number = pool->stage_base + s, mine = 0;
        if (!items) continue;
        target += items;
        for (uint32_t j = 0; j < n; j++) {
            uint32_t owner = (self + j) % n;
            uint32_t from = (uint32_t)((uint64_t)items * owner / n),
                     to = (uint32_t)((uint64_t)items * (owner + 1) / n);
            for (int64_t i; !stopped(job) && (i = take_item(&pool->workers[owner], number, from, to)) >= 0; mine++)
                job->work(job->arg, s, (uint32_t)i, self);
        }
        if (mine) atomic_fetch_add_explicit(&pool->done, mine, memory_order_acq_rel);
        for (uint32_t turn = 0;
             (long long)(atomic_load_explicit(&pool->done, memory_order_acquire) - target) < 0 && !stopped(job);
             turn++)
            relax(pool, turn);
    }
}

/* Returns when a job is open that is not generation `seen`, or the pool stops: spins, yields for AWAKE_NS, then sleeps. */
static unsigned job_wait(struct sg_pool *pool, unsigned seen)
{
    uint64_t until = 0;
    for (uint32_t turn = 0;; turn++) {
        unsigned now = atomic_load(&pool->generation);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed) || ((now & 1u) && now != seen))
            return now;
        if (turn == pool->spins) until = sg_now_ns() + AWAKE_NS;
        if (turn > pool->spins && sg_now_ns() >= until) break;
        relax(pool, turn);
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    unsigned now;
    for (;;) {
        now = atomic_load(&pool->generation);
        if (atomic_load(&pool->stop) || ((now & 1u) && now != seen)) break;
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return now;
}

/* Binds the calling thread to the index-th CPU of its affinity mask. */
static void pin(uint32_t index)
{
#ifdef __linux__
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all)) return;
    int n = CPU_COUNT(&all), want = n ? (int)(index % (uint32_t)n) : 0;
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all) && want-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(c, &one);
            (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
#else
    (void)index;
#endif
}

static void *thread_main(void *arg)
{
    struct worker *self = arg;
    struct sg_pool *pool = self->pool;
    pin(self->index);
    for (unsigned seen = 0;;) {
        (void)job_wait(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        atomic_store(&self->inside, 1u);
        unsigned now = atomic_load(&pool->generation);
        if ((now & 1u) && now != seen) {
            job_run(pool, self->index);
            seen = now;
        }
        atomic_store(&self->inside, 0u);
    }
}

/* The sleepers count is raised under the lock before the last look at `generation`, so no wakeup is lost. */
static void wake_all(struct sg_pool *pool)
{
    if (!atomic_load(&pool->sleepers)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

/* The two increments of `generation` open and close the job; see the head of this file. */
void sg_pool_run(struct sg_pool *pool, const struct sg_job *job)
{
    pool->job = job;
    pool->done_base = atomic_load_explicit(&pool->done, memory_order_relaxed);
    atomic_fetch_add(&pool->generation, 1u);
    wake_all(pool);
    job_run(pool, 0);
    atomic_fetch_add(&pool->generation, 1u);
    for (uint32_t j = 1; j < pool->threads; j++)
        for (uint32_t turn = 0; atomic_load(&pool->workers[j].inside); turn++) relax(pool, turn);
    pool->stage_base += job->stages;
}

/* With the calling thread. */
uint32_t sg_pool_threads(const struct sg_pool *pool) { return pool->threads; }

/* CPUs in the affinity mask of the process, or online. */
static uint32_t processors(void)
{
#ifdef __linux__
    cpu_set_t all;
    if (!sched_getaffinity(0, sizeof all, &all) && CPU_COUNT(&all) > 0) return (uint32_t)CPU_COUNT(&all);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1u;
}

segue_status sg_pool_open(struct sg_pool **out, uint32_t threads, segue_error *err)
{
    if (!threads) threads = processors();
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    struct sg_pool *pool = sg_alloc_aligned(sizeof *pool);
    struct worker *workers = sg_alloc_aligned(threads * sizeof *workers);
    if (!pool || !workers) {
        sg_free_aligned(pool);
        sg_free_aligned(workers);
        return sg_no_memory("threads of the cpu unit", threads * sizeof *workers, err);
    }
    pool->workers = workers;
    pool->threads = threads;
    pool->spins = threads > processors() ? SPINS_OVERSUBSCRIBED : SPINS;
    pool->stage_base = 1; /* cursors start at stage 0 */
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (uint32_t j = 0; j < threads; j++) {
        workers[j].pool = pool;
        workers[j].index = j;
    }
    for (uint32_t j = 1; j < threads; j++, pool->started++)
        if (pthread_create(&workers[j].thread, NULL, thread_main, &workers[j])) {
            sg_pool_close(pool);
            return sg_fail(err, SEGUE_EUNIT,
                           "cpu unit: thread %u of %u: cannot be started; use fewer threads", j + 1, threads);
        }
    *out = pool;
    return SEGUE_OK;
}

/* Also after a failed open, with the threads started so far. */
void sg_pool_close(struct sg_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, 1u);
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t j = 1; j <= pool->started; j++) pthread_join(pool->workers[j].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    sg_free_aligned(pool->workers);
    sg_free_aligned(pool);
}
