/* requests.h: `segue run --requests FILE.jsonl --parallel N`.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_REQUESTS_H
#define SEGUE_CLI_REQUESTS_H

#include "place.h"

int requests_run(const struct args *args, struct place *place);

#endif
