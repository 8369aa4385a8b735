/* template_golden.c: templates against renderings of jinja2 (tests/golden/template, made by make_template_golden.py),
 * and the variables of a chat request.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "text/chat_request.h"
#include "text/template.h"

static json_t *golden;

/* Render a template and compare with the text of `want`; without a text, it must fail with EFORMAT and a line. */
static void check(const char *source, size_t len, const json_t *vars, const json_t *want)
{
    struct sg_template *t = NULL;
    struct sg_buf out = {0};
    segue_error err = {0};
    segue_status s = sg_template_open(&t, source, len, "golden", &err);
    if (s == SEGUE_OK)
        s = sg_template_render(t, vars, json_integer_value(json_object_get(golden, "now")), NULL, &out, &err);
    const json_t *text = json_object_get(want, "text");
    if (!text && s != SEGUE_EFORMAT) fail_msg("should fail: %s -> %s", source, out.data ? out.data : "");
    if (text && s != SEGUE_OK) fail_msg("%s: %s", source, err.text);
    if (!text && !strstr(err.text, "template: golden line ")) fail_msg("no line in: %s", err.text);
    size_t n = json_string_length(text);
    if (text && (n != out.len || (n && memcmp(json_string_value(text), out.data, n) != 0)))
        fail_msg("%s\nexpected: %s\ngot:      %s", source, json_string_value(text), out.data ? out.data : "");
    sg_template_close(t);
    sg_buf_free(&out);
}

/* One construct of the language per case. */
static void small_templates(void **state)
{
    json_t *cases = json_object_get(golden, "cases");
    (void)state;
    assert_true(json_array_size(cases) > 80);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *source = json_object_get(json_array_get(cases, i), "template");
        check(json_string_value(source), json_string_length(source), json_object_get(golden, "vars"),
              json_array_get(cases, i));
    }
}

/* Conversations in the chat template of the golden file. */
static void conversations(void **state)
{
    json_t *cases = json_object_get(golden, "chat"), *source = json_object_get(golden, "chat_template");
    (void)state;
    assert_true(json_array_size(cases) > 60);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i), *request = json_copy(json_object_get(item, "vars")),
               *vars = NULL;
        segue_error err = {0};
        json_object_set(request, "messages", json_object_get(item, "messages"));
        if (sg_chat_request(request, NULL, NULL, &vars, &err) != SEGUE_OK) fail_msg("%s", err.text);
        check(json_string_value(source), json_string_length(source), vars, item);
        json_decref(vars);
        json_decref(request);
    }
}

/* The value at a path such as messages/0/role, as JSON; "absent" if there is none. */
static const char *at(const json_t *v, const char *path)
{
    static char text[256];
    for (char key[32]; *path;) {
        size_t n = strcspn(path, "/");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(key)) : json_object_get(v, key);
        path += n + (path[n] == '/');
    }
    char *dump = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(text, sizeof text, "%s", dump ? dump : "absent");
    free(dump);
    return text;
}

/* Variables of a request: parsed arguments, defaults, and errors for malformed requests. */
static void requests(void **state)
{
    static const char text[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"thinking\": "
                               "\"hm\", \"tool_calls\": [{\"function\": "
                               "{\"name\": \"f\", \"arguments\": \" {\\\"a\\\": [1, null]}\"}}, {\"name\": "
                               "\"g\", \"arguments\": \"{\\\"b\\\": 2}\"}, "
                               "{\"function\": {\"name\": \"h\", \"arguments\": \"not json\"}}, "
                               "{\"function\": {\"arguments\": \"[1]\"}}]}], "
                               "\"enable_thinking\": false, \"bos_token\": \"own\"}";
    segue_error err = {0};
    json_t *request = json_loads(text, 0, NULL), *before = json_deep_copy(request), *vars = NULL;
    (void)state;
    assert_int_equal(sg_chat_request(request, "<s>", "</s>", &vars, &err), SEGUE_OK);
    assert_string_equal(at(vars, "messages/0/tool_calls/0/function/arguments"), "{\"a\":[1,null]}");
    assert_string_equal(at(vars, "messages/0/tool_calls/1/arguments"), "{\"b\":2}");
    assert_string_equal(at(vars, "messages/0/tool_calls/2/function/arguments"), "\"not json\"");
    assert_string_equal(at(vars, "messages/0/tool_calls/3/function/arguments"), "\"[1]\"");
    assert_string_equal(at(vars, "messages/0/reasoning_content"), "\"hm\"");
    assert_string_equal(at(vars, "messages/0/content"), "null");
    assert_string_equal(at(vars, "add_generation_prompt"), "true");
    assert_string_equal(at(vars, "enable_thinking"), "false");
    assert_string_equal(at(vars, "bos_token"), "\"own\"");
    assert_string_equal(at(vars, "eos_token"), "\"</s>\"");
    assert_string_equal(at(vars, "tools"), "null");
    assert_true(json_equal(request, before)); /* the caller's request is unchanged */
    json_decref(vars);
    json_decref(before);
    json_decref(request);
    static const char *const bad[] = {"[]", "{}", "{\"messages\": {}}", "{\"messages\": [1]}",
                                      "{\"messages\": [{\"role\": 1}]}"};
    for (size_t i = 0; i < 5; i++) {
        request = json_loads(bad[i], 0, NULL);
        assert_int_equal(sg_chat_request(request, NULL, NULL, &vars, &err), SEGUE_EFORMAT);
        assert_non_null(strstr(err.text, "chat request: "));
        json_decref(request);
    }
    assert_int_equal(sg_chat_request(NULL, NULL, NULL, &vars, &err), SEGUE_EARG);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    tzset();
    json_error_t je;
    golden = json_load_file("tests/golden/template/cases.json", 0, &je);
    if (!golden) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(small_templates), cmocka_unit_test(conversations),
                                       cmocka_unit_test(requests)};
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(golden);
    return bad;
}
