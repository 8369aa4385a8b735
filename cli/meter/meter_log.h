/* meter_log.h: energy from the log of another program that ran beside segue: `powermetrics` of macOS as text, and the property
 * lists (`powermetrics -f plist`) that asitop records. Times in logs have whole seconds; the durations between samples narrow
 * them down.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_METER_LOG_H
#define SEGUE_CLI_METER_LOG_H

#include "meter/energy_series.h"

enum { LOG_BYTES = 64 << 20, LOG_SAMPLES = 1 << 20 };
/* Channels of logs: the whole chip, and rails. */
enum { LOG_WHOLE, LOG_CPU, LOG_GPU, LOG_ANE, LOG_DRAM, LOG_CHANNELS };

/* One sample: joules in the time before its stamp. */
struct log_sample {
    int64_t stamp_s;     /* whole seconds since 1970, rounded down */
    uint64_t elapsed_ns; /* duration of the sample */
    double joules[LOG_CHANNELS];
    unsigned has; /* bit i: channel i was counted */
};
struct log_samples {
    struct log_sample *list;
    size_t n, cap;
    const char *whole; /* what LOG_WHOLE contains */
};

/* Read a log and give its series on the clock of out_now_ns. unix_minus_monotonic_ns: between the log's clock and that one. EIO;
 * EFORMAT: "meter log: FILE: line N: why". */
segue_status meter_log_read(struct energy_series *out, const char *kind, const char *path, int64_t unix_minus_monotonic_ns,
                            segue_error *err);

/* The parsers; text[len] ends with a NUL. name: of the file, for messages. */
segue_status powermetrics_parse(struct log_samples *out, const char *text, size_t len, const char *name, segue_error *err);
segue_status asitop_parse(struct log_samples *out, const char *text, size_t len, const char *name, segue_error *err);
/* Append a zeroed sample; NULL: there are too many. */
struct log_sample *log_sample_new(struct log_samples *s);
/* Seconds since 1970 of a date in UTC; -1: not a date. */
int64_t log_date(int year, int month, int day, int hour, int minute, int second);

#endif
