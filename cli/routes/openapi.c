/* openapi.c: GET /openapi.json: the paths of the server with the fields of their bodies. The tests send a wrong value for each
 * field. SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <string.h>

/* A field; kind: a letter that struct route.fields lists. type: of JSON; NULL: several. */
static const struct described {
    char kind;
    const char *name, *type;
} described[] = {
    {'m', "model", "string"},
    {'g', "messages", "array"},
    {'p', "prompt", NULL},
    {'q', "prompt", "string"},
    {'q', "input_prefix", NULL},
    {'q', "input_suffix", NULL},
    {'q', "input_extra", "array"},
    {'i', "input", NULL},
    {'s', "max_tokens", "integer"},
    {'s', "max_completion_tokens", "integer"},
    {'s', "temperature", "number"},
    {'s', "top_p", "number"},
    {'s', "top_k", "integer"},
    {'s', "min_p", "number"},
    {'s', "typical_p", "number"},
    {'s', "presence_penalty", "number"},
    {'s', "frequency_penalty", "number"},
    {'s', "repeat_penalty", "number"},
    {'s', "repeat_last_n", "integer"},
    {'s', "dry_multiplier", "number"},
    {'s', "dry_base", "number"},
    {'s', "dry_allowed_length", "integer"},
    {'s', "seed", "integer"},
    {'s', "logit_bias", NULL},
    {'s', "stop", NULL},
    {'s', "id_slot", "integer"},
    {'s', "cache_prompt", "boolean"},
    {'s', "ignore_eos", "boolean"},
    {'o', "n", "integer"},
    {'o', "logprobs", NULL},
    {'o', "top_logprobs", "integer"},
    {'o', "stream", "boolean"},
    {'o', "stream_options", "object"},
    {'o', "response_format", "object"},
    {'o', "grammar", "string"},
    {'o', "regex", "string"},
    {'o', "thinking_budget", "integer"},
    {'o', "reasoning_format", "string"},
    {'o', "t_max_predict_ms", "integer"},
    {'o', "sse_ping_interval", "integer"},
    {'t', "tools", "array"},
    {'t', "tool_choice", NULL},
    {'t', "parallel_tool_calls", "boolean"},
    {'t', "chat_template_kwargs", "object"},
    {'t', "enable_thinking", "boolean"},
    {'c', "add_generation_prompt", "boolean"},
    {'c', "continue_final_message", "boolean"},
    {'y', "max_output_tokens", "integer"},
    {'y', "previous_response_id", "string"},
    {'y', "instructions", "string"},
    {'y', "store", "boolean"},
    {'a', "system", NULL},
    {'a', "diagnostics", NULL},
    {'e', "pooling", "string"},
    {'e', "encoding_format", "string"},
    {'r', "query", "string"},
    {'r', "documents", "array"},
    {'r', "top_n", "integer"},
    {'r', "return_documents", "boolean"},
    {'r', "texts", "array"},
    {'k', "content", "string"},
    {'k', "add_special", "boolean"},
    {'k', "parse_special", "boolean"},
    {'k', "with_pieces", "boolean"},
    {'d', "tokens", "array"},
    {'l', "filename", NULL},
    {'x', "prompt", "string"},
};

/* Fields that /v1/messages and /v1/responses translate are left out where they do not pass them on. */
static bool applies(const struct route *r, const struct described *d)
{
    static const char *const passed[] = {"max_tokens",      "temperature", "top_p",
                                         "top_k",           "min_p",       "seed",
                                         "stream",          "grammar",     "chat_template_kwargs",
                                         "response_format", "tools",       "tool_choice"};
    bool dropped = strchr(r->fields, 'y') && (!strcmp(d->name, "n") || !strcmp(d->name, "stream_options"));
    if (!strchr(r->fields, d->kind) || dropped) return false;
    if (!strchr(r->fields, 'a') || !strchr("sot", d->kind)) return true;
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        if (!strcmp(passed[i], d->name)) return true;
    return false;
}

static json_t *body_json(const struct route *r)
{
    json_t *properties = json_object(), *schema, *content;
    for (size_t i = 0; i < sizeof described / sizeof *described; i++) {
        const struct described *d = &described[i];
        if (applies(r, d) && !json_object_get(properties, d->name))
            json_object_set_new(properties, d->name, d->type ? json_pack("{s:[s,s]}", "type", d->type, "null") : json_object());
    }
    schema = json_pack("{s:s, s:o}", "type", "object", "properties", properties);
    if (strchr(r->fields, 'b')) {
        json_decref(schema);
        content = json_pack("{s:{}}", "application/octet-stream");
    } else
        content = json_pack("{s:{s:o}}", "application/json", "schema", schema);
    return json_pack("{s:b, s:o}", "required", 1, "content", content);
}

static void add_parameter(json_t *list, const char *name, const char *in, bool required, json_t *schema)
{
    json_array_append_new(list,
                          json_pack("{s:s, s:s, s:b, s:o}", "name", name, "in", in, "required", required, "schema", schema));
}

/* Parameters of a path with {id}. */
static json_t *parameters_json(const struct route *r)
{
    json_t *list = json_array();
    bool slot = !strncmp(r->path, "/slots/", 7);
    add_parameter(list, "id", "path", true, json_pack("{s:s}", "type", slot ? "integer" : "string"));
    if (slot) add_parameter(list, "action", "query", true, json_pack("{s:[s,s,s]}", "enum", "save", "restore", "erase"));
    if (!strstr(r->path, "/input_items")) return list;
    add_parameter(list, "limit", "query", false, json_pack("{s:s, s:i, s:i}", "type", "integer", "minimum", 1, "maximum", 100));
    add_parameter(list, "order", "query", false, json_pack("{s:[s,s]}", "enum", "asc", "desc"));
    add_parameter(list, "after", "query", false, json_pack("{s:s}", "type", "string"));
    return list;
}

json_t *openapi_json(const struct route *list)
{
    json_t *paths = json_object();
    for (const struct route *r = list; r->path; r++) {
        json_t *item = json_object_get(paths, r->path);
        char method[8] = {0};
        for (size_t i = 0; r->method[i]; i++) method[i] = (char)(r->method[i] + 32);
        json_t *operation = json_pack("{s:s, s:{s:{s:s}, s:{s:s}}}", "summary", r->summary, "responses", "200", "description",
                                      "The answer", "default", "description", "An error object");
        if (r->fields) json_object_set_new(operation, "requestBody", body_json(r));
        if (strchr(r->path, '{')) json_object_set_new(operation, "parameters", parameters_json(r));
        if (!item) json_object_set_new(paths, r->path, item = json_object());
        json_object_set_new(item, method, operation);
    }
    json_t *schemes = json_pack("{s:{s:s, s:s}, s:{s:s, s:s, s:s}}", "bearer", "type", "http", "scheme", "bearer", "key", "type",
                                "apiKey", "in", "header", "name", "x-api-key");
    return json_pack("{s:s, s:{s:s, s:s}, s:o, s:{s:o}}", "openapi", "3.1.0", "info", "title", "segue serve", "version",
                     SERVE_VERSION, "paths", paths, "components", "securitySchemes", schemes);
}
