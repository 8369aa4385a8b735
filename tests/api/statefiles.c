/* statefiles.c: saved sessions on disk: damage anywhere is refused by name, other models and small contexts
 * are refused, a lying header with a right checksum does no harm, and what one unit saved another continues
 * with, byte for byte. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "segue.h"
#include "tiny.h"

enum { PROMPT = 21, UNITS_MAX = 8, HEAD_BYTES = 448, SLOT_BYTES = 80, POINT_BYTES = 32, SLOTS_AT = 392, POINTS_AT = 396 };

static segue_error err;
static segue_unit *units[UNITS_MAX];
static uint32_t units_n;
static int32_t prompt[PROMPT];
static char path[1024];

static segue_model *tiny(int i, uint32_t seed)
{
    segue_model *m = NULL;
    char folder[512];
    tiny_folder(folder, sizeof folder, "statefiles", tiny_models[i].name);
    assert_true(tiny_write(&tiny_models[i], folder, seed));
    if (segue_model_open(&m, folder, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return m;
}

static segue_engine *engine_of(segue_model *m, uint32_t unit, uint32_t kv)
{
    segue_engine *e = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    o.kv = kv;
    if (segue_engine_open(&e, m, &units[unit], 1, &o, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return e;
}

static void save_one(segue_engine *e, int answers)
{
    segue_session *s = NULL;
    int32_t token;
    assert_int_equal(segue_session_open(&s, e, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_session_append(s, prompt, PROMPT, &err), SEGUE_OK);
    assert_int_equal(segue_session_prefill(s, 0, NULL, &err), SEGUE_OK);
    for (int i = 0; i < answers; i++) assert_true(segue_session_next(s, &token, &err) >= 0);
    if (segue_session_save(s, path, &err) != SEGUE_OK) fail_msg("%s", err.text);
    segue_session_close(s);
}

static segue_status load_one(segue_engine *e, segue_session **out)
{
    segue_session *s = NULL;
    segue_status status = segue_session_load(&s, e, NULL, path, &err);
    if (out)
        *out = s;
    else
        segue_session_close(status == SEGUE_OK ? s : NULL);
    return status;
}

static size_t read_file(unsigned char **out)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t n = (size_t)ftell(f);
    rewind(f);
    *out = malloc(n);
    assert_non_null(*out);
    assert_int_equal(fread(*out, 1, n, f), n);
    fclose(f);
    return n;
}

static void write_file(const unsigned char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static int begin(void **state)
{
    (void)state;
    segue_unit_info info[UNITS_MAX];
    size_t n = 0;
    info[0] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(info, UNITS_MAX, &n, &err) != SEGUE_OK) return -1;
    for (size_t i = 0; i < n && i < UNITS_MAX; i++)
        if (info[i].present && !info[i].simulated &&
            segue_unit_open(&units[units_n], info[i].spec, &err) == SEGUE_OK) units_n++;
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 31 + 7) % 93 + 3;
    tiny_folder(path, sizeof path, "statefiles", "file.state");
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < units_n; i++) segue_unit_close(units[i]);
    unlink(path);
    tiny_remove("statefiles");
    return 0;
}

static void damage_is_refused(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        segue_model *model = tiny(m, 5);
        segue_engine *e = engine_of(model, 0, 0);
        unsigned char *bytes;
        save_one(e, 2);
        size_t n = read_file(&bytes);
        assert_int_equal(load_one(e, NULL), SEGUE_OK);
        for (size_t i = 0; i < n; i += 1 + n / 4000) { /* truncated */
            write_file(bytes, i);
            segue_status s = load_one(e, NULL);
            if (s != SEGUE_EFORMAT) fail_msg("cut to %zu of %zu bytes: %d", i, n, s);
            assert_non_null(strstr(err.text, "file.state"));
        }
        for (size_t i = 0; i < n; i++) { /* one bit of a byte; every byte of a small file, else spread */
            if (n > 20000 && i > 2000 && i % 7) continue;
            bytes[i] ^= (unsigned char)(1 << i % 8);
            write_file(bytes, n);
            segue_status s = load_one(e, NULL);
            if (s != SEGUE_EFORMAT && !(s == SEGUE_EUNSUPPORTED && i >= 16 && i < 20))
                fail_msg("bit of byte %zu: %d", i, s);
            bytes[i] ^= (unsigned char)(1 << i % 8);
        }
        unsigned char *longer = malloc(n + 1);
        assert_non_null(longer);
        memcpy(longer, bytes, n);
        longer[n] = 0;
        write_file(longer, n + 1);
        assert_int_equal(load_one(e, NULL), SEGUE_EFORMAT);
        free(longer);
        free(bytes);
        segue_engine_close(e);
        segue_model_close(model);
    }
}

/* Bytes of the header but for its checksum. */
static size_t header(const unsigned char *b)
{
    size_t slots = (size_t)b[SLOTS_AT] | (size_t)b[SLOTS_AT + 1] << 8 | (size_t)b[SLOTS_AT + 2] << 16;
    return HEAD_BYTES + slots * SLOT_BYTES + (size_t)b[POINTS_AT] * POINT_BYTES;
}

static void put_sum(unsigned char *at, struct sg_hash sum)
{
    for (int i = 0; i < 8; i++) {
        at[i] = (unsigned char)(sum.lo >> 8 * i);
        at[8 + i] = (unsigned char)(sum.hi >> 8 * i);
    }
}

