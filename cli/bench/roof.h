/* roof.h: how fast a unit reads memory here and now, measured by the library with the unit's own threads.
 * Caches and neighbours move the figure within minutes, so it is never kept for another process.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ROOF_H
#define SEGUE_CLI_ROOF_H

#include "term/out.h"

/* GB/s of reading `bytes`, the working set of a run; 0: a size that no cache holds. About 0.2 s. */
segue_status roof_measure(segue_unit *unit, uint64_t bytes, double *gb_s, segue_error *err);

#endif
