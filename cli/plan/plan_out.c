/* plan_out.c: a plan as JSON and text, see plan_out.h. SPDX-License-Identifier: MIT */
#include "plan/plan_out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BAR = 32, NAME = 30, RANGE = 24 };

static const char *objective_name(segue_objective o)
{
    return o == SEGUE_OBJECTIVE_ENERGY ? "energy" : o == SEGUE_OBJECTIVE_THROUGHPUT ? "throughput" : "latency";
}

/* {mid, lo, hi}, or null with a reason beside it. */
static void put_figure(json_t *o, const char *name, struct sg_figure f, const char *why)
{
    if (f.mid < 0)
        out_null(o, name, why);
    else
        json_object_set_new(o, name, json_pack("{s:f,s:f,s:f}", "mid", f.mid, "lo", f.low, "hi", f.high));
}

/* Where the weights get their storage. */
static const char *storage_from(const struct sg_option *p)
{
    return !p->converted ? "file" : !strcmp(p->storage, "fp8") ? "load" : "quantize";
}

static json_t *option_json(const struct sg_option *p)
{
    const char *why = p->excluded ? p->excluded : "not measured on these units";
    json_t *o = json_pack("{s:s,s:s,s:s}", "pipeline", p->pipeline, "prefill", p->prefill, "decode", p->decode),
           *terms = json_object();
    put_figure(o, "ttft_ms", p->ttft_ms, why);
    put_figure(o, "token_ms", p->token_ms, why);
    put_figure(o, "handoff_ms", p->handoff_ms, why);
    put_figure(o, "load_ms", p->load_ms, why);
    put_figure(o, "total_ms", p->total_ms, why);
    put_figure(o, "j", p->joules, why);
    put_figure(o, "w", p->watts, why);
    if (p->joules_least > 0)
        json_object_set_new(o, "j_at_least", out_real(p->joules_least));
    else
        out_null(o, "j_at_least", p->joules.mid >= 0 ? "j is known" : why);
    json_object_set_new(o, "memory_bytes",
                        json_pack("{s:f,s:f,s:f,s:f}", "prefill_weights", p->prefill_bytes, "decode_weights", p->decode_bytes,
                                  "state", p->kv_bytes, "checkpoints", p->checkpoint_bytes));
    json_object_set_new(o, "storage", json_string(p->storage));
    json_object_set_new(o, "storage_from", json_string(storage_from(p)));
    json_object_set_new(o, "kv", json_string(sg_kv_form_at(p->kv)->name));
    json_object_set_new(o, "kv_accuracy", json_string(sg_kv_form_at(p->kv)->class));
    json_object_set_new(o, "disk_bytes", out_real(p->disk_bytes));
    for (size_t i = 0; i < p->terms_n; i++) json_object_set_new(terms, p->terms[i].name, out_real(p->terms[i].ms));
    json_object_set_new(o, "terms", terms);
    json_object_set_new(o, "unverified", json_boolean(p->unverified));
    if (p->excluded) json_object_set_new(o, "excluded", json_string(p->excluded));
    return o;
}

static void put_crossover(json_t *o, const char *name, double at, bool known)
{
    if (at > 0)
        json_object_set_new(o, name, json_integer((json_int_t)at));
    else
        out_null(o, name,
                 known ? "none: the choice is the same for every prompt length" : "the joules of no placement are known");
}

/* 1: some placement that can be chosen has joules. */
static bool joules_known(const struct sg_options *o)
{
    for (size_t i = 0; i < o->n; i++)
        if (!o->list[i].excluded && o->list[i].joules.mid >= 0) return true;
    return false;
}

/* Why there is no choice. */
static const char *none_why(const struct sg_options *o, const struct plan_subject *h)
{
    bool energy = h->task->objective == SEGUE_OBJECTIVE_ENERGY || h->task->max_watts > 0;
    if (sg_options_too_large(o)) return "the model does not fit in the memory";
    return energy && !joules_known(o) ? "the joules of no placement are known" : "no placement satisfies the limits";
}

