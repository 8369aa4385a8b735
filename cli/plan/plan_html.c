/* plan_html.c: a plan as a page: its table, terms, and time and energy over the prompt length. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include "plan/plan_out.h"
#include "report/chart.h"

enum { POINTS = 16, LINES = 6, BARS = 16 };

static void put_table(struct html_page *page, const struct sg_options *o)
{
    static const char *const titles[] =
        {"placement", "first token, ms", "per token, ms", "total, ms", "lowest", "highest", "J", "W", "note"};
    char name[160];
    html_table_begin(page, titles, sizeof titles / sizeof *titles);
    for (size_t i = 0; i < o->n; i++) {
        const struct sg_option *p = &o->list[i];
        html_row(page);
        html_cell(page, plan_label(name, p));
        double v[] = {p->ttft_ms.mid,   p->token_ms.mid, p->total_ms.mid, p->total_ms.low,
                      p->total_ms.high, p->joules.mid,   p->watts.mid};
        for (size_t k = 0; k < sizeof v / sizeof *v; k++)
            if (v[k] < 0)
                html_cell(page, NULL);
            else
                html_number(page, v[k], 2);
        html_cell(page, p->excluded ? p->excluded : (int)i == o->choice ? "choice" : p->unverified ? "unverified" : "");
    }
    html_table_end(page);
}

/* Indices of at most cap placements for a chart: the choice, then those of the least values. */
static size_t best_few(const struct sg_options *o, bool energy, size_t *which, size_t cap)
{
    size_t n = 0;
    while (n < cap) {
        size_t best = o->n;
        for (size_t i = 0; i < o->n; i++) {
            const struct sg_option *p = &o->list[i];
            double v = energy ? p->joules.mid : p->total_ms.mid, least = 0;
            bool used = p->excluded || v < 0;
            for (size_t k = 0; k < n; k++) used |= which[k] == i;
            if (used) continue;
            if (best < o->n) least = energy ? o->list[best].joules.mid : o->list[best].total_ms.mid;
            if (best == o->n || (!n && (int)i == o->choice) || (v < least && (n || (int)best != o->choice))) best = i;
        }
        if (best == o->n) break;
        which[n++] = best;
    }
    return n;
}

/* One line per placement over prompt lengths; energy: joules instead of ms. */
static void put_lines(struct html_page *page, const struct sg_options *o, const struct plan_subject *h, bool energy)
{
    struct sg_options *at = out_alloc(sizeof *at);
    struct chart_point(*points)[POINTS] = out_alloc(LINES * sizeof *points);
    struct chart_series series[LINES];
    char names[LINES][160];
    size_t which[LINES], n = best_few(o, energy, which, LINES);
    for (size_t k = 0; k < POINTS && n; k++) {
        struct sg_plan_task t = *h->task;
        t.prompt = 8 << (k * 2 / 3);
        if (k % 3 == 1) t.prompt *= 1.25;
        sg_options_make(at, h->source, h->cost, &t);
        for (size_t i = 0; i < n; i++) {
            struct sg_figure f = energy ? at->list[which[i]].joules : at->list[which[i]].total_ms;
            points[i][k] = (struct chart_point){.x = t.prompt, .y = f.mid, .low = f.low, .high = f.high};
        }
    }
    for (size_t i = 0; i < n; i++)
        series[i] = (struct chart_series){.name = plan_label(names[i], &o->list[which[i]]),
                                          .points = points[i],
                                          .n = POINTS,
                                          .line = true};
    struct chart_axes axes = {"prompt tokens", energy ? "J" : "ms", true, true};
    struct chart_crossover crossover = {"the choice changes", energy ? o->energy_crossover : o->crossover};
    chart_lines(page, energy ? "Energy over prompt length" : "Time over prompt length", &axes, series, n, &crossover, 1);
    free(points);
    free(at);
}

segue_status plan_html(const struct sg_options *o, const struct plan_subject *h, const char *path, segue_error *err)
{
    struct html_page page = {0};
    char *lead = out_printf("%s %s, %.0f + %.0f tokens, costs of %s. Nothing was run.", h->model, h->storage, h->task->prompt,
                            h->task->output, h->costs);
    struct chart_bar *bars = out_alloc((o->n + SG_TERMS) * sizeof *bars);
    char(*names)[160] = out_alloc((o->n + 1) * sizeof *names);
    size_t n = 0;
    html_begin(&page, "segue plan", lead);
    html_section(&page, "Placements");
    put_table(&page, o);
    size_t which[BARS], shown = best_few(o, false, which, BARS);
    for (; n < shown; n++) {
        const struct sg_option *p = &o->list[which[n]];
        bars[n] = (struct chart_bar){plan_label(names[n], p), p->total_ms.mid, p->total_ms.low, p->total_ms.high, 0};
    }
    const char *caption = shown < BARS ? "Total time" : "Total time of the choice and the fastest placements";
    chart_bars(&page, caption, "ms", bars, n, NULL, 0);
    const struct sg_option *c = o->choice >= 0 ? &o->list[o->choice] : NULL;
    for (n = 0; c && n < c->terms_n; n++) bars[n] = (struct chart_bar){.label = c->terms[n].name, .value = c->terms[n].ms};
    if (c) chart_bars(&page, "Terms of the choice", "ms", bars, n, NULL, 0);
    html_section(&page, "Prompt length");
    put_lines(&page, o, h, false);
    put_lines(&page, o, h, true);
    free(lead);
    free(bars);
    free(names);
    return html_write(&page, path, err);
}
