/* trace.h: --trace FILE: timeline of a run in Chrome's trace format (chrome://tracing, Perfetto), one row per unit
 * and one event per prefill, decode or hand-off.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_TRACE_H
#define SEGUE_CLI_TRACE_H

#include "run/placement.h"

/* A trace while it is recorded. */
struct trace {
    const char *path; /* output file, of --trace; NULL: no trace */
    json_t *events;   /* list of events in Chrome's format; NULL without a path */
};
/* Start recording if --trace was given. */
void trace_begin(struct trace *t, const struct args *args);
/* Number of intervals a session must record, for segue_session_opts; 0 without --trace. */
size_t trace_capacity(const struct trace *t);
/* Collect the intervals of a session before it is closed. number: of the request or turn. */
void trace_append(struct trace *t, const struct placement *p, const segue_session *session, size_t number);
/* Add an event of a unit's row. number: of the step. */
void trace_add(struct trace *t, const char *name, uint64_t begin_ns, uint64_t end_ns, int unit, size_t number);
/* Write the file under a temporary name, rename it, and free the trace. SEGUE_EIO on failure. */
segue_status trace_end(struct trace *t, const struct placement *p, segue_error *err);

#endif
