/* tok_hostile.c: damaged and absurd tokenizer files, calls with NULL, and texts and patterns that make naive algorithms
 * slow.
 * SPDX-License-Identifier: MIT */
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

#include "golden_tokenizer.h"

#define MODEL(vocab, merges) "\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"
#define AB "{\"a\":0,\"b\":1,\"ab\":2}"

/* Open and close; the status is returned. A tokenizer exists exactly after OK. */
static segue_status open_json(const char *json, size_t len, segue_error *err)
{
    struct sg_tokenizer *t = NULL;
    segue_status s = sg_tokenizer_of_json(&t, json, len, NULL, 0, "t.json", err);
    assert_true((s == SEGUE_OK) == (t != NULL));
    sg_tokenizer_close(t);
    return s;
}

/* Steps that multiply the text stop at the budget of the call: 16 replacements by 30 bytes would make 30^16 bytes of one. The
 * texts of added tokens pass the same steps when the file is opened. */
static void multiplying_steps_are_stopped(void **state)
{
    static const char *const rest[] = {"", ",\"added_tokens\":[{\"id\":1,\"content\":\"<a>\",\"normalized\":true}]"};
    (void)state;
    for (int added = 0; added < 2; added++) {
        struct sg_buf json = {0};
        struct sg_tokenizer *t = NULL;
        segue_error err;
        int32_t tokens[64];
        size_t n;
        sg_buf_puts(&json, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
        for (int i = 0; i < 16; i++)
            sg_buf_printf(&json, "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"%s\"}", i ? "," : "",
                          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
        sg_buf_printf(&json, "]},\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\",\"vocab\":{\"a\":0},\"merges\":[]}%s}",
                      rest[added]);
        segue_status s = sg_tokenizer_of_json(&t, json.data, json.len, NULL, 0, "t.json", &err);
        if (s == SEGUE_OK) s = sg_tokenize(t, "a", 1, 0, tokens, 64, &n, &err);
        assert_int_equal(s, SEGUE_ELIMIT);
        assert_non_null(strstr(err.text, "more than 64 times"));
        sg_tokenizer_close(t);
        sg_buf_free(&json);
    }
}

/* Texts of eight bytes with one value under the hash of version 0.1, which had no key: x -> ((x ^ k) c, folded) twice. */
static uint64_t colliding(uint64_t i)
{
    const uint64_t c = 0xff51afd7ed558ccdu, k = 0x9e3779b97f4a7c15u ^ 8;
    uint64_t inverse = c; /* modulo 2^64, by Newton's method */
    for (int step = 0; step < 6; step++) inverse *= 2 - c * inverse;
    uint64_t h = i << 32 | (i ^ 5); /* h ^ h >> 32 has the low half 5 */
    h *= inverse;
    h ^= h >> 32;
    return h * inverse ^ k;
}

/* 400,000 tokens that collide under a known hash are opened in the processor time of any others: a quadratic search takes
 * minutes, and the kernel then ends the process. */
static void colliding_tokens_open(void **state)
{
    enum { N = 400000 };
    (void)state;
    struct sg_buf bin = {0};
    struct sg_tokenizer *t = NULL;
    segue_error err;
    struct rlimit limit = {120, 120};
    assert_int_equal(setrlimit(RLIMIT_CPU, &limit), 0);
    sg_buf_add(&bin, "\x08\0\0\0", 4);
    for (uint32_t id = 0; id < N; id++) {
        const uint32_t head[2] = {0, 8}; /* score 0, length */
        uint64_t text = id < 259 ? id : colliding(id);
        char bytes[16];
        snprintf(bytes, sizeof bytes, "byte%04x", (unsigned)id);
        if (id >= 259) memcpy(bytes, &text, 8);
        if (id >= 3 && id < 259) snprintf(bytes, sizeof bytes, "<0x%02X>", (unsigned)(id - 3));
        const uint32_t len = id >= 3 && id < 259 ? 6 : head[1];
        sg_buf_add(&bin, (const char *)&head[0], 4);
        sg_buf_add(&bin, (const char *)&len, 4);
        sg_buf_add(&bin, bytes, len);
    }
    if (sg_tokenizer_of_bin(&t, (const uint8_t *)bin.data, bin.len, N, "t.bin", &err) != SEGUE_OK) fail_msg("%s", err.text);
    sg_tokenizer_close(t);
    sg_buf_free(&bin);
}

/* PCRE2's compiler recurses over parentheses: 200 levels died with 128 KiB of stack. Also run with that (text_hostile_stack). */
static void deep_patterns_are_refused(void **state)
{
    static const char *const open[] = {"(", "(?:", "(?=", "(?i:(", "(?1)("}, *const close[] = {")", ")", ")", ")*)?", "|a)"};
    (void)state;
    for (size_t k = 0; k < sizeof open / sizeof *open; k++)
        for (int n = 1; n <= 1500; n = n * 3 + 2) {
            struct sg_buf json = {0};
            segue_error err;
            sg_buf_puts(&json, "{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"");
            for (int i = 0; i < n; i++) sg_buf_puts(&json, open[k]);
            sg_buf_puts(&json, "a");
            for (int i = 0; i < n; i++) sg_buf_puts(&json, close[k]);
            sg_buf_puts(&json, "\"}}," MODEL(AB, "[]") "}");
            segue_status s = open_json(json.data, json.len, &err);
            assert_true(s == SEGUE_EUNSUPPORTED || (n <= 30 && s == SEGUE_OK));
            sg_buf_free(&json);
        }
}

/* Each prefix of a valid file is EFORMAT, and the message names the file. */
static void cut_json_is_refused(void **state)
{
    (void)state;
    struct sg_buf json = golden_json("spm_llama2");
    segue_error err;
    for (size_t n = 0; n < json.len; n += n < 2000 ? 7 : 211) {
        char *copy = malloc(n + 1); /* exact size: a sanitizer detects a read beyond the end */
        memcpy(copy, json.data, n);
        assert_int_equal(open_json(copy, n, &err), SEGUE_EFORMAT);
        assert_non_null(strstr(err.text, "t.json"));
        free(copy);
    }
    sg_buf_free(&json);
}

/* Each case is refused with its status, and the message contains the text in `reason`. */
static void absurd_json_is_refused(void **state)
{
    static const struct {
        const char *json, *reason;
        segue_status status;
    } cases[] = {
        {"[]", "t.json", SEGUE_EFORMAT},
        {"{}", "model", SEGUE_EFORMAT},
        {"{" MODEL("{}", "[]") "}", "no tokens", SEGUE_EFORMAT},
        {"{" MODEL("{\"a\":0,\"b\":0}", "[]") "}", "id 0 is both", SEGUE_EFORMAT},
        {"{" MODEL("{\"a\":-1}", "[]") "}", "no tokens", SEGUE_EFORMAT},
        {"{" MODEL("{\"a\":-1,\"b\":5}", "[]") "}", "id -1", SEGUE_EFORMAT},
        {"{" MODEL("{\"a\":4000000000}", "[]") "}", "highest id 4000000000", SEGUE_EFORMAT},
        {"{" MODEL("{\"a\":9223372036854775807}", "[]") "}", "highest id", SEGUE_EFORMAT},
        {"{" MODEL("{\"a\":\"x\"}", "[]") "}", "an id", SEGUE_EFORMAT},
        {"{" MODEL("[]", "[]") "}", "model.vocab", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[\"a c\"]") "}", "\"c\"", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[\"b a\"]") "}", "\"ba\"", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[\"ab\"]") "}", "model.merges", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[[\"a\"]]") "}", "model.merges", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[[\"a\",7]]") "}", "model.merges", SEGUE_EFORMAT},
        {"{" MODEL(AB, "{}") "}", "merges", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[]") ",\"added_tokens\":7}", "added_tokens", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[]") ",\"added_tokens\":[7]}", "added_tokens", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[]") ",\"added_tokens\":[{\"id\":1,\"content\":\"<x>\"}]}", "id 1 is both",
         SEGUE_EFORMAT},
        {"{" MODEL(AB, "[]") ",\"added_tokens\":[{\"id\":70000000,\"content\":\"<x>\"}]}", "highest id",
         SEGUE_EFORMAT},
        {"{" MODEL(AB, "[]") ",\"normalizer\":{\"type\":\"NFKC\"}}", "\"NFKC\"", SEGUE_EUNSUPPORTED},
        {"{" MODEL(
             AB,
             "[]") ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},\"content\":\"\"}}",
         "Replace by regular expression", SEGUE_EUNSUPPORTED},
        {"{" MODEL(
             AB,
             "[]") ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}}",
         "Replace", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[]") ",\"pre_tokenizer\":{\"type\":\"Whitespace\"}}", "\"Whitespace\"",
         SEGUE_EUNSUPPORTED},
        {"{" MODEL(AB, "[]") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}}",
         "split pattern", SEGUE_EUNSUPPORTED},
        {"{" MODEL(AB, "[]") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"}}}",
         "Split", SEGUE_EFORMAT},
        {"{" MODEL(AB, "[]") ",\"decoder\":{\"type\":\"WordPiece\"}}", "\"WordPiece\"", SEGUE_EUNSUPPORTED},
        {"{" MODEL(AB, "[]") ",\"decoder\":{\"type\":\"ByteLevel\"}}", "ByteLevel", SEGUE_EUNSUPPORTED},
        {"{" MODEL(AB, "[]") ",\"post_processor\":{\"type\":\"BertProcessing\"}}", "\"BertProcessing\"",
         SEGUE_EUNSUPPORTED},
        {"{" MODEL(AB, "[]") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
                             "\"SpecialToken\":{\"id\":\"s\"}}],"
                             "\"special_tokens\":{\"s\":{\"ids\":[99]}}}}",
         "post_processor", SEGUE_EFORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "\"Unigram\"", SEGUE_EUNSUPPORTED},
        {"{\"model\":{\"vocab\":" AB ",\"merges\":[],\"dropout\":0.1}}", "dropout", SEGUE_EUNSUPPORTED},
        {"{\"model\":{\"vocab\":" AB ",\"merges\":[],\"unk_token\":\"zz\"}}", "unk_token", SEGUE_EFORMAT},
        {"{\"model\":{\"vocab\":" AB ",\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}", "end_of_word_suffix",
         SEGUE_EUNSUPPORTED},
        {"{\"model\":{\"vocab\":" AB ",\"merges\":[],\"fuse_unk\":3}}", "fuse_unk", SEGUE_EFORMAT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        segue_error err;
        segue_status s = open_json(cases[i].json, strlen(cases[i].json), &err);
        if (s != cases[i].status || !strstr(err.text, cases[i].reason))
            fail_msg("case %zu: %d: %s", i, s, s ? err.text : "");
    }
    struct sg_buf deep = {0};
    sg_buf_puts(&deep, "{" MODEL(AB, "[]") ",\"normalizer\":");
    for (int i = 0; i < 1000; i++) sg_buf_puts(&deep, "{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 1000; i++) sg_buf_puts(&deep, "]}");
    sg_buf_puts(&deep, "}");
    assert_int_equal(open_json(deep.data, deep.len, NULL), SEGUE_EFORMAT);
    sg_buf_free(&deep);
}

