/* layer_events.c: rows that leave while the run that makes them goes on. Behind each step of a long pass that writes a slot an event
 * is recorded; who asks for the slot's rows waits for that event alone, on the host, and copies beside the steps that follow.
 * Passes of few rows are over sooner than an event is worth. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* The slots that a step leaves ready; returns how many. */
static uint32_t slots_of(const struct cu_step *s, uint32_t *out)
{
    const struct sg_op *op = s->kind == CU_STEP_PREPARE ? s->attend : s->kind == CU_STEP_OP ? s->op : s->after;
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

int cu_flow_cuts(const struct cu_step *s)
{
    return s->kind == CU_STEP_PREPARE ||
           (s->kind == CU_STEP_OP && (s->op->code == SG_OP_ATTEND || s->op->code == SG_OP_DELTA));
}

segue_status cu_flow_step(struct cu_pass *p, const struct cu_step *s, struct sg_state *state, uint64_t end)
{
    struct sg_unit *u = p->program->base.unit;
    uint32_t slots[2], n = slots_of(s, slots);
    for (uint32_t i = 0; i < n; i++) {
        struct cu_slot *slot = &state->slots[slots[i]];
        cu_result r = slot->there ? 0 : u->d.event_new(&slot->there, CU_EVENT_UNTIMED);
        if (!r) r = u->d.event_record(slot->there, p->lane->stream);
        SG_TRY(cu_check(&u->d, r, "run", p->err));
        pthread_mutex_lock(&state->lock);
        slot->issued = end;
        pthread_cond_broadcast(&state->moved);
        pthread_mutex_unlock(&state->lock);
    }
    return SEGUE_OK;
}

void cu_flow_begin(struct sg_state *s, uint64_t end)
{
    pthread_mutex_lock(&s->lock);
    s->until = end;
    for (uint32_t i = 0; i < s->slots_n; i++) s->slots[i].issued = 0;
    pthread_mutex_unlock(&s->lock);
}

/* Under the lock: rows (or the memory) as they are held now, or as a pass that was issued leaves them. */
static int is_there(const struct sg_state *s, const struct cu_slot *slot, uint64_t to)
{
    if (!s->busy) return 1;
    if (slot->fixed_bytes) return slot->issued && slot->issued == s->until;
    return slot->end >= to || slot->issued >= to;
}

segue_status cu_flow_wait(struct sg_state *s, struct cu_slot *slot, uint64_t to, uint64_t *first, uint64_t *end,
                          segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    pthread_mutex_lock(&s->lock);
    while (!is_there(s, slot, to)) pthread_cond_wait(&s->moved, &s->lock);
    int early = s->busy && (slot->fixed_bytes || slot->end < to);
    *first = slot->first;
    *end = early ? slot->issued : slot->end;
    pthread_mutex_unlock(&s->lock);
    if (!early) return SEGUE_OK;
    cu_enter(u);
    cu_result r = u->d.event_wait(slot->there);
    cu_leave(u);
    return cu_check(&u->d, r, "get state", err);
}
