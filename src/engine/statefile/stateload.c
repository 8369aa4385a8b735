/* stateload.c: fills the states of a layout from a state file. The file was checked by stateformat.c; here it is compared with
 * the engine's model. A mismatch is refused with its reason. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/mem.h"
#include "engine/statefile/statefile.h"

/* The error for a file of another model or adapter. */
static segue_status mismatch(const struct sg_statefile *f, const char *what, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT,
                   "state not loaded: %s: %s; load it with the model that made it, or compute the tokens again", f->path, what);
}

/* 1: the file has the slots of the state in the graph's order, then the recurrent slots of each checkpoint. */
static int slots_fit(const struct sg_statefile *f, const struct sg_graph *g)
{
    uint32_t n = 0, windows = 0;
    for (uint32_t p = 0; p <= f->head.checkpoints_n; p++)
        for (uint32_t i = 0; i < g->slots_n; i++) {
            if (p && sg_state_has_rows(&g->slots[i])) continue;
            if (n == f->head.slots_n || f->slots[n].checkpoint != p || !sg_slot_equal(&f->slots[n].slot, &g->slots[i]))
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
    char weights_id[33];
    SG_TRY(sg_engine_weights_id(e, weights_id, err));
    if (memcmp(f->head.shape_id, info->shape_id, 32) != 0 || f->head.vocab != info->vocab)
        return mismatch(f, "made by a model of another shape", err);
    if (memcmp(f->head.weights_id, weights_id, 32) != 0)
        return mismatch(f, "made by a model with other weights, or by another pair of storages", err);
    if (f->head.adapters.lo != adapters.lo || f->head.adapters.hi != adapters.hi)
        return mismatch(f, "made with other adapters", err);
    if (!slots_fit(f, e->graph)) return mismatch(f, "a slot has another shape than the model's", err);
    return SEGUE_OK;
}

/* --- filling --- */

/* Puts rows [from, to) of K and V, as far as the file holds them, and the recurrent slots of a checkpoint (or of the state, 0);
 * then validates the states at `to` tokens. */
static segue_status put_slots(const struct sg_statefile *f, struct sg_layout *l, uint32_t checkpoint,
                              uint64_t from, uint64_t to, segue_error *err)
{
    for (uint32_t i = 0; i < f->head.slots_n; i++) {
        const struct sg_state_slot *s = &f->slots[i];
        uint32_t index = 0;
        int rows = sg_state_has_rows(&s->slot);
        if (!rows && s->checkpoint != checkpoint) continue;
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

/* Rows are put up to each checkpoint in turn, which is then forked, so that checkpoints and state share K and V. */
segue_status sg_statefile_fill(const struct sg_statefile *f, const struct segue_engine *e,
                               struct sg_layout *l, uint32_t upto, struct sg_checkpoint **checkpoints,
                               uint32_t *checkpoints_n, segue_error *err)
{
    uint64_t from = 0;
    for (uint32_t p = 0; p < f->head.checkpoints_n && (checkpoints || upto); p++) {
        if (!checkpoints && p + 1 != upto) continue;
        SG_TRY(put_slots(f, l, p + 1, from, f->checkpoints[p].rows, err));
        from = f->checkpoints[p].rows;
        if (checkpoints) {
            SG_TRY(sg_checkpoint_new(&checkpoints[*checkpoints_n], l, from, sg_statefile_logits(f, p + 1),
                                 e->model->info.vocab, err));
            ++*checkpoints_n;
        }
        if (p + 1 == upto) return SEGUE_OK;
    }
    return put_slots(f, l, 0, from, f->head.rows, err);
}
