/* prefixtree.c: see prefixtree.h. No function is recursive, because hostile prompts can make the tree as deep as it has nodes.
 * SPDX-License-Identifier: MIT */
#include "engine/store/prefixtree.h"

#include <string.h>

#include "base/mem.h"

/* Length of the common prefix. */
static size_t common_prefix(const int32_t *a, size_t n, const int32_t *b, size_t m)
{
    size_t same = 0;
    while (same < n && same < m && a[same] == b[same]) same++;
    return same;
}

/* The child whose edge begins with token `first`; edges of siblings begin with different tokens. */
static struct sg_prefix_node *child_of(const struct sg_prefix_node *node, int32_t first)
{
    struct sg_prefix_node *c = node->child;
    while (c && c->tokens[0] != first) c = c->sibling;
    return c;
}

static void node_free(struct sg_prefix_node *node)
{
    sg_free(node->tokens);
    sg_free(node);
}

static struct sg_prefix_node *node_new(const int32_t *tokens, size_t n)
{
    struct sg_prefix_node *node = sg_alloc(sizeof *node);
    if (!node || !(node->tokens = sg_alloc(n * sizeof *tokens))) {
        sg_free(node);
        return NULL;
    }
    memcpy(node->tokens, tokens, n * sizeof *tokens);
    node->n = n;
    return node;
}

/* Makes `child` the first child of `parent`. */
static void attach(struct sg_prefix_node *parent, struct sg_prefix_node *child)
{
    child->parent = parent;
    child->depth = parent->depth + child->n;
    child->sibling = parent->child;
    parent->child = child;
}

static void detach(struct sg_prefix_node *node)
{
    struct sg_prefix_node **at = &node->parent->child;
    while (*at != node) at = &(*at)->sibling;
    *at = node->sibling;
}

/* Splits the edge of a node after its first n tokens and returns the new upper node. NULL: out of memory, nothing changed. */
static struct sg_prefix_node *split(struct sg_prefix_node *node, size_t n)
{
    struct sg_prefix_node *upper = node_new(node->tokens, n), *parent = node->parent;
    if (!upper) return NULL;
    detach(node);
    attach(parent, upper);
    node->n -= n;
    memmove(node->tokens, node->tokens + n, node->n * sizeof *node->tokens);
    attach(upper, node);
    return upper;
}

struct sg_prefix_node *sg_tree_add(struct sg_prefix_node *root, const int32_t *tokens, size_t n)
{
    struct sg_prefix_node *node = root;
    for (size_t at = 0; at < n;) {
        struct sg_prefix_node *next = child_of(node, tokens[at]);
        if (!next) {
            next = node_new(tokens + at, n - at);
            if (next) attach(node, next);
            if (!next && node != root) sg_tree_remove_unused(node);
            return next;
        }
        size_t same = common_prefix(next->tokens, next->n, tokens + at, n - at);
        node = same < next->n ? split(next, same) : next;
        if (!node) return NULL;
        at += same;
    }
    return node;
}

size_t sg_tree_walk(struct sg_prefix_node *root, const int32_t *tokens, size_t n, struct sg_prefix_node **inside,
                    struct sg_prefix_node **below)
{
    struct sg_prefix_node *node = root, *next;
    size_t at = 0, same = 0;
    while (at < n && (next = child_of(node, tokens[at]))) {
        same = common_prefix(next->tokens, next->n, tokens + at, n - at);
        at += same;
        if (same < next->n) {
            if (inside) *inside = node;
            *below = next;
            return at;
        }
        node = next;
    }
    if (inside) *inside = node;
    *below = node;
    return at;
}

/* The next node in preorder of the subtree of `top`; NULL: it was the last one. */
static struct sg_prefix_node *next_node(const struct sg_prefix_node *node, const struct sg_prefix_node *top)
{
    if (node->child) return node->child;
    while (node != top && !node->sibling) node = node->parent;
    return node == top ? NULL : node->sibling;
}

struct sg_store_entry *sg_tree_first_entry(const struct sg_prefix_node *top)
{
    for (const struct sg_prefix_node *node = top; node; node = next_node(node, top))
        if (node->entry) return node->entry;
    return NULL;
}

struct sg_prefix_node *sg_tree_ancestor(const struct sg_prefix_node *node)
{
    struct sg_prefix_node *up = node->parent;
    while (up && !up->entry) up = up->parent;
    return up;
}

void sg_tree_tokens(const struct sg_prefix_node *node, int32_t *out)
{
    for (; node->parent; node = node->parent)
        memcpy(out + node->depth - node->n, node->tokens, node->n * sizeof *out);
}

void sg_tree_remove_unused(struct sg_prefix_node *node)
{
    while (node->parent && !node->child && !node->entry && !node->ghost) {
        struct sg_prefix_node *parent = node->parent;
        detach(node);
        node_free(node);
        node = parent;
    }
}

void sg_tree_clear_ghosts(struct sg_prefix_node *root)
{
    for (struct sg_prefix_node *node = root; node; node = next_node(node, root)) node->ghost = 0;
    for (struct sg_prefix_node *node = root, *next; node; node = next) {
        /* Behind a leaf comes a sibling of the leaf or of an ancestor, which its removal does not reach. */
        next = next_node(node, root);
        if (!node->child) sg_tree_remove_unused(node);
    }
}

/* Removes leaf after leaf. */
void sg_tree_free(struct sg_prefix_node *root)
{
    struct sg_prefix_node *node = root;
    while (root->child) {
        while (node->child) node = node->child;
        struct sg_prefix_node *parent = node->parent;
        detach(node);
        node_free(node);
        node = parent;
    }
}
