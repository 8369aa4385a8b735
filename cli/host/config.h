/* config.h: the configuration file: values for flags that are not given on the command line.
 *   # comment
 *   model = SmolLM2-135M-Instruct
 *   temp = 0.7
 *   [chat]                      only for this command
 *   greedy = on
 * Keys are the long names of flags. Before the first section they apply to run and chat, and to other commands where the flag
 * is the same one, such as model and unit.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CONFIG_H
#define SEGUE_CLI_CONFIG_H

#include "term/args.h"
#include "term/out.h"

/* One line of the file. */
struct config_value {
    char *key, *value;
    const struct command *section; /* NULL: before the first section */
    unsigned line;                 /* from 1 */
};
struct config {
    char *path; /* $XDG_CONFIG_HOME/segue/config, also if it does not exist */
    bool exists;
    struct config_value *values; /* [n] */
    size_t n;
};

/* Read and check the file; without one the list is empty. commands: all commands, ends with NULL, run and chat first. SEGUE_EARG
 * names the line. Call config_free in any case. */
segue_status config_read(struct config *out, const struct command *const *commands, segue_error *err);
void config_free(struct config *config);
/* Set the flags of args that the file has and the command line has not. $SEGUE_MODEL comes before the file. Commands without
 * a model do not read it. args->commands must be set. */
segue_status config_apply(struct args *args, segue_error *err);

#endif
