/* bench_timeline.c: for `bench --html`: one more run per placement whose runs and hand-offs are recorded, and the numbers of the
 * model that its roof line needs. Not part of any measured row.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_INTERVALS = 4096, TIMELINE_TOKENS = 32 };

/* Multiplications per token in matrices: inside of the layers, which every prompt token needs, and outside of them (the head),
 * which a prompt needs once. From the lines "%3 = linear %2 NAME [576x576 q4_1] -> 576   # layer 0" of the graph. */
static void count_products(const struct placement *p, double *body, double *head)
{
    struct out_text listing = {0};
    segue_status st;
    segue_error ignored;
    *body = *head = 0;
    OUT_GROW(listing, st,
             segue_model_describe(p->model, SEGUE_DESCRIBE_GRAPH, listing.data, listing.cap, &listing.len, &ignored));
    for (char *line = st ? NULL : listing.data, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        const char *sign = strstr(line, "= linear ");
        unsigned long long rows, cols;
        for (const char *c = sign ? strchr(sign, '[') : NULL; c; c = strchr(c + 1, '['))
            if (sscanf(c, "[%llux%llu ", &rows, &cols) == 2) {
                *(strstr(line, "# layer ") ? body : head) += (double)rows * (double)cols;
                break; /* the bias is a vector */
            }
    }
    free(listing.data);
}

/* {unit, phase, begin_ms, end_ms, tokens} of every run and hand-off, from the first one on; a hand-off has `to`. */
static json_t *events_json(const struct bench_run *b, const segue_session *s)
{
    static const char *const names[] = {"prefill", "decode", "helper", "hand-off"};
    json_t *events = json_array();
    segue_interval x = SEGUE_INIT(segue_interval);
    segue_error ignored;
    uint64_t zero = 0;
    for (size_t i = 0; segue_session_interval_get(s, i, &x, &ignored) == SEGUE_OK; i++) {
        if (!i) zero = x.begin_ns;
        json_t *e = json_pack("{s:s,s:s,s:f,s:f,s:I}", "unit", b->placement.unit_info[x.unit].spec, "phase", names[x.phase % 4],
                              "begin_ms", (double)(int64_t)(x.begin_ns - zero) / 1e6, "end_ms",
                              (double)(int64_t)(x.end_ns - zero) / 1e6, "tokens", (json_int_t)x.tokens);
        if (x.to_unit != x.unit) json_object_set_new(e, "to", json_string(b->placement.unit_info[x.to_unit].spec));
        json_array_append_new(events, e);
    }
    return events;
}

json_t *bench_timeline(struct bench_run *b, const char *name, size_t prompt, size_t tokens, segue_error *err)
{
    segue_session *s = NULL;
    size_t n = tokens < TIMELINE_TOKENS ? tokens : TIMELINE_TOKENS;
    struct bench_answer a = {.ids = out_alloc((n + 1) * sizeof *a.ids)};
    int32_t *ids = bench_ids(b, prompt);
    b->intervals = MAX_INTERVALS;
    segue_status st = bench_session(b, placement_plan(&b->placement), ids, prompt, prompt + n, &s, err);
    b->intervals = 0;
    if (!st) st = bench_answer(s, n, &a, err);
    json_t *o = NULL;
    if (!st) {
        double body, head;
        count_products(&b->placement, &body, &head);
        o = json_pack("{s:I,s:I,s:f,s:f,s:f}", "prompt", (json_int_t)prompt, "tokens", (json_int_t)n, "body_products", body,
                      "head_products", head, "chunk", args_number(&b->args, "chunk", 512));
        json_object_set_new(o, "name", out_string(name, strlen(name)));
        json_object_set_new(o, "events", events_json(b, s));
    }
    bench_close_session(s);
    free(ids);
    free(a.ids);
    return o;
}
