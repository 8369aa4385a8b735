/* bench_pipelines.c: `segue bench --pipelines`: all predefined placements under the protocol of published work: four
 * runs, the first dropped, median of the others, greedy, prompts of 6, 133 and 410 tokens. Each pipeline runs in a
 * child process, so that its first run is cold and its memory is measured separately.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <unistd.h>
#include "host/folders.h"
#include "term/interrupt.h"
#include "host/machine.h"
#include "run/pipeline.h"
#include "run/report.h"

enum { MAX_UNITS = 32 };

/* Figures of one run, from the request to the last token. */
struct run_figures {
    double ttft_ms, prefill_tok_s, decode_tok_s, handoff_ms, exposed_ms; /* 0: not measured */
    segue_stats stats; /* counters at the end */
    struct session_work work;
    uint64_t hash; /* of the generated ids */
    uint64_t start_ns, first_ns, end_ns; /* when the request, its first token and its last one were */
};

/* One run in a new session: prompt ids[prompt], then `tokens` generated tokens. The time to first token includes
 * opening the session. */
static segue_status run_once(struct bench_run *b, const int32_t *ids, size_t prompt, size_t tokens,
                            struct run_figures *m, segue_error *err)
{
    segue_session *s = NULL;
    struct bench_answer a = {.ids = out_alloc(tokens * sizeof *a.ids)};
    uint64_t start_ns = out_now_ns();
    segue_status st = bench_session(b, placement_plan(&b->placement), ids, prompt, prompt + tokens, &s, err);
    double opened = (double)(out_now_ns() - start_ns) / 1e6;
    if (!st) st = bench_answer(s, tokens, &a, err);
    m->stats = a.at_end;
    if (s) work_get(&m->work, s);
    m->ttft_ms = opened + (double)a.first_ns / 1e6;
    /* The first token may be computed by the decode unit, so both phases count as time before it. */
    double prefill_s = (double)(a.at_first.prefill_ns + a.at_first.decode_ns) / 1e9;
    m->prefill_tok_s = prefill_s > 0 ? (double)prompt / prefill_s : 0;
    m->decode_tok_s = a.rest_ns ? (double)(tokens - 1) * 1e9 / (double)a.rest_ns : 0;
    m->handoff_ms = (double)m->stats.handoff_ns / 1e6;
    m->exposed_ms = (double)m->stats.handoff_exposed_ns / 1e6;
    m->hash = bench_hash(a.ids, tokens);
    m->start_ns = start_ns;
    m->first_ns = start_ns + (uint64_t)(m->ttft_ms * 1e6);
    m->end_ns = m->first_ns + a.rest_ns;
    machine_peak_bytes();
    bench_close_session(s);
    free(a.ids);
    return st;
}

/* 0 means not measured. */
static void put_positive(json_t *o, const char *name, double v, const char *reason)
{
    if (v > 0)
        json_object_set_new(o, name, out_real(v));
    else
        out_null(o, name, reason);
}

/* Median of one field of m[n]; offset: of the field in struct run_figures. */
static double median_of(const struct run_figures *m, size_t n, size_t offset)
{
    double *v = out_alloc(n * sizeof *v);
    for (size_t i = 0; i < n; i++) memcpy(&v[i], (const char *)&m[i] + offset, sizeof *v);
    double middle = bench_median(v, n);
    free(v);
    return middle;
}

/* The fields that put_figures sets, in the order of its offsets. */
static const char *const figure_names[] = {"ttft_ms", "prefill_tok_s", "decode_tok_s", "handoff_ms",
                                      "handoff_exposed_ms"};

/* Set the medians over m[n]. two: prefill and decode run on different units. */
static void put_figures(json_t *o, const struct run_figures *m, size_t n, bool two)
{
    /* Offsets of the fields, in the order of figure_names. */
    static const size_t at[] = {offsetof(struct run_figures, ttft_ms), offsetof(struct run_figures, prefill_tok_s),
                                offsetof(struct run_figures, decode_tok_s),
                                offsetof(struct run_figures, handoff_ms), offsetof(struct run_figures, exposed_ms)};
    for (size_t i = 0; i < 5; i++)
        put_positive(o, figure_names[i], median_of(m, n, at[i]),
            i == 2  ? "only one token was generated"
            : i > 2 ? two ? "there was no hand-off" : "one unit: no hand-off"
                    : "not measured");
}

