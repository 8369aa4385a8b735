/* read_ahead.c: see read_ahead.h. One thread, woken by tokens; it owns the session `next` while it is at work. A second
 * fork, `spare`, is made when all is read and nobody waits, so that a turn begins without a copy.
 * SPDX-License-Identifier: MIT */
#include "task/read_ahead.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "task/sessions.h"

enum { TOKENS_AT_ONCE = 32, QUEUE = 1 << 16 };

struct ahead {
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    segue_session *next, *spare; /* the thread's while busy */
    int32_t *queue, *taken; /* [QUEUE] tokens that follow what `next` has; those being read, the thread's */
    size_t queue_n;
    bool over; /* no more tokens of this answer come: read what there is */
    bool busy, stop, failed;
    size_t read; /* tokens read ahead since the turn began */
    uint64_t ns;
    size_t last_read;
    uint64_t last_ns;
};

/* Under the lock. What is read is worth a run of its own, or nothing more comes. */
static bool has_work(const struct ahead *a)
{
    if (!a->next || a->failed) return false;
    return a->queue_n >= TOKENS_AT_ONCE || (a->over && (a->queue_n || !a->spare));
}

/* Under the lock, which is left while reading. */
static void work(struct ahead *a)
{
    segue_error ignored;
    size_t n = a->queue_n, done = 0;
    bool over = a->over;
    memcpy(a->taken, a->queue, n * sizeof *a->taken);
    a->queue_n = 0;
    a->busy = true;
    pthread_mutex_unlock(&a->lock);
    uint64_t begun = out_now_ns();
    segue_session *spare = NULL;
    segue_status st = segue_session_append(a->next, a->taken, n, &ignored);
    if (!st) st = segue_session_prefill(a->next, 0, &done, &ignored);
    uint64_t ns = out_now_ns() - begun;
    if (!st && over && segue_session_fork(&spare, a->next, &ignored)) spare = NULL;
    pthread_mutex_lock(&a->lock);
    a->busy = false;
    a->failed = st != SEGUE_OK || (over && !spare);
    a->read += done;
    a->ns += ns;
    segue_session_close(a->spare);
    a->spare = spare;
    pthread_cond_broadcast(&a->changed);
}

static void *thread_main(void *arg)
{
    struct ahead *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        if (has_work(a))
            work(a);
        else
            pthread_cond_wait(&a->changed, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

struct ahead *ahead_open(void)
{
    struct ahead *a = out_alloc(sizeof *a);
    a->queue = out_alloc(2 * QUEUE * sizeof *a->queue);
    a->taken = a->queue + QUEUE;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (pthread_create(&a->thread, NULL, thread_main, a) == 0) return a;
    free(a->queue);
    free(a);
    return NULL;
}

/* Under the lock; with stopping the run under way is cut short. */
static void wait_idle(struct ahead *a, bool cut)
{
    if (cut && a->busy) segue_session_cancel(a->next);
    while (a->busy || (!cut && has_work(a))) pthread_cond_wait(&a->changed, &a->lock);
}

static void drop(struct ahead *a)
{
    segue_session_close(a->next);
    segue_session_close(a->spare);
    a->next = a->spare = NULL;
    a->queue_n = 0;
    a->over = a->failed = false;
}

void ahead_close(struct ahead *a)
{
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    wait_idle(a, true);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    drop(a);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a->queue);
    free(a);
}

static size_t common(const segue_session *s, const int32_t *ids, size_t n)
{
    const int32_t *held;
    size_t held_n = s ? segue_session_tokens(s, &held) : 0, same = 0;
    while (same < held_n && same < n && held[same] == ids[same]) same++;
    return same;
}

void ahead_turn(struct ahead *a, segue_session **session, const int32_t *ids, size_t n, uint64_t *waited_ns)
{
    *waited_ns = 0;
    if (!a) return;
    uint64_t begun = out_now_ns();
    pthread_mutex_lock(&a->lock);
    wait_idle(a, false);
    *waited_ns = out_now_ns() - begun;
    a->last_read = a->last_ns = 0;
    if (a->next && !a->failed && a->over && common(a->next, ids, n) >= common(*session, ids, n)) {
        *session = a->next;
        a->next =
            a->spare; /* it has the same tokens, and will read the new words once more, beside the answer */
        a->spare = NULL;
        a->last_read = a->read;
        a->last_ns = a->ns;
    } else {
        drop(a);
    }
    a->queue_n = 0;
    a->over = false;
    a->read = a->ns = 0;
    pthread_mutex_unlock(&a->lock);
}

/* Under the lock: what the answering session has and the following one lacks is queued; nothing wakes the
 * thread before the first token is out. */
static void queue_rest(struct ahead *a, const segue_session *session)
{
    segue_error ignored;
    const int32_t *held;
    size_t n = segue_session_tokens(session, &held), same = common(a->next, held, n);
    int stale = same < segue_session_tokens(a->next, NULL);
    if (n - same > QUEUE || (stale && segue_session_rewind(a->next, same, &ignored))) {
        drop(a);
        return;
    }
    if (n > same) memcpy(a->queue, held + same, (n - same) * sizeof *held);
    a->queue_n = n - same;
}

/* The first turn has nothing to go on from: its prompt is read once, and forked before it leaves. */
segue_status ahead_follow(struct ahead *a, segue_session *session, segue_error *err)
{
    segue_error ignored;
    if (!a) return SEGUE_OK;
    segue_status st = SEGUE_OK;
    pthread_mutex_lock(&a->lock);
    if (!a->next) {
        st = segue_session_prefill(session, 0, NULL, err);
        if (st || segue_session_fork(&a->next, session, &ignored)) a->next = NULL;
    }
    if (a->next) queue_rest(a, session);
    pthread_mutex_unlock(&a->lock);
    return st;
}

void ahead_token(struct ahead *a, int32_t token)
{
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    if (a->queue_n == QUEUE)
        a->failed = true;
    else
        a->queue[a->queue_n++] = token;
    if (a->queue_n >= TOKENS_AT_ONCE) pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* Templates may write an answer otherwise than it came: what differs is read again. */
void ahead_known(struct ahead *a, const int32_t *ids, size_t n)
{
    segue_error ignored;
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    while (a->busy) pthread_cond_wait(&a->changed, &a->lock);
    if (a->next && !a->failed) {
        size_t same = common(a->next, ids, n), have = segue_session_tokens(a->next, NULL);
        if (same < have && segue_session_rewind(a->next, same, &ignored)) a->failed = true;
        a->queue_n = 0;
        if (n - same > QUEUE) a->failed = true;
        if (!a->failed) {
            memcpy(a->queue, ids + same, (n - same) * sizeof *ids);
            a->queue_n = n - same;
            a->over = true;
        }
    }
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void ahead_forget(struct ahead *a)
{
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    wait_idle(a, true);
    drop(a);
    pthread_mutex_unlock(&a->lock);
}

size_t ahead_tokens(const struct ahead *a, uint64_t *ns)
{
    *ns = a ? a->last_ns : 0;
    return a ? a->last_read : 0;
}
