/* cu.h: the unit `cuda` as a whole, for cuda.c (the table of operations), program.c (compile) and tests.
 *
 * Layers; each folder calls only those before it:
 *   driver/   the CUDA driver, cuBLASLt and NVML by dlopen; struct sg_unit; memory, copies, pinned memory, kernels, partitions
 *   compile/  graph to program: weights in GPU memory, fused steps, cluster fusions, value locations; types of lanes
 *   state/    K/V rows and recurrent memory of sequences; layer events; kept logits
 *   issue/    one step of a pass to kernel launches: which kernel, with which arguments. Asynchronous
 *   exec/     runs: passes, captured graphs, generation, lookahead, lanes
 *   cuda.c, program.c
 *
 * Terms: a step is one op or several fused ones. A pass issues all steps for some rows. A run has one or more passes and uses one
 * lane. Ownership: a unit, program, state or run frees what it allocates; two units share no memory.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_CU_H
#define SG_UNIT_CUDA_CU_H

#include "unit/cuda/compile/program.h"
#include "unit/cuda/exec/cuda_run.h"
#include "unit/cuda/state/state.h"

/* program.c: compiles graphs that share weights into one program each. */
segue_status cu_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n,
                        const struct sg_weight_cache *cache, struct sg_program **programs, segue_error *err);
void cu_discard(struct sg_program *p);

#endif
