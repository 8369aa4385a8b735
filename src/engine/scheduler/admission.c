/* admission.c: which waiting request starts next, and the memory budget: states, checkpoints and the prefix store together
 * stay below opts.memory_bytes. A request starts when its states fit into the budget. When running answers outgrow it,
 * memory of the store is freed first; then the youngest request of the lowest priority loses its checkpoints, or, if it has none,
 * is preempted: its states go to the store or are dropped, and it waits to be started again. SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "engine/scheduler/scheduler.h"
#include "engine/store/prefixstore.h"

static uint64_t running_bytes(const struct segue_scheduler *s)
{
    uint64_t bytes = 0;
    for (const struct segue_request *q = s->running.first; q; q = q->next) bytes += q->bytes;
    return bytes;
}

/* The waiting request of highest priority, the oldest among equals. */
static struct segue_request *next_waiting(const struct segue_scheduler *s)
{
    struct segue_request *best = s->waiting.first;
    for (struct segue_request *q = best; q; q = q->next)
        if (q->opts.priority > best->opts.priority ||
            (q->opts.priority == best->opts.priority && q->number < best->number))
            best = q;
    return best;
}

/* The store's memory does not prevent a start, since reclaim can free it. */
static int fits(const struct segue_scheduler *s, const struct segue_request *q)
{
    return !s->opts.memory_bytes || !s->running.n || running_bytes(s) + q->bytes <= s->opts.memory_bytes;
}

void sg_scheduler_admit(struct segue_scheduler *s)
{
    struct segue_request *q;
    while (!s->closing && s->running.n < s->opts.running && (q = next_waiting(s))) {
        if (q->claimed) return; /* it is being ended */
        q->blocked = !fits(s, q);
        if (q->blocked) return; /* later ones do not overtake, or it might never start */
        sg_request_list_remove(&s->waiting, q);
        sg_request_list_add(&s->running, q);
        q->state = SG_REQUEST_RUNNING;
        q->worker = q->session->split && q->session->active == SG_PREFILL_LAYOUT ? SG_WORKER_PREFILL : SG_WORKER_SHARED;
        if (!q->info.start_ns) q->info.start_ns = sg_now_ns();
    }
}

/* --- when memory is short --- */

/* The youngest of the lowest priority that no round uses and that has states. */
static struct segue_request *victim(const struct segue_scheduler *s)
{
    struct segue_request *worst = NULL;
    for (struct segue_request *q = s->running.first; q; q = q->next) {
        if (q->claimed || q->canceled) continue;
        if (!worst || q->opts.priority < worst->opts.priority ||
            (q->opts.priority == worst->opts.priority && q->number > worst->number))
            worst = q;
    }
    return worst;
}

/* Releases a request's states; the request waits again. */
static void preempt(struct segue_scheduler *s, struct segue_request *q)
{
    segue_error err = {0};
    q->claimed = 1;
    pthread_mutex_unlock(&s->lock);
    segue_status status = sg_session_preempt(q->session, &err);
    if (status != SEGUE_OK) sg_request_end(q, SEGUE_FINISH_ERROR, &err);
    pthread_mutex_lock(&s->lock);
    if (status != SEGUE_OK) return;
    q->prepared = 0;
    q->bytes = sg_request_bytes(q);
    q->info.preemptions++;
    s->info.preemptions++;
    sg_request_list_remove(&s->running, q);
    sg_request_list_add(&s->waiting, q);
    q->state = SG_REQUEST_WAITING;
    q->claimed = 0;
    sg_request_notify(q);
}

/* Checkpoints serve later sessions and rewinding only, and those that the store was given remain there. 0: there are none. */
static int drop_checkpoints(struct segue_scheduler *s, struct segue_request *q)
{
    if (!q->session->checkpoints_n) return 0;
    q->claimed = 1;
    pthread_mutex_unlock(&s->lock);
    sg_session_forget_checkpoints(q->session, 0);
    pthread_mutex_lock(&s->lock);
    q->bytes = sg_request_bytes(q);
    q->claimed = 0;
    pthread_cond_broadcast(&q->changed);
    return 1;
}

/* A request that exceeds the budget on its own ends with the tokens that it has. */
static void refuse(struct segue_scheduler *s, struct segue_request *q)
{
    segue_error err;
    sg_fail(&err, SEGUE_ELIMIT,
            "request ended: its states need %llu bytes, the scheduler has %llu; raise memory_bytes or shorten it",
            (unsigned long long)q->bytes, (unsigned long long)s->opts.memory_bytes);
    q->claimed = 1;
    pthread_mutex_unlock(&s->lock);
    sg_request_end(q, SEGUE_FINISH_ERROR, &err);
    pthread_mutex_lock(&s->lock);
}

/* Limits the store to the part of the budget that the requests do not use. */
static void trim_store(struct segue_scheduler *s)
{
    uint64_t used = running_bytes(s), limit = used < s->opts.memory_bytes ? s->opts.memory_bytes - used : 0;
    if (!s->engine->store) return;
    pthread_mutex_unlock(&s->lock);
    uint64_t bytes = sg_store_shrink(s->engine->store, s->opts.memory_bytes ? limit : UINT64_MAX);
    pthread_mutex_lock(&s->lock);
    s->store_bytes = bytes;
}

void sg_scheduler_reclaim(struct segue_scheduler *s)
{
    struct segue_request *q;
    while (s->opts.memory_bytes && running_bytes(s) > s->opts.memory_bytes && (q = victim(s))) {
        if (drop_checkpoints(s, q)) continue;
        if (s->running.n > 1) preempt(s, q);
        else refuse(s, q);
    }
    trim_store(s);
}
