/* mil_check.h: the verbs `check` and `rules` of `segue mil`.
 * SPDX-License-Identifier: MIT */
#ifndef COMMANDS_MIL_CHECK_H
#define COMMANDS_MIL_CHECK_H

#include "commands.h"
#include "term/out.h"
#include "unit/ane/rules/profile.h"
#include "unit/ane/tools/milfolder.h"

/* Verb `check`, and the check after `emit`: print violations and advice; exit 6 if there is a violation. */
int mil_check_folder(const struct args *args, const struct sg_mil_folder *folder, const struct sg_ane_profile *profile);
/* Verb `rules`: the table of rules, as JSON or one line each. */
int mil_list_rules(const struct args *args);
/* The rules that occur in a list of violations or advice; NULL: all rules. */
json_t *mil_rules_json(const json_t *faults);

#endif
