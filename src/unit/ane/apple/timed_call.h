/* timed_call.h: a thread that does what another may not wait for without end: one task at a time, each with a
 * limit. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_PATIENCE_H
#define SG_UNIT_ANE_PATIENCE_H

#include "base/err.h"

struct sg_timed_call;
segue_status sg_timed_call_open(struct sg_timed_call **out, segue_error *err);
/* Joins the thread; one that is lost is left behind with its task, and keeps this object alive. */
void sg_timed_call_close(struct sg_timed_call *p);
/* task(arg) on the thread. 1: done. 0: it did not end within the limit; arg then belongs to the task for
 * ever, and no later task is taken. */
int sg_timed_call_run(struct sg_timed_call *p, void (*task)(void *arg), void *arg, uint64_t limit_ns);

#endif
