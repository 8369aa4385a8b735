/* copy.c: copies between host and GPU, all in the stream `copies`. Pageable host memory goes through two pinned staging
 * buffers, so that the CPU fills one while the GPU reads the other. Copies from and to pinned memory are deferred: adjacent
 * ones are merged into one cuMemcpyAsync or cuMemcpy2DAsync, because each transfer has a fixed cost of about 5 us.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/driver/gpu.h"

/* Bytes gathered before a deferred copy is issued: few while the stream is idle (FIRST_BYTES), more while copies are in progress.
 * MAX_PITCH: of a 2D copy; the driver's limit is 2 GB. */
enum { FIRST_BYTES = 3 << 20, MAX_BYTES = 32 << 20, MAX_PITCH = 1 << 30 };

/* 1: [p, p + n) lies within one slab of the pinned heap, so that copies may be deferred. */
static int is_pinned(struct sg_unit *u, const void *p, size_t n)
{
    const unsigned char *at = p;
    int inside = 0;
    pthread_mutex_lock(&u->pinned.lock);
    for (uint32_t i = 0; i < u->pinned.slabs_n; i++) {
        const struct cu_pinned_slab *s = &u->pinned.slabs[i];
        inside |= at >= s->memory && at + n <= s->memory + s->bytes;
    }
    pthread_mutex_unlock(&u->pinned.lock);
    return inside;
}

/* Issues the pending copy, as a 2D copy when it has several lines. */
cu_result cu_pending_copy_start(struct sg_unit *u)
{
    struct cu_pending_copy l = u->pending;
    u->pending.n = 0;
    if (!l.n) return 0;
    u->copies_started = 1;
    if (l.lines > 1) {
        struct cu_copy_2d all = {.bytes = l.n, .lines = l.lines};
        struct cu_copy_2d_end device = {.kind = CU_ON_DEVICE, .device = l.device, .pitch = l.pitch},
                              host = {.kind = CU_ON_HOST, .host = l.host, .pitch = l.n};
        all.from = l.out ? device : host;
        all.to = l.out ? host : device;
        return u->d.copy_2d(&all, u->copies);
    }
    return l.out ? u->d.copy_dtoh(l.host, l.device, l.n, u->copies) : u->d.copy_htod(l.device, l.host, l.n, u->copies);
}

/* Waits until the GPU has read piece i - 2 from staging buffer i % 2. */
static segue_status wait_staging(struct sg_unit *u, size_t i, segue_error *err)
{
    if (i < 2) return SEGUE_OK;
    return cu_check(&u->d, u->d.event_sync(u->staging_events[i % 2]), "copy", err);
}

/* Piece i uses staging buffer i % 2. memcpy of a piece overlaps with the transfer of the piece before. Waits at the end, because
 * the caller may then change the source, and the next call uses the buffers. */
static segue_status staged_to_gpu(struct sg_unit *u, cu_ptr to, const char *from, size_t n, segue_error *err)
{
    for (size_t i = 0, at = 0; at < n; i++, at += CU_STAGING_BYTES) {
        size_t piece = n - at < CU_STAGING_BYTES ? n - at : CU_STAGING_BYTES;
        unsigned char *half = u->staging + i % 2 * CU_STAGING_BYTES;
        SG_TRY(wait_staging(u, i, err));
        memcpy(half, from + at, piece);
        SG_TRY(cu_check(&u->d, u->d.copy_htod(to + at, half, piece, u->copies), "copy to the GPU", err));
        SG_TRY(cu_check(&u->d, u->d.event_record(u->staging_events[i % 2], u->copies), "copy to the GPU", err));
    }
    return cu_check(&u->d, u->d.stream_sync(u->copies), "copy to the GPU", err);
}

/* The transfer of piece i is issued before piece i - 1 is copied out of its staging buffer, so that both overlap; hence one
 * iteration more than there are pieces. */
static segue_status staged_to_host(struct sg_unit *u, char *to, cu_ptr from, size_t n, segue_error *err)
{
    size_t pieces = (n + CU_STAGING_BYTES - 1) / CU_STAGING_BYTES;
    for (size_t i = 0; i < pieces + 1; i++) {
        size_t at = i * (size_t)CU_STAGING_BYTES,
               piece = i < pieces ? (n - at < CU_STAGING_BYTES ? n - at : CU_STAGING_BYTES) : 0;
        if (piece) {
            SG_TRY(cu_check(&u->d, u->d.copy_dtoh(u->staging + i % 2 * CU_STAGING_BYTES, from + at, piece, u->copies),
                            "copy from the GPU", err));
            SG_TRY(cu_check(&u->d, u->d.event_record(u->staging_events[i % 2], u->copies), "copy from the GPU", err));
        }
        if (!i) continue;
        size_t before = at - CU_STAGING_BYTES, many = n - before < CU_STAGING_BYTES ? n - before : CU_STAGING_BYTES;
        SG_TRY(cu_check(&u->d, u->d.event_sync(u->staging_events[(i - 1) % 2]), "copy from the GPU", err));
        memcpy(to + before, u->staging + (i - 1) % 2 * CU_STAGING_BYTES, many);
    }
    return SEGUE_OK;
}

