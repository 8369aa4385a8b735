/* detok.c: tokens to text, whole or one token at a time. Both pass two stages: bytes are collected into characters
 * (U+FFFD for invalid bytes, nothing yet for an incomplete character), and characters are held back while they may
 * begin a stop string.
 * SPDX-License-Identifier: MIT */
#include <assert.h>
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

/* The held text fits into segue_text: a stop string, one whole character and one incomplete character. */
enum { HOLD_BYTES = sizeof((segue_text *)0)->priv.bytes, MAX_STOP = 1000 };
static_assert(HOLD_BYTES >= MAX_STOP + 8, "a held stop string and two characters fit");

/* One call of the detokenizer. */
struct text_writer {
    segue_text state; /* a working copy; the caller's struct is updated only if the text fitted */
    int strip;        /* drop one space at the start of the text */
    char *text;       /* [cap] the caller's */
    size_t cap, n;    /* n: bytes written, including those that did not fit */
    int stopped;      /* 1: a stop string was found; further text is dropped */
};

/* Append to the caller's buffer. Beyond cap, bytes are only counted, so that the caller learns the size to pass. */
static void write_bytes(struct text_writer *f, const char *s, size_t n)
{
    if (f->n < f->cap) memcpy(f->text + f->n, s, n < f->cap - f->n ? n : f->cap - f->n);
    f->n += n;
}

/* Start of a stop string that the n held bytes end with, SIZE_MAX if there is none. The longest match counts. */
static size_t stop_start(const segue_text *state, size_t n)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < state->stops_n; i++) {
        size_t len = strlen(state->stops[i]);
        if (len && len <= n && memcmp(state->priv.bytes + n - len, state->stops[i], len) == 0 &&
            n - len < best)
            best = n - len;
    }
    return best;
}

/* Number of the n held bytes that cannot become part of a stop string. */
static size_t releasable(const segue_text *state, size_t n)
{
    for (size_t at = 0; at < n; at++)
        for (size_t i = 0; i < state->stops_n; i++)
            /* the held bytes from `at` on are a prefix of a stop string; a NUL in them would end strncmp early */
            if (strncmp(state->stops[i], state->priv.bytes + at, n - at) == 0 &&
                !memchr(state->priv.bytes + at, 0, n - at))
                return at;
    return n;
}

/* One complete character. state->priv.bytes holds *held bytes of complete characters. */
static void write_char(struct text_writer *f, size_t *held, const char *s, size_t n)
{
    segue_text *state = &f->state;
    /* only a space that is the very first character of a text is dropped */
    int first = !state->priv.started;
    state->priv.started = 1;
    if (f->stopped || (first && f->strip && n == 1 && *s == ' ')) return;
    /* nothing to hold back */
    if (!state->stops_n) {
        write_bytes(f, s, n);
        return;
    }
    memcpy(state->priv.bytes + *held, s, n);
    *held += n;
    size_t stop = stop_start(state, *held), out = stop != SIZE_MAX ? stop : releasable(state, *held);
    write_bytes(f, state->priv.bytes, out);
    *held -= out;
    memmove(state->priv.bytes, state->priv.bytes + out, *held);
    f->stopped = stop != SIZE_MAX;
}

/* The bytes of one token; end: nothing follows, so everything held is written. The state holds complete characters,
 * then at most 3 bytes of an incomplete one. */
static void decode_bytes(struct text_writer *f, const char *bytes, size_t n, int end)
{
    segue_text *state = &f->state;
    char part[8];
    size_t held = sg_utf8_valid(state->priv.bytes, state->priv.held), part_n = state->priv.held - held,
           at = 0, len;
    memcpy(part, state->priv.bytes + held, part_n);
    while (part_n || at < n) {
        const char *s = bytes + at;
        size_t left = n - at;
        if (part_n) { /* append up to 3 new bytes to the incomplete character */
            size_t taken = left < 3 ? left : 3;
            memcpy(part + part_n, s, taken);
            s = part;
            left = part_n + taken;
        }
        enum sg_utf8 kind = sg_utf8_step(s, left, &len);
        /* incomplete: keep it for the next token */
        if (kind == SG_UTF8_CUT && !end) {
            memmove(part, s, left);
            part_n = left;
            at = n;
            break;
        }
        if (kind == SG_UTF8_CHAR)
            write_char(f, &held, s, len);
        else
            write_char(f, &held, "\xef\xbf\xbd", 3);
        /* len bytes were decoded: of the new bytes, or of the incomplete character and the new bytes */
        if (!part_n) {
            at += len;
        } else if (len >= part_n) {
            at += len - part_n;
            part_n = 0;
        } else { /* invalid first bytes of part: decode the rest of it again */
            part_n -= len;
            memmove(part, part + len, part_n);
        }
    }
    memcpy(state->priv.bytes + held, part, part_n);
    state->priv.held = (uint32_t)(held + part_n);
    /* at the end no stop string can become complete any more */
    if (!end) return;
    write_bytes(f, state->priv.bytes, held);
    state->priv.held = 0;
}

/* EARG for an id outside of the vocabulary. */
static segue_status check_token(const struct sg_tokenizer *t, int32_t token, segue_error *err)
{
    if (token >= 0 && (uint32_t)token < t->tokens_n) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG,
                   "detokenize: token %d: not in the vocabulary, 0..%u; pass ids of this model", (int)token,
                   t->tokens_n - 1);
}

