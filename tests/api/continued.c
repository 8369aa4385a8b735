/* continued.c: a text that is interrupted in every way a session knows (saved and loaded, forked, gone back,
 * taken from the prefix store) is continued as transformers continues it: the logits of the recorded goldens,
 * within the bound of fp32. SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/num.h"
#include "segue.h"
#include "tensor/archive.h"

#define OK(expr)                                          \
    do {                                                  \
        if ((expr) != SEGUE_OK) fail_msg("%s", err.text); \
    } while (0)
enum { CHUNK = 7 };
static const double bound = 1e-3; /* of tests/model: transformers' own spread in fp32 */

static segue_error err;
static const char *const names[] = {"gpt2", "llama", "mistral", "qwen3", "qwen3_5", "gemma3"};

struct continued_golden {
    int32_t *tokens;
    float *logits; /* [n, vocab] */
    size_t n, vocab;
};

static void read_golden(struct continued_golden *g, const char *name)
{
    char path[1024];
    struct sg_archive *a = NULL;
    snprintf(path, sizeof path, SEGUE_SOURCE_DIR "/tests/golden/tiny/%s/golden.safetensors", name);
    OK(sg_archive_open(&a, path, &err));
    const struct sg_tensor *tokens = sg_archive_find(a, "prompt"), *logits = sg_archive_find(a, "logits");
    assert_true(tokens && logits && tokens->storage == SG_I32);
    g->n = tokens->cols;
    g->vocab = logits->cols;
    assert_int_equal(logits->rows, g->n);
    g->tokens = malloc(g->n * sizeof *g->tokens);
    g->logits = malloc(g->n * g->vocab * sizeof *g->logits);
    assert_true(g->tokens && g->logits);
    for (size_t i = 0; i < g->n; i++) g->tokens[i] = (int32_t)sg_le32(tokens->data + 4 * i);
    sg_tensor_read(logits, g->logits);
    sg_archive_close(a);
}

/* The rest of the text from token `from`, against the golden's rows. */
static void rest_is_golden(segue_session *s, const struct continued_golden *g, size_t from, const char *name,
                           const char *way)
{
    size_t rows = g->n - from;
    float *logits = malloc(rows * g->vocab * sizeof *logits);
    assert_non_null(logits);
    OK(segue_session_score(s, g->tokens + from, rows, NULL, logits, &err));
    double worst = 0;
    for (size_t i = 0; i < rows * g->vocab; i++) {
        double d = fabs((double)logits[i] - (double)g->logits[from * g->vocab + i]);
        if (!(d <= worst)) worst = d;
    }
    if (!(worst <= bound)) fail_msg("%s, %s: logits differ by %g", name, way, worst);
    free(logits);
}

static void read_text(segue_session *s, const struct continued_golden *g, size_t from, size_t to)
{
    OK(segue_session_append(s, g->tokens + from, to - from, &err));
    OK(segue_session_prefill(s, 0, NULL, &err));
}

static void every_way(segue_engine *e, const struct continued_golden *g, const char *name, const char *file)
{
    segue_session *s = NULL, *t = NULL;
    size_t half = g->n * 2 / 3;
    const int32_t wrong[3] = {1, 2, 1};
    OK(segue_session_open(&s, e, NULL, &err));
    read_text(s, g, 0, half);
    OK(segue_session_save(s, file, &err));
    OK(segue_session_fork(&t, s, &err));
    rest_is_golden(t, g, half, name, "forked");
    segue_session_close(t);
    OK(segue_session_append(s, wrong, 3, &err));
    OK(segue_session_prefill(s, 0, NULL, &err));
    OK(segue_session_rewind(s, half, &err));
    rest_is_golden(s, g, half, name, "gone back");
    OK(segue_session_rewind(s, half / 2, &err));
    rest_is_golden(s, g, half / 2, name, "gone back further");
    segue_session_close(s);
    OK(segue_session_load(&s, e, NULL, file, &err));
    rest_is_golden(s, g, half, name, "loaded");
    OK(segue_session_rewind(s, half - 3, &err));
    rest_is_golden(s, g, half - 3, name, "loaded and gone back");
    segue_session_close(s);
    OK(segue_session_open(&s, e, NULL, &err));
    read_text(s, g, 0, half); /* known to the store by now */
    segue_stats st = SEGUE_INIT(segue_stats);
    OK(segue_session_stats_get(s, &st, &err));
    if (half > 24) assert_true(st.tokens_reused >= half - CHUNK);
    rest_is_golden(s, g, half, name, "from the store");
    segue_session_close(s);
}

static void continued_as_transformers_does(void **state)
{
    (void)state;
    char path[1024], file[64];
    snprintf(file, sizeof file, "/tmp/segue-continued-%ld.state", (long)getpid());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct continued_golden g;
        segue_model *m = NULL;
        segue_unit *u = NULL;
        segue_engine *e = NULL;
        segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
        o.store = ""; /* in memory */
        o.chunk_tokens = CHUNK;
        read_golden(&g, names[i]);
        snprintf(path, sizeof path, SEGUE_SOURCE_DIR "/tests/golden/tiny/%s", names[i]);
        OK(segue_model_open(&m, path, NULL, &err));
        OK(segue_unit_open(&u, "ref", &err));
        OK(segue_engine_open(&e, m, &u, 1, &o, &err));
        every_way(e, &g, names[i], file);
        segue_engine_close(e);
        segue_unit_close(u);
        segue_model_close(m);
        free(g.tokens);
        free(g.logits);
    }
    unlink(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(continued_as_transformers_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
