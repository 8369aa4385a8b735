/* json.c: what the JSON reader refuses, and what members give.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/json.h"

static void errors_name_line_and_object(void **state)
{
    (void)state;
    json_t *root = NULL;
    segue_error err;
    const char *bad[] = {
        "", "{", "{\"a\":1,}", "[1", "{\"a\":1,\"a\":2}", "{} x", "\"\xff\"", "{\"a\":1e999}", "{\"a\":99999999999999999999,}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(sg_json_parse(&root, bad[i], strlen(bad[i]), "thing.json", &err), SEGUE_EFORMAT);
        assert_null(root);
        assert_non_null(strstr(err.text, "thing.json: line 1"));
    }
    assert_int_equal(sg_json_read(&root, "/nonexistent/x.json", 100, &err), SEGUE_EIO);
}

static void members_have_kinds(void **state)
{
    (void)state;
    const char *text = "{\"i\":7,\"r\":2.5,\"w\":1e6,\"t\":true,\"s\":\"x\",\"n\":null}";
    json_t *o = NULL;
    int64_t i;
    double r;
    int b;
    const char *s;
    assert_int_equal(sg_json_parse(&o, text, strlen(text), "o", NULL), SEGUE_OK);
    assert_int_equal(sg_json_int(o, "i", 0, &i, "o", NULL), SEGUE_OK);
    assert_int_equal(i, 7);
    assert_int_equal(sg_json_int(o, "w", 0, &i, "o", NULL), SEGUE_OK);
    assert_int_equal(i, 1000000);
    assert_int_equal(sg_json_int(o, "n", 5, &i, "o", NULL), SEGUE_OK);
    assert_int_equal(i, 5);
    assert_int_equal(sg_json_real(o, "i", 0, &r, "o", NULL), SEGUE_OK);
    assert_true(r == 7);
    assert_int_equal(sg_json_real(o, "absent", 1.5, &r, "o", NULL), SEGUE_OK);
    assert_true(r == 1.5);
    assert_int_equal(sg_json_bool(o, "t", 0, &b, "o", NULL), SEGUE_OK);
    assert_true(b);
    assert_int_equal(sg_json_text(o, "s", "", &s, "o", NULL), SEGUE_OK);
    assert_string_equal(s, "x");
    assert_int_equal(sg_json_int(o, "r", 0, &i, "o", NULL), SEGUE_EFORMAT);
    assert_int_equal(sg_json_int(o, "s", 0, &i, "o", NULL), SEGUE_EFORMAT);
    assert_int_equal(sg_json_real(o, "t", 0, &r, "o", NULL), SEGUE_EFORMAT);
    assert_int_equal(sg_json_bool(o, "i", 0, &b, "o", NULL), SEGUE_EFORMAT);
    assert_int_equal(sg_json_text(o, "i", "", &s, "o", NULL), SEGUE_EFORMAT);
    json_decref(o);
}

/* jansson recurses per level: what nests deeper than SG_JSON_DEPTH never reaches it. Brackets inside of strings do not count.
 * Also run with 128 KiB of stack (small_json_stack). */
static void depth_is_bounded(void **state)
{
    enum { DEEP = 100000 };
    static char text[8 * DEEP];
    (void)state;
    for (int n = SG_JSON_DEPTH - 1; n <= DEEP; n = n < SG_JSON_DEPTH + 2 ? n + 1 : n < 2048 ? 2048 : n < DEEP ? DEEP : DEEP + 1)
        for (int kind = 0; kind < 3; kind++) { /* arrays, objects, an unfinished text */
            json_t *root = NULL;
            segue_error err;
            char *at = text;
            for (int i = 0; i < n; i++) at = kind == 1 && i % 2 ? (memcpy(at, "{\"\":", 4), at + 4) : (*at = '[', at + 1);
            for (int i = n; kind != 2 && i--;) *at++ = kind == 1 && i % 2 ? '}' : ']';
            if (kind == 1 && n % 2 == 0) continue; /* the innermost object has no value */
            segue_status s = sg_json_parse(&root, text, (size_t)(at - text), "deep.json", &err);
            if (s != (n <= SG_JSON_DEPTH && kind != 2 ? SEGUE_OK : SEGUE_EFORMAT))
                fail_msg("%d, %d levels: %s", kind, n, err.text);
            if (n > SG_JSON_DEPTH) assert_non_null(strstr(err.text, "nested deeper"));
            json_decref(root);
        }
    const char *quoted = "[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
                         "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[\"]";
    json_t *root = NULL;
    assert_int_equal(sg_json_parse(&root, quoted, strlen(quoted), "quoted.json", NULL), SEGUE_OK);
    json_decref(root);
}

/* Integers beyond 64 bits are reals; those within keep every digit; digits in strings and reals are left alone. */
static void long_integers_are_reals(void **state)
{
    (void)state;
    const char *text = "{\"big\":1000000000000000019884624838656,\"low\":-9223372036854775809,\"max\":9223372036854775807,"
                       "\"min\":-9223372036854775808,\"s\":\"\\\"99999999999999999999\",\"r\":1.99999999999999999999e2,"
                       "\"list\":[18446744073709551616]}";
    json_t *o = NULL;
    int64_t i;
    double r;
    const char *s;
    assert_int_equal(sg_json_parse(&o, text, strlen(text), "o", NULL), SEGUE_OK);
    assert_int_equal(sg_json_real(o, "big", 0, &r, "o", NULL), SEGUE_OK);
    assert_true(r == 1e30);
    assert_int_equal(sg_json_real(o, "low", 0, &r, "o", NULL), SEGUE_OK);
    assert_true(r == -9223372036854775808.0);
    assert_int_equal(sg_json_int(o, "max", 0, &i, "o", NULL), SEGUE_OK);
    assert_true(i == INT64_MAX);
    assert_int_equal(sg_json_int(o, "min", 0, &i, "o", NULL), SEGUE_OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(sg_json_text(o, "s", "", &s, "o", NULL), SEGUE_OK);
    assert_string_equal(s, "\"99999999999999999999");
    assert_int_equal(sg_json_real(o, "r", 0, &r, "o", NULL), SEGUE_OK);
    assert_true(r == 200);
    assert_true(json_real_value(json_array_get(json_object_get(o, "list"), 0)) == 18446744073709551616.0);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(depth_is_bounded), cmocka_unit_test(errors_name_line_and_object),
                                       cmocka_unit_test(members_have_kinds),
                                       cmocka_unit_test(long_integers_are_reals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