/* Ids without a token are allowed, as in padded vocabularies; they have no text. */
static void holes_are_empty(void **state)
{
    (void)state;
    const char *json = "{" MODEL("{\"a\":0,\"b\":7,\"ab\":3}", "[\"a b\"]") "}";
    struct sg_tokenizer *t = NULL;
    struct sg_tokenizer_info info;
    int32_t ids[8], all[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    char text[16];
    size_t n, len;
    assert_int_equal(sg_tokenizer_of_json(&t, json, strlen(json), NULL, 0, "x", NULL), SEGUE_OK);
    sg_tokenizer_info_get(t, &info);
    assert_int_equal(info.vocab, 8);
    assert_int_equal(sg_tokenize(t, "abb?a", 5, 0, ids, 8, &n, NULL),
                     SEGUE_OK); /* no unknown token: '?' is dropped */
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], 3);
    assert_int_equal(sg_detokenize(t, all, 8, 0, text, 16, &len, NULL), SEGUE_OK);
    assert_string_equal(text, "aabb");
    sg_tokenizer_close(t);
}

/* --- tokenizer.bin --- */

/* Append one token of tokenizer.bin. */
static void put_bin(struct sg_buf *b, float score, const char *text)
{
    uint32_t len = (uint32_t)strlen(text);
    sg_buf_add(b, &score, 4);
    sg_buf_add(b, &len, 4);
    sg_buf_add(b, text, len);
}

