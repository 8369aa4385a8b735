/* export.h: writes a model as GGUF with its weights in another storage type, including tokenizer
 * and chat template. The caller drives it one tensor at a time, so that it can show progress and
 * cancel. The file appears when it is complete.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_EXPORT_H
#define SG_MODEL_EXPORT_H

#include "model/model.h"

/* A mixture, or a single type for all matrices. */
struct sg_mixture {
    const char *name;      /* "q4_k_m" */
    enum sg_storage base;  /* of most matrices */
    uint32_t file_type;    /* general.file_type of GGUF */
    uint32_t mixed;        /* 1: the rules of llama-quantize apply; 0: one type, but for the head */
};
/* By name, in lower case; NULL: unknown. */
const struct sg_mixture *sg_mixture_find(const char *name);

/* Where a matrix is in its model. */
struct sg_mixture_place {
    uint32_t layer, layers;   /* of the layers */
    uint32_t value, values;   /* of the layers with a value projection */
    uint32_t queries_per_kv;  /* query heads per K and V head */
};
/* Storage of a matrix inside the layers, by its name in GGUF files ("blk.3.attn_v.weight"). */
enum sg_storage sg_mixture_storage(const struct sg_mixture *mix, const char *name, const struct sg_mixture_place *at);

struct sg_export;
struct sg_imatrix;

/* A written tensor. */
struct sg_export_item {
    const char *name;         /* valid until sg_export_close */
    enum sg_storage from, to; /* storage in the source and in the new file */
    uint32_t fallback;        /* 1: the rows are not whole blocks of the requested type; `to` is a substitute */
    uint64_t bytes;           /* written */
};

/* Start writing to path. mix: the storage types of matrices; vectors, convolutions and position
 * tables become F32, and the head (or the tied embedding) Q6_K if the type has fewer bits. The model
 * may be of any readable format. importance: weights of the squared errors, NULL for equal ones; it outlives the export. EARG:
 * path is a file of the model. EFORMAT: the importance matrix belongs to another model. */
segue_status sg_export_open(struct sg_export **out, const struct segue_model *m, const char *path,
                            const struct sg_mixture *mix, const struct sg_imatrix *importance, segue_error *err);
/* Number of tensors to write. */
uint32_t sg_export_count(const struct sg_export *e);
/* Number of them with an importance. */
uint32_t sg_export_important(const struct sg_export *e);
/* Write the next tensor and describe it in *item. SEGUE_END: all tensors are written and the file
 * is complete. */
segue_status sg_export_next(struct sg_export *e, struct sg_export_item *item, segue_error *err);
void sg_export_close(struct sg_export *e); /* before SEGUE_END: discards the file */

#endif
