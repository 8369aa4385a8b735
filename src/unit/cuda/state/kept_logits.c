/* kept_logits.c: logits that were not requested yet. A run that only chooses tokens leaves its logits in the value buffer of
 * its lane, and the lane records which states they belong to. Before a later pass overwrites the buffer, logits that the pass
 * does not replace are copied to memory of their state, on the GPU. A step of 16 sequences therefore copies no logits in the
 * usual case. SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"

/* The unit's logits_lock guards all of this: a state may be freed, on another thread, while a lane that has its logits runs. The
 * static functions are called with the lock held.
 *
 * Removes the state from the list of its lane. */
static void detach(struct sg_state *s)
{
    struct cu_lane *l = s->logits_lane;
    for (uint32_t i = 0; l && i < l->logits_n; i++)
        if (l->logits[i].state == s) l->logits[i--] = l->logits[--l->logits_n];
    s->logits_at = 0;
}

void cu_logits_forget(struct sg_state *s)
{
    pthread_mutex_lock(&s->core.base.unit->logits_lock);
    detach(s);
    pthread_mutex_unlock(&s->core.base.unit->logits_lock);
}

/* A full list drops the logits, which is allowed: the caller of cu_state_logits then computes a row again. It does not happen,
 * since a pass has at most CK_SPANS spans and moves older entries out first. */
void cu_logits_keep(struct cu_lane *l, struct sg_state *s, cu_ptr at, uint32_t vocab, uint64_t run)
{
    pthread_mutex_lock(&s->core.base.unit->logits_lock);
    detach(s);
    if (l->logits_n < CK_SPANS) {
        l->logits[l->logits_n++] = (struct cu_lane_logits){s, run};
        s->logits_lane = l;
        s->logits_at = at;
        s->logits_bytes = vocab * sizeof(float);
    }
    pthread_mutex_unlock(&s->core.base.unit->logits_lock);
}

/* The lane's buffers are about to be freed, and the logits in them are lost. */
void cu_logits_detach_lane(struct sg_unit *u, struct cu_lane *l)
{
    pthread_mutex_lock(&u->logits_lock);
    while (l->logits_n) {
        struct sg_state *s = l->logits[--l->logits_n].state;
        s->logits_lane = NULL;
        s->logits_at = 0;
    }
    pthread_mutex_unlock(&u->logits_lock);
}

/* 1: a later run computes new logits for this state. Logits of the same run (another pass of it) are still wanted. */
static int will_be_replaced(const struct cu_lane_logits *k, uint64_t run, const struct sg_span *spans, uint32_t n)
{
    for (uint32_t i = 0; i < n && k->run != run; i++)
        if (spans[i].state == k->state) return 1;
    return 0;
}

/* Empties the lane's list. The copies are in the lane's stream, before the pass that overwrites the buffer. Without memory for a
 * copy the logits are dropped. */
static segue_status move_all_out(struct sg_unit *u, struct cu_lane *l, uint64_t run, const struct sg_span *spans, uint32_t n,
                                 segue_error *err)
{
    while (l->logits_n) {
        const struct cu_lane_logits k = l->logits[--l->logits_n];
        struct sg_state *s = k.state;
        cu_ptr at = s->logits_at;
        s->logits_at = 0;
        if (will_be_replaced(&k, run, spans, n)) continue;
        if (!s->logits_copy && cu_pool_alloc(u, s->logits_bytes, &s->logits_copy, NULL) != SEGUE_OK) continue;
        SG_TRY(cu_check(&u->d, u->d.copy_dtod(s->logits_copy, at, s->logits_bytes, l->stream), "run", err));
        s->logits_at = s->logits_copy;
        s->gpu_pending = 1; /* so that cu_state_free waits for the copy */
    }
    return SEGUE_OK;
}

segue_status cu_logits_move_out(struct sg_unit *u, struct cu_lane *l, uint64_t run, const struct sg_span *spans, uint32_t n,
                                segue_error *err)
{
    pthread_mutex_lock(&u->logits_lock);
    segue_status status = move_all_out(u, l, run, spans, n, err);
    pthread_mutex_unlock(&u->logits_lock);
    return status;
}

/* Waits for the lane's stream while the logits are still in the lane's buffer. */
static segue_status read_logits(struct sg_state *s, float *out, segue_error *err)
{
    struct sg_unit *u = s->core.base.unit;
    if (!s->logits_at)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "get logits: cuda: the state's last run kept none; compute its last token again");
    cu_enter(u);
    cu_result r = s->logits_lane ? u->d.stream_sync(s->logits_lane->stream) : 0;
    cu_leave(u);
    SG_TRY(cu_check(&u->d, r, "read logits", err));
    return cu_copy_to_host(u, out, s->logits_at, s->logits_bytes, err);
}

segue_status cu_state_logits(struct sg_state *s, float *out, segue_error *err)
{
    pthread_mutex_lock(&s->core.base.unit->logits_lock); /* also keeps the lane's next pass from overwriting them */
    segue_status status = read_logits(s, out, err);
    pthread_mutex_unlock(&s->core.base.unit->logits_lock);
    return status;
}
