/* mlx_owner.c: the thread that makes all calls of MLX, with a queue of jobs.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

static void *owner_main(void *arg)
{
    struct mlx_owner *o = arg;
    pthread_mutex_lock(&o->lock);
    for (;;) {
        struct mlx_job *job = o->first;
        if (!job && o->stop) break;
        if (!job) {
            pthread_cond_wait(&o->changed, &o->lock);
            continue;
        }
        o->first = job->next;
        if (!o->first) o->last = &o->first;
        pthread_mutex_unlock(&o->lock);
        job->run(job->arg);
        pthread_mutex_lock(&o->lock);
        job->done = 1;
        pthread_cond_broadcast(&o->changed);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

void mlx_call(struct sg_unit *u, void (*run)(void *arg), void *arg)
{
    struct mlx_owner *o = &u->owner;
    struct mlx_job job = {.run = run, .arg = arg};
    if (pthread_equal(pthread_self(), o->thread)) {
        run(arg);
        return;
    }
    pthread_mutex_lock(&o->lock);
    *o->last = &job;
    o->last = &job.next;
    pthread_cond_broadcast(&o->changed);
    while (!job.done) pthread_cond_wait(&o->changed, &o->lock);
    pthread_mutex_unlock(&o->lock);
}

segue_status mlx_owner_start(struct mlx_owner *o, segue_error *err)
{
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->changed, NULL);
    o->last = &o->first;
    if (!pthread_create(&o->thread, NULL, owner_main, o)) return SEGUE_OK;
    pthread_cond_destroy(&o->changed);
    pthread_mutex_destroy(&o->lock);
    return sg_fail(err, SEGUE_EUNIT, "open unit: mlx: no thread can be started; close some programs");
}

void mlx_owner_stop(struct mlx_owner *o)
{
    pthread_mutex_lock(&o->lock);
    o->stop = 1;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
    pthread_join(o->thread, NULL);
    pthread_cond_destroy(&o->changed);
    pthread_mutex_destroy(&o->lock);
}

segue_status mlx_status(const struct sg_unit *u, const char *verb, segue_error *err)
{
    const char *text = mxc_error(u->tape);
    return text ? sg_fail(err, SEGUE_EUNIT, "%s: mlx: %s", verb, text) : SEGUE_OK;
}
