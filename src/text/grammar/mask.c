/* mask.c: a grammar as tokens see it: which tokens may follow, and where a token leads. A mask is made once for each state, by
 * walking a token trie with the automaton, and kept. Where a state treats plain characters alike, the tokens of such characters,
 * nine in ten, are taken without a walk.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/grammar/parts.h"

static segue_status read_source(struct sg_grammar_builder *b, int kind, const char *text, size_t len, uint32_t *root)
{
    if (len > SG_GRAMMAR_TEXT_MAX)
        return sg_build_fail(b, SEGUE_ELIMIT, "grammar: too large: %zu bytes, at most %d; shorten it", len, SG_GRAMMAR_TEXT_MAX);
    if (memchr(text, 0, len)) return sg_build_fail(b, SEGUE_EFORMAT, "grammar: it contains a NUL byte; remove it");
    if (kind == SEGUE_GRAMMAR_GBNF)
        *root = sg_gbnf_read(b, text, len);
    else if (kind == SEGUE_GRAMMAR_JSON_SCHEMA)
        *root = sg_schema_read(b, text, len);
    else
        *root = sg_pattern_read(b, text, len, 1);
    return b->status;
}

/* 1: some repetition has a bound that many states differ by. */
static uint32_t has_counts(const struct sg_program_text *p)
{
    for (uint32_t i = 0; i < p->elements_n; i++) {
        const struct sg_element *e = &p->elements[i];
        if (e->op == SG_ELEMENT_REPEAT && (e->min > 1 || (e->max != SG_REPEAT_MAX && e->max > 1))) return 1;
    }
    return 0;
}

segue_status sg_grammar_new(struct sg_grammar **out, int kind, const char *text, size_t len, const struct sg_token_trie *trie,
                            const int32_t *stops, size_t stops_n, segue_error *err)
{
    struct sg_grammar_builder *b = sg_alloc(sizeof *b);
    struct sg_grammar *g = sg_alloc(sizeof *g);
    uint32_t root = 0;
    if (!b || !g) {
        sg_free(b);
        sg_free(g);
        return sg_no_memory("grammar", sizeof *b, err);
    }
    b->err = err;
    segue_status status = read_source(b, kind, text, len, &root);
    if (status == SEGUE_OK) status = sg_build_program(b, root, &g->program);
    sg_builder_free(b);
    sg_free(b);
    if (status == SEGUE_OK) {
        g->stops = sg_alloc((stops_n + 1) * sizeof *g->stops);
        if (!g->stops) status = sg_no_memory("grammar", stops_n * sizeof *g->stops, err);
    }
    if (status != SEGUE_OK) {
        sg_program_text_free(&g->program);
        sg_free(g);
        return status;
    }
    if (stops_n) memcpy(g->stops, stops, stops_n * sizeof *stops);
    g->stops_n = stops_n;
    g->trie = trie;
    g->root = root;
    g->counts = has_counts(&g->program);
    sg_automaton_classes(g);
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return SEGUE_OK;
}

void sg_grammar_free(struct sg_grammar *g)
{
    if (!g) return;
    sg_automaton_free(g);
    sg_program_text_free(&g->program);
    pthread_mutex_destroy(&g->lock);
    sg_free(g->stops);
    sg_free(g);
}

size_t sg_grammar_mask_words(const struct sg_grammar *g) { return g->trie ? ((size_t)g->trie->vocab + 31) / 32 : 0; }

static int is_stop(const struct sg_grammar *g, int32_t token)
{
    for (size_t i = 0; i < g->stops_n; i++)
        if (g->stops[i] == token) return 1;
    return 0;
}

