/* bench_cases.c: the default mode of `segue bench`: tokens per second in the fields of llama-bench. Two kinds of
 * rows: prefill of a prompt, and generation after a given depth. Loading, weight packing and warm-up are not
 * measured. Generation computes full logits, decodes greedily and feeds the token back.
 * The measurement uses the public API only, like any other program.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "commit.h"
#include "host/machine.h"
#include "run/bandwidth.h"
#include "run/report.h"
#include "term/interrupt.h"

/* One measured run of a case. */
struct bench_sample {
    uint64_t start_ns, ns; /* begin and duration of the measured part */
    uint64_t weight_bytes; /* weight bytes that the measured part read */
    uint64_t state_bytes;  /* memory of the states of all sessions */
    uint64_t layout_ops;   /* operations of the measured part that only move numbers; 0: not counted */
    double memory_bandwidth_gb_s;    /* memory bandwidth, measured after the run; 0: not measured */
};

/* Stop tokens are ignored, so that random weights cannot end a measurement early. */
static segue_status open_sessions(struct bench_run *b, segue_session **sessions, size_t context, segue_error *err)
{
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    greedy.ignore_stops = 1;
    opts.sampling = &greedy;
    opts.context = context;
    opts.plan = placement_plan(&b->placement);
    opts.adapters = b->placement.adapters;
    opts.adapters_n = b->placement.adapters_n;
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < b->sequences && !st; i++) {
        st = segue_session_open(&sessions[i], b->placement.engine, &opts, err);
        if (!st) interrupt_watch(sessions[i]);
    }
    return st;
}

/* Append n random ids to every session; the random sequence continues from one session to the next. */
static segue_status append_random(struct bench_run *b, segue_session **sessions, size_t n, uint64_t *random,
                         uint64_t *hash, segue_error *err)
{
    int32_t *ids = out_alloc((n + 1) * sizeof *ids);
    segue_status st = SEGUE_OK;
    for (size_t s = 0; s < b->sequences && !st; s++) {
        for (size_t i = 0; i < n; i++) {
            ids[i] = (int32_t)(bench_random(random) % b->placement.info.vocab);
            bench_hash_add(hash, ids[i]);
        }
        st = segue_session_append(sessions[s], ids, n, err);
    }
    free(ids);
    return st;
}

/* Sessions are prefilled one after the other, as by a server. */
static segue_status prefill_all(struct bench_run *b, segue_session **sessions, segue_error *err)
{
    segue_status st = SEGUE_OK;
    for (size_t s = 0; s < b->sequences && !st; s++) st = segue_session_prefill(sessions[s], 0, NULL, err);
    return st;
}

/* One token per session and round. The hash covers all generated ids. */
static segue_status generate_all(struct bench_run *b, segue_session **sessions, size_t n, uint64_t *hash,
                             segue_error *err)
{
    int32_t *tokens = out_alloc(b->sequences * sizeof *tokens);
    segue_error *each = out_alloc(b->sequences * sizeof *each);
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < n && st >= 0; i++) {
        if (b->sequences == 1)
            st = segue_session_next(sessions[0], tokens, err);
        else
            st = segue_session_step(sessions, b->sequences, tokens, each, err);
        for (size_t s = 0; s < b->sequences && st >= 0; s++) {
            if (b->sequences > 1 && each[s].status < 0) {
                st = each[s].status;
                *err = each[s];
            }
            bench_hash_add(hash, tokens[s]);
        }
    }
    free(each);
    free(tokens);
    return st < 0 ? st : SEGUE_OK;
}

/* Sums over all sessions; a weight read that served several sessions is divided among them. */
static segue_status sum_stats(const struct bench_run *b, segue_session **sessions, uint64_t *weights,
                           uint64_t *states, segue_error *err)
{
    segue_status st = SEGUE_OK;
    *weights = *states = 0;
    for (size_t s = 0; s < b->sequences && !st; s++) {
        segue_stats stats = SEGUE_INIT(segue_stats);
        st = segue_session_stats_get(sessions[s], &stats, err);
        *weights += stats.weight_bytes_read;
        *states += stats.state_bytes;
    }
    return st;
}

