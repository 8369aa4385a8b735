/* fault.h: the option fault=LAYER.OP of a unit, for tests of what finds errors: one number that the first operation of that name in
 * that layer computes is one unit in the last place too large. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_FAULT_H
#define SG_UNIT_FAULT_H

#include "graph/graph.h"
#include "unit/spec.h"

struct sg_fault {
    int layer;
    char op[16]; /* "": none */
};
/* EARG: another form than LAYER.OP. */
segue_status sg_fault_read(const struct sg_unit_spec *spec, struct sg_fault *out, segue_error *err);
/* Index of that operation; UINT32_MAX: none, as in a graph of other layers. */
uint32_t sg_fault_op(const struct sg_fault *f, const struct sg_graph *g);

#endif
