/* bench_claim.c: `segue bench --claim`: the cell of a published figure for the Neural Engine, 1.08 ms a token, with attention:
 * 6 layers of width 768 and 256 tokens of context. On a Mac the engine is measured. Elsewhere there is no engine: rows are
 * simulated by the cost model of docs/ANE.md for each chip, and the time that the software NPU takes on this machine is shown
 * apart, without a verdict. The published model has no attention and, in that figure, no output head.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>
#include "ane/ane_cost.h"
#include "bench/bench_two_tokens.h"
#include "host/machine.h"
#include "plan/probe_model.h"
#include "plan/probe_units.h"

enum { PAIR_ROWS = 32 }; /* rows that the engine computes for two: it pads them to 32 */
enum { LAYERS = 6, WIDTH = 768, FF = 2048, HEADS = 12, CONTEXT = 256, PROMPT = 128, SMALL_VOCAB = 32, CELL_UNITS = 1 };

/* A case: with an output head on the engine, or with one of SMALL_VOCAB tokens that the host computes; token by token, or by
 * steps of two (bench_two_tokens.c). */
static const struct claim_case {
    const char *name, *claim, *criterion;
    uint32_t vocab;
    double published_ms;
    const char *spec;
    bool has_head, in_pairs;
} cases[] = {
    {"layers", "1.08 ms a token (926 tok/s), M3 Max: six recurrent layers without attention and head",
     "at most 1.08 ms: six layers of width 768 with attention, 256 tokens of context, no output head", SMALL_VOCAB, 1.08,
     "ane:keys=256", false, false},
    {"layers and head", "1.93 ms a token (519 tok/s), M3 Max: the same layers with an output head",
     "at most 1.93 ms: six layers of width 768 with attention, 256 tokens of context, vocabulary of 32,000, greedy choice", 32000,
     1.93, "ane:head=engine,keys=256", true, false},
    {"layers, two tokens a step", "1.08 ms a token (926 tok/s), M3 Max: six recurrent layers without attention and head",
     "at most 1.08 ms: six layers of width 768 with attention, 256 tokens of context, no output head, exact drafts of one token",
     SMALL_VOCAB, 1.08, "ane:keys=256", false, true}};

/* State of a case. */
struct claim {
    struct bench_run *b;
    const struct claim_case *c;
    struct probe probe;
    const char *unit;          /* of --unit, or NULL */
    size_t prompt, tokens;
    struct two_tokens pairs;   /* of a case in pairs */
};

/* First number of a flag that takes a list. */
static size_t count_of(const struct bench_run *b, const char *flag, size_t usual)
{
    size_t n;
    long long *list = args_count_list(&b->args, flag, &n);
    size_t value = n && list[0] > 0 ? (size_t)list[0] : usual;
    free(list);
    return value;
}

/* basis: measured, simulated or host. why: the reason for no verdict, or NULL. */
static json_t *row_of(const struct claim *q, const char *unit, const char *basis, double ms, const char *why)
{
    json_t *o = json_pack("{s:s,s:s,s:s,s:s,s:s}", "claim", q->c->claim, "criterion", q->c->criterion, "case", q->c->name, "unit",
                          unit, "basis", basis);
    json_object_set_new(o, "token_ms", out_real(ms));
    json_object_set_new(o, "published_ms", out_real(q->c->published_ms));
    if (why)
        out_null(o, "verdict", why);
    else
        json_object_set_new(o, "verdict", json_string(ms <= q->c->published_ms ? "holds" : "refuted"));
    json_object_set_new(o, "layers", json_integer(LAYERS));
    json_object_set_new(o, "width", json_integer(WIDTH));
    if (q->c->has_head)
        json_object_set_new(o, "vocab", json_integer(q->c->vocab));
    else
        out_null(o, "vocab", "no output head; the host chooses among 32 tokens");
    json_object_set_new(o, "context", json_integer(CONTEXT));
    return o;
}

