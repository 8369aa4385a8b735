/* tokenize.c: one text to tokens: invalid UTF-8 is repaired, the text is split at raw added tokens, the parts are
 * normalized and split at the other added tokens, and the rest goes through pretoken.c. All working memory belongs to
 * the call.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

enum { MAX_TEXT = 1 << 30, CACHE_MIN_TEXT = 2048 };

/* State of one call. normal: the buffers of sg_normalize. */
struct text_splitter {
    struct sg_encoding *e;
    unsigned flags;
    struct sg_buf normal[2];
};

/* 1: the character at byte `at` matches \w of Rust's regex: letters, marks, digits and joiners. */
static int word_at(const char *s, size_t at)
{
    uint32_t c;
    sg_utf8_get(s + at, &c);
    return (sg_char_class(c) & SG_CHAR_WORD) != 0;
}

/* For single_word tokens: 1 if no word character touches [start, stop). */
static int is_whole_word(const char *s, size_t n, size_t start, size_t stop)
{
    if (start && word_at(s, start - sg_utf8_back(s, start))) return 0;
    return stop == n || !word_at(s, stop);
}

/* Start of the whitespace that ends at `at`, not before `least`. */
static size_t spaces_before(const char *s, size_t at, size_t least)
{
    while (at > least) {
        uint32_t c;
        size_t len = sg_utf8_back(s, at);
        sg_utf8_get(s + at - len, &c);
        if (!(sg_char_class(c) & SG_CHAR_SPACE)) break;
        at -= len;
    }
    return at;
}

/* End of the whitespace that begins at `at`. */
static size_t spaces_after(const char *s, size_t n, size_t at)
{
    while (at < n) {
        uint32_t c;
        size_t len = sg_utf8_get(s + at, &c);
        if (!(sg_char_class(c) & SG_CHAR_SPACE)) break;
        at += len;
    }
    return at;
}

typedef segue_status piece_fn(struct text_splitter *c, const char *s, size_t n, int first);

/* Put the added tokens of a set into the output and pass the text between them to `piece`. lstrip and rstrip tokens
 * absorb the whitespace next to them; a token found inside such whitespace still counts, as in the `tokenizers`
 * library. */
static segue_status split_at_added(struct text_splitter *c, const struct sg_added_set *set, const char *s, size_t n, int first,
                        piece_fn *piece)
{
    size_t done = 0, from = 0, at, run_from = 1, run_to = 0;
    const struct sg_added *a;
    while ((a = sg_added_find(set, s, n, from, &at))) {
        /* [start, stop): the token with the whitespace that it absorbs */
        size_t start = at, stop = at + a->len;
        /* the search continues after the token itself, not after the whitespace */
        from = stop;
        if (a->special && c->flags & SEGUE_TEXT_NO_SPECIAL) continue;
        if (a->single_word && !is_whole_word(s, n, start, stop)) continue;
        if (a->lstrip) start = spaces_before(s, start, done < start ? done : start);
        /* run_from, run_to: the last whitespace run that was scanned */
        if (a->rstrip) {
            if (stop < run_from ||
                stop > run_to) { /* remembered, or a run of such tokens would be quadratic */
                run_from = stop;
                run_to = spaces_after(s, n, stop);
            }
            stop = run_to;
        }
        if (done < start) SG_TRY(piece(c, s + done, start - done, first && !done));
        sg_encoding_put(c->e, a->id);
        done = stop;
    }
    return done < n ? piece(c, s + done, n - done, first && !done) : SEGUE_OK;
}

/* Text between the added tokens that are searched in normalized text. */
static segue_status normal_piece(struct text_splitter *c, const char *s, size_t n, int first)
{
    return sg_pretoken(c->e, s, n, first);
}

/* Text between raw added tokens. Normalized text reuses the same buffers, so cached pieces become invalid. */
static segue_status raw_piece(struct text_splitter *c, const char *s, size_t n, int first)
{
    c->e->epoch++;
    SG_TRY(sg_normalize(c->e->t, &s, &n, c->normal, &c->e->budget, c->e->err));
    return split_at_added(c, &c->e->t->normal, s, n, first, normal_piece);
}

/* text must be valid UTF-8: all functions below decode it without checks. */
static segue_status encode(struct text_splitter *c, const char *text, size_t len)
{
    struct sg_encoding *e = c->e;
    const struct sg_tokenizer *t = e->t;
    e->text_len = len;
    e->budget = sg_text_budget(len);
    if (len >= CACHE_MIN_TEXT) {
        uint32_t size = 256;
        /* about one cache entry per 32 bytes of text, 256 to 65536 */
        while (size < len / 32 && size < 1 << 16) size *= 2;
        e->seen = sg_alloc(size * sizeof *e->seen);
        if (!e->seen) return sg_no_memory("text", size * sizeof *e->seen, e->err);
        e->seen_mask = size - 1;
    }
    int ends = !(c->flags & SEGUE_TEXT_NO_BOS);
    for (uint32_t i = 0; ends && i < t->before_n; i++) sg_encoding_put(e, t->before[i]);
    SG_TRY(split_at_added(c, &t->raw, text, len, 1, raw_piece));
    for (uint32_t i = 0; ends && i < t->after_n; i++) sg_encoding_put(e, t->after[i]);
    return SEGUE_OK;
}

/* Replace invalid bytes by U+FFFD first. */
static segue_status encode_repaired(struct text_splitter *c, const char *text, size_t len)
{
    if (sg_utf8_valid(text, len) == len) return encode(c, text, len);
    struct sg_buf repaired = {0};
    segue_status s = sg_utf8_repair(&repaired, text, len) ? sg_no_memory("text", len, c->e->err) : SEGUE_OK;
    if (s == SEGUE_OK) s = encode(c, repaired.data, repaired.len);
    sg_buf_free(&repaired);
    return s;
}

/* Tokens beyond cap are counted but not stored. */
segue_status sg_tokenize(const struct sg_tokenizer *t, const char *text, size_t len, unsigned flags,
                         int32_t *tokens, size_t cap, size_t *n, segue_error *err)
{
    if (!t || (!text && len) || (!tokens && cap) || !n)
        return sg_fail(err, SEGUE_EARG,
                       "tokenize: arguments: a pointer is NULL; pass tokenizer, text and n");
    if (len > MAX_TEXT)
        return sg_fail(err, SEGUE_ELIMIT, "tokenize: text of %zu bytes: more than the limit of %d; split it", len,
                       MAX_TEXT);
    struct sg_encoding e = {.t = t, .err = err, .tokens = tokens, .cap = cap};
    struct text_splitter c = {.e = &e, .flags = flags};
    segue_status s = encode_repaired(&c, text ? text : "", len);
    /* also after an error; unused pointers are NULL */
    sg_buf_free(&c.normal[0]);
    sg_buf_free(&c.normal[1]);
    sg_free(e.seen);
    sg_free(e.symbols);
    sg_free(e.heap);
    sg_free(e.queues);
    sg_free(e.links);
    sg_regex_done(&e);
    SG_TRY(s);
    /* set also with ELIMIT, so that the caller knows the size */
    *n = e.n;
    if (e.n > cap)
        return sg_fail(err, SEGUE_ELIMIT, "tokenize: buffer too small: %zu tokens, %zu fit; call again with a larger one", e.n,
                       cap);
    return SEGUE_OK;
}
