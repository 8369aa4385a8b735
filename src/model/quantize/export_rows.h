/* export_rows.h: encodes the rows of one tensor on several threads and writes them to their places in a GGUF file.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_EXPORT_ROWS_H
#define SG_MODEL_EXPORT_ROWS_H

#include "tensor/ggufout.h"

/* One tensor. rows, cols: the logical index of each stored row and column of the new file. */
struct sg_export_rows {
    const struct sg_tensor *tensor;
    const uint32_t *rows, *cols;
    const float *importance; /* [columns], NULL: equal */
    uint32_t plus_one;       /* 1: the source stores w - 1, add 1 */
    uint32_t log_decay;      /* 1: the source stores the logarithm, write -exp(x) */
    struct sg_gguf_out *out;
    uint32_t item; /* its index in out->items */
};

/* Buffers of all threads. Zero-initialise. */
struct sg_export_buffers {
    uint32_t threads, range; /* range: rows per write */
    uint64_t widest;         /* numbers per row */
    float *row;              /* [threads][2][widest] in stored and in logical order */
    uint8_t *blocks;         /* [threads][range][4 widest] encoded; 4 bytes per number is the size of F32, the largest storage */
};
/* One thread per processor, at most 64. EMEMORY. */
segue_status sg_export_buffers_new(struct sg_export_buffers *b, uint64_t widest, segue_error *err);
void sg_export_buffers_free(struct sg_export_buffers *b);

/* The same bytes for any number of threads. EFORMAT: a number that is not finite, of the first such row; EIO. */
segue_status sg_export_write_rows(const struct sg_export_rows *t, const struct sg_export_buffers *b, segue_error *err);

#endif
