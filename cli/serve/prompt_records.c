/* prompt_records.c: see prompt_records.h. SPDX-License-Identifier: MIT */
#include "serve/prompt_records.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* Records kept at once; the oldest go first. */
enum { RECORDS_MAX = 512 };

struct prompt_record {
    struct prompt_record *next; /* the older one */
    char id[48], realm[24];
    size_t tokens;
    struct prompt_parts parts; /* allocated with parts_n entries */
};

void prompt_records_open(struct prompt_records *r)
{
    *r = (struct prompt_records){0};
    pthread_mutex_init(&r->lock, NULL);
}

void prompt_records_close(struct prompt_records *r)
{
    while (r->first) {
        struct prompt_record *old = r->first;
        r->first = old->next;
        free(old);
    }
    pthread_mutex_destroy(&r->lock);
}

/* Marks of a cache do not change a prompt. */
static json_t *without_marks(const json_t *v)
{
    json_t *copy = json_deep_copy(v), *block;
    size_t i;
    json_object_del(copy, "cache_control");
    json_array_foreach(copy, i, block) json_object_del(block, "cache_control");
    json_t *content = json_object_get(copy, "content");
    json_array_foreach(content, i, block) json_object_del(block, "cache_control");
    return copy;
}

static uint64_t hash_of(const json_t *v)
{
    static const unsigned char key[crypto_shorthash_KEYBYTES] = {1};
    unsigned char out[crypto_shorthash_BYTES];
    uint64_t hash;
    json_t *copy = v ? without_marks(v) : json_null();
    char *text = json_dumps(copy, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
    crypto_shorthash(out, (const unsigned char *)(text ? text : ""), text ? strlen(text) : 0, key);
    memcpy(&hash, out, sizeof hash);
    json_decref(copy);
    free(text);
    return hash;
}

/* Each entry of a list, or the value itself. */
static void add_parts(struct prompt_parts *p, const json_t *v, size_t max)
{
    size_t n = json_is_array(v) ? json_array_size(v) : v && !json_is_null(v);
    for (size_t i = 0; i < n && p->parts_n < max; i++)
        p->parts[p->parts_n++] = hash_of(json_is_array(v) ? json_array_get(v, i) : v);
}

void prompt_parts_of(struct prompt_parts *p, const json_t *body, const char *model)
{
    static const char *const rest[] = {"tool_choice", "thinking",        "reasoning_effort",
                                       "reasoning",   "enable_thinking", "chat_template_kwargs"};
    const json_t *messages = json_object_get(body, "messages"), *system = json_object_get(body, "system");
    json_t *name = json_string(model), *others = json_object();
    p->system_n = p->parts_n = 0;
    p->model = hash_of(name);
    p->tools = hash_of(json_object_get(body, "tools"));
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) json_object_set(others, rest[i], json_object_get(body, rest[i]));
    p->rest = hash_of(others);
    add_parts(p, system ? system : json_object_get(body, "instructions"), PROMPT_SYSTEM_MAX);
    p->system_n = p->parts_n;
    add_parts(p, messages ? messages : json_object_get(body, "input"), PROMPT_PARTS_MAX);
    json_decref(name), json_decref(others);
}

/* The number of equal parts at equal places, also after the first difference. */
static size_t common(const struct prompt_parts *a, const struct prompt_parts *b)
{
    size_t n = 0, max = a->parts_n < b->parts_n ? a->parts_n : b->parts_n;
    for (size_t i = 0; i < max && a->system_n == b->system_n; i++) n += a->parts[i] == b->parts[i];
    return n + (n && a->tools == b->tools);
}

static void set(struct prompt_change *c, const char *type, const char *what, size_t index)
{
    c->type = type;
    if (index == SIZE_MAX)
        snprintf(c->what, sizeof c->what, "%s", what);
    else
        snprintf(c->what, sizeof c->what, "%s[%zu]", what, index);
}

static void compare(struct prompt_change *c, const struct prompt_parts *old, const struct prompt_parts *p)
{
    size_t i = 0, n = old->parts_n < p->parts_n ? old->parts_n : p->parts_n;
    if (old->model != p->model) set(c, "model_changed", "model", SIZE_MAX);
    while (i < n && old->parts[i] == p->parts[i]) i++;
    if (!c->type && (old->system_n != p->system_n || i < p->system_n))
        set(c, "system_changed", "system", old->system_n != p->system_n && i == n ? SIZE_MAX : i);
    if (!c->type && old->tools != p->tools) set(c, "tools_changed", "tools", SIZE_MAX);
    if (!c->type && i < old->parts_n) set(c, "messages_changed", "messages", i - p->system_n);
    if (!c->type && old->rest != p->rest) set(c, "unavailable", "parameters", SIZE_MAX);
}

struct prompt_change prompt_records_compare(struct prompt_records *r, const struct prompt_parts *p, const char *realm,
                                            const char *id)
{
    struct prompt_change c = {.type = id ? "previous_message_not_found" : NULL};
    const struct prompt_record *best = NULL;
    size_t best_n = 0;
    pthread_mutex_lock(&r->lock);
    for (const struct prompt_record *k = r->first; k; k = k->next) {
        if (strcmp(k->realm, realm) != 0 || (id && strcmp(k->id, id) != 0)) continue;
        size_t n = id ? 1 : common(&k->parts, p);
        if (n > best_n) best = k, best_n = n;
        if (id) break;
    }
    if (best) {
        c.type = NULL;
        c.tokens = best->tokens;
        compare(&c, &best->parts, p);
    }
    pthread_mutex_unlock(&r->lock);
    return c;
}

void prompt_records_add(struct prompt_records *r, const struct prompt_parts *p, const char *realm, const char *id, size_t tokens)
{
    size_t bytes = offsetof(struct prompt_record, parts) + offsetof(struct prompt_parts, parts) + p->parts_n * sizeof p->parts[0],
           n = 0;
    struct prompt_record *k = out_alloc(bytes);
    snprintf(k->id, sizeof k->id, "%s", id);
    snprintf(k->realm, sizeof k->realm, "%s", realm);
    k->tokens = tokens;
    memcpy(&k->parts, p, offsetof(struct prompt_parts, parts) + p->parts_n * sizeof p->parts[0]);
    pthread_mutex_lock(&r->lock);
    k->next = r->first;
    r->first = k;
    for (struct prompt_record **at = &r->first; *at;) {
        struct prompt_record *old = *at;
        if (++n <= RECORDS_MAX) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        free(old);
    }
    pthread_mutex_unlock(&r->lock);
}
