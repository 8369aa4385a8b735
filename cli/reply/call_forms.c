/* call_forms.c: see call_forms.h. SPDX-License-Identifier: MIT */
#include "reply/call_forms.h"

#include <stdlib.h>
#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_-.+", c));
}

static bool pass(const struct call_sink *sink, const char *name, size_t len, const json_t *arguments, size_t *calls)
{
    char *text = json_is_string(arguments) ? out_strdup(json_string_value(arguments))
                                           : json_dumps(arguments, JSON_COMPACT | JSON_ENCODE_ANY);
    ++*calls;
    bool go = sink->begin(sink->context, name, len) &&
              sink->arguments(sink->context, text ? text : "{}", text ? strlen(text) : 2) && sink->end(sink->context);
    free(text);
    return go;
}

/* {"name", "arguments" | "parameters"} or {"function": {...}}, or a list of these. */
static bool json_calls(const struct call_sink *sink, json_t *v, size_t *calls)
{
    json_t *list = json_is_array(v) ? json_incref(v) : json_pack("[O]", v), *o;
    size_t i;
    bool go = true;
    json_array_foreach(list, i, o)
    {
        json_t *inner = json_object_get(o, "function");
        if (json_is_object(inner)) o = inner;
        json_t *name = json_object_get(o, "name"), *arguments = json_object_get(o, "arguments");
        if (!arguments) arguments = json_object_get(o, "parameters");
        if (!json_is_string(name) || !json_string_length(name)) break;
        json_t *empty = json_object();
        go = pass(sink, json_string_value(name), json_string_length(name), arguments ? arguments : empty, calls);
        json_decref(empty);
        if (!go) break;
    }
    json_decref(list);
    return go;
}

static void add_quoted(struct out_text *out, const char *text, size_t len)
{
    json_t *s = out_string(text, len);
    char *quoted = json_dumps(s, JSON_ENCODE_ANY);
    json_decref(s);
    out_add(out, quoted ? quoted : "\"\"", quoted ? strlen(quoted) : 2);
    free(quoted);
}

/* A text between marks (<escape> or <|"|>) or quotes (' or "); returns the bytes read, 0: none begins here. */
static size_t loose_string(struct out_text *out, const char *at, size_t left)
{
    static const char *const marks[] = {"<escape>", "<|\"|>"};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(marks[i]);
        const char *end = left > n && !strncmp(at, marks[i], n) ? strstr(at + n, marks[i]) : NULL;
        if (!end) continue;
        add_quoted(out, at + n, (size_t)(end - at) - n);
        return (size_t)(end - at) + n;
    }
    if (*at != '\'' && *at != '"') return 0;
    struct out_text text = {0};
    size_t i = 1;
    for (; i < left && at[i] != *at; i++) {
        if (at[i] == '\\' && i + 1 < left) i++;
        char c = i && at[i - 1] == '\\' && at[i] == 'n' ? '\n' : i && at[i - 1] == '\\' && at[i] == 't' ? '\t' : at[i];
        out_add(&text, &c, 1);
    }
    add_quoted(out, text.data ? text.data : "", text.len);
    free(text.data);
    return i < left ? i + 1 : left;
}

/* Arguments in the manner of Python or of Gemma as JSON: bare keys with = or :, loose strings, True, False, None. */
static json_t *loose_object(const char *text, size_t len)
{
    struct out_text out = {0};
    out_add(&out, "{", 1);
    for (size_t i = 0, n; i < len; i += n) {
        const char *at = text + i;
        n = loose_string(&out, at, len - i);
        if (n) continue;
        while (i + n < len && is_word(at[n])) n++;
        size_t next = n;
        while (i + next < len && is_space(at[next])) next++;
        if (n && i + next < len && (at[next] == '=' || at[next] == ':')) {
            add_quoted(&out, at, n);
            out_add(&out, ":", 1);
            n = next + 1;
        } else if (n) {
            const char *value = n == 4 && !memcmp(at, "True", 4)    ? "true"
                                : n == 5 && !memcmp(at, "False", 5) ? "false"
                                : n == 4 && !memcmp(at, "None", 4)  ? "null"
                                                                    : NULL;
            out_add(&out, value ? value : at, value ? strlen(value) : n);
        } else
            out_add(&out, at, n = 1);
    }
    out_add(&out, "}", 1);
    json_t *o = out_json_load(out.data, out.len, 0, NULL);
    free(out.data);
    if (json_is_object(o)) return o;
    json_decref(o);
    return NULL;
}

/* [call:]NAME{...} or NAME(...), also inside print(...). */
static bool named_call(const char *text, size_t len, const struct call_sink *sink, size_t *calls)
{
    if (len > 6 && !memcmp(text, "print(", 6) && text[len - 1] == ')') text += 6, len -= 7;
    if (len > 5 && !memcmp(text, "call:", 5)) text += 5, len -= 5;
    size_t n = 0, from;
    while (n < len && is_word(text[n])) n++;
    for (from = n; from < len && is_space(text[from]);) from++;
    bool round = from < len && text[from] == '(';
    if (!n || from == len || (!round && text[from] != '{') || text[len - 1] != (round ? ')' : '}')) return true;
    json_t *arguments = loose_object(text + from + 1, len - from - 2);
    if (n > 5 && round && !memcmp(text + n - 5, ".call", 5)) n -= 5; /* the built-in tools of Llama 3 */
    bool go = !arguments || pass(sink, text, n, arguments, calls);
    json_decref(arguments);
    return go;
}

/* True if the declaration of a tool wants a text for this parameter. */
static bool wants_text(const json_t *tools, const char *name, const char *key)
{
    json_t *t;
    size_t i;
    json_array_foreach(tools, i, t)
    {
        json_t *f = json_object_get(t, "function");
        const char *known = json_string_value(json_object_get(f, "name"));
        if (!known || strcmp(known, name) != 0) continue;
        json_t *p = json_object_get(json_object_get(json_object_get(f, "parameters"), "properties"), key);
        const char *type = json_string_value(json_object_get(p, "type"));
        return type && !strcmp(type, "string");
    }
    return false;
}

char *call_forms_parameter(const json_t *tools, const char *name, const char *key, size_t key_n, const char *value, size_t len)
{
    struct out_text out = {0};
    char *key_text = out_printf("%.*s", (int)key_n, key);
    if (len && value[0] == '\n') value++, len--;
    if (len && value[len - 1] == '\n') len--;
    json_t *v = wants_text(tools, name, key_text) ? NULL : out_json_load(value, len, JSON_DECODE_ANY, NULL);
    char *json = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    add_quoted(&out, key_text, key_n);
    out_add(&out, ": ", 2);
    if (json)
        out_add(&out, json, strlen(json));
    else
        add_quoted(&out, value, len);
    json_decref(v);
    free(json), free(key_text);
    return out.data;
}

bool call_forms_read(const char *text, size_t len, bool bare, const struct call_sink *sink, size_t *calls)
{
    while (len && is_space(*text)) text++, len--;
    while (len && is_space(text[len - 1])) len--;
    json_t *v = len ? out_json_load(text, len, JSON_DECODE_ANY, NULL) : NULL;
    bool go = true;
    if (v)
        go = json_calls(sink, v, calls);
    else if (!bare) {
        char *copy = out_printf("%.*s", (int)len, text); /* ends with NUL for the searches */
        go = named_call(copy, len, sink, calls);
        free(copy);
    }
    json_decref(v);
    return go;
}
