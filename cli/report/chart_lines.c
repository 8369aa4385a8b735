/* chart_lines.c: charts with two axes: lines over prompt length, roof lines, predictions against measurements; see chart.h.
 * SPDX-License-Identifier: MIT */
#include "report/chart_parts.h"

#include <math.h>
#include <stdlib.h>

enum { LEFT = 70, RIGHT = CHART_WIDTH - 30, TOP = 34, BOTTOM = 394, FOOT = 50 };

/* Range of the values of an axis. */
struct extent {
    double low, high;
};

static void extent_add(struct extent *e, double v, bool log)
{
    if (!isfinite(v) || (log && v <= 0)) return;
    if (v < e->low) e->low = v;
    if (v > e->high) e->high = v;
}

static bool shown(const struct chart_axes *a, const struct chart_point *q)
{
    return isfinite(q->x) && isfinite(q->y) && (!a->log_x || q->x > 0) && (!a->log_y || q->y > 0);
}

static bool has_interval(const struct chart_axes *a, const struct chart_point *q)
{
    return isfinite(q->low) && isfinite(q->high) && q->high > q->low && (!a->log_y || q->low > 0);
}

/* The two axes of a chart, fitted to the points and crossovers. False: nothing to draw. */
static bool fit(const struct chart_axes *a, const struct chart_series *series, size_t n, const struct chart_crossover *c,
                size_t crossovers_n, struct scale *x, struct scale *y)
{
    struct extent ex = {INFINITY, -INFINITY}, ey = ex;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < series[k].n; i++) {
            const struct chart_point *q = &series[k].points[i];
            if (!shown(a, q)) continue;
            extent_add(&ex, q->x, a->log_x);
            extent_add(&ey, q->y, a->log_y);
            if (!has_interval(a, q)) continue;
            extent_add(&ey, q->low, a->log_y);
            extent_add(&ey, q->high, a->log_y);
        }
    if (!(ex.high >= ex.low)) return false;
    for (size_t i = 0; i < crossovers_n; i++)
        if (c[i].x > 0) extent_add(&ex, c[i].x, a->log_x);
    /* Linear axes begin at zero, so that lengths compare. */
    if (!a->log_x && ex.low > 0) ex.low = 0;
    if (!a->log_y && ey.low > 0) ey.low = 0;
    *x = scale_fit(ex.low, ex.high, a->log_x, LEFT, RIGHT);
    *y = scale_fit(ey.low, ey.high, a->log_y, BOTTOM, TOP);
    return true;
}

/* Joined points without dots at the ends of a two-point line, such as a diagonal. */
static void draw_line(struct html_page *p, const struct chart_axes *a, const struct chart_series *s, size_t colour,
                      const struct scale *x, const struct scale *y)
{
    bool open = false;
    out_addf(&p->text, "<path class=\"path s%zu\" d=\"", colour);
    for (size_t i = 0; i < s->n; i++) {
        if (!shown(a, &s->points[i])) continue;
        out_addf(&p->text, "%c%.1f %.1f", open ? 'L' : 'M', scale_at(x, s->points[i].x), scale_at(y, s->points[i].y));
        open = true;
    }
    out_addf(&p->text, "\"/>\n");
}

static void draw_points(struct html_page *p, const struct chart_axes *a, const struct chart_series *s, size_t colour,
                        const struct scale *x, const struct scale *y)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct chart_point *q = &s->points[i];
        if (!shown(a, q)) continue;
        double px = scale_at(x, q->x);
        if (has_interval(a, q))
            out_addf(&p->text, "<path class=\"path s%zu\" style=\"stroke-width:1.2\" d=\"M%.1f %.1fV%.1f\"/>\n", colour, px,
                     scale_at(y, q->low), scale_at(y, q->high));
        out_addf(&p->text, "<circle class=\"s%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>", colour, px, scale_at(y, q->y));
        html_escape(&p->text, q->label ? q->label : s->name, 0);
        out_addf(&p->text, ": %.6g, %.6g</title></circle>\n", q->x, q->y);
    }
}

/* A dashed line with its text at each crossover; "none" is written at the top. */
static void draw_crossovers(struct html_page *p, const struct chart_crossover *c, size_t n, const struct scale *x)
{
    for (size_t i = 0; i < n; i++) {
        char text[120];
        bool there = isfinite(c[i].x) && c[i].x > 0;
        double at = there ? scale_at(x, c[i].x) : LEFT + 4, y = TOP + 14 + 16 * (double)i;
        bool left = there && at > (LEFT + RIGHT) / 2.0;
        if (there) {
            out_addf(&p->text, "<line class=\"mark\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", at, TOP, at, BOTTOM);
            snprintf(text, sizeof text, c[i].x < 10 ? "%.80s: %.3g" : "%.80s: %.0f", c[i].name, c[i].x);
        } else {
            snprintf(text, sizeof text, "%.80s: none", c[i].name);
        }
        chart_text(p, left ? at - 6 : at + 6, y, left ? "end" : "start", "label", text, 0);
    }
}

