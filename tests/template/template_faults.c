/* template_faults.c: each allocation during parsing and rendering of a template fails once: the status is EMEMORY and
 * nothing leaks (checked by the address sanitizer). Needs a build with SEGUE_FAULTS.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifdef SEGUE_FAULTS

#include "text/chat_request.h"
#include "text/template.h"

#include "base/mem.h"

enum { ATTEMPTS = 200000 };

/* Parse and render once; the status is returned. */
static segue_status once(const char *source, size_t len, const json_t *vars)
{
    struct sg_template *t = NULL;
    struct sg_buf out = {0};
    segue_error err = {0};
    segue_status s = sg_template_open(&t, source, len, "fault", &err);
    if (s == SEGUE_OK) s = sg_template_render(t, vars, 0, NULL, &out, &err);
    sg_template_close(t);
    sg_buf_free(&out);
    return s;
}

/* The n-th allocation fails, for n = 1, 2, ... until the rendering needs fewer than n. */
static void every_allocation_may_fail(void **state)
{
    json_t *golden = json_load_file(SEGUE_SOURCE_DIR "/tests/golden/template/cases.json", 0, NULL);
    json_t *cases = json_object_get(golden, "cases"), *vars = json_object_get(golden, "vars");
    (void)state;
    assert_non_null(golden);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *source = json_object_get(json_array_get(cases, i), "template");
        segue_status want = json_object_get(json_array_get(cases, i), "text") ? SEGUE_OK : SEGUE_EFORMAT;
        for (uint64_t n = 1;; n++) {
            assert_true(n < ATTEMPTS);
            sg_fault_alloc(n);
            segue_status s = once(json_string_value(source), json_string_length(source), vars);
            sg_fault_alloc(0);
            if (s == want) break;
            if (s != SEGUE_EMEMORY) fail_msg("%s: allocation %d: status %d", json_string_value(source), (int)n, s);
        }
    }
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("SKIP template_faults: this build has no fault hooks (SEGUE_FAULTS)");
    return 77;
}

#endif
