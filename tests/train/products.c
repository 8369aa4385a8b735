/* products.c: products of training beyond the sizes of the tiny models, on cpu and ref: with edges of panels, and in several
 * parts of rows, columns and the inner dimension. Packed factors give the bits of factors that are packed tile by tile, on one
 * thread and on three; numbers are those of sums in fp64; nothing beside C is written. A quantised B equals its numbers in fp32.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tensor/tensor.h"
#include "train/train.h"
#include "unit/spec.h"

extern const struct sg_unit_ops sg_unit_cpu, sg_unit_ref;

enum { GAP = 3, SAMPLES = 64, BEYOND = 32 };    /* numbers behind a row; of C that are checked; behind the packed factors */

static uint64_t random_bits(uint64_t *state) { return *state = *state * 6364136223846793005u + 1442695040888963407u; }

static float *numbers(size_t n, uint64_t seed)
{
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)((double)(random_bits(&seed) >> 11) / 9007199254740992.0 - 0.5);
    return x;
}

static double sum_at(const struct sg_gemm *g, uint32_t i, uint32_t j)
{
    double sum = 0;
    for (uint32_t k = 0; k < g->inner; k++)
        sum += (double)(g->kind == SG_GEMM_TN ? g->a[k * g->lda + i] : g->a[i * g->lda + k]) *
               (double)(g->kind == SG_GEMM_NT ? g->b[j * g->ldb + k] : g->b[k * g->ldb + j]);
    return sum;
}

static void one_product(const struct sg_train_math *m, enum sg_gemm_kind kind, const uint32_t size[3], int add)
{
    uint32_t rows = size[0], cols = size[1], inner = size[2];
    size_t a_rows = kind == SG_GEMM_TN ? inner : rows, b_rows = kind == SG_GEMM_NT ? cols : inner;
    struct sg_gemm g = {.kind = kind, .rows = rows, .cols = cols, .inner = inner, .add = add, .ldc = cols + GAP,
                        .lda = (kind == SG_GEMM_TN ? rows : inner) + GAP, .ldb = (kind == SG_GEMM_NT ? inner : cols) + GAP};
    size_t c_n = rows * g.ldc, packed_n = sg_train_gemm_n(m, &g);
    float *a = numbers(a_rows * g.lda, 1), *b = numbers(b_rows * g.ldb, 2), *before = numbers(c_n, 3), *c = numbers(c_n, 3),
          *packed_c = numbers(c_n, 3), *packed = packed_n ? sg_alloc_aligned((packed_n + BEYOND) * sizeof *packed) : NULL;
    g.a = a, g.b = b, g.c = c;
    if (packed) memset(packed, 0xff, (packed_n + BEYOND) * sizeof *packed);    /* NaN: a number that was not packed shows */
    sg_train_gemm_with(m, &g, NULL);
    g.c = packed_c;
    sg_train_gemm_with(m, &g, packed);
    assert_memory_equal(c, packed_c, c_n * sizeof *c);
    for (size_t i = 0; packed && i < BEYOND; i++) assert_true(isnan(packed[packed_n + i]));
    for (uint32_t i = 0; i < rows; i++) assert_memory_equal(&c[i * g.ldc + cols], &before[i * g.ldc + cols], GAP * sizeof *c);
    uint64_t seed = 4;
    for (int s = 0; s < SAMPLES; s++) {
        uint32_t i = (uint32_t)(random_bits(&seed) >> 33) % rows, j = (uint32_t)(random_bits(&seed) >> 33) % cols;
        double want = sum_at(&g, i, j) + (add ? (double)before[i * g.ldc + j] : 0);
        assert_true(fabs((double)c[i * g.ldc + j] - want) < 1e-6 * (10 + sqrt(inner) * 10));
    }
    free(a), free(b), free(c), free(packed_c), free(before);
    sg_free_aligned(packed);
}

