/* cpu_kv_range.c: K beyond the range of f16 in a model with recurrent slots. A short pass over these cannot be taken back, so the
 * state keeps its row; the next call of the session must give the reason again, not the position.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/num.h"
#include "segue.h"

#define TINY SEGUE_SOURCE_DIR "/tests/golden/tiny/qwen3_5/"
#define K_NORM "\"model.language_model.layers.3.self_attn.k_norm.weight\""
enum { TENSOR_BYTES = 1 << 20, UP = 18 };

static uint8_t *read_file(const char *path, size_t *n)
{
    uint8_t *data = malloc(TENSOR_BYTES);
    FILE *f = fopen(path, "rb");
    assert_true(data && f);
    *n = fread(data, 1, TENSOR_BYTES, f);
    assert_true(*n > 8 && *n < TENSOR_BYTES && !fclose(f));
    return data;
}

static void write_file(const char *path, const uint8_t *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(data, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

/* k_norm times 2^UP: its numbers are bf16, so only exponents change. */
static void scale_k_norm(uint8_t *file)
{
    uint64_t header;
    size_t from = 0, to = 0;
    memcpy(&header, file, 8);
    char *entry = strstr((char *)file + 8, K_NORM);
    assert_non_null(entry);
    entry = strstr(entry, "\"data_offsets\":[");
    assert_true(entry && sscanf(entry, "\"data_offsets\":[%zu,%zu]", &from, &to) == 2 && to > from);
    for (uint8_t *p = file + 8 + header + from; p < file + 8 + header + to; p += 2) {
        uint16_t bits = sg_le16(p);
        assert_true(bits & 0x7fff);
        bits = (uint16_t)(bits + (UP << 7));
        memcpy(p, &bits, 2);
    }
}

/* A folder with the config of the tiny model and its scaled weights. */
static void make_model(char *folder, size_t cap)
{
    char path[256];
    size_t n;
    snprintf(folder, cap, "/tmp/segue-kv-range-%ld-XXXXXX", (long)getpid());
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "model.safetensors" : "config.json";
        snprintf(path, sizeof path, TINY "%s", name);
        uint8_t *data = read_file(path, &n);
        if (i) scale_k_norm(data);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        write_file(path, data, n);
        free(data);
    }
}

static void remove_model(const char *folder)
{
    char path[256];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? "model.safetensors" : "config.json");
        unlink(path);
    }
    rmdir(folder);
}

static void every_call_gives_the_reason(void **state)
{
    (void)state;
    static const int32_t tokens[] = {5, 17, 29, 41};
    char folder[128];
    segue_error err = {0};
    segue_model *m = NULL;
    segue_unit *u = NULL;
    segue_engine *e = NULL;
    segue_session *s = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    int32_t token;
    make_model(folder, sizeof folder);
    o.kv = SEGUE_KV_F16;
    assert_int_equal(segue_model_open(&m, folder, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_unit_open(&u, "cpu:threads=1", &err), SEGUE_OK);
    assert_int_equal(segue_engine_open(&e, m, &u, 1, &o, &err), SEGUE_OK);
    assert_int_equal(segue_session_open(&s, e, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_session_append(s, tokens, 4, &err), SEGUE_OK);
    for (int call = 0; call < 2; call++) {
        assert_int_equal(segue_session_next(s, &token, &err), SEGUE_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "K of layer 3"));
        assert_non_null(strstr(err.text, "--kv bf16"));
    }
    segue_session_close(s);
    segue_engine_close(e);
    segue_unit_close(u);
    segue_model_close(m);
    remove_model(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_call_gives_the_reason)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
