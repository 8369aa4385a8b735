/* sized.h: structs of the public header that begin with their size. min(size, sizeof) bytes are read and written, so that callers
 * built against an older or a newer header work. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SIZED_H
#define SG_ENGINE_SIZED_H

#include <string.h>

#include "base/err.h"

/* Copies the caller's options; fields that they lack are zero. in NULL: all fields are zero. EARG: the size is not set. */
static inline segue_status sg_sized_in(void *copy, size_t copy_size, const void *in, const char *what,
                                       segue_error *err)
{
    uint32_t size = 0, full_size = (uint32_t)copy_size;
    memset(copy, 0, copy_size);
    if (in) {
        memcpy(&size, in, sizeof size);
        if (size < sizeof size)
            return sg_fail(err, SEGUE_EARG, "call refused: %s: the size is not set; use SEGUE_INIT", what);
        memcpy(copy, in, size < copy_size ? size : copy_size);
    }
    memcpy(copy, &full_size, sizeof full_size);
    return SEGUE_OK;
}

/* Entry i of a caller's array, whose first element's size is the distance between elements. */
static inline const void *sg_sized_at(const void *array, size_t i)
{
    uint32_t size;
    memcpy(&size, array, sizeof size);
    return (const char *)array + i * size;
}

/* Copies an info struct into the caller's, whose size field stays. EARG: out is NULL, or its size is not set. */
static inline segue_status sg_sized_out(void *out, const void *info, size_t info_size, const char *what,
                                        segue_error *err)
{
    uint32_t size;
    if (!out) return sg_fail(err, SEGUE_EARG, "call refused: %s: the struct is NULL; pass one", what);
    memcpy(&size, out, sizeof size);
    if (size < sizeof size)
        return sg_fail(err, SEGUE_EARG, "call refused: %s: the size is not set; use SEGUE_INIT", what);
    memcpy(out, info, size < info_size ? size : info_size);
    memcpy(out, &size, sizeof size);
    return SEGUE_OK;
}

#endif
