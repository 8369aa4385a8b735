/* help.h: help texts, man pages and completions, all printed from the tables of commands and flags.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_HELP_H
#define SEGUE_CLI_HELP_H

#include "term/args.h"
#include "term/out.h"

/* Commands end with NULL. Each adds to text. */
void help_main(struct out_text *text, const struct command *const *commands);
void help_command(struct out_text *text, const struct command *command);
void help_man_main(struct out_text *text, const struct command *const *commands);
void help_man_command(struct out_text *text, const struct command *command);
/* false: not a shell we know */
bool help_completion(struct out_text *text, const struct command *const *commands, const char *shell);

#endif
