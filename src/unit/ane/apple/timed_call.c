/* timed_call.c: a worker thread with time limits. See timed_call.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/apple/timed_call.h"

#include <pthread.h>
#include <time.h>

#include "base/mem.h"

/* All fields after `changed` are guarded by `lock`. */
struct sg_timed_call {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*task)(void *arg);
    void *arg;
    int busy;                    /* 1: a caller waits for a task */
    int done;                    /* 1: the task returned */
    int lost;                    /* 1: a task exceeded its limit; final */
    int stop;                    /* 1: the thread is to end */
};

/* The thread. Tasks run without the lock, so that the caller can time out. */
static void *work(void *self)
{
    struct sg_timed_call *p = self;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (!p->busy || p->done) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        p->task(p->arg);
        pthread_mutex_lock(&p->lock);
        p->done = 1;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

segue_status sg_timed_call_open(struct sg_timed_call **out, segue_error *err)
{
    struct sg_timed_call *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("a thread", sizeof *p, err);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    if (pthread_create(&p->thread, NULL, work, p)) {
        pthread_cond_destroy(&p->changed);
        pthread_mutex_destroy(&p->lock);
        sg_free(p);
        return sg_fail(err, SEGUE_EMEMORY, "starting a thread: the system has no more threads; end other programs");
    }
    *out = p;
    return SEGUE_OK;
}

/* The struct of a lost worker is leaked: its task may still return and use it. */
void sg_timed_call_close(struct sg_timed_call *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    int lost = p->lost;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (lost) {
        pthread_detach(p->thread);
        return;
    }
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    sg_free(p);
}

/* The deadline uses CLOCK_REALTIME, the default clock of pthread_cond_timedwait; macOS has no other. */
int sg_timed_call_run(struct sg_timed_call *p, void (*task)(void *arg), void *arg, uint64_t limit_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + limit_ns;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&p->lock);
    if (!p->lost) {
        p->task = task;
        p->arg = arg;
        p->busy = 1;
        p->done = 0;
        pthread_cond_broadcast(&p->changed);
        while (!p->done && !p->lost)
            if (pthread_cond_timedwait(&p->changed, &p->lock, &until) && !p->done) p->lost = 1;
        p->busy = 0;
    }
    int done = !p->lost;
    pthread_mutex_unlock(&p->lock);
    return done;
}
