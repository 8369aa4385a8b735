/* cmd_ane_probe.c: `segue ane-probe`: tests of the Neural Engine of a Mac, or of the software NPU. Exit 3 where there is none.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include "ane/ane_questions.h"
#include "term/flags.h"

static int run(struct args *args)
{
    segue_error err;
    const char *spec = ane_spec(args);
    json_t *report = ane_device_json(spec, &err);
    if (!report) return out_error(&err, EXIT_UNAVAILABLE);
    json_object_set_new(report, "answers", ane_answers_json(spec));
    return ane_report_exit(args, report);
}

static const struct arg_def flag_defs[] = {
    {"output", 'o', ARG_FILE, 0, "FILE.json", NULL, 0, 0, "write the report to FILE.json"},
    {"unit", 0, ARG_UNIT, 0, "U", "ane", 0, 0, "ane, or ane:soft with options for the software NPU"},
    ARG_END};
static const struct arg_group command_flags = {"Report", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_output, NULL};
const struct command cmd_ane_probe = {
    .name = "ane-probe",
    .summary = "test the Neural Engine of a Mac and report its behavior",
    .groups = groups,
    .example = "segue ane-probe -o report.json",
    .run = run,
    .about = "Runs small programs on the Neural Engine of a Mac, each test in a separate process, and reports the "
             "results: which methods the private framework has, whether concat and rsqrt compile, in which order "
             "surfaces are bound, whether patched weights take effect, and the time of a dispatch. Nothing is installed "
             "or changed. Exit 3 on other machines, except with --unit ane:soft. docs/ANE.md describes the private interface."};
