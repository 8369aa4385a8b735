/* adapter.h: LoRA adapters: for some weights W a pair A [r, k], B [n, r], so that y = x W^T + scale
 * * (x A^T) B^T. Read from a PEFT folder, MLX's adapters.safetensors or a GGUF adapter. An adapter
 * is applied per span of a batch and is not part of a graph. Immutable after opening;
 * reference-counted.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_ADAPTER_H
#define SG_MODEL_ADAPTER_H

#include "graph/lora.h"
#include "model/model.h"

struct segue_adapter {
    atomic_uint references;
    struct segue_model *model;  /* the model it was opened for; holds a reference */
    struct sg_archive *archive; /* only while opening; NULL afterwards */
    struct sg_lora lora;        /* the matrices, fp32 in logical order, in arena */
    struct sg_arena arena;
    char *path;                 /* as given */
};
/* Open an adapter for m with one reference. scale: additional factor on its effect. EFORMAT: it
 * does not fit the model. */
segue_status sg_adapter_open(struct segue_adapter **out, const struct segue_model *m, const char *path,
                             float scale, segue_error *err);
/* An adapter of copies of these pairs, whose B are multiplied by scale. name: for messages. */
segue_status sg_adapter_make(struct segue_adapter **out, const struct segue_model *m, const char *name,
                             const struct sg_lora_pair *pairs, uint32_t n, float scale, segue_error *err);
struct segue_adapter *sg_adapter_ref(struct segue_adapter *a);
void sg_adapter_unref(struct segue_adapter *a);

#endif
