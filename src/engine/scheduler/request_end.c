/* request_end.c: stores the result of a round in a request, and ends requests. SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "engine/scheduler/scheduler.h"

void sg_request_snapshot(struct segue_request *q)
{
    const struct segue_session *s = q->session;
    segue_request_info *i = &q->info;
    const struct sg_layout *prefill = &s->layouts[SG_PREFILL_LAYOUT], *decode = &s->layouts[SG_DECODE_LAYOUT];
    i->tokens_computed = s->computed;
    i->tokens_reused = s->stats.tokens_reused < i->prompt_tokens ? s->stats.tokens_reused : i->prompt_tokens;
    q->bytes = sg_request_bytes(q);
    i->reuse_diverged = s->store_matched;
    i->reuse_reason = s->stats.reuse_reason;
    i->prefill_ns = s->stats.prefill_ns;
    i->decode_ns = s->stats.decode_ns;
    i->handoff_ns = s->stats.handoff_ns;
    i->verify = s->stats.verify;
    if (prefill->n) i->prefill_unit = prefill->stages[0].placement;
    if (decode->n) i->decode_unit = decode->stages[0].placement;
}

/* Counts an end in the scheduler. */
static void count_end(struct segue_scheduler *s, const struct segue_request *q)
{
    s->info.finished++;
    s->info.canceled += q->info.finish == SEGUE_FINISH_CANCELED;
    s->info.failed += q->info.finish == SEGUE_FINISH_ERROR;
    s->info.prompt_tokens += q->info.prompt_tokens;
    s->info.reused_tokens += q->info.tokens_reused;
    s->info.verified += q->info.verify.tokens != 0;
    s->info.verify_failed += q->info.verify.tokens && !q->info.verify.ok;
}

struct segue_session *sg_request_finish(struct segue_request *q, segue_finish finish, const segue_error *err)
{
    struct segue_scheduler *s = q->scheduler;
    struct segue_session *own = q->borrowed ? NULL : q->session;
    sg_request_snapshot(q);
    q->info.finish = finish;
    q->info.end_ns = sg_now_ns();
    if (err) q->error = *err;
    sg_request_list_remove(q->state == SG_REQUEST_WAITING ? &s->waiting : &s->running, q);
    q->state = SG_REQUEST_ENDED;
    q->session = NULL;
    q->claimed = own != NULL;
    count_end(s, q);
    sg_request_notify(q);
    return own;
}

void sg_request_close_session(struct segue_request *q, struct segue_session *own)
{
    if (!own) return; /* the request may be freed already */
    struct segue_scheduler *s = q->scheduler;
    segue_session_close(own);
    pthread_mutex_lock(&s->lock);
    q->claimed = 0;
    pthread_cond_broadcast(&s->work); /* memory became free */
    sg_request_notify(q);
    pthread_mutex_unlock(&s->lock);
}

void sg_request_end(struct segue_request *q, segue_finish finish, const segue_error *err)
{
    struct segue_scheduler *s = q->scheduler;
    pthread_mutex_lock(&s->lock);
    struct segue_session *own = sg_request_finish(q, finish, err);
    pthread_mutex_unlock(&s->lock);
    sg_request_close_session(q, own);
}
