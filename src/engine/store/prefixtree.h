/* prefixtree.h: a radix tree over tokens: which texts begin alike, and what is kept at which of their tokens.
 * Pure memory, no units, no files. One thread at a time. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_PREFIXTREE_H
#define SG_ENGINE_PREFIXTREE_H

#include "base/err.h"

struct sg_entry; /* of the store */

struct sg_node {
    struct sg_node *parent, *child, *sibling;
    int32_t *tokens; /* [n] on the edge from the parent; the root has none */
    size_t n;
    size_t depth;           /* tokens from the root */
    struct sg_entry *entry; /* NULL: nothing is kept here */
    int ghost;              /* 1: something was, and was evicted */
};

/* The node of exactly these tokens, made when there is none. NULL: out of memory, and the tree is as it was.
 */
struct sg_node *sg_tree_add(struct sg_node *root, const int32_t *tokens, size_t n);
/* How far the tokens agree with the tree. *inside (may be NULL): the last node of whom all tokens agree;
 * *below: the node on whose edge the walk ended, or *inside when it ended there. */
size_t sg_tree_walk(struct sg_node *root, const int32_t *tokens, size_t n, struct sg_node **inside,
                    struct sg_node **below);
/* Any entry at a node or below it, the nearest first; NULL: none. */
struct sg_entry *sg_tree_any(const struct sg_node *node);
/* The nearest node above with an entry; NULL: none. */
struct sg_node *sg_tree_above(const struct sg_node *node);
/* The tokens from the root to a node, [depth]. */
void sg_tree_tokens(const struct sg_node *node, int32_t *out);
/* Remove the node and those above as far as they serve nothing; ghosts stay. */
void sg_tree_prune(struct sg_node *node);
/* Forget all ghosts. */
void sg_tree_exorcise(struct sg_node *root);
/* All nodes below; entries must be gone. */
void sg_tree_free(struct sg_node *root);

#endif
