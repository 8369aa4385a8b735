/* predicted.c: the page of `bench --predict --html`: a point per case over the diagonal, none for the last row.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/bench.h"

static const char rows[] =
    "[{\"model\": \"a<b\", \"predicted\": {\"mid\": 10, \"lo\": 5, \"hi\": 20}, \"measured_ms\": 12, \"inside\": true},"
    " {\"model\": \"c\", \"predicted\": {\"mid\": 100, \"lo\": 90, \"hi\": 110}, \"measured_ms\": 300, \"inside\": false},"
    " {\"cases\": 2, \"coverage\": 0.5}]";

static size_t count(const char *text, const char *word)
{
    size_t n = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) n++;
    return n;
}

static void a_point_per_case(void **state)
{
    static const struct bench_column columns[] = {{"model", "model", 0}, {"measured ms", "measured_ms", 1}, {NULL, NULL, 0}};
    struct bench_out out = {.rows = json_loads(rows, 0, NULL), .columns = columns, .timelines = json_array()};
    char path[] = "/tmp/segue-predicted-XXXXXX", text[32768];
    segue_error err;
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(bench_html_write(&out, path, &err), SEGUE_OK);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    assert_non_null(strstr(text, "Prediction against measurement"));
    assert_non_null(strstr(text, "a&lt;b"));
    assert_null(strstr(text, "nan"));
    assert_int_equal(count(text, "<circle"), 2);
    fclose(f);
    close(fd);
    unlink(path);
    json_decref(out.rows);
    json_decref(out.timelines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_point_per_case)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
