/* requests.h: `segue run --requests FILE.jsonl --parallel N`.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_REQUESTS_H
#define SEGUE_CLI_REQUESTS_H

#include "bench/trace.h"

int requests_run(const struct args *args, struct place *place, struct trace *trace);

#endif
