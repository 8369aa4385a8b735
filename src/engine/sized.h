/* sized.h: structs of the public header that begin with their size: read and filled by min(size, sizeof), so
 * that a caller built against an older or a newer header is served. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SIZED_H
#define SG_ENGINE_SIZED_H

#include <string.h>

#include "base/err.h"

/* The caller's options over zeroes. in == NULL: all zeroes. EARG: no size. */
static inline segue_status sg_sized_in(void *own, size_t own_size, const void *in, const char *what,
                                       segue_error *err)
{
    uint32_t size = 0, own32 = (uint32_t)own_size;
    memset(own, 0, own_size);
    if (in) {
        memcpy(&size, in, sizeof size);
        if (size < sizeof size)
            return sg_fail(err, SEGUE_EARG, "call refused: %s: its size is not set; use SEGUE_INIT", what);
        memcpy(own, in, size < own_size ? size : own_size);
    }
    memcpy(own, &own32, sizeof own32);
    return SEGUE_OK;
}

/* Our info struct into the caller's, whose size field stays. */
static inline segue_status sg_sized_out(void *out, const void *own, size_t own_size, const char *what,
                                        segue_error *err)
{
    uint32_t size;
    if (!out) return sg_fail(err, SEGUE_EARG, "call refused: %s: no place to write it; pass a struct", what);
    memcpy(&size, out, sizeof size);
    if (size < sizeof size)
        return sg_fail(err, SEGUE_EARG, "call refused: %s: its size is not set; use SEGUE_INIT", what);
    memcpy(out, own, size < own_size ? size : own_size);
    memcpy(out, &size, sizeof size);
    return SEGUE_OK;
}

#endif
