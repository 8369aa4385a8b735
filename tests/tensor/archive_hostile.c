/* archive_hostile.c: weight files that lie. Every case must be refused in one line with the file, the object,
 * the numbers and a remedy, at once and in little memory; whatever opens in spite of damage must be safe to
 * walk.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/file.h"
#include "walk_archive.h"

#define GOLDEN SEGUE_SOURCE_DIR "/tests/golden/archives/"

static void refused(const char *what, const void *bytes, size_t n, const char *name, segue_status status,
                    const char *reason)
{
    segue_error err = {0};
    segue_status s = open_and_walk(bytes, n, name, &err, NULL);
    if (s != status) fail_msg("%s: status %d: %s", what, s, err.text);
    if (!strstr(err.text, reason) || !strstr(err.text, name))
        fail_msg("%s: text does not say \"%s\": %s", what, reason, err.text);
    if (!strstr(err.text, "; ")) fail_msg("%s: no remedy: %s", what, err.text);
}

/* --- GGUF by hand --- */

struct gguf {
    struct sg_buf buf;
};

static void u32(struct gguf *g, uint32_t v)
{
    for (int i = 0; i < 4; i++) sg_buf_add(&g->buf, &(uint8_t){(uint8_t)(v >> (8 * i))}, 1);
}

static void u64(struct gguf *g, uint64_t v)
{
    u32(g, (uint32_t)v);
    u32(g, (uint32_t)(v >> 32));
}

static void text_n(struct gguf *g, const char *s, size_t n)
{
    u64(g, n);
    sg_buf_add(&g->buf, s, n);
}

static void text(struct gguf *g, const char *s) { text_n(g, s, strlen(s)); }

static struct gguf begin(uint64_t tensors, uint64_t keys)
{
    struct gguf g = {{0}};
    sg_buf_add(&g.buf, "GGUF", 4);
    u32(&g, 3);
    u64(&g, tensors);
    u64(&g, keys);
    return g;
}

static void key_u32(struct gguf *g, const char *key, uint32_t v)
{
    text(g, key);
    u32(g, 4);
    u32(g, v);
}

static void tensor(struct gguf *g, const char *name, uint64_t in, uint64_t out, uint32_t type,
                   uint64_t offset)
{
    text(g, name);
    u32(g, 2);
    u64(g, in);
    u64(g, out);
    u32(g, type);
    u64(g, offset);
}

/* Room for the data, so that only the lie is wrong. */
static void data(struct gguf *g, size_t n)
{
    while (g->buf.len % 32) sg_buf_add(&g->buf, "", 1);
    while (n--) sg_buf_add(&g->buf, "", 1);
}

static void gguf_refused(const char *what, struct gguf *g, segue_status status, const char *reason)
{
    data(g, 1024);
    assert_int_equal(g->buf.failed, 0);
    refused(what, g->buf.data, g->buf.len, "lies.gguf", status, reason);
    sg_buf_free(&g->buf);
}

static void gguf_counts(void **state)
{
    (void)state;
    static const uint64_t counts[] = {UINT64_MAX, (uint64_t)1 << 63, (uint64_t)1 << 32, 100000};
    for (int i = 0; i < 4; i++) {
        struct gguf g = begin(counts[i], 0);
        gguf_refused("tensors", &g, SEGUE_EFORMAT, "do not fit");
        g = begin(0, counts[i]);
        gguf_refused("keys", &g, SEGUE_EFORMAT, "do not fit");
    }
    struct gguf g = begin(0, 1);
    u64(&g, UINT64_MAX);
    gguf_refused("key length wraps", &g, SEGUE_EFORMAT, "18446744073709551615 bytes");
    g = begin(0, 1);
    u64(&g, UINT64_MAX - 31);
    gguf_refused("key length wraps to the start", &g, SEGUE_EFORMAT, "are left");
}

