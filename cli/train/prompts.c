/* prompts.c: see prompts.h. SPDX-License-Identifier: MIT */
#include "train/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "run/prompt.h"
#include "train/samples.h"

static segue_status ids_of(const struct placement *p, const json_t *list, struct prompt *out, segue_error *err)
{
    size_t n = json_array_size(list);
    out->ids = out_alloc((n + 1) * sizeof *out->ids);
    for (out->n = 0; out->n < n; out->n++) {
        const json_t *id = json_array_get(list, out->n);
        json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;
        if (v < 0 || v >= (json_int_t)p->info.vocab)
            return out_fail(err, SEGUE_EFORMAT, "\"tokens\": number %zu is no token below %zu", out->n + 1,
                            (size_t)p->info.vocab);
        out->ids[out->n] = (int32_t)v;
    }
    return SEGUE_OK;
}

static segue_status messages_of(const struct placement *p, json_t *messages, size_t limit, struct prompt *out, segue_error *err)
{
    if (!p->info.has_template)
        return out_fail(err, SEGUE_EUNSUPPORTED, "\"messages\" needs a model with a chat template; use \"prompt\"");
    json_t *request = json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", 1);
    segue_status st = prompt_chat(p->model, request, limit, out, err);
    json_decref(request);
    return st;
}

static segue_status tokens_of(const struct placement *p, const json_t *o, size_t limit, struct prompt *out, char **text,
                              segue_error *err)
{
    json_t *words = json_object_get(o, "prompt"), *messages = json_object_get(o, "messages"), *ids = json_object_get(o, "tokens");
    json_t *given = json_is_array(messages) ? messages : ids;
    if (json_is_string(words)) {
        *text = out_strdup(json_string_value(words));
        return prompt_tokenize(p->model, json_string_value(words), json_string_length(words), 0, limit, out, err);
    }
    if (!json_is_array(given))
        return out_fail(err, SEGUE_EFORMAT, "an object with \"prompt\", \"messages\" or \"tokens\" was expected");
    char *dump = json_dumps(given, JSON_COMPACT);
    *text = out_strdup(dump ? dump : "");
    free(dump);
    return given == messages ? messages_of(p, messages, limit, out, err) : ids_of(p, ids, out, err);
}

static segue_status add_line(struct train_prompts *to, const struct placement *p, const char *line, size_t len, size_t limit,
                             segue_error *err)
{
    json_error_t why;
    json_t *o = out_json_load(line, len, 0, &why), *answer = json_object_get(o, "answer");
    struct prompt ids = {0};
    char *text = NULL;
    segue_status st = o ? tokens_of(p, o, limit, &ids, &text, err) : out_fail(err, SEGUE_EFORMAT, "not JSON (%s)", why.text);
    if (!st && !ids.n) st = out_fail(err, SEGUE_EFORMAT, "the prompt has no tokens");
    if (!st && ids.n > limit)
        st = out_fail(err, SEGUE_ELIMIT, "the prompt has %zu tokens, and --context less --answer-tokens is %zu", ids.n, limit);
    if (!st && answer && !json_is_string(answer)) st = out_fail(err, SEGUE_EFORMAT, "\"answer\" is no text");
    if (!st) {
        if (to->n == to->cap) to->items = out_realloc(to->items, (to->cap = 2 * to->cap + 64) * sizeof *to->items);
        to->items[to->n++] = (struct train_prompt){ids.ids, ids.n, text, answer ? out_strdup(json_string_value(answer)) : NULL};
    } else {
        free(text);
        prompt_free(&ids);
    }
    json_decref(o);
    return st;
}

segue_status prompts_read(struct train_prompts *out, const struct placement *p, const char *path, size_t limit, segue_error *err)
{
    struct out_text text = {0};
    size_t number = 0;
    segue_status st = prompt_file(path, &text, err);
    for (const char *at = text.data, *end = at + text.len, *stop; !st && at < end; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        number++;
        if (strspn(at, " \t\r") >= (size_t)(stop - at)) continue;
        segue_error why;
        st = train_line_check((size_t)(stop - at), &why);
        if (!st) st = add_line(out, p, at, (size_t)(stop - at), limit, &why);
        if (st) out_fail(err, st, "train: %.200s: line %zu: %s; mend or remove the line", path, number, why.text);
    }
    free(text.data);
    if (!st && !out->n)
        st = out_fail(err, SEGUE_EFORMAT, "train: %.200s: no prompts; give a line with \"prompt\" for each", path);
    return st;
}

void prompts_free(struct train_prompts *prompts)
{
    for (size_t i = 0; i < prompts->n; i++) {
        free(prompts->items[i].tokens);
        free(prompts->items[i].text);
        free(prompts->items[i].expected);
    }
    free(prompts->items);
    *prompts = (struct train_prompts){0};
}
