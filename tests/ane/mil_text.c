/* mil_text.c: MIL text: parsing, printing and parsing again in every dialect, errors with line and column, and type inference.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mil_samples.h"
#include "base/buf.h"
#include "unit/ane/mil/milbuild.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/mil/milprint.h"

static struct sg_mil_program *read(const char *text, struct sg_mil_fault *fault)
{
    struct sg_mil_program *p = NULL;
    segue_error err = {0};
    segue_status s = sg_mil_parse(&p, text, strlen(text), "t.mil", fault, &err);
    if (s && !fault) fail_msg("%s", err.text);
    return s ? NULL : p;
}

static char *print(const struct sg_mil_program *p, enum sg_mil_dialect d)
{
    struct sg_buf out = {0};
    assert_int_equal(sg_mil_print(p, d, &out, NULL), SEGUE_OK);
    return out.data;
}

static void samples_read_check_and_print(void **state)
{
    const char *const samples[] = {sample_verbose, sample_buffer, sample_modern};
    const enum sg_mil_dialect is[] = {SG_MIL_VERBOSE, SG_MIL_BUFFER, SG_MIL_MODERN};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct sg_mil_program *p = read(samples[i], NULL);
        struct sg_mil_faults faults = {0};
        assert_int_equal(p->dialect, is[i]);
        sg_mil_check_types(p, &faults);
        if (faults.n) fail_msg("sample %d: %u:%u %s", i, faults.list[0].line, faults.list[0].column, faults.list[0].text);
        for (int d = 0; d < 3; d++) {         /* printed in each dialect, it parses, checks and prints the same text again */
            char *once = print(p, (enum sg_mil_dialect)d);
            struct sg_mil_program *q = read(once, NULL);
            sg_mil_check_types(q, &faults);
            if (faults.n) fail_msg("dialect %d: %s\n%s", d, faults.list[0].text, once);
            char *twice = print(q, (enum sg_mil_dialect)d);
            assert_string_equal(once, twice);
            sg_mil_program_free(q);
            sg_free(once);
            sg_free(twice);
        }
        sg_mil_program_free(p);
    }
}

/* A program with this body; the body begins on line 4. */
static char *with_body(const char *body)
{
    static const char head[] = "program(1.0)\n{\nfunc main<ios16>(tensor<fp16, [1, 32, 1, 32]> a) {\n", tail[] = "\n} -> (z);\n}\n";
    char *text = test_malloc(sizeof head + sizeof tail + strlen(body));
    strcpy(text, head);
    strcat(text, body);
    strcat(text, tail);
    return text;
}

static void numbers_are_exact(void **state)
{
    const struct { const char *text; double is; } reals[] = {
        {"0x1p-3", 0.125}, {"0x1.0204p+0", 1.0 + 0x204 / 65536.0}, {"-0x1.8p1", -3}, {"1e-2", 0.01}, {"-0.5", -0.5}, {"65504", 65504},
        {".25", 0.25}, {"0x.8p0", 0.5}, {"6e4", 60000}, {"-0.0", -0.0}, {"0x1.23456789abcdep-1000", 0x1.23456789abcdep-1000}};
    (void)state;
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        char body[256], *text;
        snprintf(body, sizeof body, "tensor<fp32, []> k = const()[val = tensor<fp32, []>(%s)];\ntensor<fp16, [1, 32, 1, 32]> z = relu(x = a);",
                 reals[i].text);
        struct sg_mil_program *p = read(text = with_body(body), NULL);
        const struct sg_mil_literal *l = sg_mil_value_literal(&p->functions[0], 1);
        assert_true(sg_mil_literal_real(l, 0) == reals[i].is);
        char *printed = print(p, SG_MIL_VERBOSE);
        struct sg_mil_program *q = read(printed, NULL);
        assert_true(sg_mil_literal_real(sg_mil_value_literal(&q->functions[0], 1), 0) == reals[i].is);
        sg_mil_program_free(p);
        sg_mil_program_free(q);
        sg_free(printed);
        test_free(text);
    }
}

/* Malformed texts by kind of damage; `word` must occur in the message. Damaged blobs, caches and chip files are tested in
 * weight_blob.c, keep.c, program_cache.py and npu_rules.c. */