/* Fields that only a run has, or null. */
static void put_run(json_t *o, const struct claim *q, bool ran)
{
    static const char *const why = "nothing ran: computed from the sizes of the programs";
    if (ran) {
        json_object_set_new(o, "n_prompt", json_integer((json_int_t)q->prompt));
        json_object_set_new(o, "n_gen", json_integer((json_int_t)q->tokens));
        json_object_set_new(o, "machine", machine_json(q->probe.info, q->probe.units_n));
    } else {
        out_null(o, "n_prompt", why);
        out_null(o, "n_gen", why);
        out_null(o, "machine", why);
    }
}

/* Fields of steps of two tokens, or null. */
static void put_pairs(json_t *o, const struct claim *q, double step_ms)
{
    static const char *const why = "one token a step";
    if (q->c->in_pairs) {
        json_object_set_new(o, "step_ms", out_real(step_ms));
        json_object_set_new(o, "accepted_ratio", out_real((double)q->pairs.accepted / (double)q->pairs.steps));
        json_object_set_new(o, "tokens_equal", json_boolean(q->pairs.equal));
    } else {
        out_null(o, "step_ms", why);
        out_null(o, "accepted_ratio", why);
        out_null(o, "tokens_equal", why);
    }
}

/* Milliseconds a token, of a step or of a token. */
static double token_ms_of(const struct claim *q, double ms)
{
    return q->c->in_pairs ? ms * (double)q->pairs.steps / (double)(q->pairs.steps + q->pairs.accepted) : ms;
}

static void put_cost(json_t *o, const struct claim *q, const struct ane_cost *cost)
{
    json_object_set_new(o, "dispatches", json_integer((json_int_t)cost->dispatches + q->c->has_head));
    json_object_set_new(o, "weight_bytes",
                        json_integer((json_int_t)(cost->layers_bytes + (q->c->has_head ? cost->head_bytes : 0))));
}

/* The median step of the repeats; the first run does not count. */
static segue_status run_pairs(struct claim *q, double *ms, segue_error *err)
{
    double *each = out_alloc(q->b->repeats * sizeof *each);
    segue_status st = bench_two_tokens(&q->probe, q->prompt, 2, &q->pairs, err);
    for (size_t i = 0; i < q->b->repeats && !st; i++) {
        st = bench_two_tokens(&q->probe, q->prompt, q->tokens, &q->pairs, err);
        each[i] = q->pairs.step_ms;
        progress_step(&q->b->progress, i + 1, q->b->repeats, false);
    }
    if (!st) *ms = bench_median(each, q->b->repeats);
    free(each);
    return st;
}

/* Greedy tokens on the unit, the median of the repeats' medians; a first run that does not count compiles the programs. */
static segue_status run_unit(struct claim *q, double *ms, segue_error *err)
{
    struct probe_case c = {.prompt = q->prompt, .output = 2};
    struct probe_times times;
    double *each = out_alloc(q->b->repeats * sizeof *each);
    segue_status st = probe_run(&q->probe, &c, &times, err);
    c.output = q->tokens;
    for (size_t i = 0; i < q->b->repeats && !st; i++) {
        st = probe_run(&q->probe, &c, &times, err);
        each[i] = times.token_ms;
        progress_step(&q->b->progress, i + 1, q->b->repeats, false);
    }
    if (!st) *ms = bench_median(each, q->b->repeats);
    free(each);
    return st;
}

