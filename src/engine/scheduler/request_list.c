/* request_list.c: lists of requests, notification and the life of a scheduler's memory. SPDX-License-Identifier: MIT */
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
    for (uint32_t i = 0; i < SG_LANES; i++) {
        sg_step_free(s->step[i]);
        sg_free(s->round[i]);
    }
    segue_plan_close(s->plan);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    segue_engine_close(s->engine);
    sg_free(s);
}
