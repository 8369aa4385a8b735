/* adapter.h: a low-rank change to a model: for some of its weight tensors W a pair A [r, k], B [n, r], so
 * that y = x W^T + scale * (x A^T) B^T. Read from a PEFT folder, MLX adapters.safetensors or a GGUF adapter.
 * Bound to a span of a batch, never part of a program. Read-only after open; counted references.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_ADAPTER_H
#define SG_MODEL_ADAPTER_H

#include "graph/lora.h"
#include "model/model.h"

struct segue_adapter {
    atomic_uint references;
    struct segue_model *model;  /* referenced */
    struct sg_archive *archive; /* while it is being opened; NULL afterwards: everything was read */
    struct sg_lora lora;        /* pairs point into arena: fp32, house order */
    struct sg_arena arena;
    char *path;
};
segue_status sg_adapter_open(struct segue_adapter **out, const struct segue_model *m, const char *path,
                             float scale, segue_error *err);
struct segue_adapter *sg_adapter_ref(struct segue_adapter *a);
void sg_adapter_unref(struct segue_adapter *a);

#endif