/* Anyone who can compute a checksum can write any header: each word in turn, with the checksum made right. */
static void lies_do_no_harm(void **state)
{
    (void)state;
    static const uint32_t lies[] = {0, 1, 2, 0x7f, 0xffff, 0x7fffffff, 0x80000000u, 0xffffffffu};
    segue_model *model = tiny(2, 5);
    segue_engine *e = engine_of(model, 0, 0);
    unsigned char *bytes;
    save_one(e, 2);
    size_t n = read_file(&bytes), head = header(bytes);
    size_t taken = 0, tried = 0;
    for (size_t at = 16; at + 4 <= head; at += 4)
        for (size_t k = 0; k < sizeof lies / sizeof *lies; k++) {
            unsigned char *copy = malloc(n);
            assert_non_null(copy);
            memcpy(copy, bytes, n);
            for (int i = 0; i < 4; i++) copy[at + (size_t)i] = (unsigned char)(lies[k] >> 8 * i);
            size_t size = header(copy);
            if (size + 16 > n) size = head;
            put_sum(copy + size, sg_hash_bytes(copy, size, 2));
            write_file(copy, n);
            segue_session *s = NULL;
            segue_status status = load_one(e, &s);
            assert_true(status == SEGUE_OK || status == SEGUE_EFORMAT || status == SEGUE_EUNSUPPORTED ||
                        status == SEGUE_ELIMIT || status == SEGUE_EARG);
            if (status == SEGUE_OK) { /* a word that says nothing about the state: it continues as before */
                int32_t token;
                assert_true(segue_session_next(s, &token, &err) >= 0);
                segue_session_close(s);
            }
            taken += status == SEGUE_OK;
            tried++;
            free(copy);
        }
    assert_true(taken < tried / 2);
    free(bytes);
    segue_engine_close(e);
    segue_model_close(model);
}

static void strangers_are_refused(void **state)
{
    (void)state;
    segue_model *one = tiny(0, 5), *other, *shape;
    segue_engine *e = engine_of(one, 0, 0), *f;
    segue_session *s = NULL;
    save_one(e, 0);
    other = tiny(0, 6);
    f = engine_of(other, 0, 0);
    assert_int_equal(load_one(f, NULL), SEGUE_EFORMAT);
    assert_non_null(strstr(err.text, "weights"));
    segue_engine_close(f);
    shape = tiny(1, 5);
    f = engine_of(shape, 0, 0);
    assert_int_equal(load_one(f, NULL), SEGUE_EFORMAT);
    assert_non_null(strstr(err.text, "shape"));
    segue_engine_close(f);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    o.context = PROMPT - 1;
    assert_int_equal(segue_session_load(&s, e, &o, path, &err), SEGUE_ELIMIT);
    write_file((const unsigned char *)"hello", 5);
    assert_int_equal(load_one(e, NULL), SEGUE_EFORMAT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(load_one(e, NULL), SEGUE_EIO);
    segue_engine_close(e);
    segue_model_close(one);
    segue_model_close(other);
    segue_model_close(shape);
}

/* Saved on one unit, loaded and saved on another: the same sections, whatever the storage. */
static void units_exchange_bytes(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        segue_model *model = tiny(m, 5);
        for (uint32_t kv = SEGUE_KV_F32; kv <= SEGUE_KV_Q8; kv++)
            for (uint32_t a = 0; a < units_n; a++)
                for (uint32_t b = 0; b < units_n; b++) {
                    segue_engine *ea = engine_of(model, a, kv), *eb = engine_of(model, b, kv);
                    segue_session *s = NULL;
                    unsigned char *first, *second;
                    save_one(ea, 3);
                    size_t n = read_file(&first);
                    if (load_one(eb, &s) != SEGUE_OK) fail_msg("%s", err.text);
                    assert_int_equal(segue_session_save(s, path, &err), SEGUE_OK);
                    assert_int_equal(read_file(&second), n);
                    size_t body = header(first) + 16;
                    assert_memory_equal(first + body, second + body, n - body);
                    segue_session_close(s);
                    free(first);
                    free(second);
                    segue_engine_close(ea);
                    segue_engine_close(eb);
                }
        segue_model_close(model);
    }
}

/* Another storage than the file's is converted, and the answer continues. */
static void storages_are_converted(void **state)
{
    (void)state;
    segue_model *model = tiny(0, 5);
    for (uint32_t u = 0; u < units_n; u++)
        for (uint32_t from = SEGUE_KV_F32; from <= SEGUE_KV_Q8; from++)
            for (uint32_t to = SEGUE_KV_F32; to <= SEGUE_KV_Q8; to++) {
                segue_engine *a = engine_of(model, u, from), *b = engine_of(model, u, to);
                segue_session *s = NULL;
                int32_t token;
                save_one(a, 1);
                if (load_one(b, &s) != SEGUE_OK) fail_msg("%u to %u: %s", from, to, err.text);
                assert_true(segue_session_next(s, &token, &err) >= 0);
                segue_session_close(s);
                segue_engine_close(a);
                segue_engine_close(b);
            }
    segue_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_is_refused),      cmocka_unit_test(lies_do_no_harm),
        cmocka_unit_test(strangers_are_refused),  cmocka_unit_test(units_exchange_bytes),
        cmocka_unit_test(storages_are_converted),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
