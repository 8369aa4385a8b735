/* layer_events.c: lets a reader copy rows of a state while the run that writes them continues. After each step of a long pass
 * that writes a slot an event is recorded. A reader of that slot waits for this event only and copies while later layers run.
 * Short passes record no events. SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"

/* The slots that a step leaves ready; returns how many. */
static uint32_t slots_of(const struct cu_step *s, uint32_t *out)
{
    const struct sg_op *op = s->kind == CU_STEP_ATTEND ? s->attend : s->kind == CU_STEP_OP ? s->op : s->after;
    if (!op || s->delta) return 0; /* the delta rule may do the convolution: its memory is there behind it */
    switch (op->code) {
    case SG_OP_ATTEND:
        out[0] = op->u.attend.slot_k;
        out[1] = op->u.attend.slot_v;
        return 2;
    case SG_OP_CONV:
        out[0] = op->u.conv.slot;
        return 1;
    case SG_OP_DELTA:
        out[0] = op->u.delta.slot;
        if (s->conv) out[1] = s->conv->u.conv.slot;
        return s->conv ? 2 : 1;
    default:
        return 0;
    }
}

int cu_layer_event_splits(const struct cu_step *s)
{
    return s->kind == CU_STEP_ATTEND || (s->kind == CU_STEP_OP && (s->op->code == SG_OP_ATTEND || s->op->code == SG_OP_DELTA));
}

segue_status cu_layer_event_record(const struct cu_step *s, struct sg_state *state, cu_stream stream, uint64_t end,
                                   segue_error *err)
{
    struct sg_unit *u = state->base.unit;
    uint32_t slots[2], n = slots_of(s, slots);
    for (uint32_t i = 0; i < n; i++) {
        struct cu_slot *slot = &state->slots[slots[i]];
        cu_result r = slot->ready_event ? 0 : u->d.event_new(&slot->ready_event, CU_EVENT_UNTIMED);
        if (!r) r = u->d.event_record(slot->ready_event, stream);
        SG_TRY(cu_check(&u->d, r, "run", err));
        pthread_mutex_lock(&state->lock);
        slot->issued_end = end;
        pthread_cond_broadcast(&state->changed);
        pthread_mutex_unlock(&state->lock);
    }
    return SEGUE_OK;
}

void cu_layer_events_begin(struct sg_state *s, uint64_t end)
{
    pthread_mutex_lock(&s->lock);
    s->until = end;
    for (uint32_t i = 0; i < s->slots_n; i++) s->slots[i].issued_end = 0;
    pthread_mutex_unlock(&s->lock);
}

/* Under the lock: rows (or the memory) as they are held now, or as a pass that was issued leaves them. */
static int is_ready(const struct sg_state *s, const struct cu_slot *slot, uint64_t to)
{
    if (!s->busy) return 1;
    if (slot->fixed_bytes) return slot->issued_end && slot->issued_end == s->until;
    return slot->end >= to || slot->issued_end >= to;
}

segue_status cu_layer_event_wait(struct sg_state *s, struct cu_slot *slot, uint64_t to, uint64_t *first, uint64_t *end,
                                 segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    pthread_mutex_lock(&s->lock);
    while (!is_ready(s, slot, to)) pthread_cond_wait(&s->changed, &s->lock);
    int early = s->busy && (slot->fixed_bytes || slot->end < to);
    *first = slot->first;
    *end = early ? slot->issued_end : slot->end;
    pthread_mutex_unlock(&s->lock);
    if (!early) return SEGUE_OK;
    cu_enter(u);
    cu_result r = u->d.event_sync(slot->ready_event);
    cu_leave(u);
    return cu_check(&u->d, r, "get state", err);
}
