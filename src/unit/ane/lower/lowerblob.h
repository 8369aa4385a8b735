/* lowerblob.h: the weights of a part as one blob file in fp16. Every program of the part, whatever its
 * shape, reads the same file.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERBLOB_H
#define SG_UNIT_ANE_LOWERBLOB_H

#include "base/buf.h"
#include "base/hash.h"
#include "graph/graph.h"
#include "unit/ane/blob/compress.h"
#include "unit/ane/lower/lowerquant.h"

/* Largest relative error of the results of an operation that is accepted; of a weight: 1/32 of it. Relative error: sum of
 * the magnitudes of rounding errors over that of the numbers, at most 2^-11 in the normal range of fp16. */
#define SG_ANE_ERROR_MAX (1.0 / 8)

/* Function applied to a weight before it is stored. */
enum sg_ane_form {
    SG_ANE_AS_IS,
    SG_ANE_PLUS_ONE, /* 1 + w */
    SG_ANE_NEG_EXP,  /* -exp(w) */
    SG_ANE_MATRIX    /* as is; stored as sg_ane_blobs.storage where that is possible */
};
enum { SG_ANE_STORED_MAX = 3 }; /* maximum weights in one blob */
/* One blob: weights with the same number of columns, their rows concatenated. */
struct sg_ane_weight_blob {
    struct sg_weight weights[SG_ANE_STORED_MAX]; /* [weights_n] */
    uint32_t weights_n;
    enum sg_ane_form form;
    uint64_t record, numbers; /* offset of the metadata record in the file; number of elements */
    struct sg_ane_quant quant; /* storage FP16: fp16, no second record */
    uint64_t aux;             /* offset of the record with palettes or scales */
    uint32_t program, value;  /* program that used the blob last (sg_ane_blobs.programs), and its const there */
};
/* The blob file of a part. Initialize with zeros and set path. */
struct sg_ane_blobs {
    struct sg_buf file;              /* contents of the file */
    struct sg_ane_weight_blob *list; /* [n] in file order */
    uint32_t n, cap, programs;       /* programs: number of the program being lowered */
    enum sg_ane_storage storage;     /* of matrices */
    struct sg_range_report range;    /* values that did not fit fp16 */
    int flush;                       /* 1: the engine reads subnormal numbers of matrices as 0 */
    int sizes_only;                  /* 1: compute offsets only; no weight is read and file stays empty */
    uint64_t length;                 /* with sizes_only: length that the file would have */
    uint32_t written;                /* blobs that the cache folder has already */
    struct sg_hash hash;             /* of the file, if hashed is 1 */
    int hashed;
    int borrowed;  /* 1: file.data belongs to another object and is read-only; copied before the first change */
    char path[32]; /* in the MIL text, such as "weights/p00.bin" */
};
/* The blob with these n weights; created on first use. *out is valid until the next call. EMEMORY, ELIMIT. */
segue_status sg_ane_blob_of(struct sg_ane_blobs *b, const struct sg_graph *g, const struct sg_weight *w, uint32_t n,
                            enum sg_ane_form form, struct sg_ane_weight_blob **out, segue_error *err);
/* Replaces the values of a tensor, in[rows][cols], in place in every blob that contains it. *n: number of
 * blobs changed. EMEMORY. */
segue_status sg_ane_blob_patch(struct sg_ane_blobs *b, const struct sg_graph *g, uint32_t tensor, const float *in, uint32_t *n,
                               segue_error *err);
void sg_ane_blobs_free(struct sg_ane_blobs *b);

#endif
