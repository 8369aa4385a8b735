/* cmd_mil.c: `segue mil`: programs of the neural engine as files: check them against the rules, run them on
 * the software engine, compare and explain them. Like inspect and quantize it looks behind the public header:
 * its objects are files, not sessions. SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "flags.h"
#include "out.h"
#include "unit/ane/explain.h"
#include "unit/ane/mildiff.h"
#include "unit/ane/milinfer.h"
#include "unit/ane/milrun.h"
#include "unit/ane/npu.h"
#include "unit/ane/rules.h"

/* --profile, changed by --chip. */
static segue_status profile_of(const struct args *args, struct sg_ane_profile *out, segue_error *err)
{
    const char *name = args_text(args, "profile"), *chip = args_text(args, "chip");
    struct sg_buf text = {0};
    segue_status st = sg_ane_profile_named(out, name ? name : "strict", err);
    if (st || !chip) return st;
    st = sg_file_read(&text, chip, 1 << 20, err);
    if (!st) st = sg_ane_profile_read(out, text.data ? text.data : "", text.len, chip, err);
    sg_buf_free(&text);
    return st;
}

static int wrong(segue_error *err, const char *verb, const char *form)
{
    out_fail(err, SEGUE_EARG, "mil %s: arguments: give segue mil %s", verb, form);
    return out_error(err, EXIT_NOT_HERE);
}

/* --- check --- */

static json_t *fault_json(const char *file, const struct sg_mil_fault *f)
{
    json_t *o = json_object();
    json_object_set_new(o, "file", out_string(file, strlen(file)));
    json_object_set_new(o, "line", json_integer(f->line));
    json_object_set_new(o, "column", json_integer(f->column));
    json_object_set_new(o, "op", out_string(f->op, strlen(f->op)));
    json_object_set_new(o, "constraint", json_integer(f->constraint));
    json_object_set_new(o, "text", out_string(f->text, strlen(f->text)));
    return o;
}

static void put_fault(struct out_text *lines, const char *file, const struct sg_mil_fault *f)
{
    out_addf(lines, "%s:%u:%u: %sconstraint %u (op %s): %s\n", file, f->line, f->column,
             f->advice ? "advice: " : "", f->constraint, f->op[0] ? f->op : "-", f->text);
}

static uint64_t check_texts(const struct sg_mil_folder *folder, const struct sg_ane_profile *profile,
                            struct out_text *lines, json_t *violations, json_t *advice)
{
    uint64_t refusals = 0;
    for (uint32_t i = 0; i < folder->n; i++) {
        struct sg_mil_faults faults = {0};
        const char *path = folder->texts[i].path;
        sg_mil_text_check(&folder->texts[i], profile, &faults);
        for (uint32_t k = 0; k < faults.n; k++) {
            put_fault(lines, path, &faults.list[k]);
            json_array_append_new(faults.list[k].advice ? advice : violations,
                                  fault_json(path, &faults.list[k]));
        }
        if (faults.dropped) out_addf(lines, "%s: %u more\n", path, faults.dropped);
        refusals += faults.refusals;
        sg_mil_faults_free(&faults);
    }
    return refusals;
}

static int check(const struct args *args, const struct sg_mil_folder *folder,
                 const struct sg_ane_profile *profile)
{
    struct out_text lines = {0};
    segue_error err;
    json_t *violations = json_array(), *advice = json_array();
    uint64_t refusals = check_texts(folder, profile, &lines, violations, advice);
    int code = refusals ? EXIT_CHECK : EXIT_DONE;
    if (args_has(args, "json")) {
        json_t *o = json_object();
        json_object_set_new(o, "profile", json_string(profile->name));
        json_object_set_new(o, "programs", json_integer(folder->n));
        json_object_set(o, "violations", violations);
        json_object_set(o, "advice", advice);
        int printed = out_json_exit(o);
        if (printed) code = printed;
    } else if (lines.len && out_write(lines.data, lines.len, &err))
        code = out_error(&err, EXIT_NOT_HERE);
    else if (!refusals)
        out_note("mil check: %u program%s, nothing refused under %s", folder->n, folder->n == 1 ? "" : "s",
                 profile->name);
    json_decref(violations);
    json_decref(advice);
    free(lines.data);
    return code;
}

/* --- run --- */

static json_t *counters_json(const struct sg_ane_counters *c, uint64_t evaluate_ns)
{
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f}", "unit", "ane (software)", "compiles",
                     (json_int_t)c->compiles, "dispatches", (json_int_t)c->dispatches, "weight_bytes",
                     (json_int_t)c->weight_bytes, "input_bytes", (json_int_t)c->input_bytes, "output_bytes",
                     (json_int_t)c->output_bytes, "flops", (json_int_t)c->flops, "simulated_us",
                     (double)c->simulated_ns / 1e3, "evaluate_ms", (double)evaluate_ns / 1e6);
}