/* The JSON list "units": what every unit computed in the last run. */
static json_t *units_json(const struct bench_run *b, const struct session_work *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->uses_n; i++) {
        const segue_use *u = &s->uses[i];
        json_t *o = json_object();
        json_object_set_new(o, "unit", json_string(b->placement.unit_info[u->unit].spec));
        json_object_set_new(o, "phase", json_string(report_phase_name(u->phase)));
        json_object_set_new(o, "layers", json_pack("[i,i]", (int)u->from, (int)(u->to ? u->to - 1 : 0)));
        json_object_set_new(o, "runs", json_integer((json_int_t)u->runs));
        json_object_set_new(o, "tokens", json_integer((json_int_t)u->tokens));
        json_object_set_new(o, "dispatches", json_integer((json_int_t)u->dispatches));
        json_object_set_new(o, "ms", out_real((double)u->ns / 1e6));
        json_object_set_new(o, "simulated", json_boolean(b->placement.unit_info[u->unit].simulated));
        json_array_append_new(list, o);
    }
    return list;
}

/* Set disk_bytes: the model file or folder, plus the entries of the cache folder that this process used. Entries are found by the
 * time of their last use, since their names are hashes that do not reveal the model. */
static void put_disk(json_t *o, const struct placement *p, struct timespec opened)
{
    uint64_t counted = 0, model = 0;
    size_t files = 0;
    char *cache = folders_home("cache");
    folders_usage_since(cache, opened, &counted);
    folders_usage(p->path, &model, &files);
    json_object_set_new(o, "disk_bytes", json_integer((json_int_t)(counted + model)));
    free(cache);
}

/* A row with the fields that need no measurement. */
static json_t *row_header(const char *name, size_t prompt, size_t tokens)
{
    json_t *o = json_object();
    json_object_set_new(o, "pipeline", json_string(name));
    json_object_set_new(o, "available", json_true());
    json_object_set_new(o, "n_prompt", json_integer((json_int_t)prompt));
    json_object_set_new(o, "n_gen", json_integer((json_int_t)tokens));
    return o;
}

static const char *const energy_names[] = {"prefill_j", "decode_j", "power_w", "meter"};

static void put_no_energy(json_t *o, const char *reason)
{
    for (size_t i = 0; i < 4; i++) out_null(o, energy_names[i], reason);
}

/* Joules of one run, the mean of m[n]; why: there is no meter. */
static void put_energy(json_t *o, struct meter *meter, const struct run_figures *m, size_t n, size_t prompt, size_t tokens,
                       const char *why)
{
    struct meter_phase prefill = {.tokens = 0}, decode = {.tokens = 0};
    if (!meter->name) {
        put_no_energy(o, why);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        meter_add(meter, m[i].start_ns, m[i].first_ns, prompt, &prefill);
        meter_add(meter, m[i].first_ns, m[i].end_ns, tokens - 1, &decode);
    }
    json_t *all = meter_json(meter, &prefill, &decode, true);
    for (size_t i = 0; i < 4; i++) {
        json_t *v = json_object_get(all, energy_names[i]);
        char *reason = out_printf("%s_reason", energy_names[i]);
        if (i < 2 && json_is_number(v)) json_object_set_new(o, energy_names[i], out_real(json_number_value(v) / (double)n));
        else json_object_set(o, energy_names[i], v);
        if (json_object_get(all, reason)) json_object_set(o, reason, json_object_get(all, reason));
        free(reason);
    }
    json_decref(all);
}

