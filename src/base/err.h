/* err.h: error reporting. Functions return a segue_status and fill a segue_error with a text.
 * SG_TRY is the only macro that hides control flow.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_ERR_H
#define SG_BASE_ERR_H

#include "segue.h"

/* Lets the compiler check printf-like arguments: f = index of the format, a = index of the first
 * argument. */
#if defined(__GNUC__)
#define SG_FORMAT(f, a) __attribute__((format(printf, f, a)))
#else
#define SG_FORMAT(f, a)
#endif

/* Fill err (may be NULL) with `status` and a formatted one-line text `what failed: object: why;
 * what to do`, and return `status`. Control characters in the text are replaced by '?', so that a
 * hostile file name cannot break the line. */
segue_status sg_fail(segue_error *err, segue_status status, const char *format, ...) SG_FORMAT(3, 4);

/* Return from the calling function with the status of expr unless it is SEGUE_OK. Frees nothing. */
#define SG_TRY(expr)                        \
    do {                                    \
        segue_status try_ = (expr);         \
        if (try_ != SEGUE_OK) return try_;  \
    } while (0)

#endif
