/* powermetrics.c: the text output of powermetrics(1) of macOS. A sample begins with "*** Sampled system activity (Fri Nov 15
 * 10:00:00 2024 -0800) (1003.50ms elapsed) ***"; powers follow as "CPU Power: 35 mW", "GPU Power:", "ANE Power:", "DRAM Power:",
 * "Package Power:", "Combined Power (CPU + GPU + ANE):", and on Intel "Intel energy model derived package power (CPUs+GT+SA):
 * 3.61W". Other lines are skipped.
 * SPDX-License-Identifier: MIT */
#include "meter/meter_log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A line and where it is, for messages. */
struct log_line {
    const char *file;
    char text[256];
    size_t number;
};

static segue_status bad_line(const struct log_line *l, const char *why, segue_error *err)
{
    return out_fail(err, SEGUE_EFORMAT, "meter log: %.200s: line %zu: %s; pass the text output of powermetrics", l->file,
                    l->number, why);
}

/* 1 to 12 of "Jan" to "Dec"; 0: another text. */
static int month_of(const char *name)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    for (int i = 0; i < 12; i++)
        if (!strncmp(name, months + 3 * i, 3)) return i + 1;
    return 0;
}

static segue_status begin_sample(struct log_samples *out, const struct log_line *l, segue_error *err)
{
    char month[4] = "", sign = '+';
    int day, hour, minute, second, year, zone_h, zone_m;
    double elapsed;
    if (sscanf(l->text, "*** Sampled system activity (%*3s %3s %d %2d:%2d:%2d %4d %c%2d%2d) (%lfms elapsed)", month, &day, &hour,
               &minute, &second, &year, &sign, &zone_h, &zone_m, &elapsed) != 10 &&
        sscanf(l->text, "*** Sampled system activity (%*3s %3s %d %2d:%2d:%2d %4d %c%2d%2d) (%lf ms elapsed)", month, &day, &hour,
               &minute, &second, &year, &sign, &zone_h, &zone_m, &elapsed) != 10)
        return bad_line(l, "this is not the head of a sample", err);
    int64_t stamp = log_date(year, month_of(month), day, hour, minute, second);
    if (stamp < 0 || (sign != '+' && sign != '-') || zone_h > 14 || zone_m > 59) return bad_line(l, "this is not a date", err);
    if (!(elapsed > 0) || elapsed > 1e7) return bad_line(l, "the duration is not between 0 and 10,000 seconds", err);
    int64_t zone = (int64_t)(zone_h * 60 + zone_m) * 60;
    struct log_sample *s = log_sample_new(out);
    if (!s) return bad_line(l, "too many samples", err);
    s->stamp_s = stamp - (sign == '+' ? zone : -zone);
    s->elapsed_ns = (uint64_t)(elapsed * 1e6);
    return SEGUE_OK;
}

/* "35 mW" or "3.61W" to watts. */
static segue_status read_watts(const struct log_line *l, const char *text, double *watts, segue_error *err)
{
    char *end;
    errno = 0;
    *watts = strtod(text, &end);
    while (*end == ' ') end++;
    bool milli = !strncmp(end, "mW", 2);
    if (end == text || (!milli && *end != 'W')) return bad_line(l, "this is not a power in mW or W", err);
    if (milli) *watts /= 1000;
    if (errno || !isfinite(*watts) || *watts < 0 || *watts > 1e5)
        return bad_line(l, "the power is not between 0 and 100,000 W", err);
    return SEGUE_OK;
}

/* A power of the sample; a line of another kind is skipped. */
static segue_status read_power(struct log_samples *out, const struct log_line *l, segue_error *err)
{
    static const struct {
        const char *begin, *whole;
        int channel;
    } powers[] = {{"CPU Power:", NULL, LOG_CPU},
                  {"GPU Power:", NULL, LOG_GPU},
                  {"ANE Power:", NULL, LOG_ANE},
                  {"DRAM Power:", NULL, LOG_DRAM},
                  {"Package Power:", "package", LOG_WHOLE},
                  {"Combined Power (CPU + GPU + ANE):", "CPU + GPU + ANE", LOG_WHOLE},
                  {"Intel energy model derived package power (CPUs+GT+SA):", "package", LOG_WHOLE}};
    for (size_t i = 0; i < sizeof powers / sizeof *powers; i++) {
        if (strncmp(l->text, powers[i].begin, strlen(powers[i].begin)) != 0) continue;
        double watts;
        segue_status st = read_watts(l, l->text + strlen(powers[i].begin), &watts, err);
        if (st) return st;
        if (!out->n) return bad_line(l, "a power stands before the first sample", err);
        struct log_sample *s = &out->list[out->n - 1];
        s->joules[powers[i].channel] = watts * (double)s->elapsed_ns / 1e9;
        s->has |= 1u << powers[i].channel;
        if (powers[i].whole) out->whole = powers[i].whole;
    }
    return SEGUE_OK;
}

segue_status powermetrics_parse(struct log_samples *out, const char *text, size_t len, const char *name, segue_error *err)
{
    struct log_line l = {.file = name};
    segue_status st = SEGUE_OK;
    for (size_t at = 0; at < len && !st;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at, kept = n < sizeof l.text ? n : sizeof l.text - 1;
        memcpy(l.text, text + at, kept);
        l.text[kept] = 0;
        l.number++;
        at += n + 1;
        if (!end) break; /* still being written */
        if (memchr(l.text, 0, kept)) return bad_line(&l, "a NUL byte", err);
        st = !strncmp(l.text, "*** Sampled", 11) ? begin_sample(out, &l, err) : read_power(out, &l, err);
    }
    if (!st && !out->n) return bad_line(&l, "there is no sample", err);
    return st;
}
