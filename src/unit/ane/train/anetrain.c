/* anetrain.c: products of training on the engine: one product at a time, whose dispatches run on a thread of their own while the
 * caller computes something else. See anetrain.h.
 *
 * Range of fp16: the operand is multiplied by a power of two so that no result can exceed ANE_TRAIN_SUM, whatever its values: the
 * bound is the largest operand times the largest sum of magnitudes of weights. Results are divided by it. This is exact, so it
 * does for every product what a scaled loss does for all of them at once. What is infinite still is clamped and counted.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "base/clock.h"
#include "unit/ane/train/anetrain.h"

static void close_device(struct sg_train_device *d)
{
    ane_train_slabs_free(d);
    ane_train_programs_free(d);
    sg_free(d);
}

/* --- one product --- */

/* First outer index of the tile after the one at `at`. */
static uint32_t tile_after(const struct sg_train_device *d, uint32_t at) { return at + ANE_TRAIN_WIDTH - d->tokens; }

static segue_status evaluate_tiles(struct sg_train_device *d, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d->unit->device);
    struct sg_ane_counters before, after;
    struct ane_train_slab *s;
    ops->count(d->unit->device, &before);
    for (uint32_t at = 0, n = ane_train_outer(d->p); at < n; at = tile_after(d, at)) {
        SG_TRY(ane_train_slab_of(d, d->p, at, &s, err)); /* is there, with its weights */
        SG_TRY(ops->evaluate(s->program->program, 0, &s->in, &s->out, err));
        d->counts.dispatches++;
    }
    ops->count(d->unit->device, &after);
    d->counts.simulated_ns += after.simulated_ns - before.simulated_ns;
    return SEGUE_OK;
}

static void *evaluate_all(void *arg)
{
    struct sg_train_device *d = arg;
    uint64_t start = sg_now_ns();
    d->status = evaluate_tiles(d, &d->err);
    d->counts.begin_ns = start;
    d->counts.end_ns = sg_now_ns();
    d->counts.busy_ns += d->counts.end_ns - start;
    return NULL;
}

/* The scale for all tiles: neither a result nor an operand exceeds ANE_TRAIN_SUM. */
static float scale_of(float largest, float sum)
{
    int of_operand, of_sum;          /* each number is below 2 to this power */
    if (!(largest > 0)) return 1;
    (void)frexpf(largest, &of_operand);
    (void)frexpf(sum, &of_sum);
    int power = ilogbf(ANE_TRAIN_SUM) - of_operand - (of_sum > 0 ? of_sum : 0);
    return ldexpf(1, power < -100 ? -100 : power > 100 ? 100 : power);
}

static segue_status product_start(struct sg_train_device *d, const struct sg_train_product *p, segue_error *err)
{
    float largest = ane_train_largest(d, p), sum = 0;
    struct ane_train_slab *s;
    d->p = p;
    d->threaded = 0;
    d->status = SEGUE_OK;
    d->finite = !isinf(largest);
    for (uint32_t at = 0, n = ane_train_outer(p); at < n; at = tile_after(d, at)) {
        SG_TRY(ane_train_slab_of(d, p, at, &s, err));
        sum = s->sum > sum ? s->sum : sum;
    }
    if (!(sum < INFINITY)) d->finite = 0;
    if (!d->finite) return SEGUE_OK;
    d->scale = scale_of(largest, sum);
    for (uint32_t at = 0, n = ane_train_outer(p); at < n; at = tile_after(d, at)) {
        SG_TRY(ane_train_slab_of(d, p, at, &s, err));
        SG_TRY(ane_train_put(d, p, s, err));
    }
    d->threaded = !pthread_create(&d->thread, NULL, evaluate_all, d);
    d->started_ns = sg_now_ns();
    if (d->threaded) return SEGUE_OK;
    evaluate_all(d);                 /* without overlap */
    return SEGUE_OK;
}

static segue_status product_wait(struct sg_train_device *d, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d->unit->device);
    struct sg_ane_losses losses = {0};
    struct ane_train_slab *s;
    uint64_t called = sg_now_ns();
    if (d->threaded) {
        pthread_join(d->thread, NULL);
        uint64_t from = d->counts.begin_ns > d->started_ns ? d->counts.begin_ns : d->started_ns;
        uint64_t to = d->counts.end_ns < called ? d->counts.end_ns : called;
        d->counts.overlap_ns += to > from ? to - from : 0;
    }
    if (d->status != SEGUE_OK) {
        if (err) *err = d->err;
        return d->status;
    }
    for (uint32_t at = 0, n = ane_train_outer(d->p); at < n; at = tile_after(d, at)) {
        SG_TRY(ane_train_slab_of(d, d->p, at, &s, err));
        SG_TRY(ane_train_get(d, d->p, s, err));
    }
    if (ops->losses) ops->losses(d->unit->device, &losses);
    d->counts.underflows += losses.underflows;
    return SEGUE_OK;
}

static void product_count(const struct sg_train_device *d, struct sg_train_counts *out) { *out = d->counts; }

static const struct sg_train_device_ops device_ops = {.close = close_device, .start = product_start, .wait = product_wait,
                                                     .count = product_count};

segue_status ane_train_device(struct sg_unit *u, uint32_t tokens_max, struct sg_train_device **out, segue_error *err)
{
    uint32_t tokens = (tokens_max + u->columns - 1) / u->columns * u->columns;
    if (tokens_max > ANE_TRAIN_WIDTH / 2)
        return sg_fail(err, SEGUE_ELIMIT, "trainer not opened: %s: %u tokens of a micro-batch, at most %d; use fewer",
                       u->desc.info.spec, tokens_max, ANE_TRAIN_WIDTH / 2);
    struct sg_train_device *d = sg_alloc(sizeof *d);
    if (!d) return sg_no_memory("training on ane", sizeof *d, err);
    *d = (struct sg_train_device){.base = {&device_ops}, .unit = u, .tokens = tokens, .finite = 1, .scale = 1};
    *out = d;
    return SEGUE_OK;
}
