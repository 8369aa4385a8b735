/* archive_golden.c: small files of every format that other programs wrote (golden/archives), read back: every
 * number, every kind of key; and our writer read back by our reader.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "tensor/archive.h"
#include "tensor/json.h"

#define GOLDEN SEGUE_SOURCE_DIR "/tests/golden/archives/"

static struct sg_archive *open_ok(const char *path)
{
    struct sg_archive *a = NULL;
    segue_error err;
    if (sg_archive_open(&a, path, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return a;
}

static void open_fails(const char *path, segue_status status, const char *reason)
{
    struct sg_archive *a = NULL;
    segue_error err;
    segue_status got = sg_archive_open(&a, path, &err);
    if (got != status || !strstr(err.text, reason) || !strchr(err.text, ';')) fail_msg("%d: %s", got, err.text);
    assert_null(a);
}

/* Every tensor of the expectation is in a, with the same shape and numbers. */
static uint32_t check_numbers(const struct sg_archive *a, const char *expect, float relative,
                              const char *skip)
{
    struct sg_archive *want = open_ok(expect);
    for (uint32_t i = 0; i < want->tensors_n; i++) {
        const struct sg_tensor *w = &want->tensors[i], *t = sg_archive_find(a, w->name);
        if (skip && !strcmp(w->name, skip)) continue;
        if (!t) fail_msg("no tensor %s", w->name);
        assert_int_equal(t->rank, w->rank);
        for (uint32_t k = 0; k < w->rank; k++) assert_int_equal(t->shape[k], w->shape[k]);
        assert_int_equal(t->rows, w->rows);
        assert_int_equal(t->cols, w->cols);
        uint64_t n = t->rows * t->cols;
        float *x = malloc(2 * n * sizeof *x), *y = x + n;
        assert_non_null(x);
        sg_tensor_read(w, x);
        sg_tensor_read(t, y);
        for (uint64_t k = 0; k < n; k++)
            if (!(fabsf(x[k] - y[k]) <= relative * (1 + fabsf(x[k]))))
                fail_msg("%s: number %llu is %.9g, golden %.9g", t->name, (unsigned long long)k, (double)y[k],
                         (double)x[k]);
        free(x);
        assert_int_equal(sg_tensor_finite(t, NULL), 1);
    }
    uint32_t n = want->tensors_n;
    sg_archive_close(want);
    return n;
}

static void string_is(const struct sg_archive *a, const char *key, const char *want, size_t n)
{
    const char *s;
    size_t len;
    assert_int_equal(sg_meta_string(a, key, &s, &len, NULL), SEGUE_OK);
    assert_int_equal(len, n);
    assert_memory_equal(s, want, n);
}

static void gguf_keys_of_every_kind(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"t.u8", 200},
                {"t.i8", -100},
                {"t.u16", 60000},
                {"t.i16", -30000},
                {"t.u32", 4000000000},
                {"t.i32", -2000000000},
                {"t.u64_small", (int64_t)1 << 40},
                {"t.i64", -((int64_t)1 << 60)},
                {"absent", 42}};
    struct sg_archive *a = open_ok(GOLDEN "kinds.gguf");
    segue_error err;
    int64_t i;
    double d;
    int b;
    for (size_t k = 0; k < sizeof ints / sizeof *ints; k++) {
        assert_int_equal(sg_meta_int(a, ints[k].key, 42, &i, NULL), SEGUE_OK);
        assert_true(i == ints[k].value);
    }
    assert_int_equal(sg_meta_int(a, "t.u64", 0, &i, &err), SEGUE_EFORMAT); /* 2^63 + 5 exceeds int64 */
    assert_non_null(strstr(err.text, "t.u64"));
    assert_int_equal(sg_meta_float(a, "t.u64", 0, &d, NULL), SEGUE_OK);
    assert_true(d == 9223372036854775808.0);
    assert_int_equal(sg_meta_float(a, "t.f64", 0, &d, NULL), SEGUE_OK);
    assert_true(d == 0.1);
    assert_int_equal(sg_meta_float(a, "t.f32", 0, &d, NULL), SEGUE_OK);
    assert_true(d == (double)0.1f);
    assert_int_equal(sg_meta_float(a, "t.i8", 0, &d, NULL), SEGUE_OK);
    assert_true(d == -100);
    assert_int_equal(sg_meta_bool(a, "t.yes", 0, &b, NULL), SEGUE_OK);
    assert_int_equal(b, 1);
    assert_int_equal(sg_meta_bool(a, "t.no", 1, &b, NULL), SEGUE_OK);
    assert_int_equal(b, 0);
    assert_int_equal(sg_meta_bool(a, "t.u8", 1, &b, NULL), SEGUE_EFORMAT);
    assert_int_equal(sg_meta_int(a, "t.yes", 1, &i, NULL), SEGUE_EFORMAT);
    assert_int_equal(sg_meta_float(a, "t.text", 1, &d, NULL), SEGUE_EFORMAT);
    string_is(a, "general.architecture", "llama", 5);
    string_is(a, "t.text",
              "Stra\xc3\x9f"
              "e \0 \xe6\x9d\xb1\xe4\xba\xac",
              16);
    string_is(a, "absent", "", 0);
    sg_archive_close(a);
}