/* With the lock: the state after one token. */
static segue_status step_token(struct sg_grammar *g, uint32_t *state, int32_t token, segue_error *err)
{
    size_t len = 0;
    int special = 0;
    if (is_stop(g, token)) {
        *state = g->states[*state].accepts ? SG_STATE_ENDED : SG_STATE_DEAD;
        return SEGUE_OK;
    }
    const char *bytes = sg_token_bytes(g->trie->tokenizer, token, &len, &special);
    if (special) SG_TRY(sg_automaton_step(g, *state, 0xFF, state, err));
    if (!len) *state = SG_STATE_DEAD;
    for (size_t i = 0; i < len && *state != SG_STATE_DEAD; i++)
        SG_TRY(sg_automaton_step(g, *state, (uint8_t)bytes[i], state, err));
    return SEGUE_OK;
}

/* With the lock, at the end of a call: a cache beyond its bound, which a call may exceed, is not kept. */
static void limit_cache(struct sg_grammar *g)
{
    if (g->cache_bytes >= SG_GRAMMAR_CACHE_MAX) sg_automaton_free(g);
}

/* With the lock: *pos after tokens [from, n), or after all of them where the cache was emptied since. */
static segue_status advance(struct sg_grammar *g, struct sg_grammar_pos *pos, const int32_t *tokens, size_t n, size_t from,
                            segue_error *err)
{
    SG_TRY(sg_automaton_begin(g, err));
    if (pos->generation != g->generation) {
        *pos = (struct sg_grammar_pos){SG_STATE_BEGIN, g->generation};
        from = 0;
    }
    uint32_t state = pos->state;
    for (size_t i = from; i < n && state != SG_STATE_DEAD; i++) {
        SG_TRY(step_token(g, &state, tokens[i], err));
        if (state == SG_STATE_DEAD)
            return sg_fail(err, SEGUE_EFORMAT, "grammar: token %d is not allowed at position %zu of the text; cut the text there",
                           tokens[i], i);
        pos->state = state;
    }
    return SEGUE_OK;
}

static segue_status step(struct sg_grammar *g, uint32_t state, uint8_t byte, uint32_t *to, segue_error *err)
{
    uint32_t known = sg_automaton_known(g, state, byte);
    *to = known - 1;
    return known ? SEGUE_OK : sg_automaton_step(g, state, byte, to, err);
}

static void add_tokens(const struct sg_trie *trie, const struct sg_trie_node *node, uint32_t *mask)
{
    for (uint32_t k = node->first; k < node->last; k++) {
        uint32_t token = (uint32_t)trie->tokens[k];
        mask[token / 32] |= UINT32_C(1) << token % 32;
    }
}

/* With the lock: adds the tokens of a trie that may follow a state: path[d] is the state after d bytes. */
static segue_status walk(struct sg_grammar *g, const struct sg_trie *trie, uint32_t state, uint32_t *mask, segue_error *err)
{
    uint32_t path[257];
    path[0] = state;
    for (uint32_t i = 0; i < trie->nodes_n;) {
        const struct sg_trie_node *node = &trie->nodes[i];
        SG_TRY(step(g, path[node->depth - 1], node->byte, &path[node->depth], err));
        if (path[node->depth] == SG_STATE_DEAD) {
            i = node->end;
            continue;
        }
        add_tokens(trie, node, mask);
        i++;
    }
    return SEGUE_OK;
}

/* Bytes that follow this one in its character, where `left` were to follow the byte before. */
static uint8_t bytes_left(uint8_t byte, uint8_t left)
{
    return byte < 0x80 ? 0 : byte < 0xC0 ? (uint8_t)(left - 1) : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
}

