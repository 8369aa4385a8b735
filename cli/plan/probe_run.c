/* probe_run.c: opening and timing, see probe_units.h. SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "engine/placement/units.h"
#include "host/cores.h"
#include "host/machine.h"
#include "model/model.h"
#include "plan/probe_units.h"
#include "term/interrupt.h"
#include "term/out.h"

segue_status probe_open_units(struct probe *p, const char *const *specs, size_t n, segue_error *err)
{
    for (size_t i = 0; i < n; i++) {
        segue_unit_info *info = &p->info[p->units_n];
        if (p->units_n == PROBE_UNITS) return out_fail(err, SEGUE_EARG, "units: more than %d; name fewer", PROBE_UNITS);
        SG_TRY(segue_unit_open(&p->units[p->units_n], specs[i], err));
        *info = SEGUE_INIT(segue_unit_info);
        SG_TRY(segue_unit_info_get(p->units[p->units_n], info, err));
        memcpy(p->specs[p->units_n], info->spec, sizeof p->specs[0]);
        bool known = false;
        for (size_t k = 0; k < p->units_n; k++) known |= !strcmp(p->specs[k], p->specs[p->units_n]);
        if (known) {
            segue_unit_close(p->units[p->units_n]);
            p->units[p->units_n] = NULL;
        } else
            p->units_n++;
    }
    return SEGUE_OK;
}

size_t probe_list_units(segue_unit_info *infos, size_t cap, const char **names, size_t max)
{
    size_t listed = 0, n = 0;
    segue_error err;
    for (size_t i = 0; i < cap; i++) infos[i] = SEGUE_INIT(segue_unit_info);
    segue_unit_list(infos, cap, &listed, &err);
    for (size_t i = 0; i < listed && i < cap && n < max; i++)
        if (strcmp(infos[i].kind, "proc") != 0 && sg_unit_unnamed(infos[i].spec)) names[n++] = infos[i].spec;
    return n;
}

static void close_model(struct probe *p)
{
    segue_engine_close(p->engine);
    segue_model_close(p->model);
    p->engine = NULL;
    p->model = NULL;
}

segue_status probe_open_model(struct probe *p, const char *path, const char *cache, segue_error *err)
{
    segue_engine_opts opts = SEGUE_INIT(segue_engine_opts);
    segue_model_info info = SEGUE_INIT(segue_model_info);
    struct sg_graph_request request = {.head = 1};
    struct sg_graph *graph = NULL;
    segue_model_opts model_opts = SEGUE_INIT(segue_model_opts);
    model_opts.storage = p->storage;
    close_model(p);
    SG_TRY(segue_model_open(&p->model, path, &model_opts, err));
    SG_TRY(segue_model_info_get(p->model, &info, err));
    SG_TRY(sg_model_graph(p->model, &request, &graph, err));
    sg_model_cost_graph(&p->cost, graph);
    snprintf(p->cost.key, sizeof p->cost.key, "%.8s-%.20s", info.shape_id, sg_model_storage(graph));
    sg_graph_free(graph);
    p->cost.file_bytes = (double)info.weight_bytes;
    p->vocab = info.vocab;
    p->layers = info.layers;
    opts.cache = cache;
    opts.kv = p->kv;
    uint64_t start = out_now_ns();
    segue_status st = segue_engine_open(&p->engine, p->model, p->units, p->units_n, &opts, err);
    p->load_ms = (double)(out_now_ns() - start) * 1e-6;
    return st;
}

void probe_close(struct probe *p)
{
    close_model(p);
    for (size_t i = 0; i < PROBE_UNITS; i++) segue_unit_close(p->units[i]);
    *p = (struct probe){0};
}

void probe_machine(char out[40])
{
    char *cpu = machine_cpu(), limit[32] = "";
    double quota = cores_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota > 0) snprintf(limit, sizeof limit, " %.2f", quota);
    char *text = out_printf("%s %zu%s", cpu ? cpu : "", cores_allowed(), limit);
    struct sg_hash h = sg_hash_bytes(text, strlen(text), 0);
    uint64_t words[2];
    memcpy(words, &h, sizeof words);
    snprintf(out, 40, "%016" PRIx64, words[0]);
    free(text);
    free(cpu);
}

double probe_joules(struct probe *p, size_t prefill, size_t decode)
{
    segue_energy a = SEGUE_INIT(segue_energy), b = a;
    segue_error ignored;
    if (segue_unit_energy(p->units[prefill], &a, &ignored)) return -1;
    if (decode != prefill && segue_unit_energy(p->units[decode], &b, &ignored)) return -1;
    return a.joules + b.joules;
}

static segue_status make_plan(struct probe *p, const struct probe_case *c, segue_plan **plan, segue_error *err)
{
    segue_part parts[4];
    size_t n = 0;
    for (uint32_t phase = 0; phase < 2; phase++)
        for (size_t i = 0; i < (c->split ? 2 : 1); i++) {
            size_t unit = c->split ? (i ? c->decode : c->prefill) : phase ? c->decode : c->prefill;
            parts[n++] = (segue_part){.size = sizeof(segue_part),
                                      .unit = (uint32_t)unit,
                                      .phase = (segue_phase)phase,
                                      .from = i ? (uint32_t)c->split : 0,
                                      .to = c->split && !i ? (uint32_t)c->split : p->layers,
                                      .expect_j = -1};
        }
    return segue_plan_new(plan, parts, n, NULL, err);
}

static segue_status open_session(struct probe *p, const struct probe_case *c, segue_session **s, segue_error *err)
{
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_plan *plan = NULL;
    segue_status st = make_plan(p, c, &plan, err);
    greedy.ignore_stops = 1;
    opts.sampling = &greedy;
    opts.plan = plan;
    opts.context = c->depth + c->prompt + c->output + 1;
    if (!st) st = segue_session_open(s, p->engine, &opts, err);
    segue_plan_close(plan);
    return st;
}

/* Append n random ids, which depend on the position only. */
static segue_status append(struct probe *p, segue_session *s, size_t at, size_t n, segue_error *err)
{
    int32_t *ids = out_alloc((n + 1) * sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)((at + i) * 2654435761u % (p->vocab ? p->vocab : 1));
    segue_status st = segue_session_append(s, ids, n, err);
    free(ids);
    return st;
}

