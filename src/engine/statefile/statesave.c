/* statesave.c: writes states to a file. K and V are copied in pieces, recurrent slots whole. The file is written under a
 * temporary name and renamed; the header is written last, so that an incomplete file begins with zeros and is refused.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/statefile/statefile.h"

/* One save in progress. */
struct saving {
    const struct sg_state_contents *save;
    struct sg_statefile file; /* head and tables, filled as sections are written */
    struct sg_file_out out;
    uint8_t *buffer; /* [buffer_bytes] one piece of rows, or one recurrent slot */
    uint64_t end;    /* offset after the last section written */
};

/* --- sections --- */

/* Starts entry i of the slot table; returns also the stage that holds the slot, and its index there. */
static struct sg_state_slot *begin_slot(struct saving *v, uint32_t i, struct sg_layout *l,
                                        const struct sg_slot *s, struct sg_layout_stage **stage, uint32_t *index)
{
    struct sg_state_slot *out = &v->file.slots[i];
    *stage = sg_layout_slot(l, s->kind, s->layer, index);
    out->slot = *s;
    out->storage = sg_state_has_rows(s) ? (*stage)->kv : SG_F32;
    return out;
}

/* K or V: reads and writes piece by piece. */
static segue_status put_rows(struct saving *v, struct sg_state_slot *out, struct sg_layout_stage *stage,
                             uint32_t index, segue_error *err)
{
    size_t row_bytes = sg_slot_row_bytes(&out->slot, out->storage),
           max_rows = sg_state_piece(row_bytes) / row_bytes;
    const struct sg_unit_ops *ops = sg_ops_of(stage->state);
    uint64_t rows;
    ops->state_held(stage->state, index, &out->first, &rows);
    out->end = v->save->computed;
    out->at = sg_state_aligned(v->end);
    for (uint64_t at = out->first, n; at < out->end; at += n) {
        n = out->end - at < max_rows ? out->end - at : max_rows;
        SG_TRY(ops->state_get(stage->state, index, at, at + n, out->storage, v->buffer, err));
        sg_state_add_sum(&out->sum, v->buffer, n * row_bytes);
        SG_TRY(sg_file_put_at(&v->out, out->at + out->bytes, v->buffer, n * row_bytes, err));
        out->bytes += n * row_bytes;
    }
    v->end = out->at + out->bytes;
    return SEGUE_OK;
}

/* A recurrent slot. */
static segue_status put_fixed(struct saving *v, struct sg_state_slot *out, struct sg_layout_stage *stage,
                              uint32_t index, segue_error *err)
{
    out->bytes = sg_slot_fixed_bytes(&out->slot);
    SG_TRY(sg_ops_of(stage->state)->state_get(stage->state, index, 0, v->save->computed, SG_F32, v->buffer, err));
    return sg_state_put_section(&v->out, v->buffer, out->bytes, &v->end, &out->at, &out->sum, err);
}

/* All slots of the state, then the recurrent slots of each checkpoint. */
static segue_status put_slots(struct saving *v, segue_error *err)
{
    const struct sg_graph *g = v->save->engine->graph;
    struct sg_layout_stage *stage = NULL;
    uint32_t index = 0, n = 0;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        struct sg_state_slot *out = begin_slot(v, n++, v->save->layout, &g->slots[i], &stage, &index);
        if (sg_state_has_rows(&g->slots[i]))
            SG_TRY(put_rows(v, out, stage, index, err));
        else
            SG_TRY(put_fixed(v, out, stage, index, err));
    }
    for (uint32_t p = 0; p < v->file.head.checkpoints_n; p++)
        for (uint32_t i = 0; i < g->slots_n; i++) {
            if (sg_state_has_rows(&g->slots[i])) continue;
            struct sg_layout *l = &v->save->checkpoints[p]->layout;
            struct sg_state_slot *out = begin_slot(v, n++, l, &g->slots[i], &stage, &index);
            out->checkpoint = p + 1;
            SG_TRY(put_fixed(v, out, stage, index, err));
        }
    return SEGUE_OK;
}

/* Lengths and logits of the checkpoints. */
static segue_status put_checkpoints(struct saving *v, segue_error *err)
{
    for (uint32_t p = 0; p < v->file.head.checkpoints_n; p++) {
        const struct sg_checkpoint *from = v->save->checkpoints[p];
        struct sg_state_checkpoint *to = &v->file.checkpoints[p];
        to->rows = from->tokens_n;
        if (from->logits)
            SG_TRY(sg_state_put_section(&v->out, from->logits, v->file.head.vocab * 4, &v->end,
                                        &to->logits_at, &to->logits_sum, err));
    }
    return SEGUE_OK;
}

