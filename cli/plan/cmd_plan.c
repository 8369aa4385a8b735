/* cmd_plan.c: `segue plan`: the expected cost of a run, before it runs. SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "engine/planner/modelcost.h"
#include "host/find_model.h"
#include "model/model.h"
#include "plan/claims.h"
#include "plan/plan_files.h"
#include "plan/plan_out.h"
#include "term/flags.h"
#include "term/out.h"

/* Tokens without a flag. */
enum { PROMPT = 410, OUTPUT = 128 };

/* --predict: the published cells with a prediction each. */
static segue_status predict(const struct args *args, segue_error *err)
{
    struct sg_chips *chips = out_alloc(sizeof *chips);
    struct sg_cells cells = {0};
    struct sg_buf text = {0};
    struct plan_score score = {0};
    char name[32];
    segue_status st = plan_chips_open(chips, name, args_text(args, "chip"), err);
    if (!st) st = plan_cells_open(&cells, args_text(args, "predict"), err);
    if (!st) {
        plan_predict_rows(&text, &cells, chips, &score, true, NULL);
        st = plan_write(args_text(args, "output"), &text, err);
    }
    if (!st && args_has(args, "json") && args_has(args, "output"))
        st = out_json(json_pack("{s:I,s:I,s:I}", "cells", (json_int_t)score.cells, "predicted", (json_int_t)score.predicted,
                                "within_10", (json_int_t)score.within),
                      2, err);
    else if (!st)
        out_note("plan: %zu cells, %zu predicted, %zu within 10 %%", score.cells, score.predicted, score.within);
    sg_buf_free(&text);
    sg_cells_free(&cells);
    free(chips);
    return st;
}

/* The storages that --storage names besides the model's own one, as further placements. list: [STORAGES_MAX], list[0] is the
 * model. */
enum { STORAGES_MAX = 8 };
static segue_status add_storages(const struct args *args, struct sg_model_cost *list, size_t from, segue_error *err)
{
    const char *text;
    size_t n = 1;
    for (size_t i = from; (text = args_nth(args, "storage", i)); i++) {
        bool known = false;
        for (size_t k = 0; k < n; k++) known |= !strcmp(list[k].storage, text);
        if (known) continue;
        if (n == STORAGES_MAX) return out_fail(err, SEGUE_EARG, "flag --storage: more than %d; name fewer", STORAGES_MAX);
        SG_TRY(sg_model_cost_as(&list[n], &list[0], text, err));
        list[n - 1].also = &list[n];
        n++;
    }
    return SEGUE_OK;
}

/* The list once more for each K and V storage that --kv names; the first one is that of the list itself. lower: also the default
 * in q8, although no flag named it. Returns the length of the list. */
static size_t add_kv(const struct args *args, struct sg_model_cost *list, bool lower)
{
    size_t n = 1, forms_n = 0;
    int forms[SG_KV_FORM_N];
    const char *text;
    while (list[n - 1].also) n++;
    for (size_t i = 0; (text = args_nth(args, "kv", i)); i++) {
        bool known = false;
        for (size_t k = 0; k < forms_n; k++) known |= forms[k] == sg_kv_form_of(text);
        if (!known) forms[forms_n++] = sg_kv_form_of(text);
    }
    if (!forms_n) forms[forms_n++] = SG_KV_FORM_F16;
    if (lower) forms[forms_n++] = SG_KV_FORM_Q8;
    for (size_t f = forms_n; f-- > 0;)
        for (size_t i = 0; i < n; i++) sg_model_cost_kv(&list[f * n + i], &list[i], forms[f]);
    for (size_t i = 0; i + 1 < forms_n * n; i++) list[i].also = &list[i + 1];
    return forms_n * n;
}

/* A task that the model was not made for. */
static void note_context(const struct args *args, uint32_t context)
{
    double turn = args_number(args, "prompt", PROMPT) + args_number(args, "out", OUTPUT);
    double tokens = args_number(args, "depth", 0) + args_number(args, "turns", 1) * turn;
    if (context && tokens > context)
        out_note("plan: %.0f tokens in one context: the model was trained on at most %u", tokens, context);
}

/* The sizes of the model of -m: shape:NAME in the first --storage, or a file. *name: allocated. */
static segue_status read_model(const struct args *args, struct sg_model_cost *out, char **name, char **storage, segue_error *err)
{
    const char *model = args_text(args, "model"), *given = args_nth(args, "storage", 0);
    struct segue_model *opened = NULL;
    struct sg_graph *graph = NULL;
    struct sg_graph_request request = {.head = 1};
    segue_model_opts opts = SEGUE_INIT(segue_model_opts);
    char *path = NULL;
    if (model && !strncmp(model, "shape:", 6)) {
        const struct sg_shape *shape = sg_shape_find(model + 6);
        *name = out_strdup(model + 6);
        *storage = out_strdup(given ? given : "bf16");
        if (!shape) return out_fail(err, SEGUE_EARG, "model: %.60s: no such shape; docs/PLANNER.md lists them", model);
        SG_TRY(sg_model_cost_shape(out, shape, *storage, err));
        return add_storages(args, out, 1, err);
    }
    opts.no_text = 1;
    segue_status st = find_model(args, &path, err);
    if (!st) st = segue_model_open(&opened, path, &opts, err);
    if (!st) st = sg_model_graph(opened, &request, &graph, err);
    if (!st) {
        segue_model_info info = SEGUE_INIT(segue_model_info);
        segue_model_info_get(opened, &info, err);
        note_context(args, info.context);
        sg_model_cost_graph(out, graph);
        out->file_bytes = (double)info.weight_bytes;
        snprintf(out->key, sizeof out->key, "%.8s-%.20s", info.shape_id, sg_model_storage(graph));
        *name = out_strdup(info.name && *info.name ? info.name : path);
        *storage = out_strdup(sg_model_storage(graph));
        st = add_storages(args, out, 0, err);
    }
    sg_graph_free(graph);
    segue_model_close(opened);
    free(path);
    return st;
}