static void gguf_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t n;
        const char *reason;
    } cases[] = {{"a\nb", 3, "control"},   {"a\0b", 3, "control"},   {"\x7f", 1, "control"},
                 {"\xff", 1, "UTF-8"},     {"\xc0\x80", 2, "UTF-8"}, {"\xed\xa0\x80", 3, "UTF-8"},
                 {"\xe2\x82", 2, "UTF-8"}, {"", 0, "0 bytes"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf g = begin(0, 1);
        text_n(&g, cases[i].name, cases[i].n);
        u32(&g, 4);
        u32(&g, 1);
        gguf_refused("key name", &g, SEGUE_EFORMAT, cases[i].reason);
        g = begin(1, 0);
        text_n(&g, cases[i].name, cases[i].n);
        u32(&g, 1);
        u64(&g, 4);
        u32(&g, 0);
        u64(&g, 0);
        gguf_refused("tensor name", &g, SEGUE_EFORMAT, cases[i].reason);
    }
    struct gguf g = begin(0, 2);
    key_u32(&g, "same", 1);
    key_u32(&g, "same", 2);
    gguf_refused("duplicate key", &g, SEGUE_EFORMAT, "duplicate key same");
    g = begin(2, 0);
    tensor(&g, "same", 8, 1, 0, 0);
    tensor(&g, "same", 8, 1, 0, 32);
    gguf_refused("duplicate tensor", &g, SEGUE_EFORMAT, "duplicate tensor same");
    g = begin(1, 0);
    char name[1100];
    memset(name, 'x', sizeof name);
    text_n(&g, name, sizeof name);
    gguf_refused("long name", &g, SEGUE_EFORMAT, "1100 bytes");
}

static void gguf_alignment(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 3, 33, 0xffffffff};
    for (int i = 0; i < 4; i++) {
        struct gguf g = begin(1, 1);
        key_u32(&g, "general.alignment", bad[i]);
        tensor(&g, "t", 8, 1, 0, 0);
        gguf_refused("alignment", &g, SEGUE_EFORMAT, "power of two");
    }
    struct gguf g = begin(1, 1);
    key_u32(&g, "general.alignment", 0x80000000u);
    tensor(&g, "t", 8, 1, 0, 0);
    gguf_refused("alignment beyond the file", &g, SEGUE_EFORMAT, "data starts");
    g = begin(1, 1);
    text(&g, "general.alignment");
    u32(&g, 8);
    text(&g, "32");
    tensor(&g, "t", 8, 1, 0, 0);
    gguf_refused("alignment as text", &g, SEGUE_EFORMAT, "general.alignment");
    g = begin(1, 0);
    tensor(&g, "t", 8, 1, 0, 4);
    gguf_refused("unaligned offset", &g, SEGUE_EFORMAT, "offset 4");
}

static void gguf_values(void **state)
{
    (void)state;
    struct gguf g = begin(0, 1);
    text(&g, "k");
    u32(&g, 13);
    gguf_refused("unknown type", &g, SEGUE_EFORMAT, "type 13");
    g = begin(0, 1);
    text(&g, "k");
    u32(&g, 7);
    sg_buf_add(&g.buf, "\2", 1);
    gguf_refused("is not a boolean", &g, SEGUE_EFORMAT, "key k: 2");
    g = begin(0, 1);
    text(&g, "k");
    u32(&g, 9);
    u32(&g, 9);
    u64(&g, 1);
    gguf_refused("array of arrays", &g, SEGUE_EUNSUPPORTED, "key k");
    g = begin(0, 1);
    text(&g, "k");
    u32(&g, 9);
    u32(&g, 99);
    u64(&g, 1);
    gguf_refused("array of unknown", &g, SEGUE_EFORMAT, "type 99");
    static const uint32_t kinds[] = {0, 4, 8, 10, 12};
    static const uint64_t counts[] = {UINT64_MAX, (uint64_t)1 << 61, (uint64_t)1 << 63, 5000};
    for (int i = 0; i < 20; i++) {
        g = begin(0, 1);
        text(&g, "k");
        u32(&g, 9);
        u32(&g, kinds[i % 5]);
        u64(&g, counts[i / 5]);
        gguf_refused("array too long", &g, SEGUE_EFORMAT, "key k");
    }
    g = begin(0, 1);
    text(&g, "k");
    u32(&g, 9);
    u32(&g, 8);
    u64(&g, 2);
    text(&g, "fine");
    u64(&g, UINT64_MAX - 8);
    gguf_refused("string in array wraps", &g, SEGUE_EFORMAT, "k at byte");
}

