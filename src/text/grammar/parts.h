/* parts.h: the parts of a grammar. A reader (gbnf.c, pattern.c, schema*.c) appends rules to a builder (grammar_build.c); the
 * builder checks them and makes a program; the automaton (automaton.c) runs the program byte by byte with explicit stacks and
 * keeps every state that it has met; mask.c walks the token trie (trie.c) with it, or takes plain tokens (plain_tokens.c)
 * together where a state treats their characters alike (plain_state.c). SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_GRAMMAR_PARTS_H
#define SG_TEXT_GRAMMAR_PARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "text/grammar/grammar.h"

/* Limits. TEXT: bytes of a grammar or schema. RULES, ELEMENTS: of a program. DEPTH: of groups, and of schemas. NODES: stack nodes
 * of one state. WORK: stack nodes visited for one mask. CACHE: bytes of states that are kept; then all are forgotten. */
enum {
    SG_GRAMMAR_TEXT_MAX = 1 << 20,
    SG_GRAMMAR_RULES_MAX = 1 << 17,
    SG_GRAMMAR_ELEMENTS_MAX = 1 << 20,
    SG_GRAMMAR_DEPTH_MAX = 256,
    SG_GRAMMAR_NODES_MAX = 4096,
    SG_GRAMMAR_WORK_MAX = 40000000,
    SG_GRAMMAR_CACHE_MAX = 64 << 20
};
#define SG_NO_RULE UINT32_MAX
#define SG_REPEAT_MAX UINT32_MAX /* no upper bound */

/* --- the program --- */

enum sg_element_op {
    SG_ELEMENT_END,    /* end of an alternative */
    SG_ELEMENT_BYTES,  /* one byte of set a */
    SG_ELEMENT_CALL,   /* rule a */
    SG_ELEMENT_REPEAT, /* rule a, min to max times */
    SG_ELEMENT_OBJECT  /* members of a JSON object in any order: object a */
};
struct sg_element {
    uint32_t op, a, min, max;
};
struct sg_byte_set {
    uint32_t bits[8];
};
/* Members of a JSON object: at most 62 named ones, each at most once, and any number of others. Every rule is a whole member; the
 * `next` rules begin with the comma. */
enum { SG_MEMBERS_MAX = 62 };
struct sg_members {
    uint32_t n;
    uint64_t required;              /* bit i: member i must occur */
    uint32_t *first, *next;         /* [n] rules; owned */
    uint32_t more_first, more_next; /* other members; SG_NO_RULE: not allowed */
};

/* One rule while it is built: its alternatives, each closed by an END. */
struct sg_rule {
    struct sg_element *elements;
    uint32_t n, cap;
    uint32_t nullable, productive; /* may be empty; matches some finite text */
};

/* --- grammar_build.c --- */

/* Functions on a builder do nothing once `status` is set; a reader checks it now and then. */
struct sg_grammar_builder {
    segue_status status;
    segue_error *err;
    struct sg_rule *rules; /* [rules_n] */
    uint32_t rules_n, rules_cap;
    struct sg_byte_set *sets; /* [sets_n] */
    uint32_t sets_n, sets_cap;
    struct sg_members *members; /* [members_n] */
    uint32_t members_n, members_cap;
    uint32_t elements_n;
    uint32_t json; /* 1: characters are inside a JSON string and may be escaped */
    /* The rules made by sg_build_chars, to use them again: key is a hash of ranges and mode. */
    struct sg_char_rule {
        uint64_t key;
        uint32_t rule;
    } char_rules[256];
};
/* Set the failure; returns it. */
segue_status sg_build_fail(struct sg_grammar_builder *b, segue_status status, const char *format, ...) SG_FORMAT(3, 4);
uint32_t sg_build_rule(struct sg_grammar_builder *b);
/* Append to the open alternative of a rule. */
void sg_build_bytes(struct sg_grammar_builder *b, uint32_t rule, const struct sg_byte_set *set);
void sg_build_byte_range(struct sg_grammar_builder *b, uint32_t rule, uint32_t low, uint32_t high);
void sg_build_text(struct sg_grammar_builder *b, uint32_t rule, const char *bytes, size_t n);
void sg_build_call(struct sg_grammar_builder *b, uint32_t rule, uint32_t callee);
void sg_build_repeat(struct sg_grammar_builder *b, uint32_t rule, uint32_t callee, uint32_t min, uint32_t max);
/* Takes over first and next, which come from sg_alloc. */
void sg_build_members(struct sg_grammar_builder *b, uint32_t rule, const struct sg_members *members);
/* Close the open alternative. */
void sg_build_end(struct sg_grammar_builder *b, uint32_t rule);
/* Make the last element of the open alternative repeat. */
void sg_build_repeat_last(struct sg_grammar_builder *b, uint32_t rule, uint32_t min, uint32_t max);
void sg_builder_free(struct sg_grammar_builder *b);

