/* report.h: what a run says about itself: the JSON of docs/INTERFACE.md and the closing line.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_REPORT_H
#define SEGUE_CLI_REPORT_H

#include "task/generate.h"
#include "task/prompt.h"

struct report {
    struct place *place;
    const struct answer *answer;
    const int32_t *prompt_ids;
    size_t prompt_n;
    const char *reuse_reason; /* instead of the session's first-use; NULL: there is no better one */
    uint64_t seed;
    bool measure_roof; /* false after ^C: there is no time to measure */
};

json_t *report_json(const struct report *r);
void report_line(const struct report *r);

/* Pieces shared with bench. */
/* The unit as reports name it: "cpu"; "ane (software)" where something stands in for it. */
json_t *report_unit_name(const segue_unit_info *u);
json_t *report_model_json(const struct place *p);
/* A figure that is above 0, or null and the reason. */
void report_positive(json_t *o, const char *name, double v, const char *reason);
/* The unit of a phase (0 prefill, 1 decode). */
size_t report_phase_unit(const struct place *p, uint32_t phase);
const char *report_phase_name(uint32_t phase); /* prefill decode helper */
void report_memory(json_t *o, const struct place *p, uint64_t state_bytes);

#endif
