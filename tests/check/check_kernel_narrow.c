/* check_kernel_narrow.c: attention in integers beside attention in fp32.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "checkkernel.h"

struct narrow_buffers {
    int16_t *q, *k, *v, *p;
    float *q_scale, *k_scale, *v_scale, *v_top, *s, *top;
};
static void narrow_chunk(const struct sg_kernels *k, const struct narrow_buffers *r, const float *q, uint32_t nq, uint32_t d,
                         const void *keys, const void *values, int f16, uint32_t dvp, uint32_t n, uint32_t hi, float *o)
{
    float max, sum;
    k->narrow->rows(q, nq, d, r->q, r->q_scale);
    k->narrow->keys(keys, f16, d, n, r->k, r->k_scale);
    k->narrow->values(values, f16, dvp, n, r->v, r->v_scale, r->v_top);
    k->narrow->scores(r->q, nq, d, r->k, r->k_scale, n, r->s);
    for (uint32_t i = 0; i < nq; i++) {
        k->softmax_chunk(r->s + i * SG_CHUNK, 0, hi, n, 0.1f * r->q_scale[i], 0.0f, &max, &sum);
        r->top[i] = r->v_top[hi - 1];
        k->narrow->weights(r->s + i * SG_CHUNK, r->v_scale, r->top[i], n, r->p + i * SG_CHUNK);
    }
    k->narrow->pv(r->p, r->top, nq, n, r->v, dvp, o);
}

static int narrow_buffers(struct sg_arena *arena, struct narrow_buffers *r, uint32_t nq, uint32_t d, uint32_t dvp)
{
    r->q = sg_arena_alloc(arena, nq * (d + 1) * sizeof *r->q);
    r->k = sg_arena_alloc(arena, SG_CHUNK * (d + 1) * sizeof *r->k);
    r->v = sg_arena_alloc(arena, SG_CHUNK * dvp * sizeof *r->v);
    r->p = sg_arena_alloc(arena, nq * SG_CHUNK * sizeof *r->p);
    r->s = sg_arena_alloc(arena, nq * SG_CHUNK * sizeof *r->s);
    r->q_scale = sg_arena_alloc(arena, (3 * SG_CHUNK + 2 * nq) * sizeof *r->s);
    if (!r->q || !r->k || !r->v || !r->p || !r->s || !r->q_scale) return 0;
    r->top = r->q_scale + nq;
    r->k_scale = r->top + nq;
    r->v_scale = r->k_scale + SG_CHUNK;
    r->v_top = r->v_scale + SG_CHUNK;
    return 1;
}

struct narrow_inputs {
    uint32_t nq, d, dvp, keys, hi;
    float *q, *k, *v, *o;            /* o [4][nq][dvp] */
    uint16_t *half;                  /* k, v */
};

static int inputs_new(struct check_rng *rng, struct sg_arena *arena, const struct sg_kernels *b, struct narrow_inputs *in)
{
    in->nq = check_between(rng, 1, 6);
    in->d = check_between(rng, 1, 80);
    in->dvp = 16 * check_between(rng, 1, 9);
    in->keys = check_between(rng, 1, SG_CHUNK);
    in->hi = check_between(rng, 1, in->keys);
    const size_t k_n = SG_CHUNK * (size_t)in->d, v_n = SG_CHUNK * (size_t)in->dvp;
    in->q = sg_arena_alloc(arena, in->nq * in->d * sizeof *in->q);
    in->k = sg_arena_alloc(arena, k_n * sizeof *in->k);
    in->v = sg_arena_alloc(arena, v_n * sizeof *in->v);
    in->o = sg_arena_alloc(arena, 4 * (size_t)in->nq * in->dvp * sizeof *in->o);
    in->half = sg_arena_alloc(arena, (k_n + v_n) * sizeof *in->half);
    if (!in->q || !in->k || !in->v || !in->o || !in->half) return 0;
    check_fill(rng, in->q, in->nq * in->d, CHECK_NORMAL, 1.0f);
    check_fill(rng, in->k, k_n, CHECK_NORMAL, 1.0f);
    check_fill(rng, in->v, v_n, CHECK_NORMAL, 1.0f);
    b->to_f16(in->k, k_n, in->half);
    b->of_f16(in->half, k_n, in->k);
    b->to_f16(in->v, v_n, in->half + k_n);
    b->of_f16(in->half + k_n, v_n, in->v);
    return 1;
}

double check_narrow_distance(struct check_rng *rng, const struct sg_kernels *a, const struct sg_kernels *b, double *spread)
{
    struct sg_arena arena = {0};
    struct narrow_inputs in;
    struct narrow_buffers r;
    double largest = INFINITY;
    float max, sum;
    if (inputs_new(rng, &arena, b, &in) && narrow_buffers(&arena, &r, in.nq, in.d, in.dvp)) {
        const size_t n = (size_t)in.nq * in.dvp;
        float *o = in.o;
        a->scores(in.q, in.nq, in.d, in.k, in.keys, r.s);
        for (uint32_t i = 0; i < in.nq; i++) a->softmax_chunk(r.s + i * SG_CHUNK, 0, in.hi, in.keys, 0.1f, 0.0f, &max, &sum);
        a->pv(r.s, in.nq, in.keys, in.v, in.dvp, o);
        narrow_chunk(b, &r, in.q, in.nq, in.d, in.k, in.v, 0, in.dvp, in.keys, in.hi, o + n);
        narrow_chunk(b, &r, in.q, in.nq, in.d, in.half, in.half + SG_CHUNK * (size_t)in.d, 1, in.dvp, in.keys, in.hi, o + 2 * n);
        narrow_chunk(b, &r, in.q + (in.nq - 1) * in.d, 1, in.d, in.k, in.v, 0, in.dvp, in.hi, in.hi, o + 3 * n);
        largest = *spread = 0;
        for (size_t i = 0; i < n; i++) {
            const double far = fabs((double)o[i] - (double)o[n + i]);
            if (fabs((double)o[i]) > *spread) *spread = fabs((double)o[i]);
            if (!(far <= largest)) largest = far;
        }
        if (memcmp(o + n, o + 2 * n, n * sizeof *o) || memcmp(o + 2 * n - in.dvp, o + 3 * n, in.dvp * sizeof *o))
            largest = INFINITY;
    }
    sg_arena_free(&arena);
    return largest;
}
