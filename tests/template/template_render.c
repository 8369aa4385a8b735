/* template_render.c: renders cases for the scripts of this folder. Reads lines {"template": ..., "vars": {...}, "now":
 * seconds}; "request": true converts the variables as a chat request first. Writes a line {"text": ...} or {"error":
 * ...} for each, and continues after an error.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "text/chat_request.h"
#include "text/template.h"

/* Parse and render one case. */
static segue_status run_case(const json_t *line, struct sg_buf *out, segue_error *err)
{
    const json_t *source = json_object_get(line, "template"), *now = json_object_get(line, "now");
    const json_t *vars = json_object_get(line, "vars");
    struct sg_template *t = NULL;
    json_t *request = NULL;
    segue_status s = sg_template_open(&t, json_string_value(source), json_string_length(source), "case", err);
    if (s == SEGUE_OK && json_is_true(json_object_get(line, "request")))
        s = sg_chat_request(vars, "<s>", "</s>", &request, err);
    if (s == SEGUE_OK)
        s = sg_template_render(t, request ? request : vars,
                               json_is_integer(now) ? json_integer_value(now) : 0, NULL, out, err);
    json_decref(request);
    sg_template_close(t);
    return s;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_error_t je;
        json_t *item = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &je);
        struct sg_buf out = {0};
        segue_error err = {0};
        segue_status s = item ? run_case(item, &out, &err) : SEGUE_EFORMAT;
        json_t *answer = json_object();
        if (s == SEGUE_OK)
            json_object_set_new(answer, "text", json_stringn(out.data ? out.data : "", out.len));
        else
            json_object_set_new(answer, "error", json_string_nocheck(item ? err.text : je.text));
        char *text = json_dumps(answer, JSON_ENSURE_ASCII | JSON_COMPACT);
        puts(text ? text : "{\"error\": \"no text\"}");
        free(text);
        json_decref(answer);
        json_decref(item);
        sg_buf_free(&out);
    }
    free(line);
    return 0;
}
