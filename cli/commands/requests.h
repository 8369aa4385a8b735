/* requests.h: `segue run --requests FILE.jsonl --parallel N`: many prompts in one process.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_REQUESTS_H
#define SEGUE_CLI_REQUESTS_H

#include "run/trace.h"

/* Answer all requests of the file and print the replies in order. Returns the exit code of the first failure, or 0. */
int requests_run(const struct args *args, struct placement *placement, struct trace *trace);

#endif
