/* cmd_mil.c: `segue mil`: Neural Engine programs as files: generate, check against the rules of the hardware, run on
 * the software NPU, compare, and estimate costs. Includes internal headers of the library, because it works
 * on files and not on sessions (exception in tests/api/layers.sh).
 * Inputs: MIL text files with their blob files, or a model; for run also tensors in safetensors.
 * Output: lines or one JSON object on stdout, files for run and emit. Exit 6 if a check or a comparison
 * fails, 4 for unreadable programs.
 * SPDX-License-Identifier: MIT */
#include "ane/mil_check.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "model/model.h"
#include "term/out.h"
#include "run/placement.h"
#include "unit/ane/tools/emit.h"
#include "unit/ane/tools/explain.h"
#include "unit/ane/tools/mildiff.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/tools/milrun.h"
#include "unit/ane/blob/mlpackage.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/passes/pass.h"
#include "unit/ane/rules/rules.h"

/* The profile of --profile, modified by --chip. */
static segue_status read_profile(const struct args *args, struct sg_ane_profile *out, segue_error *err)
{
    const char *name = args_text(args, "profile"), *chip = args_text(args, "chip");
    struct sg_buf text = {0};
    /* A chip file overrides single limits of the profile, so the profile is read first. */
    segue_status st = sg_ane_profile_named(out, name ? name : "strict", err);
    if (st || !chip) return st;
    st = sg_file_read(&text, chip, 1 << 20, err);
    if (!st) st = sg_ane_profile_read(out, text.data ? text.data : "", text.len, chip, err);
    sg_buf_free(&text);
    return st;
}

/* Report wrong arguments of a verb; form: the expected ones. Returns the exit code. */
static int usage_error(segue_error *err, const char *verb, const char *form)
{
    out_fail(err, SEGUE_EARG, "mil %s: wrong arguments; expected segue mil %s", verb, form);
    return out_error(err, EXIT_UNAVAILABLE);
}

/* The JSON object of `run`. simulated_us is the time that the profile predicts for the hardware;
 * evaluate_ms was measured on this machine. */
static json_t *counters_json(const struct sg_ane_counters *c, uint64_t evaluate_ns)
{
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f}", "unit", "ane (software)", "compiles",
                     (json_int_t)c->compiles, "dispatches", (json_int_t)c->dispatches, "weight_bytes",
                     (json_int_t)c->weight_bytes, "input_bytes", (json_int_t)c->input_bytes, "output_bytes",
                     (json_int_t)c->output_bytes, "flops", (json_int_t)c->flops, "simulated_us",
                     (double)c->simulated_ns / 1e3, "evaluate_ms", (double)evaluate_ns / 1e6);
}

/* Run the programs of a folder in order on the software NPU and write their outputs. Input tensors
 * come from --in, or from the outputs of earlier programs. */
static segue_status run_files(const struct args *args, const struct sg_mil_folder *folder,
                              const struct sg_ane_profile *profile, struct sg_ane_counters *counters,
                              uint64_t *evaluate_ns, segue_error *err)
{
    struct sg_npu_opts o = {.profile = *profile, .threads = (uint32_t)args_number(args, "threads", 0)};
    const char *in_path = args_text(args, "in"), *violation = args_text(args, "on-violation");
    struct sg_archive *in = NULL;
    struct sg_ane_device *d = NULL;
    struct sg_mil_results results = {0};
    /* Faithful: compute what the hardware would compute, errors included. */
    o.faithful = violation && !strcmp(violation, "faithful");
    segue_status st = in_path ? sg_archive_open(&in, in_path, err) : SEGUE_OK;
    if (!st) st = sg_npu_open(&d, &o, err);
    if (!st) st = sg_mil_run_folder(d, folder, in, &results, err);
    /* Outputs of all programs, by name. */
    if (!st) st = sg_safetensors_write(args_text(args, "out"), results.items, results.n, err);
    if (!st) sg_ane_ops_of(d)->count(d, counters);
    *evaluate_ns = results.evaluate_ns;
    sg_mil_results_free(&results);
    if (d) sg_ane_ops_of(d)->close(d);
    sg_archive_close(in);
    return st;
}

