/* bpe.c: one piece of text to tokens: first symbols, merging (merge.c), ids. Texts of tokenizers without a splitter are
 * cut at words when no token crosses a word boundary. Short pieces that occurred before in the same call are copied
 * from the output.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

enum { SMALL_PIECE = 96 };

/* Symbols for the bytes of an unknown character, if each byte has a token. Returns their number, 0 or n. */
static size_t put_bytes(const struct sg_tokenizer *t, const char *s, size_t n, uint32_t at,
                        struct sg_symbol *sym)
{
    for (size_t i = 0; i < n; i++)
        if (t->byte_ids[(unsigned char)s[i]] < 0) return 0;
    for (size_t i = 0; i < n; i++)
        sym[i] = (struct sg_symbol){.id = t->byte_ids[(unsigned char)s[i]], .at = at + (uint32_t)i};
    return n;
}

/* The symbols of a piece before merging, at most one per byte. An unknown character becomes byte tokens, else the
 * unknown token (adjacent ones fused if the file asks for it), else nothing. */
static size_t first_symbols(const struct sg_tokenizer *t, const char *s, size_t len, struct sg_symbol *sym)
{
    size_t n = 0, unknown = 0;
    for (size_t at = 0, width; at < len; at += width) {
        unsigned char b = (unsigned char)s[at];
        uint32_t c;
        width = t->byte_level || b < 128 ? 1 : sg_utf8_get(s + at, &c);
        int32_t id = t->byte_level ? t->byte_ids[b]
                     : b < 128     ? t->ascii_ids[b]
                                   : sg_vocab_find_model(t, s + at, width);
        /* merging by score starts with characters that have no token (id -1) */
        if (id >= 0 || !t->merges) {
            /* a pending unknown token precedes this symbol */
            if (unknown) sym[n++] = (struct sg_symbol){.id = t->unk, .at = (uint32_t)at};
            unknown = 0;
            sym[n++] = (struct sg_symbol){.id = id, .at = (uint32_t)at};
            continue;
        }
        size_t bytes =
            t->byte_fallback && !t->byte_level ? put_bytes(t, s + at, width, (uint32_t)at, sym + n) : 0;
        n += bytes;
        if (bytes || t->unk < 0) continue;
        if (unknown && !t->fuse_unk) sym[n++] = (struct sg_symbol){.id = t->unk, .at = (uint32_t)at};
        unknown = 1;
    }
    if (unknown) sym[n++] = (struct sg_symbol){.id = t->unk, .at = (uint32_t)len};
    return n;
}

/* Append one symbol as ids. Merging by score can leave characters without a token: their bytes are put, or the
 * unknown token for a byte without a token; sg_vocab_finish ensures that one of them exists. */
static void put_symbol(struct sg_encoding *e, const char *s, const struct sg_symbol *a, size_t end)
{
    const struct sg_tokenizer *t = e->t;
    if (a->id >= 0) {
        sg_encoding_put(e, a->id);
        return;
    }
    for (size_t i = a->at; i < end; i++) {
        int32_t id = t->byte_ids[(unsigned char)s[i]];
        sg_encoding_put(e, id >= 0 ? id : t->unk);
    }
}

/* *id: the token whose text is the whole piece, with ignore_merges; -1 if there is none. */
static segue_status whole_token(const struct sg_encoding *e, const char *s, size_t len, int32_t *id)
{
    char small[512], *spelled = small;
    *id = -1;
    if (!e->t->ignore_merges || len > e->t->longest) return SEGUE_OK;
    if (!e->t->byte_level) {
        *id = sg_vocab_find_model(e->t, s, len);
        return SEGUE_OK;
    }
    /* the byte alphabet takes at most two bytes per byte */
    if (len > sizeof small / 2) spelled = sg_alloc(2 * len);
    if (!spelled) return sg_no_memory("text", 2 * len, e->err);
    *id = sg_vocab_find_model(e->t, spelled, sg_byte_spell(s, len, spelled));
    if (spelled != small) sg_free(spelled);
    return SEGUE_OK;
}

/* Make space for n symbols. The old content is lost; the buffer is kept for later pieces. */
static segue_status reserve_symbols(struct sg_encoding *e, size_t n)
{
    if (n <= e->symbols_cap) return SEGUE_OK;
    sg_free(e->symbols);
    e->symbols_cap = 0;
    e->symbols = sg_alloc(n * sizeof *e->symbols);
    if (!e->symbols) return sg_no_memory("text", n * sizeof *e->symbols, e->err);
    e->symbols_cap = n;
    return SEGUE_OK;
}

