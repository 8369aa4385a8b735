/* crossover.h: where the best of several measured lines changes.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CROSSOVER_H
#define SEGUE_CLI_CROSSOVER_H

#include "report/chart.h"

/* The smallest x above the first one from which another line is lowest than at the first x, by 5 % or more at a point; between
 * two points a line is straight in log-log. *from, *to: the line that is lowest before and after. -1: none. Points ascend in x,
 * and all lines have the same x; others are left out. */
double crossover_find(const struct chart_series *series, size_t n, size_t *from, size_t *to);

#endif