/* Operations that only moved numbers, over all sessions and phases so far. */
static uint64_t layout_ops_of(const struct bench_run *b, segue_session **sessions)
{
    uint64_t sum = 0;
    for (size_t s = 0; s < b->sequences; s++)
        for (size_t i = 0;; i++) {
            segue_use use = SEGUE_INIT(segue_use);
            if (segue_session_use_get(sessions[s], i, &use, NULL)) break;
            sum += use.layout_ops;
        }
    return sum;
}

/* One sample: prefill if prompt > 0, decode if generated > 0, both after `depth` unmeasured tokens. */
static segue_status run_sample(struct bench_run *b, size_t prompt, size_t generated, size_t depth,
                            struct bench_sample *out, uint64_t *hash, segue_error *err)
{
    segue_session **sessions = out_alloc(b->sequences * sizeof *sessions);
    uint64_t random = b->seed, start_ns = 0;
    uint64_t before = 0, after = 0;
    /* Generation starts from one prompt token, as in llama-bench. It is computed by the first decode step. */
    size_t first = generated ? 1 : 0;
    /* Everything up to the start time is setup and not measured. */
    segue_status st = open_sessions(b, sessions, depth + prompt + generated + first, err);
    if (!st && depth) st = append_random(b, sessions, depth, &random, hash, err);
    if (!st && depth) st = prefill_all(b, sessions, err);
    if (!st) st = append_random(b, sessions, prompt + first, &random, hash, err);
    if (!st) st = sum_stats(b, sessions, &before, &out->state_bytes, err);
    if (!st) out->layout_ops = layout_ops_of(b, sessions);
    start_ns = out_now_ns();
    if (!st) st = generated ? generate_all(b, sessions, generated, hash, err) : prefill_all(b, sessions, err);
    out->ns = out_now_ns() - start_ns;
    out->start_ns = start_ns;
    if (!st) st = sum_stats(b, sessions, &after, &out->state_bytes, err);
    out->weight_bytes = after - before;
    if (!st) out->layout_ops = layout_ops_of(b, sessions) - out->layout_ops;
    /* Sample the process memory while all sessions are open. */
    machine_peak_bytes();
    for (size_t s = 0; s < b->sequences; s++) {
        if (sessions[s]) interrupt_unwatch(sessions[s]);
        segue_session_close(sessions[s]);
    }
    free(sessions);
    return st;
}

/* Mean and sample standard deviation of v[n], as in llama-bench. */
static void mean_deviation(const double *v, size_t n, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += v[i];
    *mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += (v[i] - *mean) * (v[i] - *mean);
    *deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
}

/* tokens: number of tokens per sample. */
static void put_samples(json_t *o, const struct bench_sample *samples, size_t n, double tokens)
{
    double *ns = out_alloc(n * sizeof *ns), *ts = out_alloc(n * sizeof *ts), mean, deviation;
    json_t *ns_list = json_array(), *ts_list = json_array();
    for (size_t i = 0; i < n; i++) {
        ns[i] = (double)samples[i].ns;
        ts[i] = tokens * 1e9 / ns[i];
        json_array_append_new(ns_list, json_integer((json_int_t)samples[i].ns));
        json_array_append_new(ts_list, out_real(ts[i]));
    }
    mean_deviation(ns, n, &mean, &deviation);
    json_object_set_new(o, "avg_ns", json_integer((json_int_t)mean));
    json_object_set_new(o, "stddev_ns", json_integer((json_int_t)deviation));
    mean_deviation(ts, n, &mean, &deviation);
    json_object_set_new(o, "avg_ts", out_real(mean));
    json_object_set_new(o, "stddev_ts", out_real(deviation));
    json_object_set_new(o, "samples_ns", ns_list);
    json_object_set_new(o, "samples_ts", ts_list);
    free(ns);
    free(ts);
}

