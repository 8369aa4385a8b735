/* err.h: how every function of the house fails. One helper, one macro, no other control-flow macros.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_ERR_H
#define SG_BASE_ERR_H

#include "segue.h"

#if defined(__GNUC__)
#define SG_FORMAT(f, a) __attribute__((format(printf, f, a)))
#else
#define SG_FORMAT(f, a)
#endif

/* Fill err (may be NULL) with status and a formatted one-line text `what failed: object: why; what to do`, and return
 * status. Control bytes of the text become '?', so that a hostile name cannot break the line. */
segue_status sg_fail(segue_error *err, segue_status status, const char *format, ...) SG_FORMAT(3, 4);

/* Forward anything but SEGUE_OK. */
#define SG_TRY(expr)                        \
    do {                                    \
        segue_status try_ = (expr);         \
        if (try_ != SEGUE_OK) return try_;  \
    } while (0)

#endif
