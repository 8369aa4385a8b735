/* history.c: see history.h. SPDX-License-Identifier: MIT */
#include "reply/history.h"

#include <stdlib.h>
#include <string.h>

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static bool has_role(const json_t *message, const char *role) { return !strcmp(role_of(message), role); }

static const char *content_of(const json_t *message)
{
    const char *text = json_string_value(json_object_get(message, "content"));
    return text ? text : "";
}

/* A new list of messages. More text may come for its last one, so the time is linear in the text. */
struct collected {
    json_t *list, *open; /* open: its last message, if it takes text; NULL: none */
    struct out_text text; /* of `open` */
    bool joined;          /* more came than its own content */
};

static void close_last(struct collected *c)
{
    if (c->joined) json_object_set_new(c->open, "content", out_string(c->text.data, c->text.len));
    c->open = NULL;
    c->joined = false;
    c->text.len = 0;
}

/* Appends a message, whose reference is taken. open: text may follow. */
static void append(struct collected *c, json_t *message, bool open)
{
    close_last(c);
    json_array_append_new(c->list, message);
    if (!open) return;
    c->open = message;
    out_addf(&c->text, "%s", content_of(message));
}

static void append_text(struct collected *c, const char *separator, const char *text)
{
    if (c->text.len && *text) out_addf(&c->text, "%s", separator);
    out_addf(&c->text, "%s", text);
    c->joined = true;
}

static json_t *finished(struct collected *c)
{
    close_last(c);
    free(c->text.data);
    return c->list;
}

json_t *history_tools(json_t *tools)
{
    json_t *out = json_array(), *tool;
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        json_t *copy = json_copy(tool), *function = json_copy(json_object_get(tool, "function"));
        if (!json_is_string(json_object_get(function, "description")))
            json_object_set_new(function, "description", json_string(""));
        if (!json_is_object(json_object_get(function, "parameters")))
            json_object_set_new(function, "parameters", json_pack("{s:s, s:{}}", "type", "object", "properties"));
        json_object_set_new(copy, "function", function);
        json_array_append_new(out, copy);
    }
    return out;
}

/* A system message that describes the tools, in the form of Hermes. */
static void describe(json_t *messages, json_t *tools)
{
    json_t *first = json_array_get(messages, 0), *t;
    bool system = has_role(first, "system");
    struct out_text text = {0};
    size_t i;
    if (system) out_addf(&text, "%s\n\n", content_of(first));
    out_addf(&text, "You may call functions. They are:\n<tools>\n");
    json_array_foreach(tools, i, t)
    {
        char *line = json_dumps(t, JSON_COMPACT);
        out_addf(&text, "%s\n", line ? line : "");
        free(line);
    }
    out_addf(&text, "</tools>\nTo call one, answer with\n<tool_call>\n{\"name\": NAME, \"arguments\": {...}}\n</tool_call>");
    json_t *message = json_pack("{s:s, s:o}", "role", "system", "content", out_string(text.data, text.len));
    if (system)
        json_array_set_new(messages, 0, message);
    else
        json_array_insert_new(messages, 0, message);
    free(text.data);
}

/* One call as a model of Hermes writes it. The arguments are a text of JSON or an object. */
static void add_call(struct out_text *text, json_t *call)
{
    json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    char *name = json_dumps(json_object_get(function, "name"), JSON_ENCODE_ANY);
    char *object = json_is_string(arguments) ? NULL : json_dumps(arguments, JSON_ENCODE_ANY);
    const char *value = object ? object : json_string_value(arguments);
    out_addf(text, "%s<tool_call>\n{\"name\": %s, \"arguments\": %s}\n</tool_call>", text->len ? "\n" : "", name ? name : "\"\"",
             value && *value ? value : "{}");
    free(name), free(object);
}