/* One row. m[0] is not part of the medians; for the first prompt length it is the cold run. */
static json_t *result_row(struct bench_run *b, const char *name, size_t prompt, size_t tokens, const struct run_figures *m,
                   bool cold)
{
    const struct placement *p = &b->placement;
    const segue_stats *s = &m[b->repeats - 1].stats;
    const struct session_work *work = &m[b->repeats - 1].work;
    size_t prefill_unit = report_phase_unit(p, 0), decode_unit = report_phase_unit(p, 1),
           counted = b->repeats > 1 ? b->repeats - 1 : 1;
    json_t *o = row_header(name, prompt, tokens);
    char hash[24];
    json_object_set_new(o, "prefill", json_string(p->unit_info[prefill_unit].spec));
    json_object_set_new(o, "decode", json_string(p->unit_info[decode_unit].spec));
    put_figures(o, m + (b->repeats > 1), counted, prefill_unit != decode_unit);
    /* All runs of the row, the dropped one included. */
    json_object_set_new(o, "repeats", json_integer((json_int_t)b->repeats));
    json_object_set_new(o, "dropped", json_integer(b->repeats > 1));
    json_object_set_new(o, "handoff_bytes", json_integer((json_int_t)s->handoff_bytes));
    json_object_set_new(o, "copied_bytes", json_integer((json_int_t)s->copied_bytes));
    put_positive(o, "load_ms", cold ? (double)p->load_ns / 1e6 : 0, "the model was loaded before the first prompt");
    put_positive(o, "compile_ms", cold ? (double)p->compile_ns / 1e6 : 0, "the engine was built before the first prompt");
    /* A new process: load, compile and the first run. */
    put_positive(o, "cold_ttft_ms", cold ? (double)(p->load_ns + p->compile_ns) / 1e6 + m[0].ttft_ms : 0,
        "the process was warm from the prompt before");
    report_memory(o, p, s->state_bytes);
    put_disk(o, p, b->opened);
    put_energy(o, &b->meter, m + (b->repeats > 1), counted, prompt, tokens, b->no_meter.text);
    json_object_set_new(o, "units", units_json(b, work));
    /* Dispatches of the last run, over all units. */
    uint64_t all = 0;
    for (size_t i = 0; i < work->uses_n; i++) all += work->uses[i].dispatches;
    json_object_set_new(o, "dispatches", json_integer((json_int_t)all));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)m[b->repeats - 1].hash);
    json_object_set_new(o, "ids_hash", json_string(hash));
    json_object_set_new(o, "model", report_model_json(p));
    json_object_set_new(o, "machine", machine_json(p->unit_info, p->units_n));
    json_object_set_new(o, "seed", json_integer((json_int_t)b->seed));
    return o;
}

/* Append one row per prompt length to `rows`. */
static segue_status bench_prompts(struct bench_run *b, const char *name, json_t *rows, segue_error *err)
{
    /* Lengths of the published protocol. */
    static const long long default_prompts[] = {6, 133, 410};
    size_t prompts_n, tokens_n;
    long long *prompts = args_count_list(&b->args, "prompt", &prompts_n),
              *tokens_list = args_count_list(&b->args, "tokens", &tokens_n);
    const long long *p = prompts_n ? prompts : default_prompts;
    size_t tokens = tokens_n && tokens_list[0] > 0 ? (size_t)tokens_list[0] : 200;
    struct run_figures *m = out_alloc(b->repeats * sizeof *m);
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < (prompts_n ? prompts_n : 3) && !st; i++) {
        size_t prompt = p[i] > 0 ? (size_t)p[i] : 1;
        int32_t *ids = bench_ids(b, prompt);
        for (size_t k = 0; k < b->repeats && !st; k++) st = run_once(b, ids, prompt, tokens, &m[k], err);
        if (!st) json_array_append_new(rows, result_row(b, name, prompt, tokens, m, i == 0));
        free(ids);
    }
    free(m);
    free(prompts);
    free(tokens_list);
    return st;
}

