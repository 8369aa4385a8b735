/* probe_units.c: the numbers of a unit from models of random weights, see probe_units.h. Overheads come from two small models
 * with different numbers of layers, speeds from one larger model per class of weights. SPDX-License-Identifier: MIT */
#include "plan/probe_units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "engine/placement/units.h"
#include "engine/planner/learn.h"
#include "plan/probe_model.h"
#include "term/interrupt.h"
#include "term/out.h"

enum { STEPS = 24, NEAR = 1024, DEEP = 4096, SHORT = 16, FEW = 6, MANY = 24, POWER_STEPS = 400, POWER_ROWS = 2048 };

#define POWER_NS 800000000u
static const enum sg_storage class_storage[SG_CLASS_N] = {SG_BF16, SG_Q8_0, SG_Q4_0, SG_Q4_K, SG_BF16};
static const char *const class_names[SG_CLASS_N] = {"16-bit", "8-bit", "4-bit", "superblock", "fp8"};
/* Narrow layers, whose steps are mostly overhead of layers. */
static const struct probe_shape narrow = {24, 512, 1536, 8, 2, 4096, 0, 0};
/* Depths and hand-offs are measured with the first of these; weights and products with the second, which does not fit in the
 * caches of a CPU, or with the third, where overheads take longer than the read of the second. */
static const struct probe_shape models[] = {{4, 1024, 3072, 16, 4, 4096, 0, 0},
                                            {12, 1024, 3072, 16, 4, 4096, 0, 0},
                                            {16, 2048, 6144, 32, 8, 4096, 0, 0}};
enum { MODELS = sizeof models / sizeof *models };

/* Steps at a depth after few tokens, or a prefill of n tokens at a depth. */
static struct probe_sample step_at(size_t unit, size_t depth)
{
    return (struct probe_sample){.c = {.prefill = unit, .decode = unit, .depth = depth, .prompt = SHORT, .output = STEPS}};
}

static struct probe_sample prefill_at(size_t unit, size_t depth, double n)
{
    return (struct probe_sample){.c = {.prefill = unit, .decode = unit, .depth = depth, .prompt = (size_t)n}};
}

/* What repeats say: how much longer than the shortest run the usual one takes, and how far 9 of 10 are from the usual one. */
static void use_spread(struct probe_spread *s, double *drift, double *error)
{
    if (!s->n) return;
    qsort(s->of, s->n, sizeof *s->of, probe_compare);
    double usual = s->of[s->n / 2];
    for (size_t i = 0; i < s->n; i++) s->of[i] = fabs(s->of[i] - usual);
    qsort(s->of, s->n, sizeof *s->of, probe_compare);
    *drift = exp(usual);
    *error = fmax(s->n < 12 ? .15 : .04, expm1(s->of[(s->n - 1) * 9 / 10]));
    s->n = 0;
}

/* A model of random weights, opened on the units. */
static segue_status open_random(struct probe *p, const char *path, const struct probe_shape *shape, enum sg_storage storage,
                                segue_error *err)
{
    segue_status st = probe_model_write(path, shape, storage, err);
    return st ? st : probe_open_model(p, path, NULL, err);
}

/* The entry of a unit in the costs. */
static struct sg_unit_cost *entry(struct probe *p, struct sg_unit_costs *costs, size_t unit)
{
    return sg_unit_cost_of(costs, p->specs[unit], 1);
}

