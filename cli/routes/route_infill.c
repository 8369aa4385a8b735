/* route_infill.c: POST /infill: fills the gap between two texts, in the form of llama.cpp. The prompt is
 *   [REP]myproject\n  [SEP]NAME\nTEXT (each further file)  [SEP]filename\n  [BOS][PRE]prefix prompt[SUF]suffix[MID]
 * where [..] are the tokens that the model has for this; without [SEP], further files begin with "--- snippet ---". Bounded as
 * there: of the prefix the end and of the suffix the beginning are used, and the end of the further files.
 * SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2048, FILES_MAX = 1024 }; /* tokens of prefix, prompt and suffix together; further files */

struct tokens {
    int32_t *ids;
    size_t n;
};

/* What all parts of one prompt need. */
struct infill {
    struct pooled_model *m;
    struct fields f;
    size_t batch, answer; /* tokens of prefix, prompt and suffix at most; n_predict */
};

static void add_ids(struct tokens *to, const int32_t *ids, size_t n)
{
    to->ids = out_realloc(to->ids, (to->n + n + 1) * sizeof *to->ids);
    if (n) memcpy(to->ids + to->n, ids, n * sizeof *ids);
    to->n += n;
}

/* A token of the model, if it has it. */
static void add_id(struct tokens *to, int32_t id)
{
    if (id >= 0) add_ids(to, &id, 1);
}

static void add_text(const struct infill *q, struct tokens *to, const char *text, size_t len, unsigned flags)
{
    size_t n;
    int32_t *ids = generate_tokenize(q->m, text, len, SEGUE_TEXT_NO_BOS | flags, &n, q->f.e);
    if (ids) add_ids(to, ids, n);
    free(ids);
}

static void add_string(const struct infill *q, struct tokens *to, json_t *text, unsigned flags)
{
    add_text(q, to, json_string_value(text), json_string_length(text), flags);
}

/* A text, or a list of texts and token ids. */
static void add_part(const struct infill *q, struct tokens *to, const char *name)
{
    json_t *value = field(q->f, name), *v;
    size_t i;
    if (!value) {
        serve_fail(q->f.e, 400, name, "%s: it is required; send a text, which may be empty", name);
        return;
    }
    if (json_is_string(value)) add_string(q, to, value, SEGUE_TEXT_NO_SPECIAL);
    else if (!json_is_array(value)) serve_fail(q->f.e, 400, name, "%s: expected a text, or a list of texts and token ids", name);
    json_array_foreach(value, i, v)
    {
        json_int_t id = json_integer_value(v);
        if (json_is_string(v)) add_string(q, to, v, SEGUE_TEXT_NO_SPECIAL);
        else if (json_is_integer(v) && id >= 0 && id < (json_int_t)q->m->placement.info.vocab) add_id(to, (int32_t)id);
        else serve_fail(q->f.e, 400, name, "%s: expected texts, or token ids below %u", name, q->m->placement.info.vocab);
    }
}

static void add_file_name(const struct infill *q, struct tokens *to, const char *name)
{
    static const char snippet[] = "\n\n--- snippet ---\n\n";
    const segue_model_info *i = &q->m->placement.info;
    char *line = i->fim_sep >= 0 ? out_printf("%s\n", name) : NULL;
    add_id(to, i->fim_sep);
    add_text(q, to, line ? line : snippet, strlen(line ? line : snippet), SEGUE_TEXT_NO_SPECIAL);
    free(line);
}

/* The further files. */
static void add_extra(const struct infill *q, struct tokens *to)
{
    const segue_model_info *info = &q->m->placement.info;
    json_t *list = field_array(q->f, "input_extra"), *file;
    size_t i;
    add_id(to, info->fim_rep);
    if (info->fim_rep >= 0) add_text(q, to, "myproject\n", 10, SEGUE_TEXT_NO_SPECIAL);
    if (json_array_size(list) > FILES_MAX)
        serve_fail(q->f.e, 400, "input_extra", "input_extra: more than %d files; send fewer", FILES_MAX);
    json_array_foreach(list, i, file)
    {
        json_t *text = json_object_get(file, "text"), *name = json_object_get(file, "filename");
        if (!json_is_string(text) || (name && !json_is_string(name)))
            serve_fail(q->f.e, 400, "input_extra", "input_extra: expected a list of {\"filename\": TEXT, \"text\": TEXT}");
        if (q->f.e->status) return;
        add_file_name(q, to, name ? json_string_value(name) : "tmp");
        add_string(q, to, text, SEGUE_TEXT_NO_SPECIAL);
    }
    if (info->fim_sep >= 0) add_file_name(q, to, "filename");
}

