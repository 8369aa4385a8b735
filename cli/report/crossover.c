/* crossover.c: see crossover.h.
 * SPDX-License-Identifier: MIT */
#include "report/crossover.h"

#include <math.h>

/* Lines that differ by less are equal: measurements scatter so much. */
#define TIE 1.05

/* The line with the lowest value at point i of the first line's points; n: none has one there. */
static size_t lowest(const struct chart_series *series, size_t n, size_t i)
{
    size_t best = n;
    for (size_t k = 0; k < n; k++) {
        if (i >= series[k].n || series[k].points[i].x != series[0].points[i].x || !(series[k].points[i].y > 0)) continue;
        if (best == n || series[k].points[i].y < series[best].points[i].y) best = k;
    }
    return best;
}

double crossover_find(const struct chart_series *series, size_t n, size_t *from, size_t *to)
{
    *from = *to = n;
    if (n < 2 || !series[0].n) return -1;
    *from = lowest(series, n, 0);
    for (size_t i = 1; i < series[0].n && *from < n; i++) {
        const struct chart_point *p = series[*from].points;
        *to = lowest(series, n, i);
        if (*to == n || *to == *from || i >= series[*from].n) continue;
        const struct chart_point *q = series[*to].points;
        if (q[i].y * TIE > p[i].y) continue;
        /* The difference of the logarithms is zero between the two points. */
        double before = log(p[i - 1].y / q[i - 1].y), after = log(p[i].y / q[i].y);
        double part = isfinite(before) && after > before ? -before / (after - before) : 1;
        return exp(log(p[i - 1].x) + part * log(p[i].x / p[i - 1].x));
    }
    return -1;
}
