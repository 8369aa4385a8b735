/* shared_queue.c: see shared_queue.h. SPDX-License-Identifier: MIT */
#include "engine/queue/shared_queue.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/queue/compose.h"
#include "engine/queue/deadline.h"

enum { CHOSEN_FIRST = 16, CANCEL_POLL_NS = 10000000, RETURN_NS_MAX = 2000000 };

segue_status sg_shared_queue_new(struct sg_shared_queue **out, uint32_t rows_max, segue_error *err)
{
    struct sg_shared_queue *q = sg_alloc(sizeof *q);
    if (!q || !(q->chosen = sg_alloc(CHOSEN_FIRST * sizeof(struct sg_share *)))) {
        sg_free(q);
        return sg_no_memory("queue of runs", sizeof *q, err);
    }
    q->chosen_cap = CHOSEN_FIRST;
    q->rows_max = rows_max ? rows_max : UINT32_MAX;
    pthread_mutex_init(&q->lock, NULL);
    sg_cond_init(&q->changed);
    sg_cond_init(&q->arrived);
    *out = q;
    return SEGUE_OK;
}

void sg_shared_queue_free(struct sg_shared_queue *q)
{
    if (!q) return;
    sg_step_free(q->step);
    pthread_cond_destroy(&q->arrived);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    sg_free(q->chosen);
    sg_free(q);
}

void sg_shared_queue_forget(struct sg_shared_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->pace = (struct sg_pace){0};
    pthread_mutex_unlock(&q->lock);
}

/* --- sessions that are away --- */

/* The lock is held. */
static void unlist(struct sg_shared_queue *q, struct sg_away *a)
{
    if (!a->listed) return;
    *(a->before ? &a->before->next : &q->away) = a->next;
    if (a->next) a->next->before = a->before;
    a->next = a->before = NULL;
    a->listed = 0;
}

static void list(struct sg_shared_queue *q, struct sg_away *a)
{
    a->before = NULL;
    a->next = q->away;
    if (q->away) q->away->before = a;
    q->away = a;
    a->listed = 1;
}

void sg_away_forget(struct sg_away *a)
{
    struct sg_shared_queue *q = a->queue;
    if (!q) return;
    pthread_mutex_lock(&q->lock);
    unlist(q, a);
    pthread_cond_broadcast(&q->arrived);
    pthread_mutex_unlock(&q->lock);
    *a = (struct sg_away){0};
}

/* How long the next run waits for a session of the last one. */
static uint64_t return_ns(const struct sg_shared_queue *q)
{
    double quarter = q->pace.answers_ns / 4;
    return quarter < RETURN_NS_MAX ? (uint64_t)quarter : RETURN_NS_MAX;
}

/* Those that were in no run since the last one are not running any more. */
static void drop_old(struct sg_shared_queue *q)
{
    for (struct sg_away *a = q->away, *next; a; a = next) {
        next = a->next;
        if (a->run < q->runs) unlist(q, a);
    }
}

/* 1: a session of another thread is to be waited for. */
static int awaits(const struct sg_shared_queue *q)
{
    const struct sg_away *a = q->away;
    while (a && (a->slow || pthread_equal(a->thread, pthread_self()))) a = a->next;
    return a != NULL;
}

/* The lock is held, and released meanwhile. */
static void wait_for_away(struct sg_shared_queue *q)
{
    struct timespec until;
    if (!awaits(q)) return;
    uint64_t now = sg_now_ns(), end = q->ended_ns + return_ns(q);
    if (now >= end) return;
    sg_deadline(&until, end - now);
    while (awaits(q) && !sg_cond_wait(&q->arrived, &q->lock, &until)) {}
}

/* --- waiting --- */

