/* report.h: the report of a run: the JSON object specified in docs/CLI.md and the summary line on stderr.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_REPORT_H
#define SEGUE_CLI_REPORT_H

#include "run/answer.h"
#include "run/prompt.h"

/* Input of a report. All pointers belong to the caller. */
struct report {
    struct placement *placement;
    const struct answer *answer;
    const int32_t *prompt_ids; /* [prompt_n] */
    size_t prompt_n;
    const char *reuse_reason; /* replaces the value "first-use" of the session; NULL: report the session's value */
    uint64_t seed;            /* of the sampler, also when it was chosen at random */
    bool measure_bandwidth;   /* false after an interrupt, because the measurement takes about 0.2 s */
    size_t context;           /* size of the context in tokens; 0: not reported on the line */
};

/* The report as a JSON object; a new reference. May measure the memory bandwidth once per process. */
json_t *report_json(const struct report *r);
/* Print the summary line on stderr; unknown figures are omitted. */
void report_print_line(const struct report *r);

/* --- Functions that bench uses too --- */

/* The unit as it is named in reports: "cpu", or "ane (software)" for a software implementation. */
json_t *report_unit_name(const segue_unit_info *u);
/* {path, family, storage, shape_id, weights_id} of the model given with -m, as a new reference. */
json_t *report_model_json(const struct placement *p);
/* Set o[name] to v if v > 0, otherwise to null with a reason: 0 would look like a measurement. */
void report_positive_or_null(json_t *o, const char *name, double v, const char *reason);
/* Index in p->units of the first unit of a phase (0 prefill, 1 decode); 0 without a plan. */
size_t report_phase_unit(const struct placement *p, uint32_t phase);
/* "prefill", "decode" or "helper". */
const char *report_phase_name(uint32_t phase);
/* Set peak_bytes, device_bytes, weight_bytes and state_bytes. */
void report_memory(json_t *o, const struct placement *p, uint64_t state_bytes);

#endif
