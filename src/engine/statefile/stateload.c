/* stateload.c: a file into the states of a session. Everything in a file is checked before a state is made of
 * it: what does not fit this model, or was changed anywhere, is refused by name and never continued; a caller
 * who asks for repair gets a session with the file's tokens, to be computed anew. SPDX-License-Identifier:
 * MIT */
#include <string.h>

#include "base/mem.h"
#include "engine/session.h"
#include "engine/sized.h"
#include "engine/statefile/statefile.h"

static int is_rows(const struct sg_slot *s) { return s->kind == SG_SLOT_K || s->kind == SG_SLOT_V; }

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
            if (p && is_rows(&g->slots[i])) continue;
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
        int rows = is_rows(&s->slot);
        if (!rows && s->point != point) continue;
        struct sg_stage *stage = sg_layout_slot(l, s->slot.kind, s->slot.layer, &index);
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

const float *sg_statefile_logits(const struct sg_statefile *f, uint32_t point)
{
    uint64_t at = point ? f->points[point - 1].logits_at : f->head.logits_at;
    return at ? (const float *)(const void *)(f->map.data + at) : NULL;
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
            SG_TRY(sg_point_take(&points[*checkpoints_n], l, from, sg_statefile_logits(f, p + 1),
                                 e->model->info.vocab, err));
            ++*checkpoints_n;
        }
        if (p + 1 == upto) return SEGUE_OK;
    }
    return put_slots(f, l, 0, from, f->head.rows, err);
}

/* --- a session --- */

static void take_logits(struct segue_session *s, const float *logits)
{
    s->logits_known = logits != NULL;
    if (logits) memcpy(s->logits, logits, s->engine->model->info.vocab * sizeof *logits);
}

/* Everything was checked: from here on only memory can be short. */
static segue_status fill(const struct sg_statefile *f, struct segue_session *s, segue_error *err)
{
    struct sg_checkpoint *points[SG_STATE_POINTS];
    uint32_t n = 0;
    SG_TRY(segue_session_append(s, sg_statefile_tokens(f), f->head.tokens_n, err));
    s->at = s->split ? SG_DECODE_LAYOUT : SG_PREFILL_LAYOUT;
    SG_TRY(sg_session_begin(s, err));
    int keep = s->marking && s->checkpoints_budget;
    segue_status status =
        sg_statefile_fill(f, s->engine, &s->layouts[s->at], 0, keep ? points : NULL, &n, err);
    for (uint32_t i = 0; i < n; i++) s->points[s->checkpoints_n++] = (struct sg_checkpoint_ref){points[i], 1};
    if (status != SEGUE_OK) return status;
    s->computed = f->head.rows;
    sg_recovery_jumped(s);
    take_logits(s, sg_statefile_logits(f, 0));
    s->stats.tokens_reused = s->computed;
    s->stats.reuse_reason = "all";
    return SEGUE_OK;
}

/* The tokens are sound and of this vocabulary: the next call computes them all. */
static segue_status repair(const struct sg_statefile *f, struct segue_session *s, segue_error *err)
{
    if (f->head.vocab != s->engine->model->info.vocab) return foreign(f, "it is of another vocabulary", err);
    SG_TRY(segue_session_append(s, sg_statefile_tokens(f), f->head.tokens_n, err));
    s->rewound = 1; /* so that the reason stays */
    s->stats.reuse_reason = f->text_only ? "no-checkpoint" : "model-changed";
    return SEGUE_OK;
}

static segue_status load(struct segue_session *s, const char *path, int mend, segue_error *err)
{
    struct sg_statefile f;
    segue_status status = sg_statefile_open(&f, path, mend, err);
    if (status != SEGUE_OK && !f.text_only) return status;
    if (status == SEGUE_OK) status = sg_statefile_fits(&f, s->engine, sg_adapters_id(s), err);
    if (status == SEGUE_OK)
        status = fill(&f, s, err);
    else if (status == SEGUE_EFORMAT && mend)
        status = repair(&f, s, err);
    sg_statefile_close(&f);
    return status;
}

segue_status segue_session_load(segue_session **out, segue_engine *engine, const segue_session_opts *opts,
                                const char *path, segue_error *err)
{
    struct segue_session *s = NULL;
    segue_session_opts o;
    if (!out || !engine || !path || !*path)
        return sg_fail(err, SEGUE_EARG, "state not loaded: out, engine or path missing; pass all three");
    SG_TRY(sg_sized_in(&o, sizeof o, opts, "session options", err));
    SG_TRY(segue_session_open(&s, engine, opts, err));
    segue_status status = load(s, path, o.repair != 0, err);
    if (status != SEGUE_OK) {
        segue_session_close(s);
        return status;
    }
    *out = s;
    return SEGUE_OK;
}
