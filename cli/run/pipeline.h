/* pipeline.h: predefined placements, selected with --pipeline NAME[:P][+U].
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PIPELINE_H
#define SEGUE_CLI_PIPELINE_H

#include "run/placement.h"

/* The units and batch shapes of a pipeline. An empty spec is the fastest available unit. shapes are the allowed
 * numbers of tokens per prefill pass, as in segue_plan; 0: no restriction. */
struct pipeline {
    char prefill[128], decode[128]; /* specs; "": the fastest available unit */
    uint32_t shapes[4];             /* as in segue_plan */
};
/* Parse text and find the units. SEGUE_EARG: unknown name or syntax error. SEGUE_EUNSUPPORTED: no unit of the
 * required kind is present. */
segue_status pipeline_read(struct pipeline *out, const char *text, segue_error *err);
/* Check the syntax of text only; no unit is searched. */
segue_status pipeline_check(const char *text, segue_error *err);
/* Names that need no unit; ends with NULL. `single` is missing because it requires :U. */
extern const char *const pipeline_names[];

#endif
