/* cmd_ane_report.c: `segue ane-report`: one file with what a Mac shows of its Neural Engine: the device, the answers of
 * ane-probe, trials of rules, a small model against `ref`, the cell of `bench --claim`, the energy of a token (as root), and the
 * rules that segue assumes. What may crash or hang runs in child processes. With --unit ane:soft the software NPU is reported,
 * which proves the command and nothing about an engine.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>

#include "ane/ane_check.h"
#include "ane/ane_energy.h"
#include "ane/ane_questions.h"
#include "ane/child.h"
#include "ane/mil_check.h"
#include "bench/bench.h"
#include "host/machine.h"
#include "term/flags.h"

/* Limits of the two parts that run models; tokens of the claim, fewer than those of bench. */
enum { CHECK_MS = 300000, CLAIM_MS = 900000, CLAIM_PROMPT = 32, CLAIM_TOKENS = 16 };

static json_t *check(const void *spec) { return ane_check_json(spec); }

/* {rows}, or {error}. */
static json_t *claim(const void *spec)
{
    struct bench_out out;
    struct bench_run b = {.out = &out, .repeats = 1};
    segue_error err;
    bench_out_begin(&out, "json");
    progress_begin(&b.progress, "ane-report: claim", false);
    segue_status st = bench_claim_rows(&b, spec, CLAIM_PROMPT, CLAIM_TOKENS, &err);
    return st ? out_error_json(&err, EXIT_UNAVAILABLE) : json_pack("{s:O}", "rows", out.rows);
}

/* Adds a part that a child makes, or null. */
static void put_part(json_t *report, const char *name, json_t *(*make)(const void *), const char *spec, int limit_ms)
{
    json_t *o = child_json(make, spec, limit_ms), *rows = json_object_get(o, "rows");
    out_note("%s: %s", name, !o ? "no answer" : json_object_get(o, "error") ? "failed" : "done");
    if (rows)
        json_object_set(report, name, rows);
    else if (o)
        json_object_set(report, name, o);
    else
        out_null(report, name, "the process died or exceeded the time limit");
    json_decref(o);
}

static void put_energy(json_t *report, const char *spec)
{
    char *why;
    json_t *o = ane_energy_json(spec, &why);
    out_note("energy: %s", o ? "done" : why);
    if (o)
        json_object_set_new(report, "energy", o);
    else
        out_null(report, "energy", why);
    free(why);
}

static int run(struct args *args)
{
    segue_error err;
    const char *spec = ane_spec(args);
    json_t *device = ane_device_json(spec, &err);
    if (!device) return out_error(&err, EXIT_UNAVAILABLE);
    json_t *report = json_object();
    bool software = json_is_true(json_object_get(device, "software"));
    char *head = out_printf("%s%shead=engine", spec, strchr(spec, ':') ? "," : ":");
    json_t *version = json_pack("[i,i,i]", (int)(segue_version() >> 16), (int)(segue_version() >> 8 & 255),
                                (int)(segue_version() & 255));
    json_object_set_new(report, "version", version);
    json_object_set_new(report, "machine", machine_json(NULL, 0));
    json_object_set_new(report, "device", device);
    json_object_set_new(report, "answers", ane_answers_json(spec));
    json_object_set_new(report, "trials", ane_trials_json(spec));
    put_part(report, "check", check, spec, CHECK_MS);
    put_part(report, "check_head_engine", check, head, CHECK_MS);
    put_part(report, "claim", claim, strcmp(spec, "ane") ? head : NULL, CLAIM_MS);
    put_energy(report, spec);
    json_object_set_new(report, "rules", mil_rules_json(NULL));
    free(head);
    if (software) out_note("ane-report: the software NPU was reported; no engine ran");
    return ane_report_exit(args, report);
}

static const struct arg_def flag_defs[] = {
    {"output", 'o', ARG_FILE, 0, "FILE.json", NULL, 0, 0, "write the report to FILE.json"},
    {"unit", 0, ARG_UNIT, 0, "U", "ane", 0, 0, "ane, or ane:soft with options for the software NPU"},
    ARG_END};
static const struct arg_group command_flags = {"Report", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_output, NULL};
const struct command cmd_ane_report = {
    .name = "ane-report",
    .summary = "collect the facts about the Neural Engine of a Mac in one file",
    .groups = groups,
    .example = "segue ane-report -o report.json",
    .run = run,
    .about = "Runs the tests of ane-probe, programs within and beyond the rules of the chip, a small model on the engine and on "
             "ref, and the cell of bench --claim, and writes the results with the rules that segue assumes to one file. As root "
             "it also measures energy with powermetrics. Takes some minutes. The file has the processor, the memory "
             "and the system of the machine and nothing else about it. Exit 3 on other machines, except with --unit ane:soft."};
