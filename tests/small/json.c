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
        "", "{", "{\"a\":1,}", "[1", "{\"a\":1,\"a\":2}", "{} x", "\"\xff\"", "{\"a\":99999999999999999999}"};
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(errors_name_line_and_object),
                                       cmocka_unit_test(members_have_kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