static void read_task(const struct args *args, struct sg_plan_task *t)
{
    const char *objective = args_text(args, "objective"), *unit;
    *t = (struct sg_plan_task){.prompt = args_number(args, "prompt", PROMPT),
                               .output = args_number(args, "out", OUTPUT),
                               .turns = args_number(args, "turns", 1),
                               .sessions = args_number(args, "sessions", 1),
                               .chunk = 512,
                               .depth = args_number(args, "depth", 0),
                               .max_watts = args_number(args, "max-watts", 0)};
    if (objective && *objective == 'e') t->objective = SEGUE_OBJECTIVE_ENERGY;
    if (objective && *objective == 't') t->objective = SEGUE_OBJECTIVE_THROUGHPUT;
    for (size_t i = 0; i < 8 && (unit = args_nth(args, "unit", i)); i++) t->named[t->named_n++] = unit;
}

/* Where the costs come from: a chip with published pipelines, a chip file with units, or this machine's calibration. */
static segue_status read_costs(const struct args *args, struct sg_chips *chips, struct sg_unit_costs *costs,
                               struct sg_plan_source *source, segue_error *err)
{
    const char *chip = args_text(args, "chip"), *why = NULL;
    char name[32];
    if (!chip) {
        segue_status st = plan_costs_open(costs, &why, err);
        if (!st && why) return out_fail(err, SEGUE_EUNSUPPORTED, "plan: %s, or name a chip with --chip", why);
        *source = (struct sg_plan_source){.costs = costs};
        return st;
    }
    segue_status st = plan_chips_open(chips, name, chip, err);
    if (!st) st = plan_costs_of_chip(costs, chip, err);
    if (st) return st;
    if (costs->units_n) {
        *source = (struct sg_plan_source){.costs = costs};
        return SEGUE_OK;
    }
    *source = (struct sg_plan_source){.chips = chips, .chip = sg_chip_find(chips, name)};
    if (source->chip) return SEGUE_OK;
    return out_fail(err, SEGUE_EFORMAT, "chip file: %.80s: neither a line `name NAME` nor costs of units; add them", chip);
}

/* Every unit of --unit must have costs. */
static segue_status check_named(const struct sg_plan_task *t, const struct sg_unit_costs *costs, segue_error *err)
{
    for (size_t i = 0; i < t->named_n; i++) {
        struct out_text known = {0};
        bool found = false;
        for (size_t k = 0; k < costs->units_n; k++) {
            found |= !strcmp(costs->units[k].spec, t->named[i]);
            out_addf(&known, "%s%s", k ? " " : "", costs->units[k].spec);
        }
        if (!found)
            out_fail(err, SEGUE_EARG, "flag --unit: %.60s: there are no costs of it, but of: %.200s", t->named[i],
                     known.data ? known.data : "no unit");
        free(known.data);
        if (!found) return SEGUE_EARG;
    }
    return SEGUE_OK;
}

static segue_status show_plan(const struct args *args, const struct sg_options *o, const struct plan_subject *h, segue_error *err)
{
    struct out_text text = {0};
    segue_status st = args_has(args, "html") ? plan_html(o, h, args_text(args, "html"), err) : SEGUE_OK;
    if (st) return st;
    if (args_has(args, "json")) return out_json(plan_json(o, h), 2, err);
    plan_text(&text, o, h, args_has(args, "explain"));
    st = out_write(text.data, text.len, err);
    free(text.data);
    return st;
}

