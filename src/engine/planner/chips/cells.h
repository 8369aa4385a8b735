/* cells.h: published measurements as CSV, one quantity per line: chip, model, precision, pipeline, prompt_tokens, metric, and
 * optionally new_tokens, value, lo, hi, set. The first line names the columns; others are kept but not read.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_CELLS_H
#define SG_ENGINE_CELLS_H

#include <stdint.h>

#include "engine/planner/chips/published.h"

enum { SG_CELL_CHIP, SG_CELL_MODEL, SG_CELL_PRECISION, SG_CELL_PIPELINE, SG_CELL_METRIC, SG_CELL_SET, SG_CELL_TEXTS };

struct sg_cell {
    char text[SG_CELL_TEXTS][96];
    double prompt, output, value; /* -1: empty or a word */
    uint32_t line;
    const char *row; /* the line as given, without its end; in sg_cells.data */
    size_t row_len;
};

struct sg_cells {
    struct sg_buf data;
    const char *header; /* the first line, without its end */
    size_t header_len;
    struct sg_cell *list; /* [n] */
    size_t n, cap;
};

/* Parses text, of which it makes a copy. EFORMAT names file and line. ELIMIT: more than 100000 lines. Call sg_cells_free in any
 * case. */
segue_status sg_cells_read(struct sg_cells *out, const char *text, size_t n, const char *file, segue_error *err);
void sg_cells_free(struct sg_cells *c);

/* The prediction of a cell's quantity. NULL, or why there is none, a static text. */
const char *sg_cell_predict(const struct sg_cell *cell, const struct sg_chips *chips, double *out);
/* Factor below and above the prediction of a cell that holds 90 % of the measurements: residuals of the fit, doubled for Core ML,
 * wider for chips without measurements. */
double sg_cell_factor(const struct sg_cell *cell, const struct sg_chips *chips);

#endif
