/* clock.h: the monotonic clock.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_CLOCK_H
#define SG_BASE_CLOCK_H

#include <stdint.h>

uint64_t sg_now_ns(void);
uint64_t sg_wall_ns(void);          /* since 1970, as files are dated */
uint64_t sg_thread_ns(void); /* processor time of the calling thread */
void sg_pause_ns(uint64_t ns);   /* sleep about that long; for back-off only */

#endif
