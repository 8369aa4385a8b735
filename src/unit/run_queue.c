/* run_queue.c: see run_queue.h.
 * SPDX-License-Identifier: MIT */
#include "unit/run_queue.h"

#include <stddef.h>

void sg_run_queue_init(struct sg_run_queue *q)
{
    *q = (struct sg_run_queue){0};
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
}

static void *queue_main(void *arg)
{
    struct sg_run_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    while (!q->stop || q->first) {
        struct sg_queued *entry = q->first;
        if (!entry) {
            pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        q->first = entry->next;
        pthread_mutex_unlock(&q->lock);
        entry->call(entry);
        pthread_mutex_lock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

int sg_run_queue_push(struct sg_run_queue *q, struct sg_queued *entry)
{
    pthread_mutex_lock(&q->lock);
    if (!q->started) q->started = !pthread_create(&q->thread, NULL, queue_main, q);
    int started = q->started;
    if (started) {
        /* behind all of the same or a higher priority */
        struct sg_queued **at = &q->first;
        while (*at && (*at)->priority >= entry->priority) at = &(*at)->next;
        entry->next = *at;
        *at = entry;
        pthread_cond_signal(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return started;
}

void sg_run_queue_keep(struct sg_run_queue *q, struct sg_queued *entry)
{
    pthread_mutex_lock(&q->lock);
    entry->next = q->kept;
    q->kept = entry;
    pthread_mutex_unlock(&q->lock);
}

struct sg_queued *sg_run_queue_take(struct sg_run_queue *q)
{
    pthread_mutex_lock(&q->lock);
    struct sg_queued *entry = q->kept;
    if (entry) q->kept = entry->next;
    pthread_mutex_unlock(&q->lock);
    return entry;
}

void sg_run_queue_close(struct sg_run_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->stop = 1;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (q->started) pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
}