/* A vocabulary as llama2.c exports it; ids from 259 on: letters, then words. Returns the number of tokens. */
static uint32_t make_bin(struct sg_buf *b)
{
    static const char *const words[] = {" ", "a", "b", "c", "ab", " a", "abc", "bc", " ab"};
    static const float scores[] = {-20, -21, -22, -23, -3, -2, -5, -1, -4};
    uint32_t longest = 10, n = 259;
    char name[8];
    sg_buf_add(b, &longest, 4);
    put_bin(b, 0, "<unk>");
    put_bin(b, 0, "\n<s>\n");
    put_bin(b, 0, "\n</s>\n");
    for (unsigned i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "<0x%02X>", i);
        put_bin(b, 0, name);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++, n++) put_bin(b, scores[i], words[i]);
    return n;
}

/* Tokens, byte fallback and decoding of a small tokenizer.bin. */
static void bin_is_read(void **state)
{
    (void)state;
    struct sg_buf b = {0};
    uint32_t vocab = make_bin(&b);
    struct sg_tokenizer *t = NULL;
    /* run.c's rule by hand: " abc" = ' ' a b c; best pair "bc" (-1), then " a" (-2); "é" has no token */
    static const int32_t want[] = {1, 264, 266, 3 + 0xc3, 3 + 0xa9};
    int32_t ids[16];
    char text[32];
    size_t n, len;
    segue_error err;
    if (sg_tokenizer_of_bin(&t, (const uint8_t *)b.data, b.len, vocab, "tokenizer.bin", &err))
        fail_msg("%s", err.text);
    assert_int_equal(sg_tokenize(t, "abc\xc3\xa9", 5, 0, ids, 16, &n, NULL), SEGUE_OK);
    assert_int_equal(n, 5);
    assert_memory_equal(ids, want, sizeof want);
    assert_int_equal(sg_detokenize(t, ids, n, SEGUE_TEXT_NO_SPECIAL, text, 32, &len, NULL), SEGUE_OK);
    assert_string_equal(text, "abc\xc3\xa9");
    sg_tokenizer_close(t);
    sg_buf_free(&b);
}

