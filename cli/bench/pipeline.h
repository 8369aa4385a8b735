/* pipeline.h: splits of the work that go by a name of their own. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PIPELINE_H
#define SEGUE_CLI_PIPELINE_H

#include "task/placement.h"

/* What a name stands for: the unit that reads, the unit that writes, and how many rows a run of reading has.
 */
struct pipeline {
    char prefill[128], decode[128]; /* specs; "" = the fastest real unit */
    uint32_t shapes[4];             /* as in segue_plan */
};
/* NAME[:P][+U]. EARG: no such name. EUNSUPPORTED: a unit of it is not here; the text names both. */
segue_status pipeline_read(struct pipeline *out, const char *text, segue_error *err);
/* EARG as above; no unit is looked for. */
segue_status pipeline_check(const char *text, segue_error *err);
/* The names that stand by themselves, NULL ends the list. `one` wants a unit behind it. */
extern const char *const pipeline_names[];

#endif
