/* milparser.h: internal state of the parser and its token functions, shared by milparse.c (statements) and
 * milvalue.c (tokens, types, literals). The first error sets `failed` and turns every further token into
 * the end of the text, so callers need not test after each call and every loop ends.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILPARSER_H
#define SG_UNIT_ANE_MILPARSER_H

#include "unit/ane/mil/millex.h"
#include "unit/ane/mil/milparse.h"

/* State of one call of sg_mil_parse. The arrays collect the parts of the current statement until it is
 * copied into the program's arena. */
struct sg_mil_parser {
    struct sg_mil_lexer lexer;
    struct sg_mil_token token; /* next token, not yet consumed */
    struct sg_mil_program *program;
    struct sg_mil_function *f;  /* function being parsed */
    struct sg_mil_fault *fault; /* receives the first error */
    const char *op;             /* first result of the current statement, for messages; NULL: none */
    uint32_t ops_n;             /* operations of all functions so far */
    int failed, no_memory;      /* no_memory: the error was lack of memory */
    double *reals;              /* [numbers_cap] scratch for the numbers of a literal */
    int64_t *ints;              /* [numbers_cap] the same for integers */
    uint64_t numbers_cap;
    struct sg_mil_arg args[SG_MIL_ARGS_MAX];
    struct sg_mil_attr attrs[SG_MIL_ATTRS_MAX];
    uint32_t refs[SG_MIL_LIST_MAX];
};

/* Records the first error at a token and stops the parser; later calls do nothing. */
void sg_mil_parse_error(struct sg_mil_parser *p, const struct sg_mil_token *at, uint32_t constraint,
                        const char *format, ...) SG_FORMAT(4, 5);
/* Records that memory ran out, and stops the parser. */
void sg_mil_parse_no_memory(struct sg_mil_parser *p);
/* Copies into the program's arena; sg_mil_arena_text also terminates the string. NULL: the parser has
 * failed. */
void *sg_mil_arena_copy(struct sg_mil_parser *p, const void *bytes, size_t n);
const char *sg_mil_arena_text(struct sg_mil_parser *p, const char *s, size_t n);
/* Consumes the current token. */
void sg_mil_next_token(struct sg_mil_parser *p);
/* 1: the current token is this punctuation character, or this name. */
int sg_mil_is_punct(const struct sg_mil_parser *p, char c);
int sg_mil_is_name(const struct sg_mil_parser *p, const char *name);
/* Reports the current token where `wanted` was expected. */
void sg_mil_unexpected(struct sg_mil_parser *p, const char *wanted);
/* accept consumes the character if it is next (1) or does nothing (0); the expect functions report an error
 * instead. */
int sg_mil_accept(struct sg_mil_parser *p, char c);
void sg_mil_expect(struct sg_mil_parser *p, char c);
void sg_mil_expect_name(struct sg_mil_parser *p, const char *name);
/* Consumes any name and returns its copy in the arena; "" after an error. what: for the message. */
const char *sg_mil_parse_name(struct sg_mil_parser *p, const char *what);
struct sg_mil_type sg_mil_parse_type(struct sg_mil_parser *p);
/* A typed literal or BLOBFILE reference; NULL after an error. */
const struct sg_mil_literal *sg_mil_parse_literal(struct sg_mil_parser *p);
/* A string, bare or typed, with *n bytes; "" after an error. */
const char *sg_mil_parse_string(struct sg_mil_parser *p, uint64_t *n);

#endif
