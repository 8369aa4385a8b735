/* bench_predict.c: `segue bench --predict`: every case is predicted, then measured. A task is a model, a prompt, a depth and a
 * number of tokens; its cases are the placements, which are measured in turn, so that drift of the machine meets all of them.
 * After a task the costs learn from it. SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "host/find_model.h"
#include "host/folders.h"
#include "plan/predict.h"
#include "plan/probe_model.h"
#include "term/interrupt.h"

/* Cases of a task run in at least ROUNDS_MIN rounds; in more of them while the task is short, so that medians tell more. */
enum { ROUNDS_MIN = 3, ROUNDS = 9, UNITS = 4, INFOS = 16, PAIRS = UNITS * UNITS, ERRORS = 512 };
#define LIMIT_S 700 /* tasks that would end later are left out; --seconds */
#define TASK_S 8

/* pairs: every ordered pair of units; else units alone. */
struct predict_task {
    size_t prompt, depth, output;
    bool pairs;
};
static const struct predict_task full_tasks[] = {{16, 0, 32, true},     {256, 0, 32, true},   {96, 0, 48, true},
                                                 {512, 0, 64, true},    {2048, 0, 32, false}, {1024, 0, 32, false},
                                                 {64, 2048, 32, false}, {32, 0, 96, false}};
static const struct predict_task few_tasks[] = {{200, 0, 32, true},
                                                {48, 0, 64, false},
                                                {700, 0, 32, false},
                                                {128, 4096, 24, false}};
static const struct predict_task deep_tasks[] = {{16, 16000, 24, false}, {256, 8192, 16, false}};

struct predict {
    struct bench_run *b;
    struct probe p;
    struct sg_unit_costs *costs;
    const char *model;     /* for the rows */
    struct sg_options *options; /* the plan of the task */
    double errors[ERRORS];      /* |log(measured / predicted)| of all cases so far */
    double regrets[ERRORS];
    size_t errors_n, inside, regrets_n, left_out;
    uint64_t start_ns;
    char *calibration; /* the costs before the first task, as a chip file: with the laws of the rows, what was learned can be
                        * repeated by other rules */
};

/* One placement of a task. */
struct predict_case {
    struct probe_case c;
    struct sg_figure total, ttft, token; /* predicted */
    double law_ttft_ms, law_token_ms;    /* without what runs taught, and without the hand-off */
    bool chosen;
    struct probe_times runs[ROUNDS], median;
    size_t rounds;
};

static json_t *figure_json(struct sg_figure f) { return json_pack("{s:f,s:f,s:f}", "mid", f.mid, "lo", f.low, "hi", f.high); }

static segue_status put_row(struct predict *q, const struct predict_case *k, double stream, bool choice, segue_error *err)
{
    double measured = k->median.total_ms, error = fabs(log(measured / k->total.mid));
    bool inside = measured >= k->total.low && measured <= k->total.high;
    json_t *o = json_pack("{s:s,s:s,s:s}", "model", q->model, "prefill", q->p.specs[k->c.prefill], "decode",
                          q->p.specs[k->c.decode]);
    json_object_set_new(o, "storage", json_string(strchr(q->p.cost.key, '-') + 1));
    json_object_set_new(o, "n_prompt", json_integer((json_int_t)k->c.prompt));
    json_object_set_new(o, "n_depth", json_integer((json_int_t)k->c.depth));
    json_object_set_new(o, "n_gen", json_integer((json_int_t)k->c.output));
    json_object_set_new(o, "predicted", figure_json(k->total));
    json_object_set_new(o, "predicted_ttft_ms", figure_json(k->ttft));
    json_object_set_new(o, "predicted_token_ms", figure_json(k->token));
    json_object_set_new(o, "predicted_ms", out_real(k->total.mid));
    json_object_set_new(o, "law_ttft_ms", out_real(k->law_ttft_ms));
    json_object_set_new(o, "law_token_ms", out_real(k->law_token_ms));
    json_object_set_new(o, "ttft_ms", out_real(k->median.ttft_ms));
    json_object_set_new(o, "token_ms", out_real(k->median.token_ms));
    json_object_set_new(o, "handoff_ms", out_real(k->median.handoff_ms));
    json_object_set_new(o, "measured_ms", out_real(measured));
    json_object_set_new(o, "measured", out_real(measured));
    json_object_set_new(o, "rounds", json_integer((json_int_t)k->rounds));
    json_object_set_new(o, "error", out_real(measured / k->total.mid - 1));
    json_object_set_new(o, "inside", json_boolean(inside));
    json_object_set_new(o, "choice", json_boolean(choice));
    json_object_set_new(o, "memory_bandwidth_gb_s", out_real(stream));
    if (k->median.joules >= 0)
        json_object_set_new(o, "j", out_real(k->median.joules));
    else
        out_null(o, "j", "a unit has no meter");
    q->inside += inside;
    if (q->errors_n < ERRORS) q->errors[q->errors_n++] = error;
    return bench_out_row(q->b->out, o, err);
}

