/* fuzz_template.c: a hostile template, up to the first NUL byte, rendered with hostile variables (JSON, the rest; a fixed
 * conversation where there is none), under low limits.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/chat_request.h"
#include "text/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": "
                                   "\"user\", \"content\": [{\"type\": \"text\", \"text\": "
                                   "\"\\u00e9 x\"}]}, {\"role\": \"assistant\", \"content\": null, "
                                   "\"tool_calls\": [{\"function\": {\"name\": \"f\", "
                                   "\"arguments\": \"{\\\"a\\\": 1.5}\"}}]}], \"tools\": [{\"function\": "
                                   "{\"name\": \"f\"}}], \"n\": -3, \"l\": [1, true, null]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct sg_template_limits limits = {
        .steps = 50000, .depth = 20, .output_bytes = 1 << 16, .value_bytes = 1 << 20};
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t len = nul ? (size_t)(nul - data) : size;
    const char *json = nul && len + 1 < size ? (const char *)nul + 1 : conversation;
    size_t json_len = json == conversation ? sizeof conversation - 1 : size - len - 1;
    struct sg_template *t = NULL;
    json_t *request = json_loadb(json, json_len, JSON_ALLOW_NUL, NULL), *vars = NULL;
    segue_error err;
    if (sg_template_open(&t, (const char *)data, len, "fuzz", &err) == SEGUE_OK && json_is_object(request)) {
        struct sg_buf out = {0};
        if (sg_chat_request(request, "<s>", NULL, &vars, &err) != SEGUE_OK) vars = NULL;
        sg_template_render(t, vars ? vars : request, 0, &limits, &out, &err);
        sg_buf_free(&out);
    }
    json_decref(vars);
    json_decref(request);
    sg_template_close(t);
    return 0;
}
