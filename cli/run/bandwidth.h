/* bandwidth.h: memory bandwidth of a unit, measured with the unit's own threads. The value changes with caches and
 * other load within minutes, so it is never stored.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_BANDWIDTH_H
#define SEGUE_CLI_BANDWIDTH_H

#include "term/out.h"

/* Read bandwidth in GB/s for a working set of `bytes`; 0: a size larger than any cache. Takes about 0.2 s. */
segue_status bandwidth_measure(segue_unit *unit, uint64_t bytes, double *gb_s, segue_error *err);

#endif
