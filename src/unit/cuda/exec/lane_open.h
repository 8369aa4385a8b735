/* lane_open.h: opening and closing the lanes of a program; the type is in compile/lane.h. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_LANE_H
#define SG_UNIT_CUDA_LANE_H

#include "unit/cuda/compile/program.h"

/* Allocates lane `many` (CU_LANE_DECODE or CU_LANE_PREFILL). The program has its steps and fusions. After a failure, close it. */
segue_status cu_lane_open(struct sg_unit *u, struct sg_program *p, int many, segue_error *err);
/* Waits for the lane's streams, then frees everything. A lane that was never or only partly opened is accepted. */
void cu_lane_close(struct sg_unit *u, struct cu_lane *l);

#endif
