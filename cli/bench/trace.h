/* trace.h: --trace FILE: what ran when, in Chrome's trace format (chrome://tracing, Perfetto): a row per
 * unit, a span per run and hand-off. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_TRACE_H
#define SEGUE_CLI_TRACE_H

#include "task/placement.h"

struct trace {
    const char *path; /* NULL: nothing is kept */
    json_t *events;
};
void trace_begin(struct trace *t, const struct args *args);
size_t trace_spans(const struct trace *t); /* for segue_session_opts */
/* The spans of a session that is about to be closed; number: of the request or turn. */
void trace_take(struct trace *t, const struct place *p, const segue_session *session, size_t number);
/* Written aside and renamed. EIO. Ends the trace in any case. */
segue_status trace_end(struct trace *t, const struct place *p, segue_error *err);

#endif
