/* read_ahead.c: read-ahead, see read_ahead.h. One thread, woken by tokens; it owns the session `next` while
 * `running`. When an answer is complete it also forks `next` into `spare`, so that the next turn starts without a
 * copy. `spare` stays before the typed words, and replaces `next` if these were changed: to rewind recurrent slots may mean
 * to compute them again.
 * SPDX-License-Identifier: MIT */
#include "run/read_ahead.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "run/sessions.h"

/* MIN_BATCH: tokens collected before a prefill during an answer; smaller batches would read all weights for few tokens.
 * QUEUE: capacity in tokens; if it overflows, read-ahead is given up for this turn. */
enum { MIN_BATCH = 32, QUEUE = 1 << 16 };

struct read_ahead {
    pthread_t thread;
    pthread_mutex_t lock;        /* protects everything below, except for `batch` and `next` while running */
    pthread_cond_t changed;      /* signalled when the thread has work, and when it finished some */
    segue_session *next, *spare; /* session that reads ahead; its fork for the following turn */
    int32_t *queue;              /* [QUEUE] tokens to append to `next` */
    int32_t *batch;              /* [QUEUE] tokens of the running prefill; used by the thread only */
    size_t queue_n;
    bool one_unit;    /* see read_ahead_open */
    bool answer_done; /* the answer is complete: prefill the rest of the queue, however short */
    bool running;     /* the thread computes, the lock is released */
    bool stop;        /* the thread must end */
    bool failed;      /* an error occurred: the read-ahead of this turn is not used */
    size_t tokens_read; /* tokens prefilled since the turn began, in `ns` nanoseconds */
    uint64_t ns;
    size_t last_read; /* figures of the last completed read-ahead, for read_ahead_stats */
    uint64_t last_ns;
};

/* Lock held. True if a batch is large enough, or if the answer is complete and something remains to do. */
static bool work_pending(const struct read_ahead *a)
{
    if (!a->next || a->failed) return false;
    return a->queue_n >= MIN_BATCH || (a->answer_done && (a->queue_n || !a->spare));
}

/* Lock held; released during the prefill. Takes the whole queue. */
static void read_batch(struct read_ahead *a)
{
    segue_error ignored;
    size_t n = a->queue_n, done = 0;
    bool fork = a->answer_done && !a->spare;
    memcpy(a->batch, a->queue, n * sizeof *a->batch);
    a->queue_n = 0;
    a->running = true;
    pthread_mutex_unlock(&a->lock);
    uint64_t start_ns = out_now_ns();
    segue_session *spare = NULL;
    segue_status st = segue_session_append(a->next, a->batch, n, &ignored);
    if (!st) st = segue_session_prefill(a->next, 0, &done, &ignored);
    uint64_t ns = out_now_ns() - start_ns;
    if (!st && fork && segue_session_fork(&spare, a->next, &ignored)) spare = NULL;
    pthread_mutex_lock(&a->lock);
    a->running = false;
    a->failed = st != SEGUE_OK || (fork && !spare);
    a->tokens_read += done;
    a->ns += ns;
    if (fork) a->spare = spare;
    pthread_cond_broadcast(&a->changed);
}

