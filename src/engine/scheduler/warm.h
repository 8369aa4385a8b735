/* warm.h: the first runs of some units are slow, since kernels are loaded and passes captured. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_WARM_H
#define SG_ENGINE_WARM_H

#include "engine/scheduler/scheduler.h"

/* Computes prompts and answers of as many requests as may run, as the first clients would, and forgets them: counters and learned
 * speeds begin again. Only for units that say so (sg_unit_desc.first_runs_slow); for others, and on failure, nothing happens. */
void sg_scheduler_warm(struct segue_scheduler *s);

#endif
