/* faults.h: SEGUE_FAULT in development builds: alloc:N or write:N makes the N-th allocation or file write fail,
 * lost:U@TOKEN loses a unit, ulp:layer=L changes the last bit of a number of that layer in each hand-off.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FAULTS_H
#define SEGUE_CLI_FAULTS_H

#include <stdbool.h>

/* Reads the variable; false: it is not understood (the error line was printed). Other builds ignore it. */
bool faults_begin(void);

#endif
