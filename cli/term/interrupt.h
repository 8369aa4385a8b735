/* interrupt.h: what SIGINT, SIGTERM and SIGHUP do: stop the sessions that are watched, so that the command
 * can still print what it has; end the program at once with exit 130 when none is. SPDX-License-Identifier:
 * MIT */
#ifndef SEGUE_CLI_INTERRUPT_H
#define SEGUE_CLI_INTERRUPT_H

#include <stdbool.h>
#include "segue.h"

void interrupt_begin(void);             /* installs the signals; SIGPIPE becomes an error of the write */
void interrupt_watch(segue_session *s); /* cancelled by a signal from now on; up to 256 */
void interrupt_unwatch(segue_session *s);
void interrupt_hold(bool hold); /* true: a signal only sets the flag, nothing else */
void interrupt_json(bool on);   /* a sudden end prints an error object, too */
bool interrupt_seen(void);
void interrupt_forget(void);

#endif
