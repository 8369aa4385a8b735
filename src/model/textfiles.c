/* textfiles.c: reads tokenizer, chat template, stop tokens and sampling defaults from the files beside the
 * weights or from GGUF keys. Files that are absent leave their part empty; files that are damaged are
 * refused. A template that cannot be parsed is remembered with its error, because the model works without it.
 * SPDX-License-Identifier: MIT */
#include "model/textfiles.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/family.h"

enum { JSON_LIMIT = 256 << 20, SMALL_LIMIT = 16 << 20 };

struct reading {
    struct segue_model *m;
    const char *folder;
    struct sg_buf config; /* tokenizer_config.json; empty: absent */
    segue_error *err;
};

/* Reads folder/name; an absent file gives an empty buffer. */
static segue_status read_beside(const struct reading *r, const char *name, size_t limit, struct sg_buf *out,
                                char **path)
{
    *path = sg_path_join(r->folder, name);
    if (!*path) return sg_no_memory("path", strlen(name), r->err);
    if (sg_path_kind(*path) != SG_PATH_FILE) return SEGUE_OK;
    return sg_file_read(out, *path, limit, r->err);
}

/* --- tokenizer --- */

/* The configuration says which tokens begin and end a text; the tokenizer file says the rest. */
static segue_status tokenizer_of_folder(struct reading *r)
{
    struct sg_buf text = {0};
    char *path = NULL;
    segue_status s = read_beside(r, "tokenizer.json", JSON_LIMIT, &text, &path);
    if (s == SEGUE_OK && text.len)
        s = sg_tokenizer_of_json(&r->m->tokenizer, text.data, text.len, r->config.len ? r->config.data : NULL,
                                 r->config.len, path, r->err);
    sg_buf_free(&text);
    sg_free(path);
    return s;
}

/* Stories of other vocabularies come with tokNNN.bin; tokenizer.bin is Llama 2's. */
static segue_status tokenizer_of_bin(struct reading *r)
{
    struct sg_buf bytes = {0};
    char own[32], *path = NULL;
    snprintf(own, sizeof own, "tok%u.bin", r->m->numbers->vocab);
    segue_status s = read_beside(r, own, SMALL_LIMIT, &bytes, &path);
    if (s == SEGUE_OK && !bytes.len) {
        sg_free(path);
        s = read_beside(r, "tokenizer.bin", SMALL_LIMIT, &bytes, &path);
    }
    if (s == SEGUE_OK && bytes.len)
        s = sg_tokenizer_of_bin(&r->m->tokenizer, (const uint8_t *)bytes.data, bytes.len,
                                r->m->numbers->vocab, path, r->err);
    sg_buf_free(&bytes);
    sg_free(path);
    return s;
}

static segue_status read_tokenizer(struct reading *r)
{
    struct segue_model *m = r->m;
    if (m->archive->format == SG_FORMAT_GGUF)
        SG_TRY(sg_tokenizer_of_gguf(&m->tokenizer, m->archive, r->err));
    else if (m->archive->format == SG_FORMAT_LLAMA2C)
        SG_TRY(tokenizer_of_bin(r));
    else
        SG_TRY(tokenizer_of_folder(r));
    if (!m->tokenizer) return SEGUE_OK;
    struct sg_tokenizer_info info;
    sg_tokenizer_info_get(m->tokenizer, &info);
    if (info.vocab > m->numbers->vocab)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: its tokenizer has %u tokens but the embedding only %u rows; take the "
                       "tokenizer of this model",
                       m->archive->path, info.vocab, m->numbers->vocab);
    m->bos = info.bos;
    m->eos = info.eos;
    m->info.has_tokenizer = 1;
    m->info.add_bos = info.add_bos != 0;
    m->info.tokenizer_kind = info.kind;
    m->info.tokenizer_pre = info.pre;
    m->info.warning = info.warning;
    return SEGUE_OK;
}

/* --- template --- */

