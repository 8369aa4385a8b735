/* bench_handoff.c: `segue bench --handoff`: cost of prefill on one unit and decode on another, and whether the
 * transferred state decodes as fast as a local one. Two sessions, with and without a hand-off, decode alternately one
 * token each, so that both see the same machine load.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>
#include "term/interrupt.h"
#include "host/machine.h"
#include "run/report.h"

enum { MAX_SPECS = 32 }; /* units tried without --prefill and --decode */
/* If the prefill takes longer, it runs once, and every sample starts from a fork of its state. */
static const double SLOW_PREFILL_NS = 3e9;

/* The measurement of one pair of units. */
struct handoff_bench {
    struct bench_run *b;
    uint32_t from, to;            /* indices of the prefill and the decode unit */
    const segue_plan *plan_split; /* prefill on the first unit, decode on the second; of the placement */
    segue_plan *plan_from;  /* both phases on the first unit */
    segue_plan *plan_alone; /* both phases on the second unit */
    size_t prompt, tokens; /* tokens of the prompt and of each answer */
    int32_t *ids;          /* [prompt] random token ids */
    double *ratio;         /* [repeats] decode time alone / decode time after a hand-off */
    double *blocking_ms;   /* [repeats] time of a state move without overlap */
    double *exposed_ms;    /* [repeats + 1] hand-off time not hidden behind the prefill; exposed_n valid entries */
    double *ttft_ms;       /* [repeats + 1] time to first token; exposed_n valid entries */
    size_t exposed_n;
    /* Prefilled sessions to fork for each sample; NULL: prefill again for each sample. */
    segue_session *prefilled, *prefilled_alone;
    segue_stats stats; /* of the last hand-off */
    bool ids_equal;    /* all pairs produced the same ids with and without a hand-off */
};

/* A plan that runs all layers of prefill on one unit and all layers of decode on another, or on the same one. */
static segue_status two_phase_plan(segue_plan **out, const struct bench_run *b, uint32_t prefill, uint32_t decode,
                                   segue_error *err)
{
    const uint32_t layers = b->placement.info.layers;
    const segue_part parts[2] = {
        {.size = sizeof *parts, .unit = prefill, .phase = SEGUE_PREFILL, .to = layers, .expect_j = -1},
        {.size = sizeof *parts, .unit = decode, .phase = SEGUE_DECODE, .to = layers, .expect_j = -1}};
    return segue_plan_new(out, parts, 2, NULL, err);
}

/* A new session with the prompt, or a fork of `source`, which has the prompt computed. */
static segue_status start_session(struct handoff_bench *p, const segue_plan *plan, segue_session *source, segue_session **out,
                          segue_error *err)
{
    if (!source) return bench_session(p->b, plan, p->ids, p->prompt, p->prompt + p->tokens + 1, out, err);
    segue_status st = segue_session_fork(out, source, err);
    if (!st) interrupt_watch(*out);
    return st;
}

/* Prefill on the first unit and generate the first token on the second one, with a streaming hand-off. Records the
 * exposed time and the time to first token unless the session is a fork. */
static segue_status decode_after_handoff(struct handoff_bench *p, segue_session **out, struct bench_answer *a, segue_error *err)
{
    segue_stats before = SEGUE_INIT(segue_stats);
    segue_status st = start_session(p, p->plan_split, p->prefilled, out, err);
    if (!st) st = segue_session_stats_get(*out, &before, err);
    if (!st) st = bench_answer(*out, 1, a, err);
    p->stats = a->at_end;
    /* A fork has no prefill that could hide the hand-off, so these figures need a complete run. */
    if (!st && !p->prefilled) {
        p->ttft_ms[p->exposed_n] = (double)a->first_ns / 1e6;
        p->exposed_ms[p->exposed_n++] = (double)(p->stats.handoff_exposed_ns - before.handoff_exposed_ns) / 1e6;
    }
    return st;
}

/* The same answer with both phases on the decode unit, up to the first token. */
static segue_status decode_alone(struct handoff_bench *p, segue_session **out, struct bench_answer *a, segue_error *err)
{
    segue_status st = start_session(p, p->plan_alone, p->prefilled_alone, out, err);
    return st ? st : bench_answer(*out, 1, a, err);
}

