/* meter.h: energy of a run: --meter. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_METER_H
#define SEGUE_CLI_METER_H

#include "task/placement.h"

struct meter {
    const struct place *place;
    const char *name; /* NULL: no meter was asked for */
    size_t readings;
};

/* Prints an error and gives an exit code when the meter is unknown, or none of the units has it; 0 = done. */
int meter_open(struct meter *m, const struct args *args, const struct place *p);
/* Joules so far of all units that can tell, or a negative number. */
double meter_read(struct meter *m);
/* The object `energy`: negative figures become null with a reason. m NULL: none. */
json_t *meter_json(const struct meter *m, double prefill_j, double decode_j, double watts);

#endif
