/* lowercommon.h: state and helper functions shared by the files that lower operations. Internal to this
 * folder.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERCOMMON_H
#define SG_UNIT_ANE_LOWERCOMMON_H

#include "unit/ane/analysis/partition.h"
#include "unit/ane/lower/lowerblob.h"
#include "unit/ane/lower/lowerinfo.h"
#include "unit/ane/mil/milbuild.h"

/* State of one sg_ane_lower. Functions that return a value number return that of the new MIL value; after a
 * failure, which the builder records, the number is meaningless. */
struct sg_lowering {
    struct sg_mil_builder b;
    const struct sg_graph *g;
    const struct sg_ane_part *part;
    const struct sg_ane_info *info;
    const struct sg_ane_shape *shape;
    struct sg_ane_blobs *blobs;
    uint32_t *values;              /* [g->values_n] MIL value of a graph value */
    uint32_t *fused_out;           /* [g->ops_n] slice of a shared convolution for a linear op; SG_MIL_NONE: not built */
    uint32_t *slot_in, *slot_out;  /* [g->slots_n] packed slots before and after the dispatch */
    uint32_t lora;                 /* input `lora`, when the shape has a rank */
    uint32_t info_port, info_rows; /* input `info`, and its first S columns */
    uint32_t scatter[SG_ANE_KINDS_MAX]; /* by kind of attention: [1, 1, ring, S], SG_MIL_NONE: not built */
    uint32_t keep[SG_ANE_KINDS_MAX];    /* by kind: [1, 1, 1, ring], 1 where a row is not overwritten */
    int64_t s;                          /* S: 1 for a dispatch of one row, else the columns of the surfaces */
};
/* An operand as [1, width, 1, S], unscaled. */
uint32_t sg_ane_operand(struct sg_lowering *l, const struct sg_operand *x);
/* Values may be stored divided by 2^shift (value_range.h). These give the shift of a graph value; an operand
 * as stored; an operand with a given shift; and x converted from one shift to another. */
int sg_ane_value_shift(const struct sg_lowering *l, int32_t value);
uint32_t sg_ane_operand_stored(struct sg_lowering *l, const struct sg_operand *x);
uint32_t sg_ane_operand_scaled(struct sg_lowering *l, const struct sg_operand *x, int shift);
uint32_t sg_ane_rescale(struct sg_lowering *l, uint32_t x, int from, int to);
/* Channels [at, at + n) of [1, C, 1, W]; x itself when these are all. */
uint32_t sg_ane_channels(struct sg_lowering *l, uint32_t x, int64_t at, int64_t n);
/* A weight as a constant of the given shape, which must have the same number of elements. */
uint32_t sg_ane_weight(struct sg_lowering *l, const struct sg_weight *w, enum sg_ane_form form, uint32_t rank,
                       const int64_t *dim);
/* n weights as one constant, their rows concatenated. */
uint32_t sg_ane_weights(struct sg_lowering *l, const struct sg_weight *w, uint32_t n, enum sg_ane_form form, uint32_t rank,
                        const int64_t *dim);
/* Constant [1, 1, n, n] with the elements entry(i, j, arg). */
uint32_t sg_ane_pattern_matrix(struct sg_lowering *l, int64_t n, int (*entry)(int64_t i, int64_t j, int64_t arg), int64_t arg);
uint32_t sg_ane_identity(struct sg_lowering *l, int64_t n);  /* [1, 1, n, n] */
/* Constant of zeros, [1, channels, rows, columns]. */
uint32_t sg_ane_zeros(struct sg_lowering *l, int64_t channels, int64_t rows, int64_t columns);
/* The elements of a packed slot as a tensor of a given shape, and the reverse: x becomes the new contents
 * of the slot. last: size of the last dimension that the elements were unpacked with. */
uint32_t sg_ane_unpack(struct sg_lowering *l, int32_t slot, uint32_t rank, const int64_t *dim);
void sg_ane_pack(struct sg_lowering *l, int32_t slot, uint32_t x, int64_t last);
uint32_t sg_ane_act(struct sg_lowering *l, enum sg_act act, uint32_t x);
/* x / sqrt(mean_scale * sum of x^2 over the axis + eps), after subtracting the mean if centered. Does not
 * overflow for any x. */
uint32_t sg_ane_normalize(struct sg_lowering *l, uint32_t x, int64_t axis, double mean_scale, double eps, int centered);

/* Lower one operation of the named kind and return its result. */
uint32_t sg_ane_lower_attend(struct sg_lowering *l, const struct sg_op *op);
uint32_t sg_ane_lower_conv(struct sg_lowering *l, const struct sg_op *op);
uint32_t sg_ane_lower_delta(struct sg_lowering *l, const struct sg_op *op);
/* y plus the low-rank change that the adapters make to a linear operation of x; y itself without adapters. */
uint32_t sg_ane_lower_lora(struct sg_lowering *l, const struct sg_op *op, uint32_t x, uint32_t y);
uint32_t sg_ane_lower_stateless(struct sg_lowering *l, const struct sg_op *op); /* norm, linear, rope, glu, ... */

/* Shorthand for the functions below: rank and dims, binary and unary operations, a scalar. They expect the
 * lowering in a variable named l. */
#define SG_ANE_SHAPE(...) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}
#define SG_ANE_BIN(kind, x, y) sg_mil_build_binary(&l->b, kind, x, y)
#define SG_ANE_UN(kind, x) sg_mil_build_unary(&l->b, kind, x)
#define SG_ANE_NUM(v) sg_mil_build_real(&l->b, v)

#endif