static void gguf_arrays(void **state)
{
    (void)state;
    static const char *const words[] = {"a", "", "\xc3\xa7\xc3\xa9", "last one"};
    struct sg_archive *a = open_ok(GOLDEN "kinds.gguf");
    const struct sg_meta *ints = sg_meta_find(a, "t.ints"), *reals = sg_meta_find(a, "t.reals");
    const struct sg_meta *truths = sg_meta_find(a, "t.truths"), *texts = sg_meta_find(a, "t.words");
    assert_true(ints && reals && truths && texts);
    assert_int_equal(ints->type, SG_META_ARRAY);
    assert_int_equal(ints->v.a.n, 3);
    assert_int_equal(sg_meta_item_int(ints, 0), 3);
    assert_int_equal(sg_meta_item_int(ints, 1), -1);
    assert_int_equal(sg_meta_item_int(ints, 2), 70000);
    assert_true(sg_meta_item_float(ints, 1) == -1);
    assert_true(sg_meta_item_float(reals, 1) == -2.25);
    assert_int_equal(truths->item, SG_META_BOOL);
    assert_int_equal(sg_meta_item_int(truths, 0) + sg_meta_item_int(truths, 1) * 2 +
                         sg_meta_item_int(truths, 2) * 4,
                     5);
    assert_int_equal(texts->item, SG_META_STRING);
    assert_int_equal(texts->v.a.n, 4);
    for (uint64_t i = 0; i < 4; i++) {
        size_t len;
        const char *s = sg_meta_item_string(texts, i, &len);
        assert_int_equal(len, strlen(words[i]));
        assert_memory_equal(s, words[i], len);
    }
    sg_archive_close(a);
}

static void gguf_tensors(void **state)
{
    (void)state;
    struct sg_archive *a = open_ok(GOLDEN "kinds.gguf");
    assert_int_equal(a->format, SG_FORMAT_GGUF);
    assert_int_equal(check_numbers(a, GOLDEN "kinds.expect.safetensors", 0, NULL), 10);
    const struct sg_tensor *t = sg_archive_find(a, "three");
    assert_int_equal(t->rank, 3); /* ne {5,3,2} */
    assert_int_equal(t->rows, 6);
    assert_int_equal(t->offset % 64, 0);
    t = sg_archive_find(a, "unread");
    assert_string_equal(t->stored_as, "q1_0");
    assert_int_equal(sg_tensor_computable(t, NULL), SEGUE_EUNSUPPORTED);
    t = sg_archive_find(a, "ids");
    assert_int_equal(t->storage, SG_I32);
    assert_int_equal(sg_tensor_computable(t, NULL), SEGUE_EUNSUPPORTED);
    assert_null(sg_archive_find(a, "w"));
    sg_archive_close(a);
}

