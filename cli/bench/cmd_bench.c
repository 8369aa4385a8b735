/* cmd_bench.c: `segue bench`: tokens per second, in llama-bench's fields. Two rows per case: the prompt
 * alone, and generation alone from a depth. Loading, packing and warm-up stand outside the measured time;
 * generation makes full logits, chooses greedily and feeds the choice back. SPDX-License-Identifier: MIT */
#include "commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "bench/bench.h"
#include "commit.h"
#include "term/flags.h"
#include "term/interrupt.h"
#include "task/machine.h"
#include "task/report.h"
#include "bench/roof.h"

struct sample {
    uint64_t ns;
    uint64_t weight_bytes, state_bytes; /* read by the measured part; held by all sessions */
    double stream_gb_s;                 /* measured right after; 0: could not be */
};

/* SplitMix64: a stream of ids that every program can make again. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static const uint64_t FNV_BASIS = 0xcbf29ce484222325u;

/* FNV-1a over the four bytes of an id, lowest first. */
static void fnv(uint64_t *hash, int32_t id)
{
    for (int i = 0; i < 4; i++) *hash = (*hash ^ ((uint32_t)id >> 8 * i & 255)) * 0x100000001b3u;
}

int32_t *bench_ids(const struct bench *b, size_t n)
{
    uint64_t random = b->seed;
    int32_t *ids = out_alloc((n + 1) * sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(next_random(&random) % b->place.info.vocab);
    return ids;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, size_t n)
{
    if (!n) return 0;
    qsort(v, n, sizeof *v, compare);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

segue_status bench_session(struct bench *b, const segue_plan *plan, const int32_t *ids, size_t n,
                           size_t context, segue_session **out, segue_error *err)
{
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    greedy.ignore_stops = 1;
    opts.sampling = &greedy;
    opts.context = context;
    opts.plan = plan;
    opts.adapters = b->place.adapters;
    opts.adapters_n = b->place.adapters_n;
    *out = NULL;
    segue_status st = segue_session_open(out, b->place.engine, &opts, err);
    if (st) return st;
    interrupt_watch(*out);
    return segue_session_append(*out, ids, n, err);
}

segue_status bench_answer(segue_session *s, size_t n, struct bench_answer *out, segue_error *err)
{
    segue_status st = SEGUE_OK;
    uint64_t begun = out_now_ns(), first = begun, last = begun;
    double *each = out_alloc(n * sizeof *each);
    for (size_t i = 0; i < n && st >= 0; i++) {
        st = segue_session_next(s, &out->ids[i], err);
        uint64_t now = out_now_ns();
        each[i] = (double)(now - last);
        last = now;
        if (i) continue;
        first = now;
        out->at_first = SEGUE_INIT(segue_stats);
        if (st >= 0) st = segue_session_stats_get(s, &out->at_first, err);
    }
    out->first_ns = first - begun;
    out->rest_ns = last - first;
    out->token_ns = n > 1 ? bench_median(each + 1, n - 1) : 0;
    free(each);
    out->at_end = SEGUE_INIT(segue_stats);
    if (st >= 0) st = segue_session_stats_get(s, &out->at_end, err);
    return st < 0 ? st : SEGUE_OK;
}

uint64_t bench_hash(const int32_t *ids, size_t n)
{
    uint64_t hash = FNV_BASIS;
    for (size_t i = 0; i < n; i++) fnv(&hash, ids[i]);
    return hash;
}

void bench_leave(segue_session *s)
{
    if (!s) return;
    interrupt_unwatch(s);
    segue_session_close(s);
}

int bench_at_place(struct bench *b, segue_status (*measure)(struct bench *b, segue_error *err))
{
    segue_error err;
    int code = place_open(&b->place, &b->args, 0);
    if (code) return code;
    code = meter_open(&b->meter, &b->args, &b->place);
    if (!code) {
        segue_status st = measure(b, &err);
        progress_end(&b->progress);
        if (st) code = out_error(&err, EXIT_NOT_HERE);
    }
    place_close(&b->place);
    return code;
}

segue_status bench_each_prompt(struct bench *b, size_t preset,
                               segue_status (*measure)(struct bench *b, size_t prompt, segue_error *err), segue_error *err)
{
    size_t n;
    long long *prompts = args_counts(&b->args, "prompt", &n);
    segue_status st = n ? SEGUE_OK : measure(b, preset, err);
    for (size_t i = 0; i < n && !st; i++) st = measure(b, prompts[i] > 2 ? (size_t)prompts[i] : 2, err);
    free(prompts);
    return st;
}

/* Stop tokens are ignored, or random weights would end a measurement early. */
static segue_status open_sessions(struct bench *b, segue_session **sessions, size_t context, segue_error *err)
{
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    greedy.ignore_stops = 1;
    opts.sampling = &greedy;
    opts.context = context;
    opts.plan = place_plan(&b->place);
    opts.adapters = b->place.adapters;
    opts.adapters_n = b->place.adapters_n;
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < b->sequences && !st; i++) {
        st = segue_session_open(&sessions[i], b->place.engine, &opts, err);
        if (!st) interrupt_watch(sessions[i]);
    }
    return st;
}

/* Queue n random ids on every session; the stream goes on from one session to the next. */
static segue_status feed(struct bench *b, segue_session **sessions, size_t n, uint64_t *random,
                         uint64_t *hash, segue_error *err)
{
    int32_t *ids = out_alloc((n + 1) * sizeof *ids);
    segue_status st = SEGUE_OK;
    for (size_t s = 0; s < b->sequences && !st; s++) {
        for (size_t i = 0; i < n; i++) {
            ids[i] = (int32_t)(next_random(random) % b->place.info.vocab);
            fnv(hash, ids[i]);
        }
        st = segue_session_append(sessions[s], ids, n, err);
    }
    free(ids);
    return st;
}

/* Sessions read one after the other, as a server would when they arrive together. */
static segue_status prefill(struct bench *b, segue_session **sessions, segue_error *err)
{
    segue_status st = SEGUE_OK;
    for (size_t s = 0; s < b->sequences && !st; s++) st = segue_session_prefill(sessions[s], 0, NULL, err);
    return st;
}

/* One token per session and round. Equal ids give an equal hash, whatever wrote them. */
static segue_status generate(struct bench *b, segue_session **sessions, size_t n, uint64_t *hash,
                             segue_error *err)
{
    int32_t *tokens = out_alloc(b->sequences * sizeof *tokens);
    segue_status *each = out_alloc(b->sequences * sizeof *each), st = SEGUE_OK;
    for (size_t i = 0; i < n && st >= 0; i++) {
        if (b->sequences == 1)
            st = segue_session_next(sessions[0], tokens, err);
        else
            st = segue_session_step(sessions, b->sequences, tokens, each, err);
        for (size_t s = 0; s < b->sequences && st >= 0; s++) {
            if (b->sequences > 1 && each[s] < 0) st = each[s];
            fnv(hash, tokens[s]);
        }
    }
    free(each);
    free(tokens);
    return st < 0 ? st : SEGUE_OK;
}

/* Sums over the sessions; a reading of weights that served several is shared out among them. */
static segue_status totals(const struct bench *b, segue_session **sessions, uint64_t *weights,
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

/* One sample of a case: prompt > 0 reads, generated > 0 writes; depth tokens come before, unmeasured. */
static segue_status measure(struct bench *b, size_t prompt, size_t generated, size_t depth,
                            struct sample *out, uint64_t *hash, segue_error *err)
{
    segue_session **sessions = out_alloc(b->sequences * sizeof *sessions);
    uint64_t random = b->seed, begun = 0;
    uint64_t before = 0, after = 0;
    /* Generation needs one token to start from; llama-bench feeds one, too. */
    size_t first = generated ? 1 : 0;
    segue_status st = open_sessions(b, sessions, depth + prompt + generated + first, err);
    if (!st && depth) st = feed(b, sessions, depth, &random, hash, err);
    if (!st && depth) st = prefill(b, sessions, err);
    if (!st) st = feed(b, sessions, prompt + first, &random, hash, err);
    if (!st) st = totals(b, sessions, &before, &out->state_bytes, err);
    begun = out_now_ns();
    if (!st) st = generated ? generate(b, sessions, generated, hash, err) : prefill(b, sessions, err);
    out->ns = out_now_ns() - begun;
    if (!st) st = totals(b, sessions, &after, &out->state_bytes, err);
    out->weight_bytes = after - before;
    machine_peak_bytes();
    for (size_t s = 0; s < b->sequences; s++) {
        if (sessions[s]) interrupt_unwatch(sessions[s]);
        segue_session_close(sessions[s]);
    }
    free(sessions);
    return st;
}

/* Mean and deviation of v[n] as llama-bench states them. */
static void mean_of(const double *v, size_t n, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += v[i];
    *mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += (v[i] - *mean) * (v[i] - *mean);
    *deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
}

/* tokens: how many one sample stands for. */
static void put_samples(json_t *o, const struct sample *samples, size_t n, double tokens)
{
    double *ns = out_alloc(n * sizeof *ns), *ts = out_alloc(n * sizeof *ts), mean, deviation;
    json_t *ns_list = json_array(), *ts_list = json_array();
    for (size_t i = 0; i < n; i++) {
        ns[i] = (double)samples[i].ns;
        ts[i] = tokens * 1e9 / ns[i];
        json_array_append_new(ns_list, json_integer((json_int_t)samples[i].ns));
        json_array_append_new(ts_list, out_real(ts[i]));
    }
    mean_of(ns, n, &mean, &deviation);
    json_object_set_new(o, "avg_ns", json_integer((json_int_t)mean));
    json_object_set_new(o, "stddev_ns", json_integer((json_int_t)deviation));
    mean_of(ts, n, &mean, &deviation);
    json_object_set_new(o, "avg_ts", out_real(mean));
    json_object_set_new(o, "stddev_ts", out_real(deviation));
    json_object_set_new(o, "samples_ns", ns_list);
    json_object_set_new(o, "samples_ts", ts_list);
    free(ns);
    free(ts);
}

static void put_model(json_t *o, const struct bench *b)
{
    const struct place *p = &b->place;
    char *type =
        out_printf("%s %s", p->info.family ? p->info.family : "", p->info.storage ? p->info.storage : "");
    json_object_set_new(o, "build_commit", json_string(SEGUE_COMMIT));
    json_object_set_new(o, "model_filename", out_string(p->path, strlen(p->path)));
    json_object_set_new(o, "model_type", json_string(type));
    json_object_set_new(o, "model_size", json_integer((json_int_t)p->info.weight_bytes));
    json_object_set_new(o, "model", report_model_json(p));
    json_object_set_new(o, "unit", report_unit_name(&p->unit_info[0]));
    const char *threads = strstr(p->unit_info[0].spec, "threads="); /* what the unit took */
    json_object_set_new(o, "n_threads", json_integer(threads ? atoi(threads + 8) : (json_int_t)b->threads));
    free(type);
}

/* Medians over the samples: the rate of weights, the stream beside it, and the share of each sample in the
 * streams measured right before and after it, which no drift of the machine can favour. Of a prompt the last one has a stream. */
static void put_roof(json_t *o, const struct sample *samples, size_t n, bool generated)
{
    if (!generated) samples += n - 1, n = 1;
    double *rate = out_alloc(n * sizeof *rate), *stream = out_alloc(n * sizeof *stream),
           *share = out_alloc(n * sizeof *share);
    json_t *list = json_array();
    const char *why = generated ? "the unit counted no bytes" : "counted in generation only";
    for (size_t i = 0; i < n; i++) {
        double beside = samples[i].stream_gb_s, before = i ? samples[i - 1].stream_gb_s : beside;
        rate[i] = generated ? (double)samples[i].weight_bytes / (double)samples[i].ns : 0;
        stream[i] = beside;
        share[i] = beside + before > 0 ? 2 * rate[i] / (beside + before) : 0;
        json_array_append_new(list, out_real(stream[i]));
    }
    report_positive(o, "gb_s", bench_median(rate, n), why);
    report_positive(o, "stream_gb_s", bench_median(stream, n), "the unit cannot measure it");
    json_object_set_new(o, "samples_stream_gb_s", list);
    report_positive(o, "roof_share", bench_median(share, n), why);
    free(share);
    free(stream);
    free(rate);
}

/* The stream at the working set of one step of this sample: the weights it reads and all states. */
static void stream_beside(struct bench *b, size_t generated, struct sample *s)
{
    segue_error ignored;
    uint64_t weights =
        generated && s->weight_bytes ? s->weight_bytes / generated : b->place.info.weight_bytes;
    if (roof_measure(b->place.units[report_phase_unit(&b->place, 1)], weights + s->state_bytes,
                     &s->stream_gb_s, &ignored))
        s->stream_gb_s = 0;
}

/* Joules a token over enough runs of a case to outlast the counter's steps; negative: not measured. These runs come after
 * the timed ones, and hold what stands between two runs as well. */
static segue_status energy_of(struct bench *b, size_t prompt, size_t generated, size_t depth, double *each, double *watts,
                              segue_error *err)
{
    static const uint64_t LEAST_NS = 1000000000;
    struct sample unused;
    segue_status st = SEGUE_OK;
    size_t runs = 0;
    double before = meter_read(&b->meter);
    uint64_t begun = out_now_ns(), hash = FNV_BASIS;
    *each = *watts = -1;
    if (before < 0 || depth) return SEGUE_OK; /* what stands before would be counted as well */
    for (; !st && out_now_ns() - begun < LEAST_NS; runs++)
        st = measure(b, prompt, generated, depth, &unused, &hash, err);
    double after = meter_read(&b->meter);
    if (st || after < before) return st;
    *watts = (after - before) * 1e9 / (double)(out_now_ns() - begun);
    *each = (after - before) / ((double)runs * (double)(prompt + generated) * (double)b->sequences);
    return SEGUE_OK;
}

/* One case as an object, all of its fields present in every row. */
static json_t *row(struct bench *b, size_t prompt, size_t generated, size_t depth,
                   const struct sample *samples, uint64_t hash)
{
    json_t *o = json_object();
    char text[32];
    time_t now = time(NULL);
    struct tm utc;
    put_model(o, b);
    json_object_set_new(o, "n_prompt", json_integer((json_int_t)prompt));
    json_object_set_new(o, "n_gen", json_integer((json_int_t)generated));
    json_object_set_new(o, "n_depth", json_integer((json_int_t)depth));
    json_object_set_new(o, "n_sequences", json_integer((json_int_t)b->sequences));
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_object_set_new(o, "test_time", json_string(text));
    put_samples(o, samples, b->repeats, (double)(prompt + generated) * (double)b->sequences);
    json_object_set_new(o, "load_ms", out_real((double)b->place.load_ns / 1e6));
    json_object_set_new(o, "compile_ms", out_real((double)b->place.compile_ns / 1e6));
    const struct sample *last = &samples[b->repeats - 1];
    report_memory(o, &b->place, last->state_bytes);
    put_roof(o, samples, b->repeats, generated > 0);
    json_object_set_new(o, "machine", machine_json());
    json_object_set_new(o, "seed", json_integer((json_int_t)b->seed));
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    json_object_set_new(o, "ids_hash", json_string(text));
    return o;
}

/* The unmeasured run before touches every page of weights and state that the measured ones will touch. */
static segue_status one_case(struct bench *b, size_t prompt, size_t generated, size_t depth, segue_error *err)
{
    struct sample *samples = out_alloc(b->repeats * sizeof *samples), warm;
    uint64_t basis = FNV_BASIS, hash = basis;
    segue_status st = SEGUE_OK;
    if (!args_has(&b->args, "no-warmup"))
        st = measure(b, prompt, generated > 2 ? 2 : generated, depth, &warm, &hash, err);
    for (size_t i = 0; i < b->repeats && !st; i++) {
        hash = basis;
        st = measure(b, prompt, generated, depth, &samples[i], &hash, err);
        if (!st && generated) stream_beside(b, generated, &samples[i]);
        progress_step(&b->progress, i + 1, b->repeats, false);
    }
    /* A prompt has no share in the stream; what that buffer leaves in the caches of addresses costs the next sample 0.7 ms. */
    if (!st && !generated) stream_beside(b, generated, &samples[b->repeats - 1]);
    double each, watts;
    if (!st) st = energy_of(b, prompt, generated, depth, &each, &watts, err);
    if (!st) {
        json_t *o = row(b, prompt, generated, depth, samples, hash);
        json_object_set_new(o, "energy", meter_json(&b->meter, generated ? -1 : each, generated ? each : -1, watts));
        st = bench_out_row(b->out, o, err);
    }
    free(samples);
    return st;
}

/* All cases of one thread count. */
static segue_status cases(struct bench *b, segue_error *err)
{
    static const long long preset_p = 512, preset_n = 128, preset_d = 0;
    size_t prompts_n, tokens_n, depths_n;
    long long *prompts = args_counts(&b->args, "prompt", &prompts_n),
              *tokens = args_counts(&b->args, "tokens", &tokens_n);
    long long *depths = args_counts(&b->args, "depth", &depths_n);
    const long long *p = prompts_n ? prompts : &preset_p, *n = tokens_n ? tokens : &preset_n,
                    *d = depths_n ? depths : &preset_d;
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < (depths_n ? depths_n : 1) && !st; i++) {
        for (size_t k = 0; k < (prompts_n ? prompts_n : 1) && !st; k++)
            if (p[k]) st = one_case(b, (size_t)p[k], 0, (size_t)d[i], err);
        for (size_t k = 0; k < (tokens_n ? tokens_n : 1) && !st; k++)
            if (n[k]) st = one_case(b, 0, (size_t)n[k], (size_t)d[i], err);
    }
    free(prompts);
    free(tokens);
    free(depths);
    return st;
}

/* A thread count is a property of the unit, so each needs units and an engine of its own. */
static int run(struct args *args)
{
    size_t threads_n;
    long long *threads = args_counts(args, "threads", &threads_n);
    const char *form = args_has(args, "json") ? "json" : args_text(args, "out");
    struct bench_out out;
    segue_error err;
    bench_out_begin(&out, form ? form : "md");
    int code = EXIT_DONE;
    for (size_t i = 0; i < (threads_n ? threads_n : 1) && !code; i++) {
        struct bench b = {.args = args_copy(args), .out = &out};
        char number[24];
        b.threads = threads_n ? (size_t)threads[i] : machine_cores();
        b.repeats = (size_t)args_number(args, "repeat", 5);
        b.sequences = (size_t)args_number(args, "sequences", 1);
        b.seed = (uint64_t)args_number(args, "seed", 1);
        snprintf(number, sizeof number, "%zu", b.threads);
        progress_begin(&b.progress, "bench: sample", false);
        if (threads_n) args_set(&b.args, "threads", number, &err);
        if (args_has(args, "pipelines")) {
            if (!args_has(args, "repeat")) b.repeats = 4;
            code = bench_pipelines(&b);
        } else if (args_has(args, "handoff")) {
            if (!args_has(args, "repeat")) b.repeats = 11;
            code = bench_handoff(&b);
        } else if (args_has(args, "cancel")) {
            code = bench_cancel(&b);
        } else if (args_has(args, "beside")) {
            code = bench_beside(&b);
        } else {
            code = bench_at_place(&b, cases);
        }
        args_free(&b.args);
    }
    if (!code && bench_out_end(&out, &err)) code = out_error(&err, EXIT_NOT_HERE);
    bench_out_free(&out);
    free(threads);
    return code;
}

static const struct arg_def own_defs[] = {
    {"prompt", 'p', ARG_COUNTS, 0, "N,..", "512", 0, 16777216, "prompt tokens; 0: no prompt row"},
    {"tokens", 'n', ARG_COUNTS, 0, "N,..", "128", 0, 16777216, "generated tokens; 0: no generation row"},
    {"depth", 'd', ARG_COUNTS, 0, "N,..", "0", 0, 16777216, "tokens that stand before, not measured"},
    {"repeat", 'r', ARG_COUNT, 0, "N", "5", 1, 10000, "samples of each row"},
    {"out", 'o', ARG_CHOICE, 0, "md|csv|json|jsonl|sql", "md", 0, 0, "form of the output"},
    {"sequences", 0, ARG_COUNT, 0, "N", "1", 1, 256, "sequences at once"},
    {"seed", 0, ARG_COUNT, 0, "S", "1", 0, 0, "seed of the prompt's ids"},
    {"no-warmup", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "no unmeasured run before each row"},
    {"meter", 0, ARG_TEXT, ARG_MINOR, "nvml|none", "none", 0, 0, "joules a token, as the GPUs count them"},
    {"unit", 0, ARG_TEXT, 0, "U", "the fastest real unit", 0, 0, "the unit (see segue units)"},
    {"threads", 't', ARG_COUNTS, 0, "N,..", "all cores", 1, 4096, "threads of cpu units"},
    {"prefill", 0, ARG_TEXT, ARG_MANY | ARG_MINOR, "U[@A-B]", NULL, 0, 0, "read the prompt on this unit"},
    {"decode", 0, ARG_TEXT, ARG_MANY | ARG_MINOR, "U[@A-B]", NULL, 0, 0, "write the answer on this unit"},
    {"handoff", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0,
     "the hand-off from --prefill U to --decode V (-p 410 -n 64 -r 11)"},
    {"pipelines", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "a row per pipeline and prompt (-p 6,133,410 -n 200 -r 4)"},
    {"pipeline", 0, ARG_TEXT, ARG_MANY | ARG_MINOR, "NAME[+U]", NULL, 0, 0,
     "a split by name: one:U, gpu, fixed, ane-seq, ane-batch; with --pipelines repeatable, else all of them"},
    {"cancel", 0, ARG_COUNT, ARG_MINOR, "N", NULL, 1, 10000, "how long N cancels take while -p 2000 tokens are read"},
    {"beside", 0, ARG_COUNT, ARG_MINOR, "N", NULL, 2, 1048576, "writing beside the reading of N tokens"},
    {"predict", 0, ARG_SWITCH, ARG_LATER | ARG_MINOR, NULL, NULL, 0, 0,
     "compare the planner's prediction with the measurement"},
    {"grid", 0, ARG_FILE, ARG_LATER | ARG_MINOR, "FILE", NULL, 0, 0, "cases of --predict"},
    ARG_END};
static const struct arg_group own = {"Measurement", own_defs};
static const struct arg_group *const groups[] = {&own, &flags_model, &flags_engine, &flags_output, NULL};
const struct command cmd_bench = {
    .name = "bench",
    .summary = "measure tokens per second",
    .groups = groups,
    .example = "segue bench -p 512 -n 64 -r 2 -o json",
    .run = run,
    .about = "Measures reading a prompt and writing an answer apart, in the "
             "fields of llama-bench. The prompt's ids are random "
             "by seed; generation makes full logits, chooses greedily and "
             "feeds the choice back; loading, packing and warm-up "
             "stand outside. ids_hash is the FNV-1a hash of all ids of the "
             "last sample, so that equal work can be shown. stream_gb_s is "
             "what reading memory reaches with the same threads at the size "
             "of the row's working set (weights of a step and states), "
             "measured after each sample (of a prompt once, after the last one); roof_share is the median share "
             "of a sample in the streams on both sides of it.",
};
