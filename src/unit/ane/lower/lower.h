/* lower.h: a part of a graph to a MIL program. Rows lie channels first: a value of `width` columns is [1, width, 1, S] with a row
 * of the run in each of the S places. Ports: x (values that enter, packed along the channels), info (lowerinfo.h), state, and
 * lora (lowerlora.h) where the shape has a rank; out and the new state. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWER_H
#define SG_UNIT_ANE_LOWER_H

#include "unit/ane/lower/lowerblob.h"
#include "unit/ane/lower/lowerpart.h"
#include "unit/ane/lower/lowerinfo.h"
#include "unit/ane/lower/lowerlora.h"
#include "unit/ane/lower/lowerfuse.h"
#include "unit/ane/mil/milbuild.h"

/* What a port carries, known by the end of its name: names begin with a letter that sorts them by size (engines
 * bind by name, some by size). */
enum sg_ane_role { SG_ANE_X, SG_ANE_INFO, SG_ANE_STATE, SG_ANE_LORA };
enum sg_ane_role sg_ane_role_of(const char *port);

/* EUNSUPPORTED names the operation and the layer. *out is the caller's. Blobs grow by weights not yet there. */
segue_status sg_ane_lower(struct sg_mil_program **out, const struct sg_graph *g, const struct sg_ane_part *part,
                          const struct sg_ane_info *info, const struct sg_ane_shape *shape,
                          struct sg_ane_blobs *blobs, segue_error *err);
/* OK, or EUNSUPPORTED with the reason. */
segue_status sg_ane_can_lower(const struct sg_graph *g, const struct sg_op *op, segue_error *why);

#endif
