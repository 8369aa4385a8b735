/* slots.c: see slots.h. SPDX-License-Identifier: MIT */
#include "serve/slots.h"

#include <stdlib.h>
#include <string.h>

void slots_open(struct slots *s, size_t n)
{
    *s = (struct slots){.n = n, .list = out_alloc(n * sizeof *s->list)};
    pthread_mutex_init(&s->lock, NULL);
}

void slots_close(struct slots *s)
{
    if (!s->list) return;
    for (size_t i = 0; i < s->n; i++) free(s->list[i].tokens);
    free(s->list);
    pthread_mutex_destroy(&s->lock);
}

size_t slots_acquire(struct slots *s, size_t wanted, const char *realm, const int32_t *tokens, size_t n)
{
    size_t best = SIZE_MAX, similar = 0;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n; i++) {
        const struct slot *t = &s->list[i];
        size_t same = 0, max = t->tokens_n < n ? t->tokens_n : n;
        if (t->busy) continue;
        while (same < max && !strcmp(t->realm, realm) && t->tokens[same] == tokens[same]) same++;
        bool better = best == SIZE_MAX || same > similar || (same == similar && t->used_ns < s->list[best].used_ns);
        if (i == wanted) better = true;
        if (better) best = i, similar = same;
        if (i == wanted) break;
    }
    if (best != SIZE_MAX) {
        struct slot *t = &s->list[best];
        t->busy = true;
        snprintf(t->realm, sizeof t->realm, "%s", realm);
    }
    pthread_mutex_unlock(&s->lock);
    return best;
}

/* With the lock. */
static void remember(struct slot *t, const int32_t *tokens, size_t n)
{
    t->tokens = out_realloc(t->tokens, (n + 1) * sizeof *t->tokens);
    if (n) memcpy(t->tokens, tokens, n * sizeof *t->tokens);
    t->tokens_n = n;
    t->used_ns = out_now_ns();
}

void slots_release(struct slots *s, size_t i, const int32_t *tokens, size_t n)
{
    if (i >= s->n) return;
    pthread_mutex_lock(&s->lock);
    remember(&s->list[i], tokens, n);
    s->list[i].busy = false;
    pthread_mutex_unlock(&s->lock);
}

int32_t *slots_tokens(struct slots *s, size_t i, const char *realm, size_t *n)
{
    int32_t *copy = NULL;
    *n = 0;
    if (i >= s->n) return NULL;
    pthread_mutex_lock(&s->lock);
    const struct slot *t = &s->list[i];
    if (t->tokens_n && !strcmp(t->realm, realm)) {
        copy = out_alloc(t->tokens_n * sizeof *copy);
        memcpy(copy, t->tokens, (*n = t->tokens_n) * sizeof *copy);
    }
    pthread_mutex_unlock(&s->lock);
    return copy;
}

bool slots_set(struct slots *s, size_t i, const char *realm, const int32_t *tokens, size_t n)
{
    if (i >= s->n) return false;
    pthread_mutex_lock(&s->lock);
    bool free_one = !s->list[i].busy;
    if (free_one) {
        snprintf(s->list[i].realm, sizeof s->list[i].realm, "%s", realm);
        remember(&s->list[i], tokens, n);
    }
    pthread_mutex_unlock(&s->lock);
    return free_one;
}