static void gguf_tensors(void **state)
{
    (void)state;
    static const struct {
        uint64_t in, out, offset;
        uint32_t type;
        const char *reason;
    } one[] = {
        {33, 1, 0, 2, "33 columns"},                                   /* no whole blocks */
        {UINT64_MAX, 2, 0, 0, "overflow"},                             /* product of dimensions */
        {(uint64_t)1 << 62, 1, 0, 0, "not whole blocks, or exceed 2^64"},      /* bytes of a row */
        {(uint64_t)1 << 32, (uint64_t)1 << 30, 0, 0, "not whole blocks"}, /* bytes of all rows */
        {(uint64_t)1 << 40, 1, 0, 0, "but the file has"},              /* beyond the end */
        {8, 1, (uint64_t)1 << 62, 0, "but the file has"},              /* offset beyond the end */
        {8, 1, UINT64_MAX - 31, 0, "but the file has"},                /* offset wraps */
        {256, 2, 1024 - 32, 0, "but the file has"},                    /* half outside */
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        struct gguf g = begin(1, 0);
        tensor(&g, "t", one[i].in, one[i].out, one[i].type, one[i].offset);
        gguf_refused("one tensor", &g, SEGUE_EFORMAT, one[i].reason);
    }
    static const uint32_t dims[] = {0, 5, 0xffffffff};
    for (int i = 0; i < 3; i++) {
        struct gguf g = begin(1, 0);
        text(&g, "t");
        u32(&g, dims[i]);
        for (int k = 0; k < 6; k++) u64(&g, 1);
        gguf_refused("dimensions", &g, SEGUE_EFORMAT, "dimensions");
    }
    struct gguf g = begin(2, 0);
    tensor(&g, "first", 64, 1, 0, 32);
    tensor(&g, "second", 64, 1, 0, 0);
    gguf_refused("overlap", &g, SEGUE_EFORMAT, "second ends at byte 256");
    g = begin(3, 0);
    tensor(&g, "a", 8, 1, 0, 64);
    tensor(&g, "b", 64, 1, 0, 64);
    tensor(&g, "c", 8, 1, 0, 0);
    gguf_refused("same place", &g, SEGUE_EFORMAT, "tensor a ends");
}

static void gguf_splits(void **state)
{
    (void)state;
    struct gguf g = begin(0, 1);
    key_u32(&g, "split.no", 1);
    gguf_refused("second part", &g, SEGUE_EFORMAT, "part 2");
    g = begin(0, 1);
    key_u32(&g, "split.count", 70000);
    gguf_refused("70000 parts", &g, SEGUE_EFORMAT, "70000");
    g = begin(0, 1);
    key_u32(&g, "split.count", 3);
    gguf_refused("name without part", &g, SEGUE_EFORMAT, "rename");
    g = begin(1, 1);
    key_u32(&g, "split.tensors.count", 7);
    tensor(&g, "t", 8, 1, 0, 0);
    gguf_refused("lost tensors", &g, SEGUE_EFORMAT, "split.tensors.count is 7, the parts have 1");
    g = begin(0, 1);
    text(&g, "split.no");
    u32(&g, 8);
    text(&g, "x");
    gguf_refused("split.no as text", &g, SEGUE_EFORMAT, "split.no");
}

/* Types that no caller asks for do not prevent opening; they are named when used. */
static void unknown_types_are_refused_when_used(void **state)
{
    (void)state;
    struct gguf g = begin(2, 0);
    struct sg_archive *a = NULL;
    segue_error err;
    tensor(&g, "new", 7, 3, 4242, 0);
    tensor(&g, "old", 8, 1, 0, 96);
    data(&g, 256);
    assert_int_equal(sg_archive_open_memory(&a, (uint8_t *)g.buf.data, g.buf.len, "x", &err), SEGUE_OK);
    assert_int_equal(sg_tensor_computable(sg_archive_find(a, "old"), NULL), SEGUE_OK);
    assert_int_equal(sg_tensor_computable(sg_archive_find(a, "new"), &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "new: it uses type 4242"));
    sg_archive_close(a);
    sg_buf_free(&g.buf);
}

/* --- safetensors by hand --- */

