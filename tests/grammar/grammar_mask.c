/* grammar_mask.c: masks over a vocabulary against a check of every token by bytes, and sessions whose text is constrained. Needs
 * the default model; without it, it is skipped. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/constraint.h"
#include "text/grammar/parts.h"

static segue_model *model;
static segue_unit *unit;
static segue_engine *engine;

/* Grammars and texts that begin one of theirs. */
static const struct {
    segue_grammar_kind kind;
    const char *source, *text;
} cases[] = {
    {SEGUE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}", ""},
    {SEGUE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}", "{\"a\": [1, \"x"},
    {SEGUE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":2000}", "\"a"},
    {SEGUE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":5}", "\"abc"},
    {SEGUE_GRAMMAR_JSON_SCHEMA, "{\"enum\":[\"red\",\"green\",12]}", ""},
    {SEGUE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":300,\"maxItems\":900}",
     "[1,2"},
    {SEGUE_GRAMMAR_GBNF, "root ::= \"yes\" | \"no\" | [a-c]{3,700}", ""},
    {SEGUE_GRAMMAR_GBNF, "root ::= [a-c]{3,700} \"!\"", "ab"},
    {SEGUE_GRAMMAR_REGEX, "[0-9]{4}-[0-9]{2}", "12"},
    {SEGUE_GRAMMAR_REGEX, "(the|a) (cat|dog)s?", "the "},
    /* Texts whose plain characters are all alike: none, bounded by few and by many, any; and nearly all alike. */
    {SEGUE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":20}", "\"abc"},
    {SEGUE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":3}", "\"abc"},
    {SEGUE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":900}", "\"a\u00fc"},
    {SEGUE_GRAMMAR_GBNF, "root ::= \"<\" [^\"\\\\\\x7F\\x00-\\x1F]{2,18} \">\"", "<a"},
    {SEGUE_GRAMMAR_GBNF, "root ::= [^\\n]* \"\\n\"", "ab"},
    {SEGUE_GRAMMAR_GBNF, "root ::= [^a]* \"a\"", "xy"},
    {SEGUE_GRAMMAR_GBNF, "root ::= [^\\u00e9]{1,9}", "x"},
    {SEGUE_GRAMMAR_GBNF, "root ::= [^\\U0001F600]*", "x"},
    {SEGUE_GRAMMAR_REGEX, ".{4,40}", "a"},
};

static segue_grammar *open_case(size_t i)
{
    segue_error err;
    segue_grammar *g = NULL;
    if (segue_grammar_open(&g, model, cases[i].kind, cases[i].source, strlen(cases[i].source), &err)) fail_msg("%s", err.text);
    return g;
}

/* 1: token may follow the text, found without masks. */
static int fits(segue_grammar *g, const char *text, int32_t token)
{
    size_t n = strlen(text), len, valid;
    int special;
    char bytes[1024];
    for (size_t i = 0; i < model->stops_n; i++)
        if (model->stops[i] == token) return sg_grammar_check(g->grammar, text, n, &valid, NULL) == SEGUE_OK;
    const char *more = sg_token_bytes(model->tokenizer, token, &len, &special);
    if (special || !len || n + len > sizeof bytes) return 0;
    memcpy(bytes, text, n);
    memcpy(bytes + n, more, len);
    segue_status st = sg_grammar_check(g->grammar, bytes, n + len, &valid, NULL);
    return st == SEGUE_OK || st == SEGUE_END;
}

static void masks_equal_byte_checks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        segue_grammar *g = open_case(i);
        int32_t tokens[64];
        size_t n;
        segue_error err;
        struct sg_grammar_pos pos = {0};
        uint32_t *mask = calloc(sg_grammar_mask_words(g->grammar), sizeof *mask), wrong = 0, allowed = 0;
        assert_int_equal(segue_tokenize(model, cases[i].text, strlen(cases[i].text), SEGUE_TEXT_NO_BOS, tokens, 64, &n, &err),
                         SEGUE_OK);
        if (sg_grammar_mask(g->grammar, &pos, tokens, n, 0, mask, &err)) fail_msg("%s", err.text);
        for (uint32_t t = 0; t < model->info.vocab; t++) {
            int bit = mask[t / 32] >> t % 32 & 1;
            allowed += (uint32_t)bit;
            wrong += bit != fits(g, cases[i].text, (int32_t)t);
        }
        if (wrong || !allowed) fail_msg("case %zu: %u of %u allowed tokens are wrong", i, wrong, allowed);
        free(mask);
        segue_grammar_close(g);
    }
}

