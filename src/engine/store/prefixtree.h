/* prefixtree.h: a radix tree over tokens: which texts share a prefix, and which entry is stored at which token. Memory only:
 * no units, no files. One thread at a time. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_PREFIXTREE_H
#define SG_ENGINE_PREFIXTREE_H

#include "base/err.h"

struct sg_store_entry; /* of the store; the tree only keeps the pointer */

struct sg_prefix_node {
    struct sg_prefix_node *parent, *child, *sibling; /* child: the first; sibling: the next child of the parent */
    int32_t *tokens; /* [n] on the edge from the parent, owned; the root has none */
    size_t n;
    size_t depth;                 /* tokens from the root, inclusive */
    struct sg_store_entry *entry; /* NULL: nothing is stored here */
    int ghost;                    /* 1: an entry was evicted here */
};

/* The node of exactly these tokens, made if missing. NULL: out of memory, the tree is unchanged. */
struct sg_prefix_node *sg_tree_add(struct sg_prefix_node *root, const int32_t *tokens, size_t n);
/* Number of tokens that match the tree. *inside (may be NULL): the deepest node whose tokens all match; *below: the node on
 * whose edge the match ended, or *inside when it ended at a node. */
size_t sg_tree_walk(struct sg_prefix_node *root, const int32_t *tokens, size_t n, struct sg_prefix_node **inside,
                    struct sg_prefix_node **below);
/* The first entry in preorder at a node or below it; NULL: none. */
struct sg_store_entry *sg_tree_first_entry(const struct sg_prefix_node *node);
/* The nearest ancestor with an entry; NULL: none. */
struct sg_prefix_node *sg_tree_ancestor(const struct sg_prefix_node *node);
/* Writes the tokens from the root to a node, [depth]. */
void sg_tree_tokens(const struct sg_prefix_node *node, int32_t *out);
/* Removes the node and its ancestors as long as they have no child, no entry and no ghost mark. */
void sg_tree_remove_unused(struct sg_prefix_node *node);
/* Clears all ghost marks and removes the nodes that only carried them. */
void sg_tree_clear_ghosts(struct sg_prefix_node *root);
/* Frees all nodes below the root; there must be no entries. */
void sg_tree_free(struct sg_prefix_node *root);

#endif
