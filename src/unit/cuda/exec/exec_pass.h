/* exec_pass.h: one pass of a run. All functions are called with the context current and the run's lane locked; errors are put
 * into the run. A pass: cu_pass_begin, cu_pass_fill_head, cu_pass_alloc, cu_pass_send_head, cu_pass_issue, wait, cu_pass_commit.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_EXEC_PASS_H
#define SG_UNIT_CUDA_EXEC_PASS_H

#include "unit/cuda/exec/cuda_run.h"
#include "unit/cuda/issue/issue.h"
#include "unit/group/rank_sync.h"

enum { CU_CHUNKS_MIN = 4, CU_CHUNKS_MAX = CU_HEADS_CHUNKS };

/* Rows [from, from + rows) of a span. */
struct cu_span_part {
    uint32_t span, from, rows;
};

struct cu_sampled_row;

/* What a pass computes. All parts are in one pass: their rows are concatenated in this order. */
struct cu_pass_plan {
    struct cu_span_part parts[CK_SPANS]; /* of different spans */
    uint32_t parts_n;
    uint32_t best;    /* 1: the GPU chooses: the best row of each wanted row, or by sampling */
    uint32_t sampled, logprobs; /* rows chosen by sampling, in the order of the parts that end; of them, those that want
                                 * log-probabilities */
    const struct cu_sampled_row *late; /* [sampled] NULL, or: their masks are made while the pass runs, so that their settings and
                                        * the choice are issued after it */
    uint32_t advance; /* 0: no next token; 1: the head is advanced to the next token (generation on the GPU); 2: lookahead */
    uint32_t stops_n; /* stop tokens in the lane's `stops` */
    uint32_t screen;  /* 1: no caller wants logits, so the candidate filter may be used */
    struct ck_banned banned;        /* tokens that must not be chosen */
    uint32_t wanted_from[CK_SPANS]; /* index of the first wanted row of each part in its span; set by cu_pass_fill_head */
};

/* 1: the run ends before the next pass. In a group this counts as a query to rank_sync, so all ranks must ask equally often. */
static inline int cu_run_stopped(const struct sg_run *run)
{
    if (run->base.batch.rank_sync) return sg_rank_sync_should_stop(run->base.batch.rank_sync, run->base.batch.rank, 0);
    return run->base.batch.cancel && atomic_load(run->base.batch.cancel);
}

/* Converts the result of a driver call into the error of the run. */
static inline segue_status cu_run_check(struct sg_run *run, cu_result r)
{
    return cu_check(&run->program->base.unit->d, r, "run", &run->base.error);
}

/* Chunks of CK_CHUNK positions that attention over `rows` rows needs, rounded up to a power of two: few graphs serve all
 * lengths. Beyond CU_CHUNKS_MAX one graph serves every depth: its kernels read the positions from GPU memory. */
static inline uint32_t cu_chunks_for(uint64_t rows)
{
    uint32_t chunks = CU_CHUNKS_MIN;
    while ((uint64_t)chunks * CK_CHUNK < rows && chunks <= CU_CHUNKS_MAX) chunks *= 2;
    return chunks;
}

/* --- arguments and buffers (pass_args.c) --- */

/* The pinned copy of address p of an args block. */
static inline void *cu_args_pinned(const struct cu_pass_args *h, cu_ptr p) { return h->pinned + (p - h->head); }
int cu_run_has_loras(const struct sg_run *run);                            /* 1: a span has adapters */
/* 1: every op is a step: adapters, extra outputs, a fault. */
int cu_pass_is_unfused(const struct sg_run *run, const struct cu_pass *p);
/* Number of wanted rows of a span that are in a part; *first: index of the first. */
uint32_t cu_part_wanted(const struct sg_span *s, const struct cu_span_part *part, uint32_t *first);
segue_status cu_pass_fill_head(const struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p); /* the pinned args */
void cu_pass_one_row_counts(struct cu_pass *p, uint32_t n); /* counts of a pass with one row of each of n sequences */
/* Pads a short prompt to a multiple of CU_PAD_ROWS rows. */
void cu_pass_pad(const struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p);
segue_status cu_pass_alloc(struct sg_run *run, struct cu_pass *p);           /* value buffers that are large enough */
segue_status cu_pass_send_head(struct sg_run *run, const struct cu_pass *p); /* the args to the GPU */
/* The rows of numbers that are inputs of the graph. */
segue_status cu_pass_send_inputs(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p);

/* --- issuing (pass_steps.c, capture.c, exec_pass.c): asynchronous --- */

/* Rows of this span's predecessors among all rows (wanted 0) or wanted rows (1) of the batch. */
size_t cu_rows_before(const struct sg_run *run, uint32_t span, int wanted);
/* A value's rows to the caller's memory, which has the rows of all spans. */
segue_status cu_copy_rows_out(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, int32_t value, float *out);
/* All steps, launch by launch, and the choice. */
segue_status cu_pass_issue_steps(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p);
/* After a step: events for readers of the state. */
segue_status cu_pass_layer_done(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p,
                                const struct cu_step *step);
segue_status cu_pass_choice(const struct cu_pass_plan *plan, struct cu_pass *p); /* nothing if the choice is late */
/* The same as cu_pass_issue_steps, by captured graphs from the second time on. */
segue_status cu_pass_launch_graph(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p);
void cu_captured_forget(struct sg_unit *u, struct cu_lane *l); /* destroys all graphs of a lane */
void cu_graphs_reserve(struct sg_unit *u, struct cu_lane *l);  /* after graphs_max or graphs_bytes has changed */

/* --- a pass (exec_pass.c) --- */

/* Selects the lane's stream: the one on the SM partition while the other lane runs, else the one on all multiprocessors. */
segue_status cu_pass_select_stream(struct sg_run *run);
/* Initialises p. spans [CK_SPANS] must live as long as p. */
void cu_pass_begin(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, const struct sg_span **spans);
segue_status cu_pass_issue(struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p);
/* After the pass is complete: counts its rows as held by the states. */
void cu_pass_commit(struct sg_run *run, const struct cu_pass_plan *plan);
/* A whole pass, until it is complete. copy_logits 1: to the caller's result. */
segue_status cu_pass_run(struct sg_run *run, struct cu_pass_plan *plan, int copy_logits);
segue_status cu_pass_logits_buffer(struct sg_run *run, float **out); /* the lane's pinned logits, allocated on first use */
segue_status cu_pass_save_logits(struct sg_run *run); /* before the value buffers are overwritten: kept logits of other states */
/* The choice of an issued pass with plan->late: waits for the masks and copies them in the stream `copies`. If that is not the
 * lane's own stream, no earlier choice of the lane is in progress. */
segue_status cu_pass_choose_late(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, cu_stream copies);
/* After a pass that copied no logits: each part's last ones stay on the GPU until they are requested. */
void cu_pass_keep_logits(struct sg_run *run, const struct cu_pass_plan *plan, const struct cu_pass *p);

#endif
