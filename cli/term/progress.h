/* progress.h: one line on stderr for what takes over a second; silent when stderr is no terminal.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PROGRESS_H
#define SEGUE_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what;
    uint64_t begun_ns, shown_ns;
    bool on, shown;
};
void progress_begin(struct progress *p, const char *what, bool quiet);
/* of 0: the total is not known. bytes: print megabytes. */
void progress_step(struct progress *p, uint64_t done, uint64_t of, bool bytes);
void progress_end(struct progress *p); /* clears the line */

/* For one call that gives no figures while it works: a line appears when it takes over a second. Every begin
 * needs its end. */
struct progress_wait;
struct progress_wait *progress_wait_begin(const char *what, bool quiet); /* NULL: nothing will be shown */
void progress_wait_end(struct progress_wait *w);

#endif
