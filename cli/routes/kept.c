/* kept.c: see kept.h; and GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items.
 * SPDX-License-Identifier: MIT */
#include "routes/kept.h"
#include "serve/compact_text.h"

#include <stdlib.h>
#include <string.h>

/* Answers kept at once, and bytes of them and their conversations; the oldest go first. */
enum { KEPT_MAX = 1024 };
#define KEPT_BYTES ((size_t)64 << 20)

/* Items of one page of /input_items. */
enum { ITEMS_DEFAULT = 20, ITEMS_MAX = 100 };

/* One allocation of its size: there may be many, which stay long. */
struct kept {
    struct kept *next; /* the older one */
    size_t prompt_n;   /* of struct chat_before */
    unsigned char prompt_hash[CHAT_HASH_BYTES];
    uint32_t bytes, messages_n, response_n, answer_n, tokens_n;
    /* [bytes] id, realm and model, each with a NUL; tokens as numbers of 7 bits a byte; messages, response and answer, compact */
    char data[];
};

/* The parts of a kept answer. */
struct view {
    const char *id, *realm, *model, *tokens;
};

static struct view view_of(const struct kept *k)
{
    struct view v = {.id = k->data};
    v.realm = v.id + strlen(v.id) + 1;
    v.model = v.realm + strlen(v.realm) + 1;
    v.tokens = v.model + strlen(v.model) + 1;
    return v;
}

void kept_free_before(struct chat_before *b)
{
    free(b->answer.data);
    free(b->tokens);
    *b = (struct chat_before){0};
}

/* The lowest bits first; the highest bit of a byte says that more follow. */
static void add_number(struct out_text *t, uint32_t v)
{
    for (; v > 127; v >>= 7) out_add(t, (char[]){(char)(v | 128)}, 1);
    out_add(t, (char[]){(char)v}, 1);
}

static uint32_t read_number(const char **at)
{
    uint32_t v = 0, byte = 128;
    for (int shift = 0; byte & 128; shift += 7) {
        byte = (unsigned char)*(*at)++;
        v |= (byte & 127) << shift;
    }
    return v;
}

/* Messages, response and answer in one text; freed by the caller. */
static char *texts_of(const struct kept *k)
{
    struct view v = view_of(k);
    for (size_t i = 0; i < k->tokens_n; i++) read_number(&v.tokens);
    size_t compact_n = k->bytes - (size_t)(v.tokens - k->data);
    return expand_text(v.tokens, compact_n, k->messages_n + k->response_n + k->answer_n);
}

static void copy_before(struct chat_before *to, const struct kept *k, const char *texts)
{
    struct view v = view_of(k);
    to->prompt_n = k->prompt_n;
    memcpy(to->prompt_hash, k->prompt_hash, sizeof to->prompt_hash);
    out_add(&to->answer, texts + k->messages_n + k->response_n, k->answer_n);
    to->tokens = out_alloc((k->tokens_n + 1) * sizeof *to->tokens);
    to->tokens_n = k->tokens_n;
    for (size_t i = 0; i < to->tokens_n; i++) to->tokens[i] = (int32_t)read_number(&v.tokens);
    snprintf(to->model, sizeof to->model, "%s", v.model);
}

void responses_free(struct server *s)
{
    while (s->kept) {
        struct kept *k = s->kept;
        s->kept = k->next;
        free(k);
    }
}

/* With the lock: drop what exceeds the limits. */
static void drop_oldest(struct server *s)
{
    size_t n = 0, bytes = 0;
    for (struct kept **at = &s->kept; *at;) {
        bytes += sizeof **at + (*at)->bytes;
        if (++n <= KEPT_MAX && bytes <= KEPT_BYTES) {
            at = &(*at)->next;
            continue;
        }
        struct kept *old = *at;
        *at = old->next;
        free(old);
    }
}

static size_t add_json(struct out_text *t, const json_t *v)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(9));
    size_t n = text ? strlen(text) : 0;
    out_add(t, text, n);
    free(text);
    return n;
}