/* Generate token i of an answer; *ns: its duration. */
static segue_status decode_one(segue_session *s, struct bench_answer *a, size_t i, double *ns, segue_error *err)
{
    uint64_t start_ns = out_now_ns();
    segue_status st = segue_session_next(s, &a->ids[i], err);
    *ns = (double)(out_now_ns() - start_ns);
    return st < 0 ? st : SEGUE_OK;
}

/* Generate the rest of both answers alternately, one token each, so that a change of the machine load affects both.
 * `first` selects which session begins. Sets a[].token_ns to the median. */
static segue_status decode_alternating(struct handoff_bench *p, segue_session *const *s, struct bench_answer *a, size_t first,
                                       segue_error *err)
{
    double *ns[2] = {out_alloc(p->tokens * sizeof(double)), out_alloc(p->tokens * sizeof(double))};
    segue_status st = SEGUE_OK;
    for (size_t i = 1; i < p->tokens && !st; i++)
        for (size_t k = 0; k < 2 && !st; k++) {
            /* The session that goes first changes from token to token. */
            size_t side = (k + i + first) % 2;
            st = decode_one(s[side], &a[side], i, &ns[side][i - 1], err);
        }
    for (size_t k = 0; k < 2; k++) {
        a[k].token_ns = bench_median(ns[k], p->tokens - 1);
        free(ns[k]);
    }
    return st;
}

/* Time of a blocking hand-off: the whole prompt is computed before the state is moved. */
static segue_status time_blocking(struct handoff_bench *p, size_t i, segue_error *err)
{
    segue_session *s = NULL;
    segue_stats stats = SEGUE_INIT(segue_stats);
    segue_status st = start_session(p, p->plan_from, p->prefilled, &s, err);
    if (!st) st = segue_session_prefill(s, 0, NULL, err);
    /* Copies or transfers all slots at once; its duration is handoff_ns. */
    if (!st) st = segue_session_move(s, p->b->placement.units[p->to], err);
    if (!st) st = segue_session_stats_get(s, &stats, err);
    p->blocking_ms[i] = (double)stats.handoff_ns / 1e6;
    bench_close_session(s);
    return st;
}

/* Sample i: both answers and a blocking hand-off. The order of the two answers changes from sample to sample. */
static segue_status run_pair(struct handoff_bench *p, size_t i, segue_error *err)
{
    struct bench_answer a[2] = {{0}};
    segue_session *s[2] = {NULL, NULL};
    segue_status st = SEGUE_OK;
    for (size_t k = 0; k < 2; k++) a[k].ids = out_alloc(p->tokens * sizeof *a[k].ids);
    for (size_t k = 0; k < 2 && !st; k++)
        /* First tokens: with the prefill and the hand-off, and without a hand-off. */
        st = (k + i) % 2 ? decode_alone(p, &s[1], &a[1], err) : decode_after_handoff(p, &s[0], &a[0], err);
    if (!st) st = decode_alternating(p, s, a, i, err);
    for (size_t k = 0; k < 2; k++) bench_close_session(s[k]);
    if (!st) {
        /* Above 1: decode is faster after the hand-off than without. */
        p->ratio[i] = a[1].token_ns / a[0].token_ns;
        p->ids_equal = p->ids_equal && !memcmp(a[0].ids, a[1].ids, p->tokens * sizeof *a[0].ids);
        st = time_blocking(p, i, err);
    }
    free(a[0].ids);
    free(a[1].ids);
    return st;
}

/* One unmeasured prefill per unit touches the weights. Its duration decides whether the samples prefill again or fork. */
static segue_status warm_up(struct handoff_bench *p, segue_error *err)
{
    segue_session *s = NULL, *t = NULL;
    uint64_t start_ns = out_now_ns();
    segue_status st = bench_session(p->b, p->plan_split, p->ids, p->prompt, p->prompt + p->tokens + 1, &s, err);
    if (!st) st = segue_session_prefill(s, p->prompt - 1, NULL, err);
    /* All but the last prompt token, which the decode unit computes. */
    bool slow = (double)(out_now_ns() - start_ns) > SLOW_PREFILL_NS;
    if (!st) st = bench_session(p->b, p->plan_alone, p->ids, p->prompt, p->prompt + p->tokens + 1, &t, err);
    if (!st) st = segue_session_prefill(t, p->prompt - 1, NULL, err);
    if (!st && !slow) {
        struct bench_answer a = {.ids = out_alloc(p->tokens * sizeof *a.ids)};
        st = bench_answer(t, p->tokens, &a, err);
        free(a.ids);
    }
    if (!st && slow) { /* measure one hand-off with prefill, then keep the prefilled sessions for the samples */
        struct bench_answer a = {.ids = out_alloc(p->tokens * sizeof *a.ids)};
        segue_session *once = NULL;
        st = decode_after_handoff(p, &once, &a, err);
        bench_close_session(once);
        free(a.ids);
        p->prefilled = s;
        p->prefilled_alone = t;
        return st;
    }
    bench_close_session(s);
    bench_close_session(t);
    return st;
}