/* What a step and a prefill run cost beside their bytes and products. */
static segue_status measure_overhead(struct probe *p, const char *path, struct sg_unit_costs *costs, segue_error *err)
{
    struct probe_shape shape = {FEW, 128, 256, 4, 2, 256, 0, 0};
    struct probe_sample step[2][PROBE_UNITS], run[2][PROBE_UNITS];
    for (int k = 0; k < 2; k++) {
        struct probe_sample all[2 * PROBE_UNITS];
        shape.layers = k ? MANY : FEW;
        SG_TRY(open_random(p, path, &shape, SG_F32, err));
        for (size_t i = 0; i < p->units_n; i++) all[2 * i] = step_at(i, 0), all[2 * i + 1] = prefill_at(i, 0, SHORT);
        SG_TRY(probe_rounds(p, all, 2 * p->units_n, err));
        for (size_t i = 0; i < p->units_n; i++) step[k][i] = all[2 * i], run[k][i] = all[2 * i + 1];
    }
    for (size_t i = 0; i < p->units_n; i++) {
        struct sg_unit_cost *u = entry(p, costs, i);
        if (!u) return out_fail(err, SEGUE_ELIMIT, "calibrate: %s: more than 16 units; name fewer", p->specs[i]);
        u->step_layer_ms = fmax(0, (step[1][i].least - step[0][i].least) / (MANY - FEW));
        u->step_ms = fmax(0, step[0][i].least - FEW * u->step_layer_ms);
        u->run_layer_ms = fmax(0, (run[1][i].least - run[0][i].least) / (MANY - FEW));
        u->run_ms = fmax(0, run[0][i].least - FEW * u->run_layer_ms);
        u->memory_bytes = (double)p->info[i].memory_bytes;
        u->simulated = p->info[i].simulated || !strcmp(p->info[i].kind, "ref");
        if (segue_unit_stream(p->units[i], 0, &u->stream_gb_s, err)) u->stream_gb_s = 0;
    }
    return SEGUE_OK;
}

/* The time of each row in each layer beside products, from two models with different layers and widths: norms, rotations, scores
 * of attention, what small matrices leave of a speed. wide: of the open model. */
static void solve_rows(const struct probe *p, struct sg_unit_cost *u, const struct sg_model_cost *thin, double thin_ms,
                       double wide_ms)
{
    const double rows = sg_rows_of[SG_ROWS_256], few = thin->shape.layers, many = p->cost.shape.layers;
    double scale = thin->shape.body / p->cost.shape.body;
    double rest = (thin_ms - u->run_ms) - scale * (wide_ms - u->run_ms), layers = few - scale * many;
    u->row_layer_ms = fmax(0, rest / layers - u->run_layer_ms) / rows;
}

static segue_status measure_rows(struct probe *p, const char *path, struct sg_unit_costs *costs, segue_error *err)
{
    struct probe_sample thin[PROBE_UNITS], wide[PROBE_UNITS];
    for (size_t i = 0; i < p->units_n; i++) thin[i] = wide[i] = prefill_at(i, 0, sg_rows_of[SG_ROWS_256]);
    SG_TRY(open_random(p, path, &narrow, class_storage[SG_CLASS_NIBBLE], err));
    SG_TRY(probe_rounds(p, thin, p->units_n, err));
    struct sg_model_cost m = p->cost;
    SG_TRY(open_random(p, path, &models[0], class_storage[SG_CLASS_NIBBLE], err));
    SG_TRY(probe_rounds(p, wide, p->units_n, err));
    for (size_t i = 0; i < p->units_n; i++) solve_rows(p, entry(p, costs, i), &m, thin[i].least, wide[i].least);
    return SEGUE_OK;
}

/* Power of a unit that waits with a model in its memory. */
static segue_status measure_idle(struct probe *p, size_t unit, struct sg_unit_cost *u, segue_error *err)
{
    const struct timespec part = {.tv_nsec = 20000000};
    double before = probe_joules(p, unit, unit);
    if (before < 0) return SEGUE_OK;
    uint64_t start = out_now_ns();
    while (out_now_ns() - start < POWER_NS) {
        if (interrupt_pending()) return out_fail(err, SEGUE_ECANCELED, "calibrate: interrupted; run it again");
        nanosleep(&part, NULL);
    }
    double after = probe_joules(p, unit, unit);
    if (after >= before) u->idle_w = (after - before) / ((double)(out_now_ns() - start) * 1e-9);
    return SEGUE_OK;
}