/* The same for the plain tokens: below a node whose state treats plain characters alike, no walk is needed. */
static segue_status walk_plain(struct sg_grammar *g, uint32_t state, uint32_t *mask, segue_error *err)
{
    const struct sg_trie *trie = &g->trie->plain.trie;
    uint32_t path[257], done[257];
    uint8_t left[257];
    path[0] = state, done[0] = left[0] = 0;
    for (uint32_t i = 0; i < trie->nodes_n;) {
        const struct sg_trie_node *node = &trie->nodes[i];
        uint32_t d = node->depth, limit = SG_PLAIN_SEVERAL;
        SG_TRY(step(g, path[d - 1], node->byte, &path[d], err));
        left[d] = bytes_left(node->byte, left[d - 1]);
        done[d] = done[d - 1] + !left[d];
        if (path[d] != SG_STATE_DEAD && !left[d] && node->end > i + 1) SG_TRY(sg_plain_limit(g, path[d], &limit, err));
        if (limit != SG_PLAIN_SEVERAL) sg_plain_node_add(trie, i, done[d], limit, mask);
        if (path[d] == SG_STATE_DEAD || limit != SG_PLAIN_SEVERAL) {
            i = node->end;
            continue;
        }
        add_tokens(trie, node, mask);
        i++;
    }
    return SEGUE_OK;
}

/* With the lock: the mask of a state. */
static segue_status make_mask(struct sg_grammar *g, uint32_t state, uint32_t *mask, segue_error *err)
{
    uint32_t limit;
    SG_TRY(sg_plain_limit(g, state, &limit, err));
    if (limit == SG_PLAIN_SEVERAL) SG_TRY(walk_plain(g, state, mask, err));
    else sg_plain_tokens_add(&g->trie->plain, limit, mask);
    return walk(g, &g->trie->other, state, mask, err);
}

static segue_status state_mask(struct sg_grammar *g, uint32_t state, uint32_t *words, segue_error *err)
{
    size_t n = sg_grammar_mask_words(g);
    uint32_t plain;
    SG_TRY(sg_automaton_mask_state(g, state, &plain, err));
    if (!g->states[plain].mask) {
        uint32_t *mask = sg_alloc(n * sizeof *mask);
        if (!mask) return sg_no_memory("mask", n * sizeof *mask, err);
        segue_status status = make_mask(g, plain, mask, err);
        if (status != SEGUE_OK) {
            sg_free(mask);
            return status;
        }
        g->states[plain].mask = mask;
        g->cache_bytes += n * sizeof *mask;
    }
    memcpy(words, g->states[plain].mask, n * sizeof *words);
    for (size_t i = 0; i < g->stops_n; i++) {
        uint32_t token = (uint32_t)g->stops[i], bit = UINT32_C(1) << token % 32;
        if (token >= g->trie->vocab) continue;
        words[token / 32] &= ~bit;
        if (g->states[state].accepts) words[token / 32] |= bit;
    }
    for (size_t i = 0; i < n; i++)
        if (words[i]) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT, "grammar: no token of the vocabulary fits: after %s; allow other characters",
                   state == SG_STATE_ENDED ? "the end" : "this text");
}

segue_status sg_grammar_mask(struct sg_grammar *g, struct sg_grammar_pos *pos, const int32_t *tokens, size_t n, size_t from,
                             uint32_t *words, segue_error *err)
{
    pthread_mutex_lock(&g->lock);
    segue_status status = advance(g, pos, tokens, n, from, err);
    if (status == SEGUE_OK) status = state_mask(g, pos->state, words, err);
    limit_cache(g);
    pthread_mutex_unlock(&g->lock);
    return status;
}

segue_status sg_grammar_check(struct sg_grammar *g, const char *text, size_t len, size_t *valid, segue_error *err)
{
    pthread_mutex_lock(&g->lock);
    uint32_t state = SG_STATE_BEGIN;
    segue_status status = sg_automaton_begin(g, err);
    size_t i = 0;
    for (; status == SEGUE_OK && i < len; i++) {
        uint32_t to;
        status = sg_automaton_step(g, state, (uint8_t)text[i], &to, err);
        if (status == SEGUE_OK && to == SG_STATE_DEAD)
            status = sg_fail(err, SEGUE_EFORMAT, "grammar: the text does not fit: byte %zu; compare it with the grammar", i);
        if (status != SEGUE_OK) break;
        state = to;
    }
    *valid = i;
    if (status == SEGUE_OK && !g->states[state].accepts) status = SEGUE_END;
    limit_cache(g);
    pthread_mutex_unlock(&g->lock);
    return status;
}
