/* tok_golden.c: seven tokenizers against the results of the `tokenizers` library for the same texts (tests/golden/tok,
 * made by make_tokenizers.py).
 * SPDX-License-Identifier: MIT */
#include "golden_tokenizer.h"

enum { CAP = 8192 };

/* Fail unless the ids equal those under key. */
static void same_ids(const char *kind, const json_t *row, const char *key, const int32_t *ids, size_t n)
{
    const json_t *want = json_object_get(row, key);
    int same = json_array_size(want) == n;
    for (size_t i = 0; same && i < n; i++) same = json_integer_value(json_array_get(want, i)) == ids[i];
    if (!same)
        fail_msg("%s: %s of \"%s\" differ", kind, key, json_string_value(json_object_get(row, "text")));
}

/* Fail unless the text equals that under key. */
static void same_text(const char *kind, const json_t *row, const char *key, const char *text, size_t n)
{
    const json_t *want = json_object_get(row, key);
    if (json_string_length(want) != n || memcmp(json_string_value(want), text, n) != 0)
        fail_msg("%s: %s: \"%s\" wanted, got \"%.*s\"", kind, key, json_string_value(want), (int)n, text);
}

/* Decode token by token; the caller compares with sg_detokenize. */
static size_t streamed(const struct sg_tokenizer *t, const int32_t *ids, size_t n, unsigned flags, char *text)
{
    segue_text state = SEGUE_INIT(segue_text);
    size_t at = 0, len = 0;
    state.flags = flags;
    for (size_t i = 0; i <= n; i++) {
        assert_int_equal(sg_text_next(t, &state, i < n ? ids[i] : -1, text + at, CAP - at, &len, NULL),
                         SEGUE_OK);
        at += len;
    }
    return at;
}

/* One text: ids with and without bos and eos, and decoding with and without special tokens. */
static void probe(const char *kind, const struct sg_tokenizer *t, const json_t *row)
{
    static int32_t ids[CAP];
    static char text[CAP], again[CAP];
    const json_t *in = json_object_get(row, "text");
    size_t n, len;
    assert_int_equal(sg_tokenize(t, json_string_value(in), json_string_length(in), 0, ids, CAP, &n, NULL),
                     SEGUE_OK);
    same_ids(kind, row, "ends", ids, n);
    assert_int_equal(
        sg_tokenize(t, json_string_value(in), json_string_length(in), SEGUE_TEXT_NO_BOS, ids, CAP, &n, NULL),
        SEGUE_OK);
    same_ids(kind, row, "ids", ids, n);
    for (unsigned flags = 0; flags <= SEGUE_TEXT_NO_SPECIAL; flags += SEGUE_TEXT_NO_SPECIAL) {
        assert_int_equal(sg_detokenize(t, ids, n, flags, text, CAP, &len, NULL), SEGUE_OK);
        same_text(kind, row, flags ? "plain" : "decoded", text, len);
        assert_int_equal(streamed(t, ids, n, flags, again), len);
        assert_memory_equal(text, again, len);
    }
}

