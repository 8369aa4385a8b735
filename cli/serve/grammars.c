/* grammars.c: see grammars.h. The one that was not taken for the longest time makes room. SPDX-License-Identifier: MIT */
#include "serve/grammars.h"

#include <stdlib.h>
#include <string.h>
#include "term/out.h"

void grammars_open(struct grammars *g)
{
    *g = (struct grammars){0};
    pthread_mutex_init(&g->lock, NULL);
}

static void forget(struct kept_grammar *k)
{
    segue_grammar_close(k->grammar);
    free(k->text);
    *k = (struct kept_grammar){0};
}

void grammars_empty(struct grammars *g)
{
    for (size_t i = 0; i < GRAMMARS_MAX; i++) forget(&g->kept[i]);
}

void grammars_close(struct grammars *g)
{
    grammars_empty(g);
    pthread_mutex_destroy(&g->lock);
}

/* With the lock. */
static struct kept_grammar *find(struct grammars *g, segue_grammar_kind kind, const char *text, size_t len)
{
    for (size_t i = 0; i < GRAMMARS_MAX; i++) {
        struct kept_grammar *k = &g->kept[i];
        if (k->grammar && k->kind == kind && k->len == len && !memcmp(k->text, text, len)) return k;
    }
    return NULL;
}

/* Called with the lock held: an entry that may be replaced; NULL: all are in use. */
static struct kept_grammar *free_entry(struct grammars *g)
{
    struct kept_grammar *oldest = NULL;
    for (size_t i = 0; i < GRAMMARS_MAX; i++) {
        struct kept_grammar *k = &g->kept[i];
        if (!k->grammar) return k;
        if (!k->users && (!oldest || k->last < oldest->last)) oldest = k;
    }
    if (oldest) forget(oldest);
    return oldest;
}

segue_status grammars_take(struct grammars *g, const segue_model *model, segue_grammar_kind kind, const char *text, size_t len,
                           segue_grammar **out, segue_error *err)
{
    segue_status st = SEGUE_OK;
    pthread_mutex_lock(&g->lock);
    struct kept_grammar *k = find(g, kind, text, len);
    if (!k) {
        /* Compiled without the lock: a large schema must not hold up other requests. */
        pthread_mutex_unlock(&g->lock);
        segue_grammar *made = NULL;
        st = segue_grammar_open(&made, model, kind, text, len, err);
        if (st) return st;
        pthread_mutex_lock(&g->lock);
        k = find(g, kind, text, len);
        struct kept_grammar *place = k ? NULL : free_entry(g);
        if (place) {
            *place = (struct kept_grammar){.grammar = made, .kind = kind, .text = out_alloc(len + 1), .len = len};
            memcpy(place->text, text, len);
            k = place;
        } else if (k)
            segue_grammar_close(made); /* another request was faster */
        else
            *out = made; /* not kept */
    }
    if (k) {
        k->users++;
        k->last = ++g->clock;
        *out = k->grammar;
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

void grammars_release(struct grammars *g, segue_grammar *grammar)
{
    struct kept_grammar *k = NULL;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < GRAMMARS_MAX && !k; i++)
        if (g->kept[i].grammar == grammar) k = &g->kept[i];
    if (k) k->users--;
    pthread_mutex_unlock(&g->lock);
    if (!k) segue_grammar_close(grammar);
}
