/* reward_program.h: a program of the user that scores answers. It reads one JSON object per line and writes one number per
 * line, in the same order, and stays until the training ends. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_REWARD_PROGRAM_H
#define SEGUE_CLI_REWARD_PROGRAM_H

#include <sys/types.h>

#include "term/out.h"

struct reward_program {
    const char *command;     /* for /bin/sh */
    pid_t pid;               /* 0: not started */
    int to, from;            /* pipes */
    int timeout_ms;          /* between two numbers */
    struct out_text unread;  /* output after the last number */
};

/* EIO. */
segue_status reward_program_open(struct reward_program *r, const char *command, int timeout_ms, segue_error *err);
/* lines: n lines of JSON. EIO: it ended, or gave no number in time. EFORMAT: what it wrote is no finite number, or too much. */
segue_status reward_program_score(struct reward_program *r, const struct out_text *lines, double *scores, size_t n,
                                  segue_error *err);
void reward_program_close(struct reward_program *r);

#endif
