/* repack.h: converts rows of a tensor from its file format to the layout that kernels read (struct ck_weight).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_REPACK_H
#define SG_UNIT_CUDA_REPACK_H

#include "graph/graph.h"
#include "unit/cuda/kernels/include/kparams.h"

/* Fills kind, shape, pitches and group of *w; not the pointers. */
void cu_weight_shape(const struct sg_tensor *t, struct ck_weight *w);
/* Bytes of one entry of `scales` (see enum ck_kind); 0: the kind has none. */
size_t cu_scale_entry_bytes(const struct ck_weight *w);
/* Scratch of one thread, in floats. */
size_t cu_repack_scratch(const struct sg_tensor *t);
/* Converts rows [from, to). data and scales begin with row `from`; scratch is `numbers`. The padding after the last column of
 * each row is not written and must be zero before. Thread-safe for different rows. */
void cu_repack_rows(const struct sg_tensor *t, const struct ck_weight *w, uint64_t from, uint64_t to, float *numbers,
                    uint8_t *data, uint8_t *scales);

#endif
