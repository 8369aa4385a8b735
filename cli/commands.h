/* commands.h: the subcommands, one table each. main.c lists them; every table is defined in cli/commands/cmd_NAME.c,
 * in cli/bench/cmd_bench.c, or in cli/plan/.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_COMMANDS_H
#define SEGUE_CLI_COMMANDS_H

#include "term/args.h"

extern const struct command cmd_run;
extern const struct command cmd_chat;
extern const struct command cmd_serve;
extern const struct command cmd_eval;
extern const struct command cmd_bench;
extern const struct command cmd_tokenize;
extern const struct command cmd_template;
extern const struct command cmd_inspect;
extern const struct command cmd_units;
extern const struct command cmd_models;
extern const struct command cmd_state;
extern const struct command cmd_cache;
extern const struct command cmd_config;
extern const struct command cmd_pull;
extern const struct command cmd_quantize;
extern const struct command cmd_imatrix;
extern const struct command cmd_train;
extern const struct command cmd_mil;
extern const struct command cmd_ane_probe;
extern const struct command cmd_ane_report;
extern const struct command cmd_plan;
extern const struct command cmd_calibrate;
extern const struct command cmd_energy;
extern const struct command cmd_replay;
extern const struct command cmd_version;

#endif
