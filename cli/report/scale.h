/* scale.h: an axis of a chart: from values to pixels, and its ticks.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_SCALE_H
#define SEGUE_CLI_SCALE_H

#include "term/out.h"

enum { SCALE_TICKS = 32 }; /* upper limit of the ticks of an axis */

/* Values low to high lie at pixels from to `to`. */
struct scale {
    double low, high, from, to;
    bool log;
};

/* An axis that covers low to high, rounded outwards to ticks. log: values must be positive. */
struct scale scale_fit(double low, double high, bool log, double from, double to);
/* The pixel of a value; values outside are moved to the edge. */
double scale_at(const struct scale *s, double value);
/* The values of the ticks, ascending; returns their number, at most SCALE_TICKS. */
size_t scale_ticks(const struct scale *s, double *ticks);
/* The text of a tick: 0.5, 20, 40k, 3M. */
void scale_label(char *text, size_t cap, double value);

#endif
