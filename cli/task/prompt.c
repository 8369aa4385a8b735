/* prompt.c: see prompt.h. The template is applied when the model has one and --raw is not given; text that
 * the template rendered carries its own BOS, so none is added to it. SPDX-License-Identifier: MIT */
#include "task/prompt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT ((size_t)1 << 30)

/* Read to its end: pipes do not tell their size. */
segue_status prompt_file(const char *path, struct out_text *out, segue_error *err)
{
    bool standard = !strcmp(path, "-");
    FILE *f = standard ? stdin : fopen(path, "rb");
    segue_status st = f ? SEGUE_OK : out_fail_errno(err, "reading", path, "check the path");
    char *block = out_alloc(65536);
    out_add(out, "", 0);
    while (!st) {
        errno = 0;
        size_t n = fread(block, 1, 65536, f);
        if (n == 0 && ferror(f))
            st = out_fail_errno(err, "reading", standard ? "standard input" : path, NULL);
        if (n == 0) break;
        out_add(out, block, n);
        if (out->len > FILE_LIMIT)
            st = out_fail(err, SEGUE_ELIMIT, "reading: %.300s: larger than 1 GiB; split it", path);
    }
    free(block);
    if (f && !standard) fclose(f);
    return st;
}

/* Brackets are skipped, so that a list out of JSON serves as it is. */
segue_status prompt_ids(const char *text, size_t vocab, struct prompt *out, segue_error *err)
{
    struct out_text file = {0};
    segue_status st = SEGUE_OK;
    const char *where = text[0] == '@' ? text + 1 : "--ids", *s = text;
    if (text[0] == '@') {
        st = prompt_file(text + 1, &file, err);
        s = file.data ? file.data : "";
    }
    size_t cap = 0;
    while (!st) {
        s += strspn(s, ", \t\r\n[]");
        if (!*s) break;
        char *end;
        errno = 0;
        long long id = strtoll(s, &end, 10);
        if (end == s || errno || id < 0 || (size_t)id >= vocab) {
            st = out_fail(err, SEGUE_EARG,
                          "ids: %.200s: \"%.*s\" is no token of this model; give ids from 0 to %zu", where,
                          (int)(strcspn(s, ", \t\r\n[]") < 40 ? strcspn(s, ", \t\r\n[]") : 40), s, vocab - 1);
            break;
        }
        if (out->n == cap) out->ids = out_realloc(out->ids, (cap = cap * 2 + 64) * sizeof *out->ids);
        out->ids[out->n++] = (int32_t)id;
        s = end;
    }
    free(file.data);
    out->given = true;
    return st;
}

segue_status prompt_tokenize(const segue_model *model, const char *text, size_t len, unsigned flags,
                             size_t limit, struct prompt *out, segue_error *err)
{
    size_t cap = 0, n = 0;
    /* A beginning that alone is twice too long settles it, and spares the rest of a huge prompt. */
    size_t part = limit < FILE_LIMIT / 16 ? limit * 16 + 65536 : len;
    for (;; part *= 4) {
        if (part > len) part = len;
        size_t need = part / 2 + 64;
        do {
            if (need > cap) out->ids = out_realloc(out->ids, (cap = need) * sizeof *out->ids);
            segue_status st = segue_tokenize(model, text, part, flags, out->ids, cap, &n, err);
            if (st && !(st == SEGUE_ELIMIT && n > cap)) return st;
            need = n;
        } while (need > cap);
        if (part == len) break;
        if (n > 2 * limit)
            return out_fail(err, SEGUE_ELIMIT,
                            "prompt: %zu bytes: more than %zu tokens, and the context holds %zu; shorten "
                            "it or raise -c",
                            len, n, limit);
    }
    out->n = n;
    out->given = true;
    return SEGUE_OK;
}

json_t *prompt_message(const char *role, const char *text, size_t len)
{
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string(role));
    json_object_set_new(m, "content", out_string(text, len));
    return m;
}

/* Duplicate keys are refused: two readers would see two conversations. */
segue_status prompt_messages(const char *path, json_t **request, segue_error *err)
{
    struct out_text file = {0};
    segue_status st = prompt_file(path, &file, err);
    json_error_t why;
    json_t *value = st ? NULL : json_loadb(file.data, file.len, JSON_REJECT_DUPLICATES, &why);
    free(file.data);
    if (st) return st;
    if (!value)
        return out_fail(err, SEGUE_EFORMAT, "messages: %.200s: line %d: %.100s; give OpenAI's form", path,
                        why.line, why.text);
    if (json_is_array(value)) {
        json_t *object = json_object();
        json_object_set_new(object, "messages", value);
        value = object;
    }
    if (!json_is_object(value) || !json_is_array(json_object_get(value, "messages"))) {
        json_decref(value);
        return out_fail(err, SEGUE_EFORMAT,
                        "messages: %.200s: no list of messages; give [{\"role\":..,\"content\":..}]", path);
    }
    *request = value;
    return SEGUE_OK;
}

