/* report.c: report of a run, see report.h. A figure that was not measured is null with a reason, never 0.
 * SPDX-License-Identifier: MIT */
#include "run/report.h"
#include "plan/proof.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "host/machine.h"
#include "run/bandwidth.h"

/* Milliseconds between two times in ns; 0 if the second one was not recorded. */
static double ms(uint64_t from, uint64_t to) { return to > from ? (double)(to - from) / 1e6 : 0; }

/* The JSON object `model`. Strings that the library leaves NULL become empty. */
static json_t *model_json(const segue_model *model, const segue_model_info *info)
{
    json_t *m = json_object();
    char id[33];
    segue_error err;
    json_object_set_new(m, "path", out_string(info->path, strlen(info->path)));
    json_object_set_new(m, "family", json_string(info->family ? info->family : ""));
    json_object_set_new(m, "storage", json_string(info->storage ? info->storage : ""));
    json_object_set_new(m, "shape_id", json_string(info->shape_id));
    if (segue_model_weights_id(model, NULL, id, &err)) /* the engine has finished hashing by now */
        out_null(m, "weights_id", err.text);
    else
        json_object_set_new(m, "weights_id", json_string(id));
    return m;
}

json_t *report_model_json(const struct placement *p) { return model_json(p->model, &p->info); }

size_t report_phase_unit(const struct placement *p, uint32_t phase)
{
    for (uint32_t i = 0; p->planned && i < p->parts_n; i++)
        if (p->parts[i].phase == phase) return p->parts[i].unit;
    return 0;
}

/* Rates of an answer. Work before the first token counts as prefill and work after it as decode, so a prompt of one
 * token counts as prefill although the unit computes it like a decode step. */
struct rates {
    segue_stats first; /* counters at the first token, or at the end if there is none */
    double prefill_s, decode_s, prefill_tok_s, decode_tok_s;
    double gb_s;          /* weight bytes read per second of decode, in 1e9 */
    uint64_t token_bytes; /* weight bytes read per generated token */
};

/* Seconds in which a unit computed for the session between two snapshots of its counters. */
static double busy_s(const segue_stats *from, const segue_stats *to)
{
    return (double)(to->prefill_ns + to->decode_ns - from->prefill_ns - from->decode_ns) / 1e9;
}

/* Compute the rates from the counters at the start, at the first token and at the end of the answer. */
static struct rates compute_rates(const struct answer *a)
{
    const segue_stats *b = &a->at_begin, *e = &a->at_end;
    struct rates r = {.first = a->first_ns ? a->at_first : a->at_end};
    size_t prefilled = r.first.tokens_in - b->tokens_in, decoded = e->tokens_out - r.first.tokens_out;
    r.prefill_s = busy_s(b, &r.first);
    r.decode_s = busy_s(&r.first, e);
    if (r.prefill_s > 0 && prefilled) r.prefill_tok_s = (double)prefilled / r.prefill_s;
    if (r.decode_s > 0 && decoded) r.decode_tok_s = (double)decoded / r.decode_s;
    uint64_t read = e->weight_bytes_read - r.first.weight_bytes_read;
    if (r.decode_s > 0) r.gb_s = (double)read / 1e9 / r.decode_s;
    if (decoded) r.token_bytes = read / decoded;
    return r;
}

/* A value of 0 would read as a measurement, so it becomes null. */
void report_positive_or_null(json_t *o, const char *name, double v, const char *reason)
{
    if (v > 0)
        json_object_set_new(o, name, out_real(v));
    else
        out_null(o, name, reason);
}

/* Bandwidth at the working set of the answer (weights per token and state), measured once per process; not after an
 * interrupt. */
