/* spec.h: reading `KIND[:key=value,...]`.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_SPEC_H
#define SG_UNIT_SPEC_H

#include "unit/unit.h"

/* KIND:SPEC, a unit named inside of another, becomes the pair {"", SPEC}. EARG names what is wrong and where. `cuda:0` style: a
 * part without '=' becomes the pair {"", "0"}. */
segue_status sg_spec_parse(struct sg_unit_spec *out, const char *text, segue_error *err);
/* NULL: not given. */
const char *sg_spec_value(const struct sg_unit_spec *s, const char *key);
/* EARG when a key other than those listed (NULL-terminated list) was given. */
segue_status sg_spec_only(const struct sg_unit_spec *s, const char *const *keys, segue_error *err);

#endif