static void gguf_version_2_is_the_same(void **state)
{
    (void)state;
    struct sg_buf file = {0};
    struct sg_archive *a = NULL;
    segue_error err;
    assert_int_equal(sg_file_read(&file, GOLDEN "kinds.gguf", 1 << 20, NULL), SEGUE_OK);
    file.data[4] = 2;
    assert_int_equal(sg_archive_open_memory(&a, (const uint8_t *)file.data, file.len, "v2", NULL), SEGUE_OK);
    check_numbers(a, GOLDEN "kinds.expect.safetensors", 0, NULL);
    sg_archive_close(a);
    file.data[4] = 1;
    a = NULL;
    assert_int_equal(sg_archive_open_memory(&a, (const uint8_t *)file.data, file.len, "v1", &err),
                     SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "version 1"));
    memcpy(file.data + 4, "\0\0\0\3", 4);
    assert_int_equal(sg_archive_open_memory(&a, (const uint8_t *)file.data, file.len, "be", &err),
                     SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "big-endian"));
    assert_null(a);
    sg_buf_free(&file);
}

static void split_gguf(void **state)
{
    (void)state;
    struct sg_archive *a = open_ok(GOLDEN "split-00001-of-00003.gguf");
    assert_int_equal(a->files_n, 3);
    assert_int_equal(a->tensors_n, 5);
    assert_int_equal(check_numbers(a, GOLDEN "split.expect.safetensors", 0, NULL), 5);
    assert_int_equal(sg_archive_find(a, "blk.4.w")->file, 2);
    sg_archive_close(a);
    open_fails(GOLDEN "split-00002-of-00003.gguf", SEGUE_EFORMAT, "part 2");
}

static struct sg_hash hash_of(const struct sg_archive *a)
{
    struct sg_hash h = {0, 0};
    assert_int_equal(sg_archive_hash(a, &h, NULL, NULL), SEGUE_OK);
    return h;
}

static void sharded_safetensors(void **state)
{
    (void)state;
    const char *const ways[] = {GOLDEN "sharded", GOLDEN "sharded/",
                                GOLDEN "sharded/model.safetensors.index.json",
                                GOLDEN "sharded/model-00001-of-00003.safetensors"};
    struct sg_hash first = {0, 0};
    for (int i = 0; i < 4; i++) {
        struct sg_archive *a = open_ok(ways[i]);
        assert_int_equal(a->files_n, 3);
        assert_int_equal(a->tensors_n, 9);
        assert_int_equal(check_numbers(a, GOLDEN "sharded.expect.safetensors", 0, NULL), 6);
        string_is(a, "format", "pt", 2);
        assert_int_equal(sg_archive_find(a, "odd.1")->storage, SG_U8);
        struct sg_hash h = hash_of(a);
        if (i) assert_true(h.lo == first.lo && h.hi == first.hi);
        first = h;
        sg_archive_close(a);
    }
    open_fails(GOLDEN "sharded/model-00002-of-00003.safetensors", SEGUE_EFORMAT, "part 2 of 3");
}

