/* export.h: writes a model as GGUF with its weights in another storage type, including tokenizer
 * and chat template. The caller drives it one tensor at a time, so that it can show progress and
 * cancel. The file appears when it is complete.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_EXPORT_H
#define SG_MODEL_EXPORT_H

#include "model/model.h"

struct sg_export;
struct sg_mixture;

/* A written tensor. */
struct sg_export_item {
    const char *name;         /* valid until sg_export_close */
    enum sg_storage from, to; /* storage in the source and in the new file */
    uint32_t fallback;        /* 1: the rows are not whole blocks of the requested type; `to` is a substitute */
    uint64_t bytes;           /* written */
};

/* Start writing to path. mix: the storage types of matrices; vectors, convolutions and position
 * tables become F32, and the head (or the tied embedding) Q6_K if the type has fewer bits. The model
 * may be of any readable format. EARG: path is a file of the model. */
segue_status sg_export_open(struct sg_export **out, const struct segue_model *m, const char *path,
                            const struct sg_mixture *mix, segue_error *err);
/* Number of tensors to write. */
uint32_t sg_export_count(const struct sg_export *e);
/* Write the next tensor and describe it in *item. SEGUE_END: all tensors are written and the file
 * is complete. */
segue_status sg_export_next(struct sg_export *e, struct sg_export_item *item, segue_error *err);
void sg_export_close(struct sg_export *e); /* before SEGUE_END: discards the file */

#endif
