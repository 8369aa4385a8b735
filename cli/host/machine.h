/* machine.h: properties of this machine, and the memory and start time of this process.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_MACHINE_H
#define SEGUE_CLI_MACHINE_H

#include "term/out.h"

/* {cpu, cores, memory_bytes, os, kernel, gpu, driver, compiler} for reports; a new reference. gpu: the first GPU among the n
 * units that computed, else the first one that the NVIDIA driver lists. Devices are not probed: that takes memory and time. */
json_t *machine_json(const segue_unit_info *units, size_t n);
/* Name of the processor, allocated; empty if the system does not report it. */
char *machine_cpu(void);
/* Number of online logical processors, at least 1. */
size_t machine_cores(void);
/* Sample the memory of the process (private and shared dirty bytes) and return the highest sample so far; 0: not
 * known. */
uint64_t machine_peak_bytes(void);
/* Record the start time of the process. Call it first in main. */
void machine_init(void);
/* Start of the process on the clock of out_now_ns, estimated by machine_init. */
uint64_t machine_start_ns(void);

#endif
