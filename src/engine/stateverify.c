/* stateverify.c: is a state what its tokens give? They are computed anew and every slot is compared, by the
 * rms of the difference over the rms of what came out. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "engine/session/session.h"
#include "engine/state_session.h"

/* Two units, or two ways to cut a text into chunks, differ by a few rounded products; a state of other
 * tokens, or of other weights, differs by the whole size of the numbers. */
static const double bound_half = 0.05, bound_q8 = 0.08;

struct room {
    float *row, *own; /* [n] one row of K or V, or a whole slot */
};

static void add_error(const float *want, const float *got, size_t n, double *error, double *size)
{
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        *error += d * d;
        *size += (double)want[i] * (double)want[i];
    }
}

/* Rows that both hold; the difference of a number that is none is none either, and beyond every bound. */
static segue_status compare(const struct sg_statefile *f, const struct sg_state_slot *s, struct sg_layout *l,
                            const struct room *room, double *relative, segue_error *err)
{
    uint32_t index = 0;
    struct sg_layout_stage *stage = sg_layout_slot(l, s->slot.kind, s->slot.layer, &index);
    const struct sg_unit_ops *ops = sg_ops_of(stage->state);
    const uint8_t *at = f->map.data + s->at;
    double error = 0, size = 0;
    if (!sg_state_has_rows(&s->slot)) {
        SG_TRY(ops->state_get(stage->state, index, 0, f->head.rows, SG_F32, room->own, err));
        add_error(room->own, (const float *)(const void *)at, s->bytes / sizeof(float), &error, &size);
    } else {
        size_t row_bytes = sg_slot_row_bytes(&s->slot, s->storage);
        uint64_t first, rows;
        ops->state_held(stage->state, index, &first, &rows);
        if (first < s->first) first = s->first;
        for (uint64_t r = first; r < s->end; r++) {
            SG_TRY(ops->state_get(stage->state, index, r, r + 1, SG_F32, room->own, err));
            sg_slot_decode(&s->slot, s->storage, at + (r - s->first) * row_bytes, room->row);
            add_error(room->own, room->row, (size_t)s->slot.heads * s->slot.width, &error, &size);
        }
    }
    *relative = size > 0 ? sqrt(error / size) : sqrt(error);
    return SEGUE_OK;
}

static segue_status compare_all(const struct sg_statefile *f, struct sg_layout *l, const struct room *room,
                                struct sg_verdict *out, segue_error *err)
{
    double worst = -1;
    for (uint32_t i = 0; i < f->head.slots_n; i++) {
        const struct sg_state_slot *s = &f->slots[i];
        double relative = 0;
        if (s->point) continue;
        SG_TRY(compare(f, s, l, room, &relative, err));
        if (s->storage == SG_Q8_0) out->bound = bound_q8;
        out->slots++;
        out->bad += !(relative <= (s->storage == SG_Q8_0 ? bound_q8 : bound_half));
        if (relative <= worst) continue;
        worst = relative;
        out->worst = relative;
        snprintf(out->name, sizeof out->name, "%s.%u", sg_state_kind(s->slot.kind), s->slot.layer);
    }
    return SEGUE_OK;
}

static segue_status make_room(const struct sg_statefile *f, struct room *room, segue_error *err)
{
    size_t most = 1;
    for (uint32_t i = 0; i < f->head.slots_n; i++) {
        const struct sg_slot *s = &f->slots[i].slot;
        size_t n = sg_state_has_rows(s) ? (size_t)s->heads * s->width : sg_slot_fixed_bytes(s) / sizeof(float);
        if (n > most) most = n;
    }
    room->row = sg_alloc(most * sizeof(float));
    room->own = sg_alloc(most * sizeof(float));
    return room->row && room->own ? SEGUE_OK : sg_no_memory("slots of a state", most * sizeof(float), err);
}

segue_status sg_statefile_verify(const struct sg_statefile *f, struct segue_engine *e,
                                 const segue_session_opts *opts, struct sg_verdict *out, segue_error *err)
{
    struct segue_session *s = NULL;
    struct sg_state_origin origin;
    struct room room = {0};
    segue_session_opts o = *opts;
    o.context = f->head.tokens_n;
    o.checkpoint_bytes = SEGUE_NO_CHECKPOINTS;
    *out = (struct sg_verdict){.bound = bound_half};
    SG_TRY(segue_session_open(&s, e, &o, err));
    sg_session_origin(s, &origin);
    segue_status status = sg_statefile_fits(f, e, origin.adapters, err);
    if (status == SEGUE_OK) status = make_room(f, &room, err);
    if (status == SEGUE_OK) status = segue_session_append(s, sg_statefile_tokens(f), f->head.rows, err);
    if (status == SEGUE_OK) status = segue_session_prefill(s, 0, NULL, err);
    if (status == SEGUE_OK) status = compare_all(f, &s->layouts[s->active], &room, out, err);
    sg_free(room.row);
    sg_free(room.own);
    segue_session_close(s);
    return status;
}