/* Open the first n bytes of b. The copy has exactly n bytes, so that a sanitizer detects a read beyond the end. */
static segue_status open_bin(const struct sg_buf *b, size_t n, uint32_t vocab)
{
    struct sg_tokenizer *t = NULL;
    uint8_t *copy = malloc(n + 1);
    memcpy(copy, b->data, n);
    segue_status s = sg_tokenizer_of_bin(&t, copy, n, vocab, "tokenizer.bin", NULL);
    assert_true((s == SEGUE_OK) == (t != NULL));
    sg_tokenizer_close(t);
    free(copy);
    return s;
}

/* Truncated files, wrong vocabulary sizes and NaN scores are refused; overwritten lengths never crash. */
static void damaged_bin_is_refused(void **state)
{
    (void)state;
    struct sg_buf b = {0};
    uint32_t vocab = make_bin(&b), huge = UINT32_MAX, nan = 0x7fc00000;
    for (size_t n = 0; n < b.len; n++) assert_int_equal(open_bin(&b, n, vocab), SEGUE_EFORMAT);
    const uint32_t wrong[] = {0, 1, vocab - 1, vocab + 1, 1u << 24, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(open_bin(&b, b.len, wrong[i]), SEGUE_EFORMAT);
    for (size_t at = 8; at + 4 < b.len; at += 14) { /* a length field or text: never a crash */
        uint32_t old;
        memcpy(&old, b.data + at, 4);
        memcpy(b.data + at, &huge, 4);
        open_bin(&b, b.len, vocab);
        memcpy(b.data + at, &old, 4);
    }
    memcpy(b.data + 4, &nan, 4);
    assert_int_equal(open_bin(&b, b.len, vocab), SEGUE_EFORMAT);
    sg_buf_free(&b);
}

/* --- GGUF --- */

enum { G_U32 = 4, G_I32 = 5, G_F32 = 6, G_STRING = 8, G_ARRAY = 9 };

/* The g_* functions append parts of a GGUF header. */
static void g_u32(struct sg_buf *b, uint32_t v) { sg_buf_add(b, &v, 4); }

static void g_text(struct sg_buf *b, const char *s)
{
    uint64_t n = strlen(s);
    sg_buf_add(b, &n, 8);
    sg_buf_add(b, s, n);
}

static void g_key(struct sg_buf *b, const char *name, uint32_t type)
{
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    g_text(b, key);
    g_u32(b, type);
}

static void g_array(struct sg_buf *b, const char *name, uint32_t type, uint64_t n)
{
    g_key(b, name, G_ARRAY);
    g_u32(b, type);
    sg_buf_add(b, &n, 8);
}

static void g_strings(struct sg_buf *b, const char *name, const char *const *list, uint64_t n)
{
    g_array(b, name, G_STRING, n);
    for (uint64_t i = 0; i < n; i++) g_text(b, list[i]);
}

/* One fault per file that make_gguf writes. */
enum fault {
    NO_FAULT,
    BAD_MODEL,
    BAD_PRE,
    MERGE_UNKNOWN,
    MERGE_ONE,
    TYPES_SHORT,
    BOS_BEYOND,
    TOKENS_INTS,
    NO_MERGES,
    NO_TOKENS,
    FAULTS
};

/* A GGUF file with a tokenizer of five tokens, one of which is a control token. */
static void make_gguf(struct sg_buf *b, enum fault f)
{
    static const char *const tokens[] = {"a", "b", "ab", "<end>", "c"}, *const merges[] = {"a b"},
                             *const unknown[] = {"a c"}, *const one[] = {"ab"};
    uint64_t none = 0, keys = 6 - (f == NO_MERGES) - (f == NO_TOKENS);
    uint32_t n = f == TYPES_SHORT ? 4 : 5;
    sg_buf_add(b, "GGUF\3\0\0\0", 8);
    sg_buf_add(b, &none, 8);
    sg_buf_add(b, &keys, 8);
    g_key(b, "model", G_STRING);
    g_text(b, f == BAD_MODEL ? "rwkv" : "gpt2");
    g_key(b, "pre", G_STRING);
    g_text(b, f == BAD_PRE ? "viking" : "gpt-2");
    if (f == TOKENS_INTS) {
        g_array(b, "tokens", G_I32, 5);
        for (uint32_t i = 0; i < 5; i++) g_u32(b, i);
    } else if (f != NO_TOKENS) {
        g_strings(b, "tokens", tokens, 5);
    }
    g_array(b, "token_type", G_I32, n);
    for (uint32_t i = 0; i < n; i++) g_u32(b, i == 3 ? 3 : 1);
    if (f != NO_MERGES)
        g_strings(b, "merges", f == MERGE_UNKNOWN ? unknown : f == MERGE_ONE ? one : merges, 1);
    g_key(b, "bos_token_id", G_U32);
    g_u32(b, f == BOS_BEYOND ? 77 : 3);
}

/* The file without fault works, each fault is refused with a message that names the key. */
static void damaged_gguf_is_refused(void **state)
{
    static const char *const reason[FAULTS] = {"",           "rwkv",         "viking", "",       "merge 0",
                                             "token_type", "bos_token_id", "tokens", "merges", "tokens"};
    (void)state;
    char path[] = "/tmp/segue-tok-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (int f = NO_FAULT; f < FAULTS; f++) {
        struct sg_buf b = {0};
        struct sg_archive *a = NULL;
        struct sg_tokenizer *t = NULL;
        struct sg_tokenizer_info info;
        segue_error err = {0};
        make_gguf(&b, (enum fault)f);
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, b.data, b.len, 0), (ssize_t)b.len);
        if (sg_archive_open(&a, path, &err)) fail_msg("%s", err.text);
        segue_status s = sg_tokenizer_of_gguf(&t, a, &err);
        if (f == MERGE_UNKNOWN) { /* merges that can never apply are skipped */
            assert_int_equal(s, SEGUE_OK);
        } else if (f) {
            assert_true(s == SEGUE_EFORMAT || (s == SEGUE_EUNSUPPORTED && f <= BAD_PRE));
            if (!strstr(err.text, reason[f])) fail_msg("fault %d: %s", f, err.text);
        } else {
            int32_t ids[8];
            size_t n;
            if (s) fail_msg("%s", err.text);
            sg_tokenizer_info_get(t, &info);
            assert_int_equal(info.bos, 3);
            assert_int_equal(sg_tokenize(t, "ab<end>", 7, 0, ids, 8, &n, NULL), SEGUE_OK);
            assert_int_equal(n, 2);
            assert_int_equal(ids[0], 2);
            assert_int_equal(ids[1], 3);
        }
        sg_tokenizer_close(t);
        sg_archive_close(a);
        sg_buf_free(&b);
    }
    close(fd);
    unlink(path);
}