static segue_status measure_read_bandwidth(const struct report *r, const struct rates *rates, segue_error *err)
{
    struct placement *p = r->placement;
    if (p->memory_bandwidth_gb_s > 0) return SEGUE_OK;
    err->status = SEGUE_ECANCELED;
    snprintf(err->text, sizeof err->text, "not measured: the run was interrupted");
    if (!r->measure_bandwidth) return SEGUE_ECANCELED;
    uint64_t weights = rates->token_bytes ? rates->token_bytes : p->info.weight_bytes;
    return bandwidth_measure(p->units[report_phase_unit(p, 1)], weights + r->answer->at_end.state_bytes,
                        &p->memory_bandwidth_gb_s, err);
}

/* Why bandwidth_utilization is null although both figures are known. */
static const char above_bandwidth[] = "more bytes per second than the measured bandwidth: caches held a part of the weights, or "
                                      "other programs slowed the measurement";

/* Set memory_bandwidth_gb_s and bandwidth_utilization. */
static void put_bandwidth(json_t *o, const struct report *r, const struct rates *rates)
{
    segue_error err;
    double bandwidth = measure_read_bandwidth(r, rates, &err) ? 0 : r->placement->memory_bandwidth_gb_s;
    report_positive_or_null(o, "memory_bandwidth_gb_s", bandwidth, err.text);
    bool above = bandwidth > 0 && rates->gb_s > bandwidth;
    report_positive_or_null(o, "bandwidth_utilization", bandwidth > 0 && !above ? rates->gb_s / bandwidth : 0,
                    above           ? above_bandwidth
                    : bandwidth > 0 ? "the unit counted no bytes"
                                    : err.text);
}

/* Units whose weights and states are in a memory of their own: not the host's, and not that of another process. */
static bool has_own_memory(const segue_unit_info *u)
{
    return !u->simulated && strcmp(u->kind, "cpu") != 0 && strcmp(u->kind, "ref") != 0 && strcmp(u->kind, "proc") != 0;
}

/* Set device_bytes: the weights of each such unit, and the states if one decodes. Returns it; 0: null. */
static uint64_t put_device_bytes(json_t *o, const struct placement *p, uint64_t state_bytes)
{
    uint64_t bytes = 0;
    bool split = false;
    for (size_t i = 0; i < p->units_n; i++)
        if (has_own_memory(&p->unit_info[i])) bytes += (p->models[i] ? &p->model_info[i] : &p->info)->weight_bytes;
    for (size_t i = 0; p->planned && i < p->parts_n; i++)
        if (has_own_memory(&p->unit_info[p->parts[i].unit])) split = split || p->parts[i].to - p->parts[i].from < p->info.layers;
    if (!bytes || split) {
        out_null(o, "device_bytes", split ? "a unit holds a part of the layers" : "no unit has memory of its own");
        return 0;
    }
    if (has_own_memory(&p->unit_info[report_phase_unit(p, 1)])) bytes += state_bytes;
    json_object_set_new(o, "device_bytes", json_integer((json_int_t)bytes));
    return bytes;
}

/* State bytes are those of the session; weights are counted as stored in the file. */
void report_memory(json_t *o, const struct placement *p, uint64_t state_bytes)
{
    uint64_t device_bytes = put_device_bytes(o, p, state_bytes);
    if (machine_peak_bytes())
        json_object_set_new(o, "peak_bytes", json_integer((json_int_t)(machine_peak_bytes() + device_bytes)));
    else
        out_null(o, "peak_bytes", "the system does not report it");
    json_object_set_new(o, "weight_bytes", json_integer((json_int_t)p->info.weight_bytes));
    json_object_set_new(o, "state_bytes", json_integer((json_int_t)state_bytes));
}

/* Set weight_cache: "mapped", "written", "repacked" or null. A reason next to a value means that an invalid entry was
 * replaced. */
static void put_weight_cache(json_t *o, const segue_stats *s)
{
    const char *reason = s->packed_why ? s->packed_why : "the unit does not repack weights";
    if (!s->packed)
        out_null(o, "weight_cache", reason);
    else
        json_object_set_new(o, "weight_cache", json_string(s->packed));
    if (s->packed && s->packed_why) json_object_set_new(o, "weight_cache_reason", json_string(reason));
}

