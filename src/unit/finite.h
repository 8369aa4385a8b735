/* finite.h: check of the weights that every unit does before it runs them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_FINITE_H
#define SG_UNIT_FINITE_H

#include "graph/graph.h"

/* EFORMAT names the first tensor and row with a NaN or an infinity, which would otherwise make all outputs NaN. Reads all
 * weights of the graph; of quantised tensors only the scales. */
segue_status sg_weights_finite(const struct sg_graph *g, segue_error *err);
/* 1: no number of `bytes` bytes in this storage is NaN or infinite. F32, F16, BF16; 1 for others: units check the scales
 * of q8 when they use them. */
int sg_numbers_finite(const void *numbers, size_t bytes, enum sg_storage storage);

#endif
