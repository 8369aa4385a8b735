/* meter.h: --meter: energy used by the units of a run, read from the counters of the GPUs.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_METER_H
#define SEGUE_CLI_METER_H

#include "run/placement.h"

/* A selected meter. */
struct meter {
    const struct placement *placement; /* whose units are read; of the caller */
    const char *name;                  /* "nvml"; NULL: no meter was requested */
    size_t readings;                   /* number of successful meter_read calls, reported as `samples` */
};

/* Select the meter of --meter. Prints an error and returns the exit code if it is unknown or no unit supports it; 0:
 * success. */
int meter_open(struct meter *m, const struct args *args, const struct placement *p);
/* Joules counted so far over all units that report energy; negative: not measured. */
double meter_read(struct meter *m);
/* The JSON object `energy`. Negative values become null with a reason. m NULL: no meter. per_token: the energies are
 * joules per token and the field names say so. */
json_t *meter_json(const struct meter *m, double prefill_j, double decode_j, double watts, bool per_token);

#endif