/* Set the times and the token rates. Counters of the session are differences to the start of this answer, because a
 * chat uses one session for many answers. */
static void put_times(json_t *o, const struct report *r, const struct rates *rates)
{
    const struct answer *a = r->answer;
    json_object_set_new(o, "load_ms", out_real((double)r->placement->load_ns / 1e6));
    json_object_set_new(o, "compile_ms", out_real((double)r->placement->compile_ns / 1e6));
    report_positive_or_null(o, "ttft_ms", a->first_ns ? ms(a->start_ns, a->first_ns) : 0, "no token was generated");
    report_positive_or_null(o, "start_ms", a->first_ns ? ms(machine_start_ns(), a->first_ns) : 0,
                    "no token was generated");
    json_object_set_new(o, "prefill_ms", out_real(rates->prefill_s * 1e3));
    uint64_t handoff = a->at_end.handoff_ns - a->at_begin.handoff_ns;
    bool two = report_phase_unit(r->placement, 0) != report_phase_unit(r->placement, 1);
    report_positive_or_null(o, "handoff_ms", (double)handoff / 1e6,
                 two ? "there was no hand-off" : "one unit: no hand-off");
    report_positive_or_null(o, "handoff_exposed_ms",
                 (double)(a->at_end.handoff_exposed_ns - a->at_begin.handoff_exposed_ns) / 1e6,
                 two ? "there was no hand-off" : "one unit: no hand-off");
    json_object_set_new(o, "decode_ms", out_real(rates->decode_s * 1e3));
    report_positive_or_null(o, "prefill_tok_s", rates->prefill_tok_s, "no prompt token was computed");
    report_positive_or_null(o, "decode_tok_s", rates->decode_tok_s, "fewer than two tokens were generated");
}

const char *report_phase_name(uint32_t phase)
{
    static const char *const names[] = {"prefill", "decode", "helper"};
    return names[phase < 3 ? phase : 0];
}

/* Which operations part_json counts: those of its layers, those outside of every layer (embedding, head), or both. */
enum { OPS_LAYERS = 1, OPS_OUTSIDE = 2 };

/* Count the operations of layers [from, to) in the listing of the graph ("%3 = linear ... # layer 0"). Operations
 * outside of all layers belong to the first or last layer. */
static json_t *ops_json(const struct placement *p, const char *listing, uint32_t from, uint32_t to, int ops_scope)
{
    json_t *ops = json_object();
    bool in_range = from == 0;
    for (const char *line = listing; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        char op[32] = "";
        unsigned layer = 0;
        int end = (int)strcspn(line, "\n");
        const char *layer_mark = NULL;
        for (const char *c = line; c < line + end - 8; c++)
            if (!strncmp(c, "# layer ", 8)) layer_mark = c;
        if (layer_mark && sscanf(layer_mark, "# layer %u", &layer) == 1) in_range = layer >= from && layer < to;
        if (!layer_mark && layer == 0 && from > 0) in_range = in_range && to == p->info.layers;
        const char *sign = memchr(line, '=', (size_t)end);
        if (!(ops_scope & (layer_mark ? OPS_LAYERS : OPS_OUTSIDE))) continue;
        if (!in_range || line[0] != '%' || !sign || sscanf(sign + 1, " %31[a-z_]", op) != 1 ||
            !strcmp(op, "input"))
            continue;
        json_object_set_new(ops, op, json_integer(1 + json_integer_value(json_object_get(ops, op))));
    }
    return ops;
}

/* Set ops: {name: count} of the operations of layers [from, to). */
static void put_ops(json_t *o, const struct placement *p, uint32_t from, uint32_t to, int ops_scope)
{
    struct out_text listing = {0};
    segue_status st;
    segue_error ignored;
    OUT_GROW(listing, st,
             segue_model_describe(p->model, SEGUE_DESCRIBE_GRAPH, listing.data, listing.cap, &listing.len,
                                  &ignored));
    if (st)
        out_null(o, "ops", "the graph cannot be listed");
    else
        json_object_set_new(o, "ops", ops_json(p, listing.data, from, to, ops_scope));
    free(listing.data);
}