/* Prefill until read_ahead_close. */
static void *thread_main(void *arg)
{
    struct read_ahead *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        if (work_pending(a))
            read_batch(a);
        else
            pthread_cond_wait(&a->changed, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Queue and batch are allocated once, so that read_ahead_push does not allocate. */
struct read_ahead *read_ahead_open(bool one_unit)
{
    struct read_ahead *a = out_alloc(sizeof *a);
    a->one_unit = one_unit;
    a->queue = out_alloc(2 * QUEUE * sizeof *a->queue);
    a->batch = a->queue + QUEUE;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (pthread_create(&a->thread, NULL, thread_main, a) == 0) return a;
    free(a->queue);
    free(a);
    return NULL;
}

/* Lock held. Wait for the thread; cancel: interrupt its prefill instead of finishing the queue. */
static void wait_idle(struct read_ahead *a, bool cancel)
{
    if (cancel && a->running) segue_session_cancel(a->next);
    while (a->running || (!cancel && work_pending(a))) pthread_cond_wait(&a->changed, &a->lock);
}

/* Lock held, or the thread has ended. Close both sessions and forget all tokens. */
static void discard(struct read_ahead *a)
{
    segue_session_close(a->next);
    segue_session_close(a->spare);
    a->next = a->spare = NULL;
    a->queue_n = 0;
    a->answer_done = a->failed = false;
}

/* The thread may be waiting or computing: a running prefill is cancelled first. */
void read_ahead_close(struct read_ahead *a)
{
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    wait_idle(a, true);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    discard(a);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a->queue);
    free(a);
}

/* Number of leading tokens of ids[n] that the session holds; 0 if s is NULL. */
static size_t common_prefix(const segue_session *s, const int32_t *ids, size_t n)
{
    const int32_t *held;
    size_t held_n = s ? segue_session_tokens(s, &held) : 0, same = 0;
    while (same < held_n && same < n && held[same] == ids[same]) same++;
    return same;
}

/* Lock held, thread idle. Give up what `next` read of the typed words, if ids[n] does not begin with all of it. */
static void drop_changed_words(struct read_ahead *a, const int32_t *ids, size_t n)
{
    if (!a->spare || common_prefix(a->next, ids, n) == segue_session_tokens(a->next, NULL)) return;
    segue_session_close(a->next);
    a->next = a->spare;
    a->spare = NULL;
}

/* If the user edited the conversation, the old session may match more of the prompt; then the read-ahead is discarded. */
void read_ahead_begin_turn(struct read_ahead *a, segue_session **session, const int32_t *ids, size_t n, uint64_t *waited_ns)
{
    *waited_ns = 0;
    if (!a) return;
    uint64_t start_ns = out_now_ns();
    pthread_mutex_lock(&a->lock);
    wait_idle(a, false);
    *waited_ns = out_now_ns() - start_ns;
    a->last_read = a->last_ns = 0;
    if (a->next && !a->failed) drop_changed_words(a, ids, n);
    if (a->next && !a->failed && a->answer_done && common_prefix(a->next, ids, n) >= common_prefix(*session, ids, n)) {
        *session = a->next;
        a->next = a->spare; /* holds the same tokens; it prefills the new user message again during the answer */
        a->spare = NULL;
        a->last_read = a->tokens_read;
        a->last_ns = a->ns;
    } else {
        discard(a);
    }
    if (a->one_unit) discard(a); /* it is forked again after the answer */
    a->queue_n = 0;
    a->answer_done = false;
    a->tokens_read = a->ns = 0;
    pthread_mutex_unlock(&a->lock);
}

/* Lock held. Queue the tokens that `session` has and `next` lacks. The thread is not woken before the first answer
 * token. */
static void queue_missing(struct read_ahead *a, const segue_session *session)
{
    segue_error ignored;
    const int32_t *held;
    size_t n = segue_session_tokens(session, &held), same = common_prefix(a->next, held, n);
    int stale = same < segue_session_tokens(a->next, NULL);
    if (n - same > QUEUE || (stale && segue_session_rewind(a->next, same, &ignored))) {
        discard(a);
        return;
    }
    if (n > same) memcpy(a->queue, held + same, (n - same) * sizeof *held);
    a->queue_n = n - same;
}

/* In the first turn the prompt is prefilled once, and the session is forked before the hand-off. */
segue_status read_ahead_attach(struct read_ahead *a, segue_session *session, segue_error *err)
{
    segue_error ignored;
    if (!a || a->one_unit) return SEGUE_OK;
    segue_status st = SEGUE_OK;
    pthread_mutex_lock(&a->lock);
    if (!a->next) {
        st = segue_session_prefill(session, 0, NULL, err);
        if (st || segue_session_fork(&a->next, session, &ignored)) a->next = NULL;
    }
    if (a->next) queue_missing(a, session);
    pthread_mutex_unlock(&a->lock);
    return st;
}

/* The thread is woken only for a full batch, because waking it costs time of the answer. */
void read_ahead_push(struct read_ahead *a, int32_t token)
{
    if (!a || a->one_unit) return;
    pthread_mutex_lock(&a->lock);
    if (a->queue_n == QUEUE)
        a->failed = true;
    else
        a->queue[a->queue_n++] = token;
    if (a->queue_n >= MIN_BATCH) pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* Lock held, thread idle. Queue ids[n] without the tokens that `next` holds; false if it holds others or too many are missing. */
static bool queue_rest(struct read_ahead *a, const int32_t *ids, size_t n)
{
    size_t have = segue_session_tokens(a->next, NULL);
    if (common_prefix(a->next, ids, n) < have || n - have > QUEUE) return false;
    if (n > have) memcpy(a->queue, ids + have, (n - have) * sizeof *ids);
    a->queue_n = n - have;
    return true;
}

/* A template may render an answer differently from its tokens; from the first difference it is prefilled again. */
void read_ahead_finish(struct read_ahead *a, segue_session *session, const int32_t *ids, size_t n)
{
    segue_error ignored;
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    while (a->running) pthread_cond_wait(&a->changed, &a->lock);
    if (a->one_unit || !a->next) {
        discard(a);
        if (segue_session_fork(&a->next, session, &ignored)) a->next = NULL;
    }
    if (a->next && !a->failed) {
        size_t same = common_prefix(a->next, ids, n);
        bool kept = same == segue_session_tokens(a->next, NULL) || !segue_session_rewind(a->next, same, &ignored);
        a->failed = !kept || !queue_rest(a, ids, n);
        a->answer_done = !a->failed;
    }
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* Only after the known beginning was read, and `spare` holds it. */
void read_ahead_typed(struct read_ahead *a, const int32_t *ids, size_t n)
{
    segue_error ignored;
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    if (a->spare && !a->running && !a->failed && !a->queue_n) {
        drop_changed_words(a, ids, n);
        if (!a->spare && segue_session_fork(&a->spare, a->next, &ignored)) a->spare = NULL;
        if (a->spare) (void)queue_rest(a, ids, n);
        pthread_cond_broadcast(&a->changed); /* also without a fork: the thread tries it again, else the next turn waits for it */
    }
    pthread_mutex_unlock(&a->lock);
}

void read_ahead_reset(struct read_ahead *a)
{
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    wait_idle(a, true);
    discard(a);
    pthread_mutex_unlock(&a->lock);
}

size_t read_ahead_stats(const struct read_ahead *a, uint64_t *ns)
{
    *ns = a ? a->last_ns : 0;
    return a ? a->last_read : 0;
}