/* NULL arguments and ids out of range are errors or give empty results; they never crash. */
static void missing_objects_are_refused(void **state)
{
    (void)state;
    struct sg_tokenizer_info info;
    struct sg_tokenizer *t = golden_tokenizer("gpt2");
    int32_t id = 0;
    size_t n;
    int special;
    sg_tokenizer_close(NULL);
    sg_tokenizer_info_get(NULL, &info);
    assert_int_equal(info.bos, -1);
    assert_int_equal(sg_tokenize(NULL, "a", 1, 0, &id, 1, &n, NULL), SEGUE_EARG);
    assert_int_equal(sg_tokenize(t, NULL, 1, 0, &id, 1, &n, NULL), SEGUE_EARG);
    assert_int_equal(sg_tokenize(t, "a", 1, 0, NULL, 1, &n, NULL), SEGUE_EARG);
    assert_int_equal(sg_tokenize(t, "a", 1, 0, &id, 1, NULL, NULL), SEGUE_EARG);
    assert_int_equal(sg_tokenize(t, NULL, 0, 0, NULL, 0, &n, NULL), SEGUE_OK);
    assert_int_equal(n, 0);
    assert_int_equal(sg_tokenize(t, "a b c", 5, 0, &id, 1, &n, NULL), SEGUE_ELIMIT);
    assert_true(n > 1);
    assert_int_equal(sg_detokenize(NULL, &id, 1, 0, NULL, 0, &n, NULL), SEGUE_EARG);
    assert_string_equal(sg_token_bytes(NULL, 0, &n, &special), "");
    assert_string_equal(sg_token_bytes(t, -5, &n, &special), "");
    assert_string_equal(sg_token_bytes(t, 1 << 30, NULL, NULL), "");
    sg_token_bytes(t, sg_token_find(t, "<|im_end|>"), &n, &special);
    assert_int_equal(special, 1);
    assert_int_equal(sg_token_find(t, "no such token"), -1);
    sg_tokenizer_close(t);
}

