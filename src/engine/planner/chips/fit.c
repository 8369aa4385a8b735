/* fit.c: see fit.h. Levenberg-Marquardt on the logarithms of the constants, with reweighted residuals.
 * SPDX-License-Identifier: MIT */
#include "engine/planner/chips/fit.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

enum { CELLS_MAX = 8192, STEPS = 80, TRIES = 20 };
/* A typical relative error, and the weight at which an error counts as an outlier, in squares of it. */
#define ERROR_SHARE 0.05
#define OUTLIER 4.0
#define DIFFERENCE 1e-4 /* of a logarithm, for derivatives */
#define STEP_MAX 0.5

struct fit {
    struct sg_chips *chips;
    const struct sg_cell **cells;     /* [cells_n] */
    double *target;                   /* [cells_n] logarithms of the values */
    size_t cells_n, n;                /* n constants */
    double *x, *next, *prior, *sigma; /* [n] logarithms */
    double *jacobian;                 /* [cells_n][n] */
    double *residual, *other;         /* [cells_n] */
    double *normal, *factor;          /* [n][n] */
    double *gradient, *step;          /* [n] */
};

int sg_fit_omits(const struct sg_fit_omit *o, const struct sg_cell *cell)
{
    if (!o || (!o->chip && !o->model && !o->precision)) return 0;
    return (!o->chip || !strcasecmp(o->chip, cell->text[SG_CELL_CHIP])) &&
           (!o->model || !strcasecmp(o->model, cell->text[SG_CELL_MODEL])) &&
           (!o->precision || !strcasecmp(o->precision, cell->text[SG_CELL_PRECISION]));
}

/* Constant i of the fit: those of the frameworks, then those of every chip. */
static double *constant(const struct fit *f, size_t i, const struct sg_chip_key **key, unsigned char **source)
{
    if (i < SG_SHARED_N) {
        *key = &sg_shared_keys[i];
        *source = &f->chips->shared_source[i];
        return &f->chips->shared[i];
    }
    struct sg_chip *chip = &f->chips->list[(i - SG_SHARED_N) / SG_CHIP_N];
    i = (i - SG_SHARED_N) % SG_CHIP_N;
    *key = &sg_chip_keys[i];
    *source = &chip->source[i];
    return &chip->constant[i];
}

/* Writes x into the constants, within their ranges. */
static void apply(const struct fit *f, const double *x)
{
    const struct sg_chip_key *key;
    unsigned char *source;
    for (size_t i = 0; i < f->n; i++) {
        double *to = constant(f, i, &key, &source);
        *to = fmin(fmax(exp(x[i]), key->low), key->high);
    }
}

static double residual_of(const struct fit *f, size_t i)
{
    double v;
    if (sg_cell_predict(f->cells[i], f->chips, &v) || !(v > 0)) return 0;
    return log(v) - f->target[i];
}

/* Residuals of x and the function that is minimised. */
static double cost_of(const struct fit *f, const double *x, double *residual)
{
    double sum = 0;
    apply(f, x);
    for (size_t i = 0; i < f->cells_n; i++) {
        double r = residual[i] = residual_of(f, i);
        sum += OUTLIER * log1p(r * r / (ERROR_SHARE * ERROR_SHARE * OUTLIER));
    }
    for (size_t i = 0; i < f->n; i++) {
        double d = (x[i] - f->prior[i]) / f->sigma[i];
        sum += d * d;
    }
    return sum;
}

static void differentiate(struct fit *f)
{
    memcpy(f->next, f->x, f->n * sizeof *f->x);
    for (size_t k = 0; k < f->n; k++) {
        f->next[k] += DIFFERENCE;
        apply(f, f->next);
        for (size_t i = 0; i < f->cells_n; i++) f->jacobian[i * f->n + k] = (residual_of(f, i) - f->residual[i]) / DIFFERENCE;
        f->next[k] = f->x[k];
    }
}

/* The normal equations of the reweighted residuals and the priors. */
static void add_up(struct fit *f)
{
    size_t n = f->n;
    memset(f->normal, 0, n * n * sizeof *f->normal);
    memset(f->gradient, 0, n * sizeof *f->gradient);
    for (size_t i = 0; i < f->cells_n; i++) {
        double r = f->residual[i] / ERROR_SHARE, weight = 1 / ((1 + r * r / OUTLIER) * ERROR_SHARE * ERROR_SHARE);
        const double *row = f->jacobian + i * n;
        for (size_t a = 0; a < n; a++) {
            if (row[a] == 0) continue;
            f->gradient[a] += weight * row[a] * f->residual[i];
            for (size_t b = 0; b < n; b++) f->normal[a * n + b] += weight * row[a] * row[b];
        }
    }
    for (size_t a = 0; a < n; a++) {
        double s = 1 / (f->sigma[a] * f->sigma[a]);
        f->normal[a * n + a] += s;
        f->gradient[a] += (f->x[a] - f->prior[a]) * s;
    }
}