/* Verb `run`. */
static int run_verb(const struct args *args, const struct sg_mil_folder *folder,
                    const struct sg_ane_profile *profile)
{
    struct sg_ane_counters c = {0};
    uint64_t evaluate_ns = 0;
    segue_error err;
    if (!args_has(args, "out")) return usage_error(&err, "run", "run DIR --in T.safetensors --out T.safetensors");
    if (run_files(args, folder, profile, &c, &evaluate_ns, &err)) return out_error(&err, EXIT_BAD_INPUT);
    if (args_has(args, "json")) return out_json_exit(counters_json(&c, evaluate_ns));
    out_note("mil run: %llu dispatch%s on ane (software), simulated time %.3f ms including compile and load",
             (unsigned long long)c.dispatches, c.dispatches == 1 ? "" : "es", (double)c.simulated_ns / 1e6);
    return EXIT_DONE;
}

/* Verb `diff`: compare the programs of two folders pairwise; exit 6 if they differ. The names of values
 * are ignored. Two lines are counted if the number of programs differs. */
static int diff_folders(const struct args *args, struct sg_mil_folder *a, const char *second)
{
    struct sg_mil_folder b;
    struct sg_buf lines = {0};
    segue_error err;
    uint64_t total = 0;
    /* The first folder was opened by the caller. */
    segue_status st = sg_mil_folder_open(&b, second, 0, &err);
    if (st) return out_error(&err, EXIT_BAD_INPUT);
    /* Programs are compared by their position in the folder, that is, by the number in their file
     * names. */
    if (a->n != b.n) sg_buf_printf(&lines, "- %u programs\n+ %u programs\n", a->n, b.n);
    total = a->n != b.n ? 2 : 0;
    for (uint32_t i = 0; !st && i < a->n && i < b.n; i++) {
        uint64_t n = 0;
        /* A text with syntax errors cannot be compared. */
        st = sg_mil_text_status(&a->texts[i], &err);
        if (!st) st = sg_mil_text_status(&b.texts[i], &err);
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
    if (st) code = out_error(&err, EXIT_BAD_INPUT);
    sg_buf_free(&lines);
    sg_mil_folder_close(&b);
    return code;
}

/* Costs of all programs of a model or a folder. */
struct totals {
    json_t *programs;       /* one object per function */
    struct sg_mil_cost all; /* sums; working_set_bytes is the maximum */
    double us;              /* estimated time of all dispatches, in microseconds */
    json_int_t dispatches;  /* one per function */
};

/* Add one JSON object per function of a program to t->programs, and its costs to the sums. */
static void add_program(struct totals *t, const char *path, const struct sg_mil_program *p,
                          const struct sg_ane_profile *profile)
{
    for (uint32_t k = 0; k < p->functions_n; k++) {
        /* A program may have several functions; each is dispatched separately. */
        struct sg_mil_cost c;
        sg_mil_cost_of(&c, &p->functions[k], profile);
        double one = sg_mil_expected_us(&c, profile);
        json_array_append_new(
            t->programs,
            json_pack("{s:o,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f}", "file", out_string(path, strlen(path)),
                      "function", p->functions[k].name, "ops", (json_int_t)c.ops, "flops", (json_int_t)c.flops,
                      "weight_bytes", (json_int_t)c.weight_bytes, "io_bytes", (json_int_t)c.border_bytes,
                      "logical_bytes", (json_int_t)c.logical_bytes, "working_set_bytes",
                      (json_int_t)c.working_set_bytes, "layout_ops", (json_int_t)c.layout_ops, "transposes",
                      (json_int_t)c.transposes, "estimated_us", one));
        t->all.ops += c.ops;
        t->all.layout_ops += c.layout_ops;
        t->all.transposes += c.transposes;
        t->all.weight_bytes += c.weight_bytes;
        /* Programs run one after the other, so the largest working set counts. */
        if (c.working_set_bytes > t->all.working_set_bytes) t->all.working_set_bytes = c.working_set_bytes;
        t->us += one;
        t->dispatches++;
    }
}

/* Print the costs as text or JSON. Takes over the references t->programs and helper; helper may be
 * NULL. */
static int print_totals(const struct args *args, const struct totals *t, json_t *helper, const char *profile)
{
    json_t *o = json_pack("{s:s,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:f}", "profile", profile, "programs", t->programs,
                          "dispatches", t->dispatches, "ops", (json_int_t)t->all.ops, "weight_bytes",
                          (json_int_t)t->all.weight_bytes, "working_set_bytes",
                          (json_int_t)t->all.working_set_bytes, "layout_ops", (json_int_t)t->all.layout_ops, "transposes",
                          (json_int_t)t->all.transposes, "estimated_us", t->us);
    if (helper) json_object_set_new(o, "helper", helper);
    if (args_has(args, "json")) return out_json_exit(o);
    for (size_t i = 0; i < json_array_size(t->programs); i++) {
        const json_t *p = json_array_get(t->programs, i);
        out_print("%s %s: %lld ops, %lld layout operations (%lld transposes)"
                  ", %.1f MB of weights, working set %.2f MB, %.0f us simulated (%s)\n",
               json_string_value(json_object_get(p, "file")),
               json_string_value(json_object_get(p, "function")),
               (long long)json_integer_value(json_object_get(p, "ops")),
               (long long)json_integer_value(json_object_get(p, "layout_ops")),
               (long long)json_integer_value(json_object_get(p, "transposes")),
               json_number_value(json_object_get(p, "weight_bytes")) / 1e6,
               json_number_value(json_object_get(p, "working_set_bytes")) / 1e6,
               json_number_value(json_object_get(p, "estimated_us")), profile);
    }
    for (size_t i = 0; i < json_array_size(helper); i++) {
        const json_t *h = json_array_get(helper, i);
        out_print("helper %s: %s\n", json_string_value(json_object_get(h, "op")),
               json_string_value(json_object_get(h, "reason")));
    }
    json_decref(o);
    return EXIT_DONE;
}

/* Verb `explain` for files. The cost model needs the types of all values, so programs with type errors
 * are rejected first. */
static int explain_folder(const struct args *args, const struct sg_mil_folder *folder,
                   const struct sg_ane_profile *profile)
{
    segue_error err;
    struct totals t = {0};
    for (uint32_t i = 0; i < folder->n; i++) {
        struct sg_mil_faults faults = {0};
        segue_status st = sg_mil_text_status(&folder->texts[i], &err);
        if (!st) sg_mil_check_types(folder->texts[i].program, &faults);
        if (!st) st = sg_mil_faults_fail(&faults, folder->texts[i].path, &err);
        sg_mil_faults_free(&faults);
        if (st) return out_error(&err, EXIT_BAD_INPUT);
    }
    t.programs = json_array();
    for (uint32_t i = 0; i < folder->n; i++)
        add_program(&t, folder->texts[i].path, folder->texts[i].program, profile);
    return print_totals(args, &t, NULL, profile->name);
}

/* Parse --layers A-B (inclusive) into the layer range [from, to) of the graph request. Without the
 * flag all layers are used. Returns 0 after filling err if the range is invalid. */
static int parse_layers(const struct args *args, struct sg_graph_request *wish, uint32_t layers, segue_error *err)
{
    const char *text = args_text(args, "layers");
    /* `rest` detects text after the range. */
    unsigned from, to;
    char rest;
    if (!text) return 1;
    /* Layers count from 0; B is included. */
    if (sscanf(text, "%u-%u%c", &from, &to, &rest) != 2 || from > to || to >= layers) {
        out_fail(err, SEGUE_EARG, "flag --layers: %.40s: invalid range; expected A-B with A <= B <= %u", text, layers - 1);
        return 0;
    }
    wish->from = from;
    wish->to = to + 1;
    return 1;
}

/* The JSON list "helper": operations of the model that no program contains, because the hardware does not
 * support them, with the reason. The CPU runs them. */
static json_t *helper_json(const struct sg_ane_emit *e)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < e->cut.before_n + e->cut.behind_n; i++) {
        const struct sg_op *op =
            /* Operations before the first program (embedding) and after the last one (norm, head). */
            &e->g->ops[i < e->cut.before_n ? e->cut.before[i] : e->cut.behind[i - e->cut.before_n]];
        if (!sg_ane_emit_has(e, op))
            json_array_append_new(list, json_pack("{s:s,s:i,s:s}", "op", sg_op_name(op->code), "layer", op->layer,
                                                  "reason", sg_ane_helper_reason(e->g, op)));
    }
    /* Sampling is not an operation of the graph, but the CPU does it too. */
    if (e->g->vocab)
        json_array_append_new(list, json_pack("{s:s,s:i,s:s}", "op", "sample", "layer", -1, "reason",
                                              "the hardware has no sorting and no random numbers (constraint 10)"));
    return list;
}

