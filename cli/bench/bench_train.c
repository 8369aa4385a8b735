/* bench_train.c: `segue bench --train`: one update of a layer of width 768 with 512 tokens, as a published figure for the Neural
 * Engine has it (9.3 ms on an M4), and of a layer of Qwen3-0.6B, by unit; then what a change of weights costs in three ways.
 * Elsewhere than on a Mac the engine is a software NPU: its rows are measured on this machine, and the time of the chip is
 * simulated beside them, for the products alone: norms, attention, weight gradients and the optimiser are computed by the host.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "ane/ane_swaps.h"
#include "plan/probe_model.h"
#include "segue_train.h"

enum { WIDTH = 768, FF = 2048, HEADS = 12, VOCAB = 32, TOKENS = 512 };
static const double PUBLISHED_RECOMPILE_MS = 4200, PUBLISHED_RELOAD_MS = 494;
static const char CHIP[] = "m4";

/* One layer whose update is measured, and how many of them the published figure has. */
struct train_shape {
    const char *name;
    struct probe_shape shape;
    size_t tokens;
    unsigned layers;
    double published_ms;
};
static const struct train_shape shapes[] = {
    {"one update of a layer", {1, WIDTH, FF, HEADS, HEADS, VOCAB, 0, 0}, TOKENS, 1, 9.3},
    {"one update of the 28 layers of Qwen3-0.6B", {1, 1024, 3072, 16, 8, VOCAB, 0, 128}, 256, 28, 412},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The layer on one unit. */
struct train_case {
    struct bench_run *b;
    const struct train_shape *s;
    segue_model *model;
    segue_unit *unit, *host; /* host NULL: the unit trains alone */
    segue_trainer *trainer;
    segue_unit_info info;
    int32_t tokens[TOKENS];
    uint64_t first_compiles, late_compiles;
    double *run_ms, *update_ms; /* [repeats] */
    segue_train_result sum;
};

static segue_status open_case(struct train_case *c, const char *spec, segue_error *err)
{
    segue_trainer_opts o = {.size = sizeof o, .kind = SEGUE_TRAIN_FULL, .sequence_tokens = c->s->tokens};
    uint64_t random = c->b->seed;
    for (size_t i = 0; i < TOKENS; i++) c->tokens[i] = (int32_t)(bench_random(&random) % VOCAB);
    segue_status st = placement_open_unit(&c->unit, spec, (unsigned)c->b->threads, err);
    if (!st) st = segue_unit_info_get(c->unit, &c->info, err);
    if (!st && strcmp(c->info.kind, "cpu") != 0 && strcmp(c->info.kind, "ref") != 0)
        st = placement_open_unit(&c->host, "cpu", (unsigned)c->b->threads, err);
    o.host = c->host;
    if (!st) st = segue_trainer_open(&c->trainer, c->model, c->unit, &o, err);
    return st ? st : segue_trainer_randomize(c->trainer, c->b->seed, 0, err);
}

static void close_case(struct train_case *c)
{
    segue_trainer_close(c->trainer);
    segue_unit_close(c->unit);
    segue_unit_close(c->host);
    free(c->run_ms);
    free(c->update_ms);
}

/* One micro-batch and its update. */
static segue_status step(struct train_case *c, segue_train_result *r, double *update_ms, segue_error *err)
{
    const size_t length = c->s->tokens;
    const segue_train_batch batch = {.size = sizeof batch, .tokens = c->tokens, .lengths = &length, .sequences_n = 1};
    const segue_adamw adamw = {.size = sizeof adamw, .learning_rate = 1e-4, .clip_norm = 1};
    segue_update_result u = {.size = sizeof u};
    *r = (segue_train_result){.size = sizeof *r};
    segue_status st = segue_trainer_run(c->trainer, &batch, r, err);
    uint64_t start = out_now_ns();
    if (!st) st = segue_trainer_update(c->trainer, &adamw, &u, err);
    *update_ms = (double)(out_now_ns() - start) / 1e6;
    return st;
}

/* The first update, which compiles, is not measured. */
static segue_status measure(struct train_case *c, segue_error *err)
{
    segue_train_result r;
    double unused;
    c->run_ms = out_alloc(c->b->repeats * sizeof *c->run_ms);
    c->update_ms = out_alloc(c->b->repeats * sizeof *c->update_ms);
    segue_status st = step(c, &r, &unused, err);
    c->first_compiles = r.compiles;
    for (size_t i = 0; i < c->b->repeats && !st; i++) {
        progress_step(&c->b->progress, i, c->b->repeats, false);
        st = step(c, &r, &c->update_ms[i], err);
        c->run_ms[i] = (double)r.ns / 1e6;
        c->late_compiles += r.compiles;
        c->sum = r; /* the same in every update, but for times */
    }
    return st;
}

static segue_status put_case(struct train_case *c, segue_error *err)
{
    segue_trainer_info info = {.size = sizeof info};
    segue_status st = segue_trainer_info_get(c->trainer, &info, err);
    if (st) return st;
    double n = c->s->layers, run = n * bench_median(c->run_ms, c->b->repeats);
    double update = n * bench_median(c->update_ms, c->b->repeats), tokens = (double)c->s->tokens;
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i}", "case", c->s->name, "unit", c->info.spec, "width",
                          (int)c->s->shape.width, "layers", (int)c->s->layers, "n_tokens", (int)c->s->tokens, "n_threads",
                          (int)c->b->threads);
    json_object_set_new(o, "simulated", json_boolean(c->info.simulated));
    json_object_set_new(o, "step_ms", out_real(run + update));
    json_object_set_new(o, "pass_ms", out_real(run));
    json_object_set_new(o, "update_ms", out_real(update));
    json_object_set_new(o, "tok_s", out_real(tokens / (run + update) * 1e3));
    json_object_set_new(o, "gflops", out_real(n * info.flops_per_token * tokens / run / 1e6));
    json_object_set_new(o, "published_ms", out_real(c->s->published_ms));
    json_object_set_new(o, "dispatches", json_integer((json_int_t)(c->s->layers * c->sum.dispatches)));
    json_object_set_new(o, "compiles", json_integer((json_int_t)c->first_compiles));
    json_object_set_new(o, "compiles_after_first_step", json_integer((json_int_t)c->late_compiles));
    json_object_set_new(o, "device_ms", out_real(n * (double)c->sum.device_ns / 1e6));
    double overlap = c->sum.device_ns ? (double)c->sum.overlap_ns / (double)c->sum.device_ns : 0;
    json_object_set_new(o, "overlap_ratio", out_real(overlap));
    json_object_set_new(o, "simulated_ms", out_real(n * (double)c->sum.simulated_ns / 1e6));
    const char *why = c->host ? "the unit measures its time" : "the unit computes everything itself";
    if (!c->sum.simulated_ns) out_null(o, "simulated_ms", why);
    return bench_out_row(c->b->out, o, err);
}

