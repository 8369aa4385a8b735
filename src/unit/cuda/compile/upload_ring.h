/* upload_ring.h: copies of weights to the GPU through a ring of pinned buffers: while the GPU reads one buffer, the caller's
 * threads fill the next. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_UPLOAD_RING_H
#define SG_UNIT_CUDA_UPLOAD_RING_H

#include "unit/cuda/driver/gpu.h"

enum { CU_RING_BUFFERS = 4 };

/* Zero: closed. One thread at a time. */
struct cu_upload_ring {
    unsigned char *memory; /* pinned, [CU_RING_BUFFERS][bytes] */
    size_t bytes;
    cu_event events[CU_RING_BUFFERS]; /* the copies from this buffer are complete */
    uint32_t at, used;     /* the buffer that is filled now; buffers that were used so far, at most all */
};

/* A buffer of at least `bytes`, which no copy reads; the contents are undefined. Allocates the ring on first use. */
segue_status cu_ring_buffer(struct sg_unit *u, struct cu_upload_ring *r, size_t bytes, unsigned char **out, segue_error *err);
/* Copies n bytes of that buffer; returns before they are copied. */
segue_status cu_ring_copy(struct sg_unit *u, struct cu_upload_ring *r, cu_ptr to, size_t at, size_t n, segue_error *err);
/* After the last copy from the buffer. */
segue_status cu_ring_next(struct sg_unit *u, struct cu_upload_ring *r, segue_error *err);
/* Waits for all copies and frees the ring; returns the first error of a copy. */
segue_status cu_ring_close(struct sg_unit *u, struct cu_upload_ring *r, segue_error *err);

#endif