/* Counters of GPUs move every 20 to 100 ms, so that single runs cannot be told apart. */
segue_status probe_power(struct probe *p, size_t unit, int phase, double *watts, double *rate, segue_error *err)
{
    const struct sg_shape *s = &p->cost.shape;
    struct probe_case c = {.prefill = unit, .decode = unit, .prompt = SHORT, .output = POWER_STEPS};
    if (phase == SG_PHASE_PREFILL) c.prompt = POWER_ROWS, c.output = 0;
    double weights = phase == SG_PHASE_PREFILL ? s->body * POWER_ROWS : (s->body + s->head) * POWER_STEPS;
    struct probe_times t;
    size_t runs = 0;
    double before = probe_joules(p, unit, unit);
    *watts = -1;
    if (before < 0) return SEGUE_OK;
    uint64_t start = out_now_ns();
    for (; out_now_ns() - start < POWER_NS; runs++) SG_TRY(probe_run(p, &c, &t, err));
    double seconds = (double)(out_now_ns() - start) * 1e-9, after = probe_joules(p, unit, unit);
    if (after > before) *watts = (after - before) / seconds;
    *rate = weights * (double)runs / seconds * 1e-9;
    return SEGUE_OK;
}

/* Two loads tell a base and joules per weight. k: index of the open model; the smallest one comes first. */
static segue_status measure_power(struct probe *p, size_t unit, struct sg_unit_cost *u, int k, segue_error *err)
{
    if (!k) SG_TRY(measure_idle(p, unit, u, err));
    for (int phase = 0; phase < 2; phase++) {
        double *base = phase == SG_PHASE_PREFILL ? &u->prefill_w : &u->step_w, watts, rate;
        double *each = phase == SG_PHASE_PREFILL ? &u->prefill_j_gweight : &u->step_j_gweight;
        struct probe_load *first = &p->load[unit][phase];
        SG_TRY(probe_power(p, unit, phase, &watts, &rate, err));
        if (watts < 0) continue;
        if (!k) *first = (struct probe_load){watts, rate};
        *each = rate > 1.2 * first->rate ? fmax(0, (watts - first->watts) / (rate - first->rate)) : 0;
        *base = watts - *each * rate;
    }
    return SEGUE_OK;
}

/* The step of a model of narrow layers. */
struct narrow_step {
    double ms, layers, bytes;
};

/* Overhead per layer and bytes per second from the steps of two models with different layers: kernels of different storages are
 * fused in different ways, so that each class has an overhead of its own. What is faster than a timer can tell is bounded by a
 * tenth of the time. */
static void solve_step(struct sg_unit_cost *u, int class, const struct narrow_step *few, const struct sg_model_cost *m, double ms)
{
    double layers = m->shape.layers, bytes = m->body_bytes + m->head_bytes, scale = layers / few->layers;
    double rest = (ms - u->step_ms) - scale * fmax(0, few->ms - u->step_ms), more = bytes - scale * few->bytes;
    u->gb_s[class] = more / fmax(rest, ms / 10) * 1e-6;
    double each = (ms - u->step_ms - bytes / u->gb_s[class] * 1e-6) / layers;
    u->layer_ms[class] = fmax(1e-6, each);
}

/* Speeds of one class on one unit, from a step (in place of a run of one row) and prefill runs. Returns whether the read of the
 * weights takes longer than the overheads. */
static bool solve_class(const struct sg_model_cost *m, struct sg_unit_cost *u, int class, const struct narrow_step *few,
                        const struct probe_sample *all)
{
    double ms = all[0].least;
    bool clear = ms > 2 * (u->step_ms + m->shape.layers * u->step_layer_ms);
    solve_step(u, class, few, m, ms);
    double head = m->head_bytes / u->gb_s[class] * 1e-6;
    for (int r = SG_ROWS_4; r < SG_ROWS_N; r++) {
        double run = u->run_ms + m->shape.layers * (u->run_layer_ms + sg_rows_of[r] * u->row_layer_ms);
        ms = all[r].least;
        u->tflops[class][r] = 2 * m->shape.body * sg_rows_of[r] / fmax(ms - run - head, ms / 10) * 1e-9;
    }
    sg_mend_speeds(u, class, m->body_bytes / m->shape.body);
    return clear;
}

