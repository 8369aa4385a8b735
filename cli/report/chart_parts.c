/* chart_parts.c: figures, keys and axes, see chart_parts.h.
 * SPDX-License-Identifier: MIT */
#include "report/chart_parts.h"

void chart_begin(struct html_page *p, const char *caption, double height)
{
    out_addf(&p->text, "<figure><figcaption>");
    html_escape(&p->text, caption, 0);
    out_addf(&p->text, "</figcaption>\n<svg viewBox=\"0 0 %d %.0f\" role=\"img\">\n", CHART_WIDTH, height);
}

void chart_end(struct html_page *p, const char *const *names, size_t n)
{
    out_addf(&p->text, "</svg>\n");
    for (size_t i = 0; i < n; i++) {
        out_addf(&p->text, "<span class=\"key\"><i class=\"s%zu\"></i>", i % CHART_COLOURS);
        html_escape(&p->text, names[i], 0);
        out_addf(&p->text, "</span>");
    }
    out_addf(&p->text, "</figure>\n");
}

void chart_empty(struct html_page *p, const char *caption)
{
    out_addf(&p->text, "<figure><figcaption>");
    html_escape(&p->text, caption, 0);
    out_addf(&p->text, ": no values</figcaption></figure>\n");
}

void chart_text(struct html_page *p, double x, double y, const char *anchor, const char *class, const char *text, size_t max)
{
    out_addf(&p->text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, class);
    html_escape(&p->text, text, max);
    out_addf(&p->text, "</text>\n");
}

void chart_axis_x(struct html_page *p, const struct scale *s, double top, double bottom, const char *title)
{
    double ticks[SCALE_TICKS];
    size_t n = scale_ticks(s, ticks);
    for (size_t i = 0; i < n; i++) {
        char text[32];
        double x = scale_at(s, ticks[i]);
        scale_label(text, sizeof text, ticks[i]);
        out_addf(&p->text, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x, top, x, bottom);
        chart_text(p, x, bottom + 16, "middle", "soft", text, 0);
    }
    out_addf(&p->text, "<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", s->from, bottom, s->to,
             bottom);
    chart_text(p, s->to, bottom + 34, "end", "soft", title, 80);
}

void chart_axis_y(struct html_page *p, const struct scale *s, double left, double right, const char *title)
{
    double ticks[SCALE_TICKS];
    size_t n = scale_ticks(s, ticks);
    for (size_t i = 0; i < n; i++) {
        char text[32];
        double y = scale_at(s, ticks[i]);
        scale_label(text, sizeof text, ticks[i]);
        out_addf(&p->text, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", left, y, right, y);
        chart_text(p, left - 8, y + 4, "end", "soft", text, 0);
    }
    out_addf(&p->text, "<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", left, s->from, left, s->to);
    chart_text(p, 4, s->to - 12, "start", "soft", title, 80);
}
