/* template_limits.c: hostile templates: endless loops, recursion, growing texts, deep nesting, malformed tags. Each
 * ends with an error that names its line, within bounded steps and memory (the address space of the process is
 * limited).
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "text/template.h"

/* Parse and render a source with JSON variables. *out_len, if not NULL: length of the output. */
static segue_status run(const char *source, size_t len, const char *vars_text, segue_error *err,
                        size_t *out_len)
{
    struct sg_template *t = NULL;
    struct sg_buf out = {0};
    json_t *vars = json_loads(vars_text, 0, NULL);
    assert_non_null(vars);
    *err = (segue_error){0};
    segue_status s = sg_template_open(&t, source, len, "hostile", err);
    if (s == SEGUE_OK) s = sg_template_render(t, vars, 0, NULL, &out, err);
    if (out_len) *out_len = out.len;
    sg_template_close(t);
    json_decref(vars);
    sg_buf_free(&out);
    return s;
}

/* The source must fail with this status and a message that contains `part`. */
static void expect_error(const char *source, segue_status want, const char *part)
{
    segue_error err;
    segue_status s = run(source, strlen(source), "{\"s\": \"abc\", \"n\": 3, \"l\": [1, 2]}", &err, NULL);
    if (s != want || !strstr(err.text, part))
        fail_msg("%.80s: status %d, text '%s', wanted %d '%s'", source, s, err.text, want, part);
}

/* Numbers that agree in their low 20 bits do not collide: with a hash that keeps low bits, the search for a free place in this
 * dict of 8,000 keys takes 32 million steps, more than a rendering may. */
static void keys_do_not_collide(void **state)
{
    (void)state;
    struct sg_buf source = {0};
    segue_error err;
    size_t n = 0;
    sg_buf_puts(&source, "{% set d = {");
    for (int i = 0; i < 8000; i++) sg_buf_printf(&source, "%s%lld:%d", i ? "," : "", (long long)i << 20, i);
    sg_buf_puts(&source, "} %}{{ d[1048576] }}");
    segue_status s = run(source.data, source.len, "{}", &err, &n);
    if (s != SEGUE_OK || n != 1) fail_msg("%s", err.text);
    sg_buf_free(&source);
}

/* Values and expressions that nest as deep as they may, and deeper: the recursions of parsing, binding, evaluating, comparing and
 * printing end before the C stack does. Also run with 128 KiB of stack (template_limits_stack). */
static void deep_recursions_end(void **state)
{
    static const struct { const char *open, *middle, *close;
    } kinds[] = {
        {"(", "1", ")"},    {"[", "1", "]"},           {"-", "1", ""},     {"not ", "1", ""},
        {"{1:", "1", "}"},  {"x.y[", "1", "]"},        {"f(", "1", ")"},   {"1 + ", "1", ""},
        {"1 ** ", "1", ""}, {"1 if 1 else ", "1", ""}, {"x or ", "1", ""}, {"(1,", "1", ")"},
    };
    static char vars[1024];
    segue_error err;
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int n = 5; n <= 4000; n += n < 400 ? 13 : 900) {
            struct sg_buf s = {0};
            sg_buf_puts(&s, "{{ ");
            for (int i = 0; i < n; i++) sg_buf_puts(&s, kinds[k].open);
            sg_buf_puts(&s, kinds[k].middle);
            for (int i = 0; i < n; i++) sg_buf_puts(&s, kinds[k].close);
            sg_buf_puts(&s, " }}");
            segue_status got = run(s.data, s.len, "{\"x\": 0}", &err, NULL);
            if (got == SEGUE_EINTERNAL || (n > 1000 && kinds[k].close[0] == ')' && got == SEGUE_OK))
                fail_msg("%s: %d", kinds[k].open, got);
            sg_buf_free(&s);
        }
    for (int n = 1; n <= 100; n += 33) {
        size_t len = 0;
        memset(vars, '[', (size_t)n);
        memset(vars + n, ']', (size_t)n);
        memcpy(vars + 2 * n, "}", 2);
        memmove(vars + 5, vars, (size_t)(2 * n + 2));
        memcpy(vars, "{\"v\":", 5);
        const char *source = "{{ v }}{{ v|tojson }}{{ v == v }}{{ [v]|unique|list|length }}{{ v|string|length }}";
        segue_status got = run(source, strlen(source), vars, &err, &len);
        if (got != SEGUE_OK && !strstr(err.text, "levels") && !strstr(err.text, "unhashable")) fail_msg("%d: %s", n, err.text);
    }
}