/* Tokenize one piece. Short ones use the stack only. */
static segue_status merge_piece(struct sg_encoding *e, const char *s, size_t len)
{
    const struct sg_tokenizer *t = e->t;
    struct sg_symbol small[SMALL_PIECE], *sym = small;
    int32_t id;
    SG_TRY(whole_token(e, s, len, &id));
    if (id >= 0) {
        sg_encoding_put(e, id);
        return SEGUE_OK;
    }
    /* a piece has at most one symbol per byte */
    if (len > SMALL_PIECE) {
        SG_TRY(reserve_symbols(e, len));
        sym = e->symbols;
    }
    size_t n = first_symbols(t, s, len, sym);
    if (n <= SG_MERGE_FEW) {
        n = sg_merge_few(t, s, len, sym, n);
        for (size_t i = 0; i < n; i++) put_symbol(e, s, &sym[i], i + 1 < n ? sym[i + 1].at : len);
        return SEGUE_OK;
    }
    /* sg_merge_many works on e->symbols */
    if (sym == small) {
        SG_TRY(reserve_symbols(e, SMALL_PIECE));
        memcpy(e->symbols, small, n * sizeof *sym);
        sym = e->symbols;
    }
    SG_TRY(sg_merge_many(e, s, len, n));
    for (uint32_t i = 0; i != SG_NO_SYMBOL; i = sym[i].next)
        put_symbol(e, s, &sym[i], sym[i].next == SG_NO_SYMBOL ? len : sym[sym[i].next].at);
    return SEGUE_OK;
}

/* End of the first word of a SentencePiece text: the next U+2581 after other characters. Merges never cross it
 * (t->by_word). */
static size_t word_end(const char *s, size_t len)
{
    size_t at = 0;
    /* leading U+2581 belong to the word that follows */
    while (len - at >= 3 && memcmp(s + at, "\xe2\x96\x81", 3) == 0) at += 3;
    while (at < len) {
        const char *hit = memchr(s + at, '\xe2', len - at);
        if (!hit) return len;
        at = (size_t)(hit - s);
        if (len - at >= 3 && memcmp(hit, "\xe2\x96\x81", 3) == 0) return at;
        at++;
    }
    return len;
}

/* merge_piece with a cache: words repeat. The direct-mapped table belongs to the call and is replaced on collision,
 * so that threads share nothing. An entry refers to bytes of the text and to tokens in the output. */
static segue_status merge_cached(struct sg_encoding *e, const char *s, size_t len)
{
    if (!e->seen || len > SMALL_PIECE) return merge_piece(e, s, len);
    /* mixes eight bytes per step; texts that collide only replace each other */
    uint64_t h = len * 0x9e3779b97f4a7c15u;
    size_t i = 0;
    for (uint64_t x; len - i >= 8; i += 8) {
        memcpy(&x, s + i, 8);
        h = (h ^ x) * 0xff51afd7ed558ccdu;
        h ^= h >> 29;
    }
    uint64_t x = 0;
    memcpy(&x, s + i, len - i);
    h = (h ^ x) * 0xff51afd7ed558ccdu;
    /* tokens beyond cap were only counted, not stored, so that they cannot be copied */
    struct sg_piece_cache *slot = &e->seen[h >> 40 & e->seen_mask];
    if (slot->epoch == e->epoch && slot->len == len && slot->tokens_at + slot->tokens_n <= e->cap &&
        memcmp(slot->text, s, len) == 0) {
        for (uint32_t k = 0; k < slot->tokens_n; k++) sg_encoding_put(e, e->tokens[slot->tokens_at + k]);
        return SEGUE_OK;
    }
    size_t at = e->n;
    SG_TRY(merge_piece(e, s, len));
    *slot = (struct sg_piece_cache){s, (uint32_t)len, e->epoch, (uint32_t)(e->n - at), at};
    return SEGUE_OK;
}

/* Pieces of a tokenizer without by_word are merged as a whole. */
segue_status sg_bpe(struct sg_encoding *e, const char *s, size_t n)
{
    while (n) {
        size_t len = e->t->by_word ? word_end(s, n) : n;
        SG_TRY(merge_cached(e, s, len));
        s += len;
        n -= len;
    }
    return SEGUE_OK;
}