/* Solves (normal + damping * diagonal) step = -gradient by Cholesky. The matrix is positive definite because of the priors. */
static void solve(struct fit *f, double damping)
{
    size_t n = f->n;
    double *l = f->factor;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            double s = f->normal[i * n + j] * (i == j ? 1 + damping : 1);
            for (size_t k = 0; k < j; k++) s -= l[i * n + k] * l[j * n + k];
            l[i * n + j] = i == j ? sqrt(fmax(s, 1e-12)) : s / l[j * n + j];
        }
    for (size_t i = 0; i < n; i++) {
        double s = -f->gradient[i];
        for (size_t k = 0; k < i; k++) s -= l[i * n + k] * f->step[k];
        f->step[i] = s / l[i * n + i];
    }
    for (size_t i = n; i-- > 0;) {
        double s = f->step[i];
        for (size_t k = i + 1; k < n; k++) s -= l[k * n + i] * f->step[k];
        f->step[i] = s / l[i * n + i];
    }
}

/* Steps until the cost no longer falls. */
static void minimise(struct fit *f)
{
    double cost = cost_of(f, f->x, f->residual), damping = 1e-3;
    for (int step = 0; step < STEPS; step++) {
        double before = cost;
        differentiate(f);
        add_up(f);
        for (int i = 0; i < TRIES; i++, damping *= 5) {
            solve(f, damping);
            for (size_t k = 0; k < f->n; k++) f->next[k] = f->x[k] + fmin(fmax(f->step[k], -STEP_MAX), STEP_MAX);
            double c = cost_of(f, f->next, f->other);
            if (!(c < cost)) continue;
            cost = c;
            memcpy(f->x, f->next, f->n * sizeof *f->x);
            memcpy(f->residual, f->other, f->cells_n * sizeof *f->residual);
            damping = fmax(damping / 5, 1e-6);
            break;
        }
        if (before - cost < 1e-4) break;
    }
    apply(f, f->x);
}

/* Marks what the cells determined, and returns the rest to its prior. */
static void mark(struct fit *f)
{
    const struct sg_chip_key *key;
    unsigned char *source;
    for (size_t k = 0; k < f->n; k++) {
        double largest = 0, *to = constant(f, k, &key, &source);
        for (size_t i = 0; i < f->cells_n; i++) largest = fmax(largest, fabs(f->jacobian[i * f->n + k]));
        *source = largest > 1e-6 ? SG_SOURCE_FITTED : SG_SOURCE_PRIOR;
        if (*source == SG_SOURCE_PRIOR) *to = key->prior;
    }
}

/* Cells with a value, a prediction and no omission. */
static size_t select_cells(struct fit *f, const struct sg_cells *cells, const struct sg_fit_omit *omit)
{
    double v;
    for (size_t i = 0; i < cells->n; i++) {
        const struct sg_cell *c = &cells->list[i];
        if (!(c->value > 0) || sg_fit_omits(omit, c) || sg_cell_predict(c, f->chips, &v) || !(v > 0)) continue;
        f->target[f->cells_n] = log(c->value);
        f->cells[f->cells_n++] = c;
    }
    return f->cells_n;
}

static segue_status prepare(struct fit *f, size_t cells, struct sg_arena *arena, segue_error *err)
{
    const struct sg_chip_key *key;
    unsigned char *source;
    size_t n = f->n = SG_SHARED_N + SG_CHIP_N * f->chips->n;
    double *d = sg_arena_alloc(arena, (cells * (n + 3) + 2 * n * n + 7 * n) * sizeof *d);
    f->cells = sg_arena_alloc(arena, cells * sizeof *f->cells);
    if (!d || !f->cells) return sg_no_memory("fit", (cells * (n + 4) + 2 * n * n + 7 * n) * sizeof *d, err);
    f->target = d, d += cells;
    f->residual = d, d += cells;
    f->other = d, d += cells;
    f->jacobian = d, d += cells * n;
    f->normal = d, d += n * n;
    f->factor = d, d += n * n;
    f->x = d, d += n;
    f->next = d, d += n;
    f->prior = d, d += n;
    f->sigma = d, d += n;
    f->gradient = d, d += n;
    f->step = d;
    for (size_t i = 0; i < n; i++) {
        constant(f, i, &key, &source);
        f->x[i] = f->prior[i] = log(key->prior);
        f->sigma[i] = key->sigma;
    }
    apply(f, f->x);
    return SEGUE_OK;
}

segue_status sg_fit(struct sg_chips *chips, const struct sg_cells *cells, const struct sg_fit_omit *omit, segue_error *err)
{
    struct fit f = {.chips = chips};
    struct sg_arena arena = {0};
    if (cells->n > CELLS_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "fit: %zu cells: at most %d; leave some out", cells->n, (int)CELLS_MAX);
    segue_status st = prepare(&f, cells->n, &arena, err);
    if (!st && !select_cells(&f, cells, omit))
        st = sg_fail(err, SEGUE_EARG, "fit: no cell has a value and a known chip, model and pipeline; nothing to fit");
    if (!st) {
        minimise(&f);
        mark(&f);
    }
    sg_arena_free(&arena);
    return st;
}
