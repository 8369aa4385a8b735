/* tok_llama.c: the vocabularies in llama.cpp's source, each with texts (.inp) and the ids of the original tokenizers
 * (.out). SEGUE_LLAMA_SOURCE names the unpacked folder, which contains models/.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/tokenizer/tokenizer.h"

static const char separator[] = "\n__ggml_vocab_test__\n";

/* The ids of one line of the .out file; *at moves to the next line. */
static size_t read_ids(char **at, int32_t *ids, size_t cap)
{
    size_t n = 0;
    char *end = strchr(*at, '\n');
    if (!end) end = *at + strlen(*at);
    for (char *p = *at; p < end && n < cap; n++) {
        while (p < end && *p == ' ') p++;
        if (p == end) break;
        ids[n] = (int32_t)strtol(p, &p, 10);
    }
    *at = *end ? end + 1 : end;
    return n;
}

/* Compare each text with its line of ids; returns the number of texts. */
static size_t compare_all(const struct sg_tokenizer *t, const char *name, char *texts, char *out)
{
    static int32_t want[4096], got[4096];
    size_t tests = 0, got_n = 0;
    for (char *end; (end = strstr(texts, separator)); texts = end + strlen(separator), tests++) {
        size_t want_n = read_ids(&out, want, 4096);
        assert_int_equal(sg_tokenize(t, texts, (size_t)(end - texts),
                                     SEGUE_TEXT_NO_BOS | SEGUE_TEXT_NO_SPECIAL, got, 4096, &got_n, NULL),
                         SEGUE_OK);
        if (want_n != got_n || memcmp(want, got, got_n * sizeof *got) != 0) {
            print_error("%s, text %zu: \"%.*s\"\n  wanted", name, tests, (int)(end - texts), texts);
            for (size_t i = 0; i < want_n; i++) print_error(" %d", want[i]);
            print_error("\n  got   ");
            for (size_t i = 0; i < got_n; i++) print_error(" %d", got[i]);
            fail_msg("\n%s differs", name);
        }
    }
    return tests;
}

/* Open one vocabulary and compare all its texts. */
static void vocabulary(const char *folder, const char *name)
{
    char path[3][1024];
    struct sg_archive *a = NULL;
    struct sg_tokenizer *t = NULL;
    struct sg_buf inp = {0}, out = {0};
    segue_error err;
    for (int i = 0; i < 3; i++) {
        static const char *const ends[] = {"", ".inp", ".out"};
        snprintf(path[i], sizeof path[i], "%s/models/ggml-vocab-%s.gguf%s", folder, name, ends[i]);
    }
    if (sg_archive_open(&a, path[0], &err) != SEGUE_OK) fail_msg("%s", err.text);
    if (sg_tokenizer_of_gguf(&t, a, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_int_equal(sg_file_read(&inp, path[1], 1 << 24, NULL), SEGUE_OK);
    assert_int_equal(sg_file_read(&out, path[2], 1 << 24, NULL), SEGUE_OK);
    size_t n = compare_all(t, name, inp.data, out.data);
    assert_true(n > 30);
    print_message("%s: %zu texts agree\n", name, n);
    sg_buf_free(&inp);
    sg_buf_free(&out);
    sg_tokenizer_close(t);
    sg_archive_close(a);
}

static void vocabularies_agree(void **state)
{
    static const char *const names[] = {"gpt-2",  "llama-bpe", "llama-spm", "qwen2",        "qwen35",
                                        "refact", "starcoder", "phi-3",     "mpt",          "command-r",
                                        "falcon", "gemma-4",   "deepseek-llm", "deepseek-coder"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) vocabulary(*state, names[i]);
}

/* Decomposed characters are composed first where the model's own tokenizer has NFC, and only there. */
static void nfc_where_the_model_has_it(void **state)
{
    static const struct { const char *name; int nfc; } models[] = {{"qwen2", 1}, {"command-r", 1}, {"qwen35", 0}, {"gpt-2", 0}};
    static const char apart[] = "cafe\xcc\x81 A\xcc\x8a", whole[] = "caf\xc3\xa9 \xc3\x85";
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[1024];
        struct sg_archive *a = NULL;
        struct sg_tokenizer *t = NULL;
        int32_t ids[2][32];
        size_t n[2];
        snprintf(path, sizeof path, "%s/models/ggml-vocab-%s.gguf", (const char *)*state, models[i].name);
        assert_int_equal(sg_archive_open(&a, path, NULL), SEGUE_OK);
        assert_int_equal(sg_tokenizer_of_gguf(&t, a, NULL), SEGUE_OK);
        assert_int_equal(sg_tokenize(t, apart, strlen(apart), SEGUE_TEXT_NO_BOS, ids[0], 32, &n[0], NULL), SEGUE_OK);
        assert_int_equal(sg_tokenize(t, whole, strlen(whole), SEGUE_TEXT_NO_BOS, ids[1], 32, &n[1], NULL), SEGUE_OK);
        int equal = n[0] == n[1] && memcmp(ids[0], ids[1], n[0] * sizeof ids[0][0]) == 0;
        assert_int_equal(equal, models[i].nfc);
        sg_tokenizer_close(t);
        sg_archive_close(a);
    }
}

int main(void)
{
    char *folder = getenv("SEGUE_LLAMA_SOURCE");
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(vocabularies_agree, folder),
                                       cmocka_unit_test_prestate(nfc_where_the_model_has_it, folder)};
    if (!folder || !*folder) {
        printf("SKIP text_llama: SEGUE_LLAMA_SOURCE does not name llama.cpp's source\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
