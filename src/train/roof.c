/* roof.c: how fast products of training are on a unit at best, measured with one whose factors stay in the caches.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "train/train.h"

/* The product grows until one takes long enough to be timed and has tiles for many threads. */
enum { ROWS = 264, COLS = 384, INNER = 256, GROWTH = 4, ROUNDS = 3 };
static const uint64_t ONE_NS = 2000000, ALL_NS = 40000000;

static double best_rate(const struct sg_train_math *m, const float *a, const float *b, float *c)
{
    double best = 0;
    uint64_t start = sg_now_ns(), one = 0, now = start;
    for (uint32_t size = 1, n = 0; n < ROUNDS || now - start < ALL_NS; n++) {
        const struct sg_gemm g = {.kind = SG_GEMM_NT, .rows = size * ROWS, .cols = size * COLS, .inner = size * INNER, .a = a,
                                  .b = b, .lda = size * INNER, .ldb = size * INNER, .ldc = size * COLS, .c = c};
        uint64_t begin = now;
        sg_train_gemm(m, &g);
        now = sg_now_ns();
        one = now > begin ? now - begin : 1;
        double rate = 2e9 * g.rows * g.cols * g.inner / (double)one;
        if (rate > best) best = rate;
        if (one >= ALL_NS) break;
        if (one < ONE_NS && size < GROWTH) size++, n = 0;
    }
    return best;
}

segue_status sg_train_roof(const struct segue_trainer *t, double *flops_per_s, segue_error *err)
{
    const size_t a_n = (size_t)GROWTH * ROWS * GROWTH * INNER, b_n = (size_t)GROWTH * COLS * GROWTH * INNER,
                 n = a_n + b_n + (size_t)GROWTH * ROWS * GROWTH * COLS;
    if (t->resident)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "roof not measured: the unit trains in its own memory; compare GFLOP/s with its "
                       "data sheet");
    if (t->device)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "roof not measured: two units compute; see the figures of each");
    float *data = sg_alloc_aligned(n * sizeof *data);
    if (!data) return sg_no_memory("factors of a product", n * sizeof *data, err);
    for (size_t i = 0; i < a_n + b_n; i++) data[i] = (float)(i % 61) / 61 - 0.5f;
    *flops_per_s = best_rate(&t->math, data, data + a_n, data + a_n + b_n);
    sg_free_aligned(data);
    return SEGUE_OK;
}
