/* prompts.c: see prompts.h. SPDX-License-Identifier: MIT */
#include "train/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "run/prompt.h"
#include "train/samples.h"

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
    return given == messages ? messages_of(p, messages, limit, out, err) : train_ids(out, p, ids, err);
}

/* Where the prompts of a file go. */
struct prompt_target {
    struct train_prompts *prompts;
    const struct placement *placement;
    size_t limit;
};

static segue_status add_line(void *target, const char *line, size_t len, segue_error *err)
{
    const struct prompt_target *t = target;
    struct train_prompts *to = t->prompts;
    const struct placement *p = t->placement;
    size_t limit = t->limit;
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
    struct prompt_target target = {out, p, limit};
    segue_status st = prompt_file(path, &text, err);
    if (!st) st = train_lines(path, &text, add_line, &target, err);
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

segue_status prompts_add_text(struct train_prompts *out, const struct placement *p, const char *text, segue_error *err)
{
    struct prompt_target target = {out, p, SIZE_MAX};
    if (!p->info.has_tokenizer)
        return out_fail(err, SEGUE_EUNSUPPORTED, "train: --sample: %.200s has no tokenizer; leave the flag out", p->path);
    json_t *o = p->info.has_template ? json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", text)
                                     : json_pack("{s:s}", "prompt", text);
    char *line = json_dumps(o, JSON_COMPACT);
    segue_status st = line ? add_line(&target, line, strlen(line), err)
                           : out_fail(err, SEGUE_EARG, "train: --sample: the text is no UTF-8; correct it");
    free(line);
    json_decref(o);
    return st;
}
