/* fits.h: checks whether weights or a state fit into the free GPU memory. Every refusal names a storage or a context that fits
 * now. The sizes are upper estimates; an allocation may still fail.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_FITS_H
#define SG_UNIT_CUDA_FITS_H

#include "unit/cuda/driver/gpu.h"

/* EMEMORY: a state of `rows` tokens does not fit, with the number of tokens that would. full 1: an allocation has failed already,
 * so the error is returned in any case. */
segue_status cu_state_fits(struct sg_unit *u, const struct sg_slot *slots, uint32_t n, enum sg_storage kv,
                           uint64_t rows, int full, segue_error *err);
/* EMEMORY: the weights of these graphs, which share their tensors, do not fit; the error suggests smaller storages. */
segue_status cu_weights_fit(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, int full,
                            segue_error *err);

#endif
