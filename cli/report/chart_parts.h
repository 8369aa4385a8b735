/* chart_parts.h: what all charts are made of: the figure around a drawing, its key and its axes.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CHART_PARTS_H
#define SEGUE_CLI_CHART_PARTS_H

#include "report/chart.h"
#include "report/scale.h"

enum { CHART_WIDTH = 900, CHART_COLOURS = 6 };

/* Opens the figure and its drawing of CHART_WIDTH x height pixels. */
void chart_begin(struct html_page *p, const char *caption, double height);
/* Closes the drawing, writes the key of names[n] and closes the figure. */
void chart_end(struct html_page *p, const char *const *names, size_t n);
/* A figure without a drawing. */
void chart_empty(struct html_page *p, const char *caption);
/* A text at (x, y); anchor: "start", "middle" or "end". At most `max` characters, 0: all. */
void chart_text(struct html_page *p, double x, double y, const char *anchor, const char *class, const char *text, size_t max);
/* The grid lines and tick texts of an axis below a drawing whose rows are top to bottom; title: to the right below. */
void chart_axis_x(struct html_page *p, const struct scale *s, double top, double bottom, const char *title);
/* The same of an axis left of a drawing between left and right. */
void chart_axis_y(struct html_page *p, const struct scale *s, double left, double right, const char *title);

#endif
