/* plain_tokens.c: tokens of ordinary characters, sorted by their number of characters. SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/grammar/parts.h"

uint32_t sg_plain_chars(const char *bytes, size_t len)
{
    uint32_t n = 0;
    for (size_t at = 0; at < len; n++) {
        uint32_t c = sg_utf8_next(bytes, len, &at);
        if (c == UINT32_MAX || c < 0x20 || c == '"' || c == '\\' || c == 0x7F) return 0;
    }
    return n <= SG_PLAIN_CHARS_MAX ? n : 0;
}

static void set_bits(uint32_t *mask, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) mask[(uint32_t)tokens[i] / 32] |= UINT32_C(1) << (uint32_t)tokens[i] % 32;
}

static void fill_maps(struct sg_plain_tokens *p, uint32_t n)
{
    for (uint32_t chars = 1; chars < SG_PLAIN_MAPS + 2; chars++) {
        uint32_t *map = p->maps + (size_t)chars * p->words, first = p->from[chars];
        memcpy(map, map - p->words, p->words * sizeof *map);
        set_bits(map, p->tokens + first, (chars <= SG_PLAIN_MAPS ? p->from[chars + 1] : n) - first);
    }
}

segue_status sg_plain_tokens_make(struct sg_plain_tokens *p, uint32_t vocab, segue_error *err)
{
    const struct sg_trie *t = &p->trie;
    uint32_t at[SG_PLAIN_CHARS_MAX + 2] = {0};
    p->words = (vocab + 31) / 32;
    p->maps = sg_alloc((SG_PLAIN_MAPS + 2) * (size_t)p->words * sizeof *p->maps);
    p->tokens = sg_alloc((t->tokens_n + (size_t)1) * sizeof *p->tokens);
    if (!p->maps || !p->tokens) return sg_no_memory("plain tokens", t->tokens_n * sizeof *p->tokens, err);
    for (uint32_t i = 0; i < t->tokens_n; i++) p->from[t->chars[i] + 1]++;
    for (uint32_t k = 1; k < SG_PLAIN_CHARS_MAX + 2; k++) {
        if (p->from[k]) p->longest = k - 1;
        p->from[k] += p->from[k - 1];
        at[k] = p->from[k];
    }
    for (uint32_t i = 0; i < t->tokens_n; i++) p->tokens[at[t->chars[i]]++] = t->tokens[i];
    fill_maps(p, t->tokens_n);
    return SEGUE_OK;
}

void sg_plain_tokens_free(struct sg_plain_tokens *p)
{
    sg_free(p->trie.nodes), sg_free(p->trie.tokens), sg_free(p->trie.chars);
    sg_free(p->maps);
    sg_free(p->tokens);
}

void sg_plain_tokens_add(const struct sg_plain_tokens *p, uint32_t limit, uint32_t *mask)
{
    uint32_t map = limit >= p->longest ? SG_PLAIN_MAPS + 1 : limit < SG_PLAIN_MAPS ? limit : SG_PLAIN_MAPS;
    const uint32_t *from = p->maps + (size_t)map * p->words;
    for (uint32_t i = 0; i < p->words; i++) mask[i] |= from[i];
    if (map != SG_PLAIN_MAPS) return;
    uint32_t first = p->from[SG_PLAIN_MAPS + 1];
    set_bits(mask, p->tokens + first, p->from[limit + 1] - first);
}

void sg_plain_node_add(const struct sg_trie *t, uint32_t node, uint32_t done, uint32_t limit, uint32_t *mask)
{
    uint32_t next = t->nodes[node].end, end = next < t->nodes_n ? t->nodes[next].first : t->tokens_n;
    for (uint32_t i = t->nodes[node].first; i < end; i++)
        if (t->chars[i] - done <= limit) mask[(uint32_t)t->tokens[i] / 32] |= UINT32_C(1) << (uint32_t)t->tokens[i] % 32;
}
