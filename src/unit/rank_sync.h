/* rank_sync.h: what the ranks of one run agree on while each does its share (unit/team.h): that all are there, after which pass
 * they stop, and, for units that compute in the host's memory, what a `join` gives. Every rank asks in the same order. Any
 * number of threads, one a rank.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_RANK_SYNC_H
#define SG_UNIT_RANK_SYNC_H

#include <pthread.h>
#include <stdatomic.h>

#include "graph/tensor_parallel.h"

struct sg_rank_sync {
    pthread_mutex_t lock;            /* of all below */
    pthread_cond_t moved;
    const atomic_int *cancel;        /* the caller's, or NULL */
    uint32_t ranks, came;
    uint64_t turn;                   /* how often all have come */
    uint64_t asked[SG_RANKS_MOST];   /* how often each rank asked whether to stop */
    uint64_t begun, end;             /* the most of them that went on; where all stop */
    int canceled, broken;
    const float *x[SG_RANKS_MOST];
};

void sg_rank_sync_open(struct sg_rank_sync *m, uint32_t ranks, const atomic_int *cancel);
void sg_rank_sync_close(struct sg_rank_sync *m);
/* Before anything is issued: 1 when all ranks have come, 0 when one never will. */
int sg_rank_sync_arrive(struct sg_rank_sync *m);
/* 1: stop here, as every rank does that asks for as many times: somebody wanted it, or the caller canceled. */
int sg_rank_sync_should_stop(struct sg_rank_sync *m, uint32_t rank, int want);
int sg_rank_sync_canceled(struct sg_rank_sync *m);
/* A rank failed: who waits for it goes on with an error. */
void sg_rank_sync_abort(struct sg_rank_sync *m);
/* y [rows][width, or ranks * width] of all ranks' x [rows][width], as op.h says it. ELOST: a rank failed. */
segue_status sg_rank_sync_join(struct sg_rank_sync *m, uint32_t rank, const struct sg_join *join, const float *x, uint32_t rows,
                             uint32_t width, float *y, segue_error *err);

#endif
