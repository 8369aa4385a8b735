/* run_queue.h: the runs of a unit that computes one after the other on a thread of its own: higher priority first, then in order
 * of arrival. Entries that ended are kept for the next run, so that a run in steady state allocates nothing and starts no thread.
 * Threads: all functions but init and close may be called from any thread.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_RUN_QUEUE_H
#define SG_UNIT_RUN_QUEUE_H

#include <pthread.h>
#include <stdint.h>

/* A member of what is queued. */
struct sg_queued {
    struct sg_queued *next;
    uint32_t priority;
    void (*call)(struct sg_queued *self);    /* on the queue's thread, once for each push; the entry is not touched afterwards */
};

struct sg_run_queue {
    pthread_mutex_t lock;            /* guards all that follows; not held during a call */
    pthread_cond_t changed;          /* first or stop changed */
    struct sg_queued *first, *kept;
    pthread_t thread;
    int started, stop;
};

void sg_run_queue_init(struct sg_run_queue *q);
/* Starts the thread on first use. 0: it cannot be started, and the entry is not queued. */
int sg_run_queue_push(struct sg_run_queue *q, struct sg_queued *entry);
/* Keeps an entry that is not queued, and gives one back; NULL: none is kept. */
void sg_run_queue_keep(struct sg_run_queue *q, struct sg_queued *entry);
struct sg_queued *sg_run_queue_take(struct sg_run_queue *q);
/* Ends the thread, after all calls. What is kept is to be taken and freed before, when no call is left. */
void sg_run_queue_close(struct sg_run_queue *q);

#endif