/* All texts of all tokenizers, and the description of each tokenizer. */
static void probes_agree(void **state)
{
    static const struct {
        const char *name, *kind, *pre;
    } kinds[] = {{"gpt2", "bpe", "gpt2"},   {"smollm", "bpe", "smollm"}, {"llama3", "bpe", "llama3"},
                 {"qwen2", "bpe", "qwen2"}, {"qwen35", "bpe", "qwen35"}, {"spm_llama2", "spm", NULL},
                 {"spm_gemma", "spm", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char path[512];
        json_t *rows = NULL;
        struct sg_tokenizer_info info;
        struct sg_tokenizer *t = golden_tokenizer(kinds[i].name);
        golden_path(path, sizeof path, kinds[i].name, "golden_tok.json");
        assert_int_equal(sg_json_read(&rows, path, 1 << 24, NULL), SEGUE_OK);
        assert_true(json_array_size(rows) >= 36);
        for (size_t k = 0; k < json_array_size(rows); k++) probe(kinds[i].name, t, json_array_get(rows, k));
        sg_tokenizer_info_get(t, &info);
        assert_string_equal(info.kind, kinds[i].kind);
        if (kinds[i].pre)
            assert_string_equal(info.pre, kinds[i].pre);
        else
            assert_null(info.pre);
        assert_int_equal(info.add_bos, i >= 5);
        json_decref(rows);
        sg_tokenizer_close(t);
    }
}

/* tokenizer_config.json sets bos and eos and adds them to each text. */
static void config_names_the_ends(void **state)
{
    (void)state;
    struct sg_buf json = golden_json("qwen2");
    const char *config =
        "{\"bos_token\":{\"content\":\"<|endoftext|>\"},\"eos_token\":\"<|im_end|>\",\"add_bos_token\":true,"
        "\"add_eos_token\":true}";
    struct sg_tokenizer *t = NULL;
    struct sg_tokenizer_info info;
    int32_t ids[8];
    size_t n;
    assert_int_equal(sg_tokenizer_of_json(&t, json.data, json.len, config, strlen(config), "x", NULL),
                     SEGUE_OK);
    sg_tokenizer_info_get(t, &info);
    assert_string_equal(info.bos_text, "<|endoftext|>");
    assert_string_equal(info.eos_text, "<|im_end|>");
    assert_int_equal(info.bos, sg_token_find(t, "<|endoftext|>"));
    assert_true(info.add_bos && info.add_eos);
    /* eos and the other control token that ends a turn, each once */
    assert_int_equal(info.stops_n, 2);
    assert_int_equal(info.stops[0], info.eos);
    assert_int_equal(info.stops[1], info.bos);
    assert_int_equal(sg_tokenize(t, "!", 1, 0, ids, 8, &n, NULL), SEGUE_OK);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], info.bos);
    assert_int_equal(ids[2], info.eos);
    sg_tokenizer_close(t);
    sg_buf_free(&json);
}

/* With SEGUE_TEXT_NO_SPECIAL, special tokens in a text are tokenized as plain text. */
static void specials_can_be_plain(void **state)
{
    (void)state;
    struct sg_tokenizer *t = golden_tokenizer("qwen2");
    int32_t ids[64], end = sg_token_find(t, "<|im_end|>"), think = sg_token_find(t, "<think>");
    size_t n;
    assert_int_equal(sg_tokenize(t, "<|im_end|><think>", 17, 0, ids, 64, &n, NULL), SEGUE_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], end);
    assert_int_equal(sg_tokenize(t, "<|im_end|><think>", 17, SEGUE_TEXT_NO_SPECIAL, ids, 64, &n, NULL),
                     SEGUE_OK);
    assert_true(n > 2);
    for (size_t i = 0; i < n; i++) assert_int_not_equal(ids[i], end);
    assert_int_equal(ids[n - 1], think); /* added, but not special */
    sg_tokenizer_close(t);
}

/* Invalid UTF-8 becomes U+FFFD, as many as Python's errors="replace" gives. */
static void broken_utf8_is_repaired(void **state)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {{"a\xff"
                  "b",
                  "a\xef\xbf\xbd"
                  "b"},
                 {"\xf0\x9f\x98", "\xef\xbf\xbd"},
                 {"\xf0\x9f"
                  "a",
                  "\xef\xbf\xbd"
                  "a"},
                 {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"}};
    (void)state;
    struct sg_tokenizer *t = golden_tokenizer("gpt2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t a[32], b[32];
        size_t an, bn;
        assert_int_equal(sg_tokenize(t, cases[i].bytes, strlen(cases[i].bytes), 0, a, 32, &an, NULL),
                         SEGUE_OK);
        assert_int_equal(sg_tokenize(t, cases[i].text, strlen(cases[i].text), 0, b, 32, &bn, NULL), SEGUE_OK);
        assert_int_equal(an, bn);
        assert_memory_equal(a, b, an * sizeof *a);
    }
    sg_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probes_agree), cmocka_unit_test(config_names_the_ends),
        cmocka_unit_test(specials_can_be_plain), cmocka_unit_test(broken_utf8_is_repaired)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
