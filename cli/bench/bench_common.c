/* bench_common.c: helpers shared by the modes of `segue bench`, see bench.h.
 * All times are differences of out_now_ns.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <stdlib.h>
#include "term/interrupt.h"

/* Constants of SplitMix64 (Steele, Lea and Flood, 2014). */
uint64_t bench_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void bench_hash_add(uint64_t *hash, int32_t id)
{
    /* FNV-1a: xor one byte, then multiply by the 64-bit FNV prime. */
    for (int i = 0; i < 4; i++) *hash = (*hash ^ ((uint32_t)id >> 8 * i & 255)) * 0x100000001b3u;
}

/* The same seed and vocabulary give the same prompt. */
int32_t *bench_ids(const struct bench_run *b, size_t n)
{
    uint64_t random = b->seed;
    int32_t *ids = out_alloc((n + 1) * sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(bench_random(&random) % b->placement.info.vocab);
    return ids;
}

/* Order for qsort. */
static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, size_t n)
{
    if (!n) return 0;
    qsort(v, n, sizeof *v, compare_double);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Stop tokens are ignored, so that random weights cannot end a measurement early. The session is cancelled by a signal. */
segue_status bench_session(struct bench_run *b, const segue_plan *plan, const int32_t *ids, size_t n,
                           size_t context, segue_session **out, segue_error *err)
{
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    greedy.ignore_stops = 1;
    opts.sampling = &greedy;
    opts.context = context;
    opts.plan = plan;
    opts.intervals = b->intervals;
    opts.adapters = b->placement.adapters;
    opts.adapters_n = b->placement.adapters_n;
    *out = NULL;
    segue_status st = segue_session_open(out, b->placement.engine, &opts, err);
    if (st) return st;
    interrupt_watch(*out);
    return segue_session_append(*out, ids, n, err);
}

/* The first token includes the prefill of the prompt and the hand-off. */
segue_status bench_answer(segue_session *s, size_t n, struct bench_answer *out, segue_error *err)
{
    segue_status st = SEGUE_OK;
    uint64_t start_ns = out_now_ns(), first = start_ns, last = start_ns;
    double *each = out_alloc(n * sizeof *each);
    for (size_t i = 0; i < n && st >= 0; i++) {
        st = segue_session_next(s, &out->ids[i], err);
        uint64_t now = out_now_ns();
        /* Time between two tokens, so that sampling and bookkeeping are included. */
        each[i] = (double)(now - last);
        last = now;
        /* Counters after the first token separate prefill from decode. */
        if (i) continue;
        first = now;
        out->at_first = SEGUE_INIT(segue_stats);
        if (st >= 0) st = segue_session_stats_get(s, &out->at_first, err);
    }
    out->first_ns = first - start_ns;
    out->rest_ns = last - first;
    out->token_ns = n > 1 ? bench_median(each + 1, n - 1) : 0;
    free(each);
    out->at_end = SEGUE_INIT(segue_stats);
    if (st >= 0) st = segue_session_stats_get(s, &out->at_end, err);
    return st < 0 ? st : SEGUE_OK;
}

uint64_t bench_hash(const int32_t *ids, size_t n)
{
    uint64_t hash = BENCH_HASH_INIT;
    for (size_t i = 0; i < n; i++) bench_hash_add(&hash, ids[i]);
    return hash;
}

void bench_close_session(segue_session *s)
{
    if (!s) return;
    interrupt_unwatch(s);
    segue_session_close(s);
}

/* Two tokens are the minimum, because the last prompt token is computed by the decode unit. */
segue_status bench_each_prompt(struct bench_run *b, size_t default_tokens,
                               segue_status (*measure)(struct bench_run *b, size_t prompt, segue_error *err), segue_error *err)
{
    size_t n;
    long long *prompts = args_count_list(&b->args, "prompt", &n);
    segue_status st = n ? SEGUE_OK : measure(b, default_tokens, err);
    for (size_t i = 0; i < n && !st; i++) st = measure(b, prompts[i] > 2 ? (size_t)prompts[i] : 2, err);
    free(prompts);
    return st;
}