json_t *report_unit_name(const segue_unit_info *u)
{
    return json_sprintf("%s%s", u->spec, u->simulated ? " (software)" : "");
}

/* One unit in one phase: operations, runs, time and traffic of this answer. */
static json_t *part_json(const struct report *r, uint32_t phase, size_t unit, uint32_t from, uint32_t to)
{
    const struct session_work *e = &r->answer->work_end;
    json_t *o = json_object(), *layers = json_array();
    json_object_set_new(o, "unit", report_unit_name(&r->placement->unit_info[unit]));
    json_object_set_new(o, "phase", json_string(report_phase_name(phase)));
    if (r->placement->models[unit])
        json_object_set_new(o, "model", model_json(r->placement->models[unit], &r->placement->model_info[unit]));
    json_array_append_new(layers, json_integer(from));
    json_array_append_new(layers, json_integer(to ? to - 1 : 0));
    json_object_set_new(o, "layers", layers);
    int helped = work_find(e, SEGUE_HELPER, unit, from, to).runs != 0; /* the CPU runs the operations outside of the layers */
    if (phase == SEGUE_HELPER && strstr(r->placement->unit_info[unit].spec, "head=engine"))
        out_null(o, "ops", "with head=engine the engine has the output head where it chooses the token");
    else
        put_ops(o, r->placement, from, to, phase == SEGUE_HELPER ? OPS_OUTSIDE : helped ? OPS_LAYERS : OPS_LAYERS | OPS_OUTSIDE);
    segue_use use = work_find(e, phase, unit, from, to),
              before = work_find(&r->answer->work_begin, phase, unit, from, to);
    json_object_set_new(o, "runs", json_integer((json_int_t)(use.runs - before.runs)));
    json_object_set_new(o, "dispatches", json_integer((json_int_t)(use.dispatches - before.dispatches)));
    if (use.host_bytes)
        json_object_set_new(o, "host_bytes", json_integer((json_int_t)(use.host_bytes - before.host_bytes)));
    else
        out_null(o, "host_bytes", "the unit has no separate memory, or does not count it");
    if (use.padded_tokens > before.padded_tokens)
        json_object_set_new(o, "padded_ratio",
                            out_real((double)(use.padded_tokens - before.padded_tokens) / (double)(use.tokens - before.tokens)));
    else
        out_null(o, "padded_ratio", "the unit computed no padded tokens");
    json_object_set_new(o, "tokens_truncated", json_integer((json_int_t)use.tokens_truncated));
    json_object_set_new(o, "overflows", json_integer((json_int_t)(use.overflows - before.overflows)));
    json_object_set_new(o, "underflows", json_integer((json_int_t)(use.underflows - before.underflows)));
    if (use.layout_ops)
        json_object_set_new(o, "layout_ops", json_integer((json_int_t)(use.layout_ops - before.layout_ops)));
    else
        out_null(o, "layout_ops", "the unit does not count operations that only move numbers");
    json_object_set_new(o, "ms", out_real((double)(use.ns - before.ns) / 1e6));
    segue_unit_info now = SEGUE_INIT(segue_unit_info); /* a unit that was lost may have been restarted as another process */
    bool apart = segue_unit_info_get(r->placement->units[unit], &now, NULL) == SEGUE_OK && now.pid;
    json_object_set_new(o, "pid", json_integer(apart ? (json_int_t)now.pid : (json_int_t)getpid()));
    return o;
}

/* Operations that the CPU ran for a unit that does not support them. */
static void put_helpers(json_t *list, const struct report *r)
{
    const struct session_work *s = &r->answer->work_end;
    for (size_t i = 0; i < s->uses_n; i++)
        if (s->uses[i].phase == SEGUE_HELPER)
            json_array_append_new(list, part_json(r, SEGUE_HELPER, s->uses[i].unit, s->uses[i].from, s->uses[i].to));
}

