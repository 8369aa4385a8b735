/* inputs.c: see inputs.h. SPDX-License-Identifier: MIT */
#include "serve/inputs.h"

#include <stdlib.h>
#include <string.h>

bool input_is_list(const json_t *value)
{
    size_t i;
    json_t *v;
    json_array_foreach(value, i, v) if (json_is_integer(v)) return false;
    return json_is_array(value);
}

static void refuse(const struct pooled_model *m, const char *field, struct serve_error *e)
{
    serve_fail(e, 400, field, "%s: expected texts, or lists of token ids below %u", field, m->placement.info.vocab);
}

/* Appends the tokens of a text; the beginning-of-sequence token only where it is the first. */
static void add_text(const struct pooled_model *m, json_t *text, int32_t **tokens, size_t *n, struct serve_error *e)
{
    size_t more;
    int32_t *list = generate_tokenize(m, json_string_value(text), json_string_length(text), *n ? SEGUE_TEXT_NO_BOS : 0, &more, e);
    if (!list) return;
    *tokens = out_realloc(*tokens, (*n + more + 1) * sizeof **tokens);
    memcpy(*tokens + *n, list, more * sizeof *list);
    *n += more;
    free(list);
}

static void add_id(const struct pooled_model *m, json_t *id, const char *field, int32_t **tokens, size_t *n,
                   struct serve_error *e)
{
    json_int_t t = json_integer_value(id);
    if (!json_is_integer(id) || t < 0 || t >= (json_int_t)m->placement.info.vocab) {
        refuse(m, field, e);
        return;
    }
    *tokens = out_realloc(*tokens, (*n + 2) * sizeof **tokens);
    (*tokens)[(*n)++] = (int32_t)t;
}

/* The text of an object, as a new reference; NULL: e has the reason. */
static json_t *object_text(json_t *o, const char *field, struct serve_error *e)
{
    json_t *content = json_object_get(o, "content"), *part, *text = json_object_get(o, "prompt_string");
    struct out_text all = {0};
    size_t i;
    json_t *media = json_object_get(o, "multimodal_data");
    if (media && !json_is_null(media) && (!json_is_array(media) || json_array_size(media))) {
        serve_fail(e, 400, field, "%s: multimodal_data: not supported; this server reads text only", field);
        return NULL;
    }
    if (json_is_string(text)) return json_incref(text);
    if (!json_is_array(content)) {
        serve_fail(e, 400, field, "%s: an object needs prompt_string, or content with a list of parts", field);
        return NULL;
    }
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *t = json_object_get(part, "text");
        if (type && !strcmp(type, "text") && json_is_string(t)) out_add(&all, json_string_value(t), json_string_length(t));
        else serve_fail(e, 400, field, "%s: parts of type '%.40s' are not supported; this server reads text only", field,
                        type ? type : "(none)");
    }
    text = e->status ? NULL : out_string(all.data ? all.data : "", all.len);
    free(all.data);
    return text;
}

int32_t *input_tokens(const struct pooled_model *m, json_t *value, const char *field, size_t *n, struct serve_error *e)
{
    int32_t *tokens = out_alloc(sizeof *tokens);
    json_t *v, *text = json_is_object(value) ? object_text(value, field, e) : json_is_string(value) ? json_incref(value) : NULL;
    size_t i;
    *n = 0;
    if (text) add_text(m, text, &tokens, n, e);
    else if (!json_is_array(value)) refuse(m, field, e);
    json_array_foreach(value, i, v)
    {
        if (json_is_string(v)) add_text(m, v, &tokens, n, e);
        else add_id(m, v, field, &tokens, n, e);
        if (e->status) break;
    }
    json_decref(text);
    if (!e->status && *n) return tokens;
    serve_fail(e, 400, field, "%s: it is empty; send at least one token", field);
    free(tokens);
    return NULL;
}
