/* prompt.c: prompts, see prompt.h. The chat template is applied if the model has one and --raw is not given. Rendered
 * text contains its own BOS token, so the tokenizer adds none.
 * SPDX-License-Identifier: MIT */
#include "run/prompt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Largest file of a prompt, in bytes. */
#define FILE_LIMIT ((size_t)1 << 30)

/* Reads until the end of the stream, because the size of a pipe is not known. */
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
            st = out_fail(err, SEGUE_ELIMIT, "reading: %.300s: larger than 1 GiB; use a shorter text", path);
    }
    free(block);
    if (f && !standard) fclose(f);
    return st;
}

/* JSON brackets count as separators, so a JSON list of ids can be used as is. */
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
                          "ids: %.200s: \"%.*s\" is not a token of this model; expected ids from 0 to %zu", where,
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

/* Starts with a prefix of the text and quadruples it: if a prefix alone has more than twice `limit` tokens, the
 * prompt is rejected without tokenizing the rest. */
segue_status prompt_tokenize(const segue_model *model, const char *text, size_t len, unsigned flags,
                             size_t limit, struct prompt *out, segue_error *err)
{
    size_t cap = 0, n = 0;
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
                            "prompt: more than %zu tokens, the context holds %zu; shorten the prompt or raise -c", n, limit);
    }
    out->n = n;
    out->given = true;
    return SEGUE_OK;
}

/* Bytes of the text that are not valid UTF-8 become U+FFFD. */
json_t *prompt_message(const char *role, const char *text, size_t len)
{
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string(role));
    json_object_set_new(m, "content", out_string(text, len));
    return m;
}

void prompt_add_content(struct out_text *out, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    const char *text = json_string_value(content);
    if (text) out_add(out, text, json_string_length(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const char *part = json_string_value(json_object_get(json_array_get(content, i), "text"));
        if (part) out_addf(out, "%s%s", i ? "\n" : "", part);
    }
}

/* Duplicate keys are rejected: different JSON readers would see different conversations. */
segue_status prompt_messages(const char *path, json_t **request, segue_error *err)
{
    struct out_text file = {0};
    segue_status st = prompt_file(path, &file, err);
    json_error_t json_err;
    json_t *value = st ? NULL : out_json_load(file.data, file.len, JSON_REJECT_DUPLICATES, &json_err);
    free(file.data);
    if (st) return st;
    if (!value)
        return out_fail(err, SEGUE_EFORMAT, "messages: %.200s: line %d: %.100s; expected OpenAI's message format", path,
                        json_err.line, json_err.text);
    if (json_is_array(value)) {
        json_t *object = json_object();
        json_object_set_new(object, "messages", value);
        value = object;
    }
    if (!json_is_object(value) || !json_is_array(json_object_get(value, "messages"))) {
        json_decref(value);
        return out_fail(err, SEGUE_EFORMAT,
                        "messages: %.200s: no list of messages; expected [{\"role\":..,\"content\":..}]", path);
    }
    *request = value;
    return SEGUE_OK;
}

/* Without --think the variable stays undefined, so the template uses its default. */
void prompt_set_thinking(json_t *request, const struct args *args)
{
    const char *think = args_text(args, "think");
    if (think) json_object_set_new(request, "enable_thinking", json_boolean(!strcmp(think, "on")));
}

/* 17 significant digits, so that numbers in tool calls keep their exact value. */
segue_status prompt_render(const segue_model *model, const json_t *request, struct out_text *out,
                           segue_error *err)
{
    char *text = json_dumps(request, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text) return out_fail(err, SEGUE_EMEMORY, "chat template: request: out of memory");
    segue_status st;
    OUT_GROW(*out, st, segue_chat_format(model, text, strlen(text), out->data, out->cap, &out->len, err));
    free(text);
    return st;
}

/* The tokenizer must not add BOS: the template did. */
segue_status prompt_chat(const segue_model *model, const json_t *request, size_t limit, struct prompt *out,
                         segue_error *err)
{
    struct out_text text = {0};
    segue_status st = prompt_render(model, request, &text, err);
    if (!st) st = prompt_tokenize(model, text.data, text.len, SEGUE_TEXT_NO_BOS, limit, out, err);
    free(text.data);
    return st;
}

/* Reject a text that is far too long before the template sees it. Tokens average about 4 bytes; the test uses 16
 * bytes per token plus a margin, so that no valid prompt pays for it. */
static segue_status check_length(const struct placement *p, const char *text, size_t len, size_t limit,
                             segue_error *err)
{
    struct prompt head = {0};
    if (len / 16 <= limit + 4096) return SEGUE_OK;
    segue_status st = prompt_tokenize(p->model, text, len, SEGUE_TEXT_NO_BOS, limit, &head, err);
    prompt_free(&head);
    return st;
}

/* Without a chat template the prompt is used unchanged. A template that cannot be parsed is ignored too, with a note. */
static void note_template(const struct placement *p)
{
    static const char request[] = "{\"messages\":[]}";
    char text[1];
    size_t len;
    segue_error why;
    if (segue_chat_format(p->model, request, sizeof request - 1, text, sizeof text, &len, &why) == SEGUE_EFORMAT)
        out_note("%s; the prompt is used without a template", why.text);
}

/* Remove the old one first, so that there is never a second one. */
void prompt_set_system(json_t *messages, const char *text)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    if (role && !strcmp(role, "system")) json_array_remove(messages, 0);
    if (text && *text) json_array_insert_new(messages, 0, prompt_message("system", text, strlen(text)));
}

