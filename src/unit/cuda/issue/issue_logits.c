/* issue_logits.c: logits that nobody asked for yet. A run that was wanted to choose, not to give logits, leaves them where its
 * head wrote them; the lane remembers whose they are. The next pass of the lane writes there, so what it does not make
 * obsolete is first copied into memory of its state, on the card. A step of 16 sequences thus moves no logits at all.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/cu.h"

/* Under the unit's lock, as all below: a state may be freed while a lane that holds its logits runs. */
static void forget(struct sg_state *s)
{
    struct cu_lane *l = s->kept_in;
    for (uint32_t i = 0; l && i < l->kept_n; i++)
        if (l->kept[i].state == s) l->kept[i--] = l->kept[--l->kept_n];
    s->kept_at = 0;
}

void cu_kept_forget(struct sg_state *s)
{
    pthread_mutex_lock(&s->base.unit->keeping);
    forget(s);
    pthread_mutex_unlock(&s->base.unit->keeping);
}

void cu_kept_add(struct cu_lane *l, struct sg_state *s, cu_ptr at, uint32_t vocab, uint64_t run)
{
    pthread_mutex_lock(&s->base.unit->keeping);
    forget(s);
    if (l->kept_n < CK_SPANS) { /* passes have no more spans */
        l->kept[l->kept_n++] = (struct cu_kept){s, run};
        s->kept_in = l;
        s->kept_at = at;
        s->kept_bytes = vocab * sizeof(float);
    }
    pthread_mutex_unlock(&s->base.unit->keeping);
}

void cu_kept_leave(struct sg_unit *u, struct cu_lane *l)
{
    pthread_mutex_lock(&u->keeping);
    while (l->kept_n) l->kept[--l->kept_n].state->kept_in = NULL;
    pthread_mutex_unlock(&u->keeping);
}

static int obsolete(const struct cu_kept *k, uint64_t run, const struct sg_span *spans, uint32_t n)
{
    for (uint32_t i = 0; i < n && k->run != run; i++)
        if (spans[i].state == k->state) return 1;
    return 0;
}

static segue_status clear_all(struct sg_unit *u, struct cu_lane *l, uint64_t run, const struct sg_span *spans, uint32_t n,
                              segue_error *err)
{
    while (l->kept_n) {
        const struct cu_kept k = l->kept[--l->kept_n];
        struct sg_state *s = k.state;
        cu_ptr at = s->kept_at;
        s->kept_at = 0;
        if (obsolete(&k, run, spans, n)) continue;
        if (!s->kept_own && cu_piece_take(u, s->kept_bytes, &s->kept_own, NULL) != SEGUE_OK) continue;
        SG_TRY(cu_check(&u->d, u->d.copy(s->kept_own, at, s->kept_bytes, l->stream), "run", err));
        s->kept_at = s->kept_own;
        s->ahead = 1; /* freeing waits for the copy */
    }
    return SEGUE_OK;
}

segue_status cu_kept_clear(struct sg_unit *u, struct cu_lane *l, uint64_t run, const struct sg_span *spans, uint32_t n,
                           segue_error *err)
{
    pthread_mutex_lock(&u->keeping);
    segue_status status = clear_all(u, l, run, spans, n, err);
    pthread_mutex_unlock(&u->keeping);
    return status;
}

static segue_status read_logits(struct sg_state *s, float *out, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    if (!s->kept_at)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "logits not read: cuda: the state's last run left none; compute a row anew");
    cu_enter(u);
    cu_result r = s->kept_in ? u->d.stream_wait(s->kept_in->stream) : 0;
    cu_leave(u);
    SG_TRY(cu_check(&u->d, r, "read logits", err));
    return cu_fetch(u, out, s->kept_at, s->kept_bytes, err);
}

segue_status cu_state_logits(struct sg_state *s, float *out, segue_error *err)
{
    pthread_mutex_lock(&s->base.unit->keeping); /* the lane's next pass waits before it writes there */
    segue_status status = read_logits(s, out, err);
    pthread_mutex_unlock(&s->base.unit->keeping);
    return status;
}
