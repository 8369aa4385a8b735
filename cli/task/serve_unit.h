/* serve_unit.h: the command as the process of a unit `proc:U`.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_SERVE_UNIT_H
#define SEGUE_CLI_SERVE_UNIT_H

/* Serve a unit to the process at the other end of standard input until that one is gone. Gives the exit code. */
int serve_unit(void);

#endif