/* Prefix and prompt, or the suffix, each with its token before it; only so much that both fit. */
static void cut_parts(const struct infill *q, struct tokens *prefix, const struct tokens *prompt, struct tokens *suffix)
{
    size_t of_prefix = 3 * (q->batch / 4), used = 2 + prompt->n, of_suffix = q->batch / 4 > used ? q->batch / 4 - used : 0;
    if (prefix->n > of_prefix) {
        memmove(prefix->ids, prefix->ids + prefix->n - of_prefix, of_prefix * sizeof *prefix->ids);
        prefix->n = of_prefix;
    }
    if (suffix->n > of_suffix) suffix->n = of_suffix;
}

/* The parts in their order. */
static void join(const struct infill *q, const struct tokens *extra, const struct tokens *prefix, const struct tokens *prompt,
                 const struct tokens *suffix, struct tokens *to)
{
    const segue_model_info *i = &q->m->placement.info;
    bool suffix_first = args_has(&q->m->args, "spm-infill");
    size_t context = q->m->context, taken = q->batch + 2 * q->answer, n = context > taken ? context - taken : 0;
    if (n > extra->n) n = extra->n;
    if (n) add_ids(to, extra->ids + extra->n - n, n);
    if (i->add_bos) add_id(to, i->bos);
    for (int part = 0; part < 2; part++) {
        bool is_suffix = suffix_first == !part;
        add_id(to, is_suffix ? i->fim_suf : i->fim_pre);
        if (is_suffix) add_ids(to, suffix->ids, suffix->n);
        else add_ids(to, prefix->ids, prefix->n), add_ids(to, prompt->ids, prompt->n);
    }
    add_id(to, i->fim_mid);
}

static json_t *ids_json(const struct tokens *t)
{
    json_t *list = json_array();
    for (size_t i = 0; i < t->n; i++) json_array_append_new(list, json_integer(t->ids[i]));
    return list;
}

/* A model that lacks a token is refused, but a wrong request first. */
static bool can_infill(const struct infill *q)
{
    const segue_model_info *i = &q->m->placement.info;
    if (q->f.e->status || (i->fim_pre >= 0 && i->fim_suf >= 0 && i->fim_mid >= 0)) return !q->f.e->status;
    return serve_fail(q->f.e, 501, "model", "infill: %s has no token for the %s; use a model that was trained to fill gaps",
                      q->m->name, i->fim_pre < 0 ? "prefix" : i->fim_suf < 0 ? "suffix" : "middle");
}

/* The prompt as a list of ids; NULL: e has the reason. A new reference. */
static json_t *prompt_json(struct infill *q)
{
    struct tokens extra = {0}, prefix = {0}, prompt = {0}, suffix = {0}, all = {0};
    const char *text = field_text(q->f, "prompt", "");
    long long answer = field_int(q->f, "n_predict", -1, INT32_MAX, 0);
    q->answer = answer > 0 ? (size_t)answer : 0;
    q->batch = q->m->context / 2 < BATCH ? q->m->context / 2 : BATCH;
    add_part(q, &prefix, "input_prefix");
    add_part(q, &suffix, "input_suffix");
    add_extra(q, &extra);
    if (!q->f.e->status && *text) add_text(q, &prompt, text, strlen(text), 0);
    bool ok = can_infill(q);
    if (ok) {
        cut_parts(q, &prefix, &prompt, &suffix);
        join(q, &extra, &prefix, &prompt, &suffix, &all);
    }
    json_t *list = ok ? ids_json(&all) : NULL;
    free(extra.ids), free(prefix.ids), free(prompt.ids), free(suffix.ids), free(all.ids);
    return list;
}

static bool answer(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct infill q = {.f = {body, e}};
    const char *model = field_text(q.f, "model", NULL);
    if (e->status || !(q.m = model_pool_acquire(&s->models, model, true, e))) return false;
    json_t *prompt = prompt_json(&q);
    model_pool_release(&s->models, q.m);
    if (!prompt) return false;
    json_object_set_new(body, "prompt", prompt);
    return answer_completion(s, x, body, e);
}

void route_infill(struct server *s, struct exchange *x) { route_with_body(s, x, answer); }
