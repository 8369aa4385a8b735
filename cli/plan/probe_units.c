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

enum { REPEATS = 5, STEPS = 24, NEAR = 1024, DEEP = 4096, SHORT = 16, FEW = 6, MANY = 24, POWER_STEPS = 400, POWER_ROWS = 2048 };

#define POWER_NS 800000000u
#define ENOUGH_NS 300000000u
#define LONG_NS 800000000u /* after so long, one run is enough */
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

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs that are as short as a time slice of the scheduler do not predict longer ones. */
#define SHORT_MS 20.0

static void add_spread(struct probe_spread *s, const double *runs, size_t n, double least, double tokens)
{
    if (least * tokens < SHORT_MS || n < 2) return;
    for (size_t i = 0; i < n && s->n < PROBE_SAMPLES; i++) s->of[s->n++] = log(runs[i] / least);
}

/* Shortest and median times of REPEATS runs after one that does not count; fewer if runs are so long that one tells enough. Costs
 * come from the shortest runs and from fast tokens: other work on the machine only adds to a time, and differences of two times
 * are small. */
static segue_status repeat_run(struct probe *p, const struct probe_case *c, struct probe_times *least, struct probe_times *median,
                               segue_error *err)
{
    double v[4][REPEATS];
    size_t n = 0;
    uint64_t start = out_now_ns();
    for (int i = -1; i < REPEATS; i++) {
        struct probe_times t;
        SG_TRY(probe_run(p, c, &t, err));
        bool enough = out_now_ns() - start > ENOUGH_NS;
        if (i < 0 && !enough) continue;
        v[0][n] = t.ttft_ms, v[1][n] = t.token_ms, v[2][n] = t.fast_token_ms, v[3][n++] = t.handoff_ms;
        if (enough && (n > 1 || out_now_ns() - start > LONG_NS)) break;
    }
    for (int k = 0; k < 4; k++) qsort(v[k], n, sizeof v[k][0], compare);
    *least = (struct probe_times){.ttft_ms = v[0][0], .token_ms = v[2][0], .handoff_ms = v[3][0]};
    *median = (struct probe_times){.ttft_ms = v[0][n / 2], .token_ms = v[1][n / 2], .handoff_ms = v[3][n / 2]};
    if (c->prefill != c->decode) return SEGUE_OK;
    int phase = c->output ? SG_PHASE_STEP : SG_PHASE_PREFILL;
    if (phase == SG_PHASE_STEP)
        add_spread(&p->spread[c->prefill][phase], v[1], n, least->token_ms, STEPS);
    else
        add_spread(&p->spread[c->prefill][phase], v[0], n, least->ttft_ms, 1);
    return SEGUE_OK;
}

static segue_status step_ms(struct probe *p, size_t unit, size_t depth, struct probe_times *median, double *ms,
                            segue_error *err)
{
    struct probe_times least, ignored;
    struct probe_case c = {.prefill = unit, .decode = unit, .depth = depth, .prompt = SHORT, .output = STEPS};
    SG_TRY(repeat_run(p, &c, &least, median ? median : &ignored, err));
    *ms = least.token_ms;
    return SEGUE_OK;
}

static segue_status prefill_ms(struct probe *p, size_t unit, size_t depth, size_t n, struct probe_times *median, double *ms,
                               segue_error *err)
{
    struct probe_times least, ignored;
    struct probe_case c = {.prefill = unit, .decode = unit, .depth = depth, .prompt = n};
    SG_TRY(repeat_run(p, &c, &least, median ? median : &ignored, err));
    *ms = least.ttft_ms;
    return SEGUE_OK;
}