static void bad_input_by_name(void **state)
{
    static const char deep[] = "tensor<fp16, [1, 32, 1, 32]> z = relu(x = (((((((((((((((((((((((((((((((((a)))))))))))))))))))))))))))))))));";
    const struct { const char *name, *body, *word; } bad[] = {
        {"unbalanced: a bracket is not closed", "tensor<fp16, [1, 32, 1, 32]> z = relu(x = a;", "\")\""},
        {"unbalanced: a bracket too many", "tensor<fp16, [1, 32, 1, 32]> z = relu(x = a));", "\";\""},
        {"unbalanced: a block is closed too early", "} -> (a);\n} }", "the end"},
        {"unbalanced: a shape", "tensor<fp16, [1, 32, 1, 32> z = relu(x = a);", "\"]\""},
        {"unbalanced: text", "string z = const()[val = string(\"abc];", "not closed"},
        {"nested lists", deep, "where"},
        {"cyclic: itself", "tensor<fp16, [1, 32, 1, 32]> z = relu(x = z);", "not defined above"},
        {"cyclic: each other", "tensor<fp16, [1, 32, 1, 32]> y = relu(x = z);\ntensor<fp16, [1, 32, 1, 32]> z = relu(x = y);", "not defined above"},
        {"forward reference", "tensor<fp16, [1, 32, 1, 32]> z = relu(x = y);\ntensor<fp16, [1, 32, 1, 32]> y = relu(x = a);", "not defined above"},
        {"a shape whose product overflows 64 bits", "tensor<fp16, [2147483647, 2147483647, 2147483647, 2147483647]> z = const()[val = tensor<fp16, [2147483647, 2147483647, 2147483647, 2147483647]>(1)];", "2^40"},
        {"a dimension beyond 32 bits", "tensor<fp16, [18446744073709551617]> z = relu(x = a);", "dimension"},
        {"a negative dimension", "tensor<fp16, [-1, 32]> z = relu(x = a);", "dimension"},
        {"path escape: up", "tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = string(\"@model_path/../w.bin\"), offset = uint64(64)))];", "leaves"},
        {"path escape: up later", "tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = string(\"@model_path/a/../../w\"), offset = uint64(64)))];", "leaves"},
        {"path escape: absolute", "tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = string(\"/etc/passwd\"), offset = uint64(64)))];", "begin with"},
        {"path escape: absolute inside", "tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = string(\"@model_path//etc/passwd\"), offset = uint64(64)))];", "leaves"},
        {"an offset that is negative", "tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = string(\"@model_path/w\"), offset = uint64(-64)))];", "offset"},
        {"an offset beyond 64 bits", "tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = string(\"@model_path/w\"), offset = uint64(18446744073709551680)))];", "offset"},
        {"odd literal: infinite", "fp16 z = const()[val = fp16(1e99999)];", "not a number"},
        {"odd literal: hexadecimal without digits", "fp16 z = const()[val = fp16(0x)];", "not a number"},
        {"odd literal: two signs", "fp16 z = const()[val = fp16(--1)];", ""},
        {"odd literal: a fraction where a whole number belongs", "int32 z = const()[val = int32(0.5)];", "not a value of int32"},
        {"odd literal: beyond its type", "uint8 z = const()[val = uint8(256)];", "not a value of uint8"},
        {"odd literal: text for a number", "fp16 z = const()[val = fp16(\"1\")];", "number"},
        {"odd literal: a value without a type", "tensor<fp16, [1, 32, 1, 32]> z = relu(x = 1.0);", ""},
        {"odd literal: a type in a list", "tensor<fp16, [2]> z = const()[val = tensor<fp16, [2]>([fp16(1), fp16(2)])];", "number"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sg_mil_fault f = {0};
        char *text = with_body(bad[i].body);
        if (read(text, &f)) fail_msg("%s: accepted: %s", bad[i].name, bad[i].body);
        if (!f.line || !f.column || !f.text[0] || !strstr(f.text, bad[i].word)) fail_msg("%s: %u:%u: %s", bad[i].name, f.line, f.column, f.text);
        test_free(text);
    }
}

static void refusals_have_places(void **state)
{
    const struct { const char *body; uint32_t line, column, constraint; const char *word; } bad[] = {
        {"tensor<fp16, [1, 32, 1, 32]> z = relu(x = b);", 4, 43, 0, "not defined above"},
        {"tensor<fp16, [1, 32, 1, 32]> z = relu(x = z);", 4, 43, 0, "not defined above"},
        {"tensor<fp16, [1, 32, 1, 32]> y = relu(x = z);\ntensor<fp16, [1, 32, 1, 32]> z = relu(x = y);", 4, 43, 0, "not defined above"},
        {"tensor<fp16, [1, 32, 1, 32]> a = relu(x = a);", 4, 30, 17, "taken"},
        {"tensor<fp16, [1, 32, 1, 32]> z = relu(x = a;", 4, 44, 0, "\")\""},
        {"tensor<fp16, [1, 32, 1, 32]> z = relu(x = a)", 5, 1, 0, "\";\""},
        {"tensor<fp16, [1, 32, 1, 32]> z = relu(x = a, x = a);", 4, 46, 0, "twice"},
        {"tensor<fp17, [1, 32, 1, 32]> z = relu(x = a);", 4, 8, 0, "data type"},
        {"tensor<fp16, [1, 32, 1, 99999999999]> z = relu(x = a);", 4, 25, 27, "dimension"},
        {"tensor<fp16, [1, 1, 1, 1, 1, 1, 1, 1, 1]> z = relu(x = a);", 4, 14, 27, "rank"},
        {"tensor<fp16, [65536, 65536, 65536, 65536]> z = const()[val = tensor<fp16, [65536, 65536, 65536, 65536]>(1)];", 4, 62, 0, "2^40"},
        {"tensor<int8, [2]> z = const()[val = tensor<int8, [2]>([1, 128])];", 4, 59, 0, "not a value of int8"},
        {"tensor<uint8, [1]> z = const()[val = tensor<uint8, [1]>([-1])];", 4, 58, 0, "not a value of uint8"},
        {"tensor<int32, [1]> z = const()[val = tensor<int32, [1]>([1.5])];", 4, 58, 0, "not a value of int32"},
        {"tensor<int32, [2]> z = const()[val = tensor<int32, [2]>([1])];", 4, 38, 0, "1 numbers for a type of 2"},
        {"tensor<int32, [1]> z = const()[val = tensor<int32, [1]>([1, 2])];", 4, 61, 0, "more numbers"},
        {"tensor<fp16, []> z = const()[val = tensor<fp16, []>(1e999)];", 4, 53, 0, "not a number"},
        {"tensor<fp16, []> z = const()[val = tensor<fp16, []>(1..2)];", 4, 53, 0, "not a number"},
        {"tensor<bool, []> z = const()[val = tensor<bool, []>(1)];", 4, 53, 0, "true or false"},
        {"tensor<string, []> z = const()[val = tensor<string, []>(\"abc)];", 4, 57, 0, "not closed"},
        {"tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = tensor<string, []>(\"@model_path/../w.bin\"), offset = "
         "tensor<uint64, []>(64)))];", 4, 71, 0, "leaves"},
        {"tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = tensor<string, []>(\"/etc/w.bin\"), offset = "
         "tensor<uint64, []>(64)))];", 4, 71, 0, "begin with"},
        {"tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = tensor<string, []>(\"@model_path/a//w.bin\"), offset = "
         "tensor<uint64, []>(64)))];", 4, 71, 0, "leaves"},
        {"tensor<fp16, [4]> z = const()[val = tensor<fp16, [4]>(BLOBFILE(path = tensor<string, []>(\"@model_path/w.bin\"), offset = "
         "tensor<uint64, []>(-64)))];", 4, 121, 0, "offset"},
        {"$", 4, 1, 0, "byte 0x24"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sg_mil_fault f;
        char *text = with_body(bad[i].body);
        if (read(text, &f)) fail_msg("accepted: %s", bad[i].body);
        if (f.line != bad[i].line || f.column != bad[i].column || f.constraint != bad[i].constraint || !strstr(f.text, bad[i].word))
            fail_msg("%s\n%u:%u: constraint %u: %s", bad[i].body, f.line, f.column, f.constraint, f.text);
        test_free(text);
    }
}

static void types_are_held(void **state)
{
    const struct { const char *body, *word; } bad[] = {
        {"tensor<fp16, [1, 32, 1, 33]> z = relu(x = a);", "relu gives fp16 [1, 32, 1, 32]"},
        {"tensor<fp32, [1, 32, 1, 32]> z = relu(x = a);", "declared as fp32"},
        {"tensor<fp16, [1, 32, 1, 32]> z = relu(y = a);", "no argument y"},
        {"tensor<fp16, [1, 32, 1, 32]> z = relu();", "needs the argument x"},
        {"tensor<fp16, [1, 32, 32, 1]> z = reshape(x = a, shape = tensor<int32, [3]>([32, 32, 2]));", "more elements"},
        {"tensor<fp16, [1, 32, 1, 32]> z = reshape(x = a, shape = a);", "must be constant"},
        {"tensor<fp16, [1, 32, 32, 1]> z = transpose(x = a, perm = tensor<int32, [4]>([0, 1, 1, 2]));", "twice"},
        {"tensor<fp16, [1, 32, 1, 32]> z = softmax(x = a, axis = int32(4));", "outside the rank"},
        {"tensor<fp16, [1, 32, 1, 8]> z = slice_by_size(x = a, begin = tensor<int32, [4]>([0, 0, 0, 30]), size = tensor<int32, [4]>([1, 32, 1, 8]));",
         "outside 32"},
        {"tensor<fp16, [1, 32, 1, 64]> z = slice_by_index(x = a, begin = tensor<int32, [4]>([0, 0, 0, 31]), end = tensor<int32, [4]>([1, 32, 1, "
         "-64]), stride = tensor<int32, [4]>([1, 1, 1, -1]));", "gives fp16 [1, 32, 1, 32]"},
        {"tensor<fp16, [1, 32, 1, 32]> z = matmul(x = a, y = a);", "differ"},
        {"tensor<fp16, [1, 32, 1, 32]> z = concat(values = (a, a), axis = int32(1));", "concat gives fp16 [1, 64, 1, 32]"},
        {"tensor<fp16, [1, 32, 1, 32]> z = frobnicate(x = a);", "not known"},
        {"tensor<fp16, [1, 32, 1, 32]> z = cumsum(x = a);", "not supported"},
        {"tensor<fp16, [1, ?, 1, 32]> z = relu(x = a);", "not known or not positive"},
        {"tensor<fp16, [1, 32, 1, 32]> b, tensor<fp16, [1, 32, 1, 32]> z = relu(x = a);", "2 results"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = with_body(bad[i].body);
        struct sg_mil_faults faults = {0};
        struct sg_mil_program *p = read(text, NULL);
        sg_mil_check_types(p, &faults);
        if (faults.n != 1 || !strstr(faults.list[0].text, bad[i].word) || faults.list[0].line != 4)
            fail_msg("%s: %u faults: %s", bad[i].body, faults.n, faults.n ? faults.list[0].text : "");
        sg_mil_faults_free(&faults);
        sg_mil_program_free(p);
        test_free(text);
    }
}

/* Time and memory are linear in the text: 10^6 operations parse. Every truncation of a valid text is an error, not a crash. */
static void long_and_cut_texts(void **state)
{
    struct sg_buf text = {0};
    struct sg_mil_program *p = NULL;
    struct sg_mil_fault f;
    (void)state;
    sg_buf_puts(&text, "program(1.0)\n{ func main<ios16>(tensor<fp16, [1]> v0) {\n");
    for (int i = 1; i <= 1000000; i++) sg_buf_printf(&text, "tensor<fp16,[1]> v%d=relu(x=v%d);\n", i, i - 1);
    sg_buf_puts(&text, "} -> (v1000000); }");
    assert_int_equal(sg_mil_parse(&p, text.data, text.len, "long", &f, NULL), SEGUE_OK);
    assert_int_equal(p->functions[0].ops_n, 1000000);
    assert_true(p->arena.total < 40 * text.len);
    sg_mil_program_free(p);
    sg_buf_free(&text);
    size_t n = strlen(sample_verbose);
    while (n && sample_verbose[n - 1] != '}') n--;
    for (size_t cut = 0; cut < n; cut++) assert_int_equal(sg_mil_parse(&p, sample_verbose, cut, "cut", &f, NULL), SEGUE_EFORMAT);
}

/* Names that the printer gives to inline constants are unique, also when two operations suggest the same name and when long
 * names are truncated to the same text. */
static void named_constants_differ(void **state)
{
    enum { LONG = 200 };
    char arg[LONG + 1], body[4096], *text;
    (void)state;
    memset(arg, 'k', LONG);
    arg[LONG] = 0;
    snprintf(body, sizeof body, "tensor<fp16, [1, 32, 1, 32]> n = relu(a_b = fp16(1), x = a);\ntensor<fp16, [1, 32, 1, 32]> n_a = relu(b = fp16(2), x = n);\n"
             "tensor<fp16, [1, 32, 1, 32]> z = relu(%s1 = fp16(3), %s2 = fp16(4), x = n_a);", arg, arg);
    struct sg_mil_program *p = read(text = with_body(body), NULL);
    for (int d = 0; d < 3; d++) {
        char *printed = print(p, (enum sg_mil_dialect)d);
        sg_mil_program_free(read(printed, NULL));
        sg_free(printed);
    }
    sg_mil_program_free(p);
    test_free(text);
}

static void builder_makes_what_the_reader_reads(void **state)
{
    struct sg_mil_program *p = sg_mil_program_new(SG_MIL_VERBOSE);
    struct sg_mil_builder b;
    segue_error err;
    (void)state;
    sg_mil_build_begin(&b, p, "main", NULL);
    uint32_t a = sg_mil_build_input(&b, "a_in", SG_MIL_FP16, SG_MIL_SHAPE(1, 64, 1, 32));
    uint32_t w1 = sg_mil_build_blob(&b, "w1", SG_MIL_FP16, SG_MIL_SHAPE(128, 64, 1, 1), "weights/w1.bin", 64);
    uint32_t w2 = sg_mil_build_blob(&b, "w2", SG_MIL_FP16, SG_MIL_SHAPE(64, 128, 1, 1), "weights/w2.bin", 64);
    sg_mil_build_name(&b, "h");
    uint32_t h = sg_mil_build_conv(&b, a, w1, 1);
    sg_mil_build_name(&b, "r");
    uint32_t r = sg_mil_build_unary(&b, "relu", h);
    sg_mil_build_name(&b, "z_out");
    uint32_t z = sg_mil_build_conv(&b, r, w2, 1);
    assert_int_equal(sg_mil_build_end(&b, &z, 1, &err), SEGUE_OK);
    char *text = print(p, SG_MIL_VERBOSE);
    struct sg_mil_program *q = read(text, NULL);
    struct sg_mil_faults faults = {0};
    sg_mil_check_types(q, &faults);
    assert_int_equal(faults.n, 0);
    assert_int_equal(q->functions[0].ops_n, p->functions[0].ops_n);
    assert_int_equal(q->functions[0].ops_n, 2 + 4 + 3);    /* weights; constants, where strides and dilations share one; operations */
    sg_mil_program_free(p);
    sg_mil_program_free(q);
    sg_free(text);

    p = sg_mil_program_new(SG_MIL_VERBOSE);
    sg_mil_build_begin(&b, p, "main", NULL);
    a = sg_mil_build_input(&b, "a", SG_MIL_FP16, SG_MIL_SHAPE(1, 64, 1, 32));
    z = sg_mil_build_unary(&b, "relu", sg_mil_build_matmul(&b, a, a, 0, 0));
    assert_int_equal(sg_mil_build_end(&b, &z, 1, &err), SEGUE_EINTERNAL);
    assert_non_null(strstr(err.text, "inner sizes 32 and 1"));
    sg_mil_program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_read_check_and_print), cmocka_unit_test(numbers_are_exact), cmocka_unit_test(bad_input_by_name), cmocka_unit_test(refusals_have_places),
        cmocka_unit_test(types_are_held), cmocka_unit_test(long_and_cut_texts), cmocka_unit_test(named_constants_differ), cmocka_unit_test(builder_makes_what_the_reader_reads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
