/* unit_limits.h: `segue units --limits`: what a unit can run and why not.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_UNIT_LIMITS_H
#define SEGUE_CLI_UNIT_LIMITS_H

#include "term/out.h"

/* {operations: [{name, can, why}], storages, shapes: [{name, largest, why}], tokens_per_run} of an open unit; NULL: why has the
 * reason. */
json_t *unit_limits_json(segue_unit *unit, segue_error *why);
/* The same as lines of text. */
void unit_limits_print(const json_t *limits);

#endif
