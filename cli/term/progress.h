/* progress.h: progress line on stderr for operations of more than one second. Nothing is shown if stderr is not a terminal.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PROGRESS_H
#define SEGUE_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "term/out.h"

/* A progress line. */
struct progress {
    const char *what;            /* label; must outlive the line */
    uint64_t start_ns, shown_ns; /* start of the operation; last time the line was drawn */
    bool enabled, visible;       /* stderr is a terminal and not quiet; the line is on the screen */
    char detail[80];             /* shown behind the figures; may be empty */
};
/* Start an operation. quiet: show nothing. */
void progress_begin(struct progress *p, const char *what, bool quiet);
/* Report that done of total units are finished. total 0: not known. bytes: units are bytes, shown in MB. */
void progress_step(struct progress *p, uint64_t done, uint64_t total, bool bytes);
/* Text of the next lines behind the figures. */
void progress_detail(struct progress *p, const char *format, ...) OUT_FORMAT(2, 3);
void progress_end(struct progress *p); /* clears the line */

/* For one blocking call without intermediate figures: "WHAT ..." appears if the call takes more than one second. Returns
 * NULL if nothing will be shown; pass the result to progress_wait_end in any case. */
struct progress_wait;
struct progress_wait *progress_wait_begin(const char *what, bool quiet);
void progress_wait_end(struct progress_wait *w);

#endif
