/* bpe.c: byte-pair merging of one piece: by rank of pairs (tokenizer.json, GGUF "gpt2") or by score of what a pair
 * spells (SentencePiece files). Short pieces scan for the best pair, long ones keep a heap: O(n log n), never
 * quadratic in the piece. Pieces met before in the same call are copied.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "text/tokparts.h"
#include "text/unicode.h"

enum { FEW = 32, SMALL_PIECE = 96 };
#define NO_PAIR UINT32_MAX
#define DEAD (-2)

/* Order of a pair (lower merges first) and the token it makes. `end`: where the pair's text ends. */
static uint32_t pair_order(const struct sg_tokenizer *t, const char *s, const struct sg_symbol *a,
                           const struct sg_symbol *b, size_t end, int32_t *made)
{
    if (t->merges) {
        const struct sg_merge *m = sg_merges_find(t, a->id, b->id);
        if (!m) return NO_PAIR;
        *made = m->made;
        return m->rank;
    }
    int32_t id = sg_vocab_find(t, s + a->at, end - a->at);
    if (id < 0) return NO_PAIR;
    *made = id;
    uint32_t bits = sg_bits_of_f32(t->tokens[id].score + 0.f);
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

/* Leftmost best pair again and again; symbols stay packed. Returns how many are left. */
static size_t merge_few(const struct sg_tokenizer *t, const char *s, size_t len, struct sg_symbol *sym, size_t n)
{
    uint32_t order[FEW];
    int32_t made[FEW];
    for (size_t i = 0; i + 1 < n; i++)
        order[i] = pair_order(t, s, &sym[i], &sym[i + 1], i + 2 < n ? sym[i + 2].at : len, &made[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (order[i] < order[best]) best = i;
        if (order[best] == NO_PAIR) break;
        sym[best].id = made[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            sym[i] = sym[i + 1];
            order[i - 1] = order[i];
            made[i - 1] = made[i];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++)
            order[i] = pair_order(t, s, &sym[i], &sym[i + 1], i + 2 < n ? sym[i + 2].at : len, &made[i]);
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t x = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= x) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static segue_status heap_add(struct sg_encoding *e, uint64_t x)
{
    if (e->heap_n == e->heap_cap) {
        size_t cap = e->heap_cap + e->heap_cap / 2 + 256;
        uint64_t *more = sg_realloc(e->heap, cap * sizeof *more);
        if (!more) return sg_no_memory("text", cap * sizeof *more, e->err);
        e->heap = more;
        e->heap_cap = cap;
    }
    e->heap[e->heap_n++] = x;
    return SEGUE_OK;
}

static segue_status heap_push(struct sg_encoding *e, uint64_t x)
{
    SG_TRY(heap_add(e, x));
    uint64_t *heap = e->heap;
    size_t i = e->heap_n - 1;
    for (; i && heap[(i - 1) / 2] > x; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
    return SEGUE_OK;
}

/* The order of symbol i and the next one; NO_PAIR at the end. */
static uint32_t order_at(const struct sg_encoding *e, const char *s, size_t len, uint32_t i, int32_t *made)
{
    const struct sg_symbol *sym = e->symbols;
    if (sym[i].id == DEAD || sym[i].next == NO_PAIR) return NO_PAIR;
    const struct sg_symbol *b = &sym[sym[i].next];
    return pair_order(e->t, s, &sym[i], b, b->next == NO_PAIR ? len : sym[b->next].at, made);
}

static segue_status merge_many(struct sg_encoding *e, const char *s, size_t len, size_t n)
{
    struct sg_symbol *sym = e->symbols;
    int32_t made = 0;
    e->heap_n = 0;
    for (size_t i = 0; i < n; i++) {
        sym[i].prev = i ? (uint32_t)i - 1 : NO_PAIR;
        sym[i].next = i + 1 < n ? (uint32_t)i + 1 : NO_PAIR;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t order = order_at(e, s, len, i, &made);
        if (order != NO_PAIR) SG_TRY(heap_add(e, (uint64_t)order << 32 | i));
    }
    for (size_t i = e->heap_n / 2; i--;) sift_down(e->heap, e->heap_n, i);
    while (e->heap_n) {
        uint64_t top = e->heap[0];
        e->heap[0] = e->heap[--e->heap_n];
        if (e->heap_n) sift_down(e->heap, e->heap_n, 0);
        uint32_t i = (uint32_t)top, order = order_at(e, s, len, i, &made);
        if (order == NO_PAIR || order != top >> 32) continue;    /* the pair has changed since */
        uint32_t gone = sym[i].next;
        sym[i].id = made;
        sym[i].next = sym[gone].next;
        sym[gone].id = DEAD;
        if (sym[i].next != NO_PAIR) sym[sym[i].next].prev = i;
        order = order_at(e, s, len, i, &made);
        if (order != NO_PAIR) SG_TRY(heap_push(e, (uint64_t)order << 32 | i));
        if (sym[i].prev == NO_PAIR) continue;
        order = order_at(e, s, len, sym[i].prev, &made);
        if (order != NO_PAIR) SG_TRY(heap_push(e, (uint64_t)order << 32 | sym[i].prev));
    }
    return SEGUE_OK;
}

/* All bytes of an unknown character, when every one of them has a token. Returns how many were put. */
static size_t put_bytes(const struct sg_tokenizer *t, const char *s, size_t n, uint32_t at, struct sg_symbol *sym)
{
    for (size_t i = 0; i < n; i++)
        if (t->byte_ids[(unsigned char)s[i]] < 0) return 0;
    for (size_t i = 0; i < n; i++) sym[i] = (struct sg_symbol){.id = t->byte_ids[(unsigned char)s[i]], .at = at + (uint32_t)i};
    return n;
}

/* First symbols of a piece, at most one per byte. An unknown character becomes byte tokens, else the unknown token
 * (fused with its neighbours where the file says so), else nothing. */
static size_t first_symbols(const struct sg_tokenizer *t, const char *s, size_t len, struct sg_symbol *sym)
{
    size_t n = 0, unknown = 0;
    for (size_t at = 0, width; at < len; at += width) {
        unsigned char b = (unsigned char)s[at];
        uint32_t c;
        width = t->byte_level || b < 128 ? 1 : sg_utf8_get(s + at, &c);
        int32_t id = t->byte_level ? t->byte_ids[b] : b < 128 ? t->ascii_ids[b] : sg_vocab_find_model(t, s + at, width);
        if (id >= 0 || !t->merges) {
            if (unknown) sym[n++] = (struct sg_symbol){.id = t->unk, .at = (uint32_t)at};
            unknown = 0;
            sym[n++] = (struct sg_symbol){.id = id, .at = (uint32_t)at};
            continue;
        }
        size_t bytes = t->byte_fallback && !t->byte_level ? put_bytes(t, s + at, width, (uint32_t)at, sym + n) : 0;
        n += bytes;
        if (bytes || t->unk < 0) continue;
        if (unknown && !t->fuse_unk) sym[n++] = (struct sg_symbol){.id = t->unk, .at = (uint32_t)at};
        unknown = 1;
    }
    if (unknown) sym[n++] = (struct sg_symbol){.id = t->unk, .at = (uint32_t)len};
    return n;
}

static void emit(struct sg_encoding *e, const char *s, const struct sg_symbol *a, size_t end)
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

/* *id: the token that a piece is as it stands, or -1. */
static segue_status whole(const struct sg_encoding *e, const char *s, size_t len, int32_t *id)
{
    char small[512], *spelt = small;
    *id = -1;
    if (!e->t->ignore_merges || len > e->t->longest) return SEGUE_OK;
    if (!e->t->byte_level) {
        *id = sg_vocab_find_model(e->t, s, len);
        return SEGUE_OK;
    }
    if (len > sizeof small / 2) spelt = sg_alloc(2 * len);
    if (!spelt) return sg_no_memory("text", 2 * len, e->err);
    *id = sg_vocab_find_model(e->t, spelt, sg_byte_spell(s, len, spelt));
    if (spelt != small) sg_free(spelt);
    return SEGUE_OK;
}

static segue_status symbols_room(struct sg_encoding *e, size_t n)
{
    if (n <= e->symbols_cap) return SEGUE_OK;
    sg_free(e->symbols);
    e->symbols_cap = 0;
    e->symbols = sg_alloc(n * sizeof *e->symbols);
    if (!e->symbols) return sg_no_memory("text", n * sizeof *e->symbols, e->err);
    e->symbols_cap = n;
    return SEGUE_OK;
}

static segue_status merge_piece(struct sg_encoding *e, const char *s, size_t len)
{
    const struct sg_tokenizer *t = e->t;
    struct sg_symbol small[SMALL_PIECE], *sym = small;
    int32_t id;
    SG_TRY(whole(e, s, len, &id));
    if (id >= 0) {
        sg_encoding_put(e, id);
        return SEGUE_OK;
    }
    if (len > SMALL_PIECE) {
        SG_TRY(symbols_room(e, len));
        sym = e->symbols;
    }
    size_t n = first_symbols(t, s, len, sym);
    if (n <= FEW) {
        n = merge_few(t, s, len, sym, n);
        for (size_t i = 0; i < n; i++) emit(e, s, &sym[i], i + 1 < n ? sym[i + 1].at : len);
        return SEGUE_OK;
    }
    if (sym == small) {
        SG_TRY(symbols_room(e, SMALL_PIECE));
        memcpy(e->symbols, small, n * sizeof *sym);
        sym = e->symbols;
    }
    SG_TRY(merge_many(e, s, len, n));
    for (uint32_t i = 0; i != NO_PAIR; i = sym[i].next)
        emit(e, s, &sym[i], sym[i].next == NO_PAIR ? len : sym[sym[i].next].at);
    return SEGUE_OK;
}

/* Where the next word of a SentencePiece text begins: merges never reach across. */
static size_t word_end(const char *s, size_t len)
{
    size_t at = 0;
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

static segue_status seen_or_merged(struct sg_encoding *e, const char *s, size_t len)
{
    if (!e->seen || len > SMALL_PIECE) return merge_piece(e, s, len);
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
    struct sg_piece_seen *slot = &e->seen[h >> 40 & e->seen_mask];
    if (slot->epoch == e->epoch && slot->len == len && slot->tokens_at + slot->tokens_n <= e->cap &&
        memcmp(slot->text, s, len) == 0) {
        for (uint32_t k = 0; k < slot->tokens_n; k++) sg_encoding_put(e, e->tokens[slot->tokens_at + k]);
        return SEGUE_OK;
    }
    size_t at = e->n;
    SG_TRY(merge_piece(e, s, len));
    *slot = (struct sg_piece_seen){s, (uint32_t)len, e->epoch, (uint32_t)(e->n - at), at};
    return SEGUE_OK;
}

segue_status sg_bpe(struct sg_encoding *e, const char *s, size_t n)
{
    while (n) {
        size_t len = e->t->by_word ? word_end(s, n) : n;
        SG_TRY(seen_or_merged(e, s, len));
        s += len;
        n -= len;
    }
    return SEGUE_OK;
}