static segue_status put_rows(struct claim *q, segue_error *err)
{
    static const char *const chips[] = {"m1", "m2", "m3", "m4", "m5"};
    const char *profile = "m4"; /* sizes are those of any chip */
    bool simulated = q->probe.info[0].simulated != 0;
    struct ane_cost cost;
    double ms = 0;
    unsigned rows = q->c->in_pairs ? PAIR_ROWS : 1;
    SG_TRY(ane_cost_of(q->probe.model, profile, rows, CONTEXT, &cost, err));
    SG_TRY(q->c->in_pairs ? run_pairs(q, &ms, err) : run_unit(q, &ms, err));
    char unit[80];
    snprintf(unit, sizeof unit, "%s%s", q->probe.specs[0], simulated ? " (software)" : "");
    json_t *o = row_of(q, unit, simulated ? "host" : "measured", token_ms_of(q, ms),
                       simulated ? "the time of the software NPU on this machine; no engine ran" : NULL);
    put_cost(o, q, &cost);
    put_pairs(o, q, ms);
    put_run(o, q, true);
    SG_TRY(bench_out_row(q->b->out, o, err));
    for (size_t i = 0; simulated && i < sizeof chips / sizeof *chips; i++) {
        char why[64];
        snprintf(unit, sizeof unit, "ane, profile %s", chips[i]);
        SG_TRY(ane_cost_of(q->probe.model, chips[i], rows, CONTEXT, &cost, err));
        snprintf(why, sizeof why, "rule %u of this chip refuses the programs (docs/ANE.md)", cost.rule);
        ms = cost.layers_ms + (q->c->has_head ? cost.head_ms : 0);
        o = row_of(q, unit, "simulated", token_ms_of(q, ms), cost.rule ? why : NULL);
        put_cost(o, q, &cost);
        put_pairs(o, q, ms);
        put_run(o, q, false);
        SG_TRY(bench_out_row(q->b->out, o, err));
    }
    return SEGUE_OK;
}

/* A model of random weights; the unit is opened anew, so that no programs of the other case stay loaded. */
static segue_status run_case(struct claim *q, segue_error *err)
{
    const struct probe_shape shape = {LAYERS, WIDTH, FF, HEADS, HEADS, q->c->vocab, 0, 0};
    const char *spec = q->unit ? q->unit : q->c->spec;
    struct probe_folder f;
    SG_TRY(probe_folder_open(&f, "bench", err));
    segue_status st = probe_model_write(f.path, &shape, SG_F16, err);
    if (!st) st = probe_open_units(&q->probe, &spec, CELL_UNITS, err);
    if (!st) st = probe_open_model(&q->probe, f.path, NULL, err);
    if (!st) st = put_rows(q, err);
    if (!st && q->probe.info[0].simulated && q->c == cases)
        out_note("bench: a verdict says whether a token takes at most the published ms, for six layers of width 768 with "
                 "attention and 256 tokens of context. Published: an M3 Max, recurrent layers without attention. No engine "
                 "ran. Rows \"simulated\" are computed by the cost model of docs/ANE.md, without the work of the host; "
                 "\"host\" is the time of the software NPU on this machine. The same command on a Mac measures the engine.");
    probe_close(&q->probe);
    probe_folder_close(&f);
    return st;
}

segue_status bench_claim_rows(struct bench_run *b, const char *unit, size_t prompt, size_t tokens, segue_error *err)
{
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !st; i++) {
        struct claim q = {.b = b, .c = &cases[i], .unit = unit, .prompt = prompt, .tokens = tokens};
        st = run_case(&q, err);
    }
    return st;
}

int bench_claim(struct bench_run *b)
{
    static const struct bench_column columns[] = {{"case", "case", 0},
                                                  {"unit", "unit", 0},
                                                  {"basis", "basis", 0},
                                                  {"ms a token", "token_ms", 3},
                                                  {"published", "published_ms", 2},
                                                  {"verdict", "verdict", 0},
                                                  {NULL, NULL, 0}};
    segue_error err;
    b->out->columns = columns;
    segue_status st = bench_claim_rows(b, args_text(&b->args, "unit"), count_of(b, "prompt", PROMPT),
                                       count_of(b, "tokens", CONTEXT - PROMPT), &err);
    progress_end(&b->progress);
    return st ? out_error(&err, EXIT_UNAVAILABLE) : EXIT_DONE;
}
