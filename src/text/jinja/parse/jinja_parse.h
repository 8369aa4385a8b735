/* jinja_parse.h: template source to nodes: lexer, parser and binding of names. The grammar is that of jinja2 with
 * trim_blocks, lstrip_blocks, the loopcontrols extension and the tag `generation`, as transformers configures it. Tags
 * that load other templates do not exist. Errors: EFORMAT with the line, ELIMIT, EMEMORY.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_JINJA_PARSE_H
#define SG_TEXT_JINJA_PARSE_H

#include "text/jinja/jinja_ast.h"
#include "text/jinja/value/jinja_state.h"

/* Kinds of tokens. DATA is text outside of tags, OP an operator or a bracket. */
enum sg_jinja_token_kind {
    SG_T_EOF,
    SG_T_DATA,
    SG_T_VAR_BEGIN,
    SG_T_VAR_END,
    SG_T_BLOCK_BEGIN,
    SG_T_BLOCK_END,
    SG_T_NAME,
    SG_T_STRING,
    SG_T_INT,
    SG_T_FLOAT,
    SG_T_OP
};

/* An operator of two characters is a << 8 | b in ASCII codes. */
#define SG_OP2(a, b) ((unsigned)(a) << 8 | (unsigned)(b))

/* A token. Numbers have i (INT) or f (FLOAT). */
struct sg_jinja_token {
    uint8_t kind; /* enum sg_jinja_token_kind */
    uint16_t op;  /* SG_T_OP: the character or SG_OP2 */
    uint32_t line;
    const char *s; /* DATA, NAME, STRING (escapes resolved); in the template's arena */
    size_t n;
    int64_t i;
    double f;
};

/* State of the lexer; it produces one token per call and holds no tokens. */
struct sg_jinja_lexer {
    const char *p, *end; /* rest of the normalized source */
    uint32_t line;
    uint8_t state;      /* an enum of jinja_lex.c: in text, in a variable tag, in a block tag, ... */
    uint8_t line_start; /* 1: the text begins at the start of a line, for lstrip_blocks */
    size_t balance_n;
    char balance[256]; /* closing brackets that are expected */
    struct sg_arena *arena;
    const char *what;
    segue_error *err;
};
/* Copy and normalize the source: newlines become \n, one newline at the end is dropped. */
segue_status sg_lexer_open(struct sg_jinja_lexer *lx, struct sg_arena *arena, const char *source, size_t len,
                           const char *what, segue_error *err);
segue_status sg_lexer_next(struct sg_jinja_lexer *lx, struct sg_jinja_token *out);

/* Height of a tree, which bounds the recursion that walks it; bytes of source; bytes of a parsed template. */
enum { SG_NODE_DEPTH = 250, SG_SOURCE_BYTES = 1 << 20, SG_PARSED_BYTES = 40 << 20 };

/* State of the parser. It lives on the stack of sg_template_open; what it creates is in t. */
struct sg_jinja_parser {
    struct sg_jinja_lexer lx;
    const struct sg_jinja_env *env;    /* resolves the names of filters and tests */
    struct sg_jinja_token tok, ahead;  /* current token; the next one if has_ahead */
    int has_ahead;
    struct sg_template *t;
    uint32_t level, loops;                 /* nesting; loops around this point that `break` may leave */
    uint32_t *table, table_cap, names_cap; /* hash table of t->names: index + 1, 0 = free */
    uint64_t key[2];                       /* random, of that table */
    uintptr_t stack;                       /* where parsing began on the C stack */
    const char *open_tag;                  /* innermost open tag, for messages */
    segue_error *err;
};

/* --- jinja_parser.c: shared by all parts of the parser --- */

int sg_token_is_op(const struct sg_jinja_token *t, unsigned op);
int sg_token_is_name(const struct sg_jinja_token *t, const char *name);
segue_status sg_parser_fail(struct sg_jinja_parser *p, uint32_t line, const char *format, ...) SG_FORMAT(3, 4);
segue_status sg_parser_next(struct sg_jinja_parser *p); /* advance by one token */
segue_status sg_parser_peek(struct sg_jinja_parser *p, struct sg_jinja_token *out);
int sg_parser_is_op(const struct sg_jinja_parser *p, unsigned op);
int sg_parser_is_name(const struct sg_jinja_parser *p, const char *name);
/* Consume the current token, which must be this one. text: its name in the message. */
segue_status sg_parser_expect_op(struct sg_jinja_parser *p, unsigned op);
segue_status sg_parser_expect(struct sg_jinja_parser *p, int kind, const char *text);
/* Consume the current token if it is this operator or word. */
segue_status sg_parser_accept_op(struct sg_jinja_parser *p, unsigned op, int *did);
segue_status sg_parser_accept_name(struct sg_jinja_parser *p, const char *name, int *did);
/* The current token in words, for messages. text: buffer for it. */
const char *sg_parser_describe(const struct sg_jinja_parser *p, char text[64]);
segue_status sg_parser_new_node(struct sg_jinja_parser *p, int kind, uint32_t line, struct sg_jinja_node **out);
segue_status sg_parser_name_id(struct sg_jinja_parser *p, const char *s, size_t n, uint32_t *id);
segue_status sg_parser_enter(struct sg_jinja_parser *p); /* one level of nesting; the caller does p->level-- */
/* EFORMAT: the recursion has used the stack that it may use. line: of the source, for the message. */
segue_status sg_parser_check_stack(struct sg_jinja_parser *p, uint32_t line);
/* Set the depth of a node whose children are complete; EFORMAT above SG_NODE_DEPTH. */
segue_status sg_parser_finish_node(struct sg_jinja_parser *p, struct sg_jinja_node *node);

/* --- jinja_expr.c --- */

/* with_cond: `a if b else c` is allowed. */
segue_status sg_parse_expression(struct sg_jinja_parser *p, int with_cond, struct sg_jinja_node **out);
/* with_ns: ns.attr is a target of `set`. */
segue_status sg_parse_primary(struct sg_jinja_parser *p, int with_ns, struct sg_jinja_node **out);
/* Expressions separated by commas; one without a comma is returned as it is. simple: only primaries (targets).
 * end: a name that also ends the tuple ("in", "recursive"), or NULL. parens: an empty tuple is allowed. */
segue_status sg_parse_tuple(struct sg_jinja_parser *p, int simple, int with_cond, const char *end, int parens,
                            int with_ns, struct sg_jinja_node **out);
/* Filters after a value. inline_first: the first one has no '|' before it ({% filter NAME %}). */
segue_status sg_parse_filters(struct sg_jinja_parser *p, struct sg_jinja_node *value, int inline_first,
                              struct sg_jinja_node **out);

/* --- jinja_block.c, jinja_bind.c --- */

segue_status sg_parse_body(struct sg_jinja_parser *p); /* the whole template, to p->t->body */
segue_status sg_bind_names(struct sg_jinja_parser *p); /* then: names to slots, scopes */

#endif