/* 512 KiB of one repeated unit: a quadratic algorithm would exceed the time limit of the test. */
static void long_texts_stay_linear(void **state)
{
    static const char *const kinds[] = {"gpt2", "llama3", "qwen35", "spm_llama2", "spm_gemma"};
    static const char *const units[] = {"a", " ",    "e\xcc\x81",   "\xcc\x81",         "\n",
                                        "1", "the ", "<|im_start|", "\xf0\x9f\x98\x80", "\xff"};
    (void)state;
    size_t size = 1 << 19, n;
    char *text = malloc(size);
    int32_t *ids = malloc(size * 4 * sizeof *ids);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct sg_tokenizer *t = golden_tokenizer(kinds[k]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            size_t len = strlen(units[u]);
            for (size_t i = 0; i < size; i++) text[i] = units[u][i % len];
            assert_int_equal(sg_tokenize(t, text, size, SEGUE_TEXT_NO_BOS, ids, size * 4, &n, NULL),
                             SEGUE_OK);
            assert_true(n > 0);
        }
        sg_tokenizer_close(t);
    }
    free(text);
    free(ids);
}

/* Patterns with exponential or polynomial backtracking end with ELIMIT. */
static void slow_patterns_are_stopped(void **state)
{
    static const char *const patterns[] = {"(?:a+)+b", "(?:a|a)*c", "a*a*a*d", "a*?a*?a*?e"};
    (void)state;
    size_t size = 100000, n;
    char *text = malloc(size);
    memset(text, 'a', size);
    memcpy(text + size - 5, "xbcde", 5); /* otherwise PCRE2 detects that the last letter does not occur */
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char json[512];
        struct sg_tokenizer *t = NULL;
        segue_error err = {0};
        snprintf(
            json, sizeof json,
            "{" MODEL(AB, "[]") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"}}}",
            patterns[i]);
        if (sg_tokenizer_of_json(&t, json, strlen(json), NULL, 0, "x", &err)) fail_msg("%s", err.text);
        assert_int_equal(sg_tokenize(t, text, size, 0, NULL, 0, &n, &err), SEGUE_ELIMIT);
        assert_non_null(strstr(err.text, "too many steps"));
        sg_tokenizer_close(t);
    }
    free(text);
}

