/* ane_probe.c: every question of the probe on the software NPU: the answers are those of the profile.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "unit/ane/npu/npu.h"
#include "unit/ane/tools/probe.h"

static struct sg_probe_answer ask(const char *name, const char *profile, int faithful, int delta)
{
    struct sg_npu_opts o = {.faithful = (uint32_t)faithful, .delta = (uint32_t)delta, .threads = 1};
    struct sg_ane_device *d;
    struct sg_probe_answer a = {{0}, 0, NULL, 0};
    assert_int_equal(sg_ane_profile_named(&o.profile, profile, NULL), SEGUE_OK);
    assert_int_equal(sg_npu_open(&d, &o, NULL), SEGUE_OK);
    for (size_t i = 0; i < sg_probe_count(); i++)
        if (!strcmp(sg_probe_name(i), name)) assert_int_equal(sg_probe_run(d, i, &a, NULL), SEGUE_OK);
    struct sg_ane_counters c;
    sg_ane_ops_of(d)->count(d, &c);
    assert_int_equal(c.loaded, 0);
    sg_ane_ops_of(d)->close(d);
    assert_true(a.verdict[0] != 0);
    return a;
}

static void every_question_is_answered(void **state)
{
    (void)state;
    for (size_t i = 0; i < sg_probe_count(); i++) {
        assert_true(strlen(sg_probe_question(i)) > 10);
        struct sg_probe_answer a = ask(sg_probe_name(i), "ieee", 0, 0);
        if (!a.settled) fail_msg("%s: %s", sg_probe_name(i), a.verdict);
    }
    assert_string_equal(ask("runs", "m1", 1, 0).verdict, "works");
    assert_string_equal(ask("concat", "strict", 0, 0).verdict, "works");
    assert_string_equal(ask("argmax", "strict", 0, 0).verdict, "works");
    assert_string_equal(ask("argmax", "m1", 1, 0).verdict, "works");
    assert_string_equal(ask("order", "m4", 1, 0).verdict, "binding by name gives the declared operands");
    assert_string_equal(ask("reload", "m1", 1, 0).verdict, "weights stay as compiled");
    assert_string_equal(ask("reload", "m1", 1, 1).verdict, "new weights take effect");
    assert_string_equal(ask("exp", "ieee", 0, 0).verdict, "finite");
    assert_string_equal(ask("sqrt", "ieee", 0, 0).verdict, "not a number");
    assert_true(ask("sqrt", "m1", 1, 0).value == 0);
    assert_string_equal(ask("products", "m1", 1, 0).verdict, "subnormal operands count as 0");
    assert_string_equal(ask("products", "m2", 1, 0).verdict, "products are exact and added in a wide sum");
    assert_string_equal(ask("products", "m4", 1, 0).verdict, "products are exact and added in a wide sum");
    assert_string_equal(ask("ties", "m1", 1, 0).verdict, "halves go to even");
    assert_string_equal(ask("ties", "m2", 1, 0).verdict, "halves go away from zero");
    assert_string_equal(ask("tanh", "m4", 1, 0).verdict, "33 knots from 0 to 4");
    assert_string_equal(ask("tanh", "ieee", 0, 0).verdict, "exact");
    assert_true(ask("compiles", "m1", 1, 0).value == 16);
    assert_non_null(ask("dispatch", "ieee", 0, 0).value_name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_question_is_answered)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
