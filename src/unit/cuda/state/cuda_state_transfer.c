/* cuda_state_transfer.c: moves a state between two units of this kind. On one GPU the memory is exchanged. Between two GPUs
 * all slots are copied at once with cuMemcpyPeerAsync: directly where peer access is available, through the host otherwise.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"

#include "base/clock.h"

/* An NVLink powers down after 50 ms without traffic, and the next copy then waits 0.2 ms; a copy of less than PROBE_BYTES does
 * not wake it (measured on H200, docs/log/CUDA.md). AWAKE_NS is below the 50 ms. */
enum { PROBE_BYTES = 64 << 10, AWAKE_NS = 20000000 };

/* Which positions a slot holds, without the memory. */
static void copy_coverage(struct cu_slot *to, const struct cu_slot *from)
{
    to->core.first = from->core.first;
    to->core.end = from->core.end;
    to->core.present = from->core.present;
}

static void swap_slots(struct cu_slot *a, struct cu_slot *b)
{
    struct cu_slot before = *a;
    a->memory = b->memory;
    a->capacity = b->capacity;
    a->range = b->range;
    a->writes = b->writes;
    copy_coverage(a, b);
    b->memory = before.memory;
    b->capacity = before.capacity;
    b->range = before.range;
    b->writes = before.writes;
    copy_coverage(b, &before);
}

/* Events and kept logits stay where they are: they belong to runs, not to the contents. */
static void swap_states(struct sg_state *a, struct sg_state *b)
{
    cu_ptr fixed = a->fixed, alt = a->fixed_alt;
    for (uint32_t i = 0; i < a->core.slots_n; i++) swap_slots(cu_slot_at(a, i), cu_slot_at(b, i));
    a->fixed = b->fixed;
    a->fixed_alt = b->fixed_alt;
    b->fixed = fixed;
    b->fixed_alt = alt;
    cu_state_set_fixed(a);
    cu_state_set_fixed(b);
}

/* --- the link between two GPUs --- */

/* Without peer access the driver copies through the host, so a failure is not an error. */
static void enable_peer(struct sg_unit *from, struct sg_unit *to)
{
    if (from->peer_ctx == to->ctx) return;
    cu_enter(from);
    cu_result r = from->d.peer_enable(to->ctx, 0);
    cu_leave(from);
    if (!r || r == CU_PEER_ALREADY_ENABLED) from->peer_ctx = to->ctx;
}

/* The unit's probe buffer, allocated on first use; 0: no memory. */
static cu_ptr peer_probe_of(struct sg_unit *u)
{
    pthread_mutex_lock(&u->copy_lock);
    if (!u->peer_probe && cu_mem_alloc(u, PROBE_BYTES, "buffer for copies between GPUs", &u->peer_probe, NULL) != SEGUE_OK)
        u->peer_probe = 0;
    cu_ptr peer_probe = u->peer_probe;
    pthread_mutex_unlock(&u->copy_lock);
    return peer_probe;
}

/* 1: the link may have powered down. It then counts as used from now on, since the caller wakes it. */
static int link_is_idle(struct sg_unit *from, const struct sg_unit *to)
{
    uint64_t now = sg_now_ns();
    pthread_mutex_lock(&from->copy_lock);
    int idle = from->peer_ctx != to->ctx || now - from->peer_used_ns > AWAKE_NS;
    if (idle) from->peer_used_ns = now;
    pthread_mutex_unlock(&from->copy_lock);
    return idle;
}

/* Copies the probe buffer asynchronously. Errors are ignored: the next transfer is slower, nothing else. */
void cu_peer_prewarm(struct sg_unit *from, struct sg_unit *to)
{
    if (from->device == to->device || !link_is_idle(from, to)) return;
    cu_ptr a = peer_probe_of(from), b = peer_probe_of(to);
    if (!a || !b) return;
    enable_peer(from, to);
    pthread_mutex_lock(&from->copy_lock);
    cu_enter(from);
    if (!cu_pending_copy_start(from)) (void)from->d.copy_peer(b, to->ctx, a, from->ctx, PROBE_BYTES, from->copies);
    cu_leave(from);
    pthread_mutex_unlock(&from->copy_lock);
}

/* --- transfer --- */

/* Issues the copies of all slots in the stream of the source GPU and waits once. Of K and V only [first, end) is copied. */
static segue_status copy_between_gpus(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    struct sg_unit *u = from->core.base.unit, *v = to->core.base.unit;
    enable_peer(u, v);
    SG_TRY(cu_state_alloc_fixed(to, err));
    for (uint32_t i = 0; i < to->core.slots_n; i++)
        if (cu_is_kv(cu_slot_at(to, i))) SG_TRY(cu_slot_own(to, cu_slot_at(to, i), 0, cu_slot_at(from, i)->core.end, err));
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    cu_result r = cu_pending_copy_start(u);
    if (to->block_bytes && !r) r = u->d.copy_peer(to->fixed, v->ctx, from->fixed, u->ctx, to->block_bytes, u->copies);
    for (uint32_t i = 0; i < to->core.slots_n && !r; i++) {
        const struct cu_slot *a = cu_slot_at(from, i), *b = cu_slot_at(to, i);
        size_t at = a->core.first * a->core.row_bytes, bytes = (a->core.end - a->core.first) * a->core.row_bytes;
        if (bytes) r = u->d.copy_peer(b->memory + at, v->ctx, a->memory + at, u->ctx, bytes, u->copies);
    }
    if (!r) r = u->d.stream_sync(u->copies);
    u->peer_used_ns = sg_now_ns();
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    SG_TRY(cu_check(&u->d, r, "transfer state", err));
    for (uint32_t i = 0; i < to->core.slots_n; i++) copy_coverage(cu_slot_at(to, i), cu_slot_at(from, i));
    return SEGUE_OK;
}

segue_status cu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    SG_TRY(sg_state_core_check_transfer(to, from, err));
    SG_TRY(cu_state_settle(from, err));
    SG_TRY(cu_state_settle(to, err));
    if (from->core.base.unit->device == to->core.base.unit->device)
        swap_states(to, from);
    else
        SG_TRY(copy_between_gpus(to, from, err));
    uint64_t tokens = to->core.tokens;
    to->core.tokens = from->core.tokens;
    from->core.tokens = tokens;
    return SEGUE_OK;
}
