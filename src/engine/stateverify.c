/* stateverify.c: checks a state file by recomputation: its tokens are computed again, and every slot is compared by the rms
 * of the difference over the rms of the recomputed values.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "engine/session/session.h"
#include "engine/state_session.h"

/* Allowed relative errors for 16-bit storage and for q8. Two units, or two divisions of a prompt into chunks, differ by rounding,
 * below these bounds; states of other tokens or weights have an error near 1. */
static const double bound_16 = 0.05, bound_q8 = 0.08;

/* Decoded numbers of the file and of the recomputed state: one row of K or V, or a whole recurrent slot. */
struct buffers {
    float *stored, *computed; /* [n] */
};

/* Adds the squares of the differences and of the expected values. */
static void add_error(const float *want, const float *got, size_t n, double *error, double *size)
{
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        *error += d * d;
        *size += (double)want[i] * (double)want[i];
    }
}

/* Compares the rows that both hold. NaN in either gives a NaN error, which fails every bound. */
static segue_status compare(const struct sg_statefile *f, const struct sg_state_slot *s, struct sg_layout *l,
                            const struct buffers *buffers, double *relative, segue_error *err)
{
    uint32_t index = 0;
    struct sg_layout_stage *stage = sg_layout_slot(l, s->slot.kind, s->slot.layer, &index);
    const struct sg_unit_ops *ops = sg_ops_of(stage->state);
    const uint8_t *at = f->map.data + s->at;
    double error = 0, size = 0;
    if (!sg_state_has_rows(&s->slot)) {
        SG_TRY(ops->state_get(stage->state, index, 0, f->head.rows, SG_F32, buffers->computed, err));
        add_error(buffers->computed, (const float *)(const void *)at, s->bytes / sizeof(float), &error, &size);
    } else {
        size_t row_bytes = sg_slot_row_bytes(&s->slot, s->storage);
        uint64_t first, rows;
        ops->state_held(stage->state, index, &first, &rows);
        if (first < s->first) first = s->first;
        for (uint64_t r = first; r < s->end; r++) {
            SG_TRY(ops->state_get(stage->state, index, r, r + 1, SG_F32, buffers->computed, err));
            sg_slot_decode(&s->slot, s->storage, at + (r - s->first) * row_bytes, buffers->stored);
            add_error(buffers->computed, buffers->stored, (size_t)s->slot.heads * s->slot.width, &error, &size);
        }
    }
    *relative = size > 0 ? sqrt(error / size) : sqrt(error);
    return SEGUE_OK;
}

static segue_status compare_all(const struct sg_statefile *f, struct sg_layout *l, const struct buffers *buffers,
                                struct sg_verdict *out, segue_error *err)
{
    double worst = -1;
    for (uint32_t i = 0; i < f->head.slots_n; i++) {
        const struct sg_state_slot *s = &f->slots[i];
        double relative = 0;
        if (s->checkpoint) continue;
        SG_TRY(compare(f, s, l, buffers, &relative, err));
        if (s->storage == SG_Q8_0) out->bound = bound_q8;
        out->slots++;
        out->bad += !(relative <= (s->storage == SG_Q8_0 ? bound_q8 : bound_16));
        if (relative <= worst) continue;
        worst = relative;
        out->worst = relative;
        snprintf(out->name, sizeof out->name, "%s.%u", sg_state_kind(s->slot.kind), s->slot.layer);
    }
    return SEGUE_OK;
}

/* For the largest row or slot of the file. */
static segue_status buffers_alloc(const struct sg_statefile *f, struct buffers *buffers, segue_error *err)
{
    size_t max = 1;
    for (uint32_t i = 0; i < f->head.slots_n; i++) {
        const struct sg_slot *s = &f->slots[i].slot;
        size_t n = sg_state_has_rows(s) ? (size_t)s->heads * s->width : sg_slot_fixed_bytes(s) / sizeof(float);
        if (n > max) max = n;
    }
    buffers->stored = sg_alloc(max * sizeof(float));
    buffers->computed = sg_alloc(max * sizeof(float));
    return buffers->stored && buffers->computed ? SEGUE_OK : sg_no_memory("slots of a state", max * sizeof(float), err);
}

segue_status sg_statefile_verify(const struct sg_statefile *f, struct segue_engine *e,
                                 const segue_session_opts *opts, struct sg_verdict *out, segue_error *err)
{
    struct segue_session *s = NULL;
    struct sg_state_origin origin;
    struct buffers buffers = {0};
    segue_session_opts o = *opts;
    o.context = f->head.tokens_n;
    o.checkpoint_bytes = SEGUE_NO_CHECKPOINTS;
    *out = (struct sg_verdict){.bound = bound_16};
    SG_TRY(segue_session_open(&s, e, &o, err));
    sg_session_origin(s, &origin);
    segue_status status = sg_statefile_fits(f, e, origin.adapters, err);
    if (status == SEGUE_OK) status = buffers_alloc(f, &buffers, err);
    if (status == SEGUE_OK) status = segue_session_append(s, sg_statefile_tokens(f), f->head.rows, err);
    if (status == SEGUE_OK) status = segue_session_prefill(s, 0, NULL, err);
    if (status == SEGUE_OK) status = compare_all(f, &s->layouts[s->active], &buffers, out, err);
    sg_free(buffers.stored);
    sg_free(buffers.computed);
    segue_session_close(s);
    return status;
}