/* Fields of llama-bench that describe the build and the model, and the unit. */
static void put_model(json_t *o, const struct bench_run *b)
{
    const struct placement *p = &b->placement;
    char *type =
        out_printf("%s %s", p->info.family ? p->info.family : "", p->info.storage ? p->info.storage : "");
    json_object_set_new(o, "build_commit", json_string(SEGUE_COMMIT));
    json_object_set_new(o, "model_filename", out_string(p->path, strlen(p->path)));
    json_object_set_new(o, "model_type", json_string(type));
    json_object_set_new(o, "model_size", json_integer((json_int_t)p->info.weight_bytes));
    json_object_set_new(o, "model", report_model_json(p));
    json_object_set_new(o, "unit", report_unit_name(&p->unit_info[0]));
    const char *threads = strstr(p->unit_info[0].spec, "threads="); /* the thread count that the unit uses */
    json_object_set_new(o, "n_threads", json_integer(threads ? atoi(threads + 8) : (json_int_t)b->threads));
    free(type);
}

/* Medians over the samples. The utilization of a sample uses the mean of the bandwidth measured before and after it,
 * so that slow drift of the machine cancels. A prompt has one bandwidth measurement only. */
static void put_bandwidth(json_t *o, const struct bench_sample *samples, size_t n, bool generated)
{
    /* A prompt row was followed by one bandwidth measurement, after its last sample. */
    if (!generated) samples += n - 1, n = 1;
    double *rate = out_alloc(n * sizeof *rate), *stream = out_alloc(n * sizeof *stream),
           *share = out_alloc(n * sizeof *share);
    json_t *list = json_array();
    const char *reason = generated ? "the unit counted no bytes" : "counted in generation only";
    for (size_t i = 0; i < n; i++) {
        double after = samples[i].memory_bandwidth_gb_s, before = i ? samples[i - 1].memory_bandwidth_gb_s : after;
        rate[i] = generated ? (double)samples[i].weight_bytes / (double)samples[i].ns : 0;
        stream[i] = after;
        share[i] = after + before > 0 ? 2 * rate[i] / (after + before) : 0;
        json_array_append_new(list, out_real(stream[i]));
    }
    report_positive_or_null(o, "weight_read_gb_s", bench_median(rate, n), reason);
    report_positive_or_null(o, "memory_bandwidth_gb_s", bench_median(stream, n), "the unit cannot measure it");
    json_object_set_new(o, "samples_memory_bandwidth_gb_s", list);
    report_positive_or_null(o, "bandwidth_utilization", bench_median(share, n), reason);
    free(share);
    free(stream);
    free(rate);
}

/* Bytes of K and V that one step reads per position, in the storage of --kv. */
static double kv_bytes_per_token(struct bench_run *b)
{
    const char *kv = args_text(&b->args, "kv");
    double f16 = (double)b->placement.info.state_token_bytes;
    return kv && !strcmp(kv, "f32") ? 2 * f16 : kv && !strcmp(kv, "q8") ? f16 * 34 / 64 : f16;
}

/* depth_ratio: time of a token at this depth, divided by its time at depth 0 plus the time of reading K and V at 70 % of the
 * memory bandwidth. 1 or less: depth costs no more than its bytes. Needs a row of the same length at depth 0 before it. */
static void put_depth_ratio(json_t *o, struct bench_run *b, size_t generated, size_t depth)
{
    double tokens_s = json_number_value(json_object_get(o, "avg_ts")),
           gb_s = json_number_value(json_object_get(o, "memory_bandwidth_gb_s")), ratio = 0;
    double token_ns = tokens_s > 0 ? 1e9 * (double)b->sequences / tokens_s : 0;
    size_t i = 0;
    if (generated && !depth && b->depth0_n < sizeof b->depth0 / sizeof *b->depth0)
        b->depth0[b->depth0_n++] = (struct bench_depth0){generated, token_ns};
    while (i < b->depth0_n && b->depth0[i].tokens != generated) i++;
    if (generated && depth && i < b->depth0_n && gb_s > 0) {
        double bytes = ((double)depth + (double)generated / 2) * kv_bytes_per_token(b) * (double)b->sequences;
        ratio = token_ns / (b->depth0[i].token_ns + bytes / (0.7 * gb_s));
    }
    report_positive_or_null(o, "depth_ratio", ratio, "needs a decode row at depth 0 before it, and the memory bandwidth");
}