static struct sg_buf safetensors(const char *header, size_t n, size_t bytes)
{
    struct gguf g = {{0}};
    u64(&g, n);
    sg_buf_add(&g.buf, header, n);
    while (bytes--) sg_buf_add(&g.buf, "", 1);
    return g.buf;
}

#define T(name, shape, from, to) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

static const struct {
    const char *header;
    size_t bytes;
    const char *reason;
} safetensors_cases[] = {
    {"{" T("a", "[2]", 0, 8) "}", 9, "the tensors end at byte"}, /* trailing bytes */
    {"{" T("a", "[2]", 0, 8) "}", 7, "but the file has"},        /* cut off */
    {"{" T("a", "[2]", 4, 12) "}", 12, "gap"},
    {"{" T("a", "[1]", 0, 4) "," T("b", "[1]", 8, 12) "}", 12,
     "tensor b: its data starts"}, /* hole between */
    {"{" T("a", "[2]", 0, 8) "," T("b", "[2]", 4, 12) "}", 12, "the previous tensor ends"}, /* overlap */
    {"{" T("a", "[3]", 0, 8) "}", 8, "needs 12 bytes"},
    {"{" T("a", "[2]", 8, 0) "}", 8, "data_offsets 8 to 0"},
    {"{" T("a", "[2]", 18446744073709551600, 18446744073709551608) "}", 8, "data_offsets"}, /* wraps */
    {"{" T("a", "[2]", 0, 18446744073709551616) "}", 8, "2^64"},
    {"{" T("a", "[4294967296,4294967296]", 0, 0) "}", 0, "overflow"},
    {"{" T("a", "[4611686018427387904]", 0, 0) "}", 0, "not whole blocks"},
    {"{" T("a", "[4294967296,4294967296,4294967296,1,1,1]", 0, 0) "}", 0, "a shape whose size"},
    {"{" T("a", "[-1]", 0, 4) "}", 4, "non-negative integer"},
    {"{" T("a", "[1.0]", 0, 4) "}", 4, "non-negative integer"},
    {"{" T("a", "[1e2]", 0, 4) "}", 4, "non-negative integer"},
    {"{" T("a", "[01]", 0, 4) "}", 4, "leading zeros"},
    {"{" T("a", "[1,]", 0, 4) "}", 4, "non-negative integer"},
    {"{" T("a", "1", 0, 4) "}", 4, "'['"},
    {"{" T("a", "[1]", 0, 4) "," T("a", "[1]", 4, 8) "}", 8, "duplicate tensor a"},
    {"{" T("a", "[0]", 0, 0) "," T("a", "[0]", 0, 0) "}", 0, "duplicate tensor a"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
     "duplicate key"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "data_offsets before"},
    {"{\"a\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "'\"'"},
    {"{\"a\":{\"dtype\":\"a dtype with a long name\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
     "below the length limit"},
    {"{\"a\":7}", 0, "'{'"},
    {"{\"a\"}", 0, "':'"},
    {"{\"a", 0, "ends at byte"},
    {"{} x", 0, "only spaces"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "string as metadata"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "duplicate key k"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "a single __metadata__"},
    {"{\"__metadata__\":[]}", 0, "'{'"},
    {"{" T("a\\u0001", "[1]", 0, 4) "}", 4, "control character"},
    {"{" T("a\\u0000b", "[1]", 0, 4) "}", 4, "u0000"},
    {"{" T("a\\ud800", "[1]", 0, 4) "}", 4, "surrogate"},
    {"{" T("a\\udc00", "[1]", 0, 4) "}", 4, "surrogate"},
    {"{" T("a\\x", "[1]", 0, 4) "}", 4, "escape"},
    {"{" T("a\\u12g4", "[1]", 0, 4) "}", 4, "hex digit"},
    {"{" T("a\xff", "[1]", 0, 4) "}", 4, "UTF-8"},
    {"{" T("", "[1]", 0, 4) "}", 4, "0 bytes"},
    {"{\"a\":{\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, "32 nesting levels"},
};

static void safetensors_that_lie(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof safetensors_cases / sizeof *safetensors_cases; i++) {
        struct sg_buf b = safetensors(safetensors_cases[i].header, strlen(safetensors_cases[i].header),
                                      safetensors_cases[i].bytes);
        refused(safetensors_cases[i].header, b.data, b.len, "lies.safetensors", SEGUE_EFORMAT, safetensors_cases[i].reason);
        sg_buf_free(&b);
    }
    struct sg_buf b = safetensors("{}", 2, 0);
    b.data[5] = 1; /* a header of 2^40 bytes */
    refused("huge header", b.data, b.len, "lies.safetensors", SEGUE_EFORMAT, "lies");
    sg_buf_free(&b);
}

static void safetensors_that_are_odd_but_sound(void **state)
{
    (void)state;
    static const char header[] =
        "{\"b\":{\"shape\":[1,2,3,1,2],\"extra\":{\"x\":[1,\"]}\",null,true]},\"data_offsets\":[3,51],"
        "\"dtype\":\"F32\"},\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
        "\"new\":{\"dtype\":\"F4\",\"shape\":[5],\"data_offsets\":[51,54]},"
        "\"\\u00e9\\ud83d\\ude00\":{\"dtype\":\"I32\",\"shape\":[0],\"data_offsets\":[51,51]}}   ";
    struct sg_buf b = safetensors(header, sizeof header - 1, 54);
    struct sg_archive *a = NULL;
    segue_error err;
    if (sg_archive_open_memory(&a, (uint8_t *)b.data, b.len, "odd", &err)) fail_msg("%s", err.text);
    const struct sg_tensor *t = sg_archive_find(a, "b"); /* unaligned, five dimensions */
    assert_int_equal(t->rank, 4);
    assert_int_equal(t->shape[0] * 1000 + t->shape[1] * 100 + t->shape[2] * 10 + t->shape[3], 2312);
    assert_int_equal(t->rows, 6);
    float x[12];
    sg_tensor_read(t, x);
    assert_true(x[11] == 0);
    assert_string_equal(sg_archive_find(a, "new")->stored_as, "F4");
    assert_int_equal(sg_tensor_computable(sg_archive_find(a, "new"), NULL), SEGUE_EUNSUPPORTED);
    assert_non_null(sg_archive_find(a, "\xc3\xa9\xf0\x9f\x98\x80"));
    sg_archive_close(a);
    sg_buf_free(&b);
}

/* An empty tensor may claim 2^60 rows: nothing may count them. */
static void empty_tensors_cost_nothing(void **state)
{
    (void)state;
    static const char header[] =
        "{\"a.weight\":{\"dtype\":\"U32\",\"shape\":[1152921504606846976,0],\"data_offsets\":[0,0]},"
        "\"a.scales\":{\"dtype\":\"F32\",\"shape\":[1152921504606846976,0],\"data_offsets\":[0,0]},"
        "\"a.biases\":{\"dtype\":\"F32\",\"shape\":[1152921504606846976,0],\"data_offsets\":[0,0]}}";
    struct sg_buf b = safetensors(header, sizeof header - 1, 0);
    struct sg_archive *a = NULL;
    assert_int_equal(sg_archive_open_memory(&a, (uint8_t *)b.data, b.len, "empty", NULL), SEGUE_OK);
    assert_int_equal(sg_tensor_finite(sg_archive_find(a, "a.scales"), NULL), 1);
    json_t *config = json_loads("{\"quantization\":{\"bits\":4,\"group_size\":32}}", 0, NULL);
    (void)sg_archive_join(a, config, NULL);
    const struct sg_tensor *t = sg_archive_find(a, "a.weight");
    assert_int_equal(sg_tensor_finite(t, NULL), 1);
    if (t->storage == SG_AFFINE) sg_tensor_read(t, NULL);
    json_decref(config);
    sg_archive_close(a);
    sg_buf_free(&b);
}

/* --- llama2.c by hand --- */

static struct sg_buf whole(const char *path)
{
    struct sg_buf b = {0};
    assert_int_equal(sg_file_read(&b, path, 1 << 20, NULL), SEGUE_OK);
    return b;
}

static void put_i32(struct sg_buf *b, size_t at, int32_t v)
{
    for (int i = 0; i < 4; i++) b->data[at + (size_t)i] = (char)((uint32_t)v >> (8 * i));
}

static void llama2c_that_lie(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        int32_t value;
        segue_status status;
        const char *reason;
    } v1[] = {
        {4, 3, SEGUE_EUNSUPPORTED, "version 3"},
        {4, 0, SEGUE_EFORMAT, "version of at least 1"},
        {8, 0, SEGUE_EFORMAT, "dim 0"},
        {8, -16, SEGUE_EFORMAT, "dim -16"},
        {8, 18, SEGUE_EFORMAT, "dim 18"}, /* heads of nine: no pairs */
        {8, 1 << 20, SEGUE_EFORMAT, "but the file has"},
        {12, 0, SEGUE_EFORMAT, "hidden 0"},
        {16, 2000000000, SEGUE_EFORMAT, "layers 2000000000"},
        {16, 3, SEGUE_EFORMAT, "the file has"},
        {20, 3, SEGUE_EFORMAT, "heads 3"},
        {24, 3, SEGUE_EFORMAT, "heads 2/3"},
        {28, -12, SEGUE_EFORMAT, "vocabulary -12"},
        {28, 11, SEGUE_EFORMAT, "describes"},
    };
    for (size_t i = 0; i < sizeof v1 / sizeof *v1; i++) {
        struct sg_buf b = whole(GOLDEN "v1.bin");
        put_i32(&b, v1[i].at, v1[i].value);
        refused(v1[i].reason, b.data, b.len, "lies.bin", v1[i].status, v1[i].reason);
        sg_buf_free(&b);
    }
    struct sg_buf b = whole(GOLDEN "v2.bin");
    put_i32(&b, 37, 0);
    refused("group 0", b.data, b.len, "lies.bin", SEGUE_EFORMAT, "group 0");
    put_i32(&b, 37, 7);
    refused("group 7", b.data, b.len, "lies.bin", SEGUE_EFORMAT, "groups of 7");
    put_i32(&b, 37, 8);
    float nan_scale = NAN;
    size_t scales = 256 + 5 * 16 * 4 + 12 * 16; /* header, norms, codes of the embedding */
    memcpy(b.data + scales, &nan_scale, 4);
    refused("NaN scale", b.data, b.len, "lies.bin", SEGUE_EFORMAT, "export it again");
    sg_buf_free(&b);
    b = whole(GOLDEN "legacy.bin");
    put_i32(&b, 8, 3);
    refused("legacy of other size", b.data, b.len, "lies.bin", SEGUE_EFORMAT, "lies.bin");
    sg_buf_free(&b);
}

