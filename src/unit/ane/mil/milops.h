/* milops.h: table of the MIL operations that the unit knows: their arguments, type rule and what is known
 * about their support on engines (sources in docs/ANE.md). The table does not know how an operation is
 * computed; that is the software NPU's part.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILOPS_H
#define SG_UNIT_ANE_MILOPS_H

#include "unit/ane/mil/mil.h"

/* Type rules; operations with the same shape behaviour share one. milinfer.c maps each to its function.
 * SG_MIL_T_NONE: the operation has no rule because no engine compiles it. */
enum sg_mil_type_rule {
    SG_MIL_T_CONST,
    SG_MIL_T_SAME,
    SG_MIL_T_BROADCAST,
    SG_MIL_T_COMPARE,
    SG_MIL_T_SELECT,
    SG_MIL_T_CONV,
    SG_MIL_T_MATMUL,
    SG_MIL_T_LINEAR,
    SG_MIL_T_EINSUM,
    SG_MIL_T_REDUCE,
    SG_MIL_T_ARG,
    SG_MIL_T_RESHAPE,
    SG_MIL_T_TRANSPOSE,
    SG_MIL_T_EXPAND,
    SG_MIL_T_SQUEEZE,
    SG_MIL_T_SLICE_SIZE,
    SG_MIL_T_SLICE_INDEX,
    SG_MIL_T_SLICE_UPDATE,
    SG_MIL_T_CONCAT,
    SG_MIL_T_SPLIT,
    SG_MIL_T_STACK,
    SG_MIL_T_TILE,
    SG_MIL_T_PAD,
    SG_MIL_T_BLOCKS,
    SG_MIL_T_GATHER,
    SG_MIL_T_CAST,
    SG_MIL_T_QUANTIZE,
    SG_MIL_T_DEQUANTIZE,
    SG_MIL_T_AFFINE,
    SG_MIL_T_PALETTE,
    SG_MIL_T_SPARSE,
    SG_MIL_T_BLOCKWISE,
    SG_MIL_T_ATTENTION,
    SG_MIL_T_TOPK,
    SG_MIL_T_ARGSORT,
    SG_MIL_T_UNBUFFER,
    SG_MIL_T_BUFFER,
    SG_MIL_T_NONE
};

/* Bits of sg_mil_op_info.flags. */
enum {
    SG_MIL_ELEMENTWISE = 1, /* each result element depends on one element of each operand */
    SG_MIL_UNSUPPORTED = 2,  /* never compiles for the engine (constraint 10) */
    SG_MIL_UNCERTAIN = 4,    /* rejected by some compilers (constraint 10, strict profile only) */
    SG_MIL_NAMED_CONSTS = 8, /* constants must be named outside the buffer dialect (constraint 13) */
    SG_MIL_CORE_ML = 16      /* known to Core ML only, not to the private interface */
};

/* One operation. args is a list such as "x weight strides! bias?": `!` must be a constant, `?` optional, `*`
 * a list of values; `!?` combines the first two. Each argument is named once. */
struct sg_mil_op_info {
    const char *kind;
    const char *args; /* NULL: arguments are not described */
    uint8_t rule; /* enum sg_mil_type_rule */
    uint8_t flags;
    uint8_t since; /* lowest function target that has the operation: 16, 17 or 18 (iosNN) */
};

/* Entry for a name of n bytes; NULL: unknown operation. */
const struct sg_mil_op_info *sg_mil_op_named(const char *kind, size_t n);
/* 1 when the operation has an argument of this name; the flags are then set. The outputs are unchanged
 * otherwise. */
int sg_mil_op_takes(const struct sg_mil_op_info *info, const char *name, int *constant, int *list,
                    int *optional);
/* Name of argument i: *n bytes at the returned pointer, and the first marker character or 0. NULL: i is past
 * the last argument. */
const char *sg_mil_op_arg(const struct sg_mil_op_info *info, uint32_t i, size_t *n, char *mark);

#endif
