/* compact_text.h: text that is kept long, compressed by zlib with a dictionary of the server's own JSON. For memory only; the
 * format may change. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_COMPACT_TEXT_H
#define SEGUE_CLI_COMPACT_TEXT_H

#include "term/out.h"

/* Append the compact form of n bytes. */
void compact_text(struct out_text *out, const char *text, uint32_t n);
/* The n bytes of a text from its compact form, with a NUL after them; the caller frees them. */
char *expand_text(const char *compact, size_t compact_n, uint32_t n);

#endif