/* Memory bandwidth at the working set of one step of this sample: the weights that it reads and all states. */
static void measure_read_bandwidth(struct bench_run *b, size_t generated, struct bench_sample *s)
{
    segue_error ignored;
    uint64_t weights =
        generated && s->weight_bytes ? s->weight_bytes / generated : b->placement.info.weight_bytes;
    if (bandwidth_measure(b->placement.units[report_phase_unit(&b->placement, 1)], weights + s->state_bytes,
                     &s->memory_bandwidth_gb_s, &ignored))
        s->memory_bandwidth_gb_s = 0;
}

/* The energy of a row, from runs of its own after the timed samples: at least one second of measured parts, longer than the
 * update interval of the counters. The prefill of a depth is outside of the measured parts. */
static segue_status measure_energy(struct bench_run *b, size_t prompt, size_t generated, size_t depth, json_t **energy,
                                   segue_error *err)
{
    static const uint64_t MIN_NS = 1000000000;
    struct meter_phase phases[2] = {{.tokens = 0}};
    struct bench_sample *samples = NULL;
    uint64_t measured_ns = 0, hash = BENCH_HASH_INIT;
    size_t n = 0, cap = 0;
    segue_status st = SEGUE_OK;
    while (b->meter.name && !st && measured_ns < MIN_NS) {
        if (n == cap) samples = out_realloc(samples, (cap = cap ? 2 * cap : 16) * sizeof *samples);
        st = run_sample(b, prompt, generated, depth, &samples[n], &hash, err);
        if (!st) measured_ns += samples[n++].ns;
    }
    /* Runs that follow each other closely are one window: between two changes of a counter, joules cannot be told apart. */
    uint64_t end_ns = n ? samples[n - 1].start_ns + samples[n - 1].ns : 0;
    bool close = n && (double)measured_ns >= 0.8 * (double)(end_ns - samples[0].start_ns);
    if (!st && close)
        meter_add(&b->meter, samples[0].start_ns, end_ns, n * (prompt + generated) * b->sequences, &phases[generated != 0]);
    /* Otherwise each has to contain samples. The last window first: the meter waits once, until it has seen the end. */
    while (!st && !close && n-- > 0)
        meter_add(&b->meter, samples[n].start_ns, samples[n].start_ns + samples[n].ns, (prompt + generated) * b->sequences,
                  &phases[generated != 0]);
    free(samples);
    *energy = st ? NULL : meter_json(&b->meter, &phases[0], &phases[1], false);
    return st;
}