/* Median of one field over the rounds. */
static double median_of(const struct predict_case *k, size_t field)
{
    double v[ROUNDS];
    for (size_t r = 0; r < k->rounds; r++) memcpy(&v[r], (const char *)&k->runs[r] + field, sizeof v[r]);
    return bench_median(v, k->rounds);
}

static void take_medians(struct predict_case *k)
{
    k->median.total_ms = median_of(k, offsetof(struct probe_times, total_ms));
    k->median.ttft_ms = median_of(k, offsetof(struct probe_times, ttft_ms));
    k->median.token_ms = median_of(k, offsetof(struct probe_times, token_ms));
    k->median.handoff_ms = median_of(k, offsetof(struct probe_times, handoff_ms));
    k->median.joules = median_of(k, offsetof(struct probe_times, joules));
}

/* Rows of a task, its regret, and what is learned. Predictions of all cases were made before the first run. */
static segue_status finish_task(struct predict *q, struct predict_case *cases, size_t n, double stream, segue_error *err)
{
    double least = INFINITY;
    size_t choice = 0;
    for (size_t i = 0; i < n; i++) {
        take_medians(&cases[i]);
        least = fmin(least, cases[i].median.total_ms);
        if (cases[i].chosen) choice = i;
    }
    if (q->regrets_n < ERRORS && n > 1) q->regrets[q->regrets_n++] = cases[choice].median.total_ms / least - 1;
    struct probe_case c[PAIRS];
    struct probe_times t[PAIRS];
    for (size_t i = 0; i < n; i++) {
        SG_TRY(put_row(q, &cases[i], stream, i == choice, err));
        c[i] = cases[i].c, t[i] = cases[i].median;
    }
    if (n) predict_learn(q->costs, &q->p, c, t, n);
    return SEGUE_OK;
}

/* 1: the units compute on the CPU, whose first run of a prompt length takes no longer than others. */
static bool on_cpu(const struct predict *q, const struct probe_case *c)
{
    const char *specs[2] = {q->p.specs[c->prefill], q->p.specs[c->decode]};
    for (int i = 0; i < 2; i++)
        if (strncmp(specs[i], "cpu", 3) != 0 && strncmp(specs[i], "proc:cpu", 8) != 0) return false;
    return true;
}

/* The cases of a task with their predictions; returns their number. */
static size_t predict_cases(struct predict *q, const struct predict_task *t, struct predict_case *cases)
{
    size_t n = 0;
    predict_plan(q->options, q->costs, &q->p,
                 &(struct probe_case){.depth = t->depth, .prompt = t->prompt, .output = t->output}, t->pairs);
    for (size_t i = 0; i < q->p.units_n * q->p.units_n; i++) {
        size_t a = i / q->p.units_n, d = i % q->p.units_n;
        if (a != d && !t->pairs) continue;
        cases[n] = (struct predict_case){
            .c = {.prefill = a, .decode = d, .depth = t->depth, .prompt = t->prompt, .output = t->output}};
        const struct sg_option *o = predict_option(q->options, &q->p, &cases[n].c);
        if (!o) continue;
        cases[n].chosen = q->options->choice >= 0 && o == &q->options->list[q->options->choice];
        cases[n].total = o->total_ms, cases[n].ttft = o->ttft_ms, cases[n].token = o->token_ms;
        predict_laws(q->costs, &q->p, &cases[n].c, &cases[n].law_ttft_ms, &cases[n].law_token_ms);
        n++;
    }
    return n;
}

