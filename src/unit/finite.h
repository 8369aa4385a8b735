/* finite.h: check of the weights that every unit does before it runs them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_FINITE_H
#define SG_UNIT_FINITE_H

#include "graph/graph.h"

/* EFORMAT names the first tensor and row with a NaN or an infinity, which would otherwise make all outputs NaN. Reads all
 * weights of the graph; of quantised tensors only the scales. */
segue_status sg_weights_finite(const struct sg_graph *g, segue_error *err);

#endif
