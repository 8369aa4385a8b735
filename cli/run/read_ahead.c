/* read_ahead.c: read-ahead, see read_ahead.h. One thread, woken by tokens; it owns the session `next` while
 * `running`. When an answer is complete it also forks `next` into `spare`, so that the next turn starts without a
 * copy. `spare` stays before the typed words, and replaces `next` if these were changed: to rewind recurrent slots may mean
 * to compute them again. `whole` is a fork of `next` with the rest of the prompt, as if the message ended where it is typed now:
 * if it does, its logits are known already. All are forks of a session that was opened with `drafts`: no text that was not sent
 * gets into the prefix store, and a cancel that arrives just before a call stops it.
 * SPDX-License-Identifier: MIT */
#include "run/read_ahead.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "run/sessions.h"

/* MIN_BATCH: tokens collected before a prefill during an answer; smaller batches would read all weights for few tokens.
 * QUEUE: capacity in tokens; if it overflows, read-ahead is given up for this turn.
 * SLOW_NS: a whole prompt that takes longer is seldom complete before Enter, so the others of that turn are not computed. */
enum { MIN_BATCH = 32, QUEUE = 1 << 16, SLOW_NS = 250000000 };

/* The last text that was typed, as tokens. */
struct typed {
    int32_t *ids; /* [QUEUE] */
    size_t n;     /* 0: none, or the thread took it */
};

