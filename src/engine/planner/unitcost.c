/* unitcost.c: see unitcost.h. SPDX-License-Identifier: MIT */
#include "engine/planner/unitcost.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

const double sg_rows_of[SG_ROWS_N] = {16, 64, 256, 512};

/* Depth from which steps have a factor of their own, and the limits of the prefill factors. */
#define DEEP 2048
static const double prefill_limits[SG_REAL_PREFILL - 1] = {32, 128, 512};

static void copy_name(char *to, size_t cap, const char *from)
{
    size_t n = strlen(from);
    if (n >= cap) n = cap - 1;
    memcpy(to, from, n);
    to[n] = 0;
}

struct sg_unit_cost *sg_unit_cost_of(struct sg_unit_costs *c, const char *spec, int add)
{
    for (size_t i = 0; i < c->units_n; i++)
        if (!strcmp(c->units[i].spec, spec)) return &c->units[i];
    if (!add || c->units_n == SG_UNITS_MAX || strlen(spec) >= sizeof c->units[0].spec) return NULL;
    struct sg_unit_cost *u = &c->units[c->units_n++];
    *u = (struct sg_unit_cost){.step_w = -1, .prefill_w = -1, .error_share = .15};
    copy_name(u->spec, sizeof u->spec, spec);
    return u;
}

struct sg_link_cost *sg_link_cost_of(struct sg_unit_costs *c, const char *from, const char *to, int add)
{
    for (size_t i = 0; i < c->links_n; i++)
        if (!strcmp(c->links[i].from, from) && !strcmp(c->links[i].to, to)) return &c->links[i];
    if (!add || c->links_n == SG_LINKS_MAX || strlen(from) > 63 || strlen(to) > 63) return NULL;
    struct sg_link_cost *l = &c->links[c->links_n++];
    *l = (struct sg_link_cost){0};
    copy_name(l->from, sizeof l->from, from);
    copy_name(l->to, sizeof l->to, to);
    return l;
}

struct sg_real_factor *sg_real_factor_of(struct sg_unit_costs *c, const char *unit, const char *model, int add)
{
    for (size_t i = 0; i < c->reals_n; i++)
        if (!strcmp(c->reals[i].unit, unit) && !strcmp(c->reals[i].model, model)) return &c->reals[i];
    if (!add || strlen(unit) > 63 || strlen(model) > 39) return NULL;
    /* The oldest model makes space. */
    if (c->reals_n == SG_REALS_MAX) memmove(c->reals, c->reals + 1, --c->reals_n * sizeof *c->reals);
    struct sg_real_factor *r = &c->reals[c->reals_n++];
    *r = (struct sg_real_factor){0};
    copy_name(r->unit, sizeof r->unit, unit);
    copy_name(r->model, sizeof r->model, model);
    return r;
}

int sg_class_of(double bytes, int unpacked)
{
    return unpacked ? SG_CLASS_SUPER : bytes >= 1.5 ? SG_CLASS_WIDE : bytes >= .8 ? SG_CLASS_BYTE : SG_CLASS_NIBBLE;
}

segue_status sg_model_cost_shape(struct sg_model_cost *out, const struct sg_shape *shape, const char *storage, segue_error *err)
{
    int unpacked;
    double bytes = sg_storage_bytes(storage, &unpacked);
    if (bytes <= 0)
        return sg_fail(err, SEGUE_EARG, "storage: %.40s: not known; write bf16, q8_0, q4_0, q4_k_m or the like", storage);
    *out = (struct sg_model_cost){.shape = *shape, .body_bytes = shape->body * bytes, .head_bytes = shape->head * bytes};
    out->kv_bytes = 2 * shape->kv;
    out->state_bytes = 4 * (shape->state + shape->conv);
    out->file_bytes = out->body_bytes + out->head_bytes;
    /* Every K element meets as many queries as heads share it; 4 is usual. */
    out->attend = 2 * shape->kv * 4;
    out->class = sg_class_of(bytes, unpacked);
    copy_name(out->key, sizeof out->key, shape->name);
    return SEGUE_OK;
}

/* A factor of real runs at bin i of [from, to): the nearest bin that has one; 1: none. */
static double real_factor(const struct sg_real_factor *r, int i, int from, int to)
{
    for (int d = 0; r && d < SG_REAL_N; d++)
        for (int side = -1; side <= 1; side += 2) {
            int k = i + side * d;
            if (k >= from && k < to && r->factor[k] > 0) return r->factor[k];
        }
    return 1;
}

static const struct sg_real_factor *real_of(const struct sg_unit_costs *c, const char *unit, const char *model)
{
    for (size_t i = 0; c && i < c->reals_n; i++)
        if (!strcmp(c->reals[i].unit, unit) && !strcmp(c->reals[i].model, model)) return &c->reals[i];
    return NULL;
}

static int prefill_bin(double n)
{
    int i = 0;
    while (i < SG_REAL_PREFILL - 1 && n > prefill_limits[i]) i++;
    return i;
}

/* A class that was not measured takes the figure of the next wider one. */
static int class_of(const struct sg_unit_cost *u, int class)
{
    while (class > SG_CLASS_WIDE && u->gb_s[class] <= 0) class --;
    while (class < SG_CLASS_N - 1 && u->gb_s[class] <= 0) class ++;
    return class;
}

