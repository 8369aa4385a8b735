/* line_edit.h: input lines. On a terminal they are edited with a history (libedit), otherwise read as they are.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_LINE_EDIT_H
#define SEGUE_CLI_LINE_EDIT_H

#include <stdbool.h>
#include <stddef.h>

struct line_edit;
/* history_path: file to load and save the history, created with mode 0600; NULL: no history file. */
struct line_edit *line_edit_open(const char *history_path);
/* True if stdin and stderr are terminals and libedit is in the build. */
bool line_edit_interactive(const struct line_edit *l);
/* The next input without its newline; NULL at the end of input. In interactive mode it may have several lines: pasted
 * text, lines after a backslash or ^J, and lines between three quotes. The result is valid until the next call. */
char *line_edit_read(struct line_edit *l, const char *prompt);
/* Tab completes commands and, after a command whose operand contains FILE or PATH, file names. name: the i-th command without
 * its slash, and its operand as /help shows it; NULL after the last one. */
typedef const char *(*line_edit_command)(size_t i, const char **operand);
void line_edit_set_commands(struct line_edit *l, line_edit_command name);
/* In interactive mode: call `typed` with the input so far after each key that leaves the cursor at its end. The text is valid
 * during the call, which should take less time than a key. */
typedef void (*line_edit_typed)(void *arg, const char *text, size_t n);
void line_edit_set_typed(struct line_edit *l, line_edit_typed typed, void *arg);
/* Save the history and free everything. */
void line_edit_close(struct line_edit *l);

#endif
