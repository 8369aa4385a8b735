/* shared.h: anonymous shared memory. Another process can map it only if it receives the file
 * descriptor. The kernel frees the memory when the last descriptor and mapping are gone.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_SHARED_H
#define SG_BASE_SHARED_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Empty: zeros with fd = -1. */
struct sg_shared {
    uint8_t *data;           /* the mapping; NULL: none */
    size_t size;             /* mapped bytes */
    int fd;                  /* owned; may be sent to another process */
};

/* Create `size` > 0 bytes of zeroed memory, mapped writable. On Linux all pages are allocated now
 * and the size is sealed, so that neither a lack of memory nor the peer can cause a SIGBUS later.
 * EMEMORY. */
segue_status sg_shared_new(struct sg_shared *out, size_t size, segue_error *err);
/* Map the first `size` bytes of a descriptor that another process sent. Takes ownership of fd, also
 * on failure. writable 1: the descriptor must be of sg_shared_new; 0: it may also be an ordinary
 * file. EFORMAT: fd is invalid or shorter than size, or (writable, Linux) not sealed against
 * shrinking. EMEMORY. */
segue_status sg_shared_map(struct sg_shared *out, int fd, size_t size, int writable, segue_error *err);
void sg_shared_free(struct sg_shared *s);

#endif
