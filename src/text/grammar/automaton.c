/* automaton.c: runs a program byte by byte. A state is the set of stacks that the bytes so far allow; equal stacks and equal
 * states have one number each, so a transition is computed once and then looked up. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/parts.h"

/* Bit of sg_stack_node.count: a member that is not named was seen. */
#define MORE_SEEN (UINT64_C(1) << SG_MEMBERS_MAX)

static segue_status too_ambiguous(segue_error *err)
{
    return sg_fail(err, SEGUE_ELIMIT,
                   "grammar: too ambiguous: a text can be read in too many ways at once; simplify the grammar");
}

/* Make room for n entries; counts what is added. */
static int reserve(struct sg_grammar *g, void **array, uint32_t *cap, size_t n, size_t size)
{
    if (n <= *cap) return 1;
    size_t more = *cap ? (size_t)*cap * 2 : 256;
    while (more < n) more *= 2;
    void *p = more < UINT32_MAX / 8 ? sg_realloc(*array, more * size) : NULL;
    if (!p) return 0;
    memset((char *)p + *cap * size, 0, (more - *cap) * size);
    g->cache_bytes += (more - *cap) * size;
    *array = p;
    *cap = (uint32_t)more;
    return 1;
}

static uint32_t mix(uint64_t h)
{
    h ^= h >> 31;
    h *= UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(h >> 32);
}

/* --- classes of bytes --- */

/* Divides every class into its bytes in the set and the others. */
static void divide_classes(struct sg_grammar *g, const struct sg_byte_set *set)
{
    uint32_t n = 0, number[256][2] = {0}; /* new number + 1 of the two parts of a class */
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t *part = &number[g->byte_class[byte]][set->bits[byte / 32] >> byte % 32 & 1];
        if (!*part) *part = ++n;
        g->byte_class[byte] = (uint8_t)(*part - 1);
    }
    g->classes_n = n;
}

void sg_automaton_classes(struct sg_grammar *g)
{
    enum { ELEMENTS_MAX = 1 << 16 }; /* a program with more is not searched, so that a request cannot make this slow */
    int large = g->program.elements_n > ELEMENTS_MAX;
    for (uint32_t byte = 0; large && byte < 256; byte++) g->byte_class[byte] = (uint8_t)byte;
    g->classes_n = large ? 256 : 1;
    for (uint32_t i = 0; i < g->program.elements_n && g->classes_n < 256; i++)
        if (g->program.elements[i].op == SG_ELEMENT_BYTES) divide_classes(g, &g->program.sets[g->program.elements[i].a]);
}

/* --- stacks --- */

static uint32_t stack_hash(uint32_t at, uint64_t count, uint32_t below)
{
    return mix(((uint64_t)at << 32 | below) * UINT64_C(0xD6E8FEB86659FD93) ^ count * UINT64_C(0xA0761D6478BD642F));
}

static int grow_stack_slots(struct sg_grammar *g)
{
    uint32_t n = g->stack_slots_n ? g->stack_slots_n * 2 : 1024;
    uint32_t *slots = sg_alloc(n * sizeof *slots);
    if (!slots) return 0;
    for (uint32_t i = 1; i < g->stacks_n; i++) {
        const struct sg_stack_node *s = &g->stacks[i];
        uint32_t at = stack_hash(s->at, s->count, s->below) & (n - 1);
        while (slots[at]) at = (at + 1) & (n - 1);
        slots[at] = i;
    }
    sg_free(g->stack_slots);
    g->stack_slots = slots;
    g->cache_bytes += (n - g->stack_slots_n) * sizeof *slots;
    g->stack_slots_n = n;
    return 1;
}

/* The number of a stack; 0: out of memory. */
static uint32_t stack_number(struct sg_grammar *g, uint32_t at, uint64_t count, uint32_t below)
{
    if (g->stacks_n * 2 >= g->stack_slots_n && !grow_stack_slots(g)) return 0;
    uint32_t mask = g->stack_slots_n - 1, slot = stack_hash(at, count, below) & mask;
    for (; g->stack_slots[slot]; slot = (slot + 1) & mask) {
        const struct sg_stack_node *s = &g->stacks[g->stack_slots[slot]];
        if (s->at == at && s->count == count && s->below == below) return g->stack_slots[slot];
    }
    uint32_t cap = g->stacks_cap;
    if (!reserve(g, (void **)&g->marks, &cap, g->stacks_n + 1, sizeof *g->marks)) return 0;
    if (!reserve(g, (void **)&g->stacks, &g->stacks_cap, g->stacks_n + 1, sizeof *g->stacks)) return 0;
    g->stacks[g->stacks_n] = (struct sg_stack_node){count, at, below};
    g->stack_slots[slot] = g->stacks_n;
    return g->stacks_n++;
}

