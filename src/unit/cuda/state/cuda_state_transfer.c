/* cuda_state_transfer.c: a state from one unit of this kind to another. On one GPU the memory changes hands; between two of a host
 * the bytes go from card to card, all of them in flight at once, and never through the host's memory where the cards reach
 * each other. SPDX-License-Identifier: MIT */
#include "unit/cuda/cu.h"

#include "base/clock.h"

/* NVLink rests when nothing has crossed it for 50 ms, and what crosses next waits 0.2 ms for it; less than WAKE_BYTES does not
 * wake it. */
enum { PEER_THERE_ALREADY = 704, WAKE_BYTES = 64 << 10, AWAKE_NS = 20000000 };

static int same_slots(const struct sg_state *a, const struct sg_state *b)
{
    if (a->slots_n != b->slots_n || a->storage != b->storage) return 0;
    for (uint32_t i = 0; i < a->slots_n; i++)
        if (!sg_slot_same(&a->slots[i].slot, &b->slots[i].slot)) return 0;
    return 1;
}

/* What a slot holds, without the memory. */
static void take_over(struct cu_slot *to, const struct cu_slot *from)
{
    to->first = from->first;
    to->end = from->end;
    to->given = from->given;
}

static void exchange_slot(struct cu_slot *a, struct cu_slot *b)
{
    struct cu_slot before = *a;
    a->memory = b->memory;
    a->room = b->room;
    a->together = b->together;
    take_over(a, b);
    b->memory = before.memory;
    b->room = before.room;
    b->together = before.together;
    take_over(b, &before);
}

static void exchange(struct sg_state *a, struct sg_state *b)
{
    cu_ptr fixed = a->fixed, other = a->fixed_other;
    struct cu_together together = a->together;
    for (uint32_t i = 0; i < a->slots_n; i++) exchange_slot(&a->slots[i], &b->slots[i]);
    a->fixed = b->fixed;
    a->fixed_other = b->fixed_other;
    b->fixed = fixed;
    b->fixed_other = other;
    a->together = b->together;
    b->together = together;
    cu_state_place(a);
    cu_state_place(b);
}

/* Cards that do not reach each other are copied between by the driver, by way of the host. */
static void reach(struct sg_unit *from, struct sg_unit *to)
{
    if (from->reaches == to->ctx) return;
    cu_enter(from);
    cu_result r = from->d.peer_enable(to->ctx, 0);
    cu_leave(from);
    if (!r || r == PEER_THERE_ALREADY) from->reaches = to->ctx;
}

static cu_ptr porch_of(struct sg_unit *u)
{
    pthread_mutex_lock(&u->copying);
    if (!u->porch && cu_room(u, WAKE_BYTES, "the way to another GPU", &u->porch, NULL) != SEGUE_OK) u->porch = 0;
    cu_ptr porch = u->porch;
    pthread_mutex_unlock(&u->copying);
    return porch;
}

static int rests(struct sg_unit *from, const struct sg_unit *to)
{
    uint64_t now = sg_now_ns();
    pthread_mutex_lock(&from->copying);
    int so = from->reaches != to->ctx || now - from->crossed_ns > AWAKE_NS;
    if (so) from->crossed_ns = now;
    pthread_mutex_unlock(&from->copying);
    return so;
}

/* A way that could not be woken is slow, no more. */
void cu_peer_prewarm(struct sg_unit *from, struct sg_unit *to)
{
    if (from->card == to->card || !rests(from, to)) return;
    cu_ptr a = porch_of(from), b = porch_of(to);
    if (!a || !b) return;
    reach(from, to);
    pthread_mutex_lock(&from->copying);
    cu_enter(from);
    if (!cu_moves_begin(from)) (void)from->d.copy_peer(b, to->ctx, a, from->ctx, WAKE_BYTES, from->copies);
    cu_leave(from);
    pthread_mutex_unlock(&from->copying);
}

static segue_status copy_over(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    struct sg_unit *u = from->base.unit, *v = to->base.unit;
    segue_status status = SEGUE_OK;
    cu_result r = 0;
    reach(u, v);
    SG_TRY(cu_state_fixed(to, err));
    for (uint32_t i = 0; i < to->slots_n && status == SEGUE_OK; i++)
        status = cu_slot_room(to, i, from->slots[i].end, err);
    if (status != SEGUE_OK) return status;
    pthread_mutex_lock(&u->copying);
    cu_enter(u);
    r = cu_moves_begin(u);
    if (to->fixed_bytes && !r) r = u->d.copy_peer(to->fixed, v->ctx, from->fixed, u->ctx, to->fixed_bytes, u->copies);
    for (uint32_t i = 0; i < to->slots_n && !r; i++) {
        const struct cu_slot *a = &from->slots[i], *b = &to->slots[i];
        size_t at = a->first * a->row_bytes, bytes = (a->end - a->first) * a->row_bytes;
        if (bytes) r = u->d.copy_peer(b->memory + at, v->ctx, a->memory + at, u->ctx, bytes, u->copies);
    }
    if (!r) r = u->d.stream_wait(u->copies);
    u->crossed_ns = sg_now_ns();
    cu_leave(u);
    pthread_mutex_unlock(&u->copying);
    SG_TRY(cu_check(&u->d, r, "pass state", err));
    for (uint32_t i = 0; i < to->slots_n; i++) take_over(&to->slots[i], &from->slots[i]);
    return SEGUE_OK;
}

segue_status cu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    if (!same_slots(from, to))
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "pass state: cuda: the states differ in slots or storage; get and put the rows");
    if (from->busy || to->busy)
        return sg_fail(err, SEGUE_EARG, "pass state: cuda: a run is using a state; wait for it");
    SG_TRY(cu_state_settle(from, err));
    SG_TRY(cu_state_settle(to, err));
    if (from->base.unit->card == to->base.unit->card)
        exchange(to, from);
    else
        SG_TRY(copy_over(to, from, err));
    uint64_t rows = to->rows;
    to->rows = from->rows;
    from->rows = rows;
    cu_state_forget(to);
    cu_state_forget(from);
    return SEGUE_OK;
}
