/* chat_content.c: message contents for templates that know text only, see chat_content.h.
 * SPDX-License-Identifier: MIT */
#include "text/chat_content.h"

#include <string.h>

#include "base/mem.h"
#include "text/chat_request.h"

/* A request that is rendered to find out whether a template reads lists of parts. The text must not occur in a template. */
#define PROBE_TEXT "Zx9qProbe"
static const char parts_probe[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" PROBE_TEXT "\"}]}]}";

/* Render a probe. Returns 1 with the text in out if the template accepts it. */
static int render_probe(const struct sg_template *t, const char *request, const char *bos, const char *eos, struct sg_buf *out)
{
    segue_error ignored;
    json_t *asked = json_loads(request, 0, NULL), *vars = NULL;
    int ok = asked && sg_chat_request(asked, bos, eos, &vars, &ignored) == SEGUE_OK &&
             sg_template_render(t, vars, -1, NULL, out, &ignored) == SEGUE_OK && out->data;
    json_decref(vars);
    json_decref(asked);
    return ok;
}

/* True if the template walks a list of content parts. One that only prints the content shows the list with its types. */
static int reads_parts(const struct sg_template *t, const char *bos, const char *eos)
{
    struct sg_buf out = {0};
    int ok = render_probe(t, parts_probe, bos, eos, &out) && strstr(out.data, PROBE_TEXT) && !strstr(out.data, "'type'") &&
             !strstr(out.data, "\"type\"");
    sg_buf_free(&out);
    return ok;
}

/* True for a content that is null or missing. */
static int is_null(const json_t *content) { return !content || json_is_null(content); }

/* Number of times that `word` occurs in a text. */
static size_t count_of(const char *text, const char *word)
{
    size_t n = 0;
    for (const char *s = text; s && (s = strstr(s, word)); s += strlen(word)) n++;
    return n;
}

/* A copy of the variables whose messages have "" for a content that is null or missing. NULL: out of memory. */
static json_t *with_empty_contents(json_t *vars)
{
    json_t *copy = json_copy(vars), *messages = json_array(), *old = json_object_get(vars, "messages");
    int ok = copy && messages;
    for (size_t i = 0; ok && i < json_array_size(old); i++) {
        json_t *message = json_array_get(old, i);
        if (is_null(json_object_get(message, "content"))) {
            message = json_copy(message);
            ok = message && json_object_set_new(message, "content", json_string("")) == 0;
        } else
            json_incref(message);
        ok = json_array_append_new(messages, message) == 0 && ok;
    }
    if (ok && json_object_set(copy, "messages", messages) != 0) ok = 0;
    json_decref(messages);
    if (ok) return copy;
    json_decref(copy);
    return NULL;
}

/* Use empty contents if the template renders them, and either rejects null or missing ones or prints them. */
static segue_status fill_contents(const struct sg_template *t, json_t *vars, segue_error *err)
{
    struct sg_buf was = {0}, filled = {0};
    segue_error ignored;
    json_t *other = with_empty_contents(vars);
    if (!other) return sg_fail(err, SEGUE_EMEMORY, "out of memory: chat request; shorten it");
    segue_status s = SEGUE_OK;
    if (sg_template_render(t, other, -1, NULL, &filled, &ignored) == SEGUE_OK) {
        int needed = sg_template_render(t, vars, -1, NULL, &was, &ignored) != SEGUE_OK ||
                     count_of(was.data, "None") > count_of(filled.data, "None") ||
                     count_of(was.data, "null") > count_of(filled.data, "null");
        if (needed && json_object_set(vars, "messages", json_object_get(other, "messages")) != 0)
            s = sg_fail(err, SEGUE_EMEMORY, "out of memory: chat request; shorten it");
    }
    json_decref(other);
    sg_buf_free(&was);
    sg_buf_free(&filled);
    return s;
}

/* Replace a list of text parts by their texts. index: of the message, for errors. */
static segue_status join_parts(json_t *message, const json_t *parts, size_t index, segue_error *err)
{
    struct sg_buf text = {0};
    segue_status s = SEGUE_OK;
    for (size_t i = 0; i < json_array_size(parts) && s == SEGUE_OK; i++) {
        const json_t *part = json_array_get(parts, i), *kind = json_object_get(part, "type");
        const json_t *t = json_is_string(part) ? part : json_object_get(part, "text");
        if (!json_is_string(t)) {
            s = sg_fail(err, SEGUE_EUNSUPPORTED,
                        "chat request: message %zu: content part of type \"%.40s\": the template of this model accepts text "
                        "only; remove it",
                        index, json_is_string(kind) ? json_string_value(kind) : "?");
            break;
        }
        if (i) sg_buf_puts(&text, "\n");
        sg_buf_add(&text, json_string_value(t), json_string_length(t));
    }
    json_t *value = s == SEGUE_OK && !text.failed ? json_stringn(text.data ? text.data : "", text.len) : NULL;
    if (s == SEGUE_OK && (!value || json_object_set_new(message, "content", value) != 0))
        s = sg_fail(err, SEGUE_EMEMORY, "out of memory: chat request; shorten it");
    sg_buf_free(&text);
    return s;
}

segue_status sg_chat_content(const struct sg_template *t, json_t *vars, const char *bos, const char *eos, segue_error *err)
{
    int parts = -1, empty = 0; /* parts: 1 if the template reads lists of parts; -1: not yet known */
    json_t *messages = json_object_get(vars, "messages");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content");
        empty |= is_null(content);
        if (!json_is_array(content)) continue;
        if (parts < 0) parts = reads_parts(t, bos, eos);
        if (!parts) SG_TRY(join_parts(message, content, i, err));
    }
    return empty ? fill_contents(t, vars, err) : SEGUE_OK;
}
