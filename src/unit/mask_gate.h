/* mask_gate.h: masks of allowed tokens that are made while a run computes. A unit waits at the gate before it reads
 * sg_sampler.allowed, which is usually long after the start of the run. Any number of threads may wait.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_MASK_GATE_H
#define SG_UNIT_MASK_GATE_H

#include <pthread.h>

#include "unit/sample.h"

struct sg_mask_gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    int open;
};

static inline void sg_mask_gate_init(struct sg_mask_gate *g)
{
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->opened, NULL);
    g->open = 1;
}

static inline void sg_mask_gate_destroy(struct sg_mask_gate *g)
{
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->opened);
}

static inline void sg_mask_gate_set(struct sg_mask_gate *g, int open)
{
    pthread_mutex_lock(&g->lock);
    g->open = open;
    if (open) pthread_cond_broadcast(&g->opened);
    pthread_mutex_unlock(&g->lock);
}

static inline void sg_mask_gate_pass(struct sg_mask_gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (!g->open) pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* Call before s->allowed is read. */
static inline void sg_sampler_wait(const struct sg_sampler *s)
{
    if (s->gate) sg_mask_gate_pass(s->gate);
}

#endif
