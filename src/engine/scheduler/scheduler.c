/* scheduler.c: opening, driving and closing a scheduler. SPDX-License-Identifier: MIT */
#include "engine/scheduler/scheduler.h"

#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "engine/placement/plan.h"
#include "engine/queue/deadline.h"
#include "engine/scheduler/warm.h"
#include "engine/sized.h"

enum { RUNNING_DEFAULT = 16, WAITING_DEFAULT = 1024, WAITING_MAX = 1 << 20 };

/* --- threads of the library --- */

/* One thread for each worker: rounds while there is work. */
static void worker_main(struct segue_scheduler *s, uint32_t worker)
{
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (sg_scheduler_round(s, worker)) continue;
        if (s->closing) break;
        pthread_cond_wait(&s->work, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

static void *prefill_main(void *arg)
{
    worker_main(arg, SG_WORKER_PREFILL);
    return NULL;
}

static void *shared_main(void *arg)
{
    worker_main(arg, SG_WORKER_SHARED);
    return NULL;
}

/* --- open, close --- */

static segue_status check_opts(struct segue_scheduler *s, const segue_scheduler_opts *o, segue_error *err)
{
    s->opts = *o;
    if (!o->running) s->opts.running = RUNNING_DEFAULT;
    if (!o->waiting) s->opts.waiting = WAITING_DEFAULT;
    if (!o->target_ns) s->opts.target_ns = SG_PACE_TARGET_NS;
    if (!o->verify_every) s->opts.verify_every = 1;
    s->opts.plan = NULL;
    if (o->manual > 2)
        return sg_fail(err, SEGUE_EARG, "scheduler not opened: manual %u: use 0, 1 or 2", o->manual);
    if (s->opts.running > SG_REQUESTS_MAX)
        return sg_fail(err, SEGUE_EARG, "scheduler not opened: running %zu: the maximum is %d; use a smaller number", o->running,
                       SG_REQUESTS_MAX);
    if (s->opts.waiting > WAITING_MAX)
        return sg_fail(err, SEGUE_EARG, "scheduler not opened: waiting %zu: the maximum is %d; use a smaller number", o->waiting,
                       WAITING_MAX);
    return SEGUE_OK;
}

/* Also checks that the plan fits, by opening a session. */
static segue_status take_plan(struct segue_scheduler *s, const segue_plan *plan, segue_error *err)
{
    segue_session *probe;
    segue_session_opts o = {.size = sizeof o, .context = s->opts.context, .no_store = 1};
    if (plan) SG_TRY(sg_plan_copy(&s->plan, plan, err));
    else SG_TRY(segue_plan_make(&s->plan, s->engine, NULL, err));
    o.plan = s->plan;
    SG_TRY(segue_session_open(&probe, s->engine, &o, err));
    segue_session_close(probe);
    return SEGUE_OK;
}

static segue_status make_buffers(struct segue_scheduler *s, segue_error *err)
{
    size_t n = s->opts.running;
    if (!(s->shares = sg_alloc(n * sizeof *s->shares))) return sg_no_memory("scheduler", n * sizeof *s->shares, err);
    if (!s->opts.manual) SG_TRY(sg_mask_thread_new(&s->masks, n, err));
    for (uint32_t i = 0; i < SG_WORKERS; i++)
        if (!(s->round[i] = sg_alloc(n * sizeof(struct segue_request *))))
            return sg_no_memory("scheduler", n * sizeof(struct segue_request *), err);
    return SEGUE_OK;
}

static segue_status start_threads(struct segue_scheduler *s, segue_error *err)
{
    void *(*const mains[SG_WORKERS])(void *) = {prefill_main, shared_main};
    uint32_t n = s->opts.manual == 2 ? 1 : s->opts.manual ? 0 : SG_WORKERS; /* of the workers, from the prefill worker on */
    for (uint32_t i = 0; i < n; i++) {
        if (pthread_create(&s->threads[i], NULL, mains[i], s))
            return sg_fail(err, SEGUE_EMEMORY, "scheduler not opened: no thread can be started; raise the limit of threads");
        s->threads_n++;
    }
    return SEGUE_OK;
}

segue_status segue_scheduler_open(segue_scheduler **out, segue_engine *engine, const segue_scheduler_opts *opts,
                                  segue_error *err)
{
    segue_scheduler_opts o;
    if (!out || !engine) return sg_fail(err, SEGUE_EARG, "scheduler not opened: out or engine is NULL; pass both");
    SG_TRY(sg_sized_in(&o, sizeof o, opts, "scheduler options", err));
    struct segue_scheduler *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("scheduler", sizeof *s, err);
    atomic_init(&s->references, 1);
    s->engine = sg_engine_share(engine);
    pthread_mutex_init(&s->lock, NULL);
    sg_cond_init(&s->work);
    sg_cond_init(&s->changed);
    segue_status status = check_opts(s, &o, err);
    if (status == SEGUE_OK) status = take_plan(s, o.plan, err);
    if (status == SEGUE_OK) status = make_buffers(s, err);
    if (status == SEGUE_OK) status = start_threads(s, err);
    if (status != SEGUE_OK) {
        segue_scheduler_close(s);
        return status;
    }
    if (o.warm && !o.manual) sg_scheduler_warm(s);
    *out = s;
    return SEGUE_OK;
}

/* Ends every request of a list that no round has claimed. */
static void end_list(struct segue_scheduler *s, struct sg_request_list *l)
{
    segue_error err;
    sg_fail(&err, SEGUE_ECANCELED, "request ended: the scheduler was closed; submit it to another one");
    pthread_mutex_lock(&s->lock);
    while (l->first) {
        struct segue_request *q = l->first;
        if (q->claimed) {
            pthread_cond_wait(&q->changed, &s->lock);
            continue;
        }
        q->claimed = 1;
        pthread_mutex_unlock(&s->lock);
        sg_request_end(q, SEGUE_FINISH_CANCELED, &err);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

void segue_scheduler_close(segue_scheduler *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->closing = 1;
    for (struct segue_request *q = s->running.first; q; q = q->next) segue_session_cancel(q->session);
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->threads_n; i++) pthread_join(s->threads[i], NULL);
    end_list(s, &s->waiting);
    end_list(s, &s->running);
    sg_scheduler_release(s);
}

/* --- driving and watching --- */

segue_status segue_scheduler_run(segue_scheduler *s, segue_error *err)
{
    int worked = 0;
    if (!s) return sg_fail(err, SEGUE_EARG, "nothing computed: the scheduler is NULL; open one");
    if (!s->opts.manual)
        return sg_fail(err, SEGUE_EARG, "nothing computed: the scheduler has threads of its own; open it with manual = 1");
    pthread_mutex_lock(&s->lock);
    for (uint32_t worker = s->threads_n; worker < SG_WORKERS; worker++) worked |= sg_scheduler_round(s, worker);
    pthread_mutex_unlock(&s->lock);
    return worked ? SEGUE_OK : SEGUE_END;
}

segue_status segue_scheduler_wait(segue_scheduler *s, uint64_t *seen, uint64_t timeout_ns, segue_error *err)
{
    struct timespec until;
    if (!s || !seen) return sg_fail(err, SEGUE_EARG, "wait not started: the scheduler or seen is NULL; pass both");
    sg_deadline(&until, timeout_ns);
    pthread_mutex_lock(&s->lock);
    int expired = !timeout_ns;
    while (s->changes == *seen && !s->closing && !expired) expired = sg_cond_wait(&s->changed, &s->lock, &until);
    segue_status status = s->changes == *seen ? SEGUE_END : SEGUE_OK;
    *seen = s->changes;
    pthread_mutex_unlock(&s->lock);
    return status;
}

segue_status segue_scheduler_info_get(const segue_scheduler *scheduler, segue_scheduler_info *out, segue_error *err)
{
    struct segue_scheduler *s = (struct segue_scheduler *)(uintptr_t)scheduler; /* for the lock */
    if (!s) return sg_fail(err, SEGUE_EARG, "scheduler info not read: the scheduler is NULL; open one");
    pthread_mutex_lock(&s->lock);
    segue_scheduler_info i = s->info;
    i.running = s->running.n;
    i.waiting = s->waiting.n;
    i.unfinished = i.running + i.waiting;
    i.submitted = s->submitted;
    i.memory_limit = s->opts.memory_bytes;
    i.store_bytes = i.memory_bytes = s->store_bytes;
    for (const struct segue_request *q = s->running.first; q; q = q->next) i.memory_bytes += q->bytes;
    for (const struct segue_request *q = s->running.first; q; q = q->next)
        i.paused += s->opts.unread_tokens && q->out_n - q->read_n >= s->opts.unread_tokens;
    i.token_ns = (uint64_t)s->pace.answers_ns;
    i.prompt_tokens_s = s->pace.prompt_token_ns > 0 ? 1e9 / s->pace.prompt_token_ns : 0;
    pthread_mutex_unlock(&s->lock);
    return sg_sized_out(out, &i, sizeof i, "scheduler info", err);
}