/* Nested loops and nested values end at the limit of steps or of nesting. */
static void loops(void **state)
{
    (void)state;
    expect_error("{% for i in range(1000000000) %}x{% endfor %}", SEGUE_EFORMAT, "hostile line 1: range");
    expect_error("{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% "
            "endfor %}"
            "{% endfor %}",
            SEGUE_ELIMIT, "steps");
    expect_error("\n\n{% for a in range(99999) %}{% for b in range(99999) %}{{ 1 }}{% endfor %}{% endfor %}",
            SEGUE_ELIMIT, "hostile line 3");
    expect_error(
        "{% set ns = namespace(x=[1]) %}{% for a in range(99999) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
        "{{ ns.x }}",
        SEGUE_ELIMIT, "nesting");
    expect_error("{% set ns = namespace(x=[1]) %}{% for a in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
            "{{ ns.x|tojson }}",
            SEGUE_ELIMIT, "line 1");
    expect_error("{{ range(99999)|map('string')|map('center', 9999)|join }}", SEGUE_ELIMIT, "line 1");
    expect_error("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", SEGUE_ELIMIT, "nesting");
}

/* Macros and recursive loops end at the limit of levels. */
static void recursion(void **state)
{
    (void)state;
    expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", SEGUE_ELIMIT, "levels");
    expect_error("{% macro m(x) %}{% for i in [1] %}{{ m([m(x)]) }}{% endfor %}{% endmacro %}{{ m(1) }}",
            SEGUE_ELIMIT, "levels");
    expect_error("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}", SEGUE_ELIMIT,
            "levels");
    expect_error("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", SEGUE_ELIMIT, "levels");
}

/* Repetition, padding and concatenation end at a limit before memory is exhausted. */
static void growth(void **state)
{
    (void)state;
    expect_error("{{ 'a' * 1000000000000 }}", SEGUE_ELIMIT, "line 1");
    expect_error("{{ 'a' * 30000000 }}", SEGUE_ELIMIT, "grows");
    expect_error("{{ [1] * 1000000000 }}", SEGUE_ELIMIT, "line 1");
    expect_error("{{ ('a' * 100000)|replace('a', 'b' * 100000) }}", SEGUE_ELIMIT, "grows");
    expect_error("{{ ('a' * 1000000).replace('', 'b' * 1000) }}", SEGUE_ELIMIT, "grows");
    expect_error(
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        SEGUE_ELIMIT, "bytes");
    expect_error(
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        SEGUE_ELIMIT, "line 1");
    expect_error("{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}", SEGUE_ELIMIT, "grows");
    expect_error("{% set x %}{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}{% endset %}", SEGUE_ELIMIT,
            "line 1");
    expect_error("{{ '%1000000000d' % 1 }}", SEGUE_EFORMAT, "width");
    expect_error("{{ '{:1000000000}'.format(1) }}", SEGUE_EFORMAT, "line 1");
    expect_error("{{ s.center(100000000) }}", SEGUE_ELIMIT, "line 1");
    expect_error("{{ 2 ** 64 }}", SEGUE_EFORMAT, "64 bits");
    expect_error("{{ 9223372036854775807 + 1 }}", SEGUE_EFORMAT, "64 bits");
    expect_error("{{ 99999999999999999999 }}", SEGUE_EFORMAT, "64 bits");
    expect_error("{{ s|indent(100000000) }}", SEGUE_ELIMIT, "line 1");
    expect_error("{{ [1, [2]]|tojson(indent=1000000) }}", SEGUE_EFORMAT, "indent");
    expect_error("{{ l|batch(1000000000, 'x')|list }}", SEGUE_ELIMIT, "line 1");
    expect_error("{{ l|slice(1000000000)|list }}", SEGUE_ELIMIT, "line 1");
}

