/* finite.h: what every unit asks of the weights before it runs them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_FINITE_H
#define SG_UNIT_FINITE_H

#include "graph/graph.h"

/* A weight that is no number would spoil every answer without a word. EFORMAT names the first tensor and row. Reads all
 * weights of the graph; quantised ones are known by their scales. */
segue_status sg_weights_finite(const struct sg_graph *g, segue_error *err);

#endif
