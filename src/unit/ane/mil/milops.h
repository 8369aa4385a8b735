/* milops.h: the operations of MIL that this unit knows: arguments, and what is known of them on engines
 * (docs/ANE.md has the sources). Must never know how one is computed. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILOPS_H
#define SG_UNIT_ANE_MILOPS_H

#include "unit/ane/mil/mil.h"

/* One rule of types for each shape of operation. */
enum sg_mil_rule {
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

enum {
    SG_MIL_ELEMENTWISE = 1, /* one result of one element of each operand */
    SG_MIL_NO_PATH = 2,     /* never compiles for the engine: constraint 10 */
    SG_MIL_DOUBTED = 4,     /* refused by some compilers: constraint 10 in the strict profile */
    SG_MIL_NAMED = 8,       /* its constants must be named consts outside the buffer dialect: constraint 13 */
    SG_MIL_CORE_ML = 16     /* only the public framework knows it */
};

struct sg_mil_op_info {
    const char *kind;
    const char
        *args;    /* "x weight strides! bias?": ! must be constant, ? may be left out, * a list; each once */
    uint8_t rule; /* enum sg_mil_rule */
    uint8_t flags;
    uint8_t since; /* first function target: 16, 17, 18 */
};

const struct sg_mil_op_info *sg_mil_op_named(const char *kind, size_t n); /* NULL: not known */
size_t sg_mil_op_count(void);
const struct sg_mil_op_info *sg_mil_op_at(size_t i);
/* 1 when the operation takes an argument of that name; *constant and *list say how. */
int sg_mil_op_takes(const struct sg_mil_op_info *info, const char *name, int *constant, int *list,
                    int *optional);
/* The i-th argument's name in *n bytes at the result; NULL: no more. */
const char *sg_mil_op_arg(const struct sg_mil_op_info *info, uint32_t i, size_t *n, char *mark);

#endif