/* What repeats say: how much longer than the shortest run the usual one takes, and how far 9 of 10 are from the usual one. */
static void use_spread(struct probe_spread *s, double *drift, double *error)
{
    if (!s->n) return;
    qsort(s->of, s->n, sizeof *s->of, compare);
    double usual = s->of[s->n / 2];
    for (size_t i = 0; i < s->n; i++) s->of[i] = fabs(s->of[i] - usual);
    qsort(s->of, s->n, sizeof *s->of, compare);
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

/* What a step and a prefill run cost beside their bytes and products. */
static segue_status measure_overhead(struct probe *p, const char *path, struct sg_unit_costs *costs, segue_error *err)
{
    struct probe_shape shape = {FEW, 128, 256, 4, 2, 256, 0, 0};
    double step[PROBE_UNITS][2], run[PROBE_UNITS][2];
    for (int k = 0; k < 2; k++) {
        shape.layers = k ? MANY : FEW;
        SG_TRY(open_random(p, path, &shape, SG_F32, err));
        for (size_t i = 0; i < p->units_n; i++) {
            SG_TRY(step_ms(p, i, 0, NULL, &step[i][k], err));
            SG_TRY(prefill_ms(p, i, 0, SHORT, NULL, &run[i][k], err));
        }
    }
    for (size_t i = 0; i < p->units_n; i++) {
        struct sg_unit_cost *u = sg_unit_cost_of(costs, p->specs[i], 1);
        if (!u) return out_fail(err, SEGUE_ELIMIT, "calibrate: %s: more than 16 units; name fewer", p->specs[i]);
        u->step_layer_ms = fmax(0, (step[i][1] - step[i][0]) / (MANY - FEW));
        u->step_ms = fmax(0, step[i][0] - FEW * u->step_layer_ms);
        u->run_layer_ms = fmax(0, (run[i][1] - run[i][0]) / (MANY - FEW));
        u->run_ms = fmax(0, run[i][0] - FEW * u->run_layer_ms);
        u->memory_bytes = (double)p->info[i].memory_bytes;
        u->simulated = p->info[i].simulated || !strcmp(p->info[i].kind, "ref");
        if (segue_unit_stream(p->units[i], 0, &u->stream_gb_s, err)) u->stream_gb_s = 0;
    }
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

/* Watts of one phase of the open model, and how many 10^9 weights and rows it multiplies per second. Counters of GPUs move every
 * 20 to 100 ms, so that single runs cannot be told apart. *watts stays negative without a meter. */
static segue_status load_power(struct probe *p, size_t unit, int phase, double *watts, double *rate, segue_error *err)
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
        SG_TRY(load_power(p, unit, phase, &watts, &rate, err));
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

/* Speeds of one class on one unit. *clear: the read of the weights takes longer than the overheads. */
static segue_status measure_class(struct probe *p, size_t unit, struct sg_unit_cost *u, int class, const struct narrow_step *few,
                                  bool *clear, segue_error *err)
{
    const struct sg_model_cost *m = &p->cost;
    double ms;
    SG_TRY(step_ms(p, unit, 0, NULL, &ms, err));
    *clear = ms > 2 * (u->step_ms + m->shape.layers * u->step_layer_ms);
    solve_step(u, class, few, m, ms);
    double head = m->head_bytes / u->gb_s[class] * 1e-6, run = u->run_ms + m->shape.layers * u->run_layer_ms;
    for (int r = 0; r < SG_ROWS_N; r++) {
        SG_TRY(prefill_ms(p, unit, 0, (size_t)sg_rows_of[r], NULL, &ms, err));
        u->tflops[class][r] = 2 * m->shape.body * sg_rows_of[r] / fmax(ms - run - head, ms / 10) * 1e-9;
    }
    sg_mend_speeds(u, class, m->body_bytes / m->shape.body);
    return SEGUE_OK;
}

/* Speeds of one class on all units. */
static segue_status measure_classes(struct probe *p, const char *path, struct sg_unit_costs *costs, int class, segue_error *err)
{
    bool done[PROBE_UNITS] = {false};
    struct narrow_step few[PROBE_UNITS];
    p->storage = class == SG_CLASS_FP8 ? "fp8" : NULL;
    SG_TRY(open_random(p, path, &narrow, class_storage[class], err));
    for (size_t i = 0; i < p->units_n; i++) {
        few[i] = (struct narrow_step){.layers = p->cost.shape.layers, .bytes = p->cost.body_bytes + p->cost.head_bytes};
        SG_TRY(step_ms(p, i, 0, NULL, &few[i].ms, err));
    }
    for (int k = 1; k < MODELS; k++) {
        bool all = true;
        for (size_t i = 0; i < p->units_n; i++) all &= done[i];
        if (all) break;
        SG_TRY(open_random(p, path, &models[k], class_storage[class], err));
        for (size_t i = 0; i < p->units_n; i++) {
            struct sg_unit_cost *u = sg_unit_cost_of(costs, p->specs[i], 1);
            if (done[i]) continue;
            SG_TRY(measure_class(p, i, u, class, &few[i], &done[i], err));
            if (class == SG_CLASS_NIBBLE) SG_TRY(measure_power(p, i, u, k, err));
        }
    }
    return SEGUE_OK;
}

/* Bytes of K and V per second of a step, from two depths, because a step at depth 0 has costs of its own. */
static segue_status measure_kv(struct probe *p, size_t unit, double *gb_s, double *near, segue_error *err)
{
    double far;
    SG_TRY(step_ms(p, unit, NEAR, NULL, near, err));
    SG_TRY(step_ms(p, unit, DEEP, NULL, &far, err));
    *gb_s = p->cost.kv_bytes * (DEEP - NEAR) / fmax(far - *near, far / 50) * 1e-6;
    return SEGUE_OK;
}

/* Attention of a prefill run, from two depths. */
static segue_status measure_attention(struct probe *p, size_t unit, double rows, double *tflops, segue_error *err)
{
    double near, far;
    SG_TRY(prefill_ms(p, unit, NEAR, (size_t)rows, NULL, &near, err));
    SG_TRY(prefill_ms(p, unit, DEEP, (size_t)rows, NULL, &far, err));
    *tflops = p->cost.attend * rows * (DEEP - NEAR) / fmax(far - near, far / 50) * 1e-9;
    return SEGUE_OK;
}

/* The storages that states of the units may have, and the speed of q8. */
static segue_status measure_q8(struct probe *p, const char *path, struct sg_unit_costs *costs, segue_error *err)
{
    const struct sg_kv_form_info *q8 = sg_kv_form_at(SG_KV_FORM_Q8), *f16 = sg_kv_form_at(SG_KV_FORM_F16);
    bool any = false;
    for (size_t i = 0; i < p->units_n; i++) {
        struct sg_unit_cost *u = sg_unit_cost_of(costs, p->specs[i], 1);
        uint32_t kv = p->units[i]->desc.kv;
        u->kv_forms = kv == SG_KV_F16_ONLY ? 1 << SG_KV_FORM_F16 : (1 << (kv == SG_KV_NOT_Q8 ? SG_KV_FORM_Q8 : SG_KV_FORM_N)) - 1;
        any |= kv == SG_KV_ANY;
    }
    if (!any) return SEGUE_OK;
    p->kv = SEGUE_KV_Q8;
    segue_status st = open_random(p, path, &models[0], class_storage[SG_CLASS_NIBBLE], err);
    for (size_t i = 0; i < p->units_n && !st; i++) {
        struct sg_unit_cost *u = sg_unit_cost_of(costs, p->specs[i], 1);
        double near, gb_s = 0;
        if (p->units[i]->desc.kv == SG_KV_ANY) st = measure_kv(p, i, &gb_s, &near, err);
        u->kv_q8_gb_s = gb_s * q8->bytes / f16->bytes; /* the model's sizes are those of f16 */
    }
    p->kv = SEGUE_KV_DEFAULT;
    return st;
}

/* Attention of a step beside the bytes, at depths on top of the few tokens of any step, and costs of prefill at depth. */
static segue_status measure_depth(struct probe *p, size_t unit, struct sg_unit_cost *u, segue_error *err)
{
    const struct sg_model_cost *m = &p->cost;
    double none, few, near;
    SG_TRY(step_ms(p, unit, 0, NULL, &none, err));
    SG_TRY(step_ms(p, unit, 256, NULL, &few, err));
    SG_TRY(measure_kv(p, unit, &u->kv_gb_s, &near, err));
    double each = m->kv_bytes / u->kv_gb_s * 1e-6; /* ms per position */
    u->attend_ms[1] = fmax(0, near - none - NEAR * each) / m->shape.layers;
    /* A smaller depth takes no longer: what other work added is taken off. */
    u->attend_ms[0] = fmin(u->attend_ms[1], fmax(0, few - none - 256 * each) / m->shape.layers);
    SG_TRY(measure_attention(p, unit, sg_rows_of[SG_ROWS_512], &u->attend_tflops, err));
    SG_TRY(measure_attention(p, unit, sg_rows_of[SG_ROWS_16], &u->attend_few_tflops, err));
    u->attend_tflops = fmax(u->attend_tflops, u->attend_few_tflops);
    u->load_gb_s = p->load_ms > 0 ? m->file_bytes * (double)p->units_n / p->load_ms * 1e-6 : 0;
    return SEGUE_OK;
}

/* Delta matrices of prefill: the time beyond products and overheads, of a small model with many of them. */
static segue_status measure_state(struct probe *p, const char *path, struct sg_unit_costs *costs, segue_error *err)
{
    const struct probe_shape shape = {3, 256, 256, 4, 2, 256, 16, 0};
    const double rows = sg_rows_of[SG_ROWS_256];
    SG_TRY(open_random(p, path, &shape, class_storage[SG_CLASS_NIBBLE], err));
    for (size_t i = 0; i < p->units_n; i++) {
        struct sg_unit_cost *u = sg_unit_cost_of(costs, p->specs[i], 1);
        double ms;
        SG_TRY(prefill_ms(p, i, 0, (size_t)rows, NULL, &ms, err));
        u->state_gb_s = 0;
        double beside = sg_prefill_ms(NULL, u, &p->cost, rows, 0, rows, NULL);
        u->state_gb_s = 2 * p->cost.state_bytes * rows / fmax(ms - beside, ms / 10) * 1e-6;
    }
    return SEGUE_OK;
}

/* Exposed time of a hand-off at two lengths, of the shortest runs as all costs. */
static segue_status measure_links(struct probe *p, struct sg_unit_costs *costs, segue_error *err)
{
    for (size_t a = 0; a < p->units_n; a++)
        for (size_t b = 0; b < p->units_n; b++) {
            double ms[2], sizes[2] = {32, 1024};
            if (a == b) continue;
            for (int i = 0; i < 2; i++) {
                struct probe_times t, usual;
                struct probe_case c = {.prefill = a, .decode = b, .prompt = (size_t)sizes[i], .output = 2};
                SG_TRY(repeat_run(p, &c, &t, &usual, err));
                ms[i] = t.handoff_ms;
            }
            struct sg_link_cost *l = sg_link_cost_of(costs, p->specs[a], p->specs[b], 1);
            if (!l) continue;
            double slope = fmax(0, ms[1] - ms[0]) / (sizes[1] - sizes[0]);
            l->ms = fmax(0, ms[0] - slope * sizes[0]);
            l->gb_s = slope > 0 ? p->cost.kv_bytes / slope * 1e-6 : 0;
        }
    return SEGUE_OK;
}

/* What needs no large weights: depths, hand-offs, and the smaller load of power. */
static segue_status measure_small(struct probe *p, const char *path, struct sg_unit_costs *costs, segue_error *err)
{
    SG_TRY(open_random(p, path, &models[0], class_storage[SG_CLASS_NIBBLE], err));
    for (size_t i = 0; i < p->units_n; i++) {
        struct sg_unit_cost *u = sg_unit_cost_of(costs, p->specs[i], 1);
        SG_TRY(measure_depth(p, i, u, err));
        SG_TRY(measure_power(p, i, u, 0, err));
    }
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
        struct sg_unit_cost *u = sg_unit_cost_of(costs, p->specs[i], 1);
        use_spread(&p->spread[i][SG_PHASE_PREFILL], &u->prefill_drift, &u->prefill_error);
        use_spread(&p->spread[i][SG_PHASE_STEP], &u->step_drift, &u->step_error);
        u->new_error = 0;
    }
    probe_folder_close(&f);
    if (!st) probe_machine(costs->machine);
    return st;
}

/* Twice, so that the spread also tells how the machine changes from one minute to the next; deep steps once, they take long. */
segue_status probe_real(struct probe *p, struct sg_unit_costs *costs, segue_error *err)
{
    static const size_t prompts[] = {8, 32, 128, 512, 1024}, depths[] = {0, 2048};
    const double chunk = 512, middle = SHORT + (STEPS - 1) / 2.0;
    for (size_t n = 0; n < 2 * p->units_n; n++) {
        struct probe_times usual;
        double ms, rate;
        size_t i = n % p->units_n, again = n / p->units_n;
        struct sg_real_factor *r = sg_real_factor_of(costs, p->specs[i], p->cost.key, 1);
        if (r && !again) memset(r->factor, 0, sizeof r->factor);
        for (int phase = 0; r && !again && phase < 2; phase++) {
            SG_TRY(load_power(p, i, phase, &r->watts[phase], &rate, err));
            r->watts[phase] = fmax(0, r->watts[phase]);
        }
        for (size_t k = 0; k < sizeof prompts / sizeof *prompts; k++) {
            SG_TRY(prefill_ms(p, i, 0, prompts[k], &usual, &ms, err));
            sg_learn_prefill(costs, p->specs[i], &p->cost, (double)prompts[k], 0, chunk, usual.ttft_ms, 1);
        }
        for (size_t k = 0; k < (again ? 1 : sizeof depths / sizeof *depths); k++) {
            SG_TRY(step_ms(p, i, depths[k], &usual, &ms, err));
            sg_learn_step(costs, p->specs[i], &p->cost, (double)depths[k] + middle, usual.token_ms, 1);
        }
    }
    return SEGUE_OK;
}