/* The row of a pipeline whose unit is missing: every figure is null with the reason. */
static json_t *unavailable_row(const char *name, const char *reason)
{
    json_t *o = json_object();
    json_object_set_new(o, "pipeline", json_string(name));
    json_object_set_new(o, "available", json_false());
    json_object_set_new(o, "reason", out_string(reason, strlen(reason)));
    static const char *const names[] = {
        "n_prompt",   "n_gen",        "prefill",    "decode",     "handoff_bytes", "copied_bytes", "load_ms",
        "compile_ms", "cold_ttft_ms", "peak_bytes", "device_bytes", "disk_bytes", "dispatches", "ids_hash"};
    for (size_t i = 0; i < 5; i++) out_null(o, figure_names[i], reason);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) out_null(o, names[i], reason);
    put_no_energy(o, reason);
    json_object_set_new(o, "units", json_array());
    return o;
}

/* The meter of --meter, or that of this machine, without which the rows say why they have no energy. */
static segue_status open_meter(struct bench_run *b, segue_error *err)
{
    const char *kind = args_has(&b->args, "meter") ? args_text(&b->args, "meter") : NULL;
    snprintf(b->no_meter.text, sizeof b->no_meter.text, "not requested");
    if (kind && !strcmp(kind, "none")) return SEGUE_OK;
    if (kind) return meter_try(&b->meter, kind, &b->placement, err);
    (void)meter_try(&b->meter, NULL, &b->placement, &b->no_meter);
    return SEGUE_OK;
}

/* In the child: {"rows": [...]}, plus {"status", "text"} after a failure. A missing unit is not a failure but a row. */
static json_t *measure_pipeline(struct bench_run *b, const char *name)
{
    json_t *o = json_object(), *rows = json_array();
    segue_error err;
    int what = EXIT_UNAVAILABLE;
    b->opened = folders_now();
    segue_status st = placement_try(&b->placement, &b->args, 0, NULL, &what, &err);
    /* A missing unit or driver becomes a row; an invalid model file stays an error. */
    if ((st == SEGUE_EUNSUPPORTED || st == SEGUE_EUNIT) && what == EXIT_UNAVAILABLE) {
        json_array_append_new(rows, unavailable_row(name, err.text));
        st = SEGUE_OK;
    } else if (!st) {
        st = open_meter(b, &err);
        if (!st) st = bench_prompts(b, name, rows, &err);
        meter_close(&b->meter);
    }
    if (!st && b->out->timelines && b->placement.engine) {
        size_t prompts_n;
        long long *prompts = args_count_list(&b->args, "prompt", &prompts_n);
        json_t *line = bench_timeline(b, name, prompts_n && prompts[0] > 1 ? (size_t)prompts[0] : 133, 16, &err);
        st = line ? SEGUE_OK : err.status;
        if (line) json_object_set_new(o, "timeline", line);
        free(prompts);
    }
    placement_close(&b->placement);
    json_object_set_new(o, "rows", rows);
    if (!st) return o;
    json_object_set_new(o, "status", json_integer(st));
    json_object_set_new(o, "text", out_string(err.text, strlen(err.text)));
    return o;
}

/* In the child: {"names": [...]}: single:U for every real unit, then every named pipeline, alone and with the fastest
 * unit for decode. */
static json_t *default_names(struct bench_run *b, const char *ignored)
{
    segue_unit_info info[MAX_UNITS];
    segue_error err;
    size_t n = 0;
    const char *last = NULL;
    json_t *names = json_array();
    (void)b;
    (void)ignored;
    for (size_t i = 0; i < MAX_UNITS; i++) info[i] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(info, MAX_UNITS, &n, &err)) n = 0;
    for (size_t i = 0; i < n && i < MAX_UNITS; i++) {
        /* Real units only; proc: would measure the same unit again. */
        if (!info[i].present || info[i].simulated || !strcmp(info[i].kind, "ref") ||
            !strcmp(info[i].kind, "proc"))
            continue;
        json_array_append_new(names, json_sprintf("single:%s", info[i].spec));
        last = info[i].spec;
    }
    for (size_t i = 0; pipeline_names[i]; i++) {
        json_array_append_new(names, json_string(pipeline_names[i]));
        if (last && strcmp(pipeline_names[i], "gpu") != 0)
            json_array_append_new(names, json_sprintf("%s+%s", pipeline_names[i], last));
    }
    return json_pack("{s:o}", "names", names);
}

