/* lowerrange.h: the pass over a graph that keeps its values within fp16: how large each can become, from the weights alone,
 * and by which powers of two the engine's copies are divided. Norms give a bound whatever comes in, so that bounds do not
 * grow from layer to layer but along the residual stream. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERRANGE_H
#define SG_UNIT_ANE_LOWERRANGE_H

#include "graph/graph.h"

struct sg_ane_range {
    float *max;    /* [values_n] no number of the value is larger; of the delta rule an estimate */
    int8_t *value;  /* [values_n] it lies divided by 2^this: the residual stream, all of it alike, and glu's results */
    int8_t *inner;  /* [ops_n] linear: what goes into the product is divided by 2^this first */
    struct sg_arena arena;
};
/* Reads every weight of the graph once. EMEMORY. */
segue_status sg_ane_range_make(struct sg_ane_range *out, const struct sg_graph *g, segue_error *err);
void sg_ane_range_free(struct sg_ane_range *r);

#endif
