/* serve_unit.h: the process side of a unit `proc:UNIT`: this program, started by the library as a child.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_SERVE_UNIT_H
#define SEGUE_CLI_SERVE_UNIT_H

/* Serve a unit to the process at the other end of the socket on standard input until it disconnects. Returns the exit
 * code. */
int serve_unit(void);

#endif