json_t *history_calls_as_text(json_t *messages, bool results_too)
{
    struct collected c = {.list = json_array()};
    json_t *m, *call;
    size_t i, k;
    json_array_foreach(messages, i, m)
    {
        json_t *copy = json_copy(m), *calls = json_object_get(m, "tool_calls");
        struct out_text text = {0};
        if (json_array_size(calls)) {
            out_addf(&text, "%s", content_of(m));
            json_array_foreach(calls, k, call) add_call(&text, call);
            json_object_set_new(copy, "content", out_string(text.data, text.len));
            json_object_del(copy, "tool_calls");
        } else if (results_too && has_role(m, "tool")) {
            out_addf(&text, "<tool_response>\n%s\n</tool_response>", content_of(m));
            json_object_set_new(copy, "role", json_string("user"));
            json_object_set_new(copy, "content", out_string(text.data, text.len));
            if (c.open) append_text(&c, "\n", text.data);
        }
        bool result = text.len && !json_array_size(calls);
        if (result && c.open) json_decref(copy);
        else append(&c, copy, result);
        free(text.data);
    }
    return finished(&c);
}

/* Nine letters for an id (FNV-1a); an id of that form is kept. */
static json_t *short_id(const char *id)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    char out[10] = {0};
    uint64_t hash = 1469598103934665603u;
    if (strlen(id) == 9 && strspn(id, letters) == 9) return json_string(id);
    for (const char *c = id; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    for (size_t i = 0; i < 9; i++, hash /= 62) out[i] = letters[hash % 62];
    return json_string(out);
}

static void shorten_ids(json_t *messages)
{
    json_t *m, *call;
    size_t i, k;
    json_array_foreach(messages, i, m)
    {
        const char *id = json_string_value(json_object_get(m, "tool_call_id"));
        if (id) json_object_set_new(m, "tool_call_id", short_id(id));
        json_t *calls = json_object_get(m, "tool_calls"), *list = json_array();
        json_array_foreach(calls, k, call)
        {
            json_t *copy = json_copy(call);
            const char *own = json_string_value(json_object_get(call, "id"));
            json_object_set_new(copy, "id", short_id(own ? own : ""));
            json_array_append_new(list, copy);
        }
        if (calls) json_object_set(m, "tool_calls", list);
        json_decref(list);
    }
}

/* Templates of DeepSeek-R1 tell messages with calls by a content of null. */
static void clear_contents(json_t *messages)
{
    json_t *m;
    size_t i;
    json_array_foreach(messages, i, m)
        if (json_array_size(json_object_get(m, "tool_calls")) && !*content_of(m)) json_object_set_new(m, "content", json_null());
}

json_t *history_adapt(json_t *messages, json_t *tools, const char *template)
{
    bool calls = strstr(template, "tool_calls") != NULL, results = strstr(template, "'tool'") || strstr(template, "\"tool\"");
    if (tools && !strstr(template, "tools")) describe(messages, tools);
    if (!calls) return history_calls_as_text(messages, !results);
    if (strstr(template, "[TOOL_CALLS]")) shorten_ids(messages);
    if (strstr(template, "['content'] is none")) clear_contents(messages);
    return json_incref(messages);
}

/* True if a message can be a part of the one before it. */
static bool joins(const json_t *last, const json_t *m)
{
    bool user = has_role(m, "user"), plain = user || (has_role(m, "assistant") && !json_object_get(m, "tool_calls"));
    if (!plain || !last || json_object_get(last, "tool_calls")) return false;
    return has_role(last, role_of(m)) || (user && has_role(last, "tool"));
}

json_t *history_merged(json_t *messages)
{
    struct collected c = {.list = json_array()};
    json_t *m;
    size_t i;
    json_array_foreach(messages, i, m)
    {
        json_t *copy = json_copy(m);
        if (has_role(m, "system")) json_object_set_new(copy, "role", json_string("user"));
        if (joins(c.open, copy)) {
            append_text(&c, "\n\n", content_of(copy));
            json_decref(copy);
        } else
            append(&c, copy, true);
    }
    return finished(&c);
}