/* --- files that are not weights --- */

static void other_files_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *reason;
    } cases[] = {{"PK\3\4....", "PyTorch"},
                 {"\x80\x02}q", "pickle"},
                 {"version https://git-lfs.github.com/spec/v1\n", "LFS"},
                 {"<!doctype html>", "web page"},
                 {"{\"a\":1}", "JSON"},
                 {"tjgg1234", "GGML"},
                 {"hello, world", "neither"},
                 {"", "empty"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(cases[i].reason, cases[i].bytes, strlen(cases[i].bytes), "what", SEGUE_EFORMAT, cases[i].reason);
}

/* --- cut off and damaged --- */

static const char *const files[] = {GOLDEN "kinds.gguf", GOLDEN "mlx/model.safetensors", GOLDEN "legacy.bin",
                                    GOLDEN "v1.bin", GOLDEN "v2.bin"};

/* GGUF pads the last tensor: without the padding the file is still whole. */
static size_t needed_bytes(const struct sg_buf *b)
{
    struct sg_archive *a = NULL;
    uint64_t end = 0;
    assert_int_equal(sg_archive_open_memory(&a, (uint8_t *)b->data, b->len, "whole", NULL), SEGUE_OK);
    for (uint32_t i = 0; i < a->tensors_n; i++) {
        const struct sg_tensor *t = &a->tensors[i];
        uint64_t scales = t->affine.scales ? t->rows * t->cols / t->affine.group * 4 : 0;
        if (t->storage != SG_OTHER && t->offset + t->bytes + scales > end)
            end = t->offset + t->bytes + scales;
    }
    sg_archive_close(a);
    return end;
}

static void cut_off_at_every_byte(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct sg_buf b = whole(files[i]);
        size_t end = needed_bytes(&b);
        assert_true(end > 300 && end <= b.len && b.len - end < 256);
        for (size_t n = 0; n < end; n++) {
            segue_error err;
            segue_status s = open_and_walk((uint8_t *)b.data, n, "cut", &err, NULL);
            if (s != SEGUE_EFORMAT) fail_msg("%s cut to %zu: status %d", files[i], n, s);
            if (!strstr(err.text, "cut: ") || !strstr(err.text, "; "))
                fail_msg("%s cut to %zu: %s", files[i], n, err.text);
        }
        sg_buf_free(&b);
    }
}

