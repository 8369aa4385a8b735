/* join.h: joins the tensors of a quantised module of a safetensors file (codes, scales, zeros, ...) into one tensor X.weight.
 * join_all.c does it for a whole archive; mlx.c knows the forms of MLX, torch.c those of AutoAWQ, AutoGPTQ, compressed-tensors
 * and block-scaled FP8.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_JOIN_JOIN_H
#define SG_TENSOR_JOIN_JOIN_H

#include "tensor/archive_build.h"

/* Work on a copy of an archive's tensors. */
struct sg_module_join {
    struct sg_archive *a;      /* still with its own list */
    struct sg_tensor *list;    /* [a->tensors_n] the copy */
    uint8_t *joined;           /* [a->tensors_n] 1: merged into another tensor, leaves the list */
    const json_t *config;      /* config.json; NULL: none */
};

enum { SG_JOIN_PATH = SG_NAME_MAX + 32 };
/* 1 when the name is X followed by `ending`, with X not empty; path is set to X. */
int sg_join_path(const char *name, const char *ending, char path[SG_JOIN_PATH]);
/* The tensor with the name path followed by `suffix`; NULL when absent. */
const struct sg_tensor *sg_join_part(const struct sg_module_join *j, const char *path, const char *suffix);
/* Mark it as merged; NULL is allowed. */
void sg_join_take(struct sg_module_join *j, const struct sg_tensor *part);

/* Join entry i of the list if it has the codes of a module; the other entries are left alone. */
segue_status sg_join_mlx(struct sg_module_join *j, uint32_t i, segue_error *err);
segue_status sg_join_torch(struct sg_module_join *j, uint32_t i, segue_error *err);

#endif
