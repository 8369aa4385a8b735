/* repack.h: converts rows of a tensor from its file format to the layout that kernels read (struct ck_weight).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_REPACK_H
#define SG_UNIT_CUDA_REPACK_H

#include "graph/graph.h"
#include "unit/cuda/kernels/include/params/kparams.h"

/* Fills kind, shape, pitches and group of *w; not the pointers. packed 1: quantised matrices may have the packed layout. */
void cu_weight_shape(const struct sg_tensor *t, int packed, struct ck_weight *w);
/* Bytes of one entry of `scales` (see enum ck_kind); 0: the kind has none. */
size_t cu_scale_entry_bytes(const struct ck_weight *w);
/* Scratch of one thread, in floats. */
size_t cu_repack_scratch(const struct sg_tensor *t);
/* Converts rows [from, to). data and scales begin with row `from`; scratch is `numbers`. The padding after the last column of
 * each row is not written and must be zero before. Thread-safe for different rows. */
void cu_repack_rows(const struct sg_tensor *t, const struct ck_weight *w, uint64_t from, uint64_t to, float *numbers,
                    uint8_t *data, uint8_t *scales);

/* Packed layout (repack_packed.c, k_packed.cuh). shape: returns 0 where the tensor has none. row: packs one row, `stored` in the
 * file, as row `row` (0 to 7) of the eight that begin at `data`; all its bytes are written. The others: bytes of a row's chunk of
 * 256 columns. stored_rows: rows in memory, whole groups of eight. */
int cu_packed_shape(const struct sg_tensor *t, struct ck_weight *w);
void cu_packed_row(const struct sg_tensor *t, const struct ck_weight *w, uint64_t stored, uint32_t row, uint8_t *data);
uint32_t cu_packed_code_bytes(uint32_t kind);
uint32_t cu_packed_scale_bytes(uint32_t kind, uint32_t group);
uint32_t cu_packed_factor_bytes(uint32_t kind);
static inline uint64_t cu_stored_rows(const struct ck_weight *w, uint64_t n)
{
    return w->kind >= CK_PACKED ? (n + 7) / 8 * 8 : n;
}

#endif
