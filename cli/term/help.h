/* help.h: help texts, man pages and shell completions, all generated from the tables of commands and flags. Every
 * function appends to `text`; lists of commands end with NULL.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_HELP_H
#define SEGUE_CLI_HELP_H

#include "term/args.h"
#include "term/out.h"

/* segue --help. */
void help_main(struct out_text *text, const struct command *const *commands);
/* segue COMMAND --help. */
void help_command(struct out_text *text, const struct command *command);
/* Man page segue(1), in roff. */
void help_man_main(struct out_text *text, const struct command *const *commands);
/* Man page segue-COMMAND(1), in roff. */
void help_man_command(struct out_text *text, const struct command *command);
/* Completion script for bash, zsh or fish; false if the shell is none of these. */
bool help_completion(struct out_text *text, const struct command *const *commands, const char *shell);

#endif
