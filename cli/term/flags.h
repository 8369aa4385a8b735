/* flags.h: the groups of flags that commands share. Each flag is written once, in flags.c.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FLAGS_H
#define SEGUE_CLI_FLAGS_H

#include "term/args.h"

extern const struct arg_group flags_output;     /* --json --help */
extern const struct arg_group flags_model;      /* -m */
extern const struct arg_group flags_units;      /* --unit --prefill --decode -t --pipeline */
extern const struct arg_group flags_engine;     /* --kv --chunk --lora --storage */
extern const struct arg_group flags_prompt;     /* -p -f --ids --messages --system --think --raw */
extern const struct arg_group flags_generation; /* -n -c --greedy --seed --temp ... */
extern const struct arg_group flags_state;      /* --save --load --session ... */
extern const struct arg_group flags_reports;    /* --verify --record --trace --meter */

#define ARG_END      \
    {                \
        .name = NULL \
    }

#endif