/* Verb `explain` for a model: build each program in memory, without weights, and add its costs.
 * resident_bytes: surfaces and the rows of the widest operation, which decide where the graph is cut. */
static int explain_model(const struct args *args, struct sg_ane_emit *e, const struct sg_ane_profile *profile)
{
    segue_error err;
    struct totals t = {.programs = json_array()};
    segue_status st = SEGUE_OK;
    for (uint32_t i = 0; i < sg_ane_emit_count(e) && !st; i++) {
        struct sg_mil_program *mil;
        struct sg_ane_blobs blobs;
        char name[32];
        /* The file name that emit would use. */
        snprintf(name, sizeof name, "p%02u.mil", i);
        st = sg_ane_emit_part(e, i, &mil, &blobs, &err);
        if (!st) {
            add_program(&t, name, mil, profile);
            if (i < e->cut.parts_n)
                json_object_set_new(json_array_get(t.programs, i), "resident_bytes",
                                    json_integer((json_int_t)sg_ane_part_bytes(e->g, &e->cut.parts[i], e->shape.rows,
                                                                               e->shape.keys)));
        }
        sg_mil_program_free(mil);
        sg_ane_blobs_free(&blobs);
    }
    if (!st) return print_totals(args, &t, helper_json(e), profile->name);
    json_decref(t.programs);
    return out_error(&err, EXIT_BAD_INPUT);
}

