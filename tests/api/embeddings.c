/* embeddings.c: requests of kind SEGUE_EMBED against the final hidden values that transformers recorded (hidden.<layers> of the
 * goldens of tests/golden/tiny), with each pooling, in chunks, on ref and cpu. SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "segue.h"
#include "tensor/archive.h"

#define OK(expr)                                          \
    do {                                                  \
        if ((expr) != SEGUE_OK) fail_msg("%s", err.text); \
    } while (0)
enum { WIDTH_MAX = 256, TOKENS_MAX = 128 };
static segue_error err;

static size_t read_golden(const char *name, uint32_t layers, int32_t *tokens, float *hidden, size_t *width)
{
    char path[1024], output[32];
    struct sg_archive *a = NULL;
    snprintf(path, sizeof path, SEGUE_SOURCE_DIR "/tests/golden/tiny/%s/golden.safetensors", name);
    snprintf(output, sizeof output, "hidden.%u", layers);
    OK(sg_archive_open(&a, path, &err));
    const struct sg_tensor *t = sg_archive_find(a, "prompt"), *h = sg_archive_find(a, output);
    assert_true(t && h && h->cols <= WIDTH_MAX && t->cols <= TOKENS_MAX && h->rows == t->cols);
    size_t n = t->cols;
    *width = h->cols;
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)sg_le32(t->data + 4 * i);
    sg_tensor_read(h, hidden);
    sg_archive_close(a);
    return n;
}

/* The pooled golden. */
static void pool(const float *hidden, size_t n, size_t width, segue_pooling pooling, double *out)
{
    for (size_t i = 0; i < width; i++) {
        double sum = 0;
        for (size_t r = 0; r < n; r++) sum += (double)hidden[r * width + i] / (double)n;
        out[i] = pooling == SEGUE_POOL_MEAN ? sum : (double)hidden[(pooling == SEGUE_POOL_LAST ? n - 1 : 0) * width + i];
    }
}

static void one(segue_scheduler *s, const int32_t *tokens, size_t n, const float *hidden, size_t width, segue_pooling pooling,
                uint32_t normalize, double bound)
{
    segue_request *q = NULL;
    segue_request_opts o = SEGUE_INIT(segue_request_opts);
    float got[WIDTH_MAX];
    double want[WIDTH_MAX], square = 0, worst = 0, length = 0;
    int32_t none;
    size_t k;
    o.kind = SEGUE_EMBED;
    o.pooling = pooling;
    o.normalize = normalize;
    o.tokens = tokens;
    o.tokens_n = n;
    OK(segue_request_submit(&q, s, &o, &err));
    assert_int_equal(segue_request_read(q, &none, NULL, 1, &k, UINT64_MAX, &err), SEGUE_END);
    OK(segue_request_values(q, got, WIDTH_MAX, &k, &err));
    assert_int_equal(k, width);
    pool(hidden, n, width, pooling, want);
    for (size_t i = 0; i < width; i++) square += want[i] * want[i];
    for (size_t i = 0; i < width; i++) {
        double d = fabs((double)got[i] - (normalize ? want[i] / sqrt(square) : want[i]));
        length += (double)got[i] * (double)got[i];
        if (!(d <= worst)) worst = d;
    }
    if (!(worst <= bound)) fail_msg("pooling %d: values differ by %g", (int)pooling, worst);
    if (normalize) assert_true(fabs(length - 1) < 1e-5);
    segue_request_close(q);
}

static void equal_transformers(void **state)
{
    static const char *const names[] = {"llama", "qwen3", "qwen3_5", "gemma3", "gpt2"}, *const units[] = {"ref", "cpu"};
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof *names; m++)
        for (int u = 0; u < 2; u++) {
            char path[1024];
            int32_t tokens[TOKENS_MAX];
            static float hidden[TOKENS_MAX * WIDTH_MAX];
            size_t width, n;
            segue_model *model;
            segue_unit *unit;
            segue_engine *e;
            segue_scheduler *s;
            segue_model_info info = SEGUE_INIT(segue_model_info);
            segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
            o.embeddings = 1;
            o.chunk_tokens = 16;
            o.kv = SEGUE_KV_F32;
            snprintf(path, sizeof path, SEGUE_SOURCE_DIR "/tests/golden/tiny/%s", names[m]);
            OK(segue_model_open(&model, path, NULL, &err));
            OK(segue_model_info_get(model, &info, &err));
            n = read_golden(names[m], info.layers, tokens, hidden, &width);
            OK(segue_unit_open(&unit, units[u], &err));
            OK(segue_engine_open(&e, model, &unit, 1, &o, &err));
            OK(segue_scheduler_open(&s, e, NULL, &err));
            for (int p = SEGUE_POOL_LAST; p <= SEGUE_POOL_CLS; p++)
                for (uint32_t normalize = 0; normalize < 2; normalize++)
                    one(s, tokens, n, hidden, width, (segue_pooling)p, normalize, u ? 2e-2 : 1e-3);
            segue_scheduler_close(s);
            segue_engine_close(e);
            segue_unit_close(unit);
            segue_model_close(model);
        }
}

/* An engine without embeddings refuses, by name. */
static void refused(void **state)
{
    segue_model *model;
    segue_unit *unit;
    segue_engine *e;
    segue_scheduler *s;
    segue_request *q = NULL;
    segue_request_opts o = SEGUE_INIT(segue_request_opts);
    int32_t token = 5;
    (void)state;
    OK(segue_model_open(&model, SEGUE_SOURCE_DIR "/tests/golden/tiny/llama", NULL, &err));
    OK(segue_unit_open(&unit, "ref", &err));
    OK(segue_engine_open(&e, model, &unit, 1, NULL, &err));
    OK(segue_scheduler_open(&s, e, NULL, &err));
    o.kind = SEGUE_EMBED;
    o.tokens = &token;
    o.tokens_n = 1;
    assert_int_equal(segue_request_submit(&q, s, &o, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "embeddings = 1"));
    segue_scheduler_close(s);
    segue_engine_close(e);
    segue_unit_close(unit);
    segue_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_transformers), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
