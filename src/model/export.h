/* export.h: a model written as GGUF with its weights in another storage; tokenizer and template go along.
 * Pulled one tensor at a time, so that the caller can show progress and stop; the file appears only when it
 * is whole.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_EXPORT_H
#define SG_MODEL_EXPORT_H

#include "model/model.h"

struct sg_export;

/* What was decided for one tensor. */
struct sg_export_item {
    const char *name;
    enum sg_storage from, to;
    uint32_t fallback; /* 1: the rows do not divide into blocks of the asked type, `to` is the next best */
    uint64_t bytes;
};

/* storage: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q6_K. Vectors, convolutions and position tables stay
 * F32; the head (or the tied embedding) takes Q6_K beside 4- and 5-bit types. Source: GGUF, Hugging Face, MLX
 * or llama2.c. */
segue_status sg_export_open(struct sg_export **out, const struct segue_model *m, const char *path,
                            enum sg_storage storage, segue_error *err);
uint32_t sg_export_count(const struct sg_export *e);
/* Writes the next tensor and tells what it became. SEGUE_END: all are written and the file is in place. */
segue_status sg_export_next(struct sg_export *e, struct sg_export_item *item, segue_error *err);
void sg_export_close(struct sg_export *e); /* before the end: nothing is left on disk */

#endif
