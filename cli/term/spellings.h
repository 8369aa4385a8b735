/* spellings.h: flags and commands as llama.cpp, Ollama and mlx-lm spell them, for "did you mean".
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_SPELLINGS_H
#define SEGUE_CLI_SPELLINGS_H

#include <stddef.h>

/* The long name of the flag that means the same as `typed` (without dashes); NULL if it is no known spelling. i counts the
 * candidates from 0, because a spelling may mean different flags of different commands; NULL after the last one. */
const char *spellings_flag(const char *typed, size_t i);
/* The command that does the same, with its sub-verb; NULL. */
const char *spellings_command(const char *typed);
/* The known spellings themselves, for typing errors near one: at most max, returns how many. */
size_t spellings_flags(const char **theirs, size_t max);
size_t spellings_commands(const char **theirs, size_t max);

#endif