/* The lock is held. */
static void add_group(struct sg_shared_queue *q, struct sg_run_group *g)
{
    struct sg_run_group **last = &q->first;
    uint64_t now = sg_now_ns(), limit = return_ns(q);
    while (*last) last = &(*last)->next;
    *last = g;
    g->next = NULL;
    g->waits = 1;
    g->taken = g->served = 0;
    for (uint32_t i = 0; i < g->shares_n; i++) {
        struct sg_share *p = &g->shares[i];
        struct sg_away *a = p->away;
        p->group = g;
        p->tokens_n = 0;
        unlist(q, a);
        if (a->end_ns) a->slow = now - a->end_ns > limit;
        if (!a->turn) a->turn = ++q->turns;
        a->target_ns = g->target_ns;
        a->thread = pthread_self();
    }
    pthread_cond_signal(&q->arrived);
}

static void remove_group(struct sg_shared_queue *q, struct sg_run_group *g)
{
    struct sg_run_group **at = &q->first;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    g->waits = 0;
}

/* Before the first offer to this queue, without a lock: a session is in one queue at a time. */
static void take_entries(struct sg_shared_queue *q, struct sg_run_group *g)
{
    for (uint32_t i = 0; i < g->shares_n; i++) {
        struct sg_away *a = g->shares[i].away;
        if (a->queue != q) sg_away_forget(a);
        a->queue = q;
    }
}

/* A cancel may come from a signal handler, which cannot signal a condition variable. The lock is held. */
static void wait_for_end(struct sg_shared_queue *q, const atomic_int *cancel)
{
    struct timespec until;
    if (!cancel) {
        pthread_cond_wait(&q->changed, &q->lock);
        return;
    }
    sg_deadline(&until, CANCEL_POLL_NS);
    sg_cond_wait(&q->changed, &q->lock, &until);
}

/* Only the thread of the group resets *cancel. The lock is held. */
static int is_canceled(const struct sg_run_group *g, const atomic_int *cancel)
{
    return cancel && !g->taken && atomic_load(cancel);
}

enum sg_turn sg_shared_queue_wait(struct sg_shared_queue *q, struct sg_run_group *g, const atomic_int *cancel)
{
    enum sg_turn turn = SG_TURN_LEAD;
    if (!g->waits && !g->served) take_entries(q, g);
    pthread_mutex_lock(&q->lock);
    if (!g->waits && !g->served) add_group(q, g);
    while (q->busy && !g->served && !is_canceled(g, cancel)) wait_for_end(q, cancel);
    if (g->served) {
        turn = SG_TURN_SERVED;
    } else if (is_canceled(g, cancel)) { /* also before it leads a run, which may be one of others */
        turn = SG_TURN_CANCELED;
        remove_group(q, g);
    } else {
        q->busy = 1;
        drop_old(q);
        wait_for_away(q);
        sg_run_compose(q);
    }
    pthread_mutex_unlock(&q->lock);
    return turn;
}

/* --- the end of a run --- */

/* A prompt keeps its place until its last token. Who continues is away until it returns. */
static void end_share(struct sg_shared_queue *q, const struct sg_share *p)
{
    struct sg_away *a = p->away;
    int goes_on = p->error.status == SEGUE_OK && p->does != SG_THEN_LOGITS;
    if (p->again) return;
    if (p->does != SG_THEN_NOTHING || p->error.status != SEGUE_OK) a->turn = 0;
    a->run = q->runs;
    a->end_ns = goes_on ? q->ended_ns : 0;
    a->is_prompt = p->does == SG_THEN_NOTHING;
    if (goes_on) list(q, a);
}

static void end_groups(struct sg_shared_queue *q)
{
    for (struct sg_run_group *g = q->first, *next; g; g = next) {
        next = g->next;
        if (!g->taken) continue;
        g->taken = 0;
        if (g->stays && g->shares[0].again) continue;
        remove_group(q, g);
        g->served = 1;
        g->spans = (uint32_t)q->chosen_n;
        g->run = q->run;
        g->pace = q->pace;
    }
}

void sg_shared_queue_leave(struct sg_shared_queue *q, uint64_t ns)
{
    pthread_mutex_lock(&q->lock);
    q->runs++;
    q->ended_ns = sg_now_ns();
    q->run.ns = ns;
    sg_pace_learn(&q->pace, &q->run);
    for (size_t i = 0; i < q->chosen_n; i++) end_share(q, q->chosen[i]);
    end_groups(q);
    q->busy = 0;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}
