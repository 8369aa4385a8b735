/* jinja_parser.c: what all parts of the parser share: the token stream with one token of lookahead, error messages,
 * allocation of nodes, their depth, and the table that numbers the names of a template. Nodes and tables live in the
 * template's arena and are freed with it, also after an error.
 * SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "text/jinja/parse/jinja_parse.h"

/* Fail with EFORMAT; the message gets the name of the template and the line in front and the advice at the end. */
segue_status sg_parser_fail(struct sg_jinja_parser *p, uint32_t line, const char *format, ...)
{
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sg_fail(p->err, SEGUE_EFORMAT, "template: %s line %u: %s; correct the template", p->t->what,
                   (unsigned)line, text);
}

/* Make the next token current. A token that sg_parser_peek read comes before the rest of the source. */
segue_status sg_parser_next(struct sg_jinja_parser *p)
{
    if (p->has_ahead) {
        p->tok = p->ahead;
        p->has_ahead = 0;
        return SEGUE_OK;
    }
    return sg_lexer_next(&p->lx, &p->tok);
}

/* Read the token after the current one. Only one token is ever looked ahead. */
segue_status sg_parser_peek(struct sg_jinja_parser *p, struct sg_jinja_token *out)
{
    if (!p->has_ahead) SG_TRY(sg_lexer_next(&p->lx, &p->ahead));
    p->has_ahead = 1;
    *out = p->ahead;
    return SEGUE_OK;
}

int sg_token_is_op(const struct sg_jinja_token *t, unsigned op) { return t->kind == SG_T_OP && t->op == op; }

int sg_token_is_name(const struct sg_jinja_token *t, const char *name)
{
    return t->kind == SG_T_NAME && t->n == strlen(name) && !memcmp(t->s, name, t->n);
}

int sg_parser_is_op(const struct sg_jinja_parser *p, unsigned op) { return sg_token_is_op(&p->tok, op); }
int sg_parser_is_name(const struct sg_jinja_parser *p, const char *name) { return sg_token_is_name(&p->tok, name); }

/* The current token for a message: 'NAME', '==', "a number" or "end of template". Fixed texts do not use the buffer. */
const char *sg_parser_describe(const struct sg_jinja_parser *p, char text[64])
{
    static const char *const kinds[] = {"end of template", "text", "'{{'", "'}}'", "'{%'", "'%}'"};
    const struct sg_jinja_token *t = &p->tok;
    if (t->kind <= SG_T_BLOCK_END) return kinds[t->kind];
    if (t->kind == SG_T_NAME || t->kind == SG_T_STRING)
        /* the source is untrusted: at most 40 bytes of it go into a message */
        snprintf(text, 64, "'%.*s'", (int)(t->n > 40 ? 40 : t->n), t->s);
    else if (t->kind == SG_T_OP && t->op > 255)
        snprintf(text, 64, "'%c%c'", t->op >> 8, t->op & 255);
    else if (t->kind == SG_T_OP)
        snprintf(text, 64, "'%c'", t->op);
    else
        snprintf(text, 64, "a number");
    return text;
}

/* Unlike sg_parser_expect_op, the message names the open tag: an incomplete tag is the usual cause. */
segue_status sg_parser_expect(struct sg_jinja_parser *p, int kind, const char *text)
{
    char buf[64];
    if (p->tok.kind != kind)
        return sg_parser_fail(p, p->tok.line, "expected %s, got %s%s%s", text, sg_parser_describe(p, buf),
                              p->open_tag ? " inside " : "", p->open_tag ? p->open_tag : "");
    return sg_parser_next(p);
}

/* op: an operator of one character. */
segue_status sg_parser_expect_op(struct sg_jinja_parser *p, unsigned op)
{
    char text[4] = {'\'', (char)op, '\'', 0}, buf[64];
    if (!sg_parser_is_op(p, op))
        return sg_parser_fail(p, p->tok.line, "expected %s, got %s", text, sg_parser_describe(p, buf));
    return sg_parser_next(p);
}

/* *did = 1: the operator was consumed. */
segue_status sg_parser_accept_op(struct sg_jinja_parser *p, unsigned op, int *did)
{
    *did = sg_parser_is_op(p, op);
    return *did ? sg_parser_next(p) : SEGUE_OK;
}

/* *did = 1: the word was consumed. */
segue_status sg_parser_accept_name(struct sg_jinja_parser *p, const char *name, int *did)
{
    *did = sg_parser_is_name(p, name);
    return *did ? sg_parser_next(p) : SEGUE_OK;
}

/* A zeroed node of depth 1. The check of the arena's size bounds what a small but hostile source can make the parser
 * allocate. */
