/* tok_stream.c: text from single tokens: only complete characters are written, stop strings are found across tokens,
 * one leading space is dropped.
 * SPDX-License-Identifier: MIT */
#include "golden_tokenizer.h"

/* In the SentencePiece tokenizers of the tests, byte b is token 3 + b. */
static int32_t byte_token(unsigned b) { return 3 + (int32_t)b; }

/* A stream and all text that it has written so far. */
struct stream {
    const struct sg_tokenizer *t;
    segue_text state;
    char text[4096];
    size_t n;
};

/* A stream with stop strings. */
static struct stream begin(const struct sg_tokenizer *t, const char *const *stops, size_t stops_n)
{
    struct stream s = {.t = t, .state = SEGUE_INIT(segue_text)};
    s.state.stops = stops;
    s.state.stops_n = stops_n;
    return s;
}

/* Pass one token (-1: the end) and append its text. */
static segue_status next(struct stream *s, int32_t token)
{
    size_t len = 0;
    segue_status status =
        sg_text_next(s->t, &s->state, token, s->text + s->n, sizeof s->text - s->n, &len, NULL);
    s->n += len;
    s->text[s->n] = 0;
    return status;
}

/* Pass bytes as byte tokens until the stream ends. */
static segue_status feed(struct stream *s, const char *bytes, size_t n)
{
    segue_status status = SEGUE_OK;
    for (size_t i = 0; i < n && status == SEGUE_OK; i++)
        status = next(s, byte_token((unsigned char)bytes[i]));
    return status;
}

/* A character appears when its last byte arrives; after[i] is the length after byte i. */
static void characters_stay_whole(void **state)
{
    const char *in = "a\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa9z";
    const size_t after[] = {1, 1, 1, 4, 4, 4, 4, 8, 8, 10, 11};
    struct stream s = begin(*state, NULL, 0);
    for (size_t i = 0; i < 11; i++) {
        assert_int_equal(feed(&s, in + i, 1), SEGUE_OK);
        assert_int_equal(s.n, after[i]);
    }
    assert_int_equal(next(&s, -1), SEGUE_OK);
    assert_string_equal(s.text, in);
}

