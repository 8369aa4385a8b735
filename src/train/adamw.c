/* adamw.c: the update. Blocks of numbers are independent, and sums of blocks are added in ascending order.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "base/clones.h"
#include "train/train.h"

enum { BLOCK = 1 << 14 };

struct update_work {
    const struct sg_param *p;
    double *sums;                    /* squares of each block */
    double scale, rate, beta1, beta2, eps, decay, correct1, correct2;
};

static void square_block(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct update_work *w = arg;
    size_t at = (size_t)item * BLOCK;
    w->sums[item] = sg_train_squares_row(w->p->field[1] + at, w->p->n - at < BLOCK ? w->p->n - at : BLOCK, 0);
}

SG_CLONES static void update_block(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct update_work *w = arg;
    size_t at = (size_t)item * BLOCK, n = w->p->n - at < BLOCK ? w->p->n - at : BLOCK;
    float *restrict value = w->p->field[0] + at, *restrict grad = w->p->field[1] + at;
    float *restrict m = w->p->field[2] + at, *restrict v = w->p->field[3] + at;
    float keep = (float)(1 - w->rate * w->decay), step = (float)(w->rate / w->correct1), scale = (float)w->scale;
    float b1 = (float)w->beta1, b2 = (float)w->beta2, root = (float)(1 / sqrt(w->correct2)), eps = (float)w->eps;
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * scale;
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        value[i] = value[i] * keep - step * m[i] / (sqrtf(v[i]) * root + eps);
        grad[i] = 0;
    }
}

static uint32_t blocks_of(const struct sg_param *p) { return (uint32_t)((p->n + BLOCK - 1) / BLOCK); }

/* sums[i]: of the squares of the gradient of parameter i. */
static segue_status squares_of(struct segue_trainer *t, double *sums, segue_error *err)
{
    if (t->resident) return sg_resident_squares(t, sums, err);
    for (size_t i = 0; i < t->info.params_n; i++) {
        struct update_work w = {.p = &t->params[i]};
        uint32_t n = blocks_of(w.p);
        w.sums = sg_alloc(n * sizeof *w.sums);
        if (!w.sums) return sg_no_memory("sums of gradients", n * sizeof *w.sums, err);
        t->math.each(&t->math, n, square_block, &w);
        sums[i] = 0;
        for (uint32_t k = 0; k < n; k++) sums[i] += w.sums[k];
        sg_free(w.sums);
    }
    return SEGUE_OK;
}

/* *out: sum of squares over all gradients. EFORMAT names the first parameter with a NaN or infinity. */
static segue_status norm_of(struct segue_trainer *t, double *out, segue_error *err)
{
    double *sums = sg_alloc(t->info.params_n * sizeof *sums);
    if (!sums) return sg_no_memory("sums of gradients", t->info.params_n * sizeof *sums, err);
    segue_status status = squares_of(t, sums, err);
    *out = 0;
    for (size_t i = 0; i < t->info.params_n && status == SEGUE_OK; i++) {
        *out += sums[i];
        if (!isfinite(sums[i]))
            status = sg_fail(err, SEGUE_EFORMAT, "parameters not updated: step %llu: the gradient of %s is not finite; lower the "
                             "learning rate, or go back to an earlier checkpoint", (unsigned long long)t->info.steps + 1,
                             t->params[i].info.name);
    }
    sg_free(sums);
    return status;
}

/* A unit that was lost reports it at the next call. */
void sg_train_drop(struct segue_trainer *t)
{
    segue_error ignored;
    for (size_t i = 0; i < t->info.params_n; i++) (void)sg_train_zero(t, t->params[i].field[1], t->params[i].n, &ignored);
    t->labelled = 0;
}

static segue_status update_param(struct segue_trainer *t, const struct update_work *w, segue_error *err)
{
    const struct sg_param *p = w->p;
    struct sg_resident_adamw a = {p->field[0], p->field[1], p->field[2], p->field[3], p->n, (float)w->scale,
                                  (float)(1 - w->rate * w->decay), (float)(w->rate / w->correct1), (float)w->beta1,
                                  (float)w->beta2, (float)(1 / sqrt(w->correct2)), (float)w->eps};
    if (t->resident) return sg_resident_ops(t->resident)->adamw(t->resident, &a, err);
    struct update_work copy = *w;
    t->math.each(&t->math, blocks_of(p), update_block, &copy);
    return SEGUE_OK;
}

segue_status sg_train_update(struct segue_trainer *t, const segue_adamw *o, segue_update_result *out, segue_error *err)
{
    double squares = 0, divisor = o->divisor > 0 ? o->divisor : (double)t->labelled;
    if (!t->labelled)
        return sg_fail(err, SEGUE_EARG,
                "parameters not updated: no position had a label since the last update; run a micro-batch");
    if (!(o->learning_rate >= 0) || !(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1) || !(o->eps >= 0) ||
        !(o->weight_decay >= 0) || !(o->clip_norm >= 0) || !(o->divisor >= 0))
        return sg_fail(err, SEGUE_EARG, "parameters not updated: an option is out of range; use positive numbers, betas below 1");
    segue_status status = norm_of(t, &squares, err);
    if (status != SEGUE_OK) {
        sg_train_drop(t);
        return status;
    }
    *out = (segue_update_result){.size = sizeof *out, .step = ++t->info.steps, .gradient_norm = sqrt(squares) / divisor};
    out->clipped = o->clip_norm > 0 && out->gradient_norm > o->clip_norm;
    struct update_work w = {.scale = 1 / divisor, .rate = o->learning_rate, .beta1 = o->beta1 > 0 ? o->beta1 : 0.9,
                            .beta2 = o->beta2 > 0 ? o->beta2 : 0.999, .eps = o->eps > 0 ? o->eps : 1e-8};
    if (out->clipped) w.scale *= o->clip_norm / (out->gradient_norm + 1e-6); /* as torch.nn.utils.clip_grad_norm_ */
    w.correct1 = 1 - pow(w.beta1, (double)t->info.steps);
    w.correct2 = 1 - pow(w.beta2, (double)t->info.steps);
    for (size_t i = 0; i < t->info.params_n; i++) {
        w.p = &t->params[i];
        w.decay = w.p->info.matrix ? o->weight_decay : 0;
        SG_TRY(update_param(t, &w, err));
    }
    t->labelled = 0;
    t->version++;
    return SEGUE_OK;
}