/* Round 0 does not count: a prompt length is new to a GPU only once, so that CPUs are left out of it. */
static segue_status run_round(struct predict *q, struct predict_case *cases, size_t n, int round, segue_error *err)
{
    struct probe_times warm;
    for (size_t i = 0; i < n; i++) {
        struct predict_case *k = &cases[i];
        if (interrupt_pending())
            return out_fail(err, SEGUE_ECANCELED, "bench: --predict: interrupted; the rows are those of the tasks before");
        if (!round && on_cpu(q, &k->c)) continue;
        SG_TRY(probe_run(&q->p, &k->c, round ? &k->runs[k->rounds++] : &warm, err));
        progress_step(&q->b->progress, q->errors_n + i + 1, q->errors_n + n + 1, false);
    }
    return SEGUE_OK;
}

/* Predicted time of the rounds that a task has at least, the tokens before its prompts included. Changes the plan. */
static double task_seconds(struct predict *q, const struct predict_task *t, const struct predict_case *cases, size_t n)
{
    double all_ms = 0;
    if (t->depth)
        predict_plan(q->options, q->costs, &q->p, &(struct probe_case){.prompt = t->depth, .output = 1}, t->pairs);
    for (size_t i = 0; i < n; i++) {
        const struct sg_option *o = t->depth ? predict_option(q->options, &q->p, &cases[i].c) : NULL;
        double ms = cases[i].total.mid + (o ? o->ttft_ms.mid : 0);
        all_ms += ms * (ROUNDS_MIN + !on_cpu(q, &cases[i].c));
    }
    return all_ms * 1e-3;
}

/* Seconds until --seconds have passed. */
static double seconds_left(const struct predict *q)
{
    return (double)args_number(&q->b->args, "seconds", LIMIT_S) - (double)(out_now_ns() - q->start_ns) * 1e-9;
}

static segue_status run_task(struct predict *q, const struct predict_task *t, segue_error *err)
{
    struct predict_case cases[PAIRS];
    double stream = 0, limit = fmin(TASK_S, seconds_left(q));
    uint64_t start = out_now_ns();
    size_t n = predict_cases(q, t, cases);
    if (task_seconds(q, t, cases, n) > seconds_left(q)) {
        q->left_out++;
        return SEGUE_OK;
    }
    if (segue_unit_stream(q->p.units[0], 0, &stream, err)) stream = 0;
    for (int r = 0; r <= ROUNDS; r++) {
        double seconds = (double)(out_now_ns() - start) * 1e-9;
        if (r > ROUNDS_MIN && seconds * (r + 1) / r > limit) break; /* another round would take too long */
        SG_TRY(run_round(q, cases, n, r, err));
    }
    return finish_task(q, cases, n, stream, err);
}

static segue_status run_tasks(struct predict *q, const char *name, const struct predict_task *tasks, size_t n, segue_error *err)
{
    q->model = name;
    for (size_t i = 0; i < n; i++) SG_TRY(run_task(q, &tasks[i], err));
    return SEGUE_OK;
}

/* A model of random weights of a shape that the calibration did not use. */
static segue_status run_random(struct predict *q, const char *name, const struct probe_shape *shape, enum sg_storage storage,
                               const struct predict_task *tasks, size_t n, segue_error *err)
{
    struct probe_folder f;
    SG_TRY(probe_folder_open(&f, "bench", err));
    segue_status st = probe_model_write(f.path, shape, storage, err);
    if (!st) st = probe_open_model(&q->p, f.path, NULL, err);
    if (!st) st = run_tasks(q, name, tasks, n, err);
    probe_folder_close(&f);
    return st;
}

/* The CPU with a smaller instruction set than it uses; where there is none in between, with one thread. */
static const char *masked_cpu(const segue_unit_info *infos, const char *const *specs, size_t n)
{
    for (size_t i = 0; i < INFOS; i++)
        for (size_t k = 0; k < n; k++)
            if (specs[k] == infos[i].spec && (strstr(infos[i].features, "avx512") || strstr(infos[i].features, "amx")))
                return "cpu:isa=avx2";
    return "cpu:threads=1";
}

/* The units that are used without being named, then the CPU masked, and in a separate process; or --unit, and it in a separate
 * process. */
static segue_status open_units(struct predict *q, segue_error *err)
{
    segue_unit_info infos[INFOS];
    const char *specs[UNITS];
    const char *unit = args_text(&q->b->args, "unit");
    if (unit) {
        char *own = out_printf("proc:%s", unit);
        segue_status st = probe_open_units(&q->p, (const char *const[]){unit, own}, strncmp(unit, "proc:", 5) ? 2 : 1, err);
        free(own);
        return st;
    }
    size_t n = probe_list_units(infos, INFOS, specs, UNITS - 2);
    specs[n] = masked_cpu(infos, specs, n);
    specs[n + 1] = "proc:cpu";
    return probe_open_units(&q->p, specs, n + 2, err);
}

