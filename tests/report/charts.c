/* charts.c: axes, crossovers and the escaping of the pages in cli/report/. Expected values are computed by hand.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "report/crossover.h"
#include "report/scale.h"

static void linear_axes_end_on_ticks(void **state)
{
    (void)state;
    double ticks[SCALE_TICKS];
    struct scale s = scale_fit(0, 93, false, 100, 300);
    assert_true(s.low == 0 && s.high == 100);
    assert_int_equal(scale_ticks(&s, ticks), 6);
    assert_true(ticks[1] == 20 && ticks[5] == 100);
    assert_true(scale_at(&s, 50) == 200 && scale_at(&s, -5) == 100 && scale_at(&s, 1000) == 300);
    s = scale_fit(5, 5, false, 0, 1); /* one value */
    assert_true(s.high > s.low);
}

static void logarithmic_axes(void **state)
{
    (void)state;
    double ticks[SCALE_TICKS];
    struct scale s = scale_fit(3, 700, true, 0, 300);
    assert_true(s.low == 2 && s.high == 1000);
    assert_int_equal(scale_ticks(&s, ticks), 9); /* 2 5 10 20 50 100 200 500 1000 */
    assert_true(fabs(ticks[0] - 2) < 1e-9 && fabs(ticks[8] - 1000) < 1e-6);
    assert_true(fabs(scale_at(&s, sqrt(2000.0)) - 150) < 1e-9);
    s = scale_fit(1e-300, 1e300, true, 0, 1);
    assert_true(scale_ticks(&s, ticks) <= SCALE_TICKS);
}

static void labels_are_short(void **state)
{
    (void)state;
    const struct { double v; const char *text; } cases[] = {{0, "0"}, {0.5, "0.5"}, {5000, "5000"}, {40000, "40k"},
                                                            {3e6, "3M"}, {2e9, "2G"}, {1e-7, "1e-07"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        scale_label(text, sizeof text, cases[i].v);
        assert_string_equal(text, cases[i].text);
    }
}

static void crossovers(void **state)
{
    (void)state;
    size_t from, to;
    /* y = x and y = 100: equal at 100, also in log-log. */
    struct chart_point rising[] = {{.x = 10, .y = 10}, {.x = 1000, .y = 1000}};
    struct chart_point flat[] = {{.x = 10, .y = 100}, {.x = 1000, .y = 100}};
    struct chart_series lines[] = {{"a", rising, 2, true}, {"b", flat, 2, true}};
    assert_true(fabs(crossover_find(lines, 2, &from, &to) - 100) < 1e-9);
    assert_true(from == 0 && to == 1);
    flat[0].y = flat[1].y = 5000; /* never */
    assert_true(crossover_find(lines, 2, &from, &to) == -1);
    struct chart_point level[] = {{.x = 10, .y = 100}, {.x = 1000, .y = 100}};
    struct chart_point near[] = {{.x = 10, .y = 101}, {.x = 1000, .y = 98}};
    struct chart_series ties[] = {{"a", level, 2, true}, {"b", near, 2, true}};
    assert_true(crossover_find(ties, 2, &from, &to) == -1);
    near[1].y = 90;
    double at = crossover_find(ties, 2, &from, &to);
    assert_true(at > 10 && at < 1000 && from == 0 && to == 1);
    assert_true(crossover_find(lines, 1, &from, &to) == -1 && crossover_find(lines, 0, &from, &to) == -1);
    flat[1] = (struct chart_point){.x = 900, .y = 1}; /* other lengths are not compared */
    assert_true(crossover_find(lines, 2, &from, &to) == -1);
}

static void hostile_values_and_texts(void **state)
{
    (void)state;
    struct html_page p = {0};
    struct chart_point points[] = {
        {.x = NAN, .y = 1}, {.x = INFINITY, .y = 2}, {.x = -1, .y = 1}, {.x = 10, .y = 0}, {.x = 5, .y = 7}};
    struct chart_series s = {"<s>", points, 5, true};
    struct chart_axes axes = {"x", "y", true, true};
    struct chart_bar bars[] = {{"<b>\x01\xff", NAN, 0, 0, 0}, {"b", INFINITY, 0, 0, 9}, {"c", 3, 2, 4, 7}};
    struct chart_event events[] = {{9, 0, 1, 0, NULL}, {0, 2, 1, 0, NULL}, {0, NAN, 1, 0, NULL}, {0, 1, 1, 77, "\"&'"}};
    const char *rows[] = {"row"};
    html_begin(&p, "t</title><script>", "");
    chart_lines(&p, "lines", &axes, &s, 1, NULL, 0);
    chart_bars(&p, "bars", "x", bars, 3, NULL, 0);
    chart_timeline(&p, "time", rows, 1, events, 4, NULL, 0);
    chart_roofs(&p, "roofs", NULL, 0, NULL, 0);
    assert_null(strstr(p.text.data, "<script>"));
    assert_null(strstr(p.text.data, "<b>"));
    assert_null(strstr(p.text.data, "nan"));
    assert_null(strstr(p.text.data, "inf"));
    assert_non_null(strstr(p.text.data, "&lt;b&gt;\xef\xbf\xbd\xef\xbf\xbd"));
    assert_non_null(strstr(p.text.data, "not measured"));
    assert_non_null(strstr(p.text.data, "roofs: no values"));
    html_free(&p);
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    struct out_text t = {0};
    html_escape(&t, "\xc3\xa4\xc3\xb6&x", 3);
    assert_string_equal(t.data, "\xc3\xa4\xc3\xb6&amp;\xe2\x80\xa6");
    free(t.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_axes_end_on_ticks), cmocka_unit_test(logarithmic_axes), cmocka_unit_test(labels_are_short),
        cmocka_unit_test(crossovers), cmocka_unit_test(hostile_values_and_texts), cmocka_unit_test(long_texts_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
