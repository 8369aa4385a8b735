/* chart_bars.c: horizontal bars and time lines, see chart.h.
 * SPDX-License-Identifier: MIT */
#include "report/chart_parts.h"

#include <math.h>

/* Left edge of the drawing, right of the labels; rows are ROW pixels high. */
enum { LEFT = 250, ROW = 24, TOP = 6, FOOT = 44, LABEL = 34 };

/* A finite bar ends at its value or at the end of its interval, whichever is larger. */
static double bar_end(const struct chart_bar *b)
{
    if (!isfinite(b->value)) return 0;
    return isfinite(b->high) && b->high > b->low && b->high > b->value ? b->high : b->value;
}

static void draw_bar(struct html_page *p, const struct scale *s, const struct chart_bar *b, double y, const char *unit)
{
    char text[48], number[32];
    double from = scale_at(s, 0), to = scale_at(s, b->value), end = scale_at(s, bar_end(b));
    out_addf(&p->text, "<rect class=\"s%u\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>\n",
             b->series % CHART_COLOURS, from, y + 4, to > from ? to - from : 0, ROW - 8);
    if (isfinite(b->low) && isfinite(b->high) && b->high > b->low) {
        double low = scale_at(s, b->low), high = scale_at(s, b->high), middle = y + ROW / 2.0;
        out_addf(&p->text, "<path class=\"range\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv8M%.1f %.1fv8\"/>\n", low, middle, high, low,
                 middle - 4, high, middle - 4);
    }
    scale_label(number, sizeof number, b->value);
    snprintf(text, sizeof text, "%s %.12s", number, unit);
    chart_text(p, end + 6, y + ROW / 2.0 + 4, "start", "value", text, 0);
}

void chart_bars(struct html_page *p, const char *caption, const char *unit, const struct chart_bar *bars, size_t n,
                const char *const *names, size_t names_n)
{
    double high = 0;
    for (size_t i = 0; i < n; i++) high = bar_end(&bars[i]) > high ? bar_end(&bars[i]) : high;
    if (!(high > 0)) {
        chart_empty(p, caption);
        return;
    }
    struct scale s = scale_fit(0, high, false, LEFT, CHART_WIDTH - 90);
    double bottom = TOP + (double)n * ROW;
    chart_begin(p, caption, bottom + FOOT);
    chart_axis_x(p, &s, TOP, bottom, unit);
    for (size_t i = 0; i < n; i++) {
        double y = TOP + (double)i * ROW;
        chart_text(p, LEFT - 8, y + ROW / 2.0 + 4, "end", "label", bars[i].label, LABEL);
        if (isfinite(bars[i].value))
            draw_bar(p, &s, &bars[i], y, unit);
        else
            chart_text(p, LEFT + 6, y + ROW / 2.0 + 4, "start", "soft", "not measured", 0);
    }
    chart_end(p, names, names_n);
}

/* True if an event can be drawn. */
static bool drawn(const struct chart_event *e, size_t rows_n)
{
    return e->row < rows_n && isfinite(e->begin) && isfinite(e->end) && e->end >= e->begin;
}

void chart_timeline(struct html_page *p, const char *caption, const char *const *rows, size_t rows_n,
                    const struct chart_event *events, size_t n, const char *const *names, size_t names_n)
{
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (!drawn(&events[i], rows_n)) continue;
        if (events[i].begin < low) low = events[i].begin;
        if (events[i].end > high) high = events[i].end;
    }
    if (!(high >= low)) {
        chart_empty(p, caption);
        return;
    }
    struct scale s = scale_fit(low, high, false, LEFT, CHART_WIDTH - 30);
    double bottom = TOP + (double)rows_n * ROW;
    chart_begin(p, caption, bottom + FOOT);
    chart_axis_x(p, &s, TOP, bottom, "ms");
    for (size_t i = 0; i < rows_n; i++)
        chart_text(p, LEFT - 8, TOP + (double)i * ROW + ROW / 2.0 + 4, "end", "label", rows[i], LABEL);
    for (size_t i = 0; i < n; i++) {
        const struct chart_event *e = &events[i];
        if (!drawn(e, rows_n)) continue;
        double from = scale_at(&s, e->begin), to = scale_at(&s, e->end);
        /* At least half a pixel, so that short runs remain visible. */
        out_addf(&p->text, "<rect class=\"s%u\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"><title>",
                 e->series % CHART_COLOURS, from, TOP + (double)e->row * ROW + 3, to - from < 0.5 ? 0.5 : to - from, ROW - 6);
        html_escape(&p->text, e->label ? e->label : "", 0);
        out_addf(&p->text, " %.3f ms</title></rect>\n", e->end - e->begin);
    }
    chart_end(p, names, names_n);
}
