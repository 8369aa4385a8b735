/* cmd_energy.c: `segue energy`: joules of each phase from a trace (--trace) and the log of a power meter that ran beside it. The
 * trace has times of the monotonic clock and the difference to the time of day.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "meter/meter_log.h"
#include "meter/meter.h"
#include "term/flags.h"
#include "term/out.h"

enum { TRACE_BYTES = 256 << 20, SESSIONS = 4096 };

/* The phases of one session: begin and end of its prefill and of its decode. */
struct trace_session {
    double number, begin_us[2], end_us[2];
    size_t tokens[2];
};
struct trace_file {
    struct trace_session list[SESSIONS];
    size_t n;
    double first_us;
    int64_t unix_minus_monotonic_ns;
};

/* The JSON text of a file. */
static json_t *load_trace(const char *path, segue_error *err)
{
    struct out_text text = {0};
    char piece[65536];
    size_t n;
    json_error_t why;
    json_t *o = NULL;
    errno = 0;
    FILE *f = fopen(path, "rb");
    if (!f) {
        out_fail_errno(err, "reading the trace", path, NULL);
        return NULL;
    }
    while ((n = fread(piece, 1, sizeof piece, f)) > 0 && text.len <= TRACE_BYTES) out_add(&text, piece, n);
    fclose(f);
    if (text.len > TRACE_BYTES)
        out_fail(err, SEGUE_ELIMIT, "trace: %.200s: larger than %d MiB; pass a shorter one", path, TRACE_BYTES >> 20);
    else if (!(o = out_json_load(text.data ? text.data : "", text.len, JSON_REJECT_DUPLICATES, &why)))
        out_fail(err, SEGUE_EFORMAT, "trace: %.200s: line %d: %s; pass a file of --trace", path, why.line, why.text);
    free(text.data);
    return o;
}

/* The session of an event, added when it is missing; NULL: too many. */
static struct trace_session *session_of(struct trace_file *t, double number)
{
    size_t i = 0;
    while (i < t->n && t->list[i].number != number) i++;
    if (i == SESSIONS) return NULL;
    if (i == t->n) t->list[t->n++] = (struct trace_session){.number = number, .begin_us = {-1, -1}};
    return &t->list[i];
}

/* One event of kind X. Other kinds and names are skipped. False: a field is missing or absurd. */
static bool add_event(struct trace_file *t, const json_t *e)
{
    const char *name = json_string_value(json_object_get(e, "name"));
    const char *kind = json_string_value(json_object_get(e, "ph"));
    if (!name || !kind) return false;
    int phase = !strcmp(name, "prefill") ? 0 : !strcmp(name, "decode") ? 1 : -1;
    if (strcmp(kind, "X") != 0 || phase < 0) return true;
    const json_t *ts = json_object_get(e, "ts"), *dur = json_object_get(e, "dur"), *args = json_object_get(e, "args");
    const json_t *tokens = json_object_get(args, "tokens");
    double begin = json_number_value(ts), end = begin + json_number_value(dur);
    if (!json_is_number(ts) || !json_is_number(dur) || !json_is_integer(tokens) || begin < 0 || end < begin || end > 9e12 ||
        json_integer_value(tokens) < 0)
        return false;
    struct trace_session *s = session_of(t, json_number_value(json_object_get(args, "session")));
    if (!s) return false;
    if (s->begin_us[phase] < 0 || begin < s->begin_us[phase]) s->begin_us[phase] = begin;
    if (end > s->end_us[phase]) s->end_us[phase] = end;
    s->tokens[phase] += (size_t)json_integer_value(tokens);
    if (t->first_us < 0 || begin < t->first_us) t->first_us = begin;
    return true;
}

static segue_status read_trace(struct trace_file *t, const char *path, segue_error *err)
{
    json_t *o = load_trace(path, err), *events = json_object_get(o, "traceEvents"), *e;
    const json_t *offset = json_object_get(json_object_get(o, "otherData"), "unix_minus_monotonic_ns");
    segue_status st = o ? SEGUE_OK : err->status;
    size_t i;
    t->first_us = -1;
    t->unix_minus_monotonic_ns = json_integer_value(offset);
    if (!st && (!json_is_array(events) || !json_is_integer(offset)))
        st = out_fail(err, SEGUE_EFORMAT,
                      "trace: %.200s: traceEvents or otherData.unix_minus_monotonic_ns is missing; pass a file of --trace", path);
    json_array_foreach(events, i, e)
    {
        if (!st && !add_event(t, e))
            st = out_fail(err, SEGUE_EFORMAT, "trace: %.200s: event %zu: not an event of --trace; pass another file", path,
                          i + 1);
    }
    if (!st && t->first_us < 0) st = out_fail(err, SEGUE_EFORMAT, "trace: %.200s: no runs in it; pass another file", path);
    json_decref(o);
    return st;
}

