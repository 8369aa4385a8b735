/* detok.c: tokens to text, whole or one by one. Both go through the same two gates: bytes become characters
 * (U+FFFD for what is none, nothing for what is not complete yet), characters wait while they may begin a
 * stop string.
 * SPDX-License-Identifier: MIT */
#include <assert.h>
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

/* A stop string must fit into segue_text with room for one character and one incomplete one. */
enum { HOLD = sizeof((segue_text *)0)->priv.bytes, LONGEST_STOP = 1000 };
static_assert(HOLD >= LONGEST_STOP + 8, "a held stop string and two characters fit");

struct flow {
    segue_text state; /* the copy that is worked on; given back when all fits */
    int strip;
    char *text;    /* [cap] the caller's */
    size_t cap, n; /* n: bytes given, also those that did not fit */
    int stopped;
};

/* Counts on when the room is used up, so that the caller learns how much would do. */
static void give(struct flow *f, const char *s, size_t n)
{
    if (f->n < f->cap) memcpy(f->text + f->n, s, n < f->cap - f->n ? n : f->cap - f->n);
    f->n += n;
}

/* The held text ends with a whole stop string: its start; else SIZE_MAX. The longest one counts. */
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

/* How many of the n held bytes can no longer become part of a stop string. */
static size_t released(const segue_text *state, size_t n)
{
    for (size_t at = 0; at < n; at++)
        for (size_t i = 0; i < state->stops_n; i++)
            if (strncmp(state->stops[i], state->priv.bytes + at, n - at) == 0 &&
                !memchr(state->priv.bytes + at, 0, n - at))
                return at;
    return n;
}

/* The first `held` bytes of the state are whole characters; one more comes. */
static void character(struct flow *f, size_t *held, const char *s, size_t n)
{
    segue_text *state = &f->state;
    int first = !state->priv.begun;
    state->priv.begun = 1;
    if (f->stopped || (first && f->strip && n == 1 && *s == ' ')) return;
    if (!state->stops_n) {
        give(f, s, n);
        return;
    }
    memcpy(state->priv.bytes + *held, s, n);
    *held += n;
    size_t stop = stop_start(state, *held), out = stop != SIZE_MAX ? stop : released(state, *held);
    give(f, state->priv.bytes, out);
    *held -= out;
    memmove(state->priv.bytes, state->priv.bytes + out, *held);
    f->stopped = stop != SIZE_MAX;
}

/* Bytes of one token; end: nothing will follow. The state holds whole characters, then at most 3 bytes of one
 * that is not complete. */
static void feed(struct flow *f, const char *bytes, size_t n, int end)
{
    segue_text *state = &f->state;
    char part[8];
    size_t held = sg_utf8_valid(state->priv.bytes, state->priv.held), part_n = state->priv.held - held,
           at = 0, len;
    memcpy(part, state->priv.bytes + held, part_n);
    while (part_n || at < n) {
        const char *s = bytes + at;
        size_t left = n - at;
        if (part_n) { /* put up to 3 new bytes behind the incomplete ones */
            size_t taken = left < 3 ? left : 3;
            memcpy(part + part_n, s, taken);
            s = part;
            left = part_n + taken;
        }
        enum sg_utf8 kind = sg_utf8_step(s, left, &len);
        if (kind == SG_UTF8_CUT && !end) {
            memmove(part, s, left);
            part_n = left;
            at = n;
            break;
        }
        if (kind == SG_UTF8_CHAR)
            character(f, &held, s, len);
        else
            character(f, &held, "\xef\xbf\xbd", 3);
        if (!part_n) {
            at += len;
        } else if (len >= part_n) {
            at += len - part_n;
            part_n = 0;
        } else { /* a bad start of the part: the rest of it is looked at again */
            part_n -= len;
            memmove(part, part + len, part_n);
        }
    }
    memcpy(state->priv.bytes + held, part, part_n);
    state->priv.held = (uint32_t)(held + part_n);
    if (!end) return;
    give(f, state->priv.bytes, held);
    state->priv.held = 0;
}

