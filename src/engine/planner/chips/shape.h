/* shape.h: what the costs of a model depend on: sizes, not names. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SHAPE_H
#define SG_ENGINE_SHAPE_H

#include "base/err.h"

struct sg_shape {
    char name[32]; /* "qwen3.5-0.8b"; of a model file: empty */
    double layers; /* of them delta_layers keep a delta matrix, the others K and V */
    double delta_layers;
    double width;      /* of the hidden values */
    double body, head; /* weights read per token: layers; output matrix */
    double kv;         /* elements of K and V per position, all layers */
    double state;      /* elements of delta matrices */
    double conv;       /* elements of convolution inputs */
};

/* A published model by name, for example "Qwen3.5-0.8B" or "gpt2-124m". NULL: not known. */
const struct sg_shape *sg_shape_find(const char *name);
/* Entry i of the list of these models; NULL: there are fewer. */
const struct sg_shape *sg_shape_at(size_t i);

/* Bytes per weight of a storage or of a precision as publications name it: "BF16", "8-bit", "Q4_K_M". 0: not known. *unpacked:
 * 1 if products unpack superblocks (k-quants). The figures of mixed files (Q4_K_M) are those of files of 4 billion weights. */
double sg_storage_bytes(const char *name, int *unpacked);

#endif