/* Expectations are Python's bytes.decode("utf-8", "replace"). */
static void broken_bytes_become_replacements(void **state)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {{"\xf0\x9f"
                  "a",
                  "\xef\xbf\xbd"
                  "a"},
                 {"\xf0\x9f\x98", "\xef\xbf\xbd"},
                 {"\x80x\xbf", "\xef\xbf\xbdx\xef\xbf\xbd"},
                 {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
                 {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xe2\xf0\x9f\x98\x80\xe2", "\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stream s = begin(*state, NULL, 0);
        int32_t ids[16];
        char whole[64];
        size_t n = strlen(cases[i].bytes), len;
        for (size_t k = 0; k < n; k++) ids[k] = byte_token((unsigned char)cases[i].bytes[k]);
        assert_int_equal(feed(&s, cases[i].bytes, n), SEGUE_OK);
        assert_int_equal(next(&s, -1), SEGUE_OK);
        assert_string_equal(s.text, cases[i].text);
        assert_int_equal(sg_detokenize(*state, ids, n, 0, whole, sizeof whole, &len, NULL), SEGUE_OK);
        assert_string_equal(whole, cases[i].text);
    }
}

/* Text before a stop string is written, the stop string and all text after it is not. */
static void stops_are_found_across_tokens(void **state)
{
    static const char *const stops[] = {"STOP", "aab", "\xe2\x82\xac!"};
    static const struct {
        const char *in, *out;
        int ends;
    } cases[] = {{"one STO, STOX", "one STO, STOX", 0},
                 {"one STOP two", "one ", 1},
                 {"STSTOP", "ST", 1},
                 {"aaaab", "aa", 1},
                 {"aaa", "aaa", 0},
                 {"x\xe2\x82\xac!", "x", 1},
                 {"x\xe2\x82\xac?", "x\xe2\x82\xac?", 0},
                 {"x\xe2\x82", "x\xef\xbf\xbd", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stream s = begin(*state, stops, 3);
        segue_status status = feed(&s, cases[i].in, strlen(cases[i].in));
        if (status == SEGUE_OK) status = next(&s, -1);
        assert_string_equal(s.text, cases[i].out);
        assert_int_equal(status, cases[i].ends ? SEGUE_END : SEGUE_OK);
        if (!cases[i].ends) continue;
        assert_int_equal(next(&s, byte_token('x')), SEGUE_END); /* the stream remains ended */
        assert_int_equal(next(&s, -1), SEGUE_END);
        assert_string_equal(s.text, cases[i].out);
    }
}

/* A prefix of a stop string is held until it can no longer become one. */
static void what_may_become_a_stop_is_held(void **state)
{
    static const char *const stops[] = {"STOP"};
    struct stream s = begin(*state, stops, 1);
    assert_int_equal(feed(&s, "a ST", 4), SEGUE_OK);
    assert_string_equal(s.text, "a ");
    assert_int_equal(feed(&s, "x", 1), SEGUE_OK);
    assert_string_equal(s.text, "a STx");
}

/* A stop string inside of a token: the text before it is written. */
static void one_token_may_end_within(void **state)
{
    (void)state;
    static const char *const stops[] = {"he"};
    struct sg_tokenizer *t = golden_tokenizer("gpt2");
    struct stream s = begin(t, stops, 1);
    int32_t the = sg_token_find(t, "\xc4\xa0the");
    assert_true(the >= 0);
    assert_int_equal(next(&s, the), SEGUE_END);
    assert_string_equal(s.text, " t");
    sg_tokenizer_close(t);
}

/* The space that the tokenizer puts in front is dropped, the spaces of the text are kept. */
static void the_first_space_goes_once(void **state)
{
    (void)state;
    struct sg_tokenizer *t = golden_tokenizer("spm_llama2");
    int32_t ids[32];
    char whole[64];
    size_t n, len;
    assert_true(sg_tokenizer_strips_space(t));
    assert_int_equal(sg_tokenize(t, "  b c", 5, SEGUE_TEXT_NO_BOS, ids, 32, &n, NULL), SEGUE_OK);
    struct stream s = begin(t, NULL, 0);
    for (size_t i = 0; i < n; i++) assert_int_equal(next(&s, ids[i]), SEGUE_OK);
    assert_string_equal(s.text, "  b c");
    assert_int_equal(sg_detokenize(t, ids, n, 0, whole, sizeof whole, &len, NULL), SEGUE_OK);
    assert_string_equal(whole, "  b c");
    sg_tokenizer_close(t);
    assert_false(sg_tokenizer_strips_space(NULL));
}

/* ELIMIT reports the needed size and leaves the state unchanged, so that the call can be repeated. */
static void a_small_buffer_takes_nothing(void **state)
{
    (void)state;
    struct sg_tokenizer *t = golden_tokenizer("gpt2");
    segue_text text = SEGUE_INIT(segue_text), before;
    int32_t the = sg_token_find(t, "\xc4\xa0the");
    char out[8];
    size_t len = 0;
    before = text;
    assert_int_equal(sg_text_next(t, &text, the, out, 3, &len, NULL), SEGUE_ELIMIT);
    assert_int_equal(len, 4);
    assert_memory_equal(&text, &before, sizeof text);
    assert_int_equal(sg_text_next(t, &text, the, NULL, 0, &len, NULL), SEGUE_ELIMIT);
    assert_int_equal(sg_text_next(t, &text, the, out, 4, &len, NULL), SEGUE_OK);
    assert_memory_equal(out, " the", 4);
    assert_int_equal(sg_detokenize(t, &the, 1, 0, out, 3, &len, NULL), SEGUE_ELIMIT);
    assert_int_equal(len, 4);
    sg_tokenizer_close(t);
}

/* Wrong ids, NULL pointers, invalid stop strings and a damaged state are EARG. */
static void wrong_calls_are_refused(void **state)
{
    char out[8], big[1100];
    size_t len;
    const char *const empty[] = {""}, *const null[] = {NULL}, *const too_long[] = {big};
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = 0;
    segue_text text = SEGUE_INIT(segue_text);
    assert_int_equal(sg_text_next(*state, &text, 1 << 20, out, 8, &len, NULL), SEGUE_EARG);
    assert_int_equal(sg_text_next(*state, &text, -2, out, 8, &len, NULL), SEGUE_EARG);
    assert_int_equal(sg_text_next(NULL, &text, 1, out, 8, &len, NULL), SEGUE_EARG);
    assert_int_equal(sg_text_next(*state, NULL, 1, out, 8, &len, NULL), SEGUE_EARG);
    assert_int_equal(sg_text_next(*state, &text, 1, NULL, 8, &len, NULL), SEGUE_EARG);
    assert_int_equal(sg_text_next(*state, &text, 1, out, 8, NULL, NULL), SEGUE_EARG);
    text.stops_n = 1;
    assert_int_equal(sg_text_next(*state, &text, 1, out, 8, &len, NULL), SEGUE_EARG);
    const char *const *const lists[] = {empty, null, too_long};
    for (size_t i = 0; i < 3; i++) {
        text.stops = lists[i];
        assert_int_equal(sg_text_next(*state, &text, 1, out, 8, &len, NULL), SEGUE_EARG);
    }
    text = (segue_text){0};
    assert_int_equal(sg_text_next(*state, &text, 1, out, 8, &len, NULL), SEGUE_EARG);
    text = SEGUE_INIT(segue_text);
    text.priv.held = 5000;
    assert_int_equal(sg_text_next(*state, &text, 1, out, 8, &len, NULL), SEGUE_EARG);
    int32_t bad = -1;
    assert_int_equal(sg_detokenize(*state, &bad, 1, 0, out, 8, &len, NULL), SEGUE_EARG);
}

/* Random bytes, with stop strings or without: the text is valid UTF-8 and a prefix of the text of sg_detokenize. */
static void random_bytes_flow(void **state)
{
    static const char *const stops[] = {"\xc3\xa9\xc3\xa9\xc3\xa9", "ab"};
    uint32_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        struct stream s = begin(*state, stops, round % 3);
        int32_t ids[64];
        char whole[512];
        size_t n = (size_t)round % 60, len;
        for (size_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            static const unsigned char set[] = {'a',  'b',  0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0,
                                                0x9f, 0x98, 0x80, 0xff, 0,    0xed, 0xa0, ' '};
            ids[i] = byte_token(set[seed >> 28]);
        }
        segue_status status = SEGUE_OK;
        for (size_t i = 0; i < n && status == SEGUE_OK; i++) status = next(&s, ids[i]);
        if (status == SEGUE_OK) status = next(&s, -1);
        assert_int_equal(sg_detokenize(*state, ids, n, 0, whole, sizeof whole, &len, NULL), SEGUE_OK);
        assert_true(s.n <= len);
        assert_memory_equal(s.text, whole, s.n);
        if (status == SEGUE_OK) assert_int_equal(s.n, len);
        json_t *valid = json_stringn(s.text, s.n); /* NULL for anything but UTF-8 */
        assert_non_null(valid);
        json_decref(valid);
    }
}

int main(void)
{
    struct sg_tokenizer *t = golden_tokenizer("spm_gemma");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(characters_stay_whole, t),
        cmocka_unit_test_prestate(broken_bytes_become_replacements, t),
        cmocka_unit_test_prestate(stops_are_found_across_tokens, t),
        cmocka_unit_test_prestate(what_may_become_a_stop_is_held, t),
        cmocka_unit_test(one_token_may_end_within),
        cmocka_unit_test(the_first_space_goes_once),
        cmocka_unit_test(a_small_buffer_takes_nothing),
        cmocka_unit_test_prestate(wrong_calls_are_refused, t),
        cmocka_unit_test_prestate(random_bytes_flow, t),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sg_tokenizer_close(t);
    return failed;
}
