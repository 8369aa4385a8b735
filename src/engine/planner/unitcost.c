/* unitcost.c: see unitcost.h. SPDX-License-Identifier: MIT */
#include "engine/planner/unitcost.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

const double sg_rows_of[SG_ROWS_N] = {1, 4, 16, 64, 256, 512};

/* Interval of a model that never ran, until such runs were seen. */
#define NEW_SPREAD .3

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
    *u = (struct sg_unit_cost){.step_w = -1, .prefill_w = -1, .idle_w = -1, .error_share = .15};
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

int sg_class_of(double bytes, int unpacked, const char *storage)
{
    if (!strcmp(storage, "fp8")) return SG_CLASS_FP8;
    return unpacked ? SG_CLASS_SUPER : bytes >= 1.5 ? SG_CLASS_WIDE : bytes >= .8 ? SG_CLASS_BYTE : SG_CLASS_NIBBLE;
}

static segue_status unknown_storage(const char *storage, segue_error *err)
{
    return sg_fail(err, SEGUE_EARG, "storage: %.40s: not known; write bf16, fp8, q8_0, q4_0, q4_k_m or the like", storage);
}

segue_status sg_model_cost_shape(struct sg_model_cost *out, const struct sg_shape *shape, const char *storage, segue_error *err)
{
    int unpacked;
    double bytes = sg_storage_bytes(storage, &unpacked);
    if (bytes <= 0) return unknown_storage(storage, err);
    *out = (struct sg_model_cost){.shape = *shape, .body_bytes = shape->body * bytes, .head_bytes = shape->head * bytes};
    out->kv_bytes = 2 * shape->kv;
    out->state_bytes = 4 * (shape->state + shape->conv);
    out->file_bytes = out->body_bytes + out->head_bytes;
    /* Every K element meets as many queries as heads share it; 4 is usual. */
    out->attend = 2 * shape->kv * 4;
    out->class = sg_class_of(bytes, unpacked, storage);
    copy_name(out->key, sizeof out->key, shape->name);
    copy_name(out->storage, sizeof out->storage, storage);
    return SEGUE_OK;
}

segue_status sg_model_cost_as(struct sg_model_cost *out, const struct sg_model_cost *m, const char *storage, segue_error *err)
{
    int unpacked;
    double bytes = sg_storage_bytes(storage, &unpacked), before = m->body_bytes + m->head_bytes;
    if (bytes <= 0) return unknown_storage(storage, err);
    *out = *m;
    out->also = NULL;
    out->body_bytes = m->shape.body * bytes;
    out->head_bytes = m->shape.head * bytes;
    out->file_bytes = fmax(0, m->file_bytes - before) + out->body_bytes + out->head_bytes;
    if (!strcmp(storage, "fp8")) out->disk_bytes = m->disk_bytes > 0 ? m->disk_bytes : m->file_bytes;
    out->class = sg_class_of(bytes, unpacked, storage);
    copy_name(out->storage, sizeof out->storage, storage);
    /* What runs taught belongs to a shape in a storage: ID-STORAGE. */
    char *dash = strchr(out->key, '-');
    if (dash) copy_name(dash + 1, sizeof out->key - (size_t)(dash + 1 - out->key), storage);
    return SEGUE_OK;
}

/* q8 has one fp16 scale for 32 numbers. */
static const struct sg_kv_form_info kv_forms[SG_KV_FORM_N] = {{"f16", 2, "11 bits, the default", 0},
                                                              {"f32", 4, "24 bits, as computed", 0},
                                                              {"bf16", 2, "8 bits, rounded 8 times as coarsely as f16", 1},
                                                              {"q8", 2.125 / 2, "8 bits of the largest of 32 numbers", 1}};

const struct sg_kv_form_info *sg_kv_form_at(int form) { return form >= 0 && form < SG_KV_FORM_N ? &kv_forms[form] : NULL; }

int sg_kv_form_of(const char *name)
{
    for (int i = 0; i < SG_KV_FORM_N; i++)
        if (!strcmp(kv_forms[i].name, name)) return i;
    return -1;
}

