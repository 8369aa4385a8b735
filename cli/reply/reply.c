/* reply.c: see reply.h. SPDX-License-Identifier: MIT */
#include "reply/reply.h"

#include <stdlib.h>
#include <string.h>

/* Marks that begin a call, and what ends it; NULL: the end of the text. */
static const struct mark {
    const char *open, *close;
} marks[] = {
    {"<tool_call>", "</tool_call>"},  {"[TOOL_CALLS]", NULL},
    {"<|python_tag|>", NULL},         {"<start_function_call>", "<end_function_call>"},
    {"```tool_call", "```"},          {"```tool_code", "```"},
    {"<|tool_call>", "<tool_call|>"},
};
enum { MARKS = sizeof marks / sizeof *marks };

/* Longest text of one call; a longer one is content. */
enum { CALL_MAX = 1 << 20 };

void reply_begin(struct reply *r, struct reply_sink sink, bool tools, const json_t *declared, bool thinking)
{
    *r = (struct reply){.sink = sink, .tools = tools, .declared = declared, .thinking = thinking};
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

/* --- the stream --- */

/* Inside <think>: pass on what cannot be part of </think>. */
static bool step_thinking(struct reply *r, bool *more)
{
    static const char close[] = "</think>";
    char *at = strstr(r->held.data, close);
    size_t n = at ? (size_t)(at - r->held.data) : r->held.len - partial(r->held.data, r->held.len, close);
    if (at && r->together) n += sizeof close - 1;
    bool go = !n || (r->together ? r->sink.content : r->sink.reasoning)(r->sink.context, r->held.data, n);
    drop(r, at && !r->together ? n + sizeof close - 1 : n);
    if (at) r->thinking = r->started = false;
    if (at) r->reasoned = !r->together;
    *more = at != NULL;
    return go;
}

static void begin_call(struct reply *r, const char *open)
{
    r->in_call = true;
    r->open = open;
    r->call = (struct call_text){.bare = !open, .tools = r->declared};
}

/* The call ends after the first n held bytes. What was no call becomes content, with its marks. */
static bool end_call(struct reply *r, size_t n, const char *close)
{
    bool found = false, go = call_text_end(&r->call, r->held.data, n, &r->sink.call, &found);
    if (!found && go) {
        char *whole = out_printf("%s%s%.*s%s", r->open ? r->open : "", r->call.list ? "[" : "", (int)n, r->held.data, close);
        go = r->sink.content(r->sink.context, whole, strlen(whole));
        free(whole);
    }
    r->calls += r->call.calls;
    r->in_call = r->started = false;
    drop(r, n + strlen(close));
    return go;
}

static const char *close_of(const struct reply *r)
{
    for (size_t i = 0; i < MARKS && r->open; i++)
        if (marks[i].open == r->open) return marks[i].close;
    return NULL;
}

/* Nothing more of the held text can be taken. at: the closing mark in it, or NULL. */
static bool stop_call(struct reply *r, const char *at, const char *close, bool *more)
{
    static const char again[] = "[TOOL_CALLS]";
    size_t n = r->held.len;
    *more = true;
    if (at) return end_call(r, (size_t)(at - r->held.data), close);
    /* Text after a call that no mark closes is content again. */
    bool next = n < sizeof again && !strncmp(r->held.data, again, n);
    if (!close && r->call.state == CALL_AFTER && n && !next) return end_call(r, 0, "");
    *more = false;
    return n < CALL_MAX || end_call(r, n, "");
}

/* Inside a call: pass on what is certain, up to the closing mark. Inside the arguments that mark may be part of a text. */
static bool step_call(struct reply *r, bool *more)
{
    const char *close = close_of(r);
    for (;;) {
        enum call_state before = r->call.state;
        bool counts = close && before != CALL_VALUE, go;
        char *at = counts ? strstr(r->held.data, close) : NULL;
        size_t n = at ? (size_t)(at - r->held.data) : r->held.len;
        if (counts && !at) n -= partial(r->held.data, n, close);
        size_t taken = call_text_take(&r->call, r->held.data, n, &r->sink.call, &go);
        drop(r, taken);
        if (!go) return false;
        if (!taken && r->call.state == before) return stop_call(r, at, close, more);
        if (!r->held.len) return true;
    }
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
        r->thinking = *more = true;
        bool go = !r->together || r->sink.content(r->sink.context, text, sizeof open - 1);
        drop(r, n + sizeof open - 1);
        return go;
    }
    if (left < sizeof open - 1 && !strncmp(text, open, left)) return true;
    r->started = *more = true;
    if (r->calls || r->reasoned) drop(r, n); /* white space between calls, and after reasoning */
    r->reasoned = false;
    if (r->tools && (*text == '{' || (*text == '[' && strncmp(text, "[TOOL", left < 5 ? left : 5) != 0))) begin_call(r, NULL);
    return true;
}

static bool step(struct reply *r, bool *more)
{
    *more = false;
    if (!r->held.len) return true;
    if (r->thinking) return step_thinking(r, more);
    if (r->in_call) return step_call(r, more);
    if (!r->started) return step_begin(r, more);
    size_t n;
    const struct mark *m = find_mark(r, &n);
    /* White space before a call belongs to neither. */
    size_t pass = n;
    while (r->tools && pass && is_space(r->held.data[pass - 1])) pass--;
    bool go = !pass || r->sink.content(r->sink.context, r->held.data, pass);
    drop(r, m ? n + strlen(m->open) : pass);
    if (m) begin_call(r, m->open);
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
    if (r->in_call) return end_call(r, r->held.len, "");
    if (!r->held.len) return true;
    if (r->thinking)
        go = (r->together ? r->sink.content : r->sink.reasoning)(r->sink.context, r->held.data, r->held.len);
    else if (r->started || (!r->calls && !r->reasoned))
        go = r->sink.content(r->sink.context, r->held.data, r->held.len);
    r->held.len = 0;
    return go;
}
