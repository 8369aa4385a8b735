/* statesave.c: states to a file, by pieces: no slot is ever whole in memory but those that cannot be cut.
 * Written aside and renamed; the header goes last, so that an unfinished file begins with zeroes and would be
 * refused. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/session.h"
#include "engine/statefile/statefile.h"

struct saving {
    const struct sg_save *save;
    struct sg_statefile file; /* head and tables, filled as sections are written */
    struct sg_file_out out;
    uint8_t *room; /* [room_n] one piece */
    uint64_t end;  /* of what is written */
};

static int is_rows(const struct sg_slot *s) { return s->kind == SG_SLOT_K || s->kind == SG_SLOT_V; }

/* The matrices themselves, not their file: a state made with an adapter fits the same adapter from anywhere.
 */
struct sg_hash sg_adapters_id(const struct segue_session *s)
{
    struct sg_hash id = {0};
    for (uint32_t i = 0; i < s->adapters_n; i++) {
        const struct sg_lora *l = &s->adapters[i]->lora;
        for (uint32_t k = 0; k < l->pairs_n; k++) {
            const struct sg_lora_pair *p = &l->pairs[k];
            sg_state_add_sum(&id, p->tensor->name, strlen(p->tensor->name));
            sg_state_add_sum(&id, p->a, (size_t)(p->rank * p->tensor->cols) * sizeof(float));
            sg_state_add_sum(&id, p->b, (size_t)(p->rank * p->tensor->rows) * sizeof(float));
        }
    }
    return id;
}

/* --- who made it --- */

static void append(char *out, const char *text, size_t n)
{
    size_t used = strlen(out), room = SG_STATE_TEXT - 1 - used;
    memcpy(out + used, text, n < room ? n : room);
}

/* The spec without its number of threads, which changes nothing. */
static void append_spec(char *out, const char *spec)
{
    const char *colon = strchr(spec, ':'), *at = colon ? colon + 1 : NULL;
    char sign = ':';
    append(out, spec, colon ? (size_t)(colon - spec) : strlen(spec));
    while (at && *at) {
        size_t n = strcspn(at, ",");
        if (strncmp(at, "threads=", 8) != 0) {
            append(out, &sign, 1);
            append(out, at, n);
            sign = ',';
        }
        at += n + (at[n] == ',');
    }
}

static void append_layout(const struct sg_layout *l, char *unit, char *kernels)
{
    char layers[32];
    for (uint32_t i = 0; i < l->n; i++) {
        const struct sg_layer_range *s = l->stages[i].layer_range;
        if (i) append(unit, " ", 1);
        append_spec(unit, s->unit->desc.info.spec);
        if (l->n > 1)
            append(unit, layers, (size_t)snprintf(layers, sizeof layers, "@%u-%u", s->from, s->to - 1));
        const char *kv = sg_storage_info(l->stages[i].kv)->name;
        if (*kernels) append(kernels, " > ", 3);
        const char *set = *s->unit->desc.kernels ? s->unit->desc.kernels : s->unit->desc.info.features;
        append(kernels, set, strlen(set));
        append(kernels, " kv=", 4);
        append(kernels, kv, strlen(kv));
    }
}

void sg_made_by(const struct segue_session *s, char unit[SG_STATE_TEXT], char kernels[SG_STATE_TEXT])
{
    memset(unit, 0, SG_STATE_TEXT);
    memset(kernels, 0, SG_STATE_TEXT);
    append_layout(&s->layouts[SG_PREFILL_LAYOUT], unit, kernels);
    if (!s->split) return;
    append(unit, " > ", 3);
    append_layout(&s->layouts[SG_DECODE_LAYOUT], unit, kernels);
}

/* --- sections --- */

static struct sg_state_slot *begin_slot(struct saving *v, uint32_t i, struct sg_layout *l,
                                        const struct sg_slot *s, struct sg_stage **stage, uint32_t *index)
{
    struct sg_state_slot *out = &v->file.slots[i];
    *stage = sg_layout_slot(l, s->kind, s->layer, index);
    out->slot = *s;
    out->storage = is_rows(s) ? (*stage)->kv : SG_F32;
    return out;
}

