/* energy_series.c: see energy_series.h.
 * SPDX-License-Identifier: MIT */
#include "meter/energy_series.h"

#include <stdlib.h>
#include <string.h>

void energy_append(struct energy_series *s, uint64_t ns, const double *joules)
{
    if (s->n && ns <= s->points[s->n - 1].ns) return;
    if (s->n == ENERGY_POINTS) {
        for (size_t i = 1; i < ENERGY_POINTS / 2; i++) s->points[i] = s->points[2 * i];
        s->n = ENERGY_POINTS / 2;
    }
    if (s->n == s->cap) s->points = out_realloc(s->points, (s->cap = s->cap ? 2 * s->cap : 256) * sizeof *s->points);
    s->points[s->n].ns = ns;
    memcpy(s->points[s->n++].joules, joules, sizeof s->points->joules);
}

/* Index of the first point after a time; n: none. */
static size_t first_after(const struct energy_series *s, uint64_t ns)
{
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->points[middle].ns <= ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Joules of a channel at a time inside of the series. */
static double value_at(const struct energy_series *s, size_t channel, uint64_t ns)
{
    size_t next = first_after(s, ns);
    const struct energy_point *a = &s->points[next ? next - 1 : 0], *b = next < s->n ? &s->points[next] : a;
    if (a == b || ns <= a->ns) return a->joules[channel];
    double part = (double)(ns - a->ns) / (double)(b->ns - a->ns);
    return a->joules[channel] + part * (b->joules[channel] - a->joules[channel]);
}

void energy_add(const struct energy_series *s, uint64_t from, uint64_t to, struct energy_use *use)
{
    if (to <= from) return;
    use->seconds += (double)(to - from) / 1e9;
    if (s->n < 2 || from < s->points[0].ns || to > s->points[s->n - 1].ns) {
        use->outside = true;
        return;
    }
    for (size_t i = 0; i < s->channels; i++) use->joules[i] += value_at(s, i, to) - value_at(s, i, from);
    /* The first point inside ends an interval that began before the window, unless the window begins at a point. */
    size_t first = first_after(s, from), inside = first_after(s, to) - first;
    bool whole = first && s->points[first - 1].ns == from;
    use->samples += inside && !whole ? inside - 1 : inside;
}

const char *energy_refusal(const struct energy_use *use, char *buffer, size_t cap)
{
    if (use->outside) return "the meter does not cover the whole phase";
    if (use->seconds <= 0) return "this phase was not measured";
    if (use->samples >= ENERGY_SAMPLES) return NULL;
    snprintf(buffer, cap, "%zu samples of the meter in this phase, %d are needed; use a longer prompt or answer", use->samples,
             ENERGY_SAMPLES);
    return buffer;
}

void energy_free(struct energy_series *s)
{
    free(s->points);
    *s = (struct energy_series){0};
}
