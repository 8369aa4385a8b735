/* call_text.c: see call_text.h. SPDX-License-Identifier: MIT */
#include "reply/call_text.h"

#include <stdlib.h>
#include <string.h>
#include "reply/call_forms.h"

/* Longest text before the arguments; a longer one is read as a whole. */
enum { HEAD_MAX = 1024 };

/* Reads a head; `more`: it may become one. */
struct head {
    const char *at, *end;
    bool more;
};

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static void skip_space(struct head *h)
{
    while (h->at < h->end && is_space(*h->at)) h->at++;
}

/* The next bytes are `word`; where the text ends inside it, more may come. */
static bool word(struct head *h, const char *text)
{
    size_t n = strlen(text), left = (size_t)(h->end - h->at);
    if (left < n) {
        h->more |= !memcmp(h->at, text, left);
        return false;
    }
    if (memcmp(h->at, text, n) != 0) return false;
    h->at += n;
    return true;
}

/* A string without escapes, as names of functions are. */
static bool quoted(struct head *h, const char **text, size_t *len)
{
    skip_space(h);
    if (!word(h, "\"")) return false;
    *text = h->at;
    while (h->at < h->end && *h->at != '"' && *h->at != '\\') h->at++;
    h->more |= h->at == h->end;
    if (h->at == h->end || *h->at == '\\') return false;
    *len = (size_t)(h->at++ - *text);
    return *len > 0;
}

static bool sign(struct head *h, const char *c)
{
    skip_space(h);
    return word(h, c);
}