static int print_energy(const struct args *args, json_t *o)
{
    if (args_has(args, "json")) return out_json_exit(o);
    static const char *const names[] = {"prefill", "decode"};
    for (int k = 0; k < 2; k++) {
        char joules[24], each[32];
        snprintf(joules, sizeof joules, "%s_j", names[k]);
        snprintf(each, sizeof each, "%s_j_per_token", names[k]);
        const json_t *j = json_object_get(o, joules), *t = json_object_get(o, each);
        if (json_is_number(j))
            out_print("%-8s %.3f J, %.5f J per token\n", names[k], json_number_value(j), json_number_value(t));
        else {
            strcat(joules, "_reason");
            out_print("%-8s not measured: %s\n", names[k], json_string_value(json_object_get(o, joules)));
        }
    }
    json_decref(o);
    return EXIT_DONE;
}

/* The idle window ends where the first run begins. */
static int run(struct args *args)
{
    const char *meter = args_text(args, "meter"), *colon = meter ? strchr(meter, ':') : NULL;
    segue_error err;
    struct energy_series series = {0};
    struct meter_phase phases[2] = {{.tokens = 0}};
    struct energy_use idle = {0};
    char *kind = colon ? out_printf("%.*s", (int)(colon - meter), meter) : NULL;
    if (!kind || (strcmp(kind, "powermetrics") != 0 && strcmp(kind, "asitop") != 0)) {
        free(kind);
        out_fail(&err, SEGUE_EARG, "energy: %.80s: not a log; use --meter powermetrics:FILE or --meter asitop:FILE",
                 meter ? meter : "no --meter");
        return out_error(&err, EXIT_BAD_INPUT);
    }
    struct trace_file *t = out_alloc(sizeof *t);
    segue_status st = read_trace(t, args->operands[0], &err);
    if (!st) st = meter_log_read(&series, kind, colon + 1, t->unix_minus_monotonic_ns, &err);
    for (size_t i = 0; i < t->n && !st; i++)
        for (int k = 0; k < 2; k++) {
            const struct trace_session *s = &t->list[i];
            if (s->begin_us[k] < 0) continue;
            energy_add(&series, (uint64_t)(s->begin_us[k] * 1e3), (uint64_t)(s->end_us[k] * 1e3), &phases[k].use);
            phases[k].tokens += s->tokens[k];
        }
    double before = args_number(args, "meter-idle", 0) * 1e6;
    if (!st && before > 0 && t->first_us > before)
        energy_add(&series, (uint64_t)((t->first_us - before) * 1e3), (uint64_t)(t->first_us * 1e3), &idle);
    char buffer[160];
    const char *why = before > 0 && !st ? energy_refusal(&idle, buffer, sizeof buffer) : NULL;
    if (why) st = out_fail(&err, SEGUE_EFORMAT, "energy: %.80s: idle time: %s; record more before the run", meter, why);
    int code = st ? out_error(&err, EXIT_BAD_INPUT)
                  : print_energy(args, meter_series_json(&series, kind, before > 0 ? &idle : NULL, &phases[0], &phases[1], true));
    energy_free(&series);
    free(t);
    free(kind);
    return code;
}

static const struct arg_def flag_defs[] = {
    {"meter", 0, ARG_TEXT, 0, "NAME:FILE", NULL, 0, 0, "the log: powermetrics:FILE or asitop:FILE"},
    {"meter-idle", 0, ARG_COUNT, 0, "S", NULL, 1, 3600, "subtract the mean power of the S seconds before the first run"},
    ARG_END};
static const struct arg_group command_flags = {"Measurement", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_output, NULL};
const struct command cmd_energy = {
    .name = "energy",
    .summary = "energy of the phases of a trace from the log of a power meter",
    .operands = "TRACE",
    .operands_min = 1,
    .operands_max = 1,
    .groups = groups,
    .example = "segue energy run.json --meter powermetrics:power.txt",
    .run = run,
    .about = "Reads a trace (segue run --trace) and a log that powermetrics or asitop wrote in the same time, aligns them by "
             "their time stamps and prints the joules of prefill and decode. A phase with fewer than 5 samples is refused. The "
             "whole chip and its rails (CPU, GPU, ANE, DRAM) are reported apart. Record the log with: sudo powermetrics "
             "--samplers cpu_power,gpu_power,ane_power -i 100 -o power.txt",
};