void kept_add(struct server *s, const struct exchange *x, const char *id, const json_t *messages, const json_t *response,
              const struct chat_before *before)
{
    const char *const names[] = {id, x->realm, before->model};
    struct kept head = {.prompt_n = before->prompt_n,
                        .tokens_n = (uint32_t)before->tokens_n,
                        .answer_n = (uint32_t)before->answer.len};
    struct out_text t = {0}, texts = {0};
    memcpy(head.prompt_hash, before->prompt_hash, sizeof head.prompt_hash);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) out_add(&t, names[i], strlen(names[i]) + 1);
    for (size_t i = 0; i < before->tokens_n; i++) add_number(&t, (uint32_t)before->tokens[i]);
    head.messages_n = (uint32_t)add_json(&texts, messages);
    head.response_n = (uint32_t)add_json(&texts, response);
    out_add(&texts, before->answer.data, before->answer.len);
    bool counted = texts.len <= UINT32_MAX; /* the type of the lengths above */
    if (counted) compact_text(&t, texts.data, (uint32_t)texts.len);
    free(texts.data);
    if (counted && t.len <= KEPT_BYTES) {
        struct kept *k = out_alloc(sizeof *k + t.len);
        head.bytes = (uint32_t)t.len;
        *k = head;
        memcpy(k->data, t.data, t.len);
        pthread_mutex_lock(&s->kept_lock);
        k->next = s->kept;
        s->kept = k;
        drop_oldest(s);
        pthread_mutex_unlock(&s->kept_lock);
    }
    free(t.data);
}

/* With the lock: the place of an answer of this key; NULL: none. id need not end at id_n. */
static struct kept **find(struct server *s, const struct exchange *x, const char *id, size_t id_n)
{
    for (struct kept **at = &s->kept; *at; at = &(*at)->next) {
        struct view v = {.id = (*at)->data};
        if (strlen(v.id) == id_n && !memcmp(v.id, id, id_n) && !strcmp(v.id + id_n + 1, x->realm)) return at;
    }
    return NULL;
}

/* A model may write NUL. */
json_t *kept_recall(struct server *s, const struct exchange *x, const char *id, struct chat_before *before)
{
    pthread_mutex_lock(&s->kept_lock);
    struct kept **k = find(s, x, id, strlen(id));
    char *texts = k ? texts_of(*k) : NULL;
    json_t *found = k ? json_loadb(texts, (*k)->messages_n, JSON_ALLOW_NUL, NULL) : NULL;
    if (found && before) copy_before(before, *k, texts);
    pthread_mutex_unlock(&s->kept_lock);
    free(texts);
    return found;
}

/* --- /v1/responses/{id} --- */

/* The id in the path of a request. */
static const char *path_id(const struct exchange *x, size_t *n)
{
    const char *id = x->path + strlen("/v1/responses/");
    *n = strcspn(id, "/");
    return id;
}

static void unknown(struct exchange *x)
{
    struct serve_error e = {0};
    size_t n;
    const char *id = path_id(x, &n);
    serve_fail(&e, 404, "response_id", "the response '%.*s' is not stored here", (int)(n < 60 ? n : 60), id);
    exchange_fail(x, &e);
}

void route_response(struct server *s, struct exchange *x)
{
    size_t n;
    const char *id = path_id(x, &n);
    pthread_mutex_lock(&s->kept_lock);
    struct kept **k = find(s, x, id, n);
    char *text = k ? texts_of(*k) : NULL;
    size_t at = k ? (*k)->messages_n : 0, length = k ? (*k)->response_n : 0;
    pthread_mutex_unlock(&s->kept_lock);
    if (text)
        exchange_text(x, 200, "application/json; charset=utf-8", text + at, length);
    else
        unknown(x);
    free(text);
}

void route_response_delete(struct server *s, struct exchange *x)
{
    size_t n;
    const char *id = path_id(x, &n);
    pthread_mutex_lock(&s->kept_lock);
    struct kept **at = find(s, x, id, n), *old = at ? *at : NULL;
    if (old) *at = old->next;
    pthread_mutex_unlock(&s->kept_lock);
    if (!old) {
        unknown(x);
        return;
    }
    exchange_json(x, 200, json_pack("{s:s, s:s, s:b}", "id", old->data, "object", "response", "deleted", 1));
    free(old);
}

/* --- /v1/responses/{id}/input_items --- */

/* Content of a message in the form of Responses: a list of parts. */
static json_t *content_parts(json_t *content, const char *type)
{
    json_t *list = json_array(), *part;
    size_t i;
    if (json_is_string(content)) json_array_append_new(list, json_pack("{s:s, s:O}", "type", type, "text", content));
    json_array_foreach(content, i, part)
    {
        json_t *copy = json_copy(part);
        if (json_object_get(copy, "text")) json_object_set_new(copy, "type", json_string(type));
        json_array_append_new(list, copy);
    }
    return list;
}

