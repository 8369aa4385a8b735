/* shared.h: memory that two processes see. It has no name: who may see it gets the descriptor, and it is gone when the
 * last of them is. SPDX-License-Identifier: MIT */
#ifndef SG_BASE_SHARED_H
#define SG_BASE_SHARED_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Zero-initialise with fd = -1: nothing. */
struct sg_shared {
    uint8_t *data;
    size_t size;
    int fd;
};

/* Zeroed memory of this process's making. Where the system allows it (Linux) nobody can make it shorter afterwards. EMEMORY. */
segue_status sg_shared_new(struct sg_shared *out, size_t size, segue_error *err);
/* Map what another process lent. fd is taken over, also on failure. writable 1: memory made by sg_shared_new; 0: that, or
 * any file. EFORMAT: shorter than size, or (writable, Linux) it could still be made shorter; EMEMORY. */
segue_status sg_shared_map(struct sg_shared *out, int fd, size_t size, int writable, segue_error *err);
void sg_shared_free(struct sg_shared *s);

#endif
