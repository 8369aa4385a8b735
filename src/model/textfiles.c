/* textfiles.c: reads tokenizer, chat template, stop tokens and sampling defaults from the files
 * next to the weights, or from GGUF keys. Absent files leave their fields empty, damaged files are
 * refused. A template that cannot be parsed is not an error: its error is stored, because the model
 * can be used without it.
 * SPDX-License-Identifier: MIT */
#include "model/textfiles.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/family.h"

/* Maximum sizes in bytes: of tokenizer.json, and of all other files. */
enum { JSON_LIMIT = 256 << 20, SMALL_LIMIT = 16 << 20 };

/* The state of reading. */
struct text_reader {
    struct segue_model *m;
    const char *folder;
    struct sg_buf config; /* tokenizer_config.json; empty: absent */
    segue_error *err;
};

/* Read FOLDER/NAME; an absent file gives an empty buffer. The caller frees *path. */
static segue_status read_sibling(const struct text_reader *r, const char *name, size_t limit, struct sg_buf *out,
                                char **path)
{
    *path = sg_path_join(r->folder, name);
    if (!*path) return sg_no_memory("path", strlen(name), r->err);
    if (sg_path_kind(*path) != SG_PATH_FILE) return SEGUE_OK;
    return sg_file_read(out, *path, limit, r->err);
}

/* --- tokenizer --- */

/* tokenizer.json, with the special tokens of tokenizer_config.json. */
static segue_status tokenizer_of_folder(struct text_reader *r)
{
    struct sg_buf text = {0};
    char *path = NULL;
    segue_status s = read_sibling(r, "tokenizer.json", JSON_LIMIT, &text, &path);
    if (s == SEGUE_OK && text.len)
        s = sg_tokenizer_of_json(&r->m->tokenizer, text.data, text.len, r->config.len ? r->config.data : NULL,
                                 r->config.len, path, r->err);
    sg_buf_free(&text);
    sg_free(path);
    return s;
}

/* llama2.c: tokN.bin for vocabularies of N tokens other than Llama 2's, else tokenizer.bin. */
static segue_status tokenizer_of_bin(struct text_reader *r)
{
    struct sg_buf bytes = {0};
    char name[32], *path = NULL;
    snprintf(name, sizeof name, "tok%u.bin", r->m->numbers->vocab);
    segue_status s = read_sibling(r, name, SMALL_LIMIT, &bytes, &path);
    /* Absent: try the name of Llama 2's tokenizer. */
    if (s == SEGUE_OK && !bytes.len) {
        sg_free(path);
        s = read_sibling(r, "tokenizer.bin", SMALL_LIMIT, &bytes, &path);
    }
    if (s == SEGUE_OK && bytes.len)
        s = sg_tokenizer_of_bin(&r->m->tokenizer, (const uint8_t *)bytes.data, bytes.len,
                                r->m->numbers->vocab, path, r->err);
    sg_buf_free(&bytes);
    sg_free(path);
    return s;
}

/* Read the tokenizer by the format of the weights, and set the fields that depend on it. */
static segue_status read_tokenizer(struct text_reader *r)
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
    /* Embeddings often have more rows than the tokenizer has tokens (padding), but never fewer. */
    if (info.vocab > m->numbers->vocab)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: the tokenizer has %u tokens, but the embedding only %u rows; use the "
                       "tokenizer of this model",
                       m->archive->path, info.vocab, m->numbers->vocab);
    m->bos = info.bos;
    m->eos = info.eos;
    m->info.has_tokenizer = 1;
    m->info.add_bos = info.add_bos != 0;
    m->info.tokenizer_kind = info.kind;
    m->info.tokenizer_pre = info.pre;
    m->info.warning = info.warning;
    m->info.fim_pre = info.fim[SG_FIM_PRE];
    m->info.fim_suf = info.fim[SG_FIM_SUF];
    m->info.fim_mid = info.fim[SG_FIM_MID];
    m->info.fim_pad = info.fim[SG_FIM_PAD];
    m->info.fim_rep = info.fim[SG_FIM_REP];
    m->info.fim_sep = info.fim[SG_FIM_SEP];
    return SEGUE_OK;
}

/* --- template --- */

/* Store the source and parse it. If parsing fails, the source is still available, and m->chat_error
 * has the reason. */
static segue_status set_template(struct text_reader *r, const char *source, size_t len, const char *what)
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

/* tokenizer_config.json has a string, or a list of named templates, of which "default" is used. */
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

/* chat_template.jinja has precedence over tokenizer_config.json. */
static segue_status template_of_folder(struct text_reader *r)
{
    struct sg_buf text = {0};
    char *path = NULL;
    segue_status s = read_sibling(r, "chat_template.jinja", SMALL_LIMIT, &text, &path);
    if (s == SEGUE_OK && text.len) s = set_template(r, text.data, text.len, path);
    sg_buf_free(&text);
    sg_free(path);
    if (s != SEGUE_OK || r->m->template_source || !r->config.len) return s;
    json_t *config = NULL;
    SG_TRY(sg_json_parse(&config, r->config.data, r->config.len, "tokenizer_config.json", r->err));
    const json_t *t = template_in(config);
    if (json_is_string(t))
        s = set_template(r, json_string_value(t), json_string_length(t), "tokenizer_config.json");
    else if (t && !json_is_null(t))
        sg_fail(&r->m->chat_error, SEGUE_EFORMAT,
                "template: tokenizer_config.json: chat_template is not a text; take the model's original file");
    json_decref(config);
    return s;
}

