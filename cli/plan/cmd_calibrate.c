/* cmd_calibrate.c: `segue calibrate`: measures the units of this machine, or fits the constants of chips to published
 * measurements.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/planner/chips/fit.h"
#include "host/cores.h"
#include "host/find_model.h"
#include "host/folders.h"
#include "plan/plan_files.h"
#include "plan/probe_units.h"
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

/* The units to measure: those of --unit, else every unit that is used without being named. Returns their number. */
static size_t choose_units(const struct args *args, segue_unit_info *infos, size_t cap, const char **names)
{
    size_t n = 0;
    const char *text;
    for (size_t i = 0; (text = args_nth(args, "unit", i)) && n < cap; i++) names[n++] = text;
    return n ? n : probe_list_units(infos, cap, names, cap);
}

/* Cases are repeated less often from then on, so that slow and busy machines are measured in about a minute, too. */
#define HURRY_NS 30000000000u
/* Other programs with more than this share of the processor are reported. */
#define BUSY .25

static void show(const char *line) { out_note("calibrate: measuring %s", line); }

/* Another bandwidth than before means that the machine was busy, is throttled, or has changed. */
static void compare_streams(const struct sg_unit_costs *before, const struct sg_unit_costs *now)
{
    for (size_t i = 0; i < now->units_n; i++)
        for (size_t k = 0; k < before->units_n; k++) {
            double old = before->units[k].stream_gb_s, new = now->units[i].stream_gb_s;
            if (strcmp(now->units[i].spec, before->units[k].spec) != 0 || old <= 0 || new <= 0) continue;
            if (new < .75 * old || new > 1.33 * old)
                out_note("calibrate: %s: memory bandwidth is %.1f GB/s and was %.1f: the machine is busy, throttled or changed",
                         now->units[i].spec, new, old);
        }
}

/* Figures that were measured beside other work are those of a slower machine. */
static void note_others(double seconds, double busy, double own)
{
    double now = cores_busy_s(), share = busy < 0 || now < 0 ? 0 : cores_taken(seconds, now - busy, cores_own_s() - own);
    if (share > BUSY)
        out_note("calibrate: other programs used %.0f %% of the processor meanwhile, so the figures are too slow; run it again "
                 "when the machine is idle",
                 100 * fmin(share, 1));
}

static void print_costs(const struct sg_unit_costs *c, bool json)
{
    segue_error err;
    json_t *list = json_array();
    for (size_t i = 0; i < c->units_n; i++) {
        const struct sg_unit_cost *u = &c->units[i];
        json_t *o = json_pack("{s:s,s:f,s:f,s:f}", "unit", u->spec, "stream_gb_s", u->stream_gb_s, "step_overhead_ms", u->step_ms,
                              "layer_overhead_ms", u->step_layer_ms);
        json_t *gb_s = json_array(), *tflops = json_array();
        for (int k = 0; k < SG_CLASS_N; k++) {
            json_array_append_new(gb_s, out_real(u->gb_s[k]));
            json_array_append_new(tflops, out_real(u->tflops[k][SG_ROWS_512]));
        }
        json_object_set_new(o, "weights_gb_s", gb_s);
        json_object_set_new(o, "products_tflops", tflops);
        json_array_append_new(list, o);
        if (!json)
            out_print(
                "%-28s stream %.1f GB/s, weights %.1f to %.1f GB/s, products %.3g TFLOPS (4 bits, 512 rows), %.3g ms a layer\n",
                u->spec, u->stream_gb_s, u->gb_s[SG_CLASS_NIBBLE], u->gb_s[SG_CLASS_WIDE],
                u->tflops[SG_CLASS_NIBBLE][SG_ROWS_512], u->step_layer_ms);
    }
    if (json)
        out_json(list, 2, &err);
    else
        json_decref(list);
}

static segue_status measure(const struct args *args, segue_error *err)
{
    struct probe p = {0};
    struct sg_unit_costs *before = out_alloc(sizeof *before), *now = out_alloc(sizeof *now);
    segue_unit_info *infos = out_alloc(PROBE_UNITS * sizeof *infos);
    const char *names[PROBE_UNITS], *why;
    char *path = NULL, *cache = folders_home("cache");
    uint64_t start = out_now_ns();
    const double busy = cores_busy_s(), own = cores_own_s();
    int lock;
    p.hurry_ns = start + HURRY_NS;
    size_t n = choose_units(args, infos, PROBE_UNITS, names);
    segue_status st = plan_costs_begin(args_text(args, "output"), &lock, err);
    if (!st) st = plan_costs_open(before, &why, err);
    *now = *before;
    if (!st) st = probe_open_units(&p, names, n, err);
    if (!st) st = probe_units(&p, now, show, err);
    if (!st && args_has(args, "model")) {
        show("the model");
        st = find_model(args, &path, err);
        if (!st) st = probe_open_model(&p, path, cache, err);
        if (!st) st = probe_real(&p, now, err);
    }
    if (!st) compare_streams(before, now);
    if (!st) st = plan_costs_save(now, args_text(args, "output"), err);
    if (!st) print_costs(now, args_has(args, "json"));
    if (lock >= 0) close(lock);
    if (!st) out_note("calibrate: %zu units in %.1f s", p.units_n, (double)(out_now_ns() - start) * 1e-9);
    probe_close(&p); /* the time of units in processes counts as own when they have ended */
    if (!st) note_others((double)(out_now_ns() - start) * 1e-9, busy, own);
    free(before);
    free(now);
    free(infos);
    free(path);
    free(cache);
    return st;
}

static int run(struct args *args)
{
    segue_error err;
    segue_status st = args_has(args, "fit") ? fit(args, &err) : measure(args, &err);
    return st ? out_error(&err, args_has(args, "fit") ? EXIT_BAD_INPUT : EXIT_UNAVAILABLE) : EXIT_DONE;
}

static const struct arg_def defs[] =
    {{"unit", 0, ARG_UNIT, ARG_REPEATABLE, "U", "every unit that needs no name", 0, 0, "unit to measure; may be repeated"},
     {"fit", 0, ARG_FILE, 0, "CELLS.csv", NULL, 0, 0, "fit the constants of chips and frameworks to published measurements"},
     {"omit", 0, ARG_TEXT, 0, "each|KEY=NAME,...", NULL, 0, 0,
      "leave out cells with this chip=, model= and precision=; each: every combination in turn, predicted from the rest"},
     {"output", 'o', ARG_FILE, 0, "FILE", "calibration.chip in the cache folder", 0, 0,
      "write the chip file to FILE; default with --fit: standard output; with --omit each, the predictions"},
     ARG_END};
static const struct arg_group own_group = {"Calibration", defs};
static const struct arg_group *const groups[] = {&own_group, &flags_model, &flags_output, NULL};
const struct command cmd_calibrate =
    {.name = "calibrate",
     .summary = "measure or fit the costs that segue plan uses",
     .groups = groups,
     .example = "segue calibrate --fit tests/plan/published.csv",
     .run = run,
     .about = "With --fit, determines at most 12 constants per chip and 24 of the frameworks from "
              "published measurements and writes them as a chip file. The same cells give the same "
              "constants. docs/PLANNER.md describes the cost model."};