/* The id of the weights, and with two model files the two ids that it joins. */
static segue_status fill_weights(struct saving *v, segue_error *err)
{
    const struct segue_engine *e = v->save->engine;
    struct sg_state_head *h = &v->file.head;
    char weights_id[33];
    SG_TRY(sg_engine_weights_id(e, weights_id, err));
    memcpy(h->weights_id, weights_id, 32);
    for (uint32_t i = 0; i < e->placements_n; i++)
        if (e->placements[i].model != e->model && !h->joined[1].lo) {
            SG_TRY(sg_weights_id_wait(e->model->weights_id, &h->joined[0], err));
            SG_TRY(sg_weights_id_wait(e->placements[i].model->weights_id, &h->joined[1], err));
        }
    return SEGUE_OK;
}

/* What identifies the state: model, unit, kernels, adapters. Offsets and checksums are filled by the sections. */
static segue_status fill_head(struct saving *v, segue_error *err)
{
    const struct sg_state_contents *s = v->save;
    const segue_model_info *info = &s->engine->model->info;
    struct sg_state_head *h = &v->file.head;
    SG_TRY(fill_weights(v, err));
    h->version = SG_STATE_VERSION;
    h->library = segue_version();
    h->layout = SG_STATE_LAYOUT;
    memcpy(h->shape_id, info->shape_id, 32);
    memcpy(h->unit, s->origin->unit, sizeof h->unit);
    memcpy(h->kernels, s->origin->kernels, sizeof h->kernels);
    h->adapters = s->origin->adapters;
    h->tokens_n = s->tokens_n;
    h->rows = s->computed;
    h->read_ns = s->prefill_ns;
    h->vocab = info->vocab;
    return SEGUE_OK;
}

static segue_status save_all(struct saving *v, segue_error *err)
{
    struct sg_state_head *h = &v->file.head;
    SG_TRY(fill_head(v, err));
    v->end = sg_state_header_bytes(h->slots_n, h->checkpoints_n);
    SG_TRY(sg_state_put_section(&v->out, v->save->tokens, h->tokens_n * 4, &v->end, &h->tokens_at,
                                &h->tokens_sum, err));
    if (v->save->logits)
        SG_TRY(sg_state_put_section(&v->out, v->save->logits, h->vocab * 4, &v->end, &h->logits_at,
                                    &h->logits_sum, err));
    SG_TRY(put_slots(v, err));
    SG_TRY(put_checkpoints(v, err));
    h->file_bytes = v->end;
    return sg_state_put_header(&v->out, &v->file, err);
}

/* With sliding windows, a checkpoint would need rows that the state has released. */
int sg_state_can_hold_checkpoints(const struct sg_graph *g)
{
    uint32_t fixed = 0, windows = 0;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        fixed += !sg_state_has_rows(&g->slots[i]);
        windows += g->slots[i].window != 0;
    }
    return fixed && !windows;
}

/* Number of checkpoints to write; *slots = entries of the slot table. */
static uint32_t checkpoints_of(const struct sg_state_contents *v, uint32_t *slots)
{
    uint32_t n = v->checkpoints_n < SG_STATE_CHECKPOINTS ? v->checkpoints_n : SG_STATE_CHECKPOINTS;
    const struct sg_graph *g = v->engine->graph;
    if (!sg_state_can_hold_checkpoints(g)) n = 0;
    *slots = g->slots_n;
    for (uint32_t i = 0; i < g->slots_n; i++) *slots += sg_state_has_rows(&g->slots[i]) ? 0 : n;
    return n;
}

/* A MiB, or the largest row or recurrent slot. */
static size_t buffer_bytes(const struct sg_state_contents *v)
{
    size_t max = 1 << 20;
    const struct sg_graph *g = v->engine->graph;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        size_t fixed = sg_slot_fixed_bytes(&g->slots[i]),
               bytes = fixed ? fixed : sg_slot_row_bytes(&g->slots[i], SG_F32);
        if (bytes > max) max = bytes;
    }
    return max;
}

segue_status sg_state_save(const struct sg_state_contents *save, const char *path, segue_error *err)
{
    struct saving v = {.save = save};
    v.file.head.checkpoints_n = checkpoints_of(save, &v.file.head.slots_n);
    v.file.slots = sg_alloc(v.file.head.slots_n * sizeof *v.file.slots);
    v.buffer = sg_alloc(buffer_bytes(save));
    segue_status status = v.file.slots && v.buffer ? sg_file_begin(&v.out, path, 0600, err)
                                                 : sg_no_memory("state file", buffer_bytes(save), err);
    if (status == SEGUE_OK) {
        status = save_all(&v, err);
        if (status == SEGUE_OK) status = sg_file_commit(&v.out, err);
        sg_file_close(&v.out);
    }
    sg_free(v.file.slots);
    sg_free(v.buffer);
    return status;
}