/* Append an item with an id made of its kind, the answer's name and its place, so that it is the same in each request. */
static void add_item(json_t *list, const char *name, size_t name_n, json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *prefix = !strcmp(type, "message") ? "msg" : !strcmp(type, "function_call") ? "fc" : "fco";
    char *id = out_printf("%s_%.*s_%zu", prefix, (int)name_n, name, json_array_size(list));
    json_object_set_new(item, "id", json_string(id));
    json_object_set_new(item, "status", json_string("completed"));
    json_array_append_new(list, item);
    free(id);
}

/* The items of one message, which may have calls. */
static void add_items(json_t *list, const char *name, size_t name_n, json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *content = json_object_get(message, "content"), *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (role && !strcmp(role, "tool")) {
        add_item(list, name, name_n,
                 json_pack("{s:s, s:O?, s:O?}", "type", "function_call_output", "call_id",
                           json_object_get(message, "tool_call_id"), "output", content));
        return;
    }
    bool assistant = role && !strcmp(role, "assistant"),
         empty = !content || json_is_null(content) || !json_string_length(content);
    if (!calls || json_is_array(content) || !empty)
        add_item(list, name, name_n,
                 json_pack("{s:s, s:s, s:o}", "type", "message", "role", role ? role : "user", "content",
                           content_parts(content, assistant ? "output_text" : "input_text")));
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        add_item(list, name, name_n,
                 json_pack("{s:s, s:O?, s:O?, s:O?}", "type", "function_call", "call_id", json_object_get(call, "id"), "name",
                           json_object_get(function, "name"), "arguments", json_object_get(function, "arguments")));
    }
}

/* What a client asked for of a list; false: e says what is wrong. */
struct page {
    size_t limit;
    bool up;           /* oldest first */
    const char *after; /* id, or NULL */
};

static bool read_page(const struct exchange *x, struct page *p, struct serve_error *e)
{
    const char *limit = json_string_value(json_object_get(x->arguments, "limit"));
    const char *order = json_string_value(json_object_get(x->arguments, "order"));
    *p = (struct page){ITEMS_DEFAULT, false, json_string_value(json_object_get(x->arguments, "after"))};
    if (limit) {
        size_t digits = strspn(limit, "0123456789");
        p->limit = digits && digits < 4 && !limit[digits] ? strtoul(limit, NULL, 10) : 0;
        if (!p->limit || p->limit > ITEMS_MAX)
            return serve_fail(e, 400, "limit", "limit: expected a number from 1 to %d", ITEMS_MAX);
    }
    p->up = order && !strcmp(order, "asc");
    if (order && !p->up && strcmp(order, "desc") != 0) return serve_fail(e, 400, "order", "order: expected asc or desc");
    return true;
}

/* The part of all[] that a page shows. False: e says what is wrong. */
static bool cut_page(const json_t *all, const struct page *p, json_t *shown, bool *more, struct serve_error *e)
{
    size_t n = json_array_size(all), i = 0;
    if (p->after) {
        for (; i < n; i++)
            if (!strcmp(p->after, json_string_value(json_object_get(json_array_get(all, p->up ? i : n - 1 - i), "id")))) break;
        if (i++ == n) return serve_fail(e, 400, "after", "after: '%.80s' is no item of this list", p->after);
    }
    for (; i < n && json_array_size(shown) < p->limit; i++) json_array_append(shown, json_array_get(all, p->up ? i : n - 1 - i));
    *more = i < n;
    return true;
}

void route_response_items(struct server *s, struct exchange *x)
{
    struct serve_error e = {0};
    struct page page;
    bool more = false;
    size_t i, n;
    const char *id = path_id(x, &n);
    char *name = out_printf("%.*s", (int)n, id);
    json_t *messages = kept_recall(s, x, name, NULL), *message, *all = json_array(), *shown = json_array();
    size_t prefix = !strncmp(name, "resp_", 5) ? 5 : 0;
    json_array_foreach(messages, i, message) if (i + 1 < json_array_size(messages)) /* the last one is the answer */
        add_items(all, name + prefix, n - prefix, message);
    if (!messages)
        unknown(x);
    else if (!read_page(x, &page, &e) || !cut_page(all, &page, shown, &more, &e))
        exchange_fail(x, &e);
    else
        exchange_json(x, 200,
                      json_pack("{s:s, s:O, s:O?, s:O?, s:b}", "object", "list", "data", shown, "first_id",
                                json_object_get(json_array_get(shown, 0), "id"), "last_id",
                                json_object_get(json_array_get(shown, json_array_size(shown) - 1), "id"), "has_more", more));
    json_decref(messages), json_decref(all), json_decref(shown);
    free(name);
}