/* The measured part of a run. */
static segue_status time_answer(struct probe *p, segue_session *s, const struct probe_case *c, struct probe_times *out,
                                segue_error *err)
{
    segue_stats stats = SEGUE_INIT(segue_stats);
    double joules = probe_joules(p, c->prefill, c->decode);
    uint64_t start = out_now_ns();
    double first = 0;
    int32_t token;
    segue_status st = SEGUE_OK;
    if (!c->output) st = segue_session_prefill(s, 0, NULL, err);
    out->prefill_ms = (double)(out_now_ns() - start) * 1e-6;
    for (size_t i = 0; i < c->output && st >= 0; i++) {
        st = segue_session_next(s, &token, err);
        if (!i) first = (double)(out_now_ns() - start) * 1e-6;
    }
    out->total_ms = (double)(out_now_ns() - start) * 1e-6;
    double after = probe_joules(p, c->prefill, c->decode);
    out->joules = joules >= 0 && after >= joules ? after - joules : -1;
    if (st >= 0) st = segue_session_stats_get(s, &stats, err);
    out->handoff_ms = (double)stats.handoff_exposed_ns * 1e-6;
    out->ttft_ms = c->output ? first : out->prefill_ms;
    out->token_ms = c->output > 1 ? (out->total_ms - first) / (double)(c->output - 1) : 0;
    return st < 0 ? st : SEGUE_OK;
}

segue_status probe_run(struct probe *p, const struct probe_case *c, struct probe_times *out, segue_error *err)
{
    segue_session *s = NULL;
    *out = (struct probe_times){0};
    segue_status st = open_session(p, c, &s, err);
    if (!st) interrupt_watch(s);
    if (!st && c->depth) st = append(p, s, 0, c->depth, err);
    if (!st && c->depth) st = segue_session_prefill(s, 0, NULL, err);
    if (!st) st = append(p, s, c->depth, c->prompt, err);
    if (!st) st = time_answer(p, s, c, out, err);
    if (s) interrupt_unwatch(s);
    segue_session_close(s);
    return st;
}
