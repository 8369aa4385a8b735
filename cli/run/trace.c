/* trace.c: trace files, see trace.h. Times are microseconds of the monotonic clock; `pid` is the process and `tid` the
 * index of the unit.
 * SPDX-License-Identifier: MIT */
#include "run/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MAX_INTERVALS = 1 << 16 }; /* per session; the session drops later ones */

void trace_begin(struct trace *t, const struct args *args)
{
    *t = (struct trace){.path = args_text(args, "trace")};
    if (t->path) t->events = json_array();
}

size_t trace_capacity(const struct trace *t) { return t->path ? MAX_INTERVALS : 0; }

/* One complete event ("ph": "X") per interval. A hand-off names the receiving unit in `to`. */
void trace_append(struct trace *t, const struct placement *p, const segue_session *session, size_t number)
{
    static const char *const names[] = {"prefill", "decode", "helper", "hand-off"};
    segue_interval interval = SEGUE_INIT(segue_interval), *x = &interval;
    segue_error ignored;
    if (!t->path || !session) return;
    for (size_t i = 0; segue_session_interval_get(session, i, x, &ignored) == SEGUE_OK; i++) {
        json_t *e = json_pack(
            "{s:s,s:s,s:f,s:f,s:i,s:i,s:{s:I,s:I,s:I,s:[i,i]}}", "name", names[x->phase % 4], "ph", "X", "ts",
            (double)x->begin_ns / 1e3, "dur", (double)(x->end_ns - x->begin_ns) / 1e3, "pid", (int)getpid(),
            "tid", (int)x->unit, "args", "session", (json_int_t)number, "first_pos", (json_int_t)x->pos, "tokens",
            (json_int_t)x->tokens, "layers", (int)x->from, (int)(x->to ? x->to - 1 : 0));
        if (x->to_unit != x->unit)
            json_object_set_new(json_object_get(e, "args"), "to", json_string(p->unit_info[x->to_unit].spec));
        json_array_append_new(t->events, e);
    }
}

void trace_add(struct trace *t, const char *name, uint64_t begin_ns, uint64_t end_ns, int unit, size_t number)
{
    if (!t->path) return;
    json_array_append_new(t->events,
                          json_pack("{s:s,s:s,s:f,s:f,s:i,s:i,s:{s:I}}", "name", name, "ph", "X", "ts", (double)begin_ns / 1e3,
                                    "dur", (double)(end_ns - begin_ns) / 1e3, "pid", (int)getpid(), "tid", unit, "args", "step",
                                    (json_int_t)number));
}

/* The events of type "M" name the rows after the units. */
segue_status trace_end(struct trace *t, const struct placement *p, segue_error *err)
{
    if (!t->path) return SEGUE_OK;
    for (size_t i = 0; i < p->units_n; i++)
        json_array_append_new(t->events,
                              json_pack("{s:s,s:s,s:i,s:i,s:{s:s}}", "name", "thread_name", "ph", "M", "pid",
                                        (int)getpid(), "tid", (int)i, "args", "name", p->unit_info[i].spec));
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    /* For `segue energy`: logs of other programs have the time of day. */
    json_int_t offset = (json_int_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (json_int_t)out_now_ns();
    json_t *o = json_pack("{s:o,s:s,s:{s:I}}", "traceEvents", t->events, "displayTimeUnit", "ms", "otherData",
                          "unix_minus_monotonic_ns", offset);
    char *tmp_path;
    errno = 0;
    FILE *f = out_temporary(t->path, 0666, &tmp_path);
    bool written = f && json_dumpf(o, f, JSON_COMPACT | JSON_REAL_PRECISION(17)) == 0;
    written = f && fclose(f) == 0 && written && rename(tmp_path, t->path) == 0;
    segue_status st = written ? SEGUE_OK : out_fail_errno(err, "writing the trace", t->path, NULL);
    if (f && !written) unlink(tmp_path);
    free(tmp_path);
    json_decref(o);
    *t = (struct trace){0};
    return st;
}
