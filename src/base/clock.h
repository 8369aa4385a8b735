/* clock.h: clocks in nanoseconds.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_CLOCK_H
#define SG_BASE_CLOCK_H

#include <stdint.h>

uint64_t sg_now_ns(void);        /* monotonic, arbitrary origin; for timeouts and durations */
uint64_t sg_wall_ns(void);       /* since 1970-01-01 UTC, comparable with file times; may jump */
uint64_t sg_thread_ns(void);     /* CPU time used by the calling thread */
void sg_pause_ns(uint64_t ns);   /* sleep for about that long; a signal ends it early */

#endif
