/* line_edit.h: lines of input: edited, with a history, on a terminal; as they come from a pipe.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_LINES_H
#define SEGUE_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

struct lines;
struct lines *lines_open(const char *history_path); /* history: NULL, or a file of mode 0600 */
bool lines_edited(const struct lines *l);           /* a terminal on both sides */
/* The next line without its newline; NULL at the end. A backslash at the end of an edited line continues it.
 * The memory lives until the next call. */
char *lines_next(struct lines *l, const char *prompt);
void lines_close(struct lines *l);

#endif