/* An interrupted parent leaves at once; its child would continue to measure. */
static void end_with_parent(void)
{
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
}

/* Call work(b, name) in a child process and return its JSON, which is passed through a pipe. The parent never opens a
 * unit, because drivers do not survive a fork. NULL after filling err on failure. */
static json_t *run_in_child(struct bench_run *b, const char *name,
                              json_t *(*work)(struct bench_run *, const char *), segue_error *err)
{
    int ends[2];
    if (pipe(ends)) {
        out_fail_errno(err, "bench --pipelines", name, NULL);
        return NULL;
    }
    /* Buffered output would be written twice after fork. */
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        end_with_parent();
        close(ends[0]);
        FILE *f = fdopen(ends[1], "w");
        int bad = !f || json_dumpf(work(b, name), f, JSON_COMPACT | JSON_REAL_PRECISION(9)) || fclose(f);
        /* _exit: the atexit handlers belong to the parent. */
        _exit(bad ? EXIT_INPUT_OUTPUT : EXIT_DONE);
    }
    close(ends[1]);
    json_error_t json_err;
    FILE *f = pid < 0 ? NULL : fdopen(ends[0], "r");
    json_t *o = f ? json_loadf(f, 0, &json_err) : NULL;
    if (f)
        fclose(f);
    else
        close(ends[0]);
    /* The pipe was read to its end, so the child has exited or is about to. */
    if (pid > 0) waitpid(pid, NULL, 0);
    if (!o)
        out_fail(err, SEGUE_EUNIT,
                 "bench --pipelines: %.100s: the child process ended without a result; measure this pipeline alone",
                 name);
    return o;
}

/* The pipelines of --pipeline, and "flags" for the placement of --unit, --prefill and --decode; without both, all
 * names, which a child process lists. */
static json_t *selected_names(struct bench_run *b, segue_error *err)
{
    const char *text;
    json_t *names = json_array();
    for (size_t i = 0; (text = args_nth(&b->args, "pipeline", i)); i++)
        json_array_append_new(names, out_string(text, strlen(text)));
    if (args_has(&b->args, "prefill") || args_has(&b->args, "decode") || args_has(&b->args, "unit"))
        json_array_append_new(names, json_string("flags"));
    /* The user selected the rows. */
    if (json_array_size(names)) return names;
    json_decref(names);
    json_t *o = run_in_child(b, "list", default_names, err);
    names = json_incref(json_object_get(o, "names"));
    json_decref(o);
    return names;
}

/* Set ids_equal: the row has the tokens of its decode unit alone, whose rows of single:U come earlier. alone: {"U N": hash} */
static void put_ids_equal(json_t *row, json_t *alone)
{
    const char *pipeline = json_string_value(json_object_get(row, "pipeline"));
    const char *unit = json_string_value(json_object_get(row, "decode"));
    json_t *hash = json_object_get(row, "ids_hash");
    if (!unit) {
        out_null(row, "ids_equal", "the pipeline is not available");
        return;
    }
    json_t *key = json_sprintf("%s %lld", unit, (long long)json_integer_value(json_object_get(row, "n_prompt")));
    const char *name = json_string_value(key);
    if (!strncmp(pipeline, "single:", 7) && !json_object_get(alone, name)) json_object_set(alone, name, hash);
    json_t *want = json_object_get(alone, name);
    if (want)
        json_object_set_new(row, "ids_equal", json_boolean(json_equal(hash, want)));
    else
        out_null(row, "ids_equal", "the decode unit alone was not measured before");
    json_decref(key);
}

