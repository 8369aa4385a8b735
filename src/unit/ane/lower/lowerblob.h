/* lowerblob.h: the weights of a part as one blob file in fp16. Every program made of the part, whatever its rows
 * and keys, reads the same file. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERBLOB_H
#define SG_UNIT_ANE_LOWERBLOB_H

#include "base/buf.h"
#include "base/hash.h"
#include "graph/graph.h"
#include "unit/ane/blob/compress.h"

enum sg_ane_form {
    SG_ANE_AS_IS,
    SG_ANE_PLUS_ONE, /* 1 + w */
    SG_ANE_NEG_EXP      /* -exp(w) */
};
enum { SG_ANE_STORED_MAX = 3 }; /* weights of one blob at most */
struct sg_ane_weight_blob {
    struct sg_weight weights[SG_ANE_STORED_MAX]; /* [weights_n] of as many columns each, one below the other */
    uint32_t weights_n;
    enum sg_ane_form form;
    uint64_t record, numbers;
    uint32_t program, value; /* of the program being lowered: its number and the value there */
};
struct sg_ane_blobs {
    struct sg_buf file;
    struct sg_ane_weight_blob *list; /* [n] */
    uint32_t n, cap, programs;
    struct sg_range_report range;
    int sizes_only;  /* no weight is read and file stays empty; places are those that it would have */
    uint64_t length; /* of the file then */
    uint32_t written; /* of the list, in the cache folder */
    struct sg_hash hash; /* of the file; hashed 0: not known */
    int hashed;
    int borrowed;    /* file.data is somebody else's and only read; a weight that is not there makes it an own copy */
    char path[32]; /* "weights/p00.bin" */
};
/* The blob of n weights, made when it is asked for the first time; valid until the next call. EMEMORY, ELIMIT. */
segue_status sg_ane_blob_of(struct sg_ane_blobs *b, const struct sg_graph *g, const struct sg_weight *w, uint32_t n,
                            enum sg_ane_form form, struct sg_ane_weight_blob **out, segue_error *err);
/* Other numbers for a tensor, [rows, cols] as the graph's: every blob made of it is written again, where it stands.
 * *n: how many. EMEMORY. */
segue_status sg_ane_blob_patch(struct sg_ane_blobs *b, const struct sg_graph *g, uint32_t tensor, const float *in, uint32_t *n,
                               segue_error *err);
void sg_ane_blobs_free(struct sg_ane_blobs *b);

#endif