int sg_unit_has_kv(const struct sg_unit_cost *u, int form) { return !(u->kv_forms > 0) || ((unsigned)u->kv_forms >> form & 1); }

void sg_model_cost_kv(struct sg_model_cost *out, const struct sg_model_cost *m, int form)
{
    *out = *m;
    out->also = NULL;
    out->kv = form;
    out->kv_bytes = m->kv_bytes * kv_forms[form].bytes / kv_forms[m->kv].bytes;
}

void sg_mend_speeds(struct sg_unit_cost *u, int class, double bytes_per_weight)
{
    double *t = u->tflops[class], one = 2 * u->gb_s[class] / bytes_per_weight * 1e-3;
    t[SG_ROWS_1] = one;
    for (int r = 1; r < SG_ROWS_N; r++) t[r] = fmax(t[r], t[r - 1]);
}

const struct sg_real_factor *sg_real_find(const struct sg_unit_costs *c, const char *unit, const char *model)
{
    for (size_t i = 0; c && i < c->reals_n; i++)
        if (!strcmp(c->reals[i].unit, unit) && !strcmp(c->reals[i].model, model)) return &c->reals[i];
    return NULL;
}

/* A class that was not measured takes the figure of the next wider one. */
static int class_of(const struct sg_unit_cost *u, int class)
{
    if (class == SG_CLASS_FP8 && u->gb_s[class] <= 0) class = SG_CLASS_BYTE;
    while (class > SG_CLASS_WIDE && u->gb_s[class] <= 0) class --;
    while (class < SG_CLASS_N - 1 && u->gb_s[class] <= 0) class ++;
    return class;
}

int sg_unit_complete(const struct sg_unit_cost *u, int class)
{
    class = class_of(u, class);
    double best = 0;
    for (int r = 0; r < SG_ROWS_N; r++) best = fmax(best, u->tflops[class][r]);
    return u->gb_s[class] > 0 && best > 0;
}

/* TFLOPS of products of `rows` rows: log-log between the numbers that were measured, constant outside of them. */
static double tflops_at(const struct sg_unit_cost *u, int class, double rows)
{
    const double *t = u->tflops[class];
    int low = -1, high = -1;
    for (int i = 0; i < SG_ROWS_N; i++) {
        if (t[i] <= 0) continue;
        if (sg_rows_of[i] <= rows) low = i;
        if (sg_rows_of[i] >= rows && high < 0) high = i;
    }
    if (low < 0 || high < 0 || low == high) return low >= 0 ? t[low] : high >= 0 ? t[high] : 0;
    double share = log(rows / sg_rows_of[low]) / log(sg_rows_of[high] / sg_rows_of[low]);
    return t[low] * pow(t[high] / t[low], share);
}

double sg_taught(const struct sg_unit_cost *u, const struct sg_real_factor *real, int phase, double x)
{
    double drift = phase == SG_PHASE_PREFILL ? u->prefill_drift : u->step_drift;
    return (drift > 0 ? drift : 1) * (real ? sg_real_at(real->factor, phase, x) : 1);
}

static double taught(const struct sg_unit_costs *c, const struct sg_unit_cost *u, const struct sg_model_cost *m, int phase,
                     double x)
{
    return c ? sg_taught(u, sg_real_find(c, u->spec, m->key), phase, x) : 1;
}

/* TFLOPS of attention of a prefill run: few rows share each read of K and V, and keep fewer threads busy. */
static double attend_tflops_at(const struct sg_unit_cost *u, double rows)
{
    const double few = sg_rows_of[SG_ROWS_16], many = sg_rows_of[SG_ROWS_512];
    if (!(u->attend_few_tflops > 0) || !(u->attend_tflops > 0)) return u->attend_tflops;
    double share = log(fmin(fmax(rows, few), many) / few) / log(many / few);
    return u->attend_few_tflops * pow(u->attend_tflops / u->attend_few_tflops, share);
}

/* Attention of a step in one layer at a depth, beside the bytes. */
static double attend_at(const struct sg_unit_cost *u, double depth)
{
    double near = u->attend_ms[0], far = u->attend_ms[1];
    if (depth < 256) return near * depth / 256;
    return near + (far - near) * fmin(1, (depth - 256) / (1024 - 256));
}

