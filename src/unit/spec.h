/* spec.h: parser for unit specs, `KIND[:key=value,...]` or `KIND:SPEC`.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_SPEC_H
#define SG_UNIT_SPEC_H

#include "graph/graph.h"
#include "unit/unit.h"

/* A part without '=' (`cuda:0`) becomes the pair {"", "0"}; a nested spec (`proc:cpu:threads=2`) becomes {"", SPEC}. EARG names
 * the problem and its position. */
segue_status sg_spec_parse(struct sg_unit_spec *out, const char *text, segue_error *err);
/* The value of a key; NULL: not given. */
const char *sg_spec_value(const struct sg_unit_spec *s, const char *key);
/* EARG when the spec has a key that is not in the NULL-terminated list. */
segue_status sg_spec_only(const struct sg_unit_spec *s, const char *const *keys, segue_error *err);

/* The option fault=LAYER.OP, for tests of what finds errors: one number that the first operation of that name in that layer
 * computes is one unit in the last place too large. */
struct sg_fault {
    int layer;
    char op[16]; /* "": none */
};
/* EARG: another form than LAYER.OP. */
segue_status sg_fault_read(const struct sg_unit_spec *spec, struct sg_fault *out, segue_error *err);
/* Index of that operation; UINT32_MAX: none, as in a graph of other layers. */
uint32_t sg_fault_op(const struct sg_fault *f, const struct sg_graph *g);

#endif