/* --- closures: from stacks at any element to stacks at BYTES elements --- */

static int visit(struct sg_grammar *g, uint32_t stack)
{
    if (!stack) return 0;
    if (g->marks[stack] == g->stamp) return 1;
    g->marks[stack] = g->stamp;
    if (!reserve(g, (void **)&g->work, &g->work_cap, g->work_n + 1, sizeof *g->work)) return 0;
    g->work[g->work_n++] = stack;
    return 1;
}

static int visit_new(struct sg_grammar *g, uint32_t at, uint64_t count, uint32_t below)
{
    return visit(g, stack_number(g, at, count, below));
}

/* All alternatives of a rule on top of stack `below`. */
static int visit_rule(struct sg_grammar *g, uint32_t rule, uint32_t below)
{
    const struct sg_program_text *p = &g->program;
    for (uint32_t i = p->first[rule]; i < p->first[rule + 1]; i++)
        if (!visit_new(g, p->alternatives[i], 0, below)) return 0;
    return 1;
}

static int visit_repeat(struct sg_grammar *g, const struct sg_element *e, struct sg_stack_node s)
{
    uint64_t after = s.count + 1;
    /* Without an upper bound, all counts from min on are alike. */
    if (e->max == SG_REPEAT_MAX && after > e->min) after = e->min;
    if (s.count >= e->min && !visit_new(g, s.at + 1, 0, s.below)) return 0;
    if (e->max != SG_REPEAT_MAX && s.count >= e->max) return 1;
    uint32_t back = stack_number(g, s.at, after, s.below);
    return back && visit_rule(g, e->a, back);
}

static int visit_members(struct sg_grammar *g, const struct sg_element *e, struct sg_stack_node s)
{
    const struct sg_members *m = &g->program.members[e->a];
    if ((s.count & m->required) == m->required && !visit_new(g, s.at + 1, 0, s.below)) return 0;
    for (uint32_t i = 0; i <= m->n; i++) {
        uint64_t bit = i < m->n ? UINT64_C(1) << i : MORE_SEEN;
        uint32_t rule = i < m->n ? (s.count ? m->next[i] : m->first[i]) : s.count ? m->more_next : m->more_first;
        if (rule == SG_NO_RULE || (i < m->n && s.count & bit)) continue;
        uint32_t back = stack_number(g, s.at, s.count | bit, s.below);
        if (!back || !visit_rule(g, rule, back)) return 0;
    }
    return 1;
}

/* One stack of the work list. */
static int expand(struct sg_grammar *g, uint32_t number, uint32_t *accepts)
{
    struct sg_stack_node s = g->stacks[number];
    const struct sg_element *e = &g->program.elements[s.at];
    uint32_t back = s.below;
    switch (e->op) {
    case SG_ELEMENT_END:
        if (!s.below) *accepts = 1;
        return !s.below || visit(g, s.below);
    case SG_ELEMENT_BYTES:
        if (!reserve(g, (void **)&g->found, &g->found_cap, g->found_n + 1, sizeof *g->found)) return 0;
        g->found[g->found_n++] = number;
        return 1;
    case SG_ELEMENT_CALL:
        /* A call at the end of an alternative returns to where that one returns: repetition by recursion needs no stack. */
        if (e[1].op != SG_ELEMENT_END && !(back = stack_number(g, s.at + 1, 0, s.below))) return 0;
        return visit_rule(g, e->a, back);
    case SG_ELEMENT_REPEAT:
        return visit_repeat(g, e, s);
    default:
        return visit_members(g, e, s);
    }
}

static void begin_closure(struct sg_grammar *g)
{
    g->stamp++;
    g->work_n = g->found_n = 0;
}

/* --- states --- */

static uint32_t list_hash(const uint32_t *list, uint32_t n, uint32_t accepts)
{
    uint64_t h = accepts;
    for (uint32_t i = 0; i < n; i++) h = (h ^ list[i]) * UINT64_C(0x9E3779B97F4A7C15) + (h >> 29);
    return mix(h);
}

