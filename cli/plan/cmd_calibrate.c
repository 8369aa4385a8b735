/* cmd_calibrate.c: `segue calibrate`: fits the constants of chips to published measurements.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "engine/planner/fit.h"
#include "plan/plan_files.h"
#include "term/flags.h"
#include "term/out.h"

/* Splits "chip=A,model=B,precision=C" in place. */
static segue_status read_omit(struct sg_fit_omit *omit, char *text, segue_error *err)
{
    for (char *s = text; s && *s;) {
        char *comma = strchr(s, ','), *value = strchr(s, '=');
        if (comma) *comma = 0;
        const char **to = !value                          ? NULL
                          : !strncmp(s, "chip=", 5)       ? &omit->chip
                          : !strncmp(s, "model=", 6)      ? &omit->model
                          : !strncmp(s, "precision=", 10) ? &omit->precision
                                                          : NULL;
        if (!to)
            return out_fail(err, SEGUE_EARG,
                            "flag --omit: %.40s: not understood; write each, or chip=NAME,model=NAME,precision=NAME", s);
        *to = value + 1;
        s = comma ? comma + 1 : NULL;
    }
    return SEGUE_OK;
}

/* Leaves out every (chip, model, precision) in turn, fits the rest, predicts it. The predictions go to --output. */
static segue_status fit_each(struct sg_chips *chips, const struct sg_cells *cells, struct sg_buf *rows, bool json,
                             segue_error *err)
{
    unsigned char *done = out_alloc(cells->n + 1), *chosen = out_alloc(cells->n + 1);
    struct plan_score all = {0};
    segue_status st = SEGUE_OK;
    json_t *groups = json_array();
    for (size_t i = 0; i < cells->n && !st; i++) {
        const struct sg_cell *c = &cells->list[i];
        struct sg_fit_omit omit = {c->text[SG_CELL_CHIP], c->text[SG_CELL_MODEL], c->text[SG_CELL_PRECISION]};
        struct plan_score score = {0};
        if (done[i]) continue;
        for (size_t k = 0; k < cells->n; k++) done[k] |= chosen[k] = (unsigned char)sg_fit_omits(&omit, &cells->list[k]);
        if ((st = sg_fit(chips, cells, &omit, err)) != SEGUE_OK) break;
        plan_predict_rows(rows, cells, chips, &score, all.cells == 0, chosen);
        json_array_append_new(groups,
                              json_pack("{s:s,s:s,s:s,s:I,s:I}", "chip", omit.chip, "model", omit.model, "precision",
                                        omit.precision, "cells", (json_int_t)score.cells, "within_10", (json_int_t)score.within));
        if (!json)
            out_print("%-10s %-14s %-8s %3zu of %3zu within 10 %%\n", omit.chip, omit.model, omit.precision, score.within,
                      score.cells);
        all.cells += score.cells;
        all.within += score.within;
    }
    double share = all.cells ? (double)all.within / (double)all.cells : 0;
    if (!st && json)
        st = out_json(json_pack("{s:O,s:I,s:I,s:f}", "left_out", groups, "cells", (json_int_t)all.cells, "within_10",
                                (json_int_t)all.within, "share", share),
                      2, err);
    else if (!st)
        out_print("all: %zu of %zu = %.1f %%\n", all.within, all.cells, 100 * share);
    json_decref(groups);
    free(done);
    free(chosen);
    return st;
}

/* Fits once and writes the constants. */
static segue_status fit_once(struct sg_chips *chips, const struct sg_cells *cells, const struct sg_fit_omit *omit,
                             struct sg_buf *text, bool json, segue_error *err)
{
    struct plan_score score = {0};
    struct sg_buf rows = {0};
    segue_status st = sg_fit(chips, cells, omit, err);
    if (st) return st;
    plan_predict_rows(&rows, cells, chips, &score, true, NULL);
    sg_buf_free(&rows);
    sg_buf_printf(text, "# Made by segue calibrate --fit; %zu cells.\n", score.cells);
    sg_chips_write(chips, text);
    if (json)
        return out_json(json_pack("{s:I,s:I,s:I}", "cells", (json_int_t)score.cells, "predicted", (json_int_t)score.predicted,
                                  "within_10", (json_int_t)score.within),
                        2, err);
    out_note("calibrate: %zu cells, %zu predicted, %zu within 10 %% (%.1f %%)", score.cells, score.predicted, score.within,
             100.0 * (double)score.within / (double)(score.cells ? score.cells : 1));
    return SEGUE_OK;
}

static segue_status fit(const struct args *args, segue_error *err)
{
    struct sg_chips *chips = out_alloc(sizeof *chips);
    struct sg_cells cells = {0};
    struct sg_buf text = {0};
    struct sg_fit_omit omit = {0};
    char name[32], *left_out = out_strdup(args_text(args, "omit") ? args_text(args, "omit") : "");
    const char *output = args_text(args, "output");
    bool each = !strcmp(left_out, "each"), json = args_has(args, "json");
    segue_status st = plan_chips_open(chips, name, NULL, err);
    if (!st) st = plan_cells_open(&cells, args_text(args, "fit"), err);
    if (!st && !each) st = read_omit(&omit, left_out, err);
    if (!st) st = each ? fit_each(chips, &cells, &text, json, err) : fit_once(chips, &cells, &omit, &text, json, err);
    if (!st && (output || !(each || json))) st = plan_write(output, &text, err);
    sg_buf_free(&text);
    sg_cells_free(&cells);
    free(left_out);
    free(chips);
    return st;
}

static int run(struct args *args)
{
    segue_error err;
    if (!args_has(args, "fit")) {
        out_fail(&err, SEGUE_EARG, "calibrate: --fit: not given; name a file of published measurements");
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    segue_status st = fit(args, &err);
    return st ? out_error(&err, EXIT_BAD_INPUT) : EXIT_DONE;
}

static const struct arg_def defs[] = {
    {"fit", 0, ARG_FILE, 0, "CELLS.csv", NULL, 0, 0, "fit the constants of chips and frameworks to published measurements"},
    {"omit", 0, ARG_TEXT, 0, "each|KEY=NAME,...", NULL, 0, 0,
     "leave out cells with this chip=, model= and precision=; each: every combination in turn, predicted from the rest"},
    {"output", 'o', ARG_FILE, 0, "FILE", "standard output", 0, 0, "write the constants, or with --omit each the predictions"},
    ARG_END};
static const struct arg_group own_group = {"Calibration", defs};
static const struct arg_group *const groups[] = {&own_group, &flags_output, NULL};
const struct command cmd_calibrate =
    {.name = "calibrate",
     .summary = "measure or fit the costs that segue plan uses",
     .groups = groups,
     .example = "segue calibrate --fit tests/plan/published.csv",
     .run = run,
     .about = "With --fit, determines at most 12 constants per chip and 24 of the frameworks from "
              "published measurements and writes them as a chip file. The same cells give the same "
              "constants. docs/PLANNER.md describes the cost model."};