/* inputs: weights that were written, of the first shape on a unit that takes them. */
static segue_status run_unit(struct bench_run *b, const struct train_shape *s, segue_model *model, const char *spec,
                             struct ane_swap *inputs, segue_error *err)
{
    struct train_case c = {.b = b, .s = s, .model = model, .info = SEGUE_INIT(segue_unit_info)};
    segue_status st = open_case(&c, spec, err);
    if (!st) st = measure(&c, err);
    if (!st) st = put_case(&c, err);
    if (s == shapes && c.sum.weight_bytes)
        *inputs = (struct ane_swap){.bytes = c.sum.weight_bytes, .ms = (double)c.sum.weight_ns / 1e6};
    close_case(&c);
    return st;
}

static segue_status put_swap(struct bench_run *b, const char *name, const struct ane_swap *w, double published, const char *why,
                            segue_error *err)
{
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I}", "case", name, "unit", "ane:soft", "compiles", (json_int_t)w->compiles,
                          "loads", (json_int_t)w->loads, "weight_bytes", (json_int_t)w->bytes);
    json_object_set_new(o, "step_ms", out_real(w->ms));
    json_object_set_new(o, "simulated_ms", out_real(w->simulated_ms));
    if (published > 0) json_object_set_new(o, "published_ms", out_real(published));
    else out_null(o, "published_ms", why);
    return bench_out_row(b->out, o, err);
}

