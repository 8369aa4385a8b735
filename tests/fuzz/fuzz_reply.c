/* fuzz_reply.c: hostile text of a model, in pieces of random length, through the parser of reasoning and tool calls; and hostile
 * JSON bodies. The first byte selects the switches. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "../../cli/serve/fields.c"
#include "../../cli/reply/reply.c"
#define is_space is_space_of_call
#include "../../cli/reply/call_text.c"
#undef is_space
#define is_space is_space_of_form
#include "../../cli/reply/call_forms.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the two sources need of the rest of the command. */
void *out_alloc(size_t n) { return calloc(1, n + 1); }
char *out_printf(const char *format, ...)
{
    va_list list;
    char *text = NULL;
    va_start(list, format);
    int n = vsnprintf(NULL, 0, format, list);
    va_end(list);
    va_start(list, format);
    text = malloc((size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, format, list);
    va_end(list);
    return text;
}
char *out_strdup(const char *s) { return strdup(s); }
void out_add(struct out_text *t, const char *bytes, size_t n)
{
    t->data = realloc(t->data, t->len + n + 1);
    if (n) memcpy(t->data + t->len, bytes, n);
    t->len += n;
    t->data[t->len] = 0;
}
json_t *out_json_load(const char *text, size_t len, size_t flags, json_error_t *why)
{
    size_t depth = 0;
    for (size_t i = 0; i < len; i++) depth += text[i] == '[' || text[i] == '{';
    return depth > 100 ? NULL : json_loadb(text, len, flags, why);
}
json_t *out_string(const char *bytes, size_t n)
{
    json_t *s = json_stringn(bytes, n);
    return s ? s : json_string("?");
}
bool serve_fail(struct serve_error *e, int status, const char *param, const char *format, ...)
{
    (void)param, (void)format;
    e->status = status;
    return false;
}

static bool take_text(void *context, const char *text, size_t len)
{
    *(size_t *)context += len ? (size_t)(uint8_t)text[len - 1] : 0;
    return true;
}
static bool take_end(void *context) { return context != NULL; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t sum = 0, at = 1;
    struct reply r;
    struct reply_sink sink = {&sum, take_text, take_text, {&sum, take_text, take_text, take_end}};
    struct serve_error e = {0};
    if (!size) return 0;
    reply_begin(&r, sink, data[0] & 1, NULL, data[0] & 2);
    r.together = data[0] & 4;
    r.reasoned = data[0] & 8;
    while (at < size) {
        size_t n = 1 + data[at] % 7;
        if (n > size - at) n = size - at;
        /* Texts of a model have no NUL. */
        char piece[8];
        for (size_t i = 0; i < n; i++) piece[i] = data[at + i] ? (char)data[at + i] : ' ';
        reply_add(&r, piece, n);
        at += n;
    }
    reply_end(&r);
    reply_free(&r);
    struct exchange x = {.body = {.data = (char *)(uintptr_t)data, .len = size}};
    json_t *o = fields_parse(&x, &e);
    struct fields f = {o, &e};
    sum += (size_t)field_int(f, "n", 0, 100, 0) + (size_t)field_bool(f, "b", false) + (field_text(f, "t", NULL) != NULL);
    field_real(f, "r", 0, 1, 0);
    json_decref(o);
    return 0;
}
