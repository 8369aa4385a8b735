/* roof.c: how fast products of training are on a unit at best, measured with one whose factors stay in the caches. A device
 * computes beside the host, so their rates are added.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "train/train.h"

/* The product grows until one takes long enough to be timed and has tiles for many threads. */
enum { ROWS = 264, COLS = 384, INNER = 256, GROWTH = 4, ROUNDS = 3 };
static const uint64_t ONE_NS = 2000000, ALL_NS = 40000000;

static struct sg_gemm product_of(uint32_t size)
{
    return (struct sg_gemm){.kind = SG_GEMM_NT, .rows = size * ROWS, .cols = size * COLS, .inner = size * INNER,
                            .lda = size * INNER, .ldb = size * INNER, .ldc = size * COLS};
}

/* data: both factors, the result, and memory for packed factors or NULL. */
static double best_rate(const struct sg_train_math *m, float *const data[4])
{
    double best = 0;
    uint64_t start = sg_now_ns(), one = 0, now = start;
    for (uint32_t size = 1, n = 0; n < ROUNDS || now - start < ALL_NS; n++) {
        struct sg_gemm g = product_of(size);
        g.a = data[0], g.b = data[1], g.c = data[2];
        uint64_t begin = now;
        sg_train_gemm_with(m, &g, data[3]);
        now = sg_now_ns();
        one = now > begin ? now - begin : 1;
        double rate = 2e9 * g.rows * g.cols * g.inner / (double)one;
        if (rate > best) best = rate;
        if (one >= ALL_NS) break;
        if (one < ONE_NS && size < GROWTH) size++, n = 0;
    }
    return best;
}

segue_status sg_train_roof(struct segue_trainer *t, double *flops_per_s, segue_error *err)
{
    if (t->resident)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "roof not measured: the unit trains in its own memory; compare GFLOP/s with its "
                       "data sheet");
    double beside = 0;
    if (t->device) SG_TRY(sg_train_device_rate(t, &beside, err));
    const struct sg_gemm g = product_of(GROWTH);
    const size_t a_n = (size_t)g.rows * g.inner, b_n = (size_t)g.cols * g.inner, c_n = (size_t)g.rows * g.cols,
                 packed_n = sg_train_gemm_n(&t->math, &g);
    float *data = sg_alloc_aligned((a_n + b_n + c_n + packed_n) * sizeof *data);
    if (!data) return sg_no_memory("factors of a product", (a_n + b_n + c_n + packed_n) * sizeof *data, err);
    for (size_t i = 0; i < a_n + b_n; i++) data[i] = (float)(i % 61) / 61 - 0.5f;
    float *const parts[] = {data, data + a_n, data + a_n + b_n, packed_n ? data + a_n + b_n + c_n : NULL};
    *flops_per_s = best_rate(&t->math, parts) + beside;
    sg_free_aligned(data);
    return SEGUE_OK;
}