static segue_status summary(struct predict *q, segue_error *err)
{
    double seconds = (double)(out_now_ns() - q->start_ns) * 1e-9;
    double median = 100 * (exp(bench_median(q->errors, q->errors_n)) - 1), regret = 100 * bench_median(q->regrets, q->regrets_n);
    double coverage = q->errors_n ? (double)q->inside / (double)q->errors_n : 0,
           worst = q->regrets_n ? q->regrets[q->regrets_n - 1] : 0;
    json_t *o = json_pack("{s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:s}", "cases", (json_int_t)q->errors_n, "coverage", coverage,
                          "median_error_percent", median, "regret_percent", regret, "worst_regret_percent", 100 * worst,
                          "seconds", seconds, "tasks_left_out", (json_int_t)q->left_out, "calibration",
                          q->calibration ? q->calibration : "");
    out_note("bench: %zu cases in %.0f s: 90 %% interval covers %.1f %%, median error %.1f %%, regret %.1f %% (median), %.1f %% "
             "(worst)",
             q->errors_n, seconds, 100 * coverage, median, regret, 100 * worst);
    return bench_out_row(q->b->out, o, err);
}

static void show(const char *line) { out_note("bench: calibrating: %s", line); }

static segue_status run_all(struct predict *q, segue_error *err)
{
    static const struct probe_shape random = {12, 768, 2048, 12, 4, 8192, 0, 0}, deep = {8, 512, 1536, 8, 2, 4096, 0, 0};
    char *path = NULL, *cache = folders_home("cache");
    segue_status st = open_units(q, err);
    if (!st) st = probe_units(&q->p, q->costs, show, err);
    if (!st) st = find_model(&q->b->args, &path, err);
    if (!st) st = probe_open_model(&q->p, path, cache, err);
    if (!st) st = probe_real(&q->p, q->costs, err);
    if (!st) q->calibration = predict_calibration(q->costs);
    if (!st) st = run_tasks(q, path, full_tasks, sizeof full_tasks / sizeof *full_tasks, err);
    if (!st) st = run_random(q, "random 12 x 768", &random, SG_Q8_0, few_tasks, sizeof few_tasks / sizeof *few_tasks, err);
    if (!st) st = run_random(q, "random 12 x 768", &random, SG_Q4_K, few_tasks, sizeof few_tasks / sizeof *few_tasks, err);
    if (!st) st = run_random(q, "random 12 x 768", &random, SG_BF16, few_tasks, sizeof few_tasks / sizeof *few_tasks, err);
    if (!st) st = run_random(q, "random 8 x 512", &deep, SG_Q4_0, deep_tasks, sizeof deep_tasks / sizeof *deep_tasks, err);
    segue_error lost;
    if (!st) st = summary(q, err);
    if (st == SEGUE_ECANCELED && q->errors_n && summary(q, &lost)) *err = lost;
    free(path);
    free(cache);
    return st;
}

int bench_predict(struct bench_run *b)
{
    static const struct bench_column columns[] = {{"model", "model", 0},
                                                  {"storage", "storage", 0},
                                                  {"prompt", "n_prompt", 0},
                                                  {"depth", "n_depth", 0},
                                                  {"tokens", "n_gen", 0},
                                                  {"prefill", "prefill", 0},
                                                  {"decode", "decode", 0},
                                                  {"predicted ms", "predicted_ms", 1},
                                                  {"measured ms", "measured_ms", 1},
                                                  {"inside", "inside", 0},
                                                  {NULL, NULL, 0}};
    struct predict *q = out_alloc(sizeof *q);
    segue_error err;
    q->b = b;
    q->costs = out_alloc(sizeof *q->costs);
    q->options = out_alloc(sizeof *q->options);
    q->start_ns = out_now_ns();
    b->out->columns = columns;
    segue_status st = run_all(q, &err);
    progress_end(&b->progress);
    probe_close(&q->p);
    free(q->costs);
    free(q->options);
    free(q->calibration);
    free(q);
    return st ? out_error(&err, EXIT_UNAVAILABLE) : EXIT_DONE;
}