static void mlx_folder(void **state)
{
    (void)state;
    struct sg_archive *a = open_ok(GOLDEN "mlx");
    json_t *config = NULL;
    segue_error err;
    assert_int_equal(sg_json_read(&config, GOLDEN "mlx/config.json", 1 << 20, NULL), SEGUE_OK);
    assert_int_equal(a->tensors_n, 19);
    if (sg_archive_join(a, config, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_int_equal(a->tensors_n, 7);
    assert_int_equal(check_numbers(a, GOLDEN "mlx.expect.safetensors", 2.5e-7f, NULL), 7);
    const struct sg_tensor *t = sg_archive_find(a, "model.c.weight");
    assert_int_equal(t->storage, SG_AFFINE);
    assert_int_equal(t->affine.bits, 3);
    assert_int_equal(t->affine.group, 128);
    assert_string_equal(t->stored_as, "affine_3_128");
    assert_null(sg_archive_find(a, "model.c.scales"));
    assert_int_equal(sg_archive_join(a, config, &err), SEGUE_OK); /* nothing left to join */
    assert_int_equal(a->tensors_n, 7);
    json_decref(config);
    sg_archive_close(a);
}

static void mlx_rules_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *config, *reason;
        segue_status status;
    } cases[] = {
        {NULL, "combinations", SEGUE_EUNSUPPORTED}, /* 4 bits of 64, 8 of 32 or 2 of 128 */
        {"{\"quantization\":{\"bits\":8,\"group_size\":64}}", "do not fit", SEGUE_EFORMAT},
        {"{\"quantization\":{\"bits\":7,\"group_size\":64}}", "7 bits", SEGUE_EUNSUPPORTED},
        {"{\"quantization\":{\"bits\":4,\"group_size\":16}}", "groups of 16", SEGUE_EUNSUPPORTED},
        {"{\"quantization\":{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}}", "mxfp4", SEGUE_EFORMAT},
        {"{\"quantization\":{\"bits\":\"4\"}}", "bits", SEGUE_EFORMAT},
    };
    struct sg_archive *a = open_ok(GOLDEN "mlx");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        segue_error err;
        json_t *config = cases[i].config ? json_loads(cases[i].config, 0, NULL) : NULL;
        segue_status s = sg_archive_join(a, config, &err);
        if (s != cases[i].status || !strstr(err.text, cases[i].reason)) fail_msg("%zu: %d %s", i, s, err.text);
        assert_int_equal(a->tensors_n, 19); /* unchanged */
        assert_int_equal(sg_archive_find(a, "model.a.weight")->storage, SG_U32);
        json_decref(config);
    }
    sg_archive_close(a);
}

static void llama2c_files(void **state)
{
    (void)state;
    static const struct {
        const char *file, *expect, *skip;
        int64_t version, shared, group;
        float relative;
    } cases[] = {{GOLDEN "legacy.bin", GOLDEN "legacy.expect.safetensors", NULL, 0, 0, 0, 0},
                 {GOLDEN "v1.bin", GOLDEN "legacy.expect.safetensors", "lm_head.weight", 1, 1, 0, 0},
                 {GOLDEN "v2.bin", GOLDEN "v2.expect.safetensors", NULL, 2, 1, 8, 0}};
    for (int i = 0; i < 3; i++) {
        struct sg_archive *a = open_ok(cases[i].file);
        int64_t v;
        assert_int_equal(a->format, SG_FORMAT_LLAMA2C);
        check_numbers(a, cases[i].expect, cases[i].relative, cases[i].skip);
        assert_int_equal(a->tensors_n, cases[i].shared ? 20 : 21);
        sg_meta_int(a, "llama2c.version", -1, &v, NULL);
        assert_int_equal(v, cases[i].version);
        sg_meta_int(a, "llama2c.shared", -1, &v, NULL);
        assert_int_equal(v, cases[i].shared);
        sg_meta_int(a, "llama2c.group_size", -1, &v, NULL);
        assert_int_equal(v, cases[i].group);
        sg_meta_int(a, "llama2c.vocab_size", -1, &v, NULL);
        assert_int_equal(v, 12);
        sg_meta_int(a, "llama2c.seq_len", -1, &v, NULL);
        assert_int_equal(v, 8);
        sg_archive_close(a);
    }
}

/* A legacy file with a positive vocabulary has no classifier behind the tables. */
static void llama2c_legacy_tied(void **state)
{
    (void)state;
    struct sg_buf file = {0};
    struct sg_archive *a = NULL;
    assert_int_equal(sg_file_read(&file, GOLDEN "legacy.bin", 1 << 20, NULL), SEGUE_OK);
    memcpy(file.data + 20, "\x0c\0\0", 4);
    const uint8_t *bytes = (const uint8_t *)file.data;
    assert_int_equal(sg_archive_open_memory(&a, bytes, file.len, "x", NULL), SEGUE_EFORMAT);
    assert_int_equal(sg_archive_open_memory(&a, bytes, file.len - 12 * 16 * 4, "x", NULL), SEGUE_OK);
    check_numbers(a, GOLDEN "legacy.expect.safetensors", 0, "lm_head.weight");
    assert_null(sg_archive_find(a, "lm_head.weight"));
    sg_archive_close(a);
    sg_buf_free(&file);
}

