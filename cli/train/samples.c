/* samples.c: see samples.h. SPDX-License-Identifier: MIT */
#include "train/samples.h"

#include <stdlib.h>
#include <string.h>

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Append a sequence without labels. NULL: too short to predict anything. */
static struct train_sample *add(struct train_data *s, const int32_t *tokens, size_t n)
{
    if (n < 2) return NULL;
    if (s->n == s->cap) s->items = out_realloc(s->items, (s->cap = 2 * s->cap + 64) * sizeof *s->items);
    struct train_sample *to = &s->items[s->n++];
    to->tokens = out_alloc(2 * n * sizeof *tokens);
    to->labels = to->tokens + n;
    to->n = n;
    memcpy(to->tokens, tokens, n * sizeof *tokens);
    for (size_t i = 0; i < n; i++) to->labels[i] = -1;
    return to;
}

static void label(struct train_sample *x, size_t from, size_t to)
{
    for (size_t i = from ? from : 1; i < to && i < x->n; i++) x->labels[i - 1] = x->tokens[i];
}

/* Every token after the first one. */
static void add_text(struct train_data *s, const struct prompt *text, size_t context)
{
    size_t n = text->n < context ? text->n : context;
    struct train_sample *x = add(s, text->ids, n);
    s->cut += text->n > context;
    s->skipped += !x;
    if (x) label(x, 0, n);
}

/* --- conversations --- */

/* The first `n` messages as tokens; open: with the beginning of an answer after them. */
static segue_status format(const struct placement *p, const json_t *messages, size_t n, bool open, struct prompt *out,
                           segue_error *err)
{
    json_t *list = json_array(), *request = json_pack("{s:o, s:b}", "messages", list, "add_generation_prompt", (int)open);
    for (size_t i = 0; i < n; i++) json_array_append(list, json_array_get(messages, i));
    segue_status st = prompt_chat(p->model, request, SIZE_MAX, out, err);
    json_decref(request);
    return st;
}

static size_t common(const struct prompt *a, const struct prompt *b)
{
    size_t i = 0;
    while (i < a->n && i < b->n && a->ids[i] == b->ids[i]) i++;
    return i;
}

/* Labels of message i, if it is of the assistant: from where the template opens an answer to where the message ends. */
static segue_status label_message(const struct placement *p, const json_t *messages, size_t i, const struct prompt *all,
                                  struct train_sample *x, segue_error *err)
{
    struct prompt before = {0}, with = {0};
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    if (!role || strcmp(role, "assistant") != 0) return SEGUE_OK;
    segue_status st = format(p, messages, i, true, &before, err);
    if (!st) st = format(p, messages, i + 1, false, &with, err);
    if (!st) label(x, common(&before, all), common(&with, all));
    prompt_free(&before);
    prompt_free(&with);
    return st;
}

static segue_status add_messages(struct train_data *s, const struct placement *p, const json_t *messages, size_t context,
                                 segue_error *err)
{
    struct prompt all = {0};
    size_t n = json_array_size(messages), labels = 0;
    segue_status st = format(p, messages, n, false, &all, err);
    struct train_sample *x = st ? NULL : add(s, all.ids, all.n < context ? all.n : context);
    for (size_t i = 0; x && i < n && !st; i++) st = label_message(p, messages, i, &all, x, err);
    for (size_t i = 0; x && i < x->n; i++) labels += x->labels[i] >= 0;
    s->cut += all.n > context;
    if (!st && !labels) {
        s->skipped++;
        if (x) free(s->items[--s->n].tokens);
    }
    prompt_free(&all);
    return st;
}

/* --- files --- */

segue_status train_ids(struct prompt *out, const struct placement *p, const json_t *list, segue_error *err)
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

segue_status train_lines(const char *path, const struct out_text *text,
                         segue_status (*take)(void *context, const char *line, size_t len, segue_error *err), void *context,
                         segue_error *err)
{
    size_t number = 0;
    segue_status st = SEGUE_OK;
    for (const char *at = text->data, *end = at + text->len, *stop; at < end && !st; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        size_t len = (size_t)(stop - at);
        number++;
        if (strspn(at, " \t\r") >= len) continue;
        segue_error why;
        if (len > TRAIN_LINE_BYTES)
            st = out_fail(&why, SEGUE_ELIMIT, "%zu MB, at most %d; one line is one sequence", len >> 20, TRAIN_LINE_BYTES >> 20);
        else
            st = take(context, at, len, &why);
        if (st) out_fail(err, st, "train: %.200s: line %zu: %s; mend or remove the line", path, number, why.text);
    }
    return st;
}

