/* lower.h: lowers a part of a graph to a MIL program. Layout: a value of `width` columns is [1, width, 1,
 * S], channels first, one row of the run per column. Inputs of a program: x (all values that enter,
 * concatenated along the channels), info (lowerinfo.h), state, and lora (lowerlora.h) when the shape has a
 * LoRA rank. Results: out and the new state.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWER_H
#define SG_UNIT_ANE_LOWER_H

#include "unit/ane/analysis/partition.h"
#include "unit/ane/lower/lowerblob.h"
#include "unit/ane/lower/lowerfuse.h"
#include "unit/ane/lower/lowerinfo.h"
#include "unit/ane/lower/lowerlora.h"
#include "unit/ane/mil/milbuild.h"

/* Contents of a port, recognized by the end of its name. The first letter of a name only sorts the ports by
 * size, because engines bind by name or by size (constraints 3 and 4). */
enum sg_ane_role { SG_ANE_X, SG_ANE_INFO, SG_ANE_STATE, SG_ANE_LORA };
enum sg_ane_role sg_ane_role_of(const char *port);

/* Builds the program of a part for one shape and runs the passes. The caller frees *out. Weights that blobs
 * does not have yet are added. EUNSUPPORTED: the text names the operation and its layer. */
segue_status sg_ane_lower(struct sg_mil_program **out, const struct sg_graph *g, const struct sg_ane_part *part,
                          const struct sg_ane_info *info, const struct sg_ane_shape *shape,
                          struct sg_ane_blobs *blobs, segue_error *err);
/* EUNSUPPORTED with the reason when an operation cannot be lowered. */
segue_status sg_ane_can_lower(const struct sg_graph *g, const struct sg_op *op, segue_error *why);

#endif
