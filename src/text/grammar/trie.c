/* trie.c: the tokens of a vocabulary as a trie of their bytes, in preorder, so that a walk is a loop over an array.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/parts.h"
#include "text/tokenizer/tokparts.h"

enum { TOKEN_BYTES_MAX = 254 };

/* A token and its bytes; control tokens get 0xFF in front. */
struct entry {
    const char *bytes;
    int32_t token;
    uint16_t len, control;
};

static size_t entry_len(const struct entry *e) { return (size_t)e->len + e->control; }
static uint8_t entry_byte(const struct entry *e, size_t i)
{
    if (e->control) return i ? (uint8_t)e->bytes[i - 1] : 0xFF;
    return (uint8_t)e->bytes[i];
}

static int compare(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;
    if (a->control != b->control) return a->control ? 1 : -1;
    size_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->bytes, b->bytes, n);
    if (c) return c;
    if (a->len != b->len) return a->len < b->len ? -1 : 1;
    return a->token < b->token ? -1 : 1;
}

/* Collect the tokens that can be chosen. Returns their number. */
static uint32_t collect(const struct sg_tokenizer *t, uint32_t vocab, struct entry *list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < vocab && i < t->tokens_n; i++) {
        const struct sg_vocab_token *v = &t->tokens[i];
        int control = v->kind == SG_TOKEN_CONTROL;
        const char *bytes = control ? v->text : v->bytes;
        uint32_t len = control ? v->text_len : v->bytes_len;
        if (v->kind == SG_TOKEN_NONE || v->kind == SG_TOKEN_UNUSED || v->kind == SG_TOKEN_UNKNOWN) continue;
        if (!bytes || !len || len > TOKEN_BYTES_MAX) continue;
        if (!control && memchr(bytes, 0xFF, len)) continue; /* of no text, and the mark of control tokens */
        list[n++] = (struct entry){bytes, (int32_t)i, (uint16_t)len, (uint16_t)control};
    }
    return n;
}

/* Add the nodes of one token, of which the first `common` bytes are there already; path[d]: node at depth d. */
static void add(struct sg_trie *trie, const struct entry *e, size_t common, uint32_t path[256], uint32_t index)
{
    size_t len = entry_len(e);
    for (size_t d = common + 1; d <= len; d++) {
        path[d] = trie->nodes_n;
        trie->nodes[trie->nodes_n++] = (struct sg_trie_node){.byte = entry_byte(e, d - 1),
                                                             .depth = (uint8_t)d,
                                                             .first = index,
                                                             .last = index};
    }
    trie->nodes[path[len]].last = index + 1;
}

static void fill(struct sg_trie *trie, const struct entry *list, uint32_t n)
{
    uint32_t path[257] = {0};
    size_t depth = 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t common = 0, len = entry_len(&list[i]);
        while (i && common < depth && common < len && entry_byte(&list[i], common) == entry_byte(&list[i - 1], common)) common++;
        for (size_t d = common + 1; d <= depth; d++) trie->nodes[path[d]].end = trie->nodes_n;
        add(trie, &list[i], common, path, i);
        trie->tokens[i] = list[i].token;
        depth = len;
    }
    for (size_t d = 1; d <= depth; d++) trie->nodes[path[d]].end = trie->nodes_n;
}

/* The trie of sorted entries. */
static segue_status make(struct sg_trie *trie, const struct entry *list, uint32_t n, segue_error *err)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) bytes += entry_len(&list[i]);
    trie->nodes = sg_alloc((bytes + 1) * sizeof *trie->nodes);
    trie->tokens = sg_alloc((n + (size_t)1) * sizeof *trie->tokens);
    if (!trie->nodes || !trie->tokens) return sg_no_memory("token trie", bytes * sizeof *trie->nodes, err);
    trie->tokens_n = n;
    fill(trie, list, n);
    struct sg_trie_node *less = sg_realloc(trie->nodes, (trie->nodes_n + (size_t)1) * sizeof *less);
    if (less) trie->nodes = less;
    return SEGUE_OK;
}

/* The tries of the plain tokens and of the others of sorted entries. list has space for 2 n. */
static segue_status divide(struct sg_token_trie *trie, struct entry *list, uint32_t n, segue_error *err)
{
    struct entry *others = list + n;
    uint32_t plain_n = 0, others_n = 0;
    uint8_t *chars = trie->plain.trie.chars = sg_alloc((n + (size_t)1) * sizeof *chars);
    if (!chars) return sg_no_memory("token trie", n * sizeof *chars, err);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t here = list[i].control ? 0 : sg_plain_chars(list[i].bytes, list[i].len);
        if (here) chars[plain_n] = (uint8_t)here, list[plain_n++] = list[i];
        else others[others_n++] = list[i];
    }
    SG_TRY(make(&trie->plain.trie, list, plain_n, err));
    SG_TRY(sg_plain_tokens_make(&trie->plain, trie->vocab, err));
    return make(&trie->other, others, others_n, err);
}

segue_status sg_token_trie_new(struct sg_token_trie **out, const struct sg_tokenizer *t, uint32_t vocab, segue_error *err)
{
    struct sg_token_trie *trie = sg_alloc(sizeof *trie);
    struct entry *list = sg_alloc((vocab + (size_t)1) * 2 * sizeof *list);
    if (!trie || !list) {
        sg_free(trie);
        sg_free(list);
        return sg_no_memory("token trie", vocab * sizeof *list, err);
    }
    uint32_t n = collect(t, vocab, list);
    qsort(list, n, sizeof *list, compare);
    trie->tokenizer = t;
    trie->vocab = vocab;
    for (uint32_t i = 0; i < n; i++)
        if (entry_len(&list[i]) > trie->longest) trie->longest = (uint32_t)entry_len(&list[i]);
    segue_status status = divide(trie, list, n, err);
    sg_free(list);
    if (status == SEGUE_OK) *out = trie;
    else sg_token_trie_free(trie);
    return status;
}

void sg_token_trie_free(struct sg_token_trie *trie)
{
    if (!trie) return;
    sg_free(trie->other.nodes), sg_free(trie->other.tokens);
    sg_plain_tokens_free(&trie->plain);
    sg_free(trie);
}