/* A finished program. */
struct sg_program_text {
    struct sg_element *elements; /* [elements_n] all alternatives, each closed by an END */
    uint32_t *alternatives;      /* indices into elements */
    uint32_t *first;             /* [rules_n + 1] alternatives of rule r: [first[r], first[r + 1]) */
    struct sg_byte_set *sets;    /* of the builder */
    struct sg_members *members;  /* [members_n] of the builder */
    uint32_t elements_n, rules_n, members_n;
};
/* Removes alternatives that match no finite text, and refuses left recursion. Takes over the builder's tables. */
segue_status sg_build_program(struct sg_grammar_builder *b, uint32_t root, struct sg_program_text *out);
void sg_program_text_free(struct sg_program_text *p);

/* --- chars.c: characters as bytes --- */

struct sg_char_range {
    uint32_t low, high;
};
struct sg_char_set {
    struct sg_char_range *ranges; /* [n] */
    uint32_t n, cap;
};
void sg_chars_add(struct sg_grammar_builder *b, struct sg_char_set *s, uint32_t low, uint32_t high);
/* Sort and join. */
void sg_chars_sort(struct sg_char_set *s);
/* All characters (without surrogates) that are not in s. */
void sg_chars_invert(struct sg_grammar_builder *b, struct sg_char_set *s);
void sg_chars_free(struct sg_char_set *s);
/* Append one character of the set: its UTF-8, and with b->json its escapes too. */
void sg_build_chars(struct sg_grammar_builder *b, uint32_t rule, struct sg_char_set *s);
void sg_build_char(struct sg_grammar_builder *b, uint32_t rule, uint32_t c);
/* One character of UTF-8 at text[*at]; UINT32_MAX: not valid. *at moves after it. */
uint32_t sg_utf8_next(const char *text, size_t len, size_t *at);

/* --- readers: append rules, return the root --- */

uint32_t sg_gbnf_read(struct sg_grammar_builder *b, const char *text, size_t len);
/* whole: the expression matches the whole text, else it is searched in it. With b->json: the value of a JSON string. */
uint32_t sg_pattern_read(struct sg_grammar_builder *b, const char *text, size_t len, int whole);
uint32_t sg_schema_read(struct sg_grammar_builder *b, const char *text, size_t len);

/* --- trie.c --- */

/* A node in preorder: the nodes of its subtree follow it, up to `end`. */
struct sg_trie_node {
    uint8_t byte;
    uint8_t depth; /* of the root's children: 1; tokens of more than 255 bytes are never allowed */
    uint16_t reserved;
    uint32_t end;         /* index of the first node after the subtree */
    uint32_t first, last; /* tokens that end here: [first, last) of sg_token_trie.tokens */
};
struct sg_trie {
    struct sg_trie_node *nodes; /* [nodes_n] without the root */
    int32_t *tokens;            /* [tokens_n] in the order of the nodes */
    uint8_t *chars;             /* [tokens_n] characters of each token; NULL: they are not plain */
    uint32_t nodes_n, tokens_n;
};
/* Plain tokens: whole characters in UTF-8, from U+0020 on without the double quote, the backslash and U+007F. Inside strings and
 * free texts only their number of characters matters. */
enum { SG_PLAIN_MAPS = 16, SG_PLAIN_CHARS_MAX = 255 };
struct sg_plain_tokens {
    struct sg_trie trie;
    uint32_t *maps;                        /* [SG_PLAIN_MAPS + 2][words] tokens of at most i characters; the last: all */
    int32_t *tokens;                       /* by their number of characters */
    uint32_t from[SG_PLAIN_CHARS_MAX + 2]; /* those of n characters: [from[n], from[n + 1]) */
    uint32_t words, longest;               /* words of a mask; characters of the longest token */
};
struct sg_token_trie {
    const struct sg_tokenizer *tokenizer;
    struct sg_plain_tokens plain;
    struct sg_trie other; /* of the tokens that are not plain */
    uint32_t vocab, longest; /* longest: bytes */
};

/* --- plain_tokens.c --- */

