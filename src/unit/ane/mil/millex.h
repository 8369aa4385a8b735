/* millex.h: lexer of MIL text. Splits bytes into tokens with their source positions. Any input is allowed,
 * also zero bytes; the text is read in place and must outlive the tokens.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILLEX_H
#define SG_UNIT_ANE_MILLEX_H

#include "base/err.h"

/* Kinds of tokens. BAD_BYTE: a byte that no token begins with, or a string without a closing quote. */
enum sg_mil_token_kind {
    SG_MIL_END,
    SG_MIL_NAME,
    SG_MIL_NUMBER,
    SG_MIL_QUOTED_TEXT,
    SG_MIL_PUNCT,
    SG_MIL_ARROW,
    SG_MIL_BAD_BYTE
};
/* A token; valid as long as the text. */
struct sg_mil_token {
    uint8_t kind;
    char punct;            /* PUNCT: one of <>()[]{}=,;?: ; BAD_BYTE: the byte */
    const char *at;        /* into the text; QUOTED_TEXT: after the opening quote, escapes not resolved */
    size_t n;              /* bytes at `at` */
    uint32_t line, column; /* from 1 */
};
/* Position in the text. A copy is a valid lexer: the parser looks ahead with one. */
struct sg_mil_lexer {
    const char *text, *end, *line_start;
    uint32_t line;
};

/* Starts at the first of n bytes. */
void sg_mil_lexer_init(struct sg_mil_lexer *lx, const char *text, size_t n);
/* Next token; SG_MIL_END at the end of the text, as often as called. A BAD_BYTE is not consumed. */
struct sg_mil_token sg_mil_lexer_next(struct sg_mil_lexer *lx);
/* Value of a NUMBER token, or of the names inf and nan: decimal or hexadecimal, with optional sign. 0: not
 * a number, or out of range. *whole = 1: the token is an integer, and *as_whole has it exactly (values
 * above 2^63 - 1 as their uint64 bit pattern). */
int sg_mil_number(const struct sg_mil_token *w, double *real, int *whole, int64_t *as_whole);

#endif