/* The source is kept even if it cannot be parsed: `template` shows it, and the error says why it is not used.
 */
static segue_status keep_template(struct reading *r, const char *source, size_t len, const char *what)
{
    struct segue_model *m = r->m;
    if (!(m->template_source = sg_arena_strndup(&m->arena, source, len)))
        return sg_no_memory("chat template", len, r->err);
    m->template_len = len;
    segue_status s = sg_template_open(&m->chat, m->template_source, len, what, &m->chat_error);
    if (s == SEGUE_EMEMORY) return sg_fail(r->err, s, "%s", m->chat_error.text);
    m->info.has_template = s == SEGUE_OK;
    return SEGUE_OK;
}

/* tokenizer_config.json holds a string, or a list of named templates of which "default" is meant. */
static const json_t *template_in(const json_t *config)
{
    const json_t *t = json_object_get(config, "chat_template");
    for (size_t i = 0; json_is_array(t) && i < json_array_size(t); i++) {
        const json_t *one = json_array_get(t, i), *name = json_object_get(one, "name");
        if (json_is_string(name) && !strcmp(json_string_value(name), "default"))
            return json_object_get(one, "template");
    }
    return t;
}

static segue_status template_of_folder(struct reading *r)
{
    struct sg_buf text = {0};
    char *path = NULL;
    segue_status s = read_beside(r, "chat_template.jinja", SMALL_LIMIT, &text, &path);
    if (s == SEGUE_OK && text.len) s = keep_template(r, text.data, text.len, path);
    sg_buf_free(&text);
    sg_free(path);
    if (s != SEGUE_OK || r->m->template_source || !r->config.len) return s;
    json_t *config = NULL;
    SG_TRY(sg_json_parse(&config, r->config.data, r->config.len, "tokenizer_config.json", r->err));
    const json_t *t = template_in(config);
    if (json_is_string(t))
        s = keep_template(r, json_string_value(t), json_string_length(t), "tokenizer_config.json");
    json_decref(config);
    return s;
}

static segue_status template_of_gguf(struct reading *r)
{
    const char *source;
    size_t len;
    SG_TRY(sg_meta_string(r->m->archive, "tokenizer.chat_template", &source, &len, r->err));
    return source && len ? keep_template(r, source, len, r->m->archive->path) : SEGUE_OK;
}

/* --- stop tokens and sampling defaults --- */

/* Ids outside the vocabulary are dropped: published files hold such leftovers, and they can never be chosen.
 */
static segue_status add_stop(struct segue_model *m, int64_t token, segue_error *err)
{
    if (token < 0 || token >= m->numbers->vocab) return SEGUE_OK;
    for (size_t i = 0; i < m->stops_n; i++)
        if (m->stops[i] == token) return SEGUE_OK;
    int32_t *more = sg_realloc(m->stops, (m->stops_n + 1) * sizeof *more);
    if (!more) return sg_no_memory("stop tokens", m->stops_n, err);
    m->stops = more;
    m->stops[m->stops_n++] = (int32_t)token;
    return SEGUE_OK;
}

/* "eos_token_id": an integer or a list. The first one becomes the model's own when no tokenizer said one. */
static segue_status add_eos(struct segue_model *m, const json_t *o, segue_error *err)
{
    const json_t *eos = json_object_get(o, "eos_token_id");
    size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    for (size_t i = 0; i < n && i < 1024; i++) {
        const json_t *one = json_is_array(eos) ? json_array_get(eos, i) : eos;
        if (!json_is_integer(one)) continue;
        int64_t token = json_integer_value(one);
        if (m->eos < 0 && token >= 0 && token < m->numbers->vocab) m->eos = (int32_t)token;
        SG_TRY(add_stop(m, token, err));
    }
    return SEGUE_OK;
}