/* plain: the first `plain` series are limits, drawn without dots. */
static void draw(struct html_page *p, const char *caption, const struct chart_axes *axes, const struct chart_series *series,
                 size_t n, size_t plain, const struct chart_crossover *crossovers, size_t crossovers_n)
{
    struct scale x, y;
    if (!fit(axes, series, n, crossovers, crossovers_n, &x, &y)) {
        chart_empty(p, caption);
        return;
    }
    const char **names = out_alloc((n + 1) * sizeof *names);
    chart_begin(p, caption, BOTTOM + FOOT);
    chart_axis_x(p, &x, TOP, BOTTOM, axes->x);
    chart_axis_y(p, &y, LEFT, RIGHT, axes->y);
    for (size_t i = 0; i < n; i++) {
        names[i] = series[i].name;
        if (series[i].line) draw_line(p, axes, &series[i], i % CHART_COLOURS, &x, &y);
        if (i >= plain) draw_points(p, axes, &series[i], i % CHART_COLOURS, &x, &y);
    }
    draw_crossovers(p, crossovers, crossovers_n, &x);
    chart_end(p, names, n);
    free(names);
}

void chart_lines(struct html_page *p, const char *caption, const struct chart_axes *axes, const struct chart_series *series,
                 size_t n, const struct chart_crossover *crossovers, size_t crossovers_n)
{
    draw(p, caption, axes, series, n, 0, crossovers, crossovers_n);
}

/* Each roof is a rising line up to its ridge and a flat one after it. Its ends enclose the points and all ridges. */
void chart_roofs(struct html_page *p, const char *caption, const struct chart_roof *roofs, size_t roofs_n,
                 const struct chart_series *series, size_t n)
{
    static const struct chart_axes axes = {"operations per byte read", "G operations/s", true, true};
    struct chart_series *all = out_alloc((roofs_n + n + 1) * sizeof *all);
    struct chart_point *ends = out_alloc((3 * roofs_n + 1) * sizeof *ends);
    struct extent e = {INFINITY, -INFINITY};
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < series[k].n; i++) extent_add(&e, series[k].points[i].x, true);
    for (size_t i = 0; i < roofs_n; i++)
        if (roofs[i].gb_s > 0) extent_add(&e, roofs[i].gops / roofs[i].gb_s, true);
    for (size_t i = 0; i < roofs_n; i++) {
        double gb_s = roofs[i].gb_s, gops = roofs[i].gops, low = e.low / 4, high = e.high * 4;
        double ridge = gb_s > 0 ? gops / gb_s : NAN;
        ends[3 * i] = (struct chart_point){.x = low, .y = low * gb_s};
        ends[3 * i + 1] = (struct chart_point){.x = ridge, .y = gops};
        ends[3 * i + 2] = (struct chart_point){.x = high, .y = gops};
        all[i] = (struct chart_series){roofs[i].name, ends + 3 * i, 3, true};
    }
    for (size_t i = 0; i < n; i++) all[roofs_n + i] = series[i];
    draw(p, caption, &axes, all, roofs_n + n, roofs_n, NULL, 0);
    free(ends);
    free(all);
}

void chart_predicted(struct html_page *p, const char *caption, const char *unit, const struct chart_series *series, size_t n)
{
    char x_title[64], y_title[64];
    struct chart_series *all = out_alloc((n + 1) * sizeof *all);
    struct extent e = {INFINITY, -INFINITY};
    snprintf(x_title, sizeof x_title, "measured, %.40s", unit);
    snprintf(y_title, sizeof y_title, "predicted, %.40s", unit);
    struct chart_axes axes = {x_title, y_title, true, true};
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < series[k].n; i++) extent_add(&e, series[k].points[i].x, true);
    struct chart_point diagonal[2] = {{.x = e.low, .y = e.low}, {.x = e.high, .y = e.high}};
    all[0] = (struct chart_series){"predicted = measured", diagonal, e.high > e.low ? 2 : 0, true};
    for (size_t i = 0; i < n; i++) all[i + 1] = series[i];
    draw(p, caption, &axes, all, n + 1, 1, NULL, 0);
    free(all);
}
