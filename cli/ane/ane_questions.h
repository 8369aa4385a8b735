/* ane_questions.h: the description and the tests of a Neural Engine, for `segue ane-probe` and `segue ane-report`. The engine is
 * the one of a unit spec: `ane`, the engine of a Mac, or `ane:soft` with options, the software NPU.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ANE_QUESTIONS_H
#define SEGUE_CLI_ANE_QUESTIONS_H

#include "term/args.h"
#include "term/out.h"

/* The spec of --unit, or `ane`. */
const char *ane_spec(const struct args *args);
/* {unit, software, profile, port_order, architecture, engines, cores, methods}; of the software NPU, the last four are null. Even
 * finding the framework happens in a child. NULL: *err has the reason. */
json_t *ane_device_json(const char *spec, segue_error *err);
/* The answers of all tests, each from a child of its own; also shown as lines on stderr. */
json_t *ane_answers_json(const char *spec);
/* The rule trials (unit/ane/tools/ruletrial.h), each in a child of its own. */
json_t *ane_trials_json(const char *spec);
/* Write the report to the file of --output, indented, and print it with --json, in one line. Releases the report. Returns
 * the exit code. */
int ane_report_exit(const struct args *args, json_t *report);

#endif