static int grow_state_slots(struct sg_grammar *g)
{
    uint32_t n = g->state_slots_n ? g->state_slots_n * 2 : 256;
    uint32_t *slots = sg_alloc(n * sizeof *slots);
    if (!slots) return 0;
    for (uint32_t i = 3; i < g->states_n; i++) {
        const struct sg_state_node *s = &g->states[i];
        uint32_t at = list_hash(g->lists + s->first, s->n, s->accepts) & (n - 1);
        while (slots[at]) at = (at + 1) & (n - 1);
        slots[at] = i;
    }
    sg_free(g->state_slots);
    g->state_slots = slots;
    g->cache_bytes += (n - g->state_slots_n) * sizeof *slots;
    g->state_slots_n = n;
    return 1;
}

static int add_state(struct sg_grammar *g, const uint32_t *list, uint32_t n, uint32_t accepts)
{
    if (!reserve(g, (void **)&g->states, &g->states_cap, g->states_n + 1, sizeof *g->states)) return 0;
    if (!reserve(g, (void **)&g->lists, &g->lists_cap, g->lists_n + n, sizeof *g->lists)) return 0;
    if (n) memcpy(g->lists + g->lists_n, list, n * sizeof *list);
    g->states[g->states_n++] = (struct sg_state_node){.first = g->lists_n, .n = n, .accepts = accepts, .next = UINT32_MAX};
    g->lists_n += n;
    return 1;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The state of the found stacks. */
static segue_status found_state(struct sg_grammar *g, uint32_t accepts, uint32_t *out, segue_error *err)
{
    if (!g->found_n && !accepts) {
        *out = SG_STATE_DEAD;
        return SEGUE_OK;
    }
    if (g->found_n) qsort(g->found, g->found_n, sizeof *g->found, compare);
    if (g->states_n * 2 >= g->state_slots_n && !grow_state_slots(g)) return sg_no_memory("grammar", g->cache_bytes, err);
    uint32_t mask = g->state_slots_n - 1, slot = list_hash(g->found, g->found_n, accepts) & mask;
    for (; g->state_slots[slot]; slot = (slot + 1) & mask) {
        const struct sg_state_node *s = &g->states[g->state_slots[slot]];
        if (s->n == g->found_n && s->accepts == accepts &&
            (!s->n || !memcmp(g->lists + s->first, g->found, s->n * sizeof *g->found))) {
            *out = g->state_slots[slot];
            return SEGUE_OK;
        }
    }
    if (!add_state(g, g->found, g->found_n, accepts)) return sg_no_memory("grammar", g->cache_bytes, err);
    g->state_slots[slot] = *out = g->states_n - 1;
    return SEGUE_OK;
}

static segue_status close_state(struct sg_grammar *g, uint32_t *out, segue_error *err)
{
    uint32_t accepts = 0;
    while (g->work_n) {
        if (++g->steps > SG_GRAMMAR_WORK_MAX || g->found_n > SG_GRAMMAR_NODES_MAX ||
            g->cache_bytes > (size_t)SG_GRAMMAR_CACHE_MAX * 4)
            return too_ambiguous(err);
        if (!expand(g, g->work[--g->work_n], &accepts)) return sg_no_memory("grammar", g->cache_bytes, err);
    }
    return found_state(g, accepts, out, err);
}

static void empty_cache(struct sg_grammar *g)
{
    for (uint32_t i = 0; i < g->states_n; i++) sg_free(g->states[i].mask);
    sg_free(g->stacks), sg_free(g->stack_slots), sg_free(g->states), sg_free(g->state_slots), sg_free(g->lists);
    sg_free(g->next), sg_free(g->marks), sg_free(g->work), sg_free(g->found);
    g->stacks = NULL, g->stack_slots = NULL, g->states = NULL, g->state_slots = NULL, g->lists = NULL;
    g->next = NULL, g->marks = NULL, g->work = NULL, g->found = NULL;
    g->stacks_n = g->stacks_cap = g->stack_slots_n = g->states_n = g->states_cap = g->state_slots_n = 0;
    g->lists_n = g->lists_cap = g->next_n = g->next_cap = g->stamp = 0;
    g->work_n = g->work_cap = g->found_n = g->found_cap = 0;
    g->cache_bytes = 0;
}

void sg_automaton_free(struct sg_grammar *g) { empty_cache(g); }

segue_status sg_automaton_begin(struct sg_grammar *g, segue_error *err)
{
    uint32_t accepts = 0;
    g->steps = 0;
    if (g->states_n && g->cache_bytes < SG_GRAMMAR_CACHE_MAX) return SEGUE_OK;
    empty_cache(g);
    g->generation++;
    if (!g->generation) g->generation = 1;
    int ok = reserve(g, (void **)&g->marks, &(uint32_t){0}, 256, sizeof *g->marks) &&
             reserve(g, (void **)&g->stacks, &g->stacks_cap, 256, sizeof *g->stacks);
    g->stacks_n = 1;
    begin_closure(g);
    ok = ok && visit_rule(g, g->root, 0) && grow_state_slots(g) && add_state(g, NULL, 0, 0);
    while (ok && g->work_n) {
        if (++g->steps > SG_GRAMMAR_WORK_MAX || g->found_n > SG_GRAMMAR_NODES_MAX) {
            empty_cache(g);
            return too_ambiguous(err);
        }
        ok = expand(g, g->work[--g->work_n], &accepts);
    }
    if (ok && g->found_n) qsort(g->found, g->found_n, sizeof *g->found, compare);
    ok = ok && add_state(g, g->found, g->found_n, accepts) && add_state(g, NULL, 0, 0);
    if (ok) return SEGUE_OK;
    empty_cache(g);
    return sg_no_memory("grammar", 0, err);
}

segue_status sg_automaton_step(struct sg_grammar *g, uint32_t state, uint8_t byte, uint32_t *out, segue_error *err)
{
    *out = SG_STATE_DEAD;
    if (!g->states[state].n) return SEGUE_OK;
    if (g->states[state].next == UINT32_MAX) {
        if (!reserve(g, (void **)&g->next, &g->next_cap, (size_t)g->next_n + g->classes_n, sizeof *g->next))
            return sg_no_memory("grammar", g->cache_bytes, err);
        g->states[state].next = g->next_n;
        g->next_n += g->classes_n;
    }
    uint32_t known = g->next[g->states[state].next + g->byte_class[byte]];
    if (known) {
        *out = known - 1;
        return SEGUE_OK;
    }
    begin_closure(g);
    for (uint32_t i = 0; i < g->states[state].n; i++) {
        struct sg_stack_node s = g->stacks[g->lists[g->states[state].first + i]];
        const struct sg_byte_set *set = &g->program.sets[g->program.elements[s.at].a];
        if (!(set->bits[byte / 32] >> byte % 32 & 1)) continue;
        if (!visit_new(g, s.at + 1, 0, s.below)) return sg_no_memory("grammar", g->cache_bytes, err);
    }
    SG_TRY(close_state(g, out, err));
    g->next[g->states[state].next + g->byte_class[byte]] = *out + 1;
    return SEGUE_OK;
}

/* --- counts that a token cannot tell apart --- */

/* A count whose bounds are farther away than the longest token: the nearest such count stands for all. */
static uint64_t plain_count(const struct sg_element *e, uint64_t count, uint64_t longest)
{
    if (e->op != SG_ELEMENT_REPEAT) return count;
    if (count < e->min) return e->min - count > longest + 1 ? e->min - longest - 1 : count;
    if (e->max == SG_REPEAT_MAX || e->max - count <= longest + 1) return count;
    uint64_t plain = e->max - longest - 1;
    return plain < e->min ? count : plain;
}

/* The stack with plain counts: from its bottom up. */
static uint32_t plain_stack(struct sg_grammar *g, uint32_t stack)
{
    uint64_t longest = g->trie ? g->trie->longest : 0;
    g->work_n = 0;
    for (uint32_t s = stack; s; s = g->stacks[s].below) {
        if (!reserve(g, (void **)&g->work, &g->work_cap, g->work_n + 1, sizeof *g->work)) return 0;
        g->work[g->work_n++] = s;
        g->steps++;
    }
    uint32_t below = 0;
    while (g->work_n) {
        struct sg_stack_node s = g->stacks[g->work[--g->work_n]];
        below = stack_number(g, s.at, plain_count(&g->program.elements[s.at], s.count, longest), below);
        if (!below) return 0;
    }
    return below;
}

segue_status sg_automaton_mask_state(struct sg_grammar *g, uint32_t state, uint32_t *out, segue_error *err)
{
    *out = state;
    if (!g->counts || !g->states[state].n) return SEGUE_OK;
    begin_closure(g);
    for (uint32_t i = 0; i < g->states[state].n; i++) {
        uint32_t plain = plain_stack(g, g->lists[g->states[state].first + i]);
        if (!plain || !reserve(g, (void **)&g->found, &g->found_cap, g->found_n + 1, sizeof *g->found))
            return sg_no_memory("grammar", g->cache_bytes, err);
        uint32_t k = 0;
        while (k < g->found_n && g->found[k] != plain) k++;
        if (k == g->found_n) g->found[g->found_n++] = plain;
    }
    return found_state(g, g->states[state].accepts, out, err);
}
