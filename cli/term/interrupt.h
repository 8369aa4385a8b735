/* interrupt.h: handling of SIGINT, SIGTERM and SIGHUP. A signal cancels all watched sessions, so that the command can
 * print what it has; if no session is watched and the signal is not deferred, the process exits with 130 at once.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_INTERRUPT_H
#define SEGUE_CLI_INTERRUPT_H

#include <stdbool.h>
#include "segue.h"

/* Install the handlers. Also ignores SIGPIPE, so that a closed pipe is a write error, and reports SIGBUS. */
void interrupt_init(void);
/* Cancel the session on a signal from now on. At most 256 sessions; further ones are not watched. */
void interrupt_watch(segue_session *s);
void interrupt_unwatch(segue_session *s);
/* While deferred, a signal only sets the pending flag and never ends the process. */
void interrupt_defer(bool defer);
/* Print an error object on stdout when a signal ends the process. */
void interrupt_json(bool on);
/* The pending flag: a signal has arrived since the start or the last interrupt_clear. */
bool interrupt_pending(void);
void interrupt_clear(void);

#endif