/* Where the sequences of a file go. */
struct line_target {
    struct train_data *data;
    const struct placement *placement;
    size_t context;
};

static segue_status add_line(void *target, const char *line, size_t len, segue_error *err)
{
    const struct line_target *to = target;
    struct train_data *s = to->data;
    const struct placement *p = to->placement;
    struct prompt ids = {0};
    json_error_t why;
    json_t *o = out_json_load(line, len, 0, &why);
    const json_t *text = json_object_get(o, "text"), *messages = json_object_get(o, "messages");
    const json_t *tokens = json_object_get(o, "tokens");
    segue_status st;
    if (!o)
        st = out_fail(err, SEGUE_EFORMAT, "not JSON (%s)", why.text);
    else if (json_is_array(tokens))
        st = train_ids(&ids, p, tokens, err);
    else if (!p->info.has_tokenizer)
        st = out_fail(err, SEGUE_EUNSUPPORTED, "the model has no tokenizer, so only \"tokens\" can be read");
    else if (json_is_string(text))
        st = prompt_tokenize(p->model, json_string_value(text), json_string_length(text), 0, SIZE_MAX, &ids, err);
    else if (json_is_array(messages) && p->info.has_template)
        st = add_messages(s, p, messages, to->context, err);
    else
        st = out_fail(err, SEGUE_EFORMAT, "%s", messages ? "\"messages\" needs a list and a model with a chat template"
                                                         : "an object with \"text\", \"messages\" or \"tokens\" was expected");
    if (!st && (json_is_array(tokens) || json_is_string(text))) add_text(s, &ids, to->context);
    prompt_free(&ids);
    json_decref(o);
    return st;
}

/* One row of tokens, cut into sequences of `context`. */
static void add_row(struct train_data *s, const int32_t *ids, size_t n, size_t context)
{
    for (size_t at = 0; at < n; at += context) {
        size_t part = n - at < context ? n - at : context;
        struct train_sample *x = add(s, ids + at, part);
        if (x) label(x, 0, part);
    }
}

static segue_status add_file(struct train_data *s, const struct placement *p, const struct out_text *text, size_t context,
                             segue_error *err)
{
    struct prompt ids = {0};
    segue_status st = prompt_tokenize(p->model, text->data, text->len, 0, SIZE_MAX, &ids, err);
    if (!st) add_row(s, ids.ids, ids.n, context);
    prompt_free(&ids);
    return st;
}

/* --- files of tokens --- */

/* llm.c's files begin with 256 numbers of 4 bytes: a magic number, a version, the number of tokens, zeros. */
enum { HEADER_BYTES = 1024, MAGIC_16 = 20240520, VERSION_16 = 1, MAGIC_32 = 20240801, VERSION_32 = 7 };

/* A number of `width` bytes, the least significant one first. */
static uint32_t number_at(const char *data, size_t at, size_t width)
{
    const unsigned char *x = (const unsigned char *)data + at;
    uint32_t v = x[0] | (uint32_t)x[1] << 8;
    return width == 2 ? v : v | (uint32_t)x[2] << 16 | (uint32_t)x[3] << 24;
}

/* Bytes before the first token, and those of a token. A .bin without a header has tokens of 2 bytes, as nanoGPT's. */
static segue_status token_form(const char *path, const struct out_text *text, size_t *from, size_t *width, segue_error *err)
{
    uint32_t magic = text->len >= 4 ? number_at(text->data, 0, 4) : 0;
    bool short_ids = magic == MAGIC_16, headed = (short_ids || magic == MAGIC_32) && !strcmp(path + strlen(path) - 4, ".bin");
    *from = 0;
    *width = !strcmp(path + strlen(path) - 4, ".u32") ? 4 : 2;
    if (text->len && !headed && text->len % *width)
        return out_fail(err, SEGUE_EFORMAT, "train: %.200s: %zu bytes are no whole number of tokens of %zu bytes; copy the file "
                        "again, or give it the right ending (.bin, .u16, .u32)", path, text->len, *width);
    if (!headed) return SEGUE_OK;
    *from = HEADER_BYTES;
    *width = short_ids ? 2 : 4;
    if (text->len < HEADER_BYTES)
        return out_fail(err, SEGUE_EFORMAT, "train: %.200s: its header of %d bytes is cut; copy the file again", path,
                        HEADER_BYTES);
    uint32_t version = number_at(text->data, 4, 4), n = number_at(text->data, 8, 4);
    if (version != (short_ids ? VERSION_16 : VERSION_32))
        return out_fail(err, SEGUE_EUNSUPPORTED, "train: %.200s: version %u of llm.c's token files is not known; write version "
                        "%d", path, version, short_ids ? VERSION_16 : VERSION_32);
    if ((uint64_t)n * *width != text->len - HEADER_BYTES)
        return out_fail(err, SEGUE_EFORMAT, "train: %.200s: its header says %u tokens, but %zu bytes follow; copy the file again",
                        path, n, text->len - HEADER_BYTES);
    return SEGUE_OK;
}