static double per(double amount, double rate, double scale) { return rate > 0 ? amount / rate * scale : 0; }

double sg_step_ms(const struct sg_unit_costs *costs, const struct sg_unit_cost *u, const struct sg_model_cost *m, double depth,
                  double sequences, struct sg_cost_terms *terms)
{
    int class = class_of(u, m->class);
    double layer_ms = u->layer_ms[class] > 0 ? u->layer_ms[class] : u->step_layer_ms;
    struct sg_cost_terms t = {.overhead = u->step_ms + m->shape.layers * layer_ms};
    t.weights = per(m->body_bytes + m->head_bytes, u->gb_s[class], 1e-6);
    /* Several sequences share the read of the weights until products take longer. */
    if (sequences > 1)
        t.weights = fmax(t.weights, per(2 * (m->shape.body + m->shape.head) * sequences, tflops_at(u, class, sequences), 1e-9));
    double kv_gb_s = m->kv == SG_KV_FORM_Q8 && u->kv_q8_gb_s > 0 ? u->kv_q8_gb_s : u->kv_gb_s;
    t.kv = per(m->kv_bytes * depth * sequences, kv_gb_s, 1e-6) + (m->shape.layers - m->shape.delta_layers) * attend_at(u, depth);
    t.state = per(2 * m->state_bytes * sequences, u->gb_s[class], 1e-6);
    if (terms) *terms = t;
    return (t.overhead + t.weights + t.kv + t.state) * taught(costs, u, m, SG_PHASE_STEP, depth);
}

double sg_prefill_ms(const struct sg_unit_costs *costs, const struct sg_unit_cost *u, const struct sg_model_cost *m, double n,
                     double depth, double chunk, struct sg_cost_terms *terms)
{
    int class = class_of(u, m->class);
    struct sg_cost_terms t = {0};
    double runs[2] = {floor(n / chunk), 1}, rows[2] = {chunk, n - floor(n / chunk) * chunk};
    for (int i = 0; i < 2; i++) {
        if (runs[i] < 1 || rows[i] < 1) continue;
        t.overhead += runs[i] * (u->run_ms + m->shape.layers * (u->run_layer_ms + rows[i] * u->row_layer_ms));
        double products = per(2 * m->shape.body * rows[i], tflops_at(u, class, rows[i]), 1e-9);
        /* Fewer rows than the smallest measured number still read every weight. */
        if (u->tflops[class][SG_ROWS_1] <= 0) products = fmax(products, per(m->body_bytes, u->gb_s[class], 1e-6));
        t.products += runs[i] * products;
    }
    t.attention = per(m->attend * n * (depth + n / 2), attend_tflops_at(u, fmin(n, chunk)), 1e-9);
    t.state = per(2 * m->state_bytes * n, u->state_gb_s, 1e-6);
    t.weights = per(m->head_bytes, u->gb_s[class], 1e-6);
    if (terms) *terms = t;
    return (t.overhead + t.products + t.attention + t.state + t.weights) * taught(costs, u, m, SG_PHASE_PREFILL, n);
}

const struct sg_link_cost *sg_link_find(const struct sg_unit_costs *c, const char *from, const char *to)
{
    for (size_t i = 0; i < c->links_n; i++)
        if (!strcmp(c->links[i].from, from) && !strcmp(c->links[i].to, to)) return &c->links[i];
    return NULL;
}

/* Not measured: a copy in memory at a few GB/s. */
double sg_link_ms(const struct sg_link_cost *link, const struct sg_model_cost *m, double n)
{
    double bytes = m->kv_bytes * n + m->state_bytes;
    return link ? link->ms + per(bytes, link->gb_s, 1e-6) : .1 + bytes / 4e6;
}

double sg_spread(const struct sg_unit_cost *u, const struct sg_real_factor *r, int phase)
{
    double share = phase == SG_PHASE_PREFILL ? u->prefill_error : u->step_error;
    double known = log1p(share > 0 ? share : u->error_share);
    if (r && sg_real_any(r->factor, phase)) return known;
    return fmax(known, u->new_error > 0 ? log1p(u->new_error) : NEW_SPREAD);
}
