/* find_model.h: the model of a command line: found by its name, or downloaded with the consent of the user.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FIND_MODEL_H
#define SEGUE_CLI_FIND_MODEL_H

#include "term/args.h"

/* Path of the model of -m, $SEGUE_MODEL or the default, allocated. A model that is not installed is downloaded if its name is
 * OWNER/NAME[:LABEL] (or it is the default) and the user agrees: by --yes, or by an answer on the terminal. */
segue_status find_model(const struct args *args, char **path, segue_error *err);

#endif
