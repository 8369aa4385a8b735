/* lowercommon.h: what the files of a lowering share.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERCOMMON_H
#define SG_UNIT_ANE_LOWERCOMMON_H

#include "unit/ane/lower/lowerblob.h"
#include "unit/ane/lower/lowerinfo.h"
#include "unit/ane/lower/lowerpart.h"
#include "unit/ane/mil/milbuild.h"

/* --- between the files that lower --- */

struct sg_lowering {
    struct sg_mil_builder b;
    const struct sg_graph *g;
    const struct sg_ane_part *part;
    const struct sg_ane_info *info;
    const struct sg_ane_shape *shape;
    struct sg_ane_blobs *blobs;
    uint32_t *values;            /* [g->values_n] MIL value; SG_MIL_NONE: not there */
    uint32_t *fused_out;            /* [g->ops_n] what a linear operation has of a shared convolution; SG_MIL_NONE: nothing yet */
    uint32_t *slot_in, *slot_out;  /* [g->slots_n] packed slots as they came, as they leave */
    uint32_t lora;                  /* the port as it came */
    uint32_t info_port, info_rows;  /* the port as it came; its first S columns */
    uint32_t scatter[SG_ANE_KINDS_MAX], keep[SG_ANE_KINDS_MAX]; /* [1, 1, ring, S]; [1, 1, 1, ring]: 1 where a row stays; of each kind */
    int64_t s;                   /* columns inside: 1 for one row, else those of the surfaces */
};
/* An operand as [1, width, 1, S]. */
uint32_t sg_ane_operand(struct sg_lowering *l, const struct sg_operand *x);
/* Values may lie divided by powers of two (lowerrange.h): by 2^shift, of a graph's value; an operand as it lies, or as it
 * must lie; a number that goes from 2^-from to 2^-to. */
int sg_ane_value_shift(const struct sg_lowering *l, int32_t value);
uint32_t sg_ane_operand_stored(struct sg_lowering *l, const struct sg_operand *x);
uint32_t sg_ane_operand_scaled(struct sg_lowering *l, const struct sg_operand *x, int shift);
uint32_t sg_ane_rescale(struct sg_lowering *l, uint32_t x, int from, int to);
/* Channels [at, at + n) of [1, C, 1, W]; all of them: the value itself. */
uint32_t sg_ane_channels(struct sg_lowering *l, uint32_t x, int64_t at, int64_t n);
/* A weight as a constant of that shape, which has as many numbers. */
uint32_t sg_ane_weight(struct sg_lowering *l, const struct sg_weight *w, enum sg_ane_form form, uint32_t rank,
                       const int64_t *dim);
/* n of them, their rows one below the other. */
uint32_t sg_ane_weights(struct sg_lowering *l, const struct sg_weight *w, uint32_t n, enum sg_ane_form form, uint32_t rank,
                        const int64_t *dim);
/* Matrices of 0 and 1: entry (i, j) is 1 where keep(i, j, n). [1, 1, n, n]. */
uint32_t sg_ane_pattern_matrix(struct sg_lowering *l, int64_t n, int (*entry)(int64_t i, int64_t j, int64_t arg), int64_t arg);
/* Zeros of a shape. */
uint32_t sg_ane_zeros(struct sg_lowering *l, int64_t channels, int64_t rows, int64_t columns);
/* A flat slot's numbers as a tensor of that shape, and back to packed channels. */
uint32_t sg_ane_unpack(struct sg_lowering *l, int32_t slot, uint32_t rank, const int64_t *dim);
void sg_ane_pack(struct sg_lowering *l, int32_t slot, uint32_t x, int64_t last);
uint32_t sg_ane_act(struct sg_lowering *l, enum sg_act act, uint32_t x);
/* x / sqrt(sum over the axis of x^2 * share + eps): no overflow, whatever the size of x. */
uint32_t sg_ane_normalize(struct sg_lowering *l, uint32_t x, int64_t axis, double mean_scale, double eps, int centered);

uint32_t sg_ane_lower_attend(struct sg_lowering *l, const struct sg_op *op);
uint32_t sg_ane_lower_conv(struct sg_lowering *l, const struct sg_op *op);
uint32_t sg_ane_lower_delta(struct sg_lowering *l, const struct sg_op *op);
/* y with what adapters add to a linear operation of x. */
uint32_t sg_ane_lower_lora(struct sg_lowering *l, const struct sg_op *op, uint32_t x, uint32_t y);
uint32_t sg_ane_lower_stateless(struct sg_lowering *l, const struct sg_op *op); /* norm, linear, rope, glu, ... */

#define SG_ANE_SHAPE(...) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}
#define SG_ANE_BIN(kind, x, y) sg_mil_build_binary(&l->b, kind, x, y)
#define SG_ANE_UN(kind, x) sg_mil_build_unary(&l->b, kind, x)
#define SG_ANE_NUM(v) sg_mil_build_real(&l->b, v)

#endif