json_t *plan_json(const struct sg_options *o, const struct plan_subject *h)
{
    json_t *root = json_pack("{s:s,s:s,s:s}", "model", h->model, "costs", h->costs, "objective",
                             objective_name(h->task->objective));
    json_t *list = json_array();
    json_object_set_new(root, "storage", json_string(h->storage));
    json_object_set_new(root, "prompt_tokens", out_real(h->task->prompt));
    json_object_set_new(root, "output_tokens", out_real(h->task->output));
    if (o->choice >= 0)
        json_object_set_new(root, "choice", option_json(&o->list[o->choice]));
    else
        out_null(root, "choice", none_why(o, h));
    if (o->dominant)
        json_object_set_new(root, "dominant", json_string(o->dominant));
    else
        out_null(root, "dominant", none_why(o, h));
    put_crossover(root, "crossover_tokens", o->crossover, true);
    put_crossover(root, "energy_crossover_tokens", o->energy_crossover, joules_known(o));
    for (size_t i = 0; i < o->n; i++) json_array_append_new(list, option_json(&o->list[i]));
    json_object_set_new(root, "splits", list);
    json_object_set_new(root, "kv_lowered", json_boolean(h->lower && o->choice >= 0));
    json_object_set_new(root, "plan_us", out_real(h->plan_us));
    json_object_set_new(root, "priced", json_integer((json_int_t)o->priced));
    return root;
}

/* Three digits or more, without an exponent. */
static const char *number(char out[32], double v)
{
    int digits = v >= 100 ? 0 : v >= 10 ? 1 : v >= 1 ? 2 : 3;
    snprintf(out, 32, "%.*f", digits, v);
    return out;
}

/* Milliseconds, or seconds from 10,000 ms on, with the interval, in RANGE columns. */
static void put_range(struct out_text *t, struct sg_figure f)
{
    char text[128], v[3][32];
    const bool long_time = f.mid >= 1e4;
    const double scale = long_time ? 1e-3 : 1;
    if (f.mid < 0)
        snprintf(text, sizeof text, "%8s", "-");
    else
        snprintf(text, sizeof text, "%8s %s (%s-%s)", number(v[0], f.mid * scale), long_time ? "s" : "ms",
                 number(v[1], f.low * scale), number(v[2], f.high * scale));
    out_addf(t, "  %-*s", RANGE, text);
}

const char *plan_label(char out[160], const struct sg_option *p)
{
    bool own = !strcmp(p->pipeline, "single") || !strcmp(p->pipeline, "split") || !strcmp(p->pipeline, "layers");
    if (!own)
        snprintf(out, 160, "%s", p->pipeline);
    else
        snprintf(out, 160, !strcmp(p->prefill, p->decode) ? "%s" : "%s > %s", p->prefill, p->decode);
    size_t n = strlen(out);
    if (p->converted) snprintf(out + n, 160 - n, " %s", p->storage);
    n = strlen(out);
    if (!p->asked_kv) snprintf(out + n, 160 - n, " kv=%s", sg_kv_form_at(p->kv)->name);
    return out;
}

static void put_option(struct out_text *t, const struct sg_option *p, bool chosen)
{
    char name[160];
    out_addf(t, "%s %-*s", chosen ? "*" : " ", NAME, plan_label(name, p));
    if (p->excluded) {
        out_addf(t, "  not chosen: %s\n", p->excluded);
        return;
    }
    char v[2][32];
    put_range(t, p->ttft_ms);
    put_range(t, p->token_ms);
    put_range(t, p->total_ms);
    if (p->joules.mid >= 0) out_addf(t, "  %s J at %s W", number(v[0], p->joules.mid), number(v[1], p->watts.mid));
    if (p->joules_least > 0) out_addf(t, "  at least %s J: a unit has no meter", number(v[0], p->joules_least));
    if (p->unverified) out_addf(t, "  unverified");
    out_addf(t, "\n");
}