static segue_status run_files(const struct args *args, const struct sg_mil_folder *folder,
                              const struct sg_ane_profile *profile, struct sg_ane_counters *counters,
                              uint64_t *evaluate_ns, segue_error *err)
{
    struct sg_npu_opts o = {.profile = *profile, .threads = (uint32_t)args_number(args, "threads", 0)};
    const char *in_path = args_text(args, "in"), *violation = args_text(args, "on-violation");
    struct sg_archive *in = NULL;
    struct sg_ane_device *d = NULL;
    struct sg_mil_results results = {0};
    o.faithful = violation && !strcmp(violation, "faithful");
    segue_status st = in_path ? sg_archive_open(&in, in_path, err) : SEGUE_OK;
    if (!st) st = sg_npu_open(&d, &o, err);
    if (!st) st = sg_mil_run_folder(d, folder, in, &results, err);
    if (!st) st = sg_safetensors_write(args_text(args, "out"), results.items, results.n, err);
    if (!st) sg_ane_ops_of(d)->count(d, counters);
    *evaluate_ns = results.evaluate_ns;
    sg_mil_results_free(&results);
    if (d) sg_ane_ops_of(d)->close(d);
    sg_archive_close(in);
    return st;
}

static int run_verb(const struct args *args, const struct sg_mil_folder *folder,
                    const struct sg_ane_profile *profile)
{
    struct sg_ane_counters c = {0};
    uint64_t evaluate_ns = 0;
    segue_error err;
    if (!args_has(args, "out")) return wrong(&err, "run", "run DIR --in T.safetensors --out T.safetensors");
    if (run_files(args, folder, profile, &c, &evaluate_ns, &err)) return out_error(&err, EXIT_REFUSED);
    if (args_has(args, "json")) return out_json_exit(counters_json(&c, evaluate_ns));
    out_note("mil run: %llu dispatches on ane (software), %.3f ms simulated",
             (unsigned long long)c.dispatches, (double)c.simulated_ns / 1e6);
    return EXIT_DONE;
}

/* --- diff --- */

static int diff(const struct args *args, struct sg_mil_folder *a, const char *second)
{
    struct sg_mil_folder b;
    struct sg_buf lines = {0};
    segue_error err;
    uint64_t total = 0;
    segue_status st = sg_mil_folder_open(&b, second, &err);
    if (st) return out_error(&err, EXIT_REFUSED);
    if (a->n != b.n) sg_buf_printf(&lines, "- %u programs\n+ %u programs\n", a->n, b.n);
    total = a->n != b.n ? 2 : 0;
    for (uint32_t i = 0; !st && i < a->n && i < b.n; i++) {
        uint64_t n = 0;
        st = sg_mil_text_sound(&a->texts[i], &err);
        if (!st) st = sg_mil_text_sound(&b.texts[i], &err);
        if (!st) st = sg_mil_diff(a->texts[i].program, b.texts[i].program, &lines, &n, &err);
        total += n;
    }
    int code = total ? EXIT_CHECK : EXIT_DONE;
    if (!st && args_has(args, "json")) {
        json_t *o = json_pack("{s:b,s:I,s:o}", "equal", total == 0, "lines", (json_int_t)total, "text",
                              out_string(lines.data, lines.len));
        int printed = out_json_exit(o);
        if (printed) code = printed;
    } else if (!st && lines.len)
        st = out_write(lines.data, lines.len, &err);
    if (st) code = out_error(&err, EXIT_REFUSED);
    sg_buf_free(&lines);
    sg_mil_folder_close(&b);
    return code;
}

/* --- explain --- */

static json_t *explain_json(const struct sg_mil_folder *folder, const struct sg_ane_profile *profile)
{
    json_t *programs = json_array();
    struct sg_mil_cost all = {0};
    double us = 0;
    json_int_t dispatches = 0;
    for (uint32_t i = 0; i < folder->n; i++)
        for (uint32_t k = 0; k < folder->texts[i].program->functions_n; k++) {
            const struct sg_mil_function *f = &folder->texts[i].program->functions[k];
            const char *path = folder->texts[i].path;
            struct sg_mil_cost c;
            sg_mil_cost_of(&c, f, profile);
            double one = sg_mil_expected_us(&c, profile);
            json_array_append_new(
                programs,
                json_pack("{s:o,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:f}", "file", out_string(path, strlen(path)),
                          "function", f->name, "ops", (json_int_t)c.ops, "flops", (json_int_t)c.flops,
                          "weight_bytes", (json_int_t)c.weight_bytes, "border_bytes",
                          (json_int_t)c.border_bytes, "logical_bytes", (json_int_t)c.logical_bytes,
                          "working_set_bytes", (json_int_t)c.working_set_bytes, "expected_us", one));
            all.ops += c.ops;
            all.weight_bytes += c.weight_bytes;
            if (c.working_set_bytes > all.working_set_bytes) all.working_set_bytes = c.working_set_bytes;
            us += one;
            dispatches++;
        }
    return json_pack("{s:s,s:o,s:I,s:I,s:I,s:I,s:f}", "profile", profile->name, "programs", programs,
                     "dispatches", dispatches, "ops", (json_int_t)all.ops, "weight_bytes",
                     (json_int_t)all.weight_bytes, "working_set_bytes", (json_int_t)all.working_set_bytes,
                     "expected_us", us);
}

