/* template.h: chat templates: an interpreter for the part of Jinja that models use, rendering
 * exactly as Python's jinja2 does in transformers' environment. Hostile templates are bounded: steps, depth, output.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_TEMPLATE_H
#define SG_TEXT_TEMPLATE_H

#include <jansson.h>

#include "base/buf.h"

struct sg_template;

/* Parse; the source is copied. EFORMAT names line and what was expected. `what` names the template in errors. */
segue_status sg_template_open(struct sg_template **out, const char *source, size_t len, const char *what,
                              segue_error *err);
void sg_template_close(struct sg_template *t);

/* Limits of one rendering; zero fields mean: 10^7 steps, depth 200, 16 MB of output, 40 MB of values. */
struct sg_template_limits {
    uint64_t steps;
    uint32_t depth;
    size_t output_bytes, value_bytes;
};

/* vars: an object, the template's variables. now: seconds since the epoch for strftime_now (local time), or -1 for the
 * clock. EFORMAT: raise_exception (its message is the text) or an error of the template with its line; ELIMIT. */
segue_status sg_template_render(const struct sg_template *t, const json_t *vars, int64_t now,
                                const struct sg_template_limits *limits, struct sg_buf *out, segue_error *err);

#endif
