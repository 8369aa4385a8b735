/* npu_table.c: the handler of each MIL operation. See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ane/mil/milops.h"
#include "unit/ane/npu/npu_plan.h"

/* Handlers by the name of the operation. Groups of similar operations have one type rule and one
 * handler; they are not listed here but found by their rule. */
static const struct {
    const char *kind;
    sg_npu_handler *run;
} handlers[] = {
    /* products */
    {"conv", sg_npu_conv},
    {"matmul", sg_npu_matmul},
    {"linear", sg_npu_linear},
    {"einsum", sg_npu_einsum},
    {"select", sg_npu_select},
    /* along axes */
    {"softmax", sg_npu_softmax},
    {"layer_norm", sg_npu_layer_norm},
    {"instance_norm", sg_npu_channel_norm},
    {"l2_norm", sg_npu_channel_norm},
    {"batch_norm", sg_npu_channel_norm},
    {"reduce_argmax", sg_npu_arg},
    {"reduce_argmin", sg_npu_arg},
    {"topk", sg_npu_sorted},
    {"argsort", sg_npu_sorted},
    /* views and copies */
    {"reshape", sg_npu_view},
    {"expand_dims", sg_npu_view},
    {"squeeze", sg_npu_view},
    {"identity", sg_npu_view},
    {"tensor_buffer_to_tensor", sg_npu_view},
    {"tensor_to_tensor_buffer", sg_npu_view},
    {"transpose", sg_npu_transpose},
    {"slice_by_size", sg_npu_slice},
    {"slice_by_index", sg_npu_slice},
    {"slice_update", sg_npu_slice_update},
    {"concat", sg_npu_concat},
    {"stack", sg_npu_stack},
    {"split", sg_npu_split},
    {"tile", sg_npu_tile},
    {"pad", sg_npu_pad},
    {"reverse", sg_npu_reverse},
    {"depth_to_space", sg_npu_blocks},
    {"space_to_depth", sg_npu_blocks},
    {"pixel_shuffle", sg_npu_blocks},
    {"gather", sg_npu_gather},
    /* types */
    {"cast", sg_npu_cast},
    {"quantize", sg_npu_quantize},
    {"dequantize", sg_npu_dequantize},
    {"scaled_dot_product_attention", sg_npu_attention},
};

/* Constants and constexpr operations were decoded when the plan was made, so they need no handler. */
sg_npu_handler *sg_npu_handler_of(const struct sg_mil_op *op, int *nothing)
{
    *nothing = op->info->rule == SG_MIL_T_CONST || !strncmp(op->kind, "constexpr_", 10);
    for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++)
        if (!strcmp(handlers[i].kind, op->kind)) return handlers[i].run;
    switch (op->info->rule) {
    case SG_MIL_T_REDUCE:
        return sg_npu_reduce;
    case SG_MIL_T_SAME:
        return sg_npu_unary;
    case SG_MIL_T_BROADCAST:
        return sg_npu_binary;
    case SG_MIL_T_COMPARE:
        return sg_npu_compare;
    default:
        return NULL;
    }
}
