/* stateload.c: a file into the states of a session. Everything in a file is checked before a state is made of
 * it: what does not fit this model, or was changed anywhere, is refused by name and never continued; a caller
 * who asks for repair gets a session with the file's tokens, to be computed anew. SPDX-License-Identifier:
 * MIT */
#include <string.h>

#include "base/mem.h"
#include "engine/statefile/statefile.h"

static segue_status foreign(const struct sg_statefile *f, const char *what, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT, "state not loaded: %s: %s; load it with what made it, or compute anew",
                   f->path, what);
}

/* The slots of the state in the graph's order, then those of each point. */
static int slots_fit(const struct sg_statefile *f, const struct sg_graph *g)
{
    uint32_t n = 0, windows = 0;
    for (uint32_t p = 0; p <= f->head.checkpoints_n; p++)
        for (uint32_t i = 0; i < g->slots_n; i++) {
            if (p && sg_state_has_rows(&g->slots[i])) continue;
            if (n == f->head.slots_n || f->slots[n].point != p || !sg_slot_same(&f->slots[n].slot, &g->slots[i]))
                return 0;
            windows += g->slots[i].window != 0;
            n++;
        }
    return n == f->head.slots_n && !(windows && f->head.checkpoints_n);
}

segue_status sg_statefile_fits(const struct sg_statefile *f, const struct segue_engine *e,
                               struct sg_hash adapters, segue_error *err)
{
    const segue_model_info *info = &e->model->info;
    if (memcmp(f->head.shape_id, info->shape_id, 32) != 0 || f->head.vocab != info->vocab)
        return foreign(f, "it is of a model of another shape", err);
    if (memcmp(f->head.weights_id, e->weights_id, 32) != 0)
        return foreign(f, "it is of a model with other weights, or of another pair of storages", err);
    if (f->head.adapters.lo != adapters.lo || f->head.adapters.hi != adapters.hi)
        return foreign(f, "it was made with other adapters", err);
    if (!slots_fit(f, e->graph)) return foreign(f, "a slot has another shape than this model's", err);
    return SEGUE_OK;
}

/* --- filling --- */

/* Rows [from, to) of K and V, as far as the slot holds them; CONV and DELTA as of a point. */
static segue_status put_slots(const struct sg_statefile *f, struct sg_layout *l, uint32_t point,
                              uint64_t from, uint64_t to, segue_error *err)
{
    for (uint32_t i = 0; i < f->head.slots_n; i++) {
        const struct sg_state_slot *s = &f->slots[i];
        uint32_t index = 0;
        int rows = sg_state_has_rows(&s->slot);
        if (!rows && s->point != point) continue;
        struct sg_layout_stage *stage = sg_layout_slot(l, s->slot.kind, s->slot.layer, &index);
        uint64_t first = from > s->first ? from : s->first;
        const uint8_t *at = f->map.data + s->at;
        if (rows && first >= to) continue;
        if (rows) at += (first - s->first) * sg_slot_row_bytes(&s->slot, s->storage);
        SG_TRY(sg_ops_of(stage->state)
                   ->state_put(stage->state, index, rows ? first : 0, rows ? to : 0, s->storage, at, err));
    }
    for (uint32_t i = 0; i < l->n; i++)
        SG_TRY(sg_ops_of(l->stages[i].state)
                   ->state_put(l->stages[i].state, UINT32_MAX, to, to, l->stages[i].kv, NULL, err));
    return SEGUE_OK;
}

/* Rows grow from point to point, each is forked as it is passed: points and state share K and V again. */
segue_status sg_statefile_fill(const struct sg_statefile *f, const struct segue_engine *e,
                               struct sg_layout *l, uint32_t upto, struct sg_checkpoint **points,
                               uint32_t *checkpoints_n, segue_error *err)
{
    uint64_t from = 0;
    for (uint32_t p = 0; p < f->head.checkpoints_n && (points || upto); p++) {
        if (!points && p + 1 != upto) continue;
        SG_TRY(put_slots(f, l, p + 1, from, f->points[p].rows, err));
        from = f->points[p].rows;
        if (points) {
            SG_TRY(sg_checkpoint_new(&points[*checkpoints_n], l, from, sg_statefile_logits(f, p + 1),
                                 e->model->info.vocab, err));
            ++*checkpoints_n;
        }
        if (p + 1 == upto) return SEGUE_OK;
    }
    return put_slots(f, l, 0, from, f->head.rows, err);
}
