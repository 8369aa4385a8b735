/* milparser.h: the parser's inside: the text at hand and how words are taken from it. For milparse.c
 * (statements) and milvalue.c (words, types, literals) only. The first fault stops everything: `bad` is set,
 * every further word is the end of the text, and each loop ends by itself. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILPARSER_H
#define SG_UNIT_ANE_MILPARSER_H

#include "unit/ane/mil/millex.h"
#include "unit/ane/mil/milparse.h"

struct sg_mil_parser {
    struct sg_mil_lexer lexer;
    struct sg_mil_token token; /* the one to read next */
    struct sg_mil_program *program;
    struct sg_mil_function *f;
    struct sg_mil_fault *fault;
    const char *op; /* the statement at work, for texts */
    uint32_t ops_n;
    int failed, no_memory; /* starved: out of memory */
    double *reals;    /* [numbers_cap] scratch of literals */
    int64_t *ints;
    uint64_t numbers_cap;
    struct sg_mil_arg args[SG_MIL_ARGS_MAX];
    struct sg_mil_attr attrs[SG_MIL_ATTRS_MAX];
    uint32_t refs[SG_MIL_LIST_MAX];
};

void sg_mil_parse_error(struct sg_mil_parser *p, const struct sg_mil_token *at, uint32_t constraint,
                   const char *format, ...) SG_FORMAT(4, 5);
void sg_mil_parse_no_memory(struct sg_mil_parser *p); /* refuse: out of memory */
void *sg_mil_arena_copy(struct sg_mil_parser *p, const void *bytes,
                  size_t n); /* a copy in the program's arena; NULL: p is bad */
const char *sg_mil_arena_text(struct sg_mil_parser *p, const char *s, size_t n);
void sg_mil_next_token(struct sg_mil_parser *p);
int sg_mil_is_punct(const struct sg_mil_parser *p, char c);
int sg_mil_is_name(const struct sg_mil_parser *p, const char *name);
void sg_mil_unexpected(struct sg_mil_parser *p, const char *wanted);
int sg_mil_accept(struct sg_mil_parser *p, char c); /* take it when it is there */
void sg_mil_expect(struct sg_mil_parser *p, char c);   /* take it, or refuse */
void sg_mil_expect_name(struct sg_mil_parser *p, const char *name);
const char *sg_mil_parse_name(struct sg_mil_parser *p, const char *what); /* any name, kept; "" when bad */
struct sg_mil_type sg_mil_parse_type(struct sg_mil_parser *p);
const struct sg_mil_literal *sg_mil_parse_literal(struct sg_mil_parser *p); /* NULL when bad */
const char *sg_mil_parse_string(struct sg_mil_parser *p, uint64_t *n);        /* a string, bare or typed */

#endif
