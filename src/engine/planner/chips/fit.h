/* fit.h: fits the constants of chips and frameworks to published measurements.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_FIT_H
#define SG_ENGINE_FIT_H

#include "engine/planner/chips/cells.h"

/* Cells that a fit leaves out: those that agree with every given name. All NULL: none. */
struct sg_fit_omit {
    const char *chip, *model, *precision;
};
/* 1: the cell is one of them. */
int sg_fit_omits(const struct sg_fit_omit *omit, const struct sg_cell *cell);

/* Fits to all cells that have a value and a prediction and are not left out. Minimises the squared relative errors, bounded for
 * outliers, plus the squared distance of each constant to its prior; all in logarithms. The specifications come from *chips, and
 * every constant starts at its prior, so that the result depends on nothing but specifications and cells. Constants that no cell
 * depends on stay at their priors. ELIMIT: more than 8192 cells. EARG: no cell. */
segue_status sg_fit(struct sg_chips *chips, const struct sg_cells *cells, const struct sg_fit_omit *omit, segue_error *err);

#endif