void prompt_think(json_t *request, const struct args *args)
{
    const char *think = args_text(args, "think");
    if (think) json_object_set_new(request, "enable_thinking", json_boolean(!strcmp(think, "on")));
}

/* 17 digits, so that numbers in tool calls come back as they were. */
segue_status prompt_render(const segue_model *model, const json_t *request, struct out_text *out,
                           segue_error *err)
{
    char *text = json_dumps(request, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text) return out_fail(err, SEGUE_EMEMORY, "chat template: request: out of memory; shorten it");
    segue_status st;
    OUT_GROW(*out, st, segue_chat_format(model, text, strlen(text), out->data, out->cap, &out->len, err));
    free(text);
    return st;
}

segue_status prompt_chat(const segue_model *model, const json_t *request, size_t limit, struct prompt *out,
                         segue_error *err)
{
    struct out_text text = {0};
    segue_status st = prompt_render(model, request, &text, err);
    if (!st) st = prompt_tokenize(model, text.data, text.len, SEGUE_TEXT_NO_BOS, limit, out, err);
    free(text.data);
    return st;
}

/* Refuse what is far too long before the template sees it: the longest tokens in the field stand for some
 * hundred bytes, the mean is about four. */
static segue_status too_long(const struct place *p, const char *text, size_t len, size_t limit,
                             segue_error *err)
{
    struct prompt head = {0};
    if (len / 16 <= limit + 4096) return SEGUE_OK;
    segue_status st = prompt_tokenize(p->model, text, len, SEGUE_TEXT_NO_BOS, limit, &head, err);
    prompt_free(&head);
    return st;
}

/* A template wants messages; raw text and models without one take the prompt as it is, with BOS. */
static segue_status from_text(struct prompt *out, const struct args *args, const struct place *p,
                              const char *text, size_t len, size_t limit, segue_error *err)
{
    if (!p->info.has_tokenizer)
        return out_fail(err, SEGUE_EUNSUPPORTED, "prompt: %.200s: the model has no tokenizer; give --ids",
                        p->path);
    const char *system = args_text(args, "system");
    if (args_has(args, "raw") || !p->info.has_template) {
        if (system)
            return out_fail(err, SEGUE_EARG, "flag --system: needs a chat template; leave out %s",
                            args_has(args, "raw") ? "--raw, or --system" : "--system: this model has none");
        return prompt_tokenize(p->model, text, len, 0, limit, out, err);
    }
    segue_status st = too_long(p, text, len, limit, err);
    if (st) return st;
    json_t *request = json_object(), *messages = json_array();
    if (system) json_array_append_new(messages, prompt_message("system", system, strlen(system)));
    json_array_append_new(messages, prompt_message("user", text, len));
    json_object_set_new(request, "messages", messages);
    prompt_think(request, args);
    st = prompt_chat(p->model, request, limit, out, err);
    json_decref(request);
    return st;
}

/* --system stands before what the file says. */
static segue_status from_messages(struct prompt *out, const struct args *args, const struct place *p,
                                  size_t limit, segue_error *err)
{
    json_t *request = NULL;
    if (!p->info.has_tokenizer)
        return out_fail(err, SEGUE_EUNSUPPORTED, "prompt: %.200s: the model has no tokenizer; give --ids",
                        p->path);
    segue_status st = prompt_messages(args_text(args, "messages"), &request, err);
    if (st) return st;
    const char *system = args_text(args, "system");
    if (system)
        json_array_insert_new(json_object_get(request, "messages"), 0,
                              prompt_message("system", system, strlen(system)));
    prompt_think(request, args);
    st = prompt_chat(p->model, request, limit, out, err);
    json_decref(request);
    return st;
}

/* Two prompts are one too many, and silence about one of them would be worse. */
segue_status prompt_read(struct prompt *out, const struct args *args, const struct place *p, size_t limit,
                         segue_error *err)
{
    static const char *const kinds[] = {"prompt", "file", "ids", "messages"};
    const char *kind = NULL;
    *out = (struct prompt){0};
    for (size_t i = 0; i < 4; i++) {
        if (!args_has(args, kinds[i])) continue;
        if (kind)
            return out_fail(err, SEGUE_EARG, "prompt: --%s and --%s: two prompts; give one", kind, kinds[i]);
        kind = kinds[i];
    }
    if (!kind) return SEGUE_OK;
    const char *value = args_text(args, kind);
    if (!strcmp(kind, "ids")) return prompt_ids(value, p->info.vocab, out, err);
    if (!strcmp(kind, "messages")) return from_messages(out, args, p, limit, err);
    if (!strcmp(kind, "prompt")) return from_text(out, args, p, value, strlen(value), limit, err);
    struct out_text text = {0};
    segue_status st = prompt_file(value, &text, err);
    if (!st) st = from_text(out, args, p, text.data, text.len, limit, err);
    free(text.data);
    return st;
}

void prompt_free(struct prompt *prompt)
{
    free(prompt->ids);
    *prompt = (struct prompt){0};
}