/* The eight products of a layer: forward and back of q, k, v; of the output; of gate and up; of down. */
static segue_status run_swaps(struct bench_run *b, struct ane_swap *inputs, segue_error *err)
{
    static const struct ane_swap_matrix list[] = {{WIDTH, 3 * WIDTH}, {WIDTH, WIDTH}, {WIDTH, 2 * FF}, {FF, WIDTH},
                                                 {3 * WIDTH, WIDTH}, {WIDTH, WIDTH}, {2 * FF, WIDTH}, {WIDTH, FF}};
    enum { N = sizeof list / sizeof *list };
    struct ane_swap w;
    segue_status st = ane_swap_recompile(list, N, TOKENS, CHIP, &w, err);
    if (!st) st = put_swap(b, "weights compiled again", &w, PUBLISHED_RECOMPILE_MS, NULL, err);
    if (!st) st = ane_swap_reload(list, N, TOKENS, CHIP, &w, err);
    if (!st) st = put_swap(b, "weights reloaded", &w, PUBLISHED_RELOAD_MS, NULL, err);
    if (!st && inputs->bytes) st = ane_swap_inputs(CHIP, inputs, err);
    if (!st && inputs->bytes) st = put_swap(b, "weights as inputs", inputs, 0, "no figure is published", err);
    return st;
}

static segue_status run_shape(struct bench_run *b, const struct train_shape *s, const char *spec, struct ane_swap *inputs,
                              segue_error *err)
{
    segue_model *model = NULL;
    struct probe_folder f;
    segue_status st = probe_folder_open(&f, "bench", err);
    if (!st) st = probe_model_write(f.path, &s->shape, SG_F16, err);
    if (!st) st = segue_model_open(&model, f.path, NULL, err);
    if (!st) st = run_unit(b, s, model, spec, inputs, err);
    segue_model_close(model);
    probe_folder_close(&f);
    return st;
}

int bench_train(struct bench_run *b)
{
    static const struct bench_column columns[] = {{"case", "case", 0},          {"unit", "unit", 0},
                                                  {"ms", "step_ms", 2},         {"dispatches", "dispatches", 0},
                                                  {"compiles", "compiles", 0},  {"simulated M4 ms", "simulated_ms", 2},
                                                  {"published ms", "published_ms", 1}, {"weight bytes", "weight_bytes", 0},
                                                  {NULL, NULL, 0}};
    static const char *const usual[] = {"cpu", "ane:soft,profile=m4"};
    const char *unit = args_text(&b->args, "unit");
    segue_error err;
    struct ane_swap inputs = {0};
    segue_status st = SEGUE_OK;
    b->out->columns = columns;
    for (size_t k = 0; k < SHAPES && !st; k++)
        for (size_t i = 0; i < (unit ? 1 : 2) && !st; i++) st = run_shape(b, &shapes[k], unit ? unit : usual[i], &inputs, &err);
    if (!st) st = run_swaps(b, &inputs, &err);
    if (!st)
        out_note("bench: \"simulated\" is the chip's time for products, compiles, loads and writing inputs by the cost model of "
                 "docs/ANE.md; the host's work is in \"ms\". One layer of Qwen3-0.6B is measured, times 28, without its head. "
                 "Published, of whole updates on an M4: 9.3 ms with attention, 412 ms with 256 tokens and the head; 4,200 and "
                 "494 ms for the 60 programs of a 110M model on an M4 Max.");
    progress_end(&b->progress);
    return st ? out_error(&err, EXIT_UNAVAILABLE) : EXIT_DONE;
}
