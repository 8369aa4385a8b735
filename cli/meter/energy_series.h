/* energy_series.h: energy over time: cumulative joules at points in time, of whole devices and of their rails. Every meter gives
 * one; phases are cut out of it by their time stamps.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ENERGY_SERIES_H
#define SEGUE_CLI_ENERGY_SERIES_H

#include "term/out.h"

/* ENERGY_SAMPLES: a window with fewer points is not reported. */
enum { ENERGY_CHANNELS = 16, ENERGY_POINTS = 1 << 16, ENERGY_SAMPLES = 5 };

/* Channel 0 is what all devices used together, the others are rails. Rails may or may not be contained in channel 0. */
struct energy_series {
    char names[ENERGY_CHANNELS][40];
    bool counted[ENERGY_CHANNELS]; /* false: nothing counts this channel */
    size_t channels;
    struct energy_point {
        uint64_t ns; /* on the clock of out_now_ns */
        double joules[ENERGY_CHANNELS];
    } * points;
    size_t n, cap;
};

/* Energy of one or several windows. */
struct energy_use {
    double joules[ENERGY_CHANNELS];
    double seconds;
    size_t samples; /* intervals between points that lie inside of the windows */
    bool outside;   /* a window was not covered by the series */
};

/* Append a point; times must rise, others are dropped. At ENERGY_POINTS every second one is dropped: half the resolution. */
void energy_append(struct energy_series *s, uint64_t ns, const double *joules);
/* Add the energy between two times; between two points it is spread evenly. */
void energy_add(const struct energy_series *s, uint64_t from, uint64_t to, struct energy_use *use);
/* Why a use cannot be reported; NULL: it can. The text is static or in buffer. */
const char *energy_refusal(const struct energy_use *use, char *buffer, size_t cap);
void energy_free(struct energy_series *s);

#endif