/* The text of an answer to the end, with a temperature at which a free text would be noise. */
static void answer(segue_session *s, char *text, size_t cap, int *ended)
{
    int32_t token;
    size_t n, len;
    const int32_t *tokens;
    segue_error err;
    segue_status st = SEGUE_OK;
    size_t from = segue_session_tokens(s, &tokens);
    for (int i = 0; i < 40 && st == SEGUE_OK; i++) st = segue_session_next(s, &token, &err);
    if (st < 0) fail_msg("%s", err.text);
    *ended = st == SEGUE_END;
    n = segue_session_tokens(s, &tokens);
    assert_int_equal(segue_detokenize(model, tokens + from, n - from, SEGUE_TEXT_NO_SPECIAL, text, cap, &len, &err), SEGUE_OK);
    text[len] = 0;
}

static void constrained_sessions(void **state)
{
    static const int32_t prompt[] = {1, 4093, 198, 42};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += 2) {
        segue_grammar *g = open_case(i);
        segue_sampling sampling = SEGUE_INIT(segue_sampling);
        segue_session_opts opts = SEGUE_INIT(segue_session_opts);
        segue_session *s, *fork;
        segue_error err;
        char text[4096], again[4096];
        size_t valid;
        int ended;
        sampling.temperature = 1.5f;
        sampling.seed = i;
        sampling.grammar = g;
        opts.sampling = &sampling;
        assert_int_equal(segue_session_open(&s, engine, &opts, &err), SEGUE_OK);
        segue_grammar_close(g); /* the session keeps it */
        assert_int_equal(segue_session_append(s, prompt, 4, &err), SEGUE_OK);
        assert_int_equal(segue_session_fork(&fork, s, &err), SEGUE_OK);
        answer(s, text, sizeof text, &ended);
        segue_status st = sg_grammar_check(g->grammar, text, strlen(text), &valid, &err);
        if (st != SEGUE_OK && (ended || st != SEGUE_END))
            fail_msg("case %zu: %s: %s", i, text, st < 0 ? err.text : "not complete");
        /* The same from a fork, and from the beginning again. */
        answer(fork, again, sizeof again, &ended);
        assert_string_equal(text, again);
        assert_int_equal(segue_session_rewind(s, 4, &err), SEGUE_OK);
        answer(s, again, sizeof again, &ended);
        assert_string_equal(text, again);
        segue_session_close(s);
        segue_session_close(fork);
    }
}

enum { REQUESTS = 12, ANSWER = 24 };

/* No mask can be made after its first letters. */
static segue_grammar *ambiguous_grammar(void)
{
    static const char source[] = "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\" s s | \"a\" s s s | \"a\"";
    segue_error err;
    segue_grammar *g = NULL;
    if (segue_grammar_open(&g, model, SEGUE_GRAMMAR_GBNF, source, sizeof source - 1, &err)) fail_msg("%s", err.text);
    return g;
}

