/* limits.h: what a unit can run, asked of its own `can` with small graphs: every operation, the storages of weights, and the
 * widths up to which it goes. For `segue units --limits`. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_LIMITS_H
#define SG_ENGINE_LIMITS_H

#include "engine/placement/units.h"

/* One question and the unit's answer. */
struct sg_limit {
    char what[16];       /* "operation", "storage", or "shape" */
    char name[32];       /* "attend, window", "q4_k", "attend: head width" */
    int can;             /* 1: it runs */
    uint64_t largest;    /* shape: the largest size that runs, of those tried; else 0 */
    char why[256];       /* why not; of a shape: of the first size that does not run. "": no limit was found */
};
enum { SG_LIMITS_MAX = 96 };

/* Asks the unit; *n answers in out[SG_LIMITS_MAX]. Nothing is compiled or run. EMEMORY. */
segue_status sg_unit_limits(struct segue_unit *u, struct sg_limit *out, uint32_t *n, segue_error *err);

#endif