static uint32_t next_random(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

/* Ten thousand files with one to eight damaged bytes, most of them in the header. */
static void damaged_anywhere(void **state)
{
    (void)state;
    uint32_t x = 1;
    int opened = 0, refusals = 0;
    for (int i = 0; i < 5; i++) {
        struct sg_buf b = whole(files[i]);
        uint8_t *bytes = malloc(b.len);
        assert_non_null(bytes);
        for (int k = 0; k < 2000; k++) {
            int ok = 0;
            segue_error err = {0};
            size_t span = k % 2 ? b.len : b.len < 1500 ? b.len : 1500;
            memcpy(bytes, b.data, b.len);
            for (uint32_t n = 1 + next_random(&x) % 8; n; n--) {
                uint8_t *at = &bytes[next_random(&x) % span];
                uint32_t kind = next_random(&x) % 4;
                *at = (uint8_t)(kind == 0   ? 0xff
                                : kind == 1 ? 0
                                : kind == 2 ? *at ^ 1u << next_random(&x) % 8
                                            : next_random(&x));
            }
            segue_status s = open_and_walk(bytes, b.len, "damaged", &err, &ok);
            if (!ok && s != SEGUE_EFORMAT && s != SEGUE_EUNSUPPORTED)
                fail_msg("%s: status %d: %s", files[i], s, err.text);
            opened += ok;
            refusals += !ok;
        }
        free(bytes);
        sg_buf_free(&b);
    }
    assert_true(opened > 1000 && refusals > 1000);
}

/* Headers that are large and well-formed: the bounds keep memory below 64 MB (here: what the archive would
 * hold). */
static void large_headers_stay_small(void **state)
{
    (void)state;
    struct gguf g = begin(200000, 0);
    for (int i = 0; i < 200000; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        tensor(&g, name, 8, 1, 0, 0);
    }
    gguf_refused("200000 tensors", &g, SEGUE_EFORMAT, "more than 131072 tensors");
    g = begin(0, 1);
    text(&g, "words");
    u32(&g, 9);
    u32(&g, 8);
    u64(&g, 3000000);
    for (int i = 0; i < 3000000; i++) sg_buf_add(&g.buf, "\0\0\0\0\0\0\0", 8);
    gguf_refused("3000000 strings", &g, SEGUE_EFORMAT, "key words: 3000000 strings");
    struct sg_buf b = {0};
    sg_buf_puts(&b, "{");
    for (int i = 0; i < 200000; i++)
        sg_buf_printf(&b, "%s\"t%d\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? "," : "",
                      i);
    sg_buf_puts(&b, "}");
    struct sg_buf file = safetensors(b.data, b.len, 0);
    refused("200000 tensors", file.data, file.len, "lies.safetensors", SEGUE_EFORMAT,
            "more than 131072 tensors");
    sg_buf_free(&file);
    sg_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_counts),
        cmocka_unit_test(gguf_names),
        cmocka_unit_test(gguf_alignment),
        cmocka_unit_test(gguf_values),
        cmocka_unit_test(gguf_tensors),
        cmocka_unit_test(gguf_splits),
        cmocka_unit_test(unknown_types_are_refused_when_used),
        cmocka_unit_test(safetensors_that_lie),
        cmocka_unit_test(safetensors_that_are_odd_but_sound),
        cmocka_unit_test(empty_tensors_cost_nothing),
        cmocka_unit_test(llama2c_that_lie),
        cmocka_unit_test(other_files_are_named),
        cmocka_unit_test(cut_off_at_every_byte),
        cmocka_unit_test(damaged_anywhere),
        cmocka_unit_test(large_headers_stay_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