/* Absent or absurd: -1, not said. */
static segue_status real_in(const json_t *o, const char *key, const char *what, float *out, segue_error *err)
{
    double value;
    SG_TRY(sg_json_real(o, key, -1, &value, what, err));
    *out = value >= 0 && value < 1e9 ? (float)value : -1.0f;
    return SEGUE_OK;
}

/* do_sample false means greedy, whatever temperature stands beside it. */
static segue_status sampling_of(segue_model_info *info, const json_t *o, const char *what, segue_error *err)
{
    int64_t top_k;
    int sampled;
    SG_TRY(real_in(o, "temperature", what, &info->temperature, err));
    SG_TRY(real_in(o, "top_p", what, &info->top_p, err));
    SG_TRY(real_in(o, "min_p", what, &info->min_p, err));
    SG_TRY(real_in(o, "repetition_penalty", what, &info->repeat_penalty, err));
    SG_TRY(sg_json_int(o, "top_k", -1, &top_k, what, err));
    SG_TRY(sg_json_bool(o, "do_sample", 1, &sampled, what, err));
    info->top_k = top_k >= 0 && top_k < INT32_MAX ? (int32_t)top_k : -1;
    if (!sampled) info->temperature = 0;
    return SEGUE_OK;
}

static segue_status read_generation(struct reading *r)
{
    struct sg_buf text = {0};
    char *path = NULL;
    json_t *o = NULL;
    segue_status s = read_beside(r, "generation_config.json", SMALL_LIMIT, &text, &path);
    if (s == SEGUE_OK && text.len) s = sg_json_parse(&o, text.data, text.len, path, r->err);
    if (s == SEGUE_OK && o) s = sampling_of(&r->m->info, o, path, r->err);
    if (s == SEGUE_OK && o) s = add_eos(r->m, o, r->err);
    json_decref(o);
    sg_buf_free(&text);
    sg_free(path);
    return s;
}

/* A union: config.json alone misses the end of a turn in several families (models stop late, or never). */
static segue_status read_stops(struct reading *r, const json_t *outer, const json_t *inner)
{
    struct segue_model *m = r->m;
    struct sg_tokenizer_info info = {.bos = -1, .eos = -1};
    if (m->tokenizer) sg_tokenizer_info_get(m->tokenizer, &info);
    for (size_t i = 0; i < info.stops_n; i++) SG_TRY(add_stop(m, info.stops[i], r->err));
    SG_TRY(add_stop(m, info.eos, r->err));
    if (m->archive->format == SG_FORMAT_SAFETENSORS) SG_TRY(read_generation(r));
    SG_TRY(add_eos(m, inner, r->err));
    SG_TRY(add_eos(m, outer, r->err));
    const json_t *bos = json_object_get(inner, "bos_token_id");
    if (m->bos < 0 && json_is_integer(bos) && json_integer_value(bos) >= 0 &&
        json_integer_value(bos) < m->numbers->vocab)
        m->bos = (int32_t)json_integer_value(bos);
    return SEGUE_OK;
}

segue_status sg_textfiles_read(struct segue_model *m, const char *folder, const json_t *outer,
                               const json_t *inner, int no_text, segue_error *err)
{
    struct reading r = {.m = m, .folder = folder, .err = err};
    char *path = NULL;
    segue_status s = SEGUE_OK;
    m->bos = m->eos = -1;
    m->info.temperature = m->info.top_p = m->info.min_p = m->info.repeat_penalty = -1;
    m->info.top_k = -1;
    if (m->archive->format == SG_FORMAT_SAFETENSORS && !no_text)
        s = read_beside(&r, "tokenizer_config.json", SMALL_LIMIT, &r.config, &path);
    if (s == SEGUE_OK && !no_text) s = read_tokenizer(&r);
    if (s == SEGUE_OK && !no_text)
        s = m->archive->format == SG_FORMAT_GGUF ? template_of_gguf(&r) : template_of_folder(&r);
    if (s == SEGUE_OK) s = read_stops(&r, outer, inner);
    sg_buf_free(&r.config);
    sg_free(path);
    return s;
}