struct read_ahead {
    pthread_t thread;
    pthread_mutex_t lock;        /* protects everything below, except for `batch` and `next` while running */
    pthread_cond_t changed;      /* signalled when the thread has work, and when it finished some */
    segue_session *next, *spare; /* session that reads ahead; its fork for the following turn */
    segue_session *whole;        /* holds a whole prompt, computed; NULL: none */
    int32_t *queue;              /* [QUEUE] tokens to append to `next` */
    int32_t *batch;              /* [QUEUE] tokens of the running prefill, not changed while `running` */
    size_t queue_n;
    struct typed words, prompt; /* beginning of the next prompt; the whole of it if the message ends here */
    segue_session *trial;       /* `whole` while it is computed, of the tokens batch[trial_n]; NULL: not running */
    size_t trial_n;
    bool dropped;               /* the trial is of no use any more */
    bool slow;                  /* see SLOW_NS */
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

/* Number of leading tokens of ids[n] that the session holds; 0 if s is NULL. */
static size_t common_prefix(const segue_session *s, const int32_t *ids, size_t n)
{
    const int32_t *held;
    size_t held_n = s ? segue_session_tokens(s, &held) : 0, same = 0;
    while (same < held_n && same < n && held[same] == ids[same]) same++;
    return same;
}

/* True if all tokens of the session are the first of ids[n]. */
static bool begins_with(const segue_session *s, const int32_t *ids, size_t n)
{
    return s && common_prefix(s, ids, n) == segue_session_tokens(s, NULL);
}

static bool holds_exactly(const segue_session *s, const int32_t *ids, size_t n)
{
    return begins_with(s, ids, n) && segue_session_tokens(s, NULL) == n;
}

/* Lock held, thread idle. Give up what `next` read of the typed words, if ids[n] does not begin with all of it. */
static void drop_changed_words(struct read_ahead *a, const int32_t *ids, size_t n)
{
    if (!a->spare || begins_with(a->next, ids, n)) return;
    segue_session_close(a->next);
    a->next = a->spare;
    a->spare = NULL;
}

/* Lock held, thread idle. Queue ids[n] without the tokens that `next` holds; false if it holds others or too many are missing. */
static bool queue_rest(struct read_ahead *a, const int32_t *ids, size_t n)
{
    size_t have = segue_session_tokens(a->next, NULL);
    if (!begins_with(a->next, ids, n) || n - have > QUEUE) return false;
    if (n > have) memcpy(a->queue, ids + have, (n - have) * sizeof *ids);
    a->queue_n = n - have;
    return true;
}

/* Lock held, thread idle: what was typed can be read, because `spare` holds the known beginning. */
static bool typed_pending(const struct read_ahead *a) { return a->spare && !a->failed && (a->words.n || a->prompt.n); }

/* Lock held, called by the thread. Without a fork the thread tries it again, else the next turn waits for it. */
static void take_words(struct read_ahead *a)
{
    segue_error ignored;
    drop_changed_words(a, a->words.ids, a->words.n);
    if (!a->spare && segue_session_fork(&a->spare, a->next, &ignored)) a->spare = NULL;
    if (a->spare) (void)queue_rest(a, a->words.ids, a->words.n);
    a->words.n = 0;
}

/* Append ids[n] to s and compute them, unless the main thread gave it up. */
static segue_status compute_trial(struct read_ahead *a, segue_session *s, const int32_t *ids, size_t n)
{
    segue_error ignored;
    segue_status st = segue_session_append(s, ids, n, &ignored);
    pthread_mutex_lock(&a->lock);
    if (a->dropped) st = SEGUE_ECANCELED;
    a->trial = s;
    pthread_mutex_unlock(&a->lock);
    if (!st) st = segue_session_prefill(s, 0, NULL, &ignored);
    pthread_mutex_lock(&a->lock);
    a->trial = NULL;
    pthread_mutex_unlock(&a->lock);
    return st;
}

/* A fork of `from` that holds ids[n] and has computed them; NULL: failed or cancelled. It is forked twice, so that all its tokens
 * count as reused. */
static segue_session *compute_whole(struct read_ahead *a, segue_session *from, const int32_t *ids, size_t n)
{
    segue_error ignored;
    segue_session *s = NULL, *whole = NULL;
    if (segue_session_fork(&s, from, &ignored)) return NULL;
    size_t have = segue_session_tokens(s, NULL);
    if (!compute_trial(a, s, ids + have, n - have) && segue_session_fork(&whole, s, &ignored)) whole = NULL;
    segue_session_close(s);
    return whole;
}

/* Lock held, called by the thread; released during the prefill. Compute the prompt that was typed last. */
static void read_whole(struct read_ahead *a)
{
    segue_session *from = begins_with(a->next, a->prompt.ids, a->prompt.n) ? a->next : a->spare, *old = a->whole;
    size_t n = a->prompt.n;
    a->prompt.n = 0;
    if (!begins_with(from, a->prompt.ids, n)) return;
    memcpy(a->batch, a->prompt.ids, n * sizeof *a->batch);
    a->trial_n = n;
    a->whole = NULL;
    a->dropped = false;
    a->running = true;
    pthread_mutex_unlock(&a->lock);
    uint64_t start_ns = out_now_ns();
    segue_session_close(old);
    segue_session *whole = compute_whole(a, from, a->batch, n);
    uint64_t ns = out_now_ns() - start_ns;
    pthread_mutex_lock(&a->lock);
    a->running = false;
    a->trial_n = 0;
    a->whole = whole;
    a->slow = ns > SLOW_NS;
    if (whole) a->ns += ns;
    pthread_cond_broadcast(&a->changed);
}

/* Prefill until read_ahead_close: what is certain first. */
static void *thread_main(void *arg)
{
    struct read_ahead *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        if (work_pending(a))
            read_batch(a);
        else if (typed_pending(a) && a->words.n)
            take_words(a);
        else if (typed_pending(a))
            read_whole(a);
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
    a->queue = out_alloc(4 * QUEUE * sizeof *a->queue);
    a->batch = a->queue + QUEUE;
    a->words.ids = a->batch + QUEUE;
    a->prompt.ids = a->words.ids + QUEUE;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (pthread_create(&a->thread, NULL, thread_main, a) == 0) return a;
    free(a->queue);
    free(a);
    return NULL;
}

/* Lock held. True while exactly the prompt ids[n] is computed, and not given up. */
static bool is_trial(const struct read_ahead *a, const int32_t *ids, size_t n)
{
    return !a->dropped && a->trial_n == n && !memcmp(a->batch, ids, n * sizeof *ids);
}

/* Lock held. Interrupt the computation of a whole prompt; without effect on other prefills. */
static void cancel_trial(struct read_ahead *a)
{
    a->dropped = true;
    if (a->trial) segue_session_cancel(a->trial);
}

/* Lock held. Wait for the thread; cancel: interrupt its prefill instead of finishing the queue. */
static void wait_idle(struct read_ahead *a, bool cancel)
{
    if (cancel) {
        a->words.n = a->prompt.n = 0;
        if (a->trial_n) cancel_trial(a);
        else if (a->running) segue_session_cancel(a->next);
    }
    while (a->running || (!cancel && work_pending(a))) pthread_cond_wait(&a->changed, &a->lock);
}

/* Lock held, or the thread has ended. Close all sessions and forget all tokens. */
static void discard(struct read_ahead *a)
{
    segue_session_close(a->next);
    segue_session_close(a->spare);
    segue_session_close(a->whole);
    a->next = a->spare = a->whole = NULL;
    a->queue_n = a->words.n = a->prompt.n = 0;
    a->answer_done = a->failed = a->slow = false;
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

/* Lock held, thread idle. The session that holds most of ids[n] becomes *session; `next` stays, for the tokens of the answer. */
static void take_session(struct read_ahead *a, segue_session **session, const int32_t *ids, size_t n)
{
    a->last_read = a->tokens_read;
    a->last_ns = a->ns;
    if (holds_exactly(a->whole, ids, n)) {
        a->last_read += n - common_prefix(a->next, ids, n);
        *session = a->whole;
        segue_session_close(a->spare);
    } else {
        segue_session_close(a->whole);
        *session = a->next;
        a->next = a->spare; /* it prefills the new user message again during the answer */
    }
    a->whole = a->spare = NULL;
}

/* If the user edited the conversation, the old session may match more of the prompt; then the read-ahead is discarded. */
void read_ahead_begin_turn(struct read_ahead *a, segue_session **session, const int32_t *ids, size_t n, uint64_t *waited_ns)
{
    *waited_ns = 0;
    if (!a) return;
    uint64_t start_ns = out_now_ns();
    pthread_mutex_lock(&a->lock);
    a->words.n = a->prompt.n = 0;
    if (a->spare) a->queue_n = 0; /* words that were not begun: the turn computes them with the rest */
    if (a->trial_n && !is_trial(a, ids, n)) cancel_trial(a);
    wait_idle(a, false);
    *waited_ns = out_now_ns() - start_ns;
    a->last_read = a->last_ns = 0;
    if (a->next && !a->failed) drop_changed_words(a, ids, n);
    if (a->next && !a->failed && a->answer_done && common_prefix(a->next, ids, n) >= common_prefix(*session, ids, n))
        take_session(a, session, ids, n);
    else
        discard(a);
    if (a->one_unit) discard(a); /* it is forked again after the answer */
    a->queue_n = 0;
    a->answer_done = a->slow = false;
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
        a->words.n = a->prompt.n = 0;
        a->failed = !kept || !queue_rest(a, ids, n);
        a->answer_done = !a->failed;
    }
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* Lock held. Replace what was typed before. */
static void set_typed(struct typed *t, const int32_t *ids, size_t n)
{
    t->n = n > QUEUE ? 0 : n;
    memcpy(t->ids, ids, t->n * sizeof *ids);
}

void read_ahead_words(struct read_ahead *a, const int32_t *ids, size_t n)
{
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    if (a->trial_n) cancel_trial(a); /* the message did not end there */
    set_typed(&a->words, ids, n);
    a->prompt.n = 0;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void read_ahead_whole(struct read_ahead *a, const int32_t *ids, size_t n)
{
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    a->prompt.n = 0;
    if (!a->slow && !holds_exactly(a->whole, ids, n) && !is_trial(a, ids, n)) {
        if (a->trial_n) cancel_trial(a);
        set_typed(&a->prompt, ids, n);
    }
    pthread_cond_broadcast(&a->changed);
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
