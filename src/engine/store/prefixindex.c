/* prefixindex.c: the classes of compatible states, their token trees and the entries in them. Every function needs the
 * store's lock. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/mem.h"
#include "engine/store/prefixstore.h"

/* 1: states of both origins can replace each other: same unit, same kernels, same adapters. */
static int same_origin(const struct sg_state_origin *a, const struct sg_state_origin *b)
{
    return a->adapters.lo == b->adapters.lo && a->adapters.hi == b->adapters.hi && !strcmp(a->unit, b->unit) &&
           !strcmp(a->kernels, b->kernels);
}

struct sg_store_class *sg_store_get_class(struct sg_store *s, const struct sg_state_origin *origin)
{
    struct sg_store_class *c = s->classes;
    while (c && !same_origin(&c->origin, origin)) c = c->next;
    if (c || !(c = sg_alloc(sizeof *c))) return c;
    /* Only the text, not the bytes after it: the texts are hashed whole for file names, so the rest must be zero. */
    c->origin.adapters = origin->adapters;
    memcpy(c->origin.unit, origin->unit, strlen(origin->unit));
    memcpy(c->origin.kernels, origin->kernels, strlen(origin->kernels));
    c->next = s->classes;
    s->classes = c;
    return c;
}

struct sg_store_entry *sg_store_get_entry(struct sg_store *s, struct sg_store_class *c, const int32_t *tokens, size_t n)
{
    struct sg_prefix_node *node = sg_tree_add(&c->root, tokens, n);
    if (!node) return NULL;
    if (node->entry) return node->entry;
    struct sg_store_entry *e = sg_alloc(sizeof *e);
    if (!e) {
        sg_tree_remove_unused(node);
        return NULL;
    }
    /* A new entry replaces the mark of one that was evicted here. */
    c->ghosts -= node->ghost != 0;
    node->ghost = 0;
    node->entry = e;
    e->node = node;
    e->class = c;
    e->clock = s->clock;
    e->next = s->entries;
    s->entries = e;
    return e;
}

void sg_store_remove_entry(struct sg_store *s, struct sg_store_entry *e)
{
    struct sg_store_entry **at = &s->entries;
    if (e->pins) return;
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    e->node->entry = NULL;
    sg_tree_remove_unused(e->node);
    sg_free(e);
}

void sg_store_unpin(struct sg_store *s, struct sg_store_entry *e)
{
    if (--e->pins) return;
    if (!e->checkpoint && !e->file) sg_store_remove_entry(s, e);
    pthread_cond_broadcast(&s->changed);
}
