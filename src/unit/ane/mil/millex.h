/* millex.h: the words of MIL text, each with its place. Reads bytes only; any bytes are allowed.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILLEX_H
#define SG_UNIT_ANE_MILLEX_H

#include "base/err.h"

enum sg_mil_token_kind {
    SG_MIL_END,
    SG_MIL_NAME,
    SG_MIL_NUMBER,
    SG_MIL_QUOTED_TEXT,
    SG_MIL_PUNCT,
    SG_MIL_ARROW,
    SG_MIL_BAD_BYTE
};
struct sg_mil_token {
    uint8_t kind;
    char punct;      /* of MARK: one of <>()[]{}=,;?: */
    const char *at; /* into the text; of QUOTED: between the quotes, escapes not undone */
    size_t n;
    uint32_t line, column;
};
struct sg_mil_lexer {
    const char *text, *end, *line_start;
    uint32_t line;
};

void sg_mil_lexer_init(struct sg_mil_lexer *lx, const char *text, size_t n);
/* BAD: a byte or a string that no word begins with; mark holds the byte. */
struct sg_mil_token sg_mil_lexer_next(struct sg_mil_lexer *lx);
/* The value of a NUMBER, or of the names inf and nan with an optional sign: decimal or hexadecimal, whole or
 * not. 0: it is none, or out of range. *whole: 1 when it is an integer that *as_whole holds exactly (of
 * uint64: its bits). */
int sg_mil_number(const struct sg_mil_token *w, double *real, int *whole, int64_t *as_whole);

#endif
