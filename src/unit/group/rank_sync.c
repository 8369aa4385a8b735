/* rank_sync.c: see rank_sync.h.
 * SPDX-License-Identifier: MIT */
#include "unit/group/rank_sync.h"

#include <string.h>

void sg_rank_sync_open(struct sg_rank_sync *m, uint32_t ranks, const atomic_int *cancel)
{
    *m = (struct sg_rank_sync){.ranks = ranks, .cancel = cancel, .end = UINT64_MAX};
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
}

void sg_rank_sync_close(struct sg_rank_sync *m)
{
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
}

/* Barrier, with the lock held. 0: a rank failed. */
static int wait_all(struct sg_rank_sync *m)
{
    uint64_t round = m->round;
    if (++m->arrived == m->ranks) {
        m->arrived = 0;
        m->round++;
        pthread_cond_broadcast(&m->changed);
    }
    while (m->round == round && !m->broken) pthread_cond_wait(&m->changed, &m->lock);
    return m->round != round;
}

int sg_rank_sync_arrive(struct sg_rank_sync *m)
{
    pthread_mutex_lock(&m->lock);
    int all = wait_all(m);
    pthread_mutex_unlock(&m->lock);
    return all;
}

/* `end` can move to this query only while no rank was told to continue after it; otherwise ranks would run different numbers of
 * passes. */
int sg_rank_sync_should_stop(struct sg_rank_sync *m, uint32_t rank, int want)
{
    pthread_mutex_lock(&m->lock);
    uint64_t query = m->queries[rank]++;
    int canceled = m->cancel && atomic_load(m->cancel);
    if ((want || canceled) && query >= m->continued && query < m->end) {
        m->end = query;
        m->canceled = canceled;
    }
    int stops = query >= m->end;
    if (!stops && query >= m->continued) m->continued = query + 1;
    pthread_mutex_unlock(&m->lock);
    return stops;
}

int sg_rank_sync_canceled(struct sg_rank_sync *m)
{
    pthread_mutex_lock(&m->lock);
    int canceled = m->canceled;
    pthread_mutex_unlock(&m->lock);
    return canceled;
}

/* The flag stays set: later calls of other ranks fail too. */
void sg_rank_sync_abort(struct sg_rank_sync *m)
{
    pthread_mutex_lock(&m->lock);
    m->broken = 1;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

/* One row of the output. */
static void join_row(const struct sg_rank_sync *m, const struct sg_join *join, uint32_t row, uint32_t width, float *y)
{
    for (uint32_t r = 0; r < m->ranks; r++) {
        const float *x = m->x[r] + (size_t)row * width;
        if (!join->sum) memcpy(y + (size_t)r * width, x, width * sizeof *y);
        for (uint32_t c = 0; c < width && join->sum; c++) y[c] = r ? y[c] + x[c] : x[c];
    }
}

/* Two barriers: before reading the inputs of the others, and before the own input may be freed. */
segue_status sg_rank_sync_join(struct sg_rank_sync *m, uint32_t rank, const struct sg_join *join, const float *x, uint32_t rows,
                             uint32_t width, float *y, segue_error *err)
{
    size_t stride = (size_t)width * (join->sum ? 1 : m->ranks);
    pthread_mutex_lock(&m->lock);
    m->x[rank] = x;
    int all = wait_all(m);
    pthread_mutex_unlock(&m->lock);
    for (uint32_t t = 0; t < rows && all; t++) join_row(m, join, t, width, y + t * stride);
    pthread_mutex_lock(&m->lock);
    all = all && wait_all(m); /* x of a rank stays valid until all have read it */
    pthread_mutex_unlock(&m->lock);
    return all ? SEGUE_OK : sg_fail(err, SEGUE_ELOST, "run: join: another rank failed; reopen the unit or use another one");
}