static int explain(const struct args *args, const struct sg_mil_folder *folder,
                   const struct sg_ane_profile *profile)
{
    segue_error err;
    for (uint32_t i = 0; i < folder->n; i++) {
        struct sg_mil_faults faults = {0};
        segue_status st = sg_mil_text_sound(&folder->texts[i], &err);
        if (!st) sg_mil_check_types(folder->texts[i].program, &faults);
        if (!st) st = sg_mil_faults_fail(&faults, folder->texts[i].path, &err);
        sg_mil_faults_free(&faults);
        if (st) return out_error(&err, EXIT_REFUSED);
    }
    json_t *o = explain_json(folder, profile);
    if (args_has(args, "json")) return out_json_exit(o);
    for (size_t i = 0; i < json_array_size(json_object_get(o, "programs")); i++) {
        const json_t *p = json_array_get(json_object_get(o, "programs"), i);
        printf("%s %s: %lld ops, %.1f MB of weights, working set %.2f MB, %.0f us simulated (%s)\n",
               json_string_value(json_object_get(p, "file")),
               json_string_value(json_object_get(p, "function")),
               (long long)json_integer_value(json_object_get(p, "ops")),
               json_number_value(json_object_get(p, "weight_bytes")) / 1e6,
               json_number_value(json_object_get(p, "working_set_bytes")) / 1e6,
               json_number_value(json_object_get(p, "expected_us")), profile->name);
    }
    json_decref(o);
    return EXIT_DONE;
}

/* --- the door --- */

static int run(struct args *args)
{
    struct sg_ane_profile profile;
    struct sg_mil_folder folder;
    segue_error err;
    const char *verb = args->operands[0], *path = args->operands_n > 1 ? args->operands[1] : NULL;
    static const char *const verbs[] = {"check", "run", "diff", "explain"};
    int which = -1;
    for (int i = 0; i < 4; i++)
        if (!strcmp(verbs[i], verb)) which = i;
    if (which < 0) {
        out_fail(&err, SEGUE_EARG, "mil: \"%.60s\": give check, run, diff or explain", verb);
        return out_error(&err, EXIT_NOT_HERE);
    }
    if (args->operands_n != (which == 2 ? 3 : 2))
        return wrong(&err, verb, which == 2 ? "diff A B" : "check|run|explain DIR|FILE.mil");
    segue_status st = profile_of(args, &profile, &err);
    if (!st) st = sg_mil_folder_open(&folder, path, &err);
    if (st) return out_error(&err, EXIT_REFUSED);
    int code = which == 0   ? check(args, &folder, &profile)
               : which == 1 ? run_verb(args, &folder, &profile)
               : which == 2 ? diff(args, &folder, args->operands[2])
                            : explain(args, &folder, &profile);
    sg_mil_folder_close(&folder);
    return code;
}

static const struct arg_def own_defs[] = {
    {"profile", 0, ARG_CHOICE, 0, "strict|ieee|m1|m2|m4|m5|h13|h14|h16|h17", "strict", 0, 0,
     "whose rules and arithmetic"},
    {"chip", 0, ARG_FILE, 0, "FILE.chip", NULL, 0, 0, "change the profile by the ane_ keys of a chip file"},
    {"in", 0, ARG_FILE, 0, "T.safetensors", NULL, 0, 0, "run: inputs by name"},
    {"out", 0, ARG_FILE, 0, "T.safetensors", NULL, 0, 0, "run: where outputs go"},
    {"on-violation", 0, ARG_CHOICE, 0, "refuse|faithful", "refuse", 0, 0,
     "run: refuse what an engine gets wrong, or show its symptom"},
    {"threads", 't', ARG_COUNT, 0, "N", "all cores", 1, 4096, "run: threads of the software engine"},
    ARG_END};
static const struct arg_group own = {"What", own_defs};
static const struct arg_group *const groups[] = {&own, &flags_output, NULL};
const struct command cmd_mil = {.name = "mil",
                                .summary = "check, run, compare and explain programs of the neural engine",
                                .operands = "check|run|diff|explain DIR|FILE.mil [B]",
                                .operands_min = 1,
                                .operands_max = 3,
                                .groups = groups,
                                .example = "segue mil explain docs/examples/ffn.mil --profile m1",
                                .run = run,
                                .about = "Works on MIL text with its blob files, on any machine. check "
                                         "prints a line FILE:LINE:COL: constraint N (op NAME): text for each "
                                         "rule that is broken (exit 6) and advice for what is only slow; "
                                         "constraint 0 is syntax or types, the others stand in docs/ANE.md. "
                                         "run executes the programs of a folder in order on the software "
                                         "engine; an input is taken from --in or from an earlier program's "
                                         "output of that name. diff compares programs whatever their values "
                                         "are called. explain counts operations, bytes and the "
                                         "simulated time."};
