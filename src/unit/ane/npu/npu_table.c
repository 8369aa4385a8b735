/* npu_table.c: which handler computes which operation, and what handlers share. See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/ane/mil/milops.h"
#include "unit/ane/npu/npu_plan.h"

/* Handlers by operation name. An operation that is not listed is found by its type rule in
 * sg_npu_handler_of. */
static const struct {
    const char *kind;
    sg_npu_handler *run;
} handlers[] = {
    {"conv", sg_npu_conv},
    {"matmul", sg_npu_matmul},
    {"linear", sg_npu_linear},
    {"einsum", sg_npu_einsum},
    {"select", sg_npu_select},
    {"softmax", sg_npu_softmax},
    {"layer_norm", sg_npu_layer_norm},
    {"instance_norm", sg_npu_channel_norm},
    {"l2_norm", sg_npu_channel_norm},
    {"batch_norm", sg_npu_channel_norm},
    {"reduce_argmax", sg_npu_arg},
    {"reduce_argmin", sg_npu_arg},
    {"topk", sg_npu_sorted},
    {"argsort", sg_npu_sorted},
    {"reshape", sg_npu_same},
    {"expand_dims", sg_npu_same},
    {"squeeze", sg_npu_same},
    {"identity", sg_npu_same},
    {"tensor_buffer_to_tensor", sg_npu_same},
    {"tensor_to_tensor_buffer", sg_npu_same},
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
    {"cast", sg_npu_cast},
    {"quantize", sg_npu_quantize},
    {"dequantize", sg_npu_dequantize},
    {"scaled_dot_product_attention", sg_npu_attention},
};

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

/* Only references count: an operand given as a literal also returns SG_MIL_NONE. */
uint32_t sg_npu_operand(const struct sg_npu_run *r, const struct sg_mil_op *op, const char *name)
{
    const struct sg_mil_arg *a = sg_mil_arg_find(op, name);
    (void)r;
    return a && a->kind == SG_MIL_REF ? a->v.ref : SG_MIL_NONE;
}

/* Scratch of at least n floats, shared by all handlers of a device. The contents are lost when it
 * grows. NULL: out of memory. */
float *sg_npu_work(struct sg_npu_run *r, size_t n)
{
    if (n <= *r->work_floats) return *r->work;
    sg_free_aligned(*r->work);
    *r->work_floats = 0;
    *r->work = n < SIZE_MAX / 8 ? sg_alloc_aligned(n * sizeof(float)) : NULL;
    if (*r->work) *r->work_floats = n;
    return *r->work;
}

struct each {
    void (*part)(void *arg, uint32_t item, uint32_t thread);
    void *arg;
};

/* Adapts a job of one stage to the callback of the pool. */
static void each_part(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    struct each *e = arg;
    (void)stage;
    e->part(e->arg, item, thread);
}

/* Runs part for items 0 to items - 1 on the pool; a single item runs on the calling thread. */
void sg_npu_each(struct sg_npu_run *r, uint64_t items,
                 void (*part)(void *arg, uint32_t item, uint32_t thread), void *arg)
{
    uint32_t n = (uint32_t)items; /* a value has fewer than 2^31 numbers */
    struct each e = {part, arg};
    if (n == 1)
        part(arg, 0, 0);
    else
        sg_pool_run(r->pool, &(struct sg_job){.items = &n, .stages = 1, .work = each_part, .arg = &e});
}

/* Finishes n results of `value`: rounds fp16 results, then applies the arithmetic of the engine
 * where the profile has it: NaN becomes 0, and adding 0 turns -0 into +0. Records NaN and fp16
 * overflow in the flags of the run; several threads may do so at once. */
void sg_npu_settle(struct sg_npu_run *r, uint32_t value, float *p, size_t n)
{
    enum sg_mil_dtype d = (enum sg_mil_dtype)sg_npu_type(r, value)->dtype;
    if (d == SG_MIL_FP16) r->k->round16(p, n);
    if (!r->tidy || sg_mil_dtype_info(d)->class != SG_MIL_REAL) return;
    unsigned met = 0;
    for (size_t i = 0; i < n; i++) {
        float v = p[i];
        met |= v != v ? SG_NPU_MADE_NAN : d == SG_MIL_FP16 && fabsf(v) > 65504.0f ? SG_NPU_MADE_INFINITY : 0;
        p[i] = v != v && r->profile->undefined_to_zero ? 0.0f : r->profile->unsigned_zero ? v + 0.0f : v;
    }
    if (met) atomic_fetch_or_explicit(&r->flags, met, memory_order_relaxed);
}
