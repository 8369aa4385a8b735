/* tokenize.c: one text to tokens: repaired, cut at added tokens, normalized, cut again, and what is left
 * split and merged. All working memory belongs to the call.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

enum { MOST_TEXT = 1 << 30, SEEN_FROM = 2048 };

struct cutting {
    struct sg_encoding *e;
    unsigned flags;
    struct sg_buf normal[2];
};

/* \w of Rust's regex: letters, marks, digits and joiners. */
static int word_at(const char *s, size_t at)
{
    uint32_t c;
    sg_utf8_get(s + at, &c);
    return (sg_char_class(c) & SG_CHAR_WORD) != 0;
}

/* For whole-word tokens: no word character touches it. */
static int stands_alone(const char *s, size_t n, size_t start, size_t stop)
{
    if (start && word_at(s, start - sg_utf8_back(s, start))) return 0;
    return stop == n || !word_at(s, stop);
}

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

typedef segue_status piece_fn(struct cutting *c, const char *s, size_t n, int first);

/* Give the added tokens of a set as they come and every layer_range between them to `piece`. A token may take the
 * spaces around it; a later token found inside such spaces still counts, as in the field. */
static segue_status cut(struct cutting *c, const struct sg_added_set *set, const char *s, size_t n, int first,
                        piece_fn *piece)
{
    size_t done = 0, from = 0, at, run_from = 1, run_to = 0;
    const struct sg_added *a;
    while ((a = sg_added_find(set, s, n, from, &at))) {
        size_t start = at, stop = at + a->len;
        from = stop;
        if (a->special && c->flags & SEGUE_TEXT_NO_SPECIAL) continue;
        if (a->single_word && !stands_alone(s, n, start, stop)) continue;
        if (a->lstrip) start = spaces_before(s, start, done < start ? done : start);
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

static segue_status normal_piece(struct cutting *c, const char *s, size_t n, int first)
{
    return sg_pretoken(c->e, s, n, first);
}

/* Text between raw added tokens. Its bytes may move with every piece, so the pieces seen before are
 * forgotten. */
static segue_status raw_piece(struct cutting *c, const char *s, size_t n, int first)
{
    c->e->epoch++;
    SG_TRY(sg_normalize(c->e->t, &s, &n, c->normal, c->e->err));
    return cut(c, &c->e->t->normal, s, n, first, normal_piece);
}

/* Valid UTF-8 from here on: everything below decodes characters without looking again. */
static segue_status encode(struct cutting *c, const char *text, size_t len)
{
    struct sg_encoding *e = c->e;
    const struct sg_tokenizer *t = e->t;
    e->text_len = len;
    if (len >= SEEN_FROM) {
        uint32_t size = 256;
        while (size < len / 32 && size < 1 << 16) size *= 2;
        e->seen = sg_alloc(size * sizeof *e->seen);
        if (!e->seen) return sg_no_memory("text", size * sizeof *e->seen, e->err);
        e->seen_mask = size - 1;
    }
    int ends = !(c->flags & SEGUE_TEXT_NO_BOS);
    for (uint32_t i = 0; ends && i < t->before_n; i++) sg_encoding_put(e, t->before[i]);
    SG_TRY(cut(c, &t->raw, text, len, 1, raw_piece));
    for (uint32_t i = 0; ends && i < t->after_n; i++) sg_encoding_put(e, t->after[i]);
    return SEGUE_OK;
}

static segue_status encode_repaired(struct cutting *c, const char *text, size_t len)
{
    if (sg_utf8_valid(text, len) == len) return encode(c, text, len);
    struct sg_buf repaired = {0};
    segue_status s = sg_utf8_repair(&repaired, text, len) ? sg_no_memory("text", len, c->e->err) : SEGUE_OK;
    if (s == SEGUE_OK) s = encode(c, repaired.data, repaired.len);
    sg_buf_free(&repaired);
    return s;
}

segue_status sg_tokenize(const struct sg_tokenizer *t, const char *text, size_t len, unsigned flags,
                         int32_t *tokens, size_t cap, size_t *n, segue_error *err)
{
    if (!t || (!text && len) || (!tokens && cap) || !n)
        return sg_fail(err, SEGUE_EARG,
                       "tokenize: a pointer is NULL: nothing to work on; pass tokenizer, text and n");
    if (len > MOST_TEXT)
        return sg_fail(err, SEGUE_ELIMIT, "tokenize: text of %zu bytes: at most %d fit; split it", len,
                       MOST_TEXT);
    struct sg_encoding e = {.t = t, .err = err, .tokens = tokens, .cap = cap};
    struct cutting c = {.e = &e, .flags = flags};
    segue_status s = encode_repaired(&c, text ? text : "", len);
    sg_buf_free(&c.normal[0]);
    sg_buf_free(&c.normal[1]);
    sg_free(e.seen);
    sg_free(e.symbols);
    sg_free(e.heap);
    sg_free(e.queues);
    sg_free(e.links);
    sg_regex_done(&e);
    SG_TRY(s);
    *n = e.n;
    if (e.n > cap)
        return sg_fail(err, SEGUE_ELIMIT, "tokenize: buffer too small: %zu tokens, %zu fit; call again", e.n,
                       cap);
    return SEGUE_OK;
}
