/* upload_ring.c: see upload_ring.h. Copies are in the unit's stream `copies`, in the order of the calls.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/compile/upload_ring.h"

/* Pinned memory is expensive to allocate (3 GB/s), so a buffer is only as large as its first request. A larger request replaces
 * the ring. */
static segue_status open_ring(struct sg_unit *u, struct cu_upload_ring *r, size_t bytes, segue_error *err)
{
    void *p = NULL;
    SG_TRY(cu_ring_close(u, r, err));
    cu_enter(u);
    cu_result c = u->d.host_alloc(&p, CU_RING_BUFFERS * bytes, CU_HOST_MAPPED);
    if (!c) r->memory = p;
    for (int i = 0; i < CU_RING_BUFFERS && !c; i++) c = u->d.event_new(&r->events[i], CU_EVENT_UNTIMED);
    cu_leave(u);
    r->bytes = c ? 0 : bytes;
    return cu_check(&u->d, c, "load weights: pinned memory", err);
}

segue_status cu_ring_buffer(struct sg_unit *u, struct cu_upload_ring *r, size_t bytes, unsigned char **out, segue_error *err)
{
    if (bytes > r->bytes) SG_TRY(open_ring(u, r, bytes, err));
    cu_enter(u);
    cu_result c = r->used == CU_RING_BUFFERS ? u->d.event_sync(r->events[r->at]) : 0;
    cu_leave(u);
    *out = r->memory + r->at * r->bytes;
    return cu_check(&u->d, c, "copy to the GPU", err);
}

segue_status cu_ring_copy(struct sg_unit *u, struct cu_upload_ring *r, cu_ptr to, size_t at, size_t n, segue_error *err)
{
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    cu_result c = cu_pending_copy_start(u);
    if (!c) c = u->d.copy_htod(to, r->memory + r->at * r->bytes + at, n, u->copies);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    return cu_check(&u->d, c, "copy to the GPU", err);
}

segue_status cu_ring_next(struct sg_unit *u, struct cu_upload_ring *r, segue_error *err)
{
    cu_enter(u);
    cu_result c = u->d.event_record(r->events[r->at], u->copies);
    cu_leave(u);
    r->at = (r->at + 1) % CU_RING_BUFFERS;
    if (r->used < CU_RING_BUFFERS) r->used++;
    return cu_check(&u->d, c, "copy to the GPU", err);
}

segue_status cu_ring_close(struct sg_unit *u, struct cu_upload_ring *r, segue_error *err)
{
    cu_enter(u);
    cu_result c = r->memory ? u->d.stream_sync(u->copies) : 0;
    for (int i = 0; i < CU_RING_BUFFERS; i++)
        if (r->events[i]) u->d.event_free(r->events[i]);
    if (r->memory) u->d.host_free(r->memory);
    cu_leave(u);
    *r = (struct cu_upload_ring){0};
    return cu_check(&u->d, c, "copy to the GPU", err);
}