#ifdef SEGUE_FAULTS
/* Opening, tokenizing and decoding with the n-th allocation failing, for every n. */
static void every_allocation_may_fail(void **state)
{
    static const char *const kinds[] = {"llama3", "qwen35", "spm_llama2"};
    static char text[6000];
    (void)state;
    for (size_t i = 0; i < sizeof text; i++) text[i] = "abc e\xcc\x81 hello\xff  "[i % 17];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct sg_buf json = golden_json(kinds[k]);
        segue_status s = SEGUE_EMEMORY;
        for (uint64_t nth = 1; s != SEGUE_OK; nth++) {
            static int32_t ids[20000];
            struct sg_tokenizer *t = NULL;
            size_t n;
            sg_fault_alloc(nth);
            s = sg_tokenizer_of_json(&t, json.data, json.len, NULL, 0, "x", NULL);
            if (s == SEGUE_OK) s = sg_tokenize(t, text, sizeof text, 0, ids, 20000, &n, NULL);
            sg_fault_alloc(0);
            assert_true(s == SEGUE_OK || s == SEGUE_EMEMORY);
            sg_tokenizer_close(t);
        }
        sg_buf_free(&json);
    }
}
#endif

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(multiplying_steps_are_stopped),
        cmocka_unit_test(colliding_tokens_open),
        cmocka_unit_test(deep_patterns_are_refused),
        cmocka_unit_test(cut_json_is_refused),
        cmocka_unit_test(absurd_json_is_refused),
        cmocka_unit_test(holes_are_empty),
        cmocka_unit_test(bin_is_read),
        cmocka_unit_test(damaged_bin_is_refused),
        cmocka_unit_test(damaged_gguf_is_refused),
        cmocka_unit_test(missing_objects_are_refused),
        cmocka_unit_test(long_texts_stay_linear),
        cmocka_unit_test(slow_patterns_are_stopped),
#ifdef SEGUE_FAULTS
        cmocka_unit_test(every_allocation_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
