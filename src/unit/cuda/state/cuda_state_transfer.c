/* cuda_state_transfer.c: moves a state between two units of this kind. On one GPU the memory is exchanged. Between two GPUs
 * all slots are copied at once with cuMemcpyPeerAsync, directly where peer access is available and through the host otherwise.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"

#include "base/clock.h"

/* NVLink rests when nothing has crossed it for 50 ms, and what crosses next waits 0.2 ms for it; less than WAKE_BYTES does not
 * wake it. */
enum { PEER_ALREADY_ENABLED = 704, WAKE_BYTES = 64 << 10, AWAKE_NS = 20000000 };

static int same_slots(const struct sg_state *a, const struct sg_state *b)
{
    if (a->slots_n != b->slots_n || a->storage != b->storage) return 0;
    for (uint32_t i = 0; i < a->slots_n; i++)
        if (!sg_slot_same(&a->slots[i].slot, &b->slots[i].slot)) return 0;
    return 1;
}

/* What a slot holds, without the memory. */
static void copy_coverage(struct cu_slot *to, const struct cu_slot *from)
{
    to->first = from->first;
    to->end = from->end;
    to->has_data = from->has_data;
}

static void swap_slots(struct cu_slot *a, struct cu_slot *b)
{
    struct cu_slot before = *a;
    a->memory = b->memory;
    a->capacity = b->capacity;
    a->shared_block = b->shared_block;
    copy_coverage(a, b);
    b->memory = before.memory;
    b->capacity = before.capacity;
    b->shared_block = before.shared_block;
    copy_coverage(b, &before);
}

static void swap_states(struct sg_state *a, struct sg_state *b)
{
    cu_ptr fixed = a->fixed, other = a->fixed_alt;
    struct cu_slot_block shared_block = a->shared_block;
    for (uint32_t i = 0; i < a->slots_n; i++) swap_slots(&a->slots[i], &b->slots[i]);
    a->fixed = b->fixed;
    a->fixed_alt = b->fixed_alt;
    b->fixed = fixed;
    b->fixed_alt = other;
    a->shared_block = b->shared_block;
    b->shared_block = shared_block;
    cu_state_set_fixed(a);
    cu_state_set_fixed(b);
}

/* Cards that do not reach each other are copied between by the driver, by way of the host. */
static void enable_peer(struct sg_unit *from, struct sg_unit *to)
{
    if (from->peer_ctx == to->ctx) return;
    cu_enter(from);
    cu_result r = from->d.peer_enable(to->ctx, 0);
    cu_leave(from);
    if (!r || r == PEER_ALREADY_ENABLED) from->peer_ctx = to->ctx;
}

static cu_ptr peer_probe_of(struct sg_unit *u)
{
    pthread_mutex_lock(&u->copy_lock);
    if (!u->peer_probe && cu_mem_alloc(u, WAKE_BYTES, "the way to another GPU", &u->peer_probe, NULL) != SEGUE_OK)
        u->peer_probe = 0;
    cu_ptr peer_probe = u->peer_probe;
    pthread_mutex_unlock(&u->copy_lock);
    return peer_probe;
}

static int link_is_idle(struct sg_unit *from, const struct sg_unit *to)
{
    uint64_t now = sg_now_ns();
    pthread_mutex_lock(&from->copy_lock);
    int idle = from->peer_ctx != to->ctx || now - from->peer_used_ns > AWAKE_NS;
    if (idle) from->peer_used_ns = now;
    pthread_mutex_unlock(&from->copy_lock);
    return idle;
}

/* A way that could not be woken is slow, no more. */
void cu_peer_prewarm(struct sg_unit *from, struct sg_unit *to)
{
    if (from->card == to->card || !link_is_idle(from, to)) return;
    cu_ptr a = peer_probe_of(from), b = peer_probe_of(to);
    if (!a || !b) return;
    enable_peer(from, to);
    pthread_mutex_lock(&from->copy_lock);
    cu_enter(from);
    if (!cu_pending_copy_start(from)) (void)from->d.copy_peer(b, to->ctx, a, from->ctx, WAKE_BYTES, from->copies);
    cu_leave(from);
    pthread_mutex_unlock(&from->copy_lock);
}

static segue_status copy_between_gpus(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    struct sg_unit *u = from->base.unit, *v = to->base.unit;
    segue_status status = SEGUE_OK;
    cu_result r = 0;
    enable_peer(u, v);
    SG_TRY(cu_state_alloc_fixed(to, err));
    for (uint32_t i = 0; i < to->slots_n && status == SEGUE_OK; i++) status = cu_slot_reserve(to, i, from->slots[i].end, err);
    if (status != SEGUE_OK) return status;
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    r = cu_pending_copy_start(u);
    if (to->fixed_bytes && !r) r = u->d.copy_peer(to->fixed, v->ctx, from->fixed, u->ctx, to->fixed_bytes, u->copies);
    for (uint32_t i = 0; i < to->slots_n && !r; i++) {
        const struct cu_slot *a = &from->slots[i], *b = &to->slots[i];
        size_t at = a->first * a->row_bytes, bytes = (a->end - a->first) * a->row_bytes;
        if (bytes) r = u->d.copy_peer(b->memory + at, v->ctx, a->memory + at, u->ctx, bytes, u->copies);
    }
    if (!r) r = u->d.stream_sync(u->copies);
    u->peer_used_ns = sg_now_ns();
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    SG_TRY(cu_check(&u->d, r, "pass state", err));
    for (uint32_t i = 0; i < to->slots_n; i++) copy_coverage(&to->slots[i], &from->slots[i]);
    return SEGUE_OK;
}

segue_status cu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    if (!same_slots(from, to))
        return sg_fail(err, SEGUE_EUNSUPPORTED, "pass state: cuda: the states differ in slots or storage; get and put the rows");
    if (from->busy || to->busy) return sg_fail(err, SEGUE_EARG, "pass state: cuda: a run is using a state; wait for it");
    SG_TRY(cu_state_settle(from, err));
    SG_TRY(cu_state_settle(to, err));
    if (from->base.unit->card == to->base.unit->card)
        swap_states(to, from);
    else
        SG_TRY(copy_between_gpus(to, from, err));
    uint64_t rows = to->rows;
    to->rows = from->rows;
    from->rows = rows;
    cu_state_drop_marks(to);
    cu_state_drop_marks(from);
    return SEGUE_OK;
}