/* Characters of a plain token; 0: it is not plain. */
uint32_t sg_plain_chars(const char *bytes, size_t len);
/* Everything but the trie, which is there. EMEMORY. */
segue_status sg_plain_tokens_make(struct sg_plain_tokens *p, uint32_t vocab, segue_error *err);
void sg_plain_tokens_free(struct sg_plain_tokens *p);
/* Add the tokens of at most `limit` characters to a mask; those of a node of the trie, `done` characters below the root, with at
 * most `limit` further ones. */
void sg_plain_tokens_add(const struct sg_plain_tokens *p, uint32_t limit, uint32_t *mask);
void sg_plain_node_add(const struct sg_trie *t, uint32_t node, uint32_t done, uint32_t limit, uint32_t *mask);

/* --- automaton.c --- */

/* A stack: the element that comes next, how often it was repeated (REPEAT) or which members were seen (OBJECT), and the stack
 * below. Equal stacks have the same number. */
struct sg_stack_node {
    uint64_t count;
    uint32_t at, below; /* element; number of the stack below, 0: none */
};
/* A state: the stacks that may be next, all at BYTES elements, ascending. */
struct sg_state_node {
    uint32_t first, n; /* in sg_grammar.lists */
    uint32_t accepts;  /* 1: the text may end here */
    uint32_t next;     /* offset of [classes_n] in sg_grammar.next; UINT32_MAX: not there yet */
    uint32_t plain;    /* 2 + the state to which every plain character leads; 1: they lead to several; 0: not known */
    uint32_t *mask;    /* NULL: not there yet */
};
struct sg_grammar {
    struct sg_program_text program;
    const struct sg_token_trie *trie;
    int32_t *stops;
    size_t stops_n;
    uint32_t root, counts; /* counts: 1: there are repetitions with large bounds */
    uint8_t byte_class[256]; /* bytes of one class are in the same sets, so that they lead to the same states */
    uint32_t classes_n;
    /* The cache, guarded by lock. */
    pthread_mutex_t lock;
    uint32_t generation;          /* grows when the cache is emptied */
    struct sg_stack_node *stacks; /* [stacks_n] number 0 is no stack */
    uint32_t *stack_slots;        /* hash table of numbers */
    uint32_t stacks_n, stacks_cap, stack_slots_n;
    struct sg_state_node *states; /* [states_n] number 0 is the dead state, 1 the beginning, 2 the end after a stop token */
    uint32_t *state_slots;
    uint32_t states_n, states_cap, state_slots_n;
    uint32_t *lists;
    uint32_t lists_n, lists_cap;
    uint32_t *next; /* transitions: state + 1; 0: not known */
    uint32_t next_n, next_cap;
    uint32_t *marks; /* [stacks_cap] stamp of the closure that has visited a stack */
    uint32_t stamp;
    uint32_t *work, *found; /* of a closure: stacks to visit; stacks at BYTES */
    uint32_t work_n, work_cap, found_n, found_cap;
    uint64_t steps; /* stacks visited since the call began */
    size_t cache_bytes;
};
enum { SG_STATE_DEAD = 0, SG_STATE_BEGIN = 1, SG_STATE_ENDED = 2 };
/* Sets byte_class and classes_n of a new grammar. */
void sg_automaton_classes(struct sg_grammar *g);
/* With the lock: empties the cache if it is too large. */
segue_status sg_automaton_begin(struct sg_grammar *g, segue_error *err);
/* With the lock: the state after a byte. */
segue_status sg_automaton_step(struct sg_grammar *g, uint32_t state, uint8_t byte, uint32_t *out, segue_error *err);
/* The state after a byte, plus one; 0: sg_automaton_step must find it. */
static inline uint32_t sg_automaton_known(const struct sg_grammar *g, uint32_t state, uint8_t byte)
{
    const struct sg_state_node *s = &g->states[state];
    if (!s->n) return SG_STATE_DEAD + 1;
    return s->next == UINT32_MAX ? 0 : g->next[s->next + g->byte_class[byte]];
}
/* With the lock: a state with the same mask as this one, and the same for all large counts. */
segue_status sg_automaton_mask_state(struct sg_grammar *g, uint32_t state, uint32_t *out, segue_error *err);
void sg_automaton_free(struct sg_grammar *g);

/* --- plain_state.c --- */

/* With the lock: how many plain characters may follow a state, whichever they are, at most those of the longest plain token.
 * SG_PLAIN_SEVERAL: that depends on the characters. */
#define SG_PLAIN_SEVERAL UINT32_MAX
segue_status sg_plain_limit(struct sg_grammar *g, uint32_t state, uint32_t *limit, segue_error *err);

/* Value of a hexadecimal digit; -1: c is none. */
static inline int sg_hex_digit(int c)
{
    int lower = c | 0x20;
    return c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

#endif
