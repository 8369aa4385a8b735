/* modelcost.h: the sizes of a model file, from its graph. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_MODELCOST_H
#define SG_ENGINE_MODELCOST_H

#include "engine/planner/unitcost.h"
#include "graph/graph.h"

/* Sizes that the costs of unitcost.h need, summed over the operations of a graph with all layers and the head. key and file_bytes
 * are set by the caller. */
void sg_model_cost_graph(struct sg_model_cost *out, const struct sg_graph *g);
/* The storage that most weight bytes of the graph have, such as "q4_1". */
const char *sg_model_storage(const struct sg_graph *g);

#endif
