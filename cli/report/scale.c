/* scale.c: axes, see scale.h. Ticks are 1, 2 or 5 times a power of ten.
 * SPDX-License-Identifier: MIT */
#include "report/scale.h"

#include <math.h>

/* Step of about six ticks over a span. */
static double linear_step(double span)
{
    double step = pow(10, floor(log10(span / 6)));
    double times = span / 6 / step;
    return times > 5 ? 10 * step : times > 2 ? 5 * step : times > 1 ? 2 * step : step;
}

/* The largest tick 1, 2 or 5 times a power of ten that is not above v; up: the smallest one that is not below. */
static double log_tick(double v, bool up)
{
    static const double times[] = {1, 2, 5, 10};
    double power = pow(10, floor(log10(v)));
    double below = power, slack = 1e-9 * v;
    for (int i = 0; i < 4; i++) {
        if (up && times[i] * power >= v - slack) return times[i] * power;
        if (times[i] * power <= v + slack) below = times[i] * power;
    }
    return up ? 10 * power : below;
}

struct scale scale_fit(double low, double high, bool log, double from, double to)
{
    struct scale s = {low, high, from, to, log};
    if (log) {
        s.low = log_tick(low, false);
        s.high = log_tick(high, true);
        if (s.high <= s.low) s.high = s.low * 10;
        return s;
    }
    if (!(high > low)) s.high = low + (low != 0 ? fabs(low) : 1);
    double step = linear_step(s.high - s.low);
    s.low = floor(s.low / step + 1e-9) * step;
    s.high = ceil(s.high / step - 1e-9) * step;
    return s;
}

double scale_at(const struct scale *s, double value)
{
    double v = value < s->low ? s->low : value > s->high ? s->high : value;
    double part = s->log ? log(v / s->low) / log(s->high / s->low) : (v - s->low) / (s->high - s->low);
    return s->from + part * (s->to - s->from);
}

/* Over more than three decades only the powers of ten. */
size_t scale_ticks(const struct scale *s, double *ticks)
{
    size_t n = 0;
    if (!s->log) {
        double step = linear_step(s->high - s->low);
        for (size_t i = 0; n < SCALE_TICKS && s->low + (double)i * step <= s->high + step * 1e-6; i++) {
            double v = s->low + (double)i * step;
            ticks[n++] = fabs(v) < step * 1e-6 ? 0 : v;
        }
        return n;
    }
    double decades = log10(s->high / s->low);
    double power = pow(10, floor(log10(s->low) + 1e-9));
    double every = decades > 14 ? pow(10, ceil(decades / 14)) : 10;
    for (; n < SCALE_TICKS && power <= s->high * (1 + 1e-9); power *= every)
        for (int i = 0; i < 3 && n < SCALE_TICKS; i++) {
            double v = power * (i == 0 ? 1 : i == 1 ? 2 : 5);
            if ((i == 0 || decades <= 3) && v >= s->low * (1 - 1e-9) && v <= s->high * (1 + 1e-9)) ticks[n++] = v;
        }
    return n;
}

void scale_label(char *text, size_t cap, double value)
{
    double size = fabs(value);
    if (size >= 1e15 || (size > 0 && size < 1e-4))
        snprintf(text, cap, "%.0e", value);
    else if (size >= 1e12)
        snprintf(text, cap, "%.4gT", value / 1e12);
    else if (size >= 1e9)
        snprintf(text, cap, "%.4gG", value / 1e9);
    else if (size >= 1e6)
        snprintf(text, cap, "%.4gM", value / 1e6);
    else if (size >= 1e4)
        snprintf(text, cap, "%.4gk", value / 1e3);
    else
        snprintf(text, cap, "%.4g", value);
}
