/* bench_placement.c: one placement of a benchmark: open it and the meter, measure, record a time line, close; see bench.h.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <stdlib.h>

/* After the measurement, for --html. The prompt is the first one of -p. */
static segue_status add_timeline(struct bench_run *b, segue_error *err)
{
    size_t n;
    long long *prompts = args_count_list(&b->args, "prompt", &n);
    const struct placement *p = &b->placement;
    char *name = p->units_n > 1 ? out_printf("%s -> %s", p->unit_info[0].spec, p->unit_info[1].spec)
                                : out_printf("%s", p->unit_info[0].spec);
    json_t *o = bench_timeline(b, name, n && prompts[0] > 2 ? (size_t)prompts[0] : 128, 16, err);
    free(name);
    free(prompts);
    if (!o) return err->status;
    json_array_append_new(b->out->timelines, o);
    return SEGUE_OK;
}

/* Each call loads the model and builds the engine again. */
int bench_with_placement(struct bench_run *b, segue_status (*measure)(struct bench_run *b, segue_error *err))
{
    segue_error err;
    int code = placement_open(&b->placement, &b->args, 0);
    if (code) return code;
    /* The meter needs the opened units. */
    code = meter_open(&b->meter, &b->args, &b->placement);
    if (!code) {
        segue_status st = measure(b, &err);
        if (!st && b->out->timelines) st = add_timeline(b, &err);
        progress_end(&b->progress);
        if (st) code = out_error(&err, EXIT_UNAVAILABLE);
    }
    meter_close(&b->meter);
    placement_close(&b->placement);
    return code;
}
