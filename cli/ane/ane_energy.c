/* ane_energy.c: see ane_energy.h. powermetrics writes a log in this process group while a child runs the model; the log is read
 * afterwards, and the phases are cut out of it by the times that the child reports. SPDX-License-Identifier: MIT */
#include "ane/ane_energy.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ane/child.h"
#include "meter/meter.h"
#include "meter/meter_log.h"
#include "meter/recorder.h"
#include "plan/probe_model.h"

enum { LAYERS = 6, WIDTH = 768, FF = 2048, HEADS = 12, VOCAB = 4096, PROMPT = 128, CONTEXT = 256 };
enum { PHASE_MS = 4000, LIMIT_MS = 300000 };

static void wait_ms(unsigned ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* --- the work, in a child --- */

struct energy_work {
    const char *spec, *model;
    segue_model *opened;
    segue_unit *unit;
    segue_engine *engine;
    segue_session *session;
};

/* A prompt, and then tokens up to the context if `decode`; returns how many of the measured kind. */
static segue_status work_round(struct energy_work *w, bool decode, json_int_t *tokens, segue_error *err)
{
    int32_t ids[PROMPT], token;
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)((unsigned)i * 2654435761u % VOCAB);
    SG_TRY(segue_session_rewind(w->session, 0, err));
    SG_TRY(segue_session_append(w->session, ids, PROMPT, err));
    SG_TRY(segue_session_prefill(w->session, 0, NULL, err));
    if (!decode) {
        *tokens += PROMPT;
        return SEGUE_OK;
    }
    for (int i = PROMPT; i + 1 < CONTEXT; i++, ++*tokens) SG_TRY(segue_session_next(w->session, &token, err));
    return SEGUE_OK;
}

/* Rounds until the time of a phase is over: {from, to, tokens}. */
static segue_status work_phase(struct energy_work *w, bool decode, json_t *out, const char *name, segue_error *err)
{
    json_int_t tokens = 0;
    uint64_t from = out_now_ns(), end = from + (uint64_t)PHASE_MS * 1000000u;
    while (out_now_ns() < end) SG_TRY(work_round(w, decode, &tokens, err));
    json_object_set_new(out, name, json_pack("[I,I,I]", (json_int_t)from, (json_int_t)out_now_ns(), tokens));
    return SEGUE_OK;
}

static segue_status work_open(struct energy_work *w, segue_error *err)
{
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    greedy.ignore_stops = 1;
    opts.sampling = &greedy;
    opts.context = CONTEXT;
    SG_TRY(segue_model_open(&w->opened, w->model, NULL, err));
    SG_TRY(segue_unit_open(&w->unit, w->spec, err));
    SG_TRY(segue_engine_open(&w->engine, w->opened, &w->unit, 1, NULL, err));
    return segue_session_open(&w->session, w->engine, &opts, err);
}

/* The first round, not measured, compiles the programs. */
static json_t *work(const void *context)
{
    struct energy_work w = *(const struct energy_work *)context;
    json_t *o = json_object();
    json_int_t ignored = 0;
    segue_error err;
    segue_status st = work_open(&w, &err);
    if (!st) st = work_round(&w, true, &ignored, &err);
    json_int_t from = (json_int_t)out_now_ns();
    if (!st) wait_ms(PHASE_MS);
    json_object_set_new(o, "idle", json_pack("[I,I,I]", from, (json_int_t)out_now_ns(), (json_int_t)0));
    if (!st) st = work_phase(&w, false, o, "prefill", &err);
    if (!st) st = work_phase(&w, true, o, "decode", &err);
    segue_session_close(w.session);
    segue_engine_close(w.engine);
    segue_unit_close(w.unit);
    segue_model_close(w.opened);
    if (!st) return o;
    json_decref(o);
    return out_error_json(&err, EXIT_UNAVAILABLE);
}

/* --- powermetrics --- */

static struct meter_phase phase_of(const struct energy_series *s, const json_t *times, const char *name)
{
    const json_t *t = json_object_get(times, name);
    struct meter_phase p = {.tokens = (size_t)json_integer_value(json_array_get(t, 2))};
    energy_add(s, (uint64_t)json_integer_value(json_array_get(t, 0)), (uint64_t)json_integer_value(json_array_get(t, 1)), &p.use);
    return p;
}

static json_t *read_log(const char *log, const json_t *times, char **why)
{
    struct energy_series s = {0};
    struct timespec wall;
    segue_error err;
    clock_gettime(CLOCK_REALTIME, &wall);
    if (meter_log_read(&s, "powermetrics", log, (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)out_now_ns(), &err)) {
        *why = out_strdup(err.text);
        return NULL;
    }
    struct meter_phase idle = phase_of(&s, times, "idle"), prefill = phase_of(&s, times, "prefill"),
                       decode = phase_of(&s, times, "decode");
    json_t *o = meter_series_json(&s, "powermetrics", &idle.use, &prefill, &decode, true);
    energy_free(&s);
    return o;
}

static json_t *measure(const struct energy_work *w, const char *log, char **why)
{
    pid_t pid = 0;
    const char *reason = recorder_start(&pid, log);
    json_t *times = reason ? NULL : child_json(work, w, LIMIT_MS), *o = NULL;
    const char *failed = json_string_value(json_object_get(json_object_get(times, "error"), "text"));
    recorder_end(pid);
    if (reason || !times || failed)
        *why = out_strdup(reason ? reason : failed ? failed : "the process died or exceeded the time limit");
    else
        o = read_log(log, times, why);
    json_decref(times);
    return o;
}

json_t *ane_energy_json(const char *spec, char **why)
{
    static const struct probe_shape shape = {LAYERS, WIDTH, FF, HEADS, HEADS, VOCAB, 0, 0};
    struct probe_folder f;
    segue_error err;
    json_t *o = NULL;
    *why = NULL;
    if (geteuid()) {
        *why = out_strdup("powermetrics needs root; use sudo segue ane-report");
        return NULL;
    }
    segue_status st = probe_folder_open(&f, "ane-report", &err);
    if (!st) st = probe_model_write(f.path, &shape, SG_F16, &err);
    if (st)
        *why = out_strdup(err.text);
    else {
        char *log = out_printf("%s/power.log", f.folder);
        struct energy_work w = {.spec = spec, .model = f.path};
        o = measure(&w, log, why);
        unlink(log);
        free(log);
    }
    probe_folder_close(&f);
    return o;
}
