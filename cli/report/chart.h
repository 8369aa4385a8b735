/* chart.h: charts of a page (html.h), drawn as SVG: bars, time lines, lines over prompt length with a crossover, the roof line
 * with measured points, predictions against measurements. Values that are not finite are left out; a chart without values says
 * so. Series are numbered from 0 and have six colours.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CHART_H
#define SEGUE_CLI_CHART_H

#include "report/html.h"

/* A horizontal bar; low < high: its interval. */
struct chart_bar {
    const char *label;
    double value, low, high;
    unsigned series;
};
/* Bars from 0, one per line, with their values; names[names_n]: names of the series, none: no key. */
void chart_bars(struct html_page *p, const char *caption, const char *unit, const struct chart_bar *bars, size_t n,
                const char *const *names, size_t names_n);

/* A block of a time line, in milliseconds. */
struct chart_event {
    size_t row;
    double begin, end;
    unsigned series;
    const char *label; /* shown by the browser over the block; may be NULL */
};
/* One line per unit, named by rows[rows_n]. names: of the series. */
void chart_timeline(struct html_page *p, const char *caption, const char *const *rows, size_t rows_n,
                    const struct chart_event *events, size_t n, const char *const *names, size_t names_n);

/* A point; low < high: its interval in y. */
struct chart_point {
    double x, y, low, high;
    const char *label; /* shown by the browser over the point; may be NULL */
};
struct chart_series {
    const char *name;
    const struct chart_point *points; /* [n]; ascending in x if line */
    size_t n;
    bool line; /* points are joined */
};
/* Where a choice changes: x > 0 is marked, anything else is written as "none". */
struct chart_crossover {
    const char *name;
    double x;
};
/* Titles of the axes, and which are logarithmic (values that are not positive are left out there). */
struct chart_axes {
    const char *x, *y;
    bool log_x, log_y;
};
void chart_lines(struct html_page *p, const char *caption, const struct chart_axes *axes, const struct chart_series *series,
                 size_t n, const struct chart_crossover *crossovers, size_t crossovers_n);

/* Limits of a unit: memory in GB/s and arithmetic in G operations/s. */
struct chart_roof {
    const char *name;
    double gb_s, gops;
};
/* Roof lines in a doubly logarithmic chart of G operations/s over operations per byte, with measured points. */
void chart_roofs(struct html_page *p, const char *caption, const struct chart_roof *roofs, size_t roofs_n,
                 const struct chart_series *series, size_t n);

/* x: measured, y: predicted with its interval; the diagonal is drawn. */
void chart_predicted(struct html_page *p, const char *caption, const char *unit, const struct chart_series *series, size_t n);

#endif