/* TFLOPS of products of `rows` rows: log-log between the measured numbers, constant outside of them. */
static double tflops_at(const struct sg_unit_cost *u, int class, double rows)
{
    const double *t = u->tflops[class];
    int i = 0;
    if (rows <= sg_rows_of[0]) return t[0];
    while (i < SG_ROWS_N - 2 && rows > sg_rows_of[i + 1]) i++;
    if (rows >= sg_rows_of[SG_ROWS_N - 1] || t[i] <= 0 || t[i + 1] <= 0) return t[SG_ROWS_N - 1] > 0 ? t[SG_ROWS_N - 1] : t[i];
    double share = log(rows / sg_rows_of[i]) / log(sg_rows_of[i + 1] / sg_rows_of[i]);
    return t[i] * pow(t[i + 1] / t[i], share);
}

static double per(double amount, double rate, double scale) { return rate > 0 ? amount / rate * scale : 0; }

double sg_step_ms(const struct sg_unit_costs *costs, const struct sg_unit_cost *u, const struct sg_model_cost *m, double depth,
                  double sequences, struct sg_cost_terms *terms)
{
    int class = class_of(u, m->class);
    struct sg_cost_terms t = {.overhead = u->step_ms + m->shape.layers * u->step_layer_ms};
    t.weights = per(m->body_bytes + m->head_bytes, u->gb_s[class], 1e-6);
    /* Several sequences share the read of the weights until products take longer. */
    if (sequences > 1)
        t.weights = fmax(t.weights, per(2 * (m->shape.body + m->shape.head) * sequences, tflops_at(u, class, sequences), 1e-9));
    t.kv = per(m->kv_bytes * depth * sequences, u->kv_gb_s, 1e-6);
    t.state = per(2 * m->state_bytes * sequences, u->gb_s[class], 1e-6);
    double factor = real_factor(real_of(costs, u->spec, m->key), SG_REAL_PREFILL + (depth >= DEEP), SG_REAL_PREFILL, SG_REAL_N);
    double sum = t.overhead + t.weights + t.kv + t.state;
    if (terms) *terms = t;
    return sum * factor;
}

double sg_prefill_ms(const struct sg_unit_costs *costs, const struct sg_unit_cost *u, const struct sg_model_cost *m, double n,
                     double depth, double chunk, struct sg_cost_terms *terms)
{
    int class = class_of(u, m->class);
    struct sg_cost_terms t = {0};
    double runs[2] = {floor(n / chunk), 1}, rows[2] = {chunk, n - floor(n / chunk) * chunk};
    for (int i = 0; i < 2; i++) {
        if (runs[i] < 1 || rows[i] < 1) continue;
        t.overhead += runs[i] * (u->run_ms + m->shape.layers * u->run_layer_ms);
        /* Fewer rows than the smallest measured number still read every weight. */
        t.products += runs[i] * fmax(per(2 * m->shape.body * rows[i], tflops_at(u, class, rows[i]), 1e-9),
                                     per(m->body_bytes, u->gb_s[class], 1e-6));
    }
    t.attention = per(m->attend * n * (depth + n / 2), u->attend_tflops, 1e-9);
    t.state = per(2 * m->state_bytes * n, u->state_gb_s, 1e-6);
    t.weights = per(m->head_bytes, u->gb_s[class], 1e-6);
    double factor = real_factor(real_of(costs, u->spec, m->key), prefill_bin(n), 0, SG_REAL_PREFILL);
    if (terms) *terms = t;
    return (t.overhead + t.products + t.attention + t.state + t.weights) * factor;
}

double sg_handoff_ms(const struct sg_unit_costs *costs, const char *from, const char *to, const struct sg_model_cost *m, double n)
{
    if (!strcmp(from, to)) return 0;
    for (size_t i = 0; i < costs->links_n; i++)
        if (!strcmp(costs->links[i].from, from) && !strcmp(costs->links[i].to, to))
            return costs->links[i].ms + per(m->kv_bytes * n + m->state_bytes, costs->links[i].gb_s, 1e-6);
    /* Not measured: a copy in memory at a few GB/s. */
    return .1 + (m->kv_bytes * n + m->state_bytes) / 4e6;
}

/* Half of the deviation in the logarithm, all of it at the first run. */
static void learn(struct sg_real_factor *r, int bin, double predicted, double measured)
{
    if (!r || !(predicted > 0) || !(measured > 0)) return;
    double ratio = measured / predicted;
    r->factor[bin] = r->factor[bin] > 0 ? r->factor[bin] * sqrt(ratio / r->factor[bin]) : ratio;
}

void sg_learn_prefill(struct sg_unit_costs *c, const char *unit, const struct sg_model_cost *m, double n, double depth,
                      double chunk, double measured_ms)
{
    struct sg_unit_cost *u = sg_unit_cost_of(c, unit, 0);
    if (u)
        learn(sg_real_factor_of(c, unit, m->key, 1), prefill_bin(n), sg_prefill_ms(NULL, u, m, n, depth, chunk, NULL),
              measured_ms);
}

void sg_learn_step(struct sg_unit_costs *c, const char *unit, const struct sg_model_cost *m, double depth, double measured_ms)
{
    struct sg_unit_cost *u = sg_unit_cost_of(c, unit, 0);
    if (u)
        learn(sg_real_factor_of(c, unit, m->key, 1), SG_REAL_PREFILL + (depth >= DEEP), sg_step_ms(NULL, u, m, depth, 1, NULL),
              measured_ms);
}