segue_status cu_copy_to_gpu(struct sg_unit *u, cu_ptr to, const void *from, size_t n, segue_error *err)
{
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    segue_status status = cu_check(&u->d, cu_pending_copy_start(u), "copy to the GPU", err);
    if (status == SEGUE_OK) status = staged_to_gpu(u, to, from, n, err);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    return status;
}

segue_status cu_copy_to_host(struct sg_unit *u, void *to, cu_ptr from, size_t n, segue_error *err)
{
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    segue_status status = cu_check(&u->d, cu_pending_copy_start(u), "copy from the GPU", err);
    if (status == SEGUE_OK) status = staged_to_host(u, to, from, n, err);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    return status;
}

/* The flag is cleared first: a copy that another thread defers meanwhile sets it again. */
segue_status cu_copies_wait(struct sg_unit *u, segue_error *err)
{
    if (!atomic_exchange(&u->copies_pending, 0)) return SEGUE_OK;
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    /* Waits even if the pending copy could not be issued: earlier ones may be in flight. */
    cu_result r = cu_pending_copy_start(u), s = u->d.stream_sync(u->copies);
    u->copies_started = 0;
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    return cu_check(&u->d, r ? r : s, "copy state", err);
}

/* Extends the pending copy by this one and returns 1, if both are adjacent on the host and either adjacent on the GPU or, with
 * equal sizes, at a constant distance (lines of a 2D copy). copy_lock is held. */
static int merge_pending(struct sg_unit *u, cu_ptr device, const unsigned char *host, size_t n, int out)
{
    struct cu_pending_copy *l = &u->pending;
    if (!l->n || l->out != (uint32_t)out || l->host + l->lines * l->n != host) return 0;
    if (l->lines * l->n + n > (size_t)(u->copies_started ? MAX_BYTES : FIRST_BYTES)) return 0;
    if (l->lines == 1 && l->device + l->n == device) {
        l->n += n;
        return 1;
    }
    size_t pitch = l->lines == 1 ? (size_t)(device - l->device) : l->pitch;
    if (n != l->n || pitch < n || pitch > MAX_PITCH || device != l->device + l->lines * pitch) return 0;
    l->pitch = pitch;
    l->lines++;
    return 1;
}

/* A copy from or to pinned memory: merged into the pending one, or it replaces it after that was issued. */
static segue_status copy_deferred(struct sg_unit *u, cu_ptr device, void *host, size_t n, int out, segue_error *err)
{
    cu_result r = 0;
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    if (!merge_pending(u, device, host, n, out)) {
        r = cu_pending_copy_start(u);
        u->pending = (struct cu_pending_copy){.host = host, .device = device, .n = n, .lines = 1, .out = (uint32_t)out};
    } else if (u->pending.lines > 1 && u->copies_started &&
               !u->d.stream_query(u->copies)) { /* the stream is idle: gathering more lines would waste time */
        r = cu_pending_copy_start(u);
    }
    atomic_store(&u->copies_pending, 1);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    return cu_check(&u->d, r, "copy state", err);
}

/* The copy is issued but not waited for. */
segue_status cu_copies_flush(struct sg_unit *u, segue_error *err)
{
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    cu_result r = cu_pending_copy_start(u);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    return cu_check(&u->d, r, "copy state", err);
}

/* The source is only read; the union removes `const` because a pending copy has one pointer for both directions. */
segue_status cu_copy_in(struct sg_unit *u, cu_ptr to, const void *from, size_t n, segue_error *err)
{
    union {
        const void *in;
        void *host;
    } p = {from};
    return is_pinned(u, from, n) ? copy_deferred(u, to, p.host, n, 0, err) : cu_copy_to_gpu(u, to, from, n, err);
}

segue_status cu_copy_out(struct sg_unit *u, void *to, cu_ptr from, size_t n, segue_error *err)
{
    return is_pinned(u, to, n) ? copy_deferred(u, from, to, n, 1, err) : cu_copy_to_host(u, to, from, n, err);
}
