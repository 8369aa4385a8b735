/* ane_energy.h: the energy of a Neural Engine by powermetrics(1), for `segue ane-report`. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ANE_ENERGY_H
#define SEGUE_CLI_ANE_ENERGY_H

#include "term/out.h"

/* The object `energy` of a run (docs/CLI.md) for prompts and for tokens of a model of random weights on the unit of the spec,
 * less the power of the idle machine. Starts powermetrics, which needs root, and ends it. NULL: not measured;
 * *why has the reason, for free(). */
json_t *ane_energy_json(const char *spec, char **why);

#endif