static void hashes_tell_files_apart(void **state)
{
    (void)state;
    struct sg_buf file = {0};
    struct sg_archive *a = NULL;
    assert_int_equal(sg_file_read(&file, GOLDEN "v1.bin", 1 << 20, NULL), SEGUE_OK);
    struct sg_hash whole, same, other;
    struct sg_archive *disk = open_ok(GOLDEN "v1.bin");
    whole = hash_of(disk);
    sg_archive_close(disk);
    assert_int_equal(sg_archive_open_memory(&a, (const uint8_t *)file.data, file.len, "x", NULL), SEGUE_OK);
    same = hash_of(a);
    file.data[file.len - 1] ^= 1;
    other = hash_of(a);
    sg_archive_close(a);
    sg_buf_free(&file);
    assert_true(whole.lo == same.lo && whole.hi == same.hi); /* the path is not part of it */
    assert_true(whole.lo != other.lo || whole.hi != other.hi);
}

/* The sample notices a changed first, last or middle page; the hash also notices what lies between two pages of the sample. */
static void samples_and_hashes(void **state)
{
    (void)state;
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[50000000],\"data_offsets\":[0,50000000]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[30000000],\"data_offsets\":[50000000,80000000]}}";
    size_t n = sizeof header - 1, data = 8 + n, size = data + 80000000;
    const size_t changes[] = {9, data, data + 49999999, data + 50000000, size - 1, data + 3 * 1048576 + 5};
    uint8_t *bytes = calloc(1, size);
    struct sg_archive *a = NULL;
    assert_non_null(bytes);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    assert_int_equal(sg_archive_open_memory(&a, bytes, size, "large", NULL), SEGUE_OK);
    struct sg_hash before = sg_archive_sample(a), whole = hash_of(a);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        bytes[changes[i]] ^= 64;
        struct sg_hash h = sg_archive_sample(a);
        bytes[changes[i]] ^= 64;
        if (h.lo == before.lo) fail_msg("change at %zu was not noticed", changes[i]);
    }
    bytes[data + 500000] ^= 64;
    assert_true(sg_archive_sample(a).lo == before.lo && hash_of(a).lo != whole.lo);
    sg_archive_close(a);
    free(bytes);
}

static void in_folder(char *path, size_t cap, const char *folder, const char *name)
{
    snprintf(path, cap, "%s/%s", folder, name);
}

