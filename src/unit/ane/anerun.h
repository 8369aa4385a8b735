/* anerun.h: a run of the unit `ane`, shared by anerun.c (dispatches), aneborder.c (rows and host operations) and
 * anechoose.c (the choice of tokens).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_ANERUN_H
#define SG_UNIT_ANE_ANERUN_H

#include "unit/ane/aneunit.h"

struct sg_run {
    struct sg_thread_run common;     /* its spans are those of the current pass */
    struct sg_program *program;
    struct ane_host host;
    int all_rows;                    /* index of the partition, see sg_program.cut */
    int on_engine;                   /* 1: the engine chooses the tokens; no logits are computed */
    int32_t token;                   /* the last one that was chosen */
    uint32_t rows_n[2];              /* rows of the batch: all, wanted */
    uint64_t dispatches;             /* evaluated engine programs */
    uint64_t host_bytes;             /* bytes copied to and from surfaces */
    uint64_t overflows, underflows;  /* results beyond the range of fp16 */
    uint64_t layout_ops;             /* of the dispatches */
    uint64_t columns, unseen;        /* as in struct sg_result: rows with padding; see unseen_of */
};

static inline const struct sg_ane_part *ane_run_last(const struct sg_run *run)
{
    const struct sg_ane_partition *cut = &run->program->cut[run->all_rows];
    return &cut->parts[cut->parts_n - 1];
}

/* --- aneborder.c --- */

enum { ANE_ALL_SPANS = -1 };

/* Memory for all rows of a value, [T or R, width] fp32, where T is the rows of the batch and R the wanted ones. It is freed
 * with the run: later dispatches and spans write the rows after those of the first. */
segue_status ane_run_value(struct sg_run *run, int32_t value, float **out);
/* Copies rows [at, at + n) of the listed values to (in 1) or from a surface between parts, which has the channels of one value
 * after the other; from: the columns from `column` on. EUNSUPPORTED: a value exceeds fp16. */
segue_status ane_run_copy(struct sg_run *run, const int32_t *values, uint32_t values_n, uint32_t at, uint32_t n,
                          const struct sg_ane_shape *shape, uint32_t column, struct sg_ane_surface *s, int in);
/* Operations after the last part: on the wanted rows of all spans, or on the last wanted row of span `only`. */
segue_status ane_run_behind(struct sg_run *run, int only);
/* Copies the values that leave the last part, of `column` of a surface, to row `at` of the batch. */
segue_status ane_run_row_get(struct sg_run *run, uint32_t at, uint32_t column, const struct sg_ane_shape *shape,
                             struct sg_ane_surface *s);
/* The reverse, to column 0 of a surface for a single row. */
segue_status ane_run_row_put(struct sg_run *run, uint32_t at, struct sg_ane_surface *s);

/* --- anechoose.c --- */

/* 1: the engine can choose all tokens of the run: greedily, where neither logits nor values are to be returned. */
int ane_chooses_on_engine(const struct sg_run *run);
/* The token after the last wanted row of span s, row `at` of the batch and `column` of the surface x[turn] that the last part of
 * a dispatch of this shape has written. */
segue_status ane_choose_row(struct sg_run *run, uint32_t s, uint32_t at, uint32_t column, const struct sg_ane_shape *shape,
                            int turn);
/* The tokens of all spans with a sampler, from logits that ane_run_behind computed; they are overwritten. Keeps the logits for
 * ane_state_logits where the caller does not read them. */
segue_status ane_choose_from_logits(struct sg_run *run);

#endif