static segue_status put_rows(struct saving *v, struct sg_state_slot *out, struct sg_stage *stage,
                             uint32_t index, segue_error *err)
{
    size_t row_bytes = sg_slot_row_bytes(&out->slot, out->storage),
           most = sg_state_piece(row_bytes) / row_bytes;
    const struct sg_unit_ops *ops = sg_ops_of(stage->state);
    uint64_t rows;
    ops->state_held(stage->state, index, &out->first, &rows);
    out->end = v->save->rows;
    out->at = sg_state_aligned(v->end);
    for (uint64_t at = out->first, n; at < out->end; at += n) {
        n = out->end - at < most ? out->end - at : most;
        SG_TRY(ops->state_get(stage->state, index, at, at + n, out->storage, v->room, err));
        sg_state_add_sum(&out->sum, v->room, n * row_bytes);
        SG_TRY(sg_file_put_at(&v->out, out->at + out->bytes, v->room, n * row_bytes, err));
        out->bytes += n * row_bytes;
    }
    v->end = out->at + out->bytes;
    return SEGUE_OK;
}

static segue_status put_fixed(struct saving *v, struct sg_state_slot *out, struct sg_stage *stage,
                              uint32_t index, segue_error *err)
{
    out->bytes = sg_slot_fixed_bytes(&out->slot);
    SG_TRY(sg_ops_of(stage->state)->state_get(stage->state, index, 0, v->save->rows, SG_F32, v->room, err));
    return sg_state_put_section(&v->out, v->room, out->bytes, &v->end, &out->at, &out->sum, err);
}

static segue_status put_slots(struct saving *v, segue_error *err)
{
    const struct sg_graph *g = v->save->engine->graph;
    struct sg_stage *stage = NULL;
    uint32_t index = 0, n = 0;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        struct sg_state_slot *out = begin_slot(v, n++, v->save->layout, &g->slots[i], &stage, &index);
        if (is_rows(&g->slots[i]))
            SG_TRY(put_rows(v, out, stage, index, err));
        else
            SG_TRY(put_fixed(v, out, stage, index, err));
    }
    for (uint32_t p = 0; p < v->file.head.checkpoints_n; p++)
        for (uint32_t i = 0; i < g->slots_n; i++) {
            if (is_rows(&g->slots[i])) continue;
            struct sg_layout *l = &v->save->points[p]->layout;
            struct sg_state_slot *out = begin_slot(v, n++, l, &g->slots[i], &stage, &index);
            out->point = p + 1;
            SG_TRY(put_fixed(v, out, stage, index, err));
        }
    return SEGUE_OK;
}

static segue_status put_points(struct saving *v, segue_error *err)
{
    for (uint32_t p = 0; p < v->file.head.checkpoints_n; p++) {
        const struct sg_checkpoint *from = v->save->points[p];
        struct sg_state_point *to = &v->file.points[p];
        to->rows = from->rows;
        if (from->logits)
            SG_TRY(sg_state_put_section(&v->out, from->logits, v->file.head.vocab * 4, &v->end,
                                        &to->logits_at, &to->logits_sum, err));
    }
    return SEGUE_OK;
}

static void fill_head(struct saving *v)
{
    const struct sg_save *s = v->save;
    const segue_model_info *info = &s->engine->model->info;
    struct sg_state_head *h = &v->file.head;
    h->version = SG_STATE_VERSION;
    h->library = segue_version();
    h->layout = SG_STATE_LAYOUT;
    memcpy(h->shape_id, info->shape_id, 32);
    memcpy(h->weights_id, s->engine->weights_id, 32);
    for (uint32_t i = 0; i < s->engine->places_n; i++)
        if (s->engine->places[i].model != s->engine->model && !h->joined[1].lo) {
            h->joined[0] = s->engine->model->weights_hash;
            h->joined[1] = s->engine->places[i].model->weights_hash;
        }
    memcpy(h->unit, s->unit, sizeof h->unit);
    memcpy(h->kernels, s->kernels, sizeof h->kernels);
    h->adapters = s->adapters;
    h->tokens_n = s->tokens_n;
    h->rows = s->rows;
    h->read_ns = s->read_ns;
    h->vocab = info->vocab;
}

static segue_status save_all(struct saving *v, segue_error *err)
{
    struct sg_state_head *h = &v->file.head;
    fill_head(v);
    v->end = sg_state_header_bytes(h->slots_n, h->checkpoints_n);
    SG_TRY(sg_state_put_section(&v->out, v->save->tokens, h->tokens_n * 4, &v->end, &h->tokens_at,
                                &h->tokens_sum, err));
    if (v->save->logits)
        SG_TRY(sg_state_put_section(&v->out, v->save->logits, h->vocab * 4, &v->end, &h->logits_at,
                                    &h->logits_sum, err));
    SG_TRY(put_slots(v, err));
    SG_TRY(put_points(v, err));
    h->file_bytes = v->end;
    return sg_state_put_header(&v->out, &v->file, err);
}