/* Speeds of one class on the units that are not done, from the open model. k: its index. */
static segue_status measure_class(struct probe *p, struct sg_unit_costs *costs, int class, int k, const struct narrow_step *few,
                                  bool *done, segue_error *err)
{
    struct probe_sample all[PROBE_UNITS * SG_ROWS_N];
    size_t at[PROBE_UNITS], n = 0;
    for (size_t i = 0; i < p->units_n; i++) {
        if (done[i]) continue;
        at[i] = n;
        all[n++] = step_at(i, 0);
        for (int r = SG_ROWS_4; r < SG_ROWS_N; r++) all[n++] = prefill_at(i, 0, sg_rows_of[r]);
    }
    SG_TRY(probe_rounds(p, all, n, err));
    for (size_t i = 0; i < p->units_n; i++) {
        struct sg_unit_cost *u = entry(p, costs, i);
        if (done[i]) continue;
        done[i] = solve_class(&p->cost, u, class, &few[i], all + at[i]);
        if (class == SG_CLASS_NIBBLE) SG_TRY(measure_power(p, i, u, k, err));
    }
    return SEGUE_OK;
}

/* Speeds of one class on all units. */
static segue_status measure_classes(struct probe *p, const char *path, struct sg_unit_costs *costs, int class, segue_error *err)
{
    bool done[PROBE_UNITS] = {false};
    struct narrow_step few[PROBE_UNITS];
    struct probe_sample steps[PROBE_UNITS];
    p->storage = class == SG_CLASS_FP8 ? "fp8" : NULL;
    SG_TRY(open_random(p, path, &narrow, class_storage[class], err));
    for (size_t i = 0; i < p->units_n; i++) steps[i] = step_at(i, 0);
    SG_TRY(probe_rounds(p, steps, p->units_n, err));
    for (size_t i = 0; i < p->units_n; i++)
        few[i] = (struct narrow_step){steps[i].least, p->cost.shape.layers, p->cost.body_bytes + p->cost.head_bytes};
    for (int k = 1; k < MODELS; k++) {
        bool all = true;
        for (size_t i = 0; i < p->units_n; i++) all &= done[i];
        if (all) break;
        SG_TRY(open_random(p, path, &models[k], class_storage[class], err));
        SG_TRY(measure_class(p, costs, class, k, few, done, err));
    }
    return SEGUE_OK;
}

/* Bytes of K and V per second of a step, from two depths, because a step at depth 0 has costs of its own. */
static double kv_speed(const struct sg_model_cost *m, double near, double far)
{
    return m->kv_bytes * (DEEP - NEAR) / fmax(far - near, far / 50) * 1e-6;
}

/* Attention of a prefill run, from two depths. */
static double attention_speed(const struct sg_model_cost *m, double rows, double near, double far)
{
    return m->attend * rows * (DEEP - NEAR) / fmax(far - near, far / 50) * 1e-9;
}

/* The storages that states of the units may have, and the speed of q8. */
static segue_status measure_q8(struct probe *p, const char *path, struct sg_unit_costs *costs, segue_error *err)
{
    const struct sg_kv_form_info *q8 = sg_kv_form_at(SG_KV_FORM_Q8), *f16 = sg_kv_form_at(SG_KV_FORM_F16);
    bool any = false;
    for (size_t i = 0; i < p->units_n; i++) {
        struct sg_unit_cost *u = entry(p, costs, i);
        uint32_t kv = p->units[i]->desc.kv;
        u->kv_forms = kv == SG_KV_F16_ONLY ? 1 << SG_KV_FORM_F16 : (1 << (kv == SG_KV_NOT_Q8 ? SG_KV_FORM_Q8 : SG_KV_FORM_N)) - 1;
        any |= kv == SG_KV_ANY;
    }
    if (!any) return SEGUE_OK;
    p->kv = SEGUE_KV_Q8;
    struct probe_sample all[2 * PROBE_UNITS];
    size_t n = 0;
    for (size_t i = 0; i < p->units_n; i++)
        if (p->units[i]->desc.kv == SG_KV_ANY) all[n++] = step_at(i, NEAR), all[n++] = step_at(i, DEEP);
    segue_status st = open_random(p, path, &models[0], class_storage[SG_CLASS_NIBBLE], err);
    if (!st) st = probe_rounds(p, all, n, err);
    for (size_t i = 0; i < p->units_n && !st; i++) entry(p, costs, i)->kv_q8_gb_s = 0;
    /* The model's sizes are those of f16. */
    for (size_t k = 0; k < n && !st; k += 2)
        entry(p, costs, all[k].c.decode)->kv_q8_gb_s =
            kv_speed(&p->cost, all[k].least, all[k + 1].least) * q8->bytes / f16->bytes;
    p->kv = SEGUE_KV_DEFAULT;
    return st;
}

