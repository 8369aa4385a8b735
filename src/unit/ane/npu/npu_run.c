/* npu_run.c: what the handlers of operations share while a plan runs: operands by name, the scratch
 * buffer, the thread pool, and the rounding of results to their type. No handler is called from here.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/npu/npu_plan.h"

/* Inline operands have become values when a plan is made (name_literals), so only references are
 * operands here. */
uint32_t sg_npu_operand(const struct sg_npu_run *r, const struct sg_mil_op *op, const char *name)
{
    const struct sg_mil_arg *a = sg_mil_arg_find(op, name);
    (void)r;
    return a && a->kind == SG_MIL_REF ? a->v.ref : SG_MIL_NONE;
}

/* One buffer of the device serves all handlers: a handler uses it only until it returns. The previous
 * buffer is freed before the larger one is allocated, so the contents are lost. */
float *sg_npu_scratch(struct sg_npu_run *r, size_t n)
{
    if (n <= *r->scratch_floats) return *r->scratch;
    sg_free_aligned(*r->scratch);
    *r->scratch_floats = 0;
    *r->scratch = n < SIZE_MAX / 8 ? sg_alloc_aligned(n * sizeof(float)) : NULL;
    if (*r->scratch) *r->scratch_floats = n;
    return *r->scratch;
}

struct parallel_job {
    void (*part)(void *arg, uint32_t item, uint32_t thread);
    void *arg;
};

/* The pool's callback for a job of one stage. */
static void parallel_part(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    struct parallel_job *e = arg;
    (void)stage;
    e->part(e->arg, item, thread);
}

/* A single item runs on the calling thread, without waking the pool. */
void sg_npu_parallel(struct sg_npu_run *r, uint64_t items,
                 void (*part)(void *arg, uint32_t item, uint32_t thread), void *arg)
{
    uint32_t n = (uint32_t)items;    /* fits: a value has fewer than 2^31 elements */
    struct parallel_job e = {part, arg};
    if (n == 1)
        part(arg, 0, 0);
    else
        sg_pool_run(r->pool, &(struct sg_job){.items = &n, .stages = 1, .work = parallel_part, .arg = &e});
}

/* Adds x to a double that is stored as its bits. */
static void add_to(atomic_uint_fast64_t *bits, float x)
{
    uint_fast64_t old = atomic_load_explicit(bits, memory_order_relaxed), sum;
    do {
        double v;
        uint64_t b = old;
        memcpy(&v, &b, sizeof v);
        v += (double)x;
        memcpy(&b, &v, sizeof b);
        sum = b;
    } while (!atomic_compare_exchange_weak_explicit(bits, &old, sum, memory_order_relaxed, memory_order_relaxed));
}

void sg_npu_round16(struct sg_npu_run *r, float *p, size_t n)
{
    enum { PIECE = 1 << 20 };    /* the kernel counts in 32 bits and sums in fp32 */
    struct sg_npu_rounding c;
    if (r->wide) return;
    for (; n > PIECE; p += PIECE, n -= PIECE) sg_npu_round16(r, p, PIECE);
    r->k->round16(p, n, &c);
    if (c.overflows) atomic_fetch_add_explicit(&r->overflows, c.overflows, memory_order_relaxed);
    if (c.underflows) atomic_fetch_add_explicit(&r->underflows, c.underflows, memory_order_relaxed);
    if (c.error > 0) add_to(&r->error, c.error);
    if (c.size > 0) add_to(&r->size, c.size);
}

/* In units of fp16, unless results stay fp32. */
void sg_npu_alter(const struct sg_npu_run *r, uint32_t value)
{
    float *x = sg_npu_data(r, value);
    uint16_t bits = sg_f16_of_f32(*x);
    int negative = bits & 0x8000 && bits != 0x8000;
    *x = r->wide ? nextafterf(*x, INFINITY) : sg_f32_of_f16((uint16_t)(negative ? bits - 1 : (bits & 0x7fff) + 1));
}

void sg_npu_exp(const struct sg_npu_run *r, const float *in, float *out, size_t n)
{
    if (r->tables)
        r->k->exp2_knots(r->tables->knot[SG_NPU_EXP2], 1.44269504f, in, out, n);
    else
        r->k->exp_row(in, out, n);
}

/* Rounds fp16 results. With the arithmetic of an engine, NaN becomes 0 and -0 becomes +0, where the
 * profile says so, and NaN and fp16 overflow are recorded in the flags of the run, before they are
 * hidden. 65504 is the largest fp16 number. */
void sg_npu_round_result(struct sg_npu_run *r, uint32_t value, float *p, size_t n)
{
    enum sg_mil_dtype d = (enum sg_mil_dtype)sg_npu_type(r, value)->dtype;
    if (d == SG_MIL_FP16) sg_npu_round16(r, p, n);
    if (!r->engine_math || sg_mil_dtype_info(d)->class != SG_MIL_REAL) return;
    unsigned flags = 0;
    for (size_t i = 0; i < n; i++) {
        float v = p[i];
        flags |= v != v ? SG_NPU_MADE_NAN : d == SG_MIL_FP16 && fabsf(v) > 65504.0f ? SG_NPU_MADE_INFINITY : 0;
        p[i] = v != v && r->profile->undefined_to_zero ? 0.0f : r->profile->unsigned_zero ? v + 0.0f : v;
    }
    if (flags) atomic_fetch_or_explicit(&r->flags, flags, memory_order_relaxed);
}

void sg_npu_count_flushed(struct sg_npu_run *r, int operand, float flushed, float all)
{
    if (flushed > 0) add_to(&r->flushed[operand], flushed);
    if (all > 0) add_to(&r->operand[operand], all);
}

/* A double that is stored as its bits. */
static double take_sum(atomic_uint_fast64_t *bits)
{
    uint64_t b = atomic_exchange(bits, 0);
    double v;
    memcpy(&v, &b, sizeof v);
    return v;
}

void sg_npu_count_losses(struct sg_npu_run *r, uint32_t o)
{
    struct sg_ane_losses *l = r->losses;
    const struct sg_mil_op *op = &r->plan->f->ops[o];
    const char *name = r->plan->f->values[op->first].name;
    uint64_t overflows = atomic_exchange(&r->overflows, 0);
    double error = take_sum(&r->error), size = take_sum(&r->size), share = error > 0 ? error / (size + error) : 0;
    if (overflows && !l->overflows) snprintf(l->overflow_op, sizeof l->overflow_op, "%.40s (%.20s)", name, op->kind);
    l->overflows += overflows;
    l->underflows += atomic_exchange(&r->underflows, 0);
    for (int i = 0; i < 2; i++) {
        double flushed = take_sum(&r->flushed[i]), all = take_sum(&r->operand[i]);
        if (flushed > share * all) share = flushed / all;
    }
    if (!r->plan->to_product[o] || share <= l->worst_error) return;
    l->worst_error = share;
    snprintf(l->worst_op, sizeof l->worst_op, "%.40s (%.20s)", name, op->kind);
}
