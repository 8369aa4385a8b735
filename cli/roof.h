/* roof.h: how fast a unit reads memory here, measured by the library and kept for a day in the cache folder.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ROOF_H
#define SEGUE_CLI_ROOF_H

#include "out.h"

/* Measure now and keep the figure. */
segue_status roof_measure(segue_unit *unit, const char *spec, double *gb_s, segue_error *err);
/* The kept figure, or a fresh one. */
segue_status roof_get(segue_unit *unit, const char *spec, double *gb_s, segue_error *err);

#endif
