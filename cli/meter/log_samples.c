/* log_samples.c: the list that the parsers of meter logs fill, and dates; see meter_log.h.
 * SPDX-License-Identifier: MIT */
#include "meter/meter_log.h"

struct log_sample *log_sample_new(struct log_samples *s)
{
    if (s->n == LOG_SAMPLES) return NULL;
    if (s->n == s->cap) s->list = out_realloc(s->list, (s->cap = s->cap ? 2 * s->cap : 64) * sizeof *s->list);
    s->list[s->n] = (struct log_sample){0};
    return &s->list[s->n++];
}

/* Days since 1970 of the proleptic Gregorian calendar; years begin in March, so that the leap day is the last one. */
int64_t log_date(int year, int month, int day, int hour, int minute, int second)
{
    if (year < 1970 || year > 9999 || month < 1 || month > 12 || day < 1 || day > 31 || hour < 0 || hour > 23 || minute < 0 ||
        minute > 59 || second < 0 || second > 60)
        return -1;
    int64_t y = year - (month <= 2), era = y / 400, of_era = y - era * 400;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    int64_t days = era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    return ((days * 24 + hour) * 60 + minute) * 60 + second;
}
