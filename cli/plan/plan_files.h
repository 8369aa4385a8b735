/* plan_files.h: files of `segue plan` and `segue calibrate`: chip files, cell files, results.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PLAN_FILES_H
#define SEGUE_CLI_PLAN_FILES_H

#include "engine/planner/chips/cells.h"
#include "engine/planner/unitcost.h"
#include "term/args.h"

/* The built-in chips and, if --chip names a file, that file. *name: the chip that --chip names, its only one, or NULL; allocated
 * by the caller as char[32], empty if none. */
segue_status plan_chips_open(struct sg_chips *out, char name[32], const char *chip, segue_error *err);
segue_status plan_cells_open(struct sg_cells *out, const char *path, segue_error *err);
/* Writes a whole file, or standard output if path is NULL or "-". */
segue_status plan_write(const char *path, const struct sg_buf *text, segue_error *err);

/* The calibration of this machine, in the cache folder. out->units_n is 0 if there is none, or if it is
 * damaged, another user's, or of another machine; *why has the reason then, a static text. */
segue_status plan_costs_open(struct sg_unit_costs *out, const char **why, segue_error *err);
/* Writes it there (path NULL), or to path. */
segue_status plan_costs_save(const struct sg_unit_costs *costs, const char *path, segue_error *err);
/* Before a minute of measuring: the result can be written (path as above), and no other process measures for the cache folder.
 * *lock: a descriptor to close afterwards, or -1. */
segue_status plan_costs_begin(const char *path, int *lock, segue_error *err);
/* Costs of units in a chip file. */
segue_status plan_costs_of_chip(struct sg_unit_costs *out, const char *chip, segue_error *err);

/* How many predictions lie within 10 % of their values. */
struct plan_score {
    size_t cells, predicted, within;
};
/* Appends the cells as given plus the columns predicted, predicted_lo, predicted_hi and reason. chosen: [cells->n] flags of the
 * cells; NULL: all. header: begin with the first line. */
void plan_predict_rows(struct sg_buf *out, const struct sg_cells *cells, const struct sg_chips *chips, struct plan_score *score,
                       bool header, const unsigned char *chosen);

#endif
