/* rank_sync.h: synchronization of the ranks of one run (unit/group): a barrier at the start, agreement on the pass after which
 * all stop, and, for units that compute in host memory, op `join`. One thread per rank; all ranks make the same calls in the
 * same order.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_RANK_SYNC_H
#define SG_UNIT_RANK_SYNC_H

#include <pthread.h>
#include <stdatomic.h>

#include "graph/tensor_parallel.h"

struct sg_rank_sync {
    pthread_mutex_t lock;            /* guards everything below */
    pthread_cond_t changed;
    const atomic_int *cancel;        /* the caller's, or NULL */
    uint32_t ranks, arrived;         /* arrived: at the barrier */
    uint64_t round;                  /* barriers that were passed */
    uint64_t queries[SG_RANKS_MAX]; /* should_stop calls of each rank; query i of all ranks has the same answer */
    uint64_t continued, end;         /* queries answered "continue" so far; the first one answered "stop" */
    int canceled;                    /* the stop was requested by *cancel */
    int broken;                      /* a rank failed */
    const float *x[SG_RANKS_MAX];   /* join: the input of each rank */
};

void sg_rank_sync_open(struct sg_rank_sync *m, uint32_t ranks, const atomic_int *cancel);
void sg_rank_sync_close(struct sg_rank_sync *m);
/* Barrier before the first pass. 1: all ranks arrived. 0: one failed. */
int sg_rank_sync_arrive(struct sg_rank_sync *m);
/* After a pass: 1 = stop. All ranks get the same answer to their n-th query. want: this rank requests a stop; *cancel does too.
 * The request takes effect at the first query that no rank has passed yet. */
int sg_rank_sync_should_stop(struct sg_rank_sync *m, uint32_t rank, int want);
int sg_rank_sync_canceled(struct sg_rank_sync *m);
/* This rank failed: all waiting ranks return with an error. */
void sg_rank_sync_abort(struct sg_rank_sync *m);
/* Op `join` (graph/op.h): y from the x [rows][width] of all ranks: their sum [rows][width], or their rows side by side
 * [rows][ranks * width]. Adds in the order of ranks, so that all get the same bits. ELOST: a rank failed. */
segue_status sg_rank_sync_join(struct sg_rank_sync *m, uint32_t rank, const struct sg_join *join, const float *x, uint32_t rows,
                             uint32_t width, float *y, segue_error *err);

#endif
