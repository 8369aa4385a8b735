/* child.h: work that may crash or hang, in a child process. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CHILD_H
#define SEGUE_CLI_CHILD_H

#include "term/out.h"

/* Calls make(context) in a child process and returns its JSON, which has at most 1 MiB; NULL: the child died, or did not answer
 * within the limit. It is killed afterwards in any case. */
json_t *child_json(json_t *(*make)(const void *context), const void *context, int limit_ms);

#endif