enum { NONE, LITTLE, STEP_NEAR, STEP_DEEP, MANY_NEAR, MANY_DEEP, FEW_NEAR, FEW_DEEP, DEPTHS };

/* Attention of a step beside the bytes, at depths on top of the few tokens of any step, and costs of prefill at depth. */
static void solve_depth(const struct probe *p, struct sg_unit_cost *u, const struct probe_sample *s)
{
    const struct sg_model_cost *m = &p->cost;
    u->kv_gb_s = kv_speed(m, s[STEP_NEAR].least, s[STEP_DEEP].least);
    double each = m->kv_bytes / u->kv_gb_s * 1e-6; /* ms per position */
    u->attend_ms[1] = fmax(0, s[STEP_NEAR].least - s[NONE].least - NEAR * each) / m->shape.layers;
    /* A smaller depth takes no longer, and few rows are no faster than many: what other work added is taken off. */
    u->attend_ms[0] = fmin(u->attend_ms[1], fmax(0, s[LITTLE].least - s[NONE].least - 256 * each) / m->shape.layers);
    u->attend_tflops = attention_speed(m, sg_rows_of[SG_ROWS_512], s[MANY_NEAR].least, s[MANY_DEEP].least);
    double few = attention_speed(m, sg_rows_of[SG_ROWS_16], s[FEW_NEAR].least, s[FEW_DEEP].least);
    u->attend_few_tflops = fmin(few, u->attend_tflops);
    u->load_gb_s = p->load_ms > 0 ? m->file_bytes * (double)p->units_n / p->load_ms * 1e-6 : 0;
}

static segue_status measure_depth(struct probe *p, struct sg_unit_costs *costs, segue_error *err)
{
    struct probe_sample all[PROBE_UNITS][DEPTHS];
    for (size_t i = 0; i < p->units_n; i++) {
        struct probe_sample *s = all[i];
        s[NONE] = step_at(i, 0), s[LITTLE] = step_at(i, 256), s[STEP_NEAR] = step_at(i, NEAR), s[STEP_DEEP] = step_at(i, DEEP);
        s[MANY_NEAR] = prefill_at(i, NEAR, sg_rows_of[SG_ROWS_512]);
        s[MANY_DEEP] = prefill_at(i, DEEP, sg_rows_of[SG_ROWS_512]);
        s[FEW_NEAR] = prefill_at(i, NEAR, sg_rows_of[SG_ROWS_16]), s[FEW_DEEP] = prefill_at(i, DEEP, sg_rows_of[SG_ROWS_16]);
    }
    SG_TRY(probe_rounds(p, all[0], p->units_n * DEPTHS, err));
    for (size_t i = 0; i < p->units_n; i++) solve_depth(p, entry(p, costs, i), all[i]);
    return SEGUE_OK;
}