/* The JSON list "units": one entry per part of the plan, then the helper entries. Without a plan unit 0 runs both phases. */
static json_t *units_json(const struct report *r)
{
    const struct placement *p = r->placement;
    json_t *list = json_array();
    if (!p->planned) {
        json_array_append_new(list, part_json(r, 0, 0, 0, p->info.layers));
        json_array_append_new(list, part_json(r, 1, 0, 0, p->info.layers));
        put_helpers(list, r);
        return list;
    }
    for (uint32_t i = 0; i < p->parts_n; i++) {
        const segue_part *part = &p->parts[i];
        json_array_append_new(list, part_json(r, part->phase, part->unit, part->from, part->to));
    }
    put_helpers(list, r);
    return list;
}

/* The JSON object "energy": prefill lasts up to the first token. Tokens that were reused cost nothing and do not count. */
static json_t *energy_json(const struct answer *a)
{
    struct meter_phase prefill = {0}, decode = {0};
    const segue_stats *first = a->first_ns ? &a->at_first : &a->at_end;
    meter_add(a->meter, a->start_ns, a->first_ns ? a->first_ns : a->end_ns, first->tokens_in - a->at_begin.tokens_in, &prefill);
    if (a->first_ns) meter_add(a->meter, a->first_ns, a->end_ns, a->ids_n - 1, &decode);
    return meter_json(a->meter, &prefill, &decode, true);
}

/* Prompt tokens whose state is there: all of them once a token was generated, else those that were reused or computed before
 * the interrupt or the failure. */
static size_t computed_prompt(const struct report *r)
{
    const struct answer *a = r->answer;
    if (a->ids_n || (a->finish && strcmp(a->finish, "cancel") != 0)) return r->prompt_n;
    size_t n = a->at_end.tokens_reused + (a->at_end.tokens_in - a->at_begin.tokens_in);
    return n < r->prompt_n ? n : r->prompt_n;
}

/* Set the answer itself: text, ids, finish, reuse and log-probabilities. */
static void put_text(json_t *o, const struct report *r)
{
    const struct answer *a = r->answer;
    if (a->text.data)
        json_object_set_new(o, "text", out_string(a->text.data, a->text.len));
    else
        out_null(o, "text", "the model has no tokenizer");
    json_object_set_new(o, "ids", out_id_list(a->ids, a->ids_n));
    json_object_set_new(o, "prompt_ids", out_id_list(r->prompt_ids, r->prompt_n));
    if (a->finish)
        json_object_set_new(o, "finish", json_string(a->finish));
    else
        out_null(o, "finish", "the run failed");
    json_object_set_new(o, "dropped_tokens", json_integer((json_int_t)a->dropped));
    json_object_set_new(o, "prompt_tokens", json_integer((json_int_t)r->prompt_n));
    json_object_set_new(o, "computed_prompt_tokens", json_integer((json_int_t)computed_prompt(r)));
    json_object_set_new(o, "output_tokens", json_integer((json_int_t)a->ids_n));
    const char *reason = a->at_end.reuse_reason ? a->at_end.reuse_reason : "first-use";
    if (r->reuse_reason && !strcmp(reason, "first-use")) reason = r->reuse_reason;
    json_object_set_new(o, "reused_tokens", json_integer((json_int_t)a->at_end.tokens_reused));
    json_object_set_new(o, "reuse_reason", json_string(reason));
    json_object_set_new(o, "seed", json_integer((json_int_t)r->seed));
    if (a->logprob_list)
        json_object_set(o, "logprobs", a->logprob_list);
    else
        out_null(o, "logprobs", "not requested; use --logprobs K");
}

/* The JSON list "lost": units lost during this answer and their replacements. The session records the last few losses in a
 * ring. */
