/* choice_error.c: why no token could be chosen. SPDX-License-Identifier: MIT */
#include "unit/cuda/exec/choose.h"

/* 1: the graph has F16 weights. Passes of several rows convert their inputs to fp16 (docs/CUDA-KERNELS.md, "16 bits"). */
static int has_f16(const struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_LINEAR && g->tensors[g->ops[i].u.linear.weight.tensor]->storage == SG_F16) return 1;
    return 0;
}

/* fp16 weights overflow when activations do; then another unit may work. */
segue_status cu_no_finite_logit(struct sg_run *run)
{
    return sg_fail(&run->base.error, SEGUE_EFORMAT, "choose a token: cuda: a logit is not a number; check the model file%s",
                   has_f16(run->program->base.graph)
                       ? ", or use another unit: activations may have exceeded the range of its F16 weights"
                       : "");
}
