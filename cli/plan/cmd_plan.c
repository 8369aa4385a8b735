/* cmd_plan.c: `segue plan`: the expected cost of a run, before it runs. SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "plan/plan_files.h"
#include "term/flags.h"
#include "term/out.h"

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

static int run(struct args *args)
{
    segue_error err;
    if (!args_has(args, "predict")) {
        out_fail(&err, SEGUE_EARG, "plan: --predict: not given; name a file of published measurements");
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    segue_status st = predict(args, &err);
    return st ? out_error(&err, EXIT_BAD_INPUT) : EXIT_DONE;
}

static const struct arg_def defs[] = {{"predict", 0, ARG_FILE, 0, "CELLS.csv", NULL, 0, 0,
                                       "predict published measurements; docs/PLANNER.md describes the columns"},
                                      {"chip", 0, ARG_FILE, 0, "FILE|NAME", NULL, 0, 0,
                                       "costs of a chip file, or of a chip that segue knows; no unit is opened"},
                                      {"output", 'o', ARG_FILE, 0, "FILE", "standard output", 0, 0,
                                       "write the predictions to FILE"},
                                      ARG_END};
static const struct arg_group own_group = {"Plan", defs};
static const struct arg_group *const groups[] = {&own_group, &flags_output, NULL};
const struct command cmd_plan =
    {.name = "plan",
     .summary = "predict what a run would cost on each choice of units",
     .groups = groups,
     .example = "segue plan --predict tests/plan/published.csv",
     .run = run,
     .about = "With --predict, adds the columns predicted, predicted_lo, predicted_hi and reason to a file of "
              "published measurements. docs/PLANNER.md describes the cost model."};
