/* value_range.h: range analysis that keeps values within fp16: computes from the weights how large each
 * value of a graph can become, and chooses powers of two by which the engine's copies are divided. A norm
 * bounds its output whatever its input is, so bounds do not multiply from layer to layer; they only add up
 * along the residual stream.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_VALUE_RANGE_H
#define SG_UNIT_ANE_VALUE_RANGE_H

#include "graph/graph.h"

struct sg_ane_range {
    float *max;    /* [values_n] upper bound of the magnitude; for the delta rule an estimate */
    int8_t *value; /* [values_n] the value is stored divided by 2^value: one shift for the whole residual stream, and
                    * separate ones for results of glu */
    int8_t *inner; /* [ops_n] linear: the input is divided by 2^inner more before the product */
    struct sg_arena arena;
};
/* Analyses a graph; reads every weight once. EMEMORY. Free with sg_ane_range_free. */
segue_status sg_ane_range_make(struct sg_ane_range *out, const struct sg_graph *g, segue_error *err);
void sg_ane_range_free(struct sg_ane_range *r);

#endif