/* GGUF stores the template in a key. */
static segue_status template_of_gguf(struct text_reader *r)
{
    const char *source;
    size_t len;
    SG_TRY(sg_meta_string(r->m->archive, "tokenizer.chat_template", &source, &len, r->err));
    return source && len ? set_template(r, source, len, r->m->archive->path) : SEGUE_OK;
}

/* --- stop tokens and sampling defaults --- */

/* Add a stop token unless it is present. Ids outside the vocabulary, which published files contain,
 * are ignored: they can never be generated. */
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

/* Add "eos_token_id", an integer or a list. The first id becomes the model's EOS if the tokenizer
 * defines none. */
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

/* A sampling parameter, from 0 to max; -1 when absent. */
static segue_status real_in(const json_t *o, const char *key, double max, const char *what, float *out, segue_error *err)
{
    double value;
    SG_TRY(sg_json_real(o, key, -1, &value, what, err));
    const json_t *given = json_object_get(o, key);
    if (given && !json_is_null(given) && !(value >= 0 && value <= max))
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: %s is %g, expected 0 to %g; correct or remove it", what, key, value,
                       max);
    *out = (float)value;
    return SEGUE_OK;
}

/* Sampling defaults. do_sample false means greedy decoding, whatever the temperature. */
static segue_status sampling_of(segue_model_info *info, const json_t *o, const char *what, segue_error *err)
{
    int64_t top_k;
    int sampled;
    SG_TRY(real_in(o, "temperature", 1000, what, &info->temperature, err));
    SG_TRY(real_in(o, "top_p", 1, what, &info->top_p, err));
    SG_TRY(real_in(o, "min_p", 1, what, &info->min_p, err));
    SG_TRY(real_in(o, "repetition_penalty", 1000, what, &info->repeat_penalty, err));
    SG_TRY(sg_json_int(o, "top_k", -1, &top_k, what, err));
    SG_TRY(sg_json_bool(o, "do_sample", 1, &sampled, what, err));
    if (top_k < -1 || top_k > INT32_MAX) /* -1 is how some files write "off" */
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: top_k is %lld, expected -1 to %d; correct or remove it", what,
                       (long long)top_k, INT32_MAX);
    info->top_k = (int32_t)top_k;
    if (!sampled) info->temperature = 0;
    return SEGUE_OK;
}

/* generation_config.json: sampling defaults and stop tokens. */
static segue_status read_generation(struct text_reader *r)
{
    struct sg_buf text = {0};
    char *path = NULL;
    json_t *o = NULL;
    segue_status s = read_sibling(r, "generation_config.json", SMALL_LIMIT, &text, &path);
    if (s == SEGUE_OK && text.len) s = sg_json_parse(&o, text.data, text.len, path, r->err);
    if (s == SEGUE_OK && o) s = sampling_of(&r->m->info, o, path, r->err);
    if (s == SEGUE_OK && o) s = add_eos(r->m, o, r->err);
    json_decref(o);
    sg_buf_free(&text);
    sg_free(path);
    return s;
}

/* The union of all sources: in several families config.json lacks the token that ends a turn, and
 * generation would not stop. */
static segue_status read_stops(struct text_reader *r, const json_t *outer, const json_t *inner)
{
    struct segue_model *m = r->m;
    struct sg_tokenizer_info info = {.bos = -1, .eos = -1};
    if (m->tokenizer) sg_tokenizer_info_get(m->tokenizer, &info);
    for (size_t i = 0; i < info.stops_n; i++) SG_TRY(add_stop(m, info.stops[i], r->err));
    SG_TRY(add_stop(m, info.eos, r->err));
    if (m->archive->format == SG_FORMAT_SAFETENSORS) SG_TRY(read_generation(r));
    SG_TRY(add_eos(m, inner, r->err));
    SG_TRY(add_eos(m, outer, r->err));
    /* The tokenizer's BOS has precedence over the configuration's. */
    const json_t *bos = json_object_get(inner, "bos_token_id");
    if (m->bos < 0 && json_is_integer(bos) && json_integer_value(bos) >= 0 &&
        json_integer_value(bos) < m->numbers->vocab)
        m->bos = (int32_t)json_integer_value(bos);
    return SEGUE_OK;
}

/* tokenizer_config.json is read once, because both the tokenizer and the template use it. */
segue_status sg_textfiles_read(struct segue_model *m, const char *folder, const json_t *outer,
                               const json_t *inner, int no_text, segue_error *err)
{
    struct text_reader r = {.m = m, .folder = folder, .err = err};
    char *path = NULL;
    segue_status s = SEGUE_OK;
    /* -1 in m->info means: the model specifies no default. */
    m->bos = m->eos = -1;
    m->info.temperature = m->info.top_p = m->info.min_p = m->info.repeat_penalty = -1;
    m->info.top_k = -1;
    m->info.fim_pre = m->info.fim_suf = m->info.fim_mid = m->info.fim_pad = m->info.fim_rep = m->info.fim_sep = -1;
    if (m->archive->format == SG_FORMAT_SAFETENSORS && !no_text)
        s = read_sibling(&r, "tokenizer_config.json", SMALL_LIMIT, &r.config, &path);
    if (s == SEGUE_OK && !no_text) s = read_tokenizer(&r);
    if (s == SEGUE_OK && !no_text)
        s = m->archive->format == SG_FORMAT_GGUF ? template_of_gguf(&r) : template_of_folder(&r);
    if (s == SEGUE_OK) s = read_stops(&r, outer, inner);
    sg_buf_free(&r.config);
    sg_free(path);
    return s;
}