/* n copies of a text, then a tail; *len: bytes. The caller frees it. */
static char *many(const char *part, size_t n, const char *tail, size_t *len)
{
    size_t m = strlen(part);
    char *s = malloc(m * n + strlen(tail) + 1);
    assert_non_null(s);
    for (size_t i = 0; i < n; i++) memcpy(s + i * m, part, m);
    strcpy(s + m * n, tail);
    *len = m * n + strlen(tail);
    return s;
}

/* Deep nesting and long chains in the source end in the parser, without overflowing the C stack. */
static void nesting(void **state)
{
    static const struct {
        const char *part, *tail;
        size_t n;
        segue_status want; /* OK: success and any error are accepted */
    } cases[] = {
        {"{{ ((((((((((", "", 5000, SEGUE_EFORMAT},
        {"{{", "", 524288, SEGUE_EFORMAT},
        {"{{ [", "", 200000, SEGUE_EFORMAT},
        {"{% if 1 %}", "", 50000, SEGUE_EFORMAT},
        {"{% for x in y %}", "", 50000, SEGUE_EFORMAT},
        {"{% macro m() %}", "", 50000, SEGUE_EFORMAT},
        {"{% set x %}", "", 50000, SEGUE_EFORMAT},
        {"{%", "", 500000, SEGUE_EFORMAT},
        {"{#", "", 500000, SEGUE_EFORMAT},
        {"{{ '", "", 200000, SEGUE_EFORMAT},
        {"{% raw %}", "", 100000, SEGUE_EFORMAT},
        {"{{ not not not not", "", 20000, SEGUE_EFORMAT},
        {"{{ -------------", "", 20000, SEGUE_EFORMAT},
        {"{{ a", "", 100000, SEGUE_EFORMAT},
        {"{{ 1 }}", "", 149000, SEGUE_OK},
        {"}}", "", 500000, SEGUE_OK},
        {"{% set a = 1 %}", "", 60000, SEGUE_OK},
        {"{", "", 1000000, SEGUE_OK},
        {" ", "{% if %}", 1000000, SEGUE_EFORMAT},
        {"x", "", 1048577, SEGUE_ELIMIT},
    };
    segue_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t len;
        char *s = many(cases[i].part, cases[i].n, cases[i].tail, &len);
        segue_status got = run(s, len, "{}", &err, NULL);
        if (cases[i].want != SEGUE_OK && got != cases[i].want)
            fail_msg("%s: status %d, '%s'", cases[i].part, got, err.text);
        if (got != SEGUE_OK && !strstr(err.text, "hostile"))
            fail_msg("%s: no name in '%s'", cases[i].part, err.text);
        free(s);
    }
    static const char *const chains[][2] = {
        {" + 1", "{{ 1"},   {".a", "{{ a"},  {"|upper", "{{ 'a'"},    {" if 1 else 2", "{{ 1"},
        {" and 1", "{{ 1"}, {"[0]", "{{ a"}, {" is defined", "{{ a"}, {" ~ 1", "{{ 1"}};
    for (size_t i = 0; i < 8; i++) {
        size_t len;
        char *body = many(chains[i][0], 50000, " }}", &len), *s = malloc(len + 8);
        assert_non_null(s);
        memcpy(s, chains[i][1], strlen(chains[i][1]));
        memcpy(s + strlen(chains[i][1]), body, len);
        segue_status got = run(s, strlen(chains[i][1]) + len, "{}", &err, NULL);
        if (i != 7) assert_int_equal(got, SEGUE_EFORMAT);
        free(s);
        free(body);
    }
}

