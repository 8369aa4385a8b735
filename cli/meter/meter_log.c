/* meter_log.c: from the samples of a log to a series, see meter_log.h. A stamp is a second rounded down, so each sample bounds
 * where the sum of durations is on the clock; the bounds of successive samples are intersected, and begin again where they
 * contradict each other (the recording program pauses between samples).
 * SPDX-License-Identifier: MIT */
#include "meter/meter_log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Ends of samples [from, to) on the log's clock: the sum of durations plus the middle of the bounds on its start. */
static void place_samples(const struct log_samples *s, size_t from, size_t to, double low, double high, double *ends)
{
    double sum = 0;
    for (size_t i = from; i < to; i++) {
        sum += (double)s->list[i].elapsed_ns / 1e9;
        ends[i] = (low + high) / 2 + sum;
    }
}

/* The end of each sample in seconds since 1970. */
static void place_all(const struct log_samples *s, double *ends)
{
    size_t from = 0;
    double low = -1e18, high = 1e18, sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        double with = sum + (double)s->list[i].elapsed_ns / 1e9, stamp = (double)s->list[i].stamp_s;
        double new_low = stamp - with > low ? stamp - with : low, new_high = stamp + 1 - with < high ? stamp + 1 - with : high;
        if (new_low > new_high) {
            place_samples(s, from, i, low, high, ends);
            from = i;
            with = (double)s->list[i].elapsed_ns / 1e9;
            new_low = stamp - with;
            new_high = stamp + 1 - with;
        }
        low = new_low;
        high = new_high;
        sum = with;
    }
    place_samples(s, from, s->n, low, high, ends);
}

/* A channel counts if every sample has it. */
static void make_series(struct energy_series *out, const struct log_samples *s, int64_t unix_minus_monotonic_ns)
{
    static const char *const names[] = {"", "CPU", "GPU", "ANE", "DRAM"};
    double *ends = out_alloc(s->n * sizeof *ends), joules[ENERGY_CHANNELS] = {0};
    unsigned has = ~0u;
    place_all(s, ends);
    for (size_t i = 0; i < s->n; i++) has &= s->list[i].has;
    *out = (struct energy_series){.channels = LOG_CHANNELS};
    for (size_t k = 0; k < LOG_CHANNELS; k++) {
        snprintf(out->names[k], sizeof out->names[k], "%s", k || !s->whole ? names[k] : s->whole);
        out->counted[k] = has >> k & 1;
    }
    for (size_t i = 0; i < s->n; i++) {
        double end = ends[i] * 1e9 - (double)unix_minus_monotonic_ns, begin = end - (double)s->list[i].elapsed_ns;
        if (!i && begin > 0) energy_append(out, (uint64_t)begin, joules);
        for (size_t k = 0; k < LOG_CHANNELS; k++) joules[k] += s->list[i].joules[k];
        if (end > 0) energy_append(out, (uint64_t)end, joules);
    }
    free(ends);
}

/* At most LOG_BYTES. A NUL follows the bytes. */
static segue_status read_file(struct out_text *out, const char *path, segue_error *err)
{
    char piece[65536];
    size_t n;
    errno = 0;
    FILE *f = fopen(path, "rb");
    if (!f) return out_fail_errno(err, "reading the meter log", path, NULL);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0 && out->len <= LOG_BYTES) out_add(out, piece, n);
    bool failed = ferror(f) != 0;
    fclose(f);
    if (failed) return out_fail_errno(err, "reading the meter log", path, NULL);
    if (out->len > LOG_BYTES)
        return out_fail(err, SEGUE_ELIMIT, "meter log: %.200s: larger than %d MiB; pass a shorter log", path, LOG_BYTES >> 20);
    out_add(out, "", 0);
    return SEGUE_OK;
}

segue_status meter_log_read(struct energy_series *out, const char *kind, const char *path, int64_t unix_minus_monotonic_ns,
                            segue_error *err)
{
    struct out_text text = {0};
    struct log_samples samples = {0};
    segue_status st = read_file(&text, path, err);
    if (!st)
        st = !strcmp(kind, "asitop") ? asitop_parse(&samples, text.data, text.len, path, err)
                                     : powermetrics_parse(&samples, text.data, text.len, path, err);
    if (!st) make_series(out, &samples, unix_minus_monotonic_ns);
    free(samples.list);
    free(text.data);
    return st;
}