/* All requests of one scheduler to their end: tokens, and how each ended. */
static void run_requests(segue_engine *e, uint32_t manual, int32_t tokens[REQUESTS][ANSWER], size_t n[REQUESTS],
                         segue_status ends[REQUESTS])
{
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    segue_request *q[REQUESTS];
    segue_scheduler *s;
    segue_error err;
    size_t got;
    o.manual = manual;
    if (segue_scheduler_open(&s, e, &o, &err)) fail_msg("%s", err.text);
    for (int i = 0; i < REQUESTS; i++) {
        int32_t prompt[64];
        segue_sampling sampling = SEGUE_INIT(segue_sampling);
        segue_request_opts r = SEGUE_INIT(segue_request_opts);
        for (int k = 0; k < 64; k++) prompt[k] = 100 + (i * 37 + k * 11) % 4000;
        sampling.temperature = i % 3 ? 1.2f : 0;
        sampling.seed = (uint64_t)i;
        sampling.grammar = i % 4 == 3 ? NULL : i == 10 ? ambiguous_grammar() : open_case((size_t)i % 10);
        r.tokens = prompt;
        r.tokens_n = 4 + (size_t)i * 5;
        r.sampling = &sampling;
        r.max_tokens = ANSWER;
        r.no_store = 1;
        if (segue_request_submit(&q[i], s, &r, &err)) fail_msg("%s", err.text);
        segue_grammar_close(sampling.grammar); /* the request keeps it */
    }
    if (manual) while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
    for (int i = 0; i < REQUESTS; i++) {
        n[i] = 0;
        while (!(ends[i] = segue_request_read(q[i], tokens[i] + n[i], NULL, ANSWER - n[i], &got, UINT64_MAX, &err))) n[i] += got;
        segue_request_close(q[i]);
    }
    segue_scheduler_close(s);
}

/* Masks that a thread makes beside the runs (manual 0) are those that are made before them (manual 1): the same tokens, and the
 * same error where no mask can be made. */
static void masks_beside_runs(void **state)
{
    (void)state;
    static int32_t before[REQUESTS][ANSWER], beside[REQUESTS][ANSWER];
    size_t before_n[REQUESTS], beside_n[REQUESTS], masked = 0;
    segue_status before_end[REQUESTS], beside_end[REQUESTS];
    segue_engine *e;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    segue_error err;
    o.deterministic = 1;
    if (segue_engine_open(&e, model, &unit, 1, &o, &err)) fail_msg("%s", err.text);
    run_requests(e, 1, before, before_n, before_end);
    run_requests(e, 0, beside, beside_n, beside_end);
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(beside_n[i], before_n[i]);
        assert_int_equal(beside_end[i], before_end[i]);
        assert_memory_equal(beside[i], before[i], before_n[i] * sizeof(int32_t));
        masked += i % 4 != 3 ? before_n[i] : 0;
    }
    assert_true(masked > 60);
    assert_int_equal(before_end[10], SEGUE_ELIMIT);
    segue_engine_close(e);
}

static void refusals(void **state)
{
    (void)state;
    segue_error err;
    segue_grammar *g = open_case(0), *none = NULL;
    segue_sampling sampling = SEGUE_INIT(segue_sampling);
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_session *s = NULL;
    sampling.grammar = g;
    sampling.ignore_stops = 1;
    opts.sampling = &sampling;
    assert_int_equal(segue_session_open(&s, engine, &opts, &err), SEGUE_EARG);
    assert_int_equal(segue_grammar_open(&none, model, (segue_grammar_kind)7, "", 0, &err), SEGUE_EARG);
    assert_int_equal(segue_grammar_open(&none, model, SEGUE_GRAMMAR_GBNF, NULL, 3, &err), SEGUE_EARG);
    assert_int_equal(segue_grammar_open(&none, model, SEGUE_GRAMMAR_JSON_SCHEMA, "{", 1, &err), SEGUE_EFORMAT);
    assert_int_equal(segue_grammar_open(&none, model, SEGUE_GRAMMAR_JSON_SCHEMA, "{\"not\":{}}", 10, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "not"));
    assert_null(none);
    segue_grammar_close(g);
    segue_grammar_close(NULL);
}

int main(void)
{
    const char *home = getenv("HOME");
    char path[1024];
    segue_error err;
    snprintf(path, sizeof path, "%s/.local/share/segue/models/SmolLM2-135M-Instruct.Q4_1.gguf", home ? home : "");
    if (segue_model_open(&model, path, NULL, &err)) {
        printf("SKIP grammar_mask: %s\n", err.text);
        return 77;
    }
    if (segue_unit_open(&unit, "cpu", &err) || segue_engine_open(&engine, model, &unit, 1, NULL, &err)) {
        printf("%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(masks_equal_byte_checks), cmocka_unit_test(constrained_sessions),
                                       cmocka_unit_test(masks_beside_runs), cmocka_unit_test(refusals)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    segue_engine_close(engine);
    segue_unit_close(unit);
    segue_model_close(model);
    return failed;
}
