/* machine.h: what this machine is, and how much memory this process has taken of it.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_MACHINE_H
#define SEGUE_CLI_MACHINE_H

#include "term/out.h"

/* cpu, cores, memory_bytes, os, kernel, gpu, driver, compiler. */
json_t *machine_json(void);
char *machine_cpu(void); /* the name of the processor; memory of the caller */
size_t machine_cores(void);
/* Private and shared-dirty bytes now, folded into the highest seen so far; 0 = not known here. */
uint64_t machine_peak_bytes(void);
/* Nanoseconds on the clock of out_now_ns at which the process started, as near as can be told. */
void machine_begin(void);
uint64_t machine_start_ns(void);

#endif
