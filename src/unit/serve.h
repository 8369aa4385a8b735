/* serve.h: serve one unit of this process to another process over a connected socket.
 * The peer may be damaged or hostile: bad requests get an error, within bounds of memory and time.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_SERVE_H
#define SG_UNIT_SERVE_H

#include "unit/unit.h"

/* Opens the unit that the peer names. The server closes it through the unit's own table. */
typedef segue_status (*sg_serve_open)(struct sg_unit **out, const char *spec, segue_error *err);

/* Serve until the peer closes the connection. Takes ownership of fd. OK: the peer closed; otherwise the reason why
 * serving ended. */
segue_status sg_serve(int fd, sg_serve_open open, segue_error *err);

#endif
