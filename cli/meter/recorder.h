/* recorder.h: powermetrics(1) of macOS as a child process that writes a log while something is measured. It needs root.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_RECORDER_H
#define SEGUE_CLI_RECORDER_H

#include <sys/types.h>

enum { RECORDER_MS = 200 }; /* between two samples */

/* Starts it and waits for its log. NULL: it runs; else the reason, and *pid is 0. */
const char *recorder_start(pid_t *pid, const char *log);
/* Waits for the last samples, then ends it. pid 0: nothing runs. */
void recorder_end(pid_t pid);

#endif