/* Output the rows of a child process, then return its failure, if any. */
static segue_status output_rows(struct bench_run *b, json_t *o, json_t *alone, segue_error *err)
{
    segue_status st = SEGUE_OK;
    json_t *result_row, *status = json_object_get(o, "status");
    size_t i;
    json_array_foreach(json_object_get(o, "rows"), i, result_row)
    {
        put_ids_equal(result_row, alone);
        if (b->case_name)
            json_object_set_new(result_row, "case",
                                json_sprintf("%s %s", b->case_name, json_string_value(json_object_get(result_row, "pipeline"))));
        if (!st) st = bench_out_row(b->out, json_incref(result_row), err);
    }
    if (json_object_get(o, "timeline") && b->out->timelines)
        json_array_append(b->out->timelines, json_object_get(o, "timeline"));
    if (st || !status) return st;
    return out_fail(err, (segue_status)json_integer_value(status), "%s",
                    json_string_value(json_object_get(o, "text")));
}

/* An unknown name ends the command before anything is measured. */
static segue_status check_names(const json_t *names, segue_error *err)
{
    const json_t *name;
    size_t i;
    json_array_foreach(names, i, name)
    {
        const char *text = json_string_value(name);
        segue_status st = strcmp(text, "flags") != 0 ? pipeline_check(text, err) : SEGUE_OK;
        if (st) return st;
    }
    return SEGUE_OK;
}

/* Measure one pipeline in a child process. Its name replaces the flags that select units. */
static segue_status bench_pipeline(struct bench_run *b, const char *name, json_t *alone, segue_error *err)
{
    /* The name "flags" stands for the placement of the command line. */
    struct args original = b->args;
    segue_status st = SEGUE_OK;
    /* Work on a copy: the next pipeline needs the original flags. */
    b->args = args_copy(&original);
    args_unset(&b->args, "pipeline");
    if (strcmp(name, "flags") != 0) {
        args_unset(&b->args, "unit");
        args_unset(&b->args, "prefill");
        args_unset(&b->args, "decode");
        st = args_set(&b->args, "pipeline", name, err);
    }
    json_t *o = st ? NULL : run_in_child(b, name, measure_pipeline, err);
    if (!st) st = o ? output_rows(b, o, alone, err) : err->status;
    json_decref(o);
    args_free(&b->args);
    b->args = original;
    return st;
}

/* A failure or an interrupt ends the list; rows already measured were written. */
int bench_pipelines(struct bench_run *b)
{
    static const struct bench_column columns[] = {{"model and pipeline", "case", 0},
                                                  {"pipeline", "pipeline", 0},
                                                  {"prefill", "prefill", 0},
                                                  {"decode", "decode", 0},
                                                  {"tokens", "n_prompt", 0},
                                                  {"ttft ms", "ttft_ms", 2},
                                                  {"cold ttft ms", "cold_ttft_ms", 0},
                                                  {"prefill tok/s", "prefill_tok_s", 1},
                                                  {"decode tok/s", "decode_tok_s", 1},
                                                  {"hand-off ms", "handoff_ms", 3},
                                                  {"hand-off bytes", "handoff_bytes", 0},
                                                  {"memory bytes", "peak_bytes", 0},
                                                  {"device bytes", "device_bytes", 0},
                                                  {"disk bytes", "disk_bytes", 0},
                                                  {"dispatches", "dispatches", 0},
                                                  {"tokens equal", "ids_equal", 0},
                                                  {"prefill J", "prefill_j", 3},
                                                  {"decode J", "decode_j", 3},
                                                  {"unavailable because", "reason", 0},
                                                  {NULL, NULL, 0}};
    segue_error err;
    b->out->columns = b->case_name ? columns : columns + 1;
    json_t *names = selected_names(b, &err), *name, *alone = json_object();
    segue_status st = names ? check_names(names, &err) : err.status;
    size_t i;
    json_array_foreach(names, i, name)
    {
        if (!st && !interrupt_pending()) st = bench_pipeline(b, json_string_value(name), alone, &err);
    }
    json_decref(alone);
    json_decref(names);
    return st ? out_error(&err, EXIT_UNAVAILABLE) : interrupt_pending() ? EXIT_INTERRUPTED : EXIT_DONE;
}