/* With SEGUE_TEXT_NO_SPECIAL, control and unknown tokens yield no text; user tokens such as <think> still do. */
static void decode_token(struct text_writer *f, const struct sg_tokenizer *t, int32_t token)
{
    const struct sg_vocab_token *k = &t->tokens[token];
    int hidden = f->state.flags & SEGUE_TEXT_NO_SPECIAL &&
                 (k->kind == SG_TOKEN_CONTROL || k->kind == SG_TOKEN_UNKNOWN);
    if (k->bytes_len && !hidden) decode_bytes(f, k->bytes, k->bytes_len, 0);
}

/* *len is set to the needed size also with ELIMIT. A terminating NUL is written if there is space for it. */
segue_status sg_detokenize(const struct sg_tokenizer *t, const int32_t *tokens, size_t n, unsigned flags,
                           char *text, size_t cap, size_t *len, segue_error *err)
{
    if (!t || (!tokens && n) || (!text && cap) || !len)
        return sg_fail(err, SEGUE_EARG,
                       "detokenize: arguments: a pointer is NULL; pass tokenizer, tokens and len");
    struct text_writer f = {
        .state = {.size = sizeof f.state, .flags = flags}, .strip = t->strip_space, .text = text, .cap = cap};
    /* all ids are checked before anything is written */
    for (size_t i = 0; i < n; i++) SG_TRY(check_token(t, tokens[i], err));
    for (size_t i = 0; i < n; i++) decode_token(&f, t, tokens[i]);
    decode_bytes(&f, "", 0, 1);
    *len = f.n;
    if (f.n > cap)
        return sg_fail(err, SEGUE_ELIMIT,
                       "detokenize: buffer too small: %zu bytes needed, %zu given; call again with a larger one", f.n, cap);
    if (f.n < cap) text[f.n] = 0;
    return SEGUE_OK;
}

/* The struct is plain memory of the caller, so every field is checked before it is used. */
static segue_status check_state(const segue_text *state, segue_error *err)
{
    if (state->size < sizeof *state)
        return sg_fail(err, SEGUE_EARG, "text: segue_text of %u bytes: %zu expected; use SEGUE_INIT",
                       state->size, sizeof *state);
    if (state->priv.held > HOLD_BYTES - 8)
        return sg_fail(err, SEGUE_EARG,
                       "text: segue_text: its priv part is damaged; zero it before the first call");
    if (state->stops_n && !state->stops)
        return sg_fail(err, SEGUE_EARG, "text: stop strings: the list is NULL; set stops");
    for (size_t i = 0; i < state->stops_n; i++) {
        if (!state->stops[i] || !*state->stops[i])
            return sg_fail(err, SEGUE_EARG, "text: stop string %zu: it is empty; leave it out", i);
        if (strlen(state->stops[i]) > MAX_STOP)
            return sg_fail(err, SEGUE_EARG, "text: stop string %zu: more than %d bytes; shorten it", i,
                           MAX_STOP);
    }
    return SEGUE_OK;
}

/* The caller's state changes only on success: after ELIMIT the same token can be passed again. */
segue_status sg_text_next(const struct sg_tokenizer *t, segue_text *state, int32_t token, char *text,
                          size_t cap, size_t *len, segue_error *err)
{
    if (!t || !state || (!text && cap) || !len)
        return sg_fail(err, SEGUE_EARG,
                       "text: arguments: a pointer is NULL; pass tokenizer, state and len");
    SG_TRY(check_state(state, err));
    if (token != -1) SG_TRY(check_token(t, token, err));
    struct text_writer f = {.state = *state, .strip = t->strip_space, .text = text, .cap = cap};
    /* after a stop string further tokens yield no text */
    if (!state->priv.ended) {
        if (token == -1)
            decode_bytes(&f, "", 0, 1);
        else
            decode_token(&f, t, token);
    }
    *len = f.n;
    if (f.n > cap)
        return sg_fail(err, SEGUE_ELIMIT,
                       "text: buffer too small: %zu bytes for one piece, %zu given; call again with a larger one", f.n, cap);
    if (f.n < cap) text[f.n] = 0;
    /* text after the stop string is discarded */
    if (f.stopped) {
        f.state.priv.ended = 1;
        f.state.priv.held = 0;
    }
    state->priv = f.state.priv;
    return state->priv.ended ? SEGUE_END : SEGUE_OK;
}

/* Never fails: an unknown token has no bytes. */
const char *sg_token_bytes(const struct sg_tokenizer *t, int32_t token, size_t *len, int *special)
{
    int inside = t && token >= 0 && (uint32_t)token < t->tokens_n && t->tokens[token].bytes;
    if (len) *len = inside ? t->tokens[token].bytes_len : 0;
    if (special)
        *special = inside &&
                   (t->tokens[token].kind == SG_TOKEN_CONTROL || t->tokens[token].kind == SG_TOKEN_UNKNOWN);
    return inside ? t->tokens[token].bytes : "";
}

int sg_tokenizer_strips_space(const struct sg_tokenizer *t) { return t && t->strip_space; }