/* Points of a model with windows would need rows that its state has let go. */
int sg_state_points_fit(const struct sg_graph *g)
{
    uint32_t fixed = 0, windows = 0;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        fixed += !is_rows(&g->slots[i]);
        windows += g->slots[i].window != 0;
    }
    return fixed && !windows;
}

static uint32_t points_of(const struct sg_save *v, uint32_t *slots)
{
    uint32_t n = v->checkpoints_n < SG_STATE_POINTS ? v->checkpoints_n : SG_STATE_POINTS;
    const struct sg_graph *g = v->engine->graph;
    if (!sg_state_points_fit(g)) n = 0;
    *slots = g->slots_n;
    for (uint32_t i = 0; i < g->slots_n; i++) *slots += is_rows(&g->slots[i]) ? 0 : n;
    return n;
}

static size_t room_bytes(const struct sg_save *v)
{
    size_t room = 1 << 20;
    const struct sg_graph *g = v->engine->graph;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        size_t fixed = sg_slot_fixed_bytes(&g->slots[i]),
               bytes = fixed ? fixed : sg_slot_row_bytes(&g->slots[i], SG_F32);
        if (bytes > room) room = bytes;
    }
    return room;
}

segue_status sg_state_save(const struct sg_save *save, const char *path, segue_error *err)
{
    struct saving v = {.save = save};
    v.file.head.checkpoints_n = points_of(save, &v.file.head.slots_n);
    v.file.slots = sg_alloc(v.file.head.slots_n * sizeof *v.file.slots);
    v.room = sg_alloc(room_bytes(save));
    segue_status status = v.file.slots && v.room ? sg_file_begin(&v.out, path, 0600, err)
                                                 : sg_no_memory("state file", room_bytes(save), err);
    if (status == SEGUE_OK) {
        status = save_all(&v, err);
        if (status == SEGUE_OK) status = sg_file_commit(&v.out, err);
        sg_file_close(&v.out);
    }
    sg_free(v.file.slots);
    sg_free(v.room);
    return status;
}

/* --- a session --- */

/* The newest points, and the newest where new text begins: after a restart the last turn can still be edited.
 */
static uint32_t choose_points(const struct segue_session *s, struct sg_checkpoint *out[SG_STATE_POINTS])
{
    enum { NEWEST = 3 };
    uint32_t n = 0, end = s->checkpoints_n, begins = UINT32_MAX;
    while (end && s->points[end - 1].point->rows >= s->computed) end--;
    for (uint32_t i = 0; i < end; i++)
        if (s->points[i].begins) begins = i;
    for (uint32_t i = 0; i < end; i++)
        if (i == begins || i + NEWEST >= end) out[n++] = s->points[i].point;
    return n;
}

segue_status segue_session_save(const segue_session *session, const char *path, segue_error *err)
{
    SG_TRY(sg_session_check(session, "state not saved", err));
    if (!path || !*path) return sg_fail(err, SEGUE_EARG, "state not saved: no path given; name a file");
    struct segue_session *s = (struct segue_session *)(uintptr_t)session; /* get only reads a state */
    struct sg_checkpoint *points[SG_STATE_POINTS];
    char unit[SG_STATE_TEXT], kernels[SG_STATE_TEXT];
    if (!s->computed || !sg_layout_holds(&s->layouts[s->at]))
        return sg_fail(err, SEGUE_EARG,
                       "state not saved: session of %zu tokens: none is computed; prefill first",
                       s->tokens_n);
    sg_made_by(s, unit, kernels);
    struct sg_save v = {.engine = s->engine,
                        .adapters = sg_adapters_id(s),
                        .unit = unit,
                        .kernels = kernels,
                        .tokens = s->tokens,
                        .tokens_n = s->tokens_n,
                        .layout = &s->layouts[s->at],
                        .rows = s->computed,
                        .read_ns = sg_session_read_ns(s, s->computed),
                        .logits = sg_session_known_logits(s),
                        .points = points,
                        .checkpoints_n = choose_points(s, points)};
    return sg_state_save(&v, path, err);
}