static void written_files_read_back(void **state)
{
    (void)state;
    char folder[] = "/tmp/segue-archive-XXXXXX", path[256];
    float x[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
    uint16_t h[2] = {0x3c00, 0xbf80};
    int64_t ids[3] = {1, -5, (int64_t)1 << 40};
    const struct sg_st_item items[] = {
        {.name = "x", .storage = SG_F32, .rank = 2, .shape = {2, 3}, .data = x},
        {.name = "odd \"name\"\\", .storage = SG_U8, .rank = 1, .shape = {3}, .data = "abc"},
        {.name = "h", .storage = SG_F16, .rank = 1, .shape = {2}, .data = h},
        {.name = "ids", .storage = SG_I64, .rank = 1, .shape = {3}, .data = ids},
        {.name = "scalar", .storage = SG_BF16, .rank = 0, .data = h + 1},
        {.name = "empty", .storage = SG_I32, .rank = 2, .shape = {0, 7}, .data = ""},
    };
    assert_non_null(mkdtemp(folder));
    in_folder(path, sizeof path, folder, "out.bin"); /* found by content, not by name */
    assert_int_equal(sg_safetensors_write(path, items, 6, NULL), SEGUE_OK);
    struct sg_archive *a = open_ok(path);
    assert_int_equal(a->tensors_n, 6);
    float y[6];
    sg_tensor_read(sg_archive_find(a, "x"), y);
    assert_memory_equal(x, y, sizeof x);
    sg_tensor_read(sg_archive_find(a, "scalar"), y);
    assert_true(y[0] == -1.0f);
    assert_memory_equal(sg_archive_find(a, "odd \"name\"\\")->data, "abc", 3);
    assert_memory_equal(sg_archive_find(a, "ids")->data, ids, sizeof ids);
    assert_int_equal(sg_archive_find(a, "empty")->bytes, 0);
    assert_int_equal(sg_tensor_finite(sg_archive_find(a, "empty"), NULL), 1);
    sg_archive_close(a);
    struct sg_st_item bad = items[0];
    bad.storage = SG_Q4_0;
    segue_error err;
    assert_int_equal(sg_safetensors_write(path, &bad, 1, &err), SEGUE_EUNSUPPORTED);
    a = open_ok(path); /* the old file is still there */
    sg_archive_close(a);
    unlink(path);
    in_folder(path, sizeof path, folder, "no/such/folder");
    assert_int_equal(sg_safetensors_write(path, items, 1, &err), SEGUE_EIO);
    rmdir(folder);
}

static void put_file(const char *folder, const char *name, const void *bytes, size_t n)
{
    char path[256];
    in_folder(path, sizeof path, folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void copy_golden(const char *folder, const char *from, const char *name)
{
    char path[256];
    struct sg_buf file = {0};
    snprintf(path, sizeof path, GOLDEN "%s", from);
    assert_int_equal(sg_file_read(&file, path, 1 << 20, NULL), SEGUE_OK);
    put_file(folder, name, file.data, file.len);
    sg_buf_free(&file);
}

static void drop(const char *folder, const char *name)
{
    char path[256];
    in_folder(path, sizeof path, folder, name);
    assert_int_equal(unlink(path), 0);
}

static void folders_by_their_rules(void **state)
{
    (void)state;
    char folder[] = "/tmp/segue-folder-XXXXXX";
    static const char evil[] = "{\"weight_map\":{\"a\":\"../a.safetensors\"}}",
                      lost[] = "{\"weight_map\":{\"a\":\"gone.safetensors\"}}";
    assert_non_null(mkdtemp(folder));
    open_fails(folder, SEGUE_EIO, "no .safetensors");
    copy_golden(folder, "kinds.gguf", "b.gguf");
    struct sg_archive *a = open_ok(folder); /* the only GGUF */
    assert_int_equal(a->format, SG_FORMAT_GGUF);
    sg_archive_close(a);
    copy_golden(folder, "kinds.gguf", "a.gguf");
    open_fails(folder, SEGUE_EIO, "2 .gguf");
    copy_golden(folder, "sharded/model-00001-of-00003.safetensors", "weights.00.safetensors");
    copy_golden(folder, "sharded/model-00002-of-00003.safetensors", "weights.01.safetensors");
    a = open_ok(folder); /* every *.safetensors */
    assert_int_equal(a->files_n, 2);
    assert_int_equal(a->tensors_n, 6);
    sg_archive_close(a);
    copy_golden(folder, "sharded/model-00001-of-00003.safetensors", "weights.02.safetensors");
    open_fails(folder, SEGUE_EFORMAT, "duplicate");
    copy_golden(folder, "mlx/model.safetensors", "model.safetensors");
    a = open_ok(folder); /* model.safetensors goes first */
    assert_int_equal(a->tensors_n, 19);
    sg_archive_close(a);
    put_file(folder, "model.safetensors.index.json", evil, sizeof evil - 1); /* an index goes before it */
    open_fails(folder, SEGUE_EFORMAT, "../a.safetensors");
    put_file(folder, "model.safetensors.index.json", lost, sizeof lost - 1);
    open_fails(folder, SEGUE_EIO, "gone.safetensors");
    put_file(folder, "model.safetensors.index.json", "{}", 2);
    open_fails(folder, SEGUE_EFORMAT, "weight_map");
    const char *const all[] = {"a.gguf",
                               "b.gguf",
                               "weights.00.safetensors",
                               "weights.01.safetensors",
                               "weights.02.safetensors",
                               "model.safetensors",
                               "model.safetensors.index.json"};
    for (int i = 0; i < 7; i++) drop(folder, all[i]);
    rmdir(folder);
}

/* A split GGUF alone in its folder; then with a part lost, and with names changed. */
static void split_folders(void **state)
{
    (void)state;
    char folder[] = "/tmp/segue-folder-XXXXXX";
    assert_non_null(mkdtemp(folder));
    copy_golden(folder, "split-00001-of-00003.gguf", "m-00001-of-00003.gguf");
    copy_golden(folder, "split-00002-of-00003.gguf", "m-00002-of-00003.gguf");
    copy_golden(folder, "split-00003-of-00003.gguf", "m-00003-of-00003.gguf");
    struct sg_archive *a = open_ok(folder);
    assert_int_equal(a->tensors_n, 5);
    sg_archive_close(a);
    drop(folder, "m-00003-of-00003.gguf");
    char path[256];
    in_folder(path, sizeof path, folder, "m-00001-of-00003.gguf");
    open_fails(path, SEGUE_EIO, "m-00003-of-00003.gguf");
    copy_golden(folder, "split-00002-of-00003.gguf", "m-00003-of-00003.gguf");
    open_fails(path, SEGUE_EFORMAT, "part 2 of 3");
    in_folder(path, sizeof path, folder, "renamed.gguf");
    copy_golden(folder, "split-00001-of-00003.gguf", "renamed.gguf");
    open_fails(path, SEGUE_EFORMAT, "renamed.gguf");
    const char *const rest[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf",
                                "renamed.gguf"};
    for (int i = 0; i < 4; i++) drop(folder, rest[i]);
    rmdir(folder);
}

/* The index file cut at every byte, and with every byte replaced: refused, or another sound list of names. */
static void damaged_indices(void **state)
{
    (void)state;
    char folder[] = "/tmp/segue-index-XXXXXX";
    struct sg_buf file = {0};
    assert_non_null(mkdtemp(folder));
    assert_int_equal(sg_file_read(&file, GOLDEN "sharded/model.safetensors.index.json", 1 << 20, NULL),
                     SEGUE_OK);
    for (size_t i = 0; i < 2 * file.len; i++) {
        struct sg_archive *a = NULL;
        segue_error err;
        char kept = file.data[i / 2];
        if (i % 2) file.data[i / 2] = i % 4 == 1 ? '"' : '{';
        put_file(folder, "model.safetensors.index.json", file.data, i % 2 ? file.len : i / 2);
        file.data[i / 2] = kept;
        segue_status s = sg_archive_open(&a, folder, &err); /* the shards are not there */
        if (i % 2 ? s != SEGUE_EFORMAT && s != SEGUE_EIO : s != SEGUE_EFORMAT)
            fail_msg("%zu: %d %s", i, s, err.text);
        if (!strstr(err.text, "; ")) fail_msg("%zu: %s", i, err.text);
    }
    sg_buf_free(&file);
    drop(folder, "model.safetensors.index.json");
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_keys_of_every_kind),
        cmocka_unit_test(gguf_arrays),
        cmocka_unit_test(gguf_tensors),
        cmocka_unit_test(gguf_version_2_is_the_same),
        cmocka_unit_test(split_gguf),
        cmocka_unit_test(sharded_safetensors),
        cmocka_unit_test(mlx_folder),
        cmocka_unit_test(mlx_rules_that_do_not_fit),
        cmocka_unit_test(llama2c_files),
        cmocka_unit_test(llama2c_legacy_tied),
        cmocka_unit_test(hashes_tell_files_apart),
        cmocka_unit_test(samples_and_hashes),
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(folders_by_their_rules),
        cmocka_unit_test(split_folders),
        cmocka_unit_test(damaged_indices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
