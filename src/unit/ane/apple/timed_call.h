/* timed_call.h: a worker thread for calls that may never return: one task at a time, each with a time
 * limit.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_TIMED_CALL_H
#define SG_UNIT_ANE_TIMED_CALL_H

#include "base/err.h"

struct sg_timed_call;
/* Starts the thread. EMEMORY. */
segue_status sg_timed_call_open(struct sg_timed_call **out, segue_error *err);
/* Joins the thread. A thread whose task timed out is detached, and its memory is never freed. NULL is
 * allowed. */
void sg_timed_call_close(struct sg_timed_call *p);
/* Runs task(arg) on the thread and waits. 1: it returned. 0: it did not within limit_ns, now or in an
 * earlier call: arg then belongs to the task for ever, and no later task is started. */
int sg_timed_call_run(struct sg_timed_call *p, void (*task)(void *arg), void *arg, uint64_t limit_ns);

#endif