static json_t *losses_json(const struct answer *a)
{
    json_t *list = json_array();
    for (size_t i = work_first_new_loss(&a->work_end, &a->work_begin); i < a->work_end.losses_n; i++) {
        const segue_loss *l = &a->work_end.losses[i];
        json_t *o = json_object();
        json_object_set_new(o, "unit", json_string(l->unit));
        json_object_set_new(o, "replacement", json_string(l->to));
        json_object_set_new(o, "position", json_integer((json_int_t)l->tokens));
        json_object_set_new(o, "recomputed_tokens", json_integer((json_int_t)l->replayed));
        json_object_set_new(o, "ms", out_real((double)l->ns / 1e6));
        json_object_set_new(o, "reason", json_string(l->why));
        json_array_append_new(list, o);
    }
    return list;
}

/* True if prefill and decode run on different units, so that there is a hand-off. */
static bool uses_two_units(const struct placement *p) { return report_phase_unit(p, 0) != report_phase_unit(p, 1); }

/* Set verify: the result of --verify, or null if nothing was compared. */
static void put_verify(json_t *o, const segue_verify *v, bool two)
{
    if (!v->tokens) {
        out_null(o, "verify", two ? "not requested with --verify, or there was no hand-off" : "one unit: no hand-off");
        return;
    }
    json_t *j = json_object();
    json_object_set_new(j, "tokens", json_integer((json_int_t)v->tokens));
    json_object_set_new(j, "max_abs", out_real(v->max_abs));
    json_object_set_new(j, "bound", out_real(v->bound));
    json_object_set_new(j, "near_ties", json_integer((json_int_t)v->near_ties));
    json_object_set_new(j, "state_error", out_real(v->state_error));
    json_object_set_new(j, "state_bound", out_real(v->state_bound));
    json_object_set_new(j, "ok", json_boolean(v->ok));
    json_object_set_new(j, "action", json_string(v->action));
    json_object_set_new(o, "verify", j);
}

/* What the planner chose and expected, and what was measured, if it chose. */
static void put_plan(json_t *o, const struct placement *p)
{
    if (p->follow)
        json_object_set_new(o, "plan", proof_json(p->follow));
    else
        out_null(o, "plan", p->follow_why ? p->follow_why : "units or threads were named");
}

json_t *report_json(const struct report *r)
{
    const struct answer *a = r->answer;
    const segue_stats *b = &a->at_begin, *e = &a->at_end;
    struct rates rates = compute_rates(a);
    char version[32];
    json_t *o = json_object();
    put_text(o, r);
    json_object_set_new(o, "model", report_model_json(r->placement));
    snprintf(version, sizeof version, "%u.%u.%u", segue_version() >> 16, segue_version() >> 8 & 255,
             segue_version() & 255);
    json_object_set_new(o, "version", json_string(version));
    put_times(o, r, &rates);
    report_memory(o, r->placement, e->state_bytes);
    put_weight_cache(o, e);
    json_object_set_new(o, "handoff_bytes", json_integer((json_int_t)(e->handoff_bytes - b->handoff_bytes)));
    json_object_set_new(o, "copied_bytes", json_integer((json_int_t)(e->copied_bytes - b->copied_bytes)));
    report_positive_or_null(o, "weight_read_gb_s", rates.gb_s, "fewer than two tokens were generated");
    put_bandwidth(o, r, &rates);
    json_object_set_new(o, "machine", machine_json(r->placement->unit_info, r->placement->units_n));
    json_object_set_new(o, "compiles", json_integer((json_int_t)e->compiles));
    json_object_set_new(o, "dispatches", json_integer((json_int_t)(e->dispatches - b->dispatches)));
    json_object_set_new(o, "energy", energy_json(a));
    json_object_set_new(o, "units", units_json(r));
    json_object_set_new(o, "lost", losses_json(a));
    put_plan(o, r->placement);
    put_verify(o, &e->verify, uses_two_units(r->placement));
    return o;
}