/* The terms of the choice, and the placements, as bars. */
static void put_bars(struct out_text *t, const struct sg_options *o)
{
    const struct sg_option *c = &o->list[o->choice];
    double largest = 1e-12;
    char v[32];
    out_addf(t, "\nterms of the choice\n");
    for (size_t i = 0; i < c->terms_n; i++) largest = fmax(largest, c->terms[i].ms);
    for (size_t i = 0; i < c->terms_n; i++)
        out_addf(t, "  %-20s %-*.*s %s ms\n", c->terms[i].name, BAR, (int)ceil(c->terms[i].ms / largest * BAR),
                 "################################", number(v, c->terms[i].ms));
    largest = 1e-12;
    for (size_t i = 0; i < o->n; i++)
        if (!o->list[i].excluded) largest = fmax(largest, o->list[i].total_ms.mid);
    out_addf(t, "time of all placements\n");
    for (size_t i = 0; i < o->n; i++) {
        const struct sg_option *p = &o->list[i];
        char name[160];
        if (p->excluded) continue;
        out_addf(t, "  %-*s %-*.*s %s ms\n", NAME, plan_label(name, p), BAR, (int)ceil(p->total_ms.mid / largest * BAR),
                 "################################", number(v, p->total_ms.mid));
    }
}

/* The prompt length from which, or up to which, another placement is chosen. at 0: none. */
static void put_change(struct out_text *t, const char *what, double at, double prompt)
{
    if (at > 0)
        out_addf(t, "another choice %s %s %.0f prompt tokens\n", what, at > prompt ? "from" : "up to", at);
    else
        out_addf(t, "another choice %s at: none\n", what);
}

void plan_text(struct out_text *t, const struct sg_options *o, const struct plan_subject *h, bool explain)
{
    const struct sg_option *c = o->choice >= 0 ? &o->list[o->choice] : NULL;
    char name[160];
    out_addf(t, "%s %s, %.0f + %.0f tokens, costs of %s\n", h->model, h->storage, h->task->prompt, h->task->output, h->costs);
    out_addf(t, "  %-*s  %-*s  %-*s  %-*s  joules and watts\n", NAME, "prefill > decode", RANGE, "first token", RANGE,
             "per token", RANGE, "in all");
    for (size_t i = 0; i < o->n; i++) put_option(t, &o->list[i], (int)i == o->choice);
    if (!c) {
        out_addf(t, "choice: none; %s\n", none_why(o, h));
        return;
    }
    out_addf(t, "choice (%s): %s%s; most of its time: %s\n", objective_name(h->task->objective), plan_label(name, c),
             !strcmp(c->pipeline, "layers")    ? ", layers divided"
             : strcmp(c->prefill, c->decode) ? ""
                                             : ", no split",
             o->dominant ? o->dominant : "-");
    if (c->converted)
        out_addf(t, "weights in %s: %s\n", c->storage,
                 !strcmp(c->storage, "fp8") ? "run with --storage fp8" : "make that file with segue quantize");
    const struct sg_kv_form_info *kv = sg_kv_form_at(c->kv);
    if (h->lower)
        out_addf(t, "K and V in %s, because %s does not fit: run with --kv %s\n", kv->name, sg_kv_form_at(h->cost->kv)->name,
                 kv->name);
    else if (c->kv != SG_KV_FORM_F16)
        out_addf(t, "K and V in %s: run with --kv %s\n", kv->name, kv->name);
    if (c->kv != SG_KV_FORM_F16)
        out_addf(t, "accuracy of K and V: %s%s\n", kv->class, kv->below ? "; f16 has 11 bits" : "");
    out_addf(t, "memory: weights %.1f MB", c->prefill_bytes * 1e-6);
    if (c->decode_bytes > 0) out_addf(t, " and %.1f MB", c->decode_bytes * 1e-6);
    out_addf(t, ", state %.1f MB, checkpoints %.1f MB; disk %.1f MB\n", c->kv_bytes * 1e-6, c->checkpoint_bytes * 1e-6,
             c->disk_bytes * 1e-6);
    put_change(t, "is faster", o->crossover, h->task->prompt);
    if (joules_known(o))
        put_change(t, "uses less energy", o->energy_crossover, h->task->prompt);
    else
        out_addf(t, "energy: not known for these units\n");
    if (explain) put_bars(t, o);
}
