/* pool.c: see pool.h. Each thread owns an equal range of a stage's items and takes them in order; a thread
 * that runs out takes from the others' ranges. A stage is over when the count of finished items says so:
 * nobody waits for a thread that came late and took nothing, so a stolen or oversubscribed processor costs
 * its share and no more.
 *
 * The door: odd = a job is open. A thread declares itself inside before it looks at the door again; whoever
 * closes the door waits until nobody is inside. That is the only moment at which the job may change.
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

enum { LINE = 64, SPINS = 2000, SPINS_CROWDED = 20, THREADS_MAX = 256 };

/* How long a thread waits for the next job before it sleeps: longer than what lies between two tokens (a choice among
 * 250,000 logits, text, a template), for a thread that has to be woken costs a token some 50 us. */
enum { AWAKE_NS = 2000000 };

/* One thread's place, on lines of its own. */
struct seat {
    _Alignas(LINE) atomic_ullong cursor;     /* stage number << 32 | items taken from this seat's range */
    char apart[LINE];                        /* neighbours are fetched in pairs of lines */
    _Alignas(LINE) atomic_uint inside;
    struct sg_pool *pool;
    uint32_t index;
    pthread_t thread;
};

struct sg_pool {
    _Alignas(LINE) atomic_uint door;
    char apart[LINE];
    _Alignas(LINE) atomic_ullong done;       /* items finished since the pool was opened */
    char apart_too[LINE];
    _Alignas(LINE) atomic_uint sleepers;
    atomic_uint stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    const struct sg_job *job;
    uint32_t stage_base;                     /* number of the job's first stage; wraps */
    unsigned long long done_base;
    uint32_t threads, started;
    uint32_t spins;                          /* turns that a thread waits without giving its processor away */
    struct seat *seats;                      /* [threads] */
};

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

/* Take one item of seat j's range [from, to) in the stage `number`; -1 when it is empty. A cursor left at an
 * older stage counts as untouched, so nobody has to reset it. */
static int64_t take(struct seat *seat, uint32_t number, uint32_t from, uint32_t to)
{
    unsigned long long seen = atomic_load_explicit(&seat->cursor, memory_order_relaxed);
    for (;;) {
        int32_t age = (int32_t)((uint32_t)(seen >> 32) - number);
        uint32_t taken = age < 0 ? 0 : (uint32_t)seen;
        if (age > 0 || taken >= to - from) return -1;
        unsigned long long next = (unsigned long long)number << 32 | (taken + 1);
        if (atomic_compare_exchange_weak_explicit(&seat->cursor, &seen, next, memory_order_relaxed,
                                                  memory_order_relaxed))
            return from + taken;
    }
}

/* Stages that are left undone are not waited for either: a thread that has lost its processor would be, once a stage. */
static int stopped(const struct sg_job *job)
{
    return job->stopped && atomic_load_explicit(job->stopped, memory_order_relaxed);
}

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
            uint32_t seat = (self + j) % n;
            uint32_t from = (uint32_t)((uint64_t)items * seat / n),
                     to = (uint32_t)((uint64_t)items * (seat + 1) / n);
            for (int64_t i; !stopped(job) && (i = take(&pool->seats[seat], number, from, to)) >= 0; mine++)
                job->work(job->arg, s, (uint32_t)i, self);
        }
        if (mine) atomic_fetch_add_explicit(&pool->done, mine, memory_order_acq_rel);
        for (uint32_t turn = 0;
             (long long)(atomic_load_explicit(&pool->done, memory_order_acquire) - target) < 0 && !stopped(job);
             turn++)
            relax(pool, turn);
    }
}

/* Until the door is open for a job that this thread has not seen. */
static unsigned door_wait(struct sg_pool *pool, unsigned seen)
{
    uint64_t until = 0;
    for (uint32_t turn = 0;; turn++) {
        unsigned door = atomic_load(&pool->door);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed) || ((door & 1u) && door != seen))
            return door;
        if (turn == pool->spins) until = sg_now_ns() + AWAKE_NS;
        if (turn > pool->spins && sg_now_ns() >= until) break;
        relax(pool, turn);
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    unsigned door;
    for (;;) {
        door = atomic_load(&pool->door);
        if (atomic_load(&pool->stop) || ((door & 1u) && door != seen)) break;
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return door;
}

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
    struct seat *seat = arg;
    struct sg_pool *pool = seat->pool;
    pin(seat->index);
    for (unsigned seen = 0;;) {
        (void)door_wait(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        atomic_store(&seat->inside, 1u);
        unsigned door = atomic_load(&pool->door);
        if ((door & 1u) && door != seen) {
            job_run(pool, seat->index);
            seen = door;
        }
        atomic_store(&seat->inside, 0u);
    }
}

static void wake_all(struct sg_pool *pool)
{
    if (!atomic_load(&pool->sleepers)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

void sg_pool_run(struct sg_pool *pool, const struct sg_job *job)
{
    pool->job = job;
    pool->done_base = atomic_load_explicit(&pool->done, memory_order_relaxed);
    atomic_fetch_add(&pool->door, 1u);
    wake_all(pool);
    job_run(pool, 0);
    atomic_fetch_add(&pool->door, 1u);
    for (uint32_t j = 1; j < pool->threads; j++)
        for (uint32_t turn = 0; atomic_load(&pool->seats[j].inside); turn++) relax(pool, turn);
    pool->stage_base += job->stages;
}

uint32_t sg_pool_threads(const struct sg_pool *pool) { return pool->threads; }

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
    struct seat *seats = sg_alloc_aligned(threads * sizeof *seats);
    if (!pool || !seats) {
        sg_free_aligned(pool);
        sg_free_aligned(seats);
        return sg_no_memory("threads of the cpu unit", threads * sizeof *seats, err);
    }
    pool->seats = seats;
    pool->threads = threads;
    pool->spins = threads > processors() ? SPINS_CROWDED : SPINS;
    pool->stage_base = 1;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (uint32_t j = 0; j < threads; j++) {
        seats[j].pool = pool;
        seats[j].index = j;
    }
    for (uint32_t j = 1; j < threads; j++, pool->started++)
        if (pthread_create(&seats[j].thread, NULL, thread_main, &seats[j])) {
            sg_pool_close(pool);
            return sg_fail(err, SEGUE_EUNIT,
                           "cpu unit: thread %u of %u: cannot be started; use fewer threads", j + 1, threads);
        }
    *out = pool;
    return SEGUE_OK;
}

void sg_pool_close(struct sg_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, 1u);
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t j = 1; j <= pool->started; j++) pthread_join(pool->seats[j].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    sg_free_aligned(pool->seats);
    sg_free_aligned(pool);
}
