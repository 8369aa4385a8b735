/* tok_default.c: the tokenizer of the default model, if the model is in the data folder: published encodings for
 * SmolLM2, bos and eos.
 * SPDX-License-Identifier: MIT */
#include "golden_tokenizer.h"

/* Ids that other programs give for these texts. */
static void published_encodings(void **state)
{
    static const struct {
        const char *text;
        int32_t ids[8];
        size_t n;
    } cases[] = {{"Hello, we can use", {19556, 28, 392, 416, 722}, 5},
                 {"Hello world! 123", {19556, 905, 17, 216, 33, 34, 35}, 7},
                 {"\n", {198}, 1},
                 {"<|im_start|>", {1}, 1}};
    struct sg_tokenizer_info info;
    sg_tokenizer_info_get(*state, &info);
    assert_string_equal(info.pre, "smollm");
    assert_int_equal(info.vocab, 49152);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 2);
    assert_false(info.add_bos);
    assert_int_equal(info.stops_n, 2); /* <|im_end|> and <|endoftext|> */
    assert_int_equal(info.stops[0], 2);
    assert_int_equal(info.stops[1], 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t ids[32];
        size_t n;
        assert_int_equal(sg_tokenize(*state, cases[i].text, strlen(cases[i].text), 0, ids, 32, &n, NULL),
                         SEGUE_OK);
        assert_int_equal(n, cases[i].n);
        assert_memory_equal(ids, cases[i].ids, n * sizeof *ids);
    }
}

int main(void)
{
    char *data = sg_home("data"), path[1024];
    struct sg_archive *a = NULL;
    struct sg_tokenizer *t = NULL;
    segue_error err = {0};
    snprintf(path, sizeof path, "%s/models/SmolLM2-135M-Instruct.Q4_1.gguf", data ? data : "");
    sg_free(data);
    if (sg_path_kind(path) != SG_PATH_FILE) {
        printf("SKIP text_default: no default model at %s\n", path);
        return 77;
    }
    if (sg_archive_open(&a, path, &err) || sg_tokenizer_of_gguf(&t, a, &err)) {
        printf("%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(published_encodings, t)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sg_tokenizer_close(t);
    sg_archive_close(a);
    return failed;
}