/* {"name": "NAME", "arguments": up to the brace of the arguments. */
static bool json_head(struct head *h, const char **name, size_t *len)
{
    const char *key;
    size_t n;
    if (!sign(h, "{") || !quoted(h, &key, &n) || n != 4 || memcmp(key, "name", 4) != 0) return false;
    if (!sign(h, ":") || !quoted(h, name, len) || !sign(h, ",") || !quoted(h, &key, &n)) return false;
    bool known = (n == 9 && !memcmp(key, "arguments", 9)) || (n == 10 && !memcmp(key, "parameters", 10));
    if (!known || !sign(h, ":")) return false;
    skip_space(h);
    h->more |= h->at == h->end;
    return h->at < h->end && *h->at == '{';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

/* NAME{" or NAME[ARGS]{, with an identifier between them in newer forms of Mistral. */
static bool named_head(struct head *h, const char **name, size_t *len)
{
    *name = h->at;
    while (h->at < h->end && is_name(*h->at)) h->at++;
    *len = (size_t)(h->at - *name);
    h->more |= h->at == h->end;
    if (!*len || h->at == h->end) return false;
    if (word(h, "[CALL_ID]"))
        while (h->at < h->end && is_name(*h->at)) h->at++;
    if (h->at < h->end && *h->at == '[' && !word(h, "[ARGS]")) return false;
    skip_space(h);
    h->more |= h->end - h->at < 2;
    if (h->end - h->at < 2 || *h->at != '{') return false;
    const char *next = h->at + 1;
    while (next < h->end && is_space(*next)) next++;
    h->more |= next == h->end;
    return next < h->end && (*next == '"' || *next == '}');
}

static bool begin(struct call_text *c, const struct call_sink *sink, const char *name, size_t len)
{
    c->calls++;
    c->depth = 0;
    c->parameters = 0;
    c->quoted = c->escaped = false;
    snprintf(c->name, sizeof c->name, "%.*s", (int)len, name);
    return sink->begin(sink->context, name, len);
}

/* Decide on the form; returns the bytes of the head, 0 if more is needed. */
static size_t take_head(struct call_text *c, const char *text, size_t len, const struct call_sink *sink, bool *go)
{
    struct head h = {text, text + len, false};
    const char *name = NULL;
    size_t n = 0;
    skip_space(&h);
    if (h.at == h.end) return 0;
    if (*h.at == '[' && !c->list) {
        h.at++;
        skip_space(&h);
        if (h.at == h.end) return 0;
        c->list = *h.at == '{';
        if (!c->list) c->state = CALL_WHOLE;
        return c->list ? (size_t)(h.at - text) : 0;
    }
    bool found = false, xml = !c->bare && *h.at == '<';
    if (*h.at == '{')
        found = json_head(&h, &name, &n);
    else if (xml && word(&h, "<function=")) {
        const char *close = memchr(h.at, '>', (size_t)(h.end - h.at));
        h.more |= !close;
        found = close && close > h.at;
        name = h.at;
        n = close ? (size_t)(close - h.at) : 0;
        h.at = close ? close + 1 : h.at;
    } else if (!c->bare && !xml)
        found = named_head(&h, &name, &n);
    if (found) {
        *go = begin(c, sink, name, n);
        c->state = xml ? CALL_PARAMETERS : CALL_VALUE;
        return (size_t)(h.at - text);
    }
    if (!h.more || len > HEAD_MAX) c->state = CALL_WHOLE;
    return 0;
}

/* The arguments up to the bracket that closes them. */
static size_t take_value(struct call_text *c, const char *text, size_t len, const struct call_sink *sink, bool *go)
{
    size_t i = 0;
    while (i < len && c->state == CALL_VALUE) {
        char b = text[i++];
        if (c->quoted) {
            if (c->escaped)
                c->escaped = false;
            else if (b == '\\')
                c->escaped = true;
            else if (b == '"')
                c->quoted = false;
        } else if (b == '"')
            c->quoted = true;
        else if (b == '{' || b == '[')
            c->depth++;
        else if ((b == '}' || b == ']') && !--c->depth)
            c->state = CALL_AFTER;
    }
    *go = !i || sink->arguments(sink->context, text, i);
    if (*go && c->state == CALL_AFTER) *go = sink->end(sink->context);
    return i;
}

/* One <parameter=P>value</parameter>, or the end of the call. */
static size_t take_parameter(struct call_text *c, const char *text, size_t len, const struct call_sink *sink, bool *go)
{
    static const char open[] = "<parameter=", close[] = "</parameter>", end[] = "</function>";
    char *copy = out_printf("%.*s", (int)len, text), *at = strstr(copy, open), *stop = strstr(copy, end);
    char *key = at ? at + sizeof open - 1 : NULL, *key_end = key ? strchr(key, '>') : NULL;
    char *value_end = key_end ? strstr(key_end, close) : NULL;
    size_t taken = 0;
    if (stop && (!at || stop < at)) {
        c->state = CALL_AFTER;
        *go = sink->arguments(sink->context, c->parameters ? "}" : "{}", c->parameters ? 1 : 2) && sink->end(sink->context);
        taken = (size_t)(stop - copy) + sizeof end - 1;
    } else if (value_end) {
        char *pair = call_forms_parameter(c->tools, c->name, key, (size_t)(key_end - key), key_end + 1,
                                          (size_t)(value_end - key_end - 1));
        char *piece = out_printf("%s%s", c->parameters++ ? ", " : "{", pair);
        *go = sink->arguments(sink->context, piece, strlen(piece));
        free(piece), free(pair);
        taken = (size_t)(value_end - copy) + sizeof close - 1;
    }
    free(copy);
    return taken;
}

/* Behind the arguments: what closes the call is dropped; another call may follow. */
static size_t take_after(struct call_text *c, const char *text, size_t len)
{
    static const char again[] = "[TOOL_CALLS]";
    size_t i = 0;
    while (i < len && c->state == CALL_AFTER) {
        if (is_space(text[i]) || text[i] == '}' || text[i] == ']')
            i++;
        else if (text[i] == ',' || text[i] == ';' || (text[i] == '<' && !c->bare) || text[i] == '{') {
            c->state = CALL_HEAD;
            i += text[i] == ',' || text[i] == ';';
        } else if (len - i >= sizeof again - 1 && !memcmp(text + i, again, sizeof again - 1)) {
            c->state = CALL_HEAD;
            c->list = false;
            i += sizeof again - 1;
        } else
            break;
    }
    return i;
}

size_t call_text_take(struct call_text *c, const char *text, size_t len, const struct call_sink *sink, bool *go)
{
    *go = true;
    if (c->state == CALL_HEAD) return take_head(c, text, len, sink, go);
    if (c->state == CALL_VALUE) return take_value(c, text, len, sink, go);
    if (c->state == CALL_PARAMETERS) return take_parameter(c, text, len, sink, go);
    return c->state == CALL_AFTER ? take_after(c, text, len) : 0;
}

bool call_text_end(struct call_text *c, const char *text, size_t len, const struct call_sink *sink, bool *found)
{
    bool go = true;
    *found = c->calls > 0;
    if (c->state == CALL_PARAMETERS && c->parameters) go = sink->arguments(sink->context, "}", 1);
    if (c->state == CALL_PARAMETERS && !c->parameters) go = sink->arguments(sink->context, "{}", 2);
    if (c->state == CALL_PARAMETERS || c->state == CALL_VALUE) return go && sink->end(sink->context);
    if (c->state == CALL_AFTER) return true;
    size_t calls = c->calls;
    struct out_text whole = {0};
    if (c->list) out_add(&whole, "[", 1); /* its bracket was taken */
    out_add(&whole, text, len);
    go = call_forms_read(whole.data, whole.len, c->bare, sink, &calls);
    free(whole.data);
    *found |= calls > c->calls;
    c->calls = calls;
    return go;
}