/* Malformed sources and forbidden operations: the message names the cause and the line. */
static void broken(void **state)
{
    static const char nul[] = "a\0b{{ 1 }}\0", nul_tag[] = "{{ \0 }}", bad[] = "\xff\xfe{{ 1 }}",
                      cut[] = "{{ '\xc3";
    segue_error err;
    size_t len = 0;
    (void)state;
    assert_int_equal(run(nul, sizeof nul - 1, "{}", &err, &len), SEGUE_OK);
    assert_int_equal(len, 5);
    assert_int_equal(run(nul_tag, sizeof nul_tag - 1, "{}", &err, NULL), SEGUE_EFORMAT);
    assert_int_equal(run(bad, sizeof bad - 1, "{}", &err, NULL), SEGUE_EFORMAT);
    assert_int_equal(run(cut, sizeof cut - 1, "{}", &err, NULL), SEGUE_EFORMAT);
    assert_int_equal(run("", 0, "{}", &err, &len), SEGUE_OK);
    expect_error("a\nb\n{{ x", SEGUE_EFORMAT, "hostile line 3");
    expect_error("\n{% if x %}\n", SEGUE_EFORMAT, "'if' of line 2 is still open");
    expect_error("{% endif %}", SEGUE_EFORMAT, "unknown tag 'endif'");
    expect_error("{% for x in l %}{% endif %}", SEGUE_EFORMAT, "open is 'for'");
    expect_error("{{ 'abc }}", SEGUE_EFORMAT, "not closed");
    expect_error("{# abc", SEGUE_EFORMAT, "not closed");
    expect_error("{{ 1 | nofilter }}", SEGUE_EFORMAT, "nofilter");
    expect_error("{{ 1 is notest }}", SEGUE_EFORMAT, "notest");
    expect_error("{% break %}", SEGUE_EFORMAT, "outside of a loop");
    expect_error("{% include 'x' %}", SEGUE_EFORMAT, "unknown tag 'include'");
    expect_error("{{ missing.more }}", SEGUE_EFORMAT, "'missing' is undefined");
    expect_error("\n{{ raise_exception('Only user\nroles') }}", SEGUE_EFORMAT, "hostile line 2: Only user?roles");
    expect_error("{{ l.append(1) }}", SEGUE_EFORMAT, "append");
    expect_error("{{ 'a' + none }}", SEGUE_EFORMAT, "NoneType");
    expect_error("{{ s.__class__.mro() }}", SEGUE_EFORMAT, "line 1");
    expect_error("{% set s.x = 1 %}", SEGUE_EFORMAT, "namespace");
}

/* A text that is built in many steps needs memory for the text, not for each intermediate value. */
static void swept(void **state)
{
    static const char source[] =
        "{% set ns = namespace(x='') %}{% for i in range(2000) %}{% set ns.x = ns.x + 'y' * 500 %}"
        "{% endfor %}{{ ns.x|length }}";
    segue_error err;
    size_t len = 0;
    (void)state;
    if (run(source, strlen(source), "{}", &err, &len) != SEGUE_OK) fail_msg("%s", err.text);
    assert_int_equal(len, 7);
}

/* Limits of the caller are respected, and a failed rendering writes no output. */
static void own_limits(void **state)
{
    const struct sg_template_limits limits = {
        .steps = 1000, .depth = 5, .output_bytes = 100, .value_bytes = 20000};
    static const char *const sources[] = {"{% for i in range(5000) %}{% endfor %}", "{{ 'x' * 101 }}",
                                          "{{ 'x' * 30000 }}",
                                          "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct sg_template *t = NULL;
        struct sg_buf out = {0};
        segue_error err = {0};
        json_t *vars = json_object();
        assert_int_equal(sg_template_open(&t, sources[i], strlen(sources[i]), "t", &err), SEGUE_OK);
        if (sg_template_render(t, vars, 0, &limits, &out, &err) != SEGUE_ELIMIT)
            fail_msg("%s: %s", sources[i], err.text);
        assert_int_equal(out.len, 0); /* no partial output */
        sg_template_close(t);
        json_decref(vars);
    }
}

int main(void)
{
    /* 128 MB of address space: a rendering that needs more fails with EMEMORY instead of the expected status.
     * Sanitizers reserve far more address space, so that their builds run without the limit. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNLIMITED
#endif
#endif
#else
#define UNLIMITED
#endif
#ifndef UNLIMITED
    struct rlimit space = {.rlim_cur = 128u << 20, .rlim_max = 128u << 20};
    setrlimit(RLIMIT_AS, &space);
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_do_not_collide),
                                       cmocka_unit_test(deep_recursions_end),
                                       cmocka_unit_test(loops),
                                       cmocka_unit_test(recursion),
                                       cmocka_unit_test(growth),
                                       cmocka_unit_test(nesting),
                                       cmocka_unit_test(broken),
                                       cmocka_unit_test(swept),
                                       cmocka_unit_test(own_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
