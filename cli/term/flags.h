/* flags.h: groups of flags that several commands share. Each flag is defined once, in flags.c; a command lists the
 * groups it accepts.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FLAGS_H
#define SEGUE_CLI_FLAGS_H

#include "term/args.h"

extern const struct arg_group flags_output;     /* --json --help */
extern const struct arg_group flags_model;      /* -m */
extern const struct arg_group flags_units;      /* --unit --prefill --decode -t --pipeline: which unit runs which phase */
extern const struct arg_group flags_engine;     /* --lora --kv --chunk --storage: how the engine is built */
extern const struct arg_group flags_prompt;     /* -p -f --ids --messages --system --think --raw */
extern const struct arg_group flags_generation; /* -n -c --greedy --seed --temp ... */
extern const struct arg_group flags_state;      /* --save --load --session ... */
extern const struct arg_group flags_reports;    /* --verify --record --trace --meter */

/* Last entry of a table of struct arg_def: an entry without a name. */
#define ARG_END      \
    {                \
        .name = NULL \
    }

#endif