/* The template does not change the list, which the request shares. */
segue_status prompt_conversation(const struct placement *p, const struct args *args, json_t *messages, bool raw, size_t limit,
                                 struct prompt *out, segue_error *err)
{
    if (p->info.has_template && !raw) {
        json_t *request = json_object();
        json_object_set(request, "messages", messages);
        prompt_set_thinking(request, args);
        segue_status st = prompt_chat(p->model, request, limit, out, err);
        json_decref(request);
        return st;
    }
    struct out_text text = {0};
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m) prompt_add_content(&text, m);
    segue_status st = prompt_tokenize(p->model, text.data ? text.data : "", text.len, 0, limit, out, err);
    free(text.data);
    return st;
}

/* Prompt from plain text: rendered as a user message, or tokenized as is with BOS if --raw is given or there is no
 * template. */
static segue_status read_text(struct prompt *out, const struct args *args, const struct placement *p, json_t *conversation,
                              const char *text, size_t len, size_t limit, segue_error *err)
{
    if (!p->info.has_tokenizer)
        return out_fail(err, SEGUE_EUNSUPPORTED, "prompt: %.200s: the model has no tokenizer; give --ids",
                        p->path);
    const char *system = args_text(args, "system");
    if (!args_has(args, "raw") && !p->info.has_template) note_template(p);
    bool raw = args_has(args, "raw") || !p->info.has_template;
    if (raw && system)
        return out_fail(err, SEGUE_EARG, "flag --system: requires a chat template; remove %s",
                        args_has(args, "raw") ? "--raw or --system" : "--system, this model has no template");
    if (raw && !conversation) return prompt_tokenize(p->model, text, len, 0, limit, out, err);
    segue_status st = check_length(p, text, len, limit, err);
    if (st) return st;
    json_t *messages = conversation ? json_incref(conversation) : json_array();
    if (system) prompt_set_system(messages, system);
    json_array_append_new(messages, prompt_message("user", text, len));
    st = prompt_conversation(p, args, messages, raw, limit, out, err);
    json_decref(messages);
    return st;
}

/* Prompt from --messages. The message of --system is inserted before those of the file. */
static segue_status read_messages(struct prompt *out, const struct args *args, const struct placement *p,
                                  json_t *conversation, size_t limit, segue_error *err)
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
    if (conversation) { /* the file replaces it */
        json_array_clear(conversation);
        json_array_extend(conversation, json_object_get(request, "messages"));
    }
    prompt_set_thinking(request, args);
    st = prompt_chat(p->model, request, limit, out, err);
    json_decref(request);
    return st;
}

/* Prompt from --file, with the text of --prompt after it. */
static segue_status read_file(struct prompt *out, const struct args *args, const struct placement *p, json_t *conversation,
                              size_t limit, segue_error *err)
{
    struct out_text text = {0};
    const char *more = args_text(args, "prompt");
    segue_status st = prompt_file(args_text(args, "file"), &text, err);
    bool ended = text.len && text.data[text.len - 1] == '\n';
    if (!st && more) out_addf(&text, "%s%s", ended ? "\n" : text.len ? "\n\n" : "", more);
    if (!st) st = read_text(out, args, p, conversation, text.data, text.len, limit, err);
    free(text.data);
    return st;
}

/* More than one prompt flag, except for a file with a text, is an error, because one of them would be ignored. */
segue_status prompt_read(struct prompt *out, const struct args *args, const struct placement *p, json_t *conversation,
                         size_t limit, segue_error *err)
{
    static const char *const kinds[] = {"prompt", "file", "ids", "messages"};
    const char *kind = NULL;
    *out = (struct prompt){0};
    for (size_t i = 0; i < 4; i++) {
        if (!args_has(args, kinds[i])) continue;
        if (kind && !(!strcmp(kind, "prompt") && !strcmp(kinds[i], "file")))
            return out_fail(err, SEGUE_EARG, "prompt: --%s and --%s: two prompts given; use one", kind, kinds[i]);
        kind = kinds[i];
    }
    if (!kind) return SEGUE_OK;
    const char *value = args_text(args, kind);
    if (!strcmp(kind, "ids")) return prompt_ids(value, p->info.vocab, out, err);
    if (!strcmp(kind, "messages")) return read_messages(out, args, p, conversation, limit, err);
    if (!strcmp(kind, "file")) return read_file(out, args, p, conversation, limit, err);
    return read_text(out, args, p, conversation, value, strlen(value), limit, err);
}

/* Also clears `given`. */
void prompt_free(struct prompt *prompt)
{
    free(prompt->ids);
    *prompt = (struct prompt){0};
}