segue_status sg_parser_new_node(struct sg_jinja_parser *p, int kind, uint32_t line, struct sg_jinja_node **out)
{
    if (p->t->arena.total > SG_PARSED_BYTES)
        return sg_fail(p->err, SEGUE_ELIMIT,
                       "template: %s line %u: too large: more than %d MB when parsed; pass a "
                       "smaller template",
                       p->t->what, (unsigned)line, SG_PARSED_BYTES >> 20);
    struct sg_jinja_node *n = sg_arena_alloc(&p->t->arena, sizeof *n);
    if (!n) return sg_no_memory("template node", sizeof *n, p->err);
    n->kind = (uint8_t)kind;
    n->line = line;
    n->depth = 1;
    *out = n;
    return SEGUE_OK;
}

/* Depth of the deepest node of a list, 0 if the list is empty. */
static unsigned list_depth(const struct sg_jinja_node *n)
{
    unsigned d = 0;
    for (; n; n = n->next) d = n->depth > d ? n->depth : d;
    return d;
}

/* Nodes are finished from the leaves to the root, so the depths of the children are known. */
segue_status sg_parser_finish_node(struct sg_jinja_parser *p, struct sg_jinja_node *n)
{
    /* e (the condition of a loop) is counted too: the evaluator recurses into all children */
    const struct sg_jinja_node *const children[] = {n->a, n->b, n->c, n->d, n->e};
    unsigned depth = 0;
    for (size_t i = 0; i < 5; i++) {
        unsigned d = list_depth(children[i]);
        depth = d > depth ? d : depth;
    }
    n->depth = (uint16_t)(depth + 1);
    if (depth >= SG_NODE_DEPTH)
        return sg_parser_fail(p, n->line, "nested deeper than %d levels", SG_NODE_DEPTH);
    return SEGUE_OK;
}

/* The limit bounds the recursion of the parser on the C stack. It is separate from SG_NODE_DEPTH, since
 * left-associative operators build deep trees in a loop, without recursion here. */
segue_status sg_parser_enter(struct sg_jinja_parser *p)
{
    /* each level takes about a dozen C frames, one per level of precedence */
    if (++p->level > 150) return sg_parser_fail(p, p->tok.line, "nested deeper than %d levels", 150);
    return sg_parser_check_stack(p, p->tok.line);
}

segue_status sg_parser_check_stack(struct sg_jinja_parser *p, uint32_t line)
{
    if (!sg_stack_used_up(p->stack)) return SEGUE_OK;
    return sg_parser_fail(p, line, "nested too deep: it needs more than %d KiB of stack", SG_STACK_BYTES >> 10);
}

/* Double the array of names and make an empty hash table of twice its size. Old arrays remain in the arena; the
 * caller enters the names into the new table. */
static segue_status grow_names(struct sg_jinja_parser *p)
{
    struct sg_template *t = p->t;
    uint32_t cap = p->names_cap ? p->names_cap * 2 : 64;
    struct sg_jinja_name *names = sg_arena_alloc(&t->arena, cap * sizeof *names);
    uint32_t *table = sg_arena_alloc(&t->arena, (size_t)cap * 2 * sizeof *table);
    if (!names || !table) return sg_no_memory("template names", cap * sizeof *names, p->err);
    if (t->names_n) memcpy(names, t->names, t->names_n * sizeof *names);
    t->names = names;
    p->names_cap = cap;
    p->table = table;
    p->table_cap = cap * 2;
    return SEGUE_OK;
}

/* The table entry of a name, or the free entry where it belongs. Linear probing; at most half of the entries are
 * used, so that a free one ends each search. */
static uint32_t *name_slot(struct sg_jinja_parser *p, const char *s, size_t n)
{
    for (uint32_t i = (uint32_t)sg_hash_keyed(s, n, p->key);; i++) {
        uint32_t *at = &p->table[i & (p->table_cap - 1)];
        if (!*at) return at;
        const struct sg_jinja_name *name = &p->t->names[*at - 1];
        if (name->n == n && !memcmp(name->s, s, n)) return at;
    }
}

/* *id: number of the name in sg_template.names, which is added when it is new. s must outlive the template. */
segue_status sg_parser_name_id(struct sg_jinja_parser *p, const char *s, size_t n, uint32_t *id)
{
    if (p->t->names_n == p->names_cap) {
        SG_TRY(grow_names(p));
        for (uint32_t i = 0; i < p->t->names_n; i++)
            *name_slot(p, p->t->names[i].s, p->t->names[i].n) = i + 1;
    }
    uint32_t *at = name_slot(p, s, n);
    if (!*at) {
        p->t->names[p->t->names_n++] = (struct sg_jinja_name){s, n};
        *at = p->t->names_n;
    }
    *id = *at - 1;
    return SEGUE_OK;
}
