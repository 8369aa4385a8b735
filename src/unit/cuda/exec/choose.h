/* choose.h: how a run chooses tokens, on the GPU: greedily by the output head and k_choose.cu, else by k_sample.cu. Implemented
 * in choose.c, sampler_upload.c and lookahead.c. The context is current, and the lane locked by the run; errors are in the run.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_CHOOSE_H
#define SG_UNIT_CUDA_CHOOSE_H

#include "unit/cuda/exec/exec_pass.h"

/* --- greedy choices --- */

/* 1: the sampler takes the highest logit unchanged, and asks for no log-probabilities: k_choose.cu can choose. */
int cu_is_greedy(const struct sg_sampler *s);
/* Tokens that a greedy choice must not return: rows beyond the limit, and stop tokens when they are ignored. */
struct ck_banned cu_banned_of(const struct sg_run *run, const struct sg_sampler *s);
/* 1: all samplers of the plan's spans are greedy with the same banned tokens, which are returned. */
int cu_all_greedy(const struct sg_run *run, const struct cu_pass_plan *plan, struct ck_banned *banned);

/* --- sampling (sampler_upload.c) --- */

/* A row to choose for. row: which wanted row of the pass. */
struct cu_sampled_row {
    const struct sg_sampler *sampler;
    uint32_t span, row;
};
/* Writes the settings of n rows to the GPU, in a stream, and allocates what the kernel needs. growth: tokens that will be
 * appended before the next upload. */
segue_status cu_samplers_upload(struct sg_run *run, const struct cu_sampled_row *rows, uint32_t n, uint32_t growth,
                                cu_stream stream);
/* 1: the settings on the GPU are these; the histories are not compared. */
int cu_samplers_equal(const struct sg_run *run, const struct cu_sampled_row *rows, uint32_t n);
/* Outcome of row i of the args block: the token, and log-probabilities for the caller. EFORMAT: there is none. */
segue_status cu_sampled_result(struct sg_run *run, const struct cu_sampled_row *row, uint32_t args_index, uint32_t i,
                               int32_t *token);

/* --- both --- */

/* EFORMAT: no logit was a number, so no token could be chosen. */
segue_status cu_no_finite_logit(struct sg_run *run);
/* Runs a pass and chooses a token for each span that ends in it. `one`: a sampler used in place of the spans'; NULL: theirs.
 * *token: the last one chosen. copy_logits: as cu_pass_run. */
segue_status cu_pass_and_choose(struct sg_run *run, struct cu_pass_plan *plan, int copy_logits, const struct sg_sampler *one,
                                int32_t *token);
/* One row per sequence (lookahead.c): 1 if the run can be executed so; fills the plan's parts and banned tokens. */
int cu_can_look_ahead(struct sg_run *run, struct cu_pass_plan *plan);
segue_status cu_run_lookahead(struct sg_run *run, struct cu_pass_plan *plan);

#endif