static segue_status plan(const struct args *args, segue_error *err)
{
    struct sg_chips *chips = out_alloc(sizeof *chips);
    struct sg_unit_costs *costs = out_alloc(sizeof *costs);
    struct sg_options *options = out_alloc(sizeof *options);
    struct sg_model_cost *models = out_alloc(STORAGES_MAX * SG_KV_FORM_N * sizeof *models);
    struct sg_plan_source source = {0};
    struct sg_plan_task task;
    char *model_name = NULL, *storage = NULL;
    read_task(args, &task);
    segue_status st = read_costs(args, chips, costs, &source, err);
    if (!st) st = check_named(&task, costs, err);
    if (!st) st = read_model(args, models, &model_name, &storage, err);
    if (!st) {
        uint64_t start = out_now_ns();
        add_kv(args, models, false);
        sg_options_make(options, &source, models, &task);
        /* A less accurate storage that was not asked for is planned only where nothing else fits, and the plan says so. */
        bool lower = sg_options_too_large(options) && !args_has(args, "kv");
        if (lower) {
            add_kv(args, models, true);
            sg_options_make(options, &source, models, &task);
        }
        struct plan_subject h = {.model = model_name, .storage = storage, .task = &task, .source = &source, .cost = models};
        h.lower = lower;
        h.costs = args_has(args, "chip") ? args_text(args, "chip") : "this machine";
        h.plan_us = (double)(out_now_ns() - start) * 1e-3;
        st = show_plan(args, options, &h, err);
    }
    free(chips);
    free(costs);
    free(options);
    free(models);
    free(model_name);
    free(storage);
    return st;
}

static segue_status claims(const struct args *args, segue_error *err)
{
    struct sg_chips *chips = out_alloc(sizeof *chips);
    struct out_text text = {0};
    char name[32];
    segue_status st = plan_chips_open(chips, name, args_text(args, "chip"), err);
    json_t *list = st ? NULL : claims_json(chips);
    if (!st && args_has(args, "json"))
        st = out_json(json_incref(list), 2, err);
    else if (!st) {
        claims_text(&text, list);
        st = out_write(text.data, text.len, err);
    }
    json_decref(list);
    free(text.data);
    free(chips);
    return st;
}

static int run(struct args *args)
{
    segue_error err;
    segue_status st = args_has(args, "predict")  ? predict(args, &err)
                      : args_has(args, "claims") ? claims(args, &err)
                                                 : plan(args, &err);
    return st ? out_error(&err, args_has(args, "chip") || args_has(args, "predict") ? EXIT_BAD_INPUT : EXIT_UNAVAILABLE)
              : EXIT_DONE;
}

static const struct arg_def defs[] =
    {{"prompt", 'p', ARG_COUNT, 0, "N", "410", 1, 16777216, "prompt tokens"},
     {"out", 'n', ARG_COUNT, 0, "N", "128", 1, 16777216, "tokens to generate"},
     {"depth", 'd', ARG_COUNT, ARG_ADVANCED, "N", "0", 0, 16777216, "tokens in the context before the prompt"},
     {"turns", 0, ARG_COUNT, 0, "K", "1", 1, 1000, "turns of a conversation, each with such a prompt and answer"},
     {"sessions", 0, ARG_COUNT, 0, "S", "1", 1, 4096, "conversations at the same time"},
     {"objective", 0, ARG_CHOICE, 0, "latency|energy|throughput", "latency", 0, 0, "what the choice minimises"},
     {"max-watts", 0, ARG_REAL, 0, "W", NULL, 0, 1e6, "placements above this power, or of unknown power, are not chosen"},
     {"chip", 0, ARG_FILE, 0, "FILE|NAME", "this machine", 0, 0, "costs of a chip file, or of a chip that segue knows"},
     {"storage", 0, ARG_TEXT, ARG_REPEATABLE, "S", "as in the file", 0, 0,
      "also plan with the weights in this storage: fp8 (made when loading), or one of segue quantize; may be repeated; the first "
      "one is that of -m shape:NAME, else bf16"},
     {"kv", 0, ARG_CHOICE, ARG_REPEATABLE | ARG_ADVANCED, "f32|f16|bf16|q8", "f16; also q8 where nothing else fits", 0, 0,
      "also plan with K and V in this storage; may be repeated; the first one is what the others are compared with"},
     {"unit", 0, ARG_UNIT, ARG_REPEATABLE | ARG_ADVANCED, "U", NULL, 0, 0, "a simulated unit that may be chosen"},
     {"explain", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "also draw the terms of the choice and the times as bars"},
     {"html", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "also write a page with tables and charts"},
     {"claims", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "judge published claims by the cost model"},
     {"predict", 0, ARG_FILE, 0, "CELLS.csv", NULL, 0, 0, "predict published measurements"},
     {"output", 'o', ARG_FILE, 0, "FILE", "standard output", 0, 0, "write the predictions to FILE"},
     ARG_END};
static const struct arg_group own_group = {"Plan", defs};
static const struct arg_group *const groups[] = {&own_group, &flags_model, &flags_output, NULL};
const struct command cmd_plan =
    {.name = "plan",
     .summary = "predict what a run would cost on each choice of units",
     .groups = groups,
     .example = "segue plan -m shape:qwen3.5-0.8b --chip m2-ultra --prompt 410",
     .run = run,
     .about = "Predicts time to first token, time per token, hand-off, memory, joules and watts of every placement on the units "
              "of this machine, from its calibration (segue calibrate), or of a chip (--chip), and chooses one. No unit is "
              "opened. Every figure has an interval that holds 9 of 10 runs. -m shape:NAME needs no model file. With --predict, "
              "adds the columns predicted, predicted_lo, predicted_hi and reason to a file of published measurements. "
              "docs/PLANNER.md describes the cost model."};