/* The samples v[n] as a JSON list. */
static json_t *real_list(const double *v, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, out_real(v[i]));
    return list;
}

/* One row for an ordered pair of units. */
static json_t *result_row(struct handoff_bench *p)
{
    struct bench_run *b = p->b;
    size_t from = p->from, to = p->to;
    json_t *o = json_object();
    json_object_set_new(o, "from", json_string(b->placement.unit_info[from].spec));
    json_object_set_new(o, "to", json_string(b->placement.unit_info[to].spec));
    json_object_set_new(o, "model", report_model_json(&b->placement));
    json_object_set_new(o, "n_prompt", json_integer((json_int_t)p->prompt));
    json_object_set_new(o, "n_gen", json_integer((json_int_t)p->tokens));
    json_object_set_new(o, "pairs", json_integer((json_int_t)b->repeats));
    json_object_set_new(o, "samples_decode_ratio", real_list(p->ratio, b->repeats));
    json_object_set_new(o, "samples_blocking_ms", real_list(p->blocking_ms, b->repeats));
    /* Also the divisor of the transfer rate below. */
    double blocked = bench_median(p->blocking_ms, b->repeats);
    json_object_set_new(o, "blocking_ms", out_real(blocked));
    json_object_set_new(o, "ttft_ms", out_real(bench_median(p->ttft_ms, p->exposed_n)));
    if (p->exposed_n)
        json_object_set_new(o, "exposed_ms", out_real(bench_median(p->exposed_ms, p->exposed_n)));
    else
        out_null(o, "exposed_ms", "the prompt was computed once for all samples");
    json_object_set_new(o, "bytes", json_integer((json_int_t)p->stats.handoff_bytes));
    json_object_set_new(o, "copied_bytes", json_integer((json_int_t)p->stats.copied_bytes));
    if (p->stats.copied_bytes && blocked > 0)
        json_object_set_new(o, "gb_s", out_real((double)p->stats.copied_bytes / blocked / 1e6));
    else
        out_null(o, "gb_s", "nothing was copied: the unit took over the memory");
    json_object_set_new(o, "decode_ratio", out_real(bench_median(p->ratio, b->repeats)));
    json_object_set_new(o, "ids_equal", json_boolean(p->ids_equal));
    json_object_set_new(o, "machine", machine_json(b->placement.unit_info, b->placement.units_n));
    json_object_set_new(o, "seed", json_integer((json_int_t)b->seed));
    return o;
}

/* Measure one prompt length with units 0 and 1 of the placement. */
static segue_status measure(struct bench_run *b, size_t prompt, segue_error *err)
{
    size_t tokens_n;
    long long *tokens = args_count_list(&b->args, "tokens", &tokens_n);
    size_t answer = tokens_n && tokens[0] > 1 ? (size_t)tokens[0] : 64;
    free(tokens);
    uint32_t from = (uint32_t)report_phase_unit(&b->placement, 0), to = (uint32_t)report_phase_unit(&b->placement, 1);
    /* --prefill and --decode may name the same unit in two ways. */
    if (from == to)
        return out_fail(err, SEGUE_EARG,
                        "bench --handoff: %.100s: prefill and decode run on the same unit; give another one with --decode",
                        b->placement.unit_info[from].spec);
    struct handoff_bench p = {.b = b, .prompt = prompt, .tokens = answer, .ids_equal = true};
    /* The plan of the flags, and two plans without a hand-off: for the blocking case and for the
     * comparison. */
    p.plan_split = b->placement.plan;
    p.from = from;
    p.to = to;
    segue_status st = two_phase_plan(&p.plan_from, b, from, from, err);
    if (!st) st = two_phase_plan(&p.plan_alone, b, to, to, err);
    p.ids = bench_ids(b, prompt);
    /* One entry per sample; the lists of a streaming hand-off have one more, from the warm-up. */
    p.ratio = out_alloc(b->repeats * sizeof *p.ratio);
    p.blocking_ms = out_alloc(b->repeats * sizeof *p.blocking_ms);
    p.exposed_ms = out_alloc((b->repeats + 1) * sizeof *p.exposed_ms);
    p.ttft_ms = out_alloc((b->repeats + 1) * sizeof *p.ttft_ms);
    if (!st) st = warm_up(&p, err);
    for (size_t i = 0; i < b->repeats && !st; i++) {
        st = run_pair(&p, i, err);
        progress_step(&b->progress, i + 1, b->repeats, false);
    }
    if (!st) st = bench_out_row(b->out, result_row(&p), err);
    bench_close_session(p.prefilled);
    bench_close_session(p.prefilled_alone);
    segue_plan_close(p.plan_from);
    segue_plan_close(p.plan_alone);
    free(p.ids);
    free(p.ratio);
    free(p.blocking_ms);
    free(p.exposed_ms);
    free(p.ttft_ms);
    return st;
}

