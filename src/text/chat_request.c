/* chat_request.c: converts a chat request into the variables of a chat template. Messages, tool calls and their
 * functions are copied before they are changed; the rest is shared with the request by reference count.
 * SPDX-License-Identifier: MIT */
#include "text/chat_request.h"

#include <stdint.h>
#include <string.h>
#include "tensor/json.h"

/* jansson does not report sizes, so this message has none. */
static segue_status no_memory(segue_error *err)
{
    return sg_fail(err, SEGUE_EMEMORY, "out of memory: chat request; shorten it");
}

/* Tool-call arguments that arrive as a JSON text: the object in it, or NULL to keep the text. */
static json_t *parsed_arguments(const json_t *arguments)
{
    const char *s = json_string_value(arguments);
    if (!s) return NULL;
    s += strspn(s, " \t\r\n");
    if (*s != '{') return NULL;
    json_error_t je;
    json_t *o = sg_json_too_deep(s, strlen(s)) ? NULL : json_loadb(s, strlen(s), JSON_ALLOW_NUL, &je);
    if (o && json_is_object(o)) return o;
    json_decref(o);
    return NULL;
}

/* Replace the arguments of a call or its function by the parsed object. holder must be a copy. 0: out of memory. */
static int parse_inside(json_t *holder)
{
    json_t *parsed = parsed_arguments(json_object_get(holder, "arguments"));
    return !parsed || json_object_set_new(holder, "arguments", parsed) == 0;
}

/* One tool call. "arguments" may be in the call or in its "function". NULL: out of memory. */
static json_t *copy_call(json_t *call)
{
    json_t *copy = json_copy(call), *function;
    if (!copy || !json_is_object(copy)) return copy;
    function = json_object_get(copy, "function");
    int ok = parse_inside(copy);
    if (ok && json_is_object(function)) {
        function = json_copy(function);
        ok = function && parse_inside(function) && json_object_set(copy, "function", function) == 0;
        json_decref(function);
    }
    if (ok) return copy;
    json_decref(copy);
    return NULL;
}

/* All tool calls of a message. NULL: out of memory. */
static json_t *copy_calls(const json_t *calls)
{
    json_t *copy = json_array(), *call;
    for (size_t i = 0; copy && i < json_array_size(calls); i++) {
        call = copy_call(json_array_get(calls, i));
        if (call && json_array_append_new(copy, call) == 0) continue;
        json_decref(copy);
        copy = NULL;
    }
    return copy;
}

/* Templates read the reasoning text as reasoning_content or as thinking: set both. 0: out of memory. */
static int share_reasoning(json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *text = NULL;
    for (size_t i = 0; i < 3 && !text; i++) {
        text = json_object_get(message, names[i]);
        if (json_is_null(text)) text = NULL;
    }
    if (!text) return 1;
    if (json_object_set(message, "reasoning_content", text) != 0) return 0;
    return json_object_get(message, "thinking") || json_object_set(message, "thinking", text) == 0;
}

/* One message with parsed tool calls. NULL: out of memory. */
static json_t *copy_message(json_t *message)
{
    json_t *copy = json_copy(message), *calls = json_object_get(message, "tool_calls");
    int ok = copy && share_reasoning(copy);
    if (ok && json_is_array(calls)) {
        calls = copy_calls(calls);
        ok = calls && json_object_set_new(copy, "tool_calls", calls) == 0;
    }
    if (ok) return copy;
    json_decref(copy);
    return NULL;
}

/* *out: a new array. Each message needs a role; everything else is up to the template. */
static segue_status copy_messages(const json_t *messages, json_t **out, segue_error *err)
{
    if (!json_is_array(messages))
        return sg_fail(err, SEGUE_EFORMAT,
                       "chat request: \"messages\" is not an array; pass a list of {\"role\", \"content\"}");
    json_t *copy = json_array();
    segue_status s = copy ? SEGUE_OK : no_memory(err);
    for (size_t i = 0; i < json_array_size(messages) && s == SEGUE_OK; i++) {
        json_t *message = json_array_get(messages, i);
        if (!json_is_string(json_object_get(message, "role"))) {
            s = sg_fail(err, SEGUE_EFORMAT,
                        "chat request: message %zu has no \"role\"; pass {\"role\", \"content\"}", i);
            break;
        }
        message = copy_message(message);
        if (!message || json_array_append_new(copy, message) != 0) s = no_memory(err);
    }
    if (s == SEGUE_OK)
        *out = copy;
    else
        json_decref(copy);
    return s;
}

/* Set a key that o does not have yet. Takes over the reference to value. 0: out of memory. */
static int set_default(json_t *o, const char *key, json_t *value)
{
    if (!json_object_get(o, key)) return json_object_set_new(o, key, value) == 0;
    json_decref(value);
    return 1;
}

/* Set a text of the tokenizer as a variable, unless the request has one of that name. */
static segue_status set_text(json_t *vars, const char *key, const char *text, segue_error *err)
{
    json_t *value = json_string(text ? text : "");
    if (!value && text)
        return sg_fail(err, SEGUE_EFORMAT, "chat request: %s: not valid UTF-8; fetch the tokenizer again", key);
    return value && set_default(vars, key, value) ? SEGUE_OK : no_memory(err);
}

/* The defaults of transformers' apply_chat_template, with the texts of bos and eos. */
static segue_status fill(json_t *vars, const char *bos, const char *eos, segue_error *err)
{
    if (!set_default(vars, "tools", json_null()) || !set_default(vars, "documents", json_null()) ||
        !set_default(vars, "add_generation_prompt", json_true()))
        return no_memory(err);
    SG_TRY(set_text(vars, "bos_token", bos, err));
    return set_text(vars, "eos_token", eos, err);
}

/* The request is not modified. *out: a new reference that the caller releases; it shares unchanged parts with the
 * request. */
segue_status sg_chat_request(const json_t *request, const char *bos, const char *eos, json_t **out,
                             segue_error *err)
{
    json_t *messages = NULL;
    if (!request || !out)
        return sg_fail(err, SEGUE_EARG, "chat request: arguments: a pointer is NULL; pass request and out");
    if (!json_is_object(request))
        return sg_fail(err, SEGUE_EFORMAT, "chat request: not a JSON object; pass {\"messages\": [...]}");
    SG_TRY(copy_messages(json_object_get(request, "messages"), &messages, err));
    json_t *vars = json_copy((json_t *)(uintptr_t)request); /* shallow; the request itself is not changed */
    segue_status s = SEGUE_OK;
    if (!vars) json_decref(messages);
    if (!vars || json_object_set_new(vars, "messages", messages) != 0) s = no_memory(err);
    if (s == SEGUE_OK) s = fill(vars, bos, eos, err);
    if (s == SEGUE_OK) *out = vars;
    else json_decref(vars);
    return s;
}
