/* imatrix.h: importance matrices: for each column of a matrix, the mean square of the activations that it is multiplied with.
 * Reads and writes the files of llama-imatrix: GGUF (tensors NAME.in_sum2 and NAME.counts) and the older .dat (read only). Names
 * and column order are those of GGUF model files.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_IMATRIX_H
#define SG_MODEL_IMATRIX_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct sg_imatrix;

/* EFORMAT: no importance matrix, damaged, or numbers that are negative or not finite. Matrices of experts are left out. */
segue_status sg_imatrix_open(struct sg_imatrix **out, const char *path, segue_error *err);
/* The same for a file's n bytes in memory; nothing refers to them afterwards. */
segue_status sg_imatrix_read(struct sg_imatrix **out, const uint8_t *bytes, size_t n, const char *path, segue_error *err);
void sg_imatrix_close(struct sg_imatrix *im);
/* The means of tensor `name`; NULL: it is not in the file. *n is their number. */
const float *sg_imatrix_find(const struct sg_imatrix *im, const char *name, uint64_t *n);

/* One matrix to write: sums of squares over `count` rows. */
struct sg_imatrix_sums {
    const char *name;
    float *sums;               /* [cols] */
    uint64_t cols, count;
};
/* dataset: recorded name of the text; chunks of `chunk` tokens each. */
segue_status sg_imatrix_write(const char *path, const struct sg_imatrix_sums *list, uint32_t n, const char *dataset,
                              uint32_t chunks, uint32_t chunk, segue_error *err);

#endif