/* Specs of the units of which all ordered pairs are measured. */
struct unit_specs {
    char spec[MAX_SPECS][64];
    size_t n;
};

/* Real units that are available. A cpu unit is listed once per instruction set except generic, so that there are pairs
 * on a machine without a second unit. */
static segue_status list_unit_specs(struct unit_specs *out, segue_error *err)
{
    segue_unit_info info[MAX_SPECS];
    size_t n = 0;
    for (size_t i = 0; i < MAX_SPECS; i++) info[i] = SEGUE_INIT(segue_unit_info);
    segue_status st = segue_unit_list(info, MAX_SPECS, &n, err);
    for (size_t i = 0; !st && i < n && i < MAX_SPECS && out->n < 6; i++) {
        if (!info[i].present || info[i].simulated || !strcmp(info[i].kind, "ref")) continue;
        char *features = out_strdup(info[i].features), *rest = NULL;
        /* The features of the cpu unit start with its instruction sets. */
        bool isa = !strcmp(info[i].kind, "cpu");
        for (char *word = strtok_r(features, " ", &rest); isa && word && out->n < 6;
             word = strtok_r(NULL, " ", &rest))
            if (strcmp(word, "generic") != 0)
                snprintf(out->spec[out->n++], sizeof out->spec[0], "%s:isa=%.40s", info[i].kind, word);
        if (!isa) snprintf(out->spec[out->n++], sizeof out->spec[0], "%s", info[i].spec);
        free(features);
    }
    /* A machine with one unit still needs a pair. */
    if (!st && out->n < 2 && out->n) snprintf(out->spec[out->n++], sizeof out->spec[0], "cpu:isa=generic");
    return st;
}

/* Prompts of -p, else one of 410 tokens. */
static segue_status prompts(struct bench_run *b, segue_error *err) { return bench_each_prompt(b, 410, measure, err); }

/* Without --prefill and --decode all ordered pairs of different units are measured. */
int bench_handoff(struct bench_run *b)
{
    static const struct bench_column columns[] = {{"from", "from", 0},
                                                  {"to", "to", 0},
                                                  {"tokens", "n_prompt", 0},
                                                  {"blocking ms", "blocking_ms", 4},
                                                  {"exposed ms", "exposed_ms", 4},
                                                  {"bytes", "bytes", 0},
                                                  {"copied", "copied_bytes", 0},
                                                  {"GB/s", "gb_s", 2},
                                                  {"decode ratio", "decode_ratio", 3},
                                                  {"ids equal", "ids_equal", 0},
                                                  {NULL, NULL, 0}};
    b->out->columns = columns;
    if (args_has(&b->args, "prefill") || args_has(&b->args, "decode")) return bench_with_placement(b, prompts);
    struct unit_specs unit_specs = {.n = 0};
    segue_error err;
    if (list_unit_specs(&unit_specs, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    struct args original = b->args;
    int code = EXIT_DONE;
    for (size_t i = 0; i < unit_specs.n && !code; i++)
        /* Every pair needs its own engine, so the placement is opened again. */
        for (size_t k = 0; k < unit_specs.n && !code; k++) {
            if (i == k) continue;
            b->args = args_copy(&original);
            args_set(&b->args, "prefill", unit_specs.spec[i], &err);
            args_set(&b->args, "decode", unit_specs.spec[k], &err);
            code = bench_with_placement(b, prompts);
            args_free(&b->args);
        }
    b->args = original;
    return code;
}
