/* fits.h: what the GPU's memory takes, and what to say when it does not: every refusal names a storage or a context that
 * fits, by what is free now. Numbers of this file are estimates from above; what decides is the driver.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_FITS_H
#define SG_UNIT_CUDA_FITS_H

#include "unit/cuda/driver/gpu.h"

/* EMEMORY when a state of so many rows cannot fit. full 1: it was tried and did not; says the same. */
segue_status cu_state_fits(struct sg_unit *u, const struct sg_slot *slots, uint32_t n, enum sg_storage kv,
                           uint64_t rows, int full, segue_error *err);
/* The same for the weights of graphs that share their tensors. */
segue_status cu_weights_fit(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, int full,
                            segue_error *err);

#endif
