/* unit_meter.h: samples the energy counters of units in a thread while they work.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_UNIT_METER_H
#define SEGUE_CLI_UNIT_METER_H

#include "meter/energy_series.h"

enum { UNIT_METERS = 9 };

struct unit_meter;

/* Read the counters of units[n], in which each device is counted once. only: "nvml" or "rapl" takes units with that counter;
 * NULL: all that have one. EUNSUPPORTED: none has, with the reason of the last one. */
segue_status unit_meter_open(struct unit_meter **out, segue_unit *const *units, size_t n, const char *only, segue_error *err);
/* Add the energy between two times up to now, see energy_add. Waits until the counters were read after `to`. */
void unit_meter_add(struct unit_meter *m, uint64_t from, uint64_t to, struct energy_use *use);
/* Joules of all devices since the meter was opened, read now; negative: a counter failed. */
double unit_meter_now(struct unit_meter *m);
/* Names of the channels; its points belong to the thread. */
const struct energy_series *unit_meter_channels(const struct unit_meter *m);
/* "nvml", "rapl" or "nvml+rapl". */
const char *unit_meter_name(const struct unit_meter *m);
/* NULL is allowed. The units may be closed afterwards. */
void unit_meter_close(struct unit_meter *m);

#endif
