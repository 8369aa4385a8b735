/* layer_events.c: lets a reader copy rows of a state while the run that writes them continues. After each step of a long pass
 * that writes a slot an event is recorded. A reader of that slot waits for this event only and copies while later layers run.
 * Short passes record no events: their readers wait for the end of the run.
 *
 * The host issues steps long before the GPU executes them, so issued_end may be ahead of core.end; the event orders the copy
 * after the kernels. SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"

/* The slots that are completely written after a step, in out [2]; returns how many. A product with `delta` set is not counted:
 * the convolution's slot is written with the delta rule's, in the step of that (s->conv). */
static uint32_t slots_of(const struct cu_step *s, uint32_t *out)
{
    const struct sg_op *op = s->kind == CU_STEP_ATTEND ? s->attend : s->kind == CU_STEP_OP ? s->op : s->after;
    if (!op || s->delta) return 0;
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

/* Graphs are split after attention and delta rules only: every layer ends with one of them. */
int cu_layer_event_splits(const struct cu_step *s)
{
    return s->kind == CU_STEP_ATTEND || (s->kind == CU_STEP_OP && (s->op->code == SG_OP_ATTEND || s->op->code == SG_OP_DELTA));
}

/* The event is recorded before issued_end is set: a reader that sees issued_end waits for the right recording. */
segue_status cu_layer_event_record(const struct cu_step *s, struct sg_state *state, cu_stream stream, uint64_t end,
                                   segue_error *err)
{
    struct sg_unit *u = state->core.base.unit;
    uint32_t slots[2], n = slots_of(s, slots);
    for (uint32_t i = 0; i < n; i++) {
        struct cu_slot *slot = cu_slot_at(state, slots[i]);
        cu_result r = slot->ready_event ? 0 : u->d.event_new(&slot->ready_event, CU_EVENT_UNTIMED);
        if (!r) r = u->d.event_record(slot->ready_event, stream);
        SG_TRY(cu_check(&u->d, r, "run", err));
        pthread_mutex_lock(&state->core.lock);
        slot->issued_end = end;
        pthread_cond_broadcast(&state->core.changed);
        pthread_mutex_unlock(&state->core.lock);
    }
    return SEGUE_OK;
}

void cu_layer_events_begin(struct sg_state *s, uint64_t end)
{
    pthread_mutex_lock(&s->core.lock);
    s->until = end;
    for (uint32_t i = 0; i < s->core.slots_n; i++) cu_slot_at(s, i)->issued_end = 0;
    pthread_mutex_unlock(&s->core.lock);
}

/* Under the lock. 1: the positions before `to` are held, or will be after the slot's event. A fixed slot has its final contents
 * only after the last pass of the run, which ends at `until`. */
static int is_ready(const struct sg_state *s, const struct cu_slot *slot, uint64_t to)
{
    if (!s->core.busy) return 1;
    if (slot->core.fixed_bytes) return slot->issued_end && slot->issued_end == s->until;
    return slot->core.end >= to || slot->issued_end >= to;
}

/* A state that is not busy is ready whatever it holds; the caller checks the range. The event is waited for without the lock,
 * which the run needs to advance. */
segue_status cu_layer_event_wait(struct sg_state *s, struct cu_slot *slot, uint64_t to, uint64_t *first, uint64_t *end,
                                 segue_error *err)
{
    struct sg_unit *u = s->core.base.unit;
    pthread_mutex_lock(&s->core.lock);
    while (!is_ready(s, slot, to)) pthread_cond_wait(&s->core.changed, &s->core.lock);
    int early = s->core.busy && (slot->core.fixed_bytes || slot->core.end < to);
    *first = slot->core.first;
    *end = early ? slot->issued_end : slot->core.end;
    pthread_mutex_unlock(&s->core.lock);
    if (!early) return SEGUE_OK;
    cu_enter(u);
    cu_result r = u->d.event_sync(slot->ready_event);
    cu_leave(u);
    return cu_check(&u->d, r, "get state", err);
}
