/* faults.h: fault injection through the environment variable SEGUE_FAULT, in development builds (SEGUE_FAULTS) only.
 * alloc:N or write:N makes the N-th allocation or file write fail; lost:UNIT@TOKEN reports a unit as lost when it
 * reaches that position; ulp:layer=L flips the last bit of one number of layer L in each hand-off.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FAULTS_H
#define SEGUE_CLI_FAULTS_H

#include <stdbool.h>

/* Parse the variable and arm the hooks. Returns false, after printing the error, if the value is invalid. Other
 * builds ignore it. */
bool faults_init(void);

#endif
