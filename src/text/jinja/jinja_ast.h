/* jinja_ast.h: a parsed template. Nodes, scopes and constants live in the template's arena; after the parser and
 * jinja_bind.c are done nothing writes to them, so any number of threads may render the template.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_JINJA_AST_H
#define SG_TEXT_JINJA_AST_H

#include "text/jinja/value/jinja_value.h"

/* Kinds of nodes. Expressions come first; from SG_N_STATEMENT on they are statements. */
enum sg_jinja_node_kind {
    /* literals and names */
    SG_N_CONST,
    SG_N_NAME,
    SG_N_TUPLE,
    SG_N_LIST,
    SG_N_DICT,
    /* operators */
    SG_N_COND,
    SG_N_OR,
    SG_N_AND,
    SG_N_NOT,
    SG_N_COMPARE,
    SG_N_BINARY,
    SG_N_CONCAT,
    SG_N_NEG,
    SG_N_POS,
    /* access to values, calls, filters and tests */
    SG_N_ATTR,
    SG_N_ITEM,
    SG_N_SLICE,
    SG_N_CALL,
    SG_N_FILTER,
    SG_N_TEST,
    /* parts of statements and calls that are not expressions */
    SG_N_NSREF,     /* target ns.attr of `set` */
    SG_N_ARG,       /* argument of a call, operand of a comparison */
    SG_N_STATEMENT, /* first statement kind; an expression in a list of statements is printed */
    SG_N_DATA = SG_N_STATEMENT,
    SG_N_FOR,
    SG_N_IF,
    SG_N_SET,
    SG_N_SETBLOCK,
    SG_N_MACRO,
    SG_N_CALLBLOCK,
    SG_N_FILTERBLOCK,
    SG_N_WITH,
    SG_N_BREAK,
    SG_N_CONTINUE,
    SG_N_GENERATION /* {% generation %} of transformers: marks the assistant's text; renders its body */
};

/* Children by kind (lists are chained by next):
 *   TUPLE LIST DICT CONCAT  a = items (DICT: key, value, key, ...)     COND  a = test, b = then, c = else or NULL
 *   OR AND BINARY  a, b; op                NOT NEG POS  a              COMPARE  a = first, b = operands with their op
 *   ATTR  a, s     ITEM  a, b              SLICE  a, b, c (may be NULL)
 *   CALL  a = callee, b = args             FILTER TEST  a = value (FILTER may lack it), b = args, s = name, func
 *   ARG  a; op 0 positional, 'k' keyword s, '*', 'd' for **            NSREF  name, s = attribute
 *   FOR  a = target, b = iterable, c = body, d = else, e = test; op 1 = recursive
 *   IF  a = test, b = body, c = elif list of IF, d = else              SET  a = target, b
 *   SETBLOCK  a = target, b = filter, c = body          FILTERBLOCK  b = filter, c = body
 *   MACRO CALLBLOCK GENERATION  a = parameters (NAME with a = default), c = body; CALLBLOCK b = call
 *   WITH  a = targets, b = values, c = body */
/* A node. Children and lists point to other nodes of the same template. */
struct sg_jinja_node {
    uint8_t kind, op;     /* enum sg_jinja_node_kind; operator as listed above */
    uint8_t flags;        /* of macros: SG_MACRO_* */
    uint8_t param;        /* 1: a name that is a parameter or a target; it is bound, never looked up */
    uint16_t depth, hops; /* height of the subtree; names: frames to go outwards */
    uint32_t line, slot, name; /* names: slot in that frame, number in sg_template.names */
    struct sg_jinja_node *next, *a, *b, *c, *d, *e;
    const char *s; /* text or name; not terminated by NUL */
    size_t n;      /* bytes of s */
    union {
        struct sg_val value;              /* CONST */
        const struct sg_builtin *func;    /* FILTER, TEST; NULL = unknown, an error when it is reached */
        struct sg_jinja_scope *scopes[2]; /* FOR: body, test; others: [0] */
    } u;
    struct sg_jinja_scope *scope_else; /* FOR: scope of the else body */
};

/* A macro's body uses caller, kwargs or varargs; EXPLICIT: `caller` is a declared parameter. */
enum { SG_MACRO_CALLER = 1, SG_MACRO_KWARGS = 2, SG_MACRO_VARARGS = 4, SG_MACRO_EXPLICIT = 8 };

/* How a slot gets its value when the scope is entered. */
enum {
    SG_INIT_PARAM,    /* not at all: the caller of the scope has stored it */
    SG_INIT_LOOKUP,   /* the variable of that name, else the global function, else undefined */
    SG_INIT_OUTER,    /* a copy of a slot of an outer frame */
    SG_INIT_UNDEFINED /* undefined until the template assigns it */
};
/* How one slot of a frame is set when its scope is entered. */
struct sg_slot_init {
    uint8_t kind;        /* SG_INIT_* */
    uint16_t hops;       /* OUTER: frames to go outwards, counted from the parent */
    uint32_t name, slot; /* LOOKUP: number in sg_template.names; OUTER: slot in that frame */
};
/* The slots of a scope: of a macro, a loop, a block or the whole template. Each time the scope is entered, a frame
 * with n slots is filled by this recipe. */
struct sg_jinja_scope {
    uint32_t n;
    struct sg_slot_init *loads; /* [n], one per slot */
};

/* A name that the template uses; not terminated by NUL. */
struct sg_jinja_name {
    const char *s;
    size_t n;
};

/* A parsed template. sg_template_close frees it with all its nodes. */
struct sg_template {
    struct sg_arena arena;
    const char *what; /* name of the template, for messages */
    struct sg_jinja_node *body;
    struct sg_jinja_scope *scope; /* of the whole template */
    struct sg_jinja_name *names;  /* [names_n], each once */
    uint32_t names_n;
};

#endif