/* Delta matrices of prefill: the time beyond products and overheads, of a small model with many of them. */
static segue_status measure_state(struct probe *p, const char *path, struct sg_unit_costs *costs, segue_error *err)
{
    const struct probe_shape shape = {3, 256, 256, 4, 2, 256, 16, 0};
    const double rows = sg_rows_of[SG_ROWS_256];
    struct probe_sample all[PROBE_UNITS];
    SG_TRY(open_random(p, path, &shape, class_storage[SG_CLASS_NIBBLE], err));
    for (size_t i = 0; i < p->units_n; i++) all[i] = prefill_at(i, 0, rows);
    SG_TRY(probe_rounds(p, all, p->units_n, err));
    for (size_t i = 0; i < p->units_n; i++) {
        struct sg_unit_cost *u = entry(p, costs, i);
        double ms = all[i].least;
        u->state_gb_s = 0;
        double beside = sg_prefill_ms(NULL, u, &p->cost, rows, 0, rows, NULL);
        u->state_gb_s = 2 * p->cost.state_bytes * rows / fmax(ms - beside, ms / 10) * 1e-6;
    }
    return SEGUE_OK;
}

/* Exposed time of a hand-off at two lengths, of the shortest runs as all costs. */
static segue_status measure_links(struct probe *p, struct sg_unit_costs *costs, segue_error *err)
{
    enum { LINKS = 2 * PROBE_UNITS * (PROBE_UNITS - 1) };
    const double sizes[2] = {32, 1024};
    struct probe_sample *all = out_alloc(LINKS * sizeof *all);
    size_t n = 0;
    for (size_t a = 0; a < p->units_n; a++)
        for (size_t b = 0; b < p->units_n; b++)
            for (int i = 0; i < 2 && a != b; i++)
                all[n++] = (struct probe_sample){.c = {.prefill = a, .decode = b, .prompt = (size_t)sizes[i], .output = 2}};
    segue_status st = probe_rounds(p, all, n, err);
    for (size_t k = 0; k < n && !st; k += 2) {
        struct sg_link_cost *l = sg_link_cost_of(costs, p->specs[all[k].c.prefill], p->specs[all[k].c.decode], 1);
        double ms[2] = {all[k].handoff, all[k + 1].handoff}, slope = fmax(0, ms[1] - ms[0]) / (sizes[1] - sizes[0]);
        if (!l) continue;
        l->ms = fmax(0, ms[0] - slope * sizes[0]);
        l->gb_s = slope > 0 ? p->cost.kv_bytes / slope * 1e-6 : 0;
    }
    free(all);
    return st;
}

/* What needs no large weights: depths, hand-offs, and the smaller load of power. */
static segue_status measure_small(struct probe *p, const char *path, struct sg_unit_costs *costs, segue_error *err)
{
    SG_TRY(measure_rows(p, path, costs, err));
    SG_TRY(measure_depth(p, costs, err));
    for (size_t i = 0; i < p->units_n; i++) SG_TRY(measure_power(p, i, entry(p, costs, i), 0, err));
    SG_TRY(measure_links(p, costs, err));
    return measure_q8(p, path, costs, err);
}

segue_status probe_units(struct probe *p, struct sg_unit_costs *costs, void (*show)(const char *line), segue_error *err)
{
    struct probe_folder f;
    SG_TRY(probe_folder_open(&f, "calibrate", err));
    if (show) show("overheads");
    segue_status st = measure_overhead(p, f.path, costs, err);
    if (!st && show) show("depths and hand-offs");
    if (!st) st = measure_small(p, f.path, costs, err);
    for (int class = 0; class < SG_CLASS_N && !st; class ++) {
        if (show) show(class_names[class]);
        st = measure_classes(p, f.path, costs, class, err);
    }
    p->storage = NULL;
    if (!st) st = measure_state(p, f.path, costs, err);
    for (size_t i = 0; i < p->units_n && !st; i++) {
        struct sg_unit_cost *u = entry(p, costs, i);
        use_spread(&p->spread[i][SG_PHASE_PREFILL], &u->prefill_drift, &u->prefill_error);
        use_spread(&p->spread[i][SG_PHASE_STEP], &u->step_drift, &u->step_error);
        u->new_error = 0;
    }
    probe_folder_close(&f);
    if (!st) probe_machine(costs->machine);
    return st;
}
