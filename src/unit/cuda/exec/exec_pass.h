/* exec_pass.h: one pass of a run, for whoever decides which rows go together (exec_steps.c). All of it is called with the GPU
 * current and the run's lane ours; errors stand in the run. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_CUTRIP_H
#define SG_UNIT_CUDA_CUTRIP_H

#include "unit/cuda/issue/issue.h"
#include "unit/cuda/exec/cuda_run.h"
#include "unit/rank_sync.h"

enum { CU_CHUNKS_LEAST = 4 };

struct part { /* rows [from, from + rows) of a span */
    uint32_t span, from, rows;
};

struct trip {
    struct part parts[CK_SPANS];
    uint32_t parts_n, best, advance, stops_n, screen; /* screen: no logits are wanted, by anybody */
    struct ck_banned banned;        /* what the best row must not be */
    uint32_t wanted_from[CK_SPANS]; /* first wanted row of the span that lies in its part */
};

static inline int cu_run_stopped(const struct sg_run *run)
{
    if (run->own.batch.rank_sync) return sg_rank_sync_should_stop(run->own.batch.rank_sync, run->own.batch.rank, 0);
    return run->own.batch.cancel && atomic_load(run->own.batch.cancel);
}

static inline segue_status cu_run_check(struct sg_run *run, cu_result r)
{
    return cu_check(&run->program->base.unit->d, r, "run", &run->own.error);
}

/* Where the host writes what lies at p in the head on the card. */
static inline void *cu_trip_pinned(const struct cu_pass_args *h, cu_ptr p) { return h->pinned + (p - h->head); }

int cu_trip_loras(const struct sg_run *run);                     /* 1: a span of the run has adapters */
/* How many wanted rows of a span lie in a part, and from which on. */
uint32_t cu_trip_wanted(const struct sg_span *s, const struct part *part, uint32_t *first);
segue_status cu_trip_stream(struct sg_run *run); /* the lane's stream from now on: beside the other kind of runs or alone */
/* A pass by its parts: p is filled, spans[CK_SPANS] is room that lives as long as p. */
void cu_trip_begin(struct sg_run *run, const struct trip *trip, struct cu_pass *p, const struct sg_span **spans);
segue_status cu_trip_head(const struct sg_run *run, struct trip *trip, struct cu_pass *p); /* the head, on the host */
void cu_trip_counts(struct cu_pass *p, uint32_t n);                  /* those of a pass of one row */
segue_status cu_trip_room(struct sg_run *run, struct cu_pass *p);
segue_status cu_trip_send(struct sg_run *run, const struct cu_pass *p);     /* the head, to the card */
segue_status cu_trip_issue(struct sg_run *run, struct trip *trip, struct cu_pass *p);
/* The parts of that: straight; behind a step, for who reads beside the run; the choice at the end; as a captured graph. */
segue_status cu_trip_straight(struct sg_run *run, const struct trip *trip, struct cu_pass *p);
segue_status cu_trip_flow(struct sg_run *run, const struct trip *trip, struct cu_pass *p, const struct cu_step *step);
segue_status cu_trip_choice(const struct trip *trip, struct cu_pass *p);
segue_status cu_trip_captured(struct sg_run *run, const struct trip *trip, struct cu_pass *p);
void cu_trip_over(struct sg_run *run, const struct trip *trip);  /* its rows are rows of the states now */
/* All of that, and waits. give_logits 0: they stay on the card. last_logits: room for the last wanted row's of each part,
 * or NULL. */
segue_status cu_trip_go(struct sg_run *run, struct trip *trip, int give_logits, float *last_logits);

segue_status cu_trip_logits(struct sg_run *run, float **out);    /* pinned room for logits of the lane */
/* Logits that nobody asked for yet stay where they are until the lane wants the place. */
segue_status cu_trip_clear(struct sg_run *run);
void cu_trip_keep(struct sg_run *run, const struct trip *trip, const struct cu_pass *p);

#endif