static segue_status known(const struct sg_tokenizer *t, int32_t token, segue_error *err)
{
    if (token >= 0 && (uint32_t)token < t->tokens_n) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG,
                   "detokenize: token %d: the vocabulary has 0..%u; check where it comes from", (int)token,
                   t->tokens_n - 1);
}

/* Control tokens vanish when the caller wants none; user tokens such as <think> stay. */
static void feed_token(struct flow *f, const struct sg_tokenizer *t, int32_t token)
{
    const struct sg_token *k = &t->tokens[token];
    int hidden = f->state.flags & SEGUE_TEXT_NO_SPECIAL &&
                 (k->kind == SG_TOKEN_CONTROL || k->kind == SG_TOKEN_UNKNOWN);
    if (k->bytes_len && !hidden) feed(f, k->bytes, k->bytes_len, 0);
}

segue_status sg_detokenize(const struct sg_tokenizer *t, const int32_t *tokens, size_t n, unsigned flags,
                           char *text, size_t cap, size_t *len, segue_error *err)
{
    if (!t || (!tokens && n) || (!text && cap) || !len)
        return sg_fail(err, SEGUE_EARG,
                       "detokenize: a pointer is NULL: nothing to work on; pass tokenizer, tokens and len");
    struct flow f = {
        .state = {.size = sizeof f.state, .flags = flags}, .strip = t->strip_space, .text = text, .cap = cap};
    for (size_t i = 0; i < n; i++) SG_TRY(known(t, tokens[i], err));
    for (size_t i = 0; i < n; i++) feed_token(&f, t, tokens[i]);
    feed(&f, "", 0, 1);
    *len = f.n;
    if (f.n > cap)
        return sg_fail(err, SEGUE_ELIMIT,
                       "detokenize: buffer too small: %zu bytes needed, %zu given; call again", f.n, cap);
    if (f.n < cap) text[f.n] = 0;
    return SEGUE_OK;
}

/* The struct is the caller's plain memory: nothing in it is trusted. */
static segue_status check_state(const segue_text *state, segue_error *err)
{
    if (state->size < sizeof *state)
        return sg_fail(err, SEGUE_EARG, "text: segue_text of %u bytes: %zu expected; use SEGUE_INIT",
                       state->size, sizeof *state);
    if (state->priv.held > HOLD - 8)
        return sg_fail(err, SEGUE_EARG,
                       "text: segue_text: its priv part is damaged; zero it before the first call");
    if (state->stops_n && !state->stops)
        return sg_fail(err, SEGUE_EARG, "text: stop strings: the list is NULL; set stops");
    for (size_t i = 0; i < state->stops_n; i++) {
        if (!state->stops[i] || !*state->stops[i])
            return sg_fail(err, SEGUE_EARG, "text: stop string %zu: it is empty; leave it out", i);
        if (strlen(state->stops[i]) > LONGEST_STOP)
            return sg_fail(err, SEGUE_EARG, "text: stop string %zu: more than %d bytes; shorten it", i,
                           LONGEST_STOP);
    }
    return SEGUE_OK;
}

segue_status sg_text_next(const struct sg_tokenizer *t, segue_text *state, int32_t token, char *text,
                          size_t cap, size_t *len, segue_error *err)
{
    if (!t || !state || (!text && cap) || !len)
        return sg_fail(err, SEGUE_EARG,
                       "text: a pointer is NULL: nothing to work on; pass tokenizer, state and len");
    SG_TRY(check_state(state, err));
    if (token != -1) SG_TRY(known(t, token, err));
    struct flow f = {.state = *state, .strip = t->strip_space, .text = text, .cap = cap};
    if (!state->priv.ended) {
        if (token == -1)
            feed(&f, "", 0, 1);
        else
            feed_token(&f, t, token);
    }
    *len = f.n;
    if (f.n > cap)
        return sg_fail(err, SEGUE_ELIMIT,
                       "text: buffer too small: %zu bytes for one piece, %zu given; call again", f.n, cap);
    if (f.n < cap) text[f.n] = 0;
    if (f.stopped) {
        f.state.priv.ended = 1;
        f.state.priv.held = 0;
    }
    state->priv = f.state.priv;
    return state->priv.ended ? SEGUE_END : SEGUE_OK;
}

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
