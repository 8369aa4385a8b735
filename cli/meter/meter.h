/* meter.h: --meter: energy of the phases of a run, from the counters of units (meter/unit_meter.h) or from the log of another
 * program (meter/meter_log.h), both as a series over time out of which the phases are cut.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_METER_H
#define SEGUE_CLI_METER_H

#include <sys/types.h>

#include "meter/energy_series.h"
#include "run/placement.h"

/* A selected meter. */
struct meter {
    char *name;              /* "nvml", "rapl", "nvml+rapl", "powermetrics", "asitop"; NULL: no meter was requested */
    char *path;              /* of the log; NULL: counters of units */
    char *folder;            /* of a log of its own, removed with the meter; NULL: none */
    pid_t recorder;          /* the process that writes the log, ended with the meter; 0: another program writes it */
    struct unit_meter *live; /* NULL: a log */
    segue_unit *own;         /* opened only to be read; NULL: none */
    struct energy_series log;
    segue_error log_error;   /* text empty: the log was read */
    uint64_t idle_from, idle_to; /* when nothing ran, for --meter-idle; 0: not requested */
};

/* One phase: its windows and the tokens computed in them. */
struct meter_phase {
    struct energy_use use;
    size_t tokens;
};

/* Select the meter of --meter, start it, and measure the idle power of --meter-idle. Prints an error and returns the exit code if
 * it is unknown or nothing here can be read; 0: success. Call it after compilation. */
int meter_open(struct meter *m, const struct args *args, const struct placement *p);
/* The same for a meter by its name, without idle power; nothing is printed. kind NULL: the one of this machine: powermetrics for
 * root on a Mac, else the counters of all units. */
segue_status meter_try(struct meter *m, const char *kind, const struct placement *p, segue_error *err);
/* Add a window to a phase; times are of out_now_ns, as in traces. Does nothing without a meter. */
void meter_add(struct meter *m, uint64_t from, uint64_t to, size_t tokens, struct meter_phase *phase);
/* Joules of all units since meter_open; negative: not measured, as with logs. */
double meter_read(struct meter *m);
/* The JSON object `energy`. What was not measured is null with a reason. m NULL: no meter. totals: also the joules of the phases,
 * not only those per token. */
json_t *meter_json(struct meter *m, const struct meter_phase *prefill, const struct meter_phase *decode, bool totals);
/* Before the placement is closed. */
void meter_close(struct meter *m);

/* The same object from a series alone, for `segue energy`. idle: NULL, or a window that is subtracted. */
json_t *meter_series_json(const struct energy_series *s, const char *name, const struct energy_use *idle,
                          const struct meter_phase *prefill, const struct meter_phase *decode, bool totals);

#endif