/* Verb `emit` for a model: write Core ML packages, MIL files, or both, and check the MIL files. */
static int emit_model(const struct args *args, struct sg_ane_emit *e, const struct sg_ane_profile *profile)
{
    const char *to = args_text(args, "output"), *packages = args_text(args, "mlpackage");
    struct sg_mil_folder folder;
    segue_error err;
    segue_status st = packages ? sg_ane_emit_packages(e, packages, &err) : SEGUE_OK;
    /* With --mlpackage alone there are no MIL files to check. */
    if (!st && !to) {
        out_note("mil emit: wrote %u Core ML package%s", sg_ane_emit_count(e), sg_ane_emit_count(e) == 1 ? "" : "s");
        return EXIT_DONE;
    }
    if (!st) st = sg_ane_emit_folder(e, to, &err);
    /* Read the files back, so that the check sees what another program would see. */
    if (!st) st = sg_mil_folder_open(&folder, to, 0, &err);
    if (st) return out_error(&err, EXIT_BAD_INPUT);
    int code = mil_check_folder(args, &folder, profile);
    sg_mil_folder_close(&folder);
    return code;
}

/* `explain` or `emit` for a model instead of files. Nothing is computed, so no unit is opened. */
static int run_on_model(const struct args *args, const struct sg_ane_profile *profile, int explain_only)
{
    struct placement p;
    struct sg_graph *g = NULL;
    struct sg_graph_request wish = {.head = 1, .select_late = 1};
    struct sg_ane_emit e = {0};
    /* 0 selects the default of the library for each number. */
    struct sg_ane_emit_opts o = {.rows = (uint32_t)args_number(args, "tokens-per-dispatch", 0),
                                 .keys = (uint32_t)args_number(args, "context", 0),
                                 .layers = (uint32_t)args_number(args, "layers-per-program", 0),
                                 .sizes_only = explain_only,
                                 .columns = sg_ane_row_columns(profile),
                                 .flush = profile->flush_products != 0};
    /* Powers of two do not change the results apart from the range. */
    const char *range = args_text(args, "fp16-scaling"), *head = args_text(args, "head");
    segue_error err;
    if (args_text(args, "storage")) (void)sg_ane_storage_named(&o.storage, args_text(args, "storage"), "flag --storage", &err);
    o.head = head && !strcmp(head, "engine");
    o.by_weights = !explain_only && (!range || strcmp(range, "none") != 0); /* explain reads no weights */
    if (!explain_only && !args_text(args, "output") && !args_text(args, "mlpackage"))
        return usage_error(&err, "emit", "emit -m MODEL -o DIR");
    int code = placement_open_model(&p, args);
    if (code) return code;
    if (!parse_layers(args, &wish, p.info.layers, &err)) {
        placement_close(&p);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    segue_status st = sg_model_graph(p.model, &wish, &g, &err);
    if (!st) st = sg_ane_emit_open(&e, g, &o, &err);
    if (st)
        code = out_error(&err, EXIT_BAD_INPUT);
    else
        code = explain_only ? explain_model(args, &e, profile) : emit_model(args, &e, profile);
    if (!st) sg_ane_emit_close(&e);
    if (g) sg_graph_free(g);
    placement_close(&p);
    return code;
}

/* Write one MIL text as a Core ML package. */
static segue_status write_package(const struct sg_mil_text *t, const char *to, segue_error *err)
{
    struct sg_mil_faults faults = {0};
    uint64_t changes = 0;
    segue_status st = sg_mil_text_status(t, err);
    if (!st) sg_mil_check_types(t->program, &faults);
    if (!st) st = sg_mil_faults_fail(&faults, t->path, err);
    sg_mil_faults_free(&faults);
    /* The package format has no inline literals: each one becomes a named constant. */
    if (!st) st = sg_pass_named(t->program, &changes, err);
    return st ? st : sg_mlpackage_write(t->program, t->files, t->files_n, NULL, 0, to, err);
}

/* Verb `emit` for files: OUT is the package, or a folder of packages if there are several programs. */
static int write_packages(const struct args *args, const struct sg_mil_folder *folder)
{
    const char *to = args_text(args, "mlpackage");
    segue_error err;
    if (!to) return usage_error(&err, "emit", "emit DIR|FILE.mil --mlpackage OUT");
    for (uint32_t i = 0; i < folder->n; i++) {
        /* The package is named after its file, without ".mil". */
        const char *slash = strrchr(folder->texts[i].path, '/'), *name = slash ? slash + 1 : folder->texts[i].path;
        size_t stem = strlen(name) > 4 ? strlen(name) - 4 : strlen(name);
        char *path = folder->n > 1 ? out_printf("%s/%.*s.mlpackage", to, (int)stem, name) : out_strdup(to);
        segue_status st = write_package(&folder->texts[i], path, &err);
        free(path);
        if (st) return out_error(&err, EXIT_BAD_INPUT);
    }
    out_note("mil emit: wrote %u Core ML package%s", folder->n, folder->n == 1 ? "" : "s");
    return EXIT_DONE;
}

/* Run a verb on MIL text with its blob files: operand 1 is a file or a folder. verb_index: position
 * in the list of run(). */
static int run_on_files(const struct args *args, int verb_index, const struct sg_ane_profile *profile)
{
    struct sg_mil_folder folder;
    segue_error err;
    /* Only a check does not depend on the order of the programs. */
    if (sg_mil_folder_open(&folder, args->operands[1], verb_index == 0, &err)) return out_error(&err, EXIT_BAD_INPUT);
    int code = verb_index == 0   ? mil_check_folder(args, &folder, profile)
               : verb_index == 1 ? run_verb(args, &folder, profile)
               : verb_index == 2 ? diff_folders(args, &folder, args->operands[2])
               : verb_index == 3 ? explain_folder(args, &folder, profile)
                            : write_packages(args, &folder);
    sg_mil_folder_close(&folder);
    return code;
}

/* A wrong number of operands is reported with the form of the verb. */
static int run(struct args *args)
{
    struct sg_ane_profile profile;
    segue_error err;
    const char *verb = args->operands[0];
    static const char *const verbs[] = {"check", "run", "diff", "explain", "emit", "rules"};
    /* The order of verbs[] is the order of the calls in run_on_files. */
    int verb_index = -1;
    for (int i = 0; i < 6; i++)
        if (!strcmp(verbs[i], verb)) verb_index = i;
    if (verb_index < 0) {
        out_fail(&err, SEGUE_EARG, "mil: \"%.60s\": unknown verb; expected emit, check, rules, run, diff or explain", verb);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    /* Expected operands of each verb, for the error message. */
    static const char *const forms[] = {"check DIR|FILE.mil", "run DIR|FILE.mil --in T.safetensors --out T.safetensors",
                                        "diff A B", "explain DIR|FILE.mil, or explain -m MODEL",
                                        "emit -m MODEL -o DIR, or emit DIR|FILE.mil --mlpackage OUT", "rules"};
    /* Without a path, explain and emit work on the model of -m, or on the default model. */
    int model = args->operands_n == 1 && (verb_index == 3 || verb_index == 4);
    if (args->operands_n != (model || verb_index == 5 ? 1 : verb_index == 2 ? 3 : 2))
        return usage_error(&err, verb, forms[verb_index]);
    if (verb_index == 5) return mil_list_rules(args);
    if (read_profile(args, &profile, &err)) return out_error(&err, EXIT_BAD_INPUT);
    return model ? run_on_model(args, &profile, verb_index == 3) : run_on_files(args, verb_index, &profile);
}

/* The help text names the verb that uses a flag; -m: only for a model. */
static const struct arg_def flag_defs[] = {
    {"profile", 0, ARG_CHOICE, 0, "strict|ieee|m1|m2|m3|m4|m5|h13|h14|h15|h16|h17", "strict", 0, 0,
     "target whose rules and arithmetic apply"},
    {"chip", 0, ARG_FILE, 0, "FILE.chip", NULL, 0, 0, "override the profile with the ane_ keys of a chip file"},
    {"in", 0, ARG_FILE, 0, "T.safetensors", NULL, 0, 0, "run: input tensors, by name"},
    {"out", 0, ARG_FILE, 0, "T.safetensors", NULL, 0, 0, "run: file for the output tensors"},
    {"on-violation", 0, ARG_CHOICE, 0, "refuse|faithful", "refuse", 0, 0,
     "run: refuse operations that the hardware computes wrongly, or reproduce the error"},
    {"threads", 't', ARG_COUNT, 0, "N", "all cores", 1, 4096, "run: CPU threads of the software NPU"},
    {"head", 0, ARG_CHOICE, 0, "helper|engine", "helper", 0, 0,
     "-m: engine: one more program with the output head and the greedy choice of a token"},
    {"tokens-per-dispatch", 0, ARG_COUNT, 0, "N", "32", 1, 512, "-m: tokens per dispatch: 1, 32, 64, 128, 256 or 512"},
    {"context", 0, ARG_COUNT, 0, "N", "512", 32, 4096, "-m: KV cache size in tokens, a power of two"},
    {"layers", 0, ARG_TEXT, 0, "A-B", "all", 0, 0, "-m: layers A to B only"},
    {"layers-per-program", 0, ARG_COUNT, 0, "N", "as many as fit", 1, 4096, "-m: layers per program"},
    {"fp16-scaling", 0, ARG_CHOICE, 0, "none|weights", "weights", 0, 0, "-m: scale values by powers of two to fit fp16"},
    {"storage", 0, ARG_CHOICE, 0, "fp16|lut1|lut2|lut3|lut4|lut6|lut8|int8|int4|w8a8", "fp16", 0, 0,
     "-m: storage of the matrices: fp16, palettes, or scaled integers"},
    {"output", 'o', ARG_FILE, 0, "DIR", NULL, 0, 0, "emit: folder for programs, weights and manifest.json"},
    {"mlpackage", 0, ARG_FILE, 0, "OUT", NULL, 0, 0, "emit: write Core ML packages; OUT is a folder if there are several"},
    ARG_END};
static const struct arg_group command_flags = {"Programs", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_output, NULL};
const struct command cmd_mil = {.name = "mil",
                                .summary = "generate, check, run, compare and analyze Neural Engine programs",
                                .operands = "emit|check|rules|run|diff|explain [DIR|FILE.mil] [B]",
                                .operands_min = 1,
                                .operands_max = 3,
                                .groups = groups,
                                .example = "segue mil explain docs/examples/ffn.mil --profile m1",
                                .run = run,
                                .about = "Works on MIL text with its blob files, on any machine. emit lowers a model "
                                         "and checks the result. check reads the folders in a folder too and prints one "
                                         "line FILE:LINE:COL: constraint N "
                                         "(op NAME): text per violated rule, with exit 6, and advice on slow "
                                         "constructs. Constraint 0 is a syntax or type error; docs/ANE.md lists the "
                                         "others, and rules prints them "
                                         "with the generations of the engine and the sources. run executes the programs of "
                                         "a folder in order on the software "
                                         "engine; an input comes from --in, or from the output of that name of an "
                                         "earlier program. diff compares programs and ignores the names of values. "
                                         "explain counts operations and bytes and estimates the time; for a model "
                                         "it writes nothing, and lists the operations that the CPU must run."};