/* Figures that are not known are omitted. An interrupted prompt shows how many of its tokens are in the state. */
void report_print_line(const struct report *r)
{
    const struct answer *a = r->answer;
    struct rates rates = compute_rates(a);
    size_t unit = report_phase_unit(r->placement, 1), other = report_phase_unit(r->placement, 0);
    segue_error ignored;
    double bandwidth = rates.gb_s > 0 && !measure_read_bandwidth(r, &rates, &ignored) ? r->placement->memory_bandwidth_gb_s : 0;
    struct out_text t = {0};
    size_t computed = computed_prompt(r);
    if (computed < r->prompt_n) out_addf(&t, "%zu of ", computed);
    out_addf(&t, "%zu + %zu tokens", r->prompt_n, a->ids_n);
    if (a->first_ns) out_addf(&t, ", first after %.0f ms", ms(a->start_ns, a->first_ns));
    if (rates.prefill_tok_s > 0) out_addf(&t, ", prefill %.1f tok/s", rates.prefill_tok_s);
    if (rates.decode_tok_s > 0) out_addf(&t, ", decode %.1f tok/s", rates.decode_tok_s);
    if (rates.gb_s > 0) out_addf(&t, " at %.1f GB/s", rates.gb_s);
    if (bandwidth > 0 && rates.gb_s > bandwidth)
        out_addf(&t, " (more than the measured memory bandwidth of %.1f GB/s)", bandwidth);
    else if (bandwidth > 0)
        out_addf(&t, " (%.0f %% of the %.1f GB/s memory bandwidth)", 100 * rates.gb_s / bandwidth, bandwidth);
    out_addf(&t, ", %.0f MB", (double)machine_peak_bytes() / 1e6);
    if (!a->at_end.packed && a->at_end.packed_why) out_addf(&t, ", packed weights not cached (reason: --json)");
    const segue_unit_info *prefill_unit = &r->placement->unit_info[other], *decode_unit = &r->placement->unit_info[unit];
    out_addf(&t, ", %s%s", prefill_unit->spec, prefill_unit->simulated ? " (software)" : "");
    if (other != unit) out_addf(&t, " -> %s%s", decode_unit->spec, decode_unit->simulated ? " (software)" : "");
    uint64_t unseen = 0;
    for (size_t i = 0; i < a->work_end.uses_n; i++)
        if (a->work_end.uses[i].tokens_truncated > unseen) unseen = a->work_end.uses[i].tokens_truncated;
    uint64_t overflows = 0;
    for (size_t i = 0; i < a->work_end.uses_n; i++) overflows += a->work_end.uses[i].overflows;
    if (overflows) out_addf(&t, "; %llu results exceeded 16 bits", (unsigned long long)overflows);
    if (unseen) out_addf(&t, "; the first %llu tokens were truncated", (unsigned long long)unseen);
    for (size_t i = work_first_new_loss(&a->work_end, &a->work_begin); i < a->work_end.losses_n; i++) {
        const segue_loss *l = &a->work_end.losses[i];
        out_addf(&t, "; lost %s at token %llu, continued on %s", l->unit, (unsigned long long)l->tokens, l->to);
    }
    if (r->context) {
        size_t used = r->prompt_n + a->ids_n;
        out_addf(&t, "; context %zu of %zu tokens, %zu left", used, r->context, r->context > used ? r->context - used : 0);
    }
    if (a->dropped) out_addf(&t, "; the context was full: %zu tokens were dropped", a->dropped);
    if (a->full)
        out_addf(&t, "; the answer was cut: the context is full");
    else if (a->finish && !strcmp(a->finish, "length") && a->limit)
        out_addf(&t, "; the answer was cut at -n %zu", a->limit);
    if (a->at_end.verify.tokens)
        out_addf(&t, "; hand-off %s over %zu tokens", a->at_end.verify.ok ? "verified" : "FAILED, recomputed on the decode unit,",
                 a->at_end.verify.tokens);
    if (!r->context && r->placement->follow_why) out_addf(&t, "; not predicted: %s", r->placement->follow_why);
    out_note("%s", t.data);
    free(t.data);
}