/* One row as a JSON object. Every row has the same fields, as CSV and SQL require. */
static json_t *result_row(struct bench_run *b, size_t prompt, size_t generated, size_t depth,
                   const struct bench_sample *samples, uint64_t hash)
{
    json_t *o = json_object();
    char text[32];
    time_t now = time(NULL);
    /* UTC in ISO 8601, as llama-bench prints it. */
    struct tm utc;
    put_model(o, b);
    json_object_set_new(o, "n_prompt", json_integer((json_int_t)prompt));
    json_object_set_new(o, "n_gen", json_integer((json_int_t)generated));
    json_object_set_new(o, "n_depth", json_integer((json_int_t)depth));
    json_object_set_new(o, "n_sequences", json_integer((json_int_t)b->sequences));
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_object_set_new(o, "test_time", json_string(text));
    put_samples(o, samples, b->repeats, (double)(prompt + generated) * (double)b->sequences);
    json_object_set_new(o, "load_ms", out_real((double)b->placement.load_ns / 1e6));
    json_object_set_new(o, "compile_ms", out_real((double)b->placement.compile_ns / 1e6));
    const struct bench_sample *last = &samples[b->repeats - 1];
    report_memory(o, &b->placement, last->state_bytes);
    put_bandwidth(o, samples, b->repeats, generated > 0);
    put_depth_ratio(o, b, generated, depth);
    if (last->layout_ops)
        json_object_set_new(o, "layout_ops", json_integer((json_int_t)last->layout_ops));
    else
        out_null(o, "layout_ops", "the unit does not count operations that only move numbers");
    json_object_set_new(o, "machine", machine_json(b->placement.unit_info, b->placement.units_n));
    json_object_set_new(o, "seed", json_integer((json_int_t)b->seed));
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    json_object_set_new(o, "ids_hash", json_string(text));
    return o;
}

/* The warm-up run touches all pages of weights and state that the samples use. */
static segue_status run_case(struct bench_run *b, size_t prompt, size_t generated, size_t depth, segue_error *err)
{
    struct bench_sample *samples = out_alloc(b->repeats * sizeof *samples), warm;
    uint64_t basis = BENCH_HASH_INIT, hash = basis;
    segue_status st = SEGUE_OK;
    if (!args_has(&b->args, "no-warmup"))
        /* Two generated tokens suffice: the first one compiles or captures, the second one replays. */
        st = run_sample(b, prompt, generated > 2 ? 2 : generated, depth, &warm, &hash, err);
    for (size_t i = 0; i < b->repeats && !st; i++) {
        hash = basis;
        st = run_sample(b, prompt, generated, depth, &samples[i], &hash, err);
        if (!st && generated) measure_read_bandwidth(b, generated, &samples[i]);
        progress_step(&b->progress, i + 1, b->repeats, false);
    }
    /* A prompt row has no utilization, so one bandwidth measurement after the last sample suffices: its buffer evicts TLB
     * entries, which would cost the next sample 0.7 ms. */
    if (!st && !generated) measure_read_bandwidth(b, generated, &samples[b->repeats - 1]);
    /* Energy is measured after the timed samples, in separate runs. */
    json_t *energy = NULL;
    if (!st) st = measure_energy(b, prompt, generated, depth, &energy, err);
    if (!st) {
        json_t *o = result_row(b, prompt, generated, depth, samples, hash);
        json_object_set_new(o, "energy", energy);
        st = bench_out_row(b->out, o, err);
    }
    free(samples);
    return st;
}

/* All cases of one thread count. */
static segue_status run_cases(struct bench_run *b, segue_error *err)
{
    static const long long default_p = 512, default_n = 128, default_d = 0;
    size_t prompts_n, tokens_n, depths_n;
    long long *prompts = args_count_list(&b->args, "prompt", &prompts_n),
              *tokens = args_count_list(&b->args, "tokens", &tokens_n);
    long long *depths = args_count_list(&b->args, "depth", &depths_n);
    const long long *p = prompts_n ? prompts : &default_p, *n = tokens_n ? tokens : &default_n,
                    *d = depths_n ? depths : &default_d;
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < (depths_n ? depths_n : 1) && !st; i++) {
        for (size_t k = 0; k < (prompts_n ? prompts_n : 1) && !st; k++)
            /* 0 omits the prefill row, or the decode row below. */
            if (p[k]) st = run_case(b, (size_t)p[k], 0, (size_t)d[i], err);
        for (size_t k = 0; k < (tokens_n ? tokens_n : 1) && !st; k++)
            if (n[k]) st = run_case(b, 0, (size_t)n[k], (size_t)d[i], err);
    }
    free(prompts);
    free(tokens);
    free(depths);
    return st;
}

/* Called once per thread count. */
int bench_cases(struct bench_run *b) { return bench_with_placement(b, run_cases); }
