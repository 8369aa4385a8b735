/* reply.c: see reply.h. SPDX-License-Identifier: MIT */
#include "serve/reply.h"

#include <stdlib.h>
#include <string.h>

/* Marks that begin a call, and what ends it; NULL: the end of the text. */
static const struct mark {
    const char *open, *close;
} marks[] = {
    {"<tool_call>", "</tool_call>"}, {"[TOOL_CALLS]", NULL},
    {"<|python_tag|>", NULL},        {"<start_function_call>", "<end_function_call>"},
    {"```tool_call", "```"},         {"```tool_code", "```"},
};
enum { MARKS = sizeof marks / sizeof *marks };

/* Longest text of one call; a longer one is content. */
enum { CALL_MAX = 1 << 20 };

void reply_begin(struct reply *r, struct reply_sink sink, bool tools, bool thinking)
{
    *r = (struct reply){.sink = sink, .tools = tools, .thinking = thinking};
}

void reply_free(struct reply *r)
{
    free(r->held.data);
    *r = (struct reply){0};
}

/* Remove the first n held bytes. */
static void drop(struct reply *r, size_t n)
{
    memmove(r->held.data, r->held.data + n, r->held.len - n);
    r->held.len -= n;
    r->held.data[r->held.len] = 0;
}

/* Length of the longest end of text[n] that is a beginning of `word`, the whole word excluded. */
static size_t partial(const char *text, size_t n, const char *word)
{
    size_t w = strlen(word);
    for (size_t k = w - 1 < n ? w - 1 : n; k > 0; k--)
        if (!memcmp(text + n - k, word, k)) return k;
    return 0;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* --- the text of calls --- */

static bool emit_call(struct reply *r, const char *name, json_t *arguments)
{
    char *text = json_is_string(arguments) ? out_strdup(json_string_value(arguments))
                                           : json_dumps(arguments, JSON_COMPACT | JSON_ENCODE_ANY);
    bool go = r->sink.tool_call(r->sink.context, r->calls++, name, text ? text : "{}");
    free(text);
    return go;
}

/* A call as JSON: {"name", "arguments" | "parameters"}, {"function": {...}}, or a list of these. *found: it was one. */
static bool json_calls(struct reply *r, json_t *v, bool *found)
{
    *found = false;
    if (json_is_array(v)) {
        bool go = json_array_size(v) > 0;
        for (size_t i = 0; go && i < json_array_size(v); i++) {
            if (json_is_array(json_array_get(v, i))) return true;
            go = json_calls(r, json_array_get(v, i), found);
            if (!*found) return go;
        }
        return go || !*found;
    }
    json_t *inner = json_object_get(v, "function"), *o = json_is_object(inner) ? inner : v;
    json_t *name = json_object_get(o, "name"), *arguments = json_object_get(o, "arguments");
    if (!arguments) arguments = json_object_get(o, "parameters");
    if (!json_is_string(name)) return true;
    *found = true;
    json_t *empty = arguments ? NULL : json_object();
    bool go = emit_call(r, json_string_value(name), arguments ? arguments : empty);
    json_decref(empty);
    return go;
}

/* <function=NAME><parameter=P>value</parameter>...</function>; values that are JSON stay JSON. */
static bool xml_call(struct reply *r, const char *text, bool *found)
{
    const char *at = strstr(text, "<function="), *name_end = at ? strchr(at, '>') : NULL;
    *found = name_end != NULL;
    if (!*found) return true;
    char *name = out_printf("%.*s", (int)(name_end - at - 10), at + 10);
    json_t *arguments = json_object();
    for (at = name_end; (at = strstr(at, "<parameter=")) != NULL;) {
        const char *key_end = strchr(at, '>'), *end = key_end ? strstr(key_end, "</parameter>") : NULL;
        if (!end) break;
        char *key = out_printf("%.*s", (int)(key_end - at - 11), at + 11);
        const char *begin = key_end + 1, *stop = end;
        if (begin < stop && *begin == '\n') begin++;
        if (begin < stop && stop[-1] == '\n') stop--;
        json_t *value = json_loadb(begin, (size_t)(stop - begin), JSON_DECODE_ANY, NULL);
        json_object_set_new(arguments, key, value ? value : out_string(begin, (size_t)(stop - begin)));
        free(key);
        at = end;
    }
    bool go = emit_call(r, name, arguments);
    json_decref(arguments);
    free(name);
    return go;
}

/* NAME[ARGS]{...}, call:NAME{...} or NAME{...}: a name, then a JSON object. */
static bool named_call(struct reply *r, const char *text, bool *found)
{
    const char *brace = strchr(text, '{');
    *found = false;
    if (!strncmp(text, "call:", 5)) text += 5;
    size_t n = strcspn(text, "[{ \n(");
    json_t *arguments = brace ? json_loads(brace, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    if (!n || !json_is_object(arguments)) {
        json_decref(arguments);
        return true;
    }
    *found = true;
    char *name = out_printf("%.*s", (int)n, text);
    bool go = emit_call(r, name, arguments);
    free(name);
    json_decref(arguments);
    return go;
}

/* Decide on the text between the marks. What is no call becomes content, with its marks. */
static bool decide(struct reply *r, const char *text, size_t len, const char *open, const char *close)
{
    while (len && is_space(*text)) text++, len--;
    while (len && is_space(text[len - 1])) len--;
    char *copy = out_printf("%.*s", (int)len, text);
    bool found = false, go = true;
    json_t *v = json_loadb(copy, len, JSON_DECODE_ANY, NULL);
    if (v) go = json_calls(r, v, &found);
    json_decref(v);
    if (!found && go) go = xml_call(r, copy, &found);
    if (!found && go && *open) go = named_call(r, copy, &found);
    if (!found && go) {
        char *whole = out_printf("%s%s%s", open, copy, close ? close : "");
        go = r->sink.content(r->sink.context, whole, strlen(whole));
        free(whole);
    }
    free(copy);
    return go;
}

/* --- the stream --- */

/* Inside <think>: pass on what cannot be part of </think>. */
static bool step_thinking(struct reply *r, bool *more)
{
    static const char close[] = "</think>";
    char *at = strstr(r->held.data, close);
    size_t n = at ? (size_t)(at - r->held.data) : r->held.len - partial(r->held.data, r->held.len, close);
    bool go = !n || r->sink.reasoning(r->sink.context, r->held.data, n);
    drop(r, at ? n + sizeof close - 1 : n);
    if (at) r->thinking = r->started = false; /* white space after the reasoning is dropped */
    *more = at != NULL;
    return go;
}

/* Inside a call: wait for its end. */
static bool step_call(struct reply *r, bool *more)
{
    const struct mark *m = marks;
    while (m->open != r->open) m++;
    char *at = m->close ? strstr(r->held.data, m->close) : NULL;
    *more = false;
    if (!at && r->held.len < CALL_MAX) return true;
    size_t n = at ? (size_t)(at - r->held.data) : r->held.len;
    r->open = NULL;
    *more = at != NULL;
    bool go = decide(r, r->held.data, n, m->open, at ? m->close : "");
    drop(r, at ? n + strlen(m->close) : n);
    r->started = false;
    return go;
}

/* The earliest mark, or the number of bytes that cannot belong to one. */
static const struct mark *find_mark(const struct reply *r, size_t *n)
{
    const struct mark *first = NULL;
    size_t sure = r->held.len;
    for (size_t i = 0; r->tools && i < MARKS; i++) {
        const char *at = strstr(r->held.data, marks[i].open);
        size_t k = at ? (size_t)(at - r->held.data) : r->held.len - partial(r->held.data, r->held.len, marks[i].open);
        if (k >= sure && !(at && k == sure && !first)) continue;
        sure = k;
        first = at ? &marks[i] : NULL;
    }
    *n = sure;
    return first;
}

/* At the beginning of the content: drop white space, find <think> and a bare JSON call. False in *more: wait for more. */
static bool step_begin(struct reply *r, bool *more)
{
    static const char open[] = "<think>";
    size_t n = 0;
    *more = false;
    while (n < r->held.len && is_space(r->held.data[n])) n++;
    if (n == r->held.len) return true; /* kept: it may be content */
    const char *text = r->held.data + n;
    size_t left = r->held.len - n;
    if (!strncmp(text, open, sizeof open - 1)) {
        drop(r, n + sizeof open - 1);
        r->thinking = *more = true;
        return true;
    }
    if (left < sizeof open - 1 && !strncmp(text, open, left)) return true;
    r->started = *more = true;
    r->json = r->tools && (*text == '{' || (*text == '[' && strncmp(text, "[TOOL", left < 5 ? left : 5) != 0));
    if (r->calls) drop(r, n); /* white space between calls */
    return true;
}

static bool step(struct reply *r, bool *more)
{
    *more = false;
    if (!r->held.len) return true;
    if (r->thinking) return step_thinking(r, more);
    if (r->open) return step_call(r, more);
    if (!r->started) return step_begin(r, more);
    if (r->json && r->held.len < CALL_MAX) return true; /* decided at the end */
    size_t n;
    const struct mark *m = find_mark(r, &n);
    /* White space before a call belongs to neither. */
    size_t pass = n;
    if (m)
        while (pass && is_space(r->held.data[pass - 1])) pass--;
    bool go = !pass || r->sink.content(r->sink.context, r->held.data, pass);
    drop(r, m ? n + strlen(m->open) : n);
    if (m) r->open = m->open;
    *more = m != NULL;
    return go;
}

bool reply_add(struct reply *r, const char *text, size_t len)
{
    bool more = true, go = true;
    out_add(&r->held, text, len);
    while (go && more) go = step(r, &more);
    return go;
}

bool reply_end(struct reply *r)
{
    bool go = true;
    if (!r->held.len) return true;
    if (r->thinking)
        go = r->sink.reasoning(r->sink.context, r->held.data, r->held.len);
    else if (r->open)
        go = decide(r, r->held.data, r->held.len, r->open, "");
    else if (r->json)
        go = decide(r, r->held.data, r->held.len, "", "");
    else if (r->started || !r->calls)
        go = r->sink.content(r->sink.context, r->held.data, r->held.len);
    r->held.len = 0;
    return go;
}
