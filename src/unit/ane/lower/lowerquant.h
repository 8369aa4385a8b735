/* lowerquant.h: compressed storage of matrices in blob files, and the constexpr operations that decode it. A matrix
 * [rows, cols] is divided into blocks: a palette belongs to several rows, a scale to one row or to 32 columns of it.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERQUANT_H
#define SG_UNIT_ANE_LOWERQUANT_H

#include "graph/graph.h"
#include "unit/ane/mil/milbuild.h"

enum sg_ane_storage { SG_ANE_STORE_FP16, SG_ANE_STORE_LUT4, SG_ANE_STORE_LUT6, SG_ANE_STORE_INT8, SG_ANE_STORE_INT4,
                      SG_ANE_STORE_W8A8,      /* int8 with a scale per row, multiplied with activations in 8 bits */
                      SG_ANE_STORE_LUT1, SG_ANE_STORE_LUT2, SG_ANE_STORE_LUT3, SG_ANE_STORE_LUT8 };
/* By the names fp16, lut1 to lut8, int8, int4 and w8a8. EARG; object: for the error text. */
segue_status sg_ane_storage_named(enum sg_ane_storage *out, const char *name, const char *object, segue_error *err);
const char *sg_ane_storage_name(enum sg_ane_storage storage);

/* How a matrix is stored. */
struct sg_ane_quant {
    enum sg_ane_storage storage;
    uint64_t rows, cols;
    uint64_t groups, blocks;         /* blocks along the rows and along the columns; groups divides rows */
    uint32_t bits;                   /* of one number */
    uint64_t data_bytes, aux_bytes;  /* numbers; palettes or scales, fp16 */
};
/* The layout for a matrix that is computed from a tensor of storage `source`. 0: it stays fp16, because a side is not a
 * multiple of 32 or the matrix is small. */
int sg_ane_quant_of(struct sg_ane_quant *q, enum sg_ane_storage storage, uint64_t rows, uint64_t cols, enum sg_storage source);
/* Rows of a group, which is what sg_ane_quant_put takes at a time. */
static inline uint64_t sg_ane_quant_rows(const struct sg_ane_quant *q) { return q->rows / q->groups; }
/* Stores group g, in[sg_ane_quant_rows][cols], into data and aux. A block whose numbers are whole multiples of one fp16 number
 * within the range, as those of Q8_0 and Q4_0 are, is stored exactly. data must be zero before. *error grows by the sum of the
 * errors that scales outside of the normal range of fp16 cause, beside those of the numbers of few bits. EMEMORY. */
segue_status sg_ane_quant_put(const struct sg_ane_quant *q, uint64_t g, const float *in, uint8_t *data, uint16_t *aux,
                              double *error, segue_error *err);
/* The operation that decodes records `data` and `aux` of a blob file to an fp16 tensor [rows, cols, 1, 1]. */
uint32_t sg_ane_quant_decode(struct sg_mil_builder *b, const struct sg_ane_quant *q, const char *name, const char *path,
                             uint64_t data, uint64_t aux);
/* Element type of the numbers. */
enum sg_mil_dtype sg_ane_quant_type(const struct sg_ane_quant *q);

#endif