/* B is rows [3, 3 + n) of t. With the product of an adapter of `rank`, 0: none. */
static void one_frozen(const struct sg_train_math *m, const struct sg_tensor *t, enum sg_gemm_kind kind, uint32_t n,
                       uint32_t rank)
{
    uint32_t rows = 13, width = (uint32_t)t->cols, inner = kind == SG_GEMM_NT ? width : n, cols = kind == SG_GEMM_NT ? n : width;
    size_t c_n = (size_t)rows * cols;
    float *b = numbers(t->rows * t->cols, 1), *a = numbers((size_t)rows * inner, 2);
    float *c = numbers(c_n, 3), *want = numbers(c_n, 3), *low = numbers((size_t)rows * rank, 4),
          *up = numbers((size_t)rank * cols, 5);
    sg_tensor_read(t, b);
    struct sg_gemm g = {kind, rows, cols, inner, a, b + (size_t)3 * width, inner, width, cols, want, 0},
                   more = {kind, rows, cols, rank, low, up, rank, kind == SG_GEMM_NT ? rank : cols, cols, want, 1};
    sg_train_gemm_with(m, &g, NULL);
    if (rank) sg_train_gemm_with(m, &more, NULL);
    struct segue_trainer trainer = {0};
    segue_error err = {0};
    struct sg_train_pass p = {.t = &trainer, .m = m, .err = &err};
    g.c = more.c = c;
    g.b = NULL, g.ldb = 0;
    assert_int_equal(sg_train_gemm_frozen(&p, &g, t, 3, rank ? &more : NULL), SEGUE_OK);
    assert_null(trainer.used_blocks);
    for (size_t i = 0; i < c_n; i++) {
        if (!rank) assert_memory_equal(&c[i], &want[i], sizeof *c);
        assert_true(fabsf(c[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i])));
    }
    sg_train_free_blocks(&trainer);
    free(a), free(b), free(c), free(want), free(low), free(up);
}

static void frozen_products(const struct sg_train_math *m, uint64_t rows, uint64_t cols, enum sg_gemm_kind kind, uint32_t n)
{
    const struct sg_storage_info *info = sg_storage_info(SG_Q4_K);
    size_t bytes = (size_t)(rows * cols / info->block * info->bytes);
    uint8_t *data = malloc(bytes);
    uint64_t seed = 6;
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(random_bits(&seed) >> 40) & 0x27; /* scales of 0.01 at most */
    const struct sg_tensor t = {.storage = SG_Q4_K, .rows = rows, .cols = cols, .data = data, .bytes = bytes};
    for (uint32_t rank = 0; rank < 20; rank += 9) one_frozen(m, &t, kind, n, rank);
    free(data);
}

static void products_of(const struct sg_unit_ops *ops, const char *spec)
{
    static const uint32_t sizes[][3] = {{1, 1, 1}, {12, 32, 192}, {13, 33, 193}, {265, 97, 31}, {24, 16, 4609}, {13, 930, 2310},
                                        {1850, 17, 2305}, {5, 7, 0}};
    struct sg_unit_spec parsed;
    struct sg_unit *unit;
    struct sg_train_math m;
    assert_int_equal(sg_spec_parse(&parsed, spec, NULL), SEGUE_OK);
    assert_int_equal(ops->open(&unit, &parsed, NULL), SEGUE_OK);
    ops->train_math(unit, &m);
    m.scratch = m.scratch_n ? sg_alloc_aligned(m.threads * m.scratch_n * sizeof *m.scratch) : NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = SG_GEMM_NT; kind <= SG_GEMM_TN; kind++) one_product(&m, (enum sg_gemm_kind)kind, sizes[i], (int)i % 2);
    frozen_products(&m, 2320, 1024, SG_GEMM_NN, 2309);
    frozen_products(&m, 40, 2560, SG_GEMM_NT, 35);
    sg_free_aligned(m.scratch);
    ops->close(unit);
}

static void test_cpu(void **state)
{
    (void)state;
    products_of(&sg_unit_cpu, "cpu:threads=1");
    products_of(&sg_unit_cpu, "cpu:threads=3");
    products_of(&sg_unit_cpu, "cpu:isa=generic,threads=2");
}

static void test_ref(void **state)
{
    (void)state;
    products_of(&sg_unit_ref, "ref");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu), cmocka_unit_test(test_ref)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
