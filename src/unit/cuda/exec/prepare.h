/* prepare.h: prepares the captured graphs of prompts, so that the first prompt of a length is as fast as a repeated one.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_PREPARE_H
#define SG_UNIT_CUDA_PREPARE_H

#include "unit/cuda/exec/cuda_run.h"

/* cu_wait for the unit's table. After the first prompt of a program it starts a thread that computes prompts of every padded
 * length in a state of its own, twice each: once to allocate scratch and to query cuBLASLt, once to capture. Not at load: it
 * would delay the first answer, and a process that answers once never needs it. The thread begins when no run has been in
 * progress for some time, stops between two runs when one starts, and continues later. Nothing is reported: what could not be
 * prepared is captured when it is used. */
segue_status cu_wait_and_prepare(struct sg_run *run, uint64_t timeout_ns, segue_error *err);
/* Stops and joins the thread; before the program is discarded. */
void cu_prepare_stop(struct sg_program *p);

#endif
