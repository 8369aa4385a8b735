/* request_list.c: lists of requests, the memory of one, notification, and reference counting of the scheduler.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "engine/scheduler/scheduler.h"

void sg_request_list_add(struct sg_request_list *l, struct segue_request *q)
{
    q->next = NULL;
    q->before = l->last;
    *(l->last ? &l->last->next : &l->first) = q;
    l->last = q;
    l->n++;
}

void sg_request_list_remove(struct sg_request_list *l, struct segue_request *q)
{
    *(q->before ? &q->before->next : &l->first) = q->next;
    *(q->next ? &q->next->before : &l->last) = q->before;
    q->next = q->before = NULL;
    l->n--;
}

void sg_request_notify(struct segue_request *q)
{
    q->scheduler->changes++;
    pthread_cond_broadcast(&q->changed);
    pthread_cond_broadcast(&q->scheduler->changed);
}

void sg_scheduler_release(struct segue_scheduler *s)
{
    if (!s || atomic_fetch_sub(&s->references, 1) != 1) return;
    for (uint32_t i = 0; i < SG_WORKERS; i++) sg_free(s->round[i]);
    sg_free(s->shares);
    sg_mask_thread_free(s->masks);
    segue_plan_close(s->plan);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    segue_engine_close(s->engine);
    sg_free(s);
}

/* --- memory of a request --- */

enum {
    GROWTH_TOKENS = 16, /* tokens that the next rounds may add */
    BLOCK_TOKENS = 128  /* largest block, in positions, by which K and V grow */
};

/* Both layouts during a prompt on another unit, since the receiving states exist before the hand-off. */
uint64_t sg_request_bytes_of(const struct segue_request *q, size_t n)
{
    const struct segue_session *x = q->session;
    if (n > x->context) n = x->context;
    n = (n + BLOCK_TOKENS - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
    uint64_t need = sg_session_state_bytes_max(x, x->active, n, BLOCK_TOKENS);
    if (x->split && x->active == SG_PREFILL_LAYOUT) need += sg_session_state_bytes_max(x, SG_DECODE_LAYOUT, n, BLOCK_TOKENS);
    return need;
}

/* What other requests and the store count of the states: a unit reports shared memory by shares. */
static uint64_t shared_bytes(const struct segue_session *x)
{
    const struct sg_layout *l = &x->layouts[x->active];
    uint64_t whole = sg_layout_holds(l) ? sg_session_state_bytes(x, x->active, x->computed) : 0, have = sg_layout_bytes(l);
    return whole > have ? whole - have : 0;
}

uint64_t sg_request_bytes(const struct segue_request *q)
{
    const struct segue_session *x = q->session;
    size_t n = x->tokens_n + (q->prompt_n - q->prompt_at) + GROWTH_TOKENS;
    if (q->opts.kind == SEGUE_GENERATE && q->opts.max_tokens && n > q->first_token + q->opts.max_tokens)
        n = q->first_token + q->opts.max_tokens;
    uint64_t need = sg_request_bytes_of(q, n), have = sg_layout_bytes(&x->layouts[0]) + sg_layout_bytes(&x->layouts[1]);
    uint64_t shared = shared_bytes(x);
    need -= shared < need ? shared : need;
    return (need > have ? need : have) + sg_session_checkpoint_bytes(x);
}