static bool is_token_file(const char *path)
{
    const char *end = strrchr(path, '.');
    return end && (!strcmp(end, ".bin") || !strcmp(end, ".u16") || !strcmp(end, ".u32"));
}

static segue_status add_tokens(struct train_data *s, const struct placement *p, const char *path, const struct out_text *text,
                               size_t context, segue_error *err)
{
    size_t from, width;
    segue_status st = token_form(path, text, &from, &width, err);
    if (st) return st;
    size_t n = (text->len - from) / width;
    int32_t *ids = out_alloc((n + 1) * sizeof *ids);
    for (size_t i = 0; i < n && !st; i++) {
        uint32_t id = number_at(text->data, from + i * width, width);
        if (id >= p->info.vocab)
            st = out_fail(err, SEGUE_EFORMAT, "train: %.200s: token %zu is %u, but the model has tokens below %zu; use those of "
                          "its own tokenizer", path, i + 1, id, (size_t)p->info.vocab);
        ids[i] = (int32_t)id;
    }
    if (!st) add_row(s, ids, n, context);
    free(ids);
    return st;
}

/* The held-out sequences are moved to the front. */
static void hold_out(struct train_data *s, double share, uint64_t seed)
{
    s->held_out = (size_t)(share * (double)s->n);
    for (size_t i = 0; i < s->held_out; i++) {
        size_t j = i + draw(&seed) % (s->n - i);
        struct train_sample x = s->items[i];
        s->items[i] = s->items[j];
        s->items[j] = x;
    }
}

segue_status samples_read(struct train_data *s, const struct placement *p, const char *path, size_t context, double held_out,
                          uint64_t seed, segue_error *err)
{
    struct out_text text = {0};
    size_t len = strlen(path);
    bool lines = len > 6 && !strcmp(path + len - 6, ".jsonl"), tokens = is_token_file(path);
    if (!p->info.has_tokenizer && !lines && !tokens)
        return out_fail(err, SEGUE_EUNSUPPORTED, "train: %.200s: the model has no tokenizer; give a .jsonl with \"tokens\", or a "
                        "token file", p->path);
    segue_status st = prompt_file(path, &text, err);
    struct line_target target = {s, p, context};
    if (!st && text.len)
        st = lines    ? train_lines(path, &text, add_line, &target, err)
             : tokens ? add_tokens(s, p, path, &text, context, err)
                      : add_file(s, p, &text, context, err);
    free(text.data);
    if (!st && !s->n && !s->skipped)
        st = out_fail(err, SEGUE_EFORMAT, "train: %.200s: nothing to train on: the file is empty; give another one", path);
    else if (!st && !s->n)
        st = out_fail(err, SEGUE_EFORMAT,
                      "train: %.200s: nothing to train on: %zu sequences have no labels; give texts of two tokens or more, or "
                      "conversations with answers",
                      path, s->skipped);
    if (!st) hold_out(s, held_out, seed);
    return st;
}

void samples_free(struct train_data *s)
{
    for (size_t i = 0; i < s->n; i++) free(s->items[i].tokens);
    free(s->items);
    *s = (struct train_data){0};
}

/* A permutation without memory: a Feistel network of four rounds over the next power of four; places beyond n are walked
 * through. */
size_t samples_order(uint64_t seed, uint64_t at, size_t n)
{
    const uint64_t epoch = at / n;
    unsigned bits = 1;
    while ((uint64_t)1 << 2 * bits < n) bits++;
    const uint64_t mask = ((uint64_t)1 << bits) - 1;
    uint64_t x = at % n;
    do {
        uint64_t left = x >> bits, right = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t key = seed ^ epoch << 32 ^ round << 24 ^ right, mixed = draw(&key) & mask, next = left ^ mixed;
            left = right;
            right = next;
        }
        x = left << bits | right;
    } while (x >= n);
    return (size_t)x;
}

const struct train_sample *samples_at(const struct train_data *s, uint64_t seed, uint64_t at)
{
    return &s->items[s->held_out + samples_order(seed, at, s->n - s->held_out)];
}
