/* plain_state.c: states that treat all plain characters (parts.h) alike, such as those inside a JSON string. Where each of them
 * leads to one state, and those of that state to one again, a token is allowed if it has few enough characters.
 * SPDX-License-Identifier: MIT */
#include "text/grammar/parts.h"

enum { UNKNOWN, SEVERAL, FIRST }; /* sg_state_node.plain: FIRST + state */

/* A search for a character that leads elsewhere. */
struct plain_search {
    struct sg_grammar *g;
    uint32_t target;    /* where the first character leads */
    uint32_t tail[2];   /* a state from which every tail of one, of two continuation bytes leads to the target */
    int same;
    segue_error *err;
};

/* One continuation byte. */
static segue_status tail_1(struct plain_search *q, uint32_t state)
{
    if (state == q->tail[0]) return SEGUE_OK;
    for (uint32_t b = 0x80; b <= 0xBF && q->same; b++) {
        uint32_t to;
        SG_TRY(sg_automaton_step(q->g, state, (uint8_t)b, &to, q->err));
        q->same = to == q->target;
    }
    q->tail[0] = state;
    return SEGUE_OK;
}

/* Two of them, the first one in [low, high]. */
static segue_status tail_2(struct plain_search *q, uint32_t state, uint32_t low, uint32_t high)
{
    int whole = low == 0x80 && high == 0xBF;
    if (whole && state == q->tail[1]) return SEGUE_OK;
    for (uint32_t b = low; b <= high && q->same; b++) {
        uint32_t to;
        SG_TRY(sg_automaton_step(q->g, state, (uint8_t)b, &to, q->err));
        SG_TRY(tail_1(q, to));
    }
    if (whole) q->tail[1] = state;
    return SEGUE_OK;
}

static segue_status tail_3(struct plain_search *q, uint32_t state, uint32_t low, uint32_t high)
{
    for (uint32_t b = low; b <= high && q->same; b++) {
        uint32_t to;
        SG_TRY(sg_automaton_step(q->g, state, (uint8_t)b, &to, q->err));
        SG_TRY(tail_2(q, to, 0x80, 0xBF));
    }
    return SEGUE_OK;
}

/* The characters that begin with a byte from 0xC2 on; the ranges are those of UTF-8 without surrogates. */
static segue_status long_chars(struct plain_search *q, uint32_t state, uint32_t lead)
{
    uint32_t to;
    SG_TRY(sg_automaton_step(q->g, state, (uint8_t)lead, &to, q->err));
    if (lead < 0xE0) return tail_1(q, to);
    if (lead < 0xF0) return tail_2(q, to, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF);
    return tail_3(q, to, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF);
}

/* Sets states[state].plain. */
static segue_status find_target(struct sg_grammar *g, uint32_t state, segue_error *err)
{
    struct plain_search q = {.g = g, .tail = {UINT32_MAX, UINT32_MAX}, .same = 1, .err = err};
    SG_TRY(sg_automaton_step(g, state, ' ', &q.target, err));
    for (uint32_t b = '!'; b < 0x7F && q.same; b++) {
        uint32_t to = q.target;
        if (b != '"' && b != '\\') SG_TRY(sg_automaton_step(g, state, (uint8_t)b, &to, err));
        q.same = to == q.target;
    }
    for (uint32_t lead = 0xC2; lead <= 0xF4 && q.same; lead++) SG_TRY(long_chars(&q, state, lead));
    g->states[state].plain = q.same ? FIRST + q.target : SEVERAL;
    return SEGUE_OK;
}

segue_status sg_plain_limit(struct sg_grammar *g, uint32_t state, uint32_t *limit, segue_error *err)
{
    uint32_t longest = g->trie->plain.longest;
    *limit = 0;
    for (; *limit < longest; ++*limit) {
        if (g->states[state].plain == UNKNOWN) SG_TRY(find_target(g, state, err));
        uint32_t found = g->states[state].plain;
        if (found == SEVERAL) {
            *limit = SG_PLAIN_SEVERAL;
            return SEGUE_OK;
        }
        if (found - FIRST == SG_STATE_DEAD) return SEGUE_OK;
        if (found - FIRST == state) break;
        state = found - FIRST;
    }
    *limit = longest;
    return SEGUE_OK;
}
