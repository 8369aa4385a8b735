/* state_hashes.c: see state_hashes.h. A slot with one row per token is hashed by the rows of the run alone: earlier ones do not
 * change, and the cost of a token does not grow with the context. SPDX-License-Identifier: MIT */
#include "engine/replay/state_hashes.h"

#include <stdio.h>
#include <string.h>

enum { RUNS_MAX = 1 << 20 };

/* Outputs hidden.0 to hidden.<layers> of the graph of a layout's only stage. */
static segue_status find_hidden(struct segue_session *s, struct sg_state_hashes *h, segue_error *err)
{
    const struct sg_graph *g = s->engine->graph;
    if (!s->engine->keep_values || s->layouts[0].n != 1 || s->layouts[1].n != 1) return SEGUE_OK;
    h->outputs = sg_arena_alloc(&h->arena, (g->outputs_n + 1) * sizeof *h->outputs);
    h->values = sg_arena_alloc(&h->arena, (g->outputs_n + 1) * sizeof *h->values);
    if (!h->outputs || !h->values) return sg_no_memory("hashes of states", g->outputs_n * 16, err);
    for (uint32_t i = 0; i <= g->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden.%u", i);
        int32_t output = sg_graph_output(g, name);
        if (output >= 0) h->outputs[h->hidden_n++] = output;
    }
    return SEGUE_OK;
}

segue_status sg_session_record_hashes(struct segue_session *s, segue_error *err)
{
    if (s->hashes) return sg_fail(err, SEGUE_EARG, "hashes not recorded: the session records them already; use it");
    struct sg_state_hashes *h = sg_alloc(sizeof *h);
    if (!h) return sg_no_memory("hashes of states", sizeof *h, err);
    h->slots_n = s->engine->graph->slots_n;
    segue_status st = find_hidden(s, h, err);
    if (st != SEGUE_OK) {
        sg_hashes_free(h);
        return st;
    }
    s->hashes = h;
    return SEGUE_OK;
}

const struct sg_state_hashes *sg_session_hashes(const struct segue_session *s) { return s->hashes; }

void sg_hashes_slot_name(const struct segue_session *s, uint32_t slot, char out[32])
{
    const struct sg_slot *d = &s->engine->graph->slots[slot];
    snprintf(out, 32, "%s.%u", sg_state_kind(d->kind), d->layer);
}

/* Buffers for the values of n tokens. */
static segue_status values_for(struct segue_session *s, size_t n, segue_error *err)
{
    struct sg_state_hashes *h = s->hashes;
    size_t bytes;
    if (n <= h->values_tokens) return SEGUE_OK;
    SG_TRY(sg_mul(n, s->engine->model->info.width * sizeof(float), &bytes, "hashes of states", err));
    for (uint32_t i = 0; i < h->hidden_n; i++) {
        sg_free(h->values[i]);
        h->values[i] = sg_alloc(bytes);
        if (!h->values[i]) {
            h->values_tokens = 0;
            return sg_no_memory("hashes of states", bytes, err);
        }
    }
    h->values_tokens = n;
    return SEGUE_OK;
}

segue_status sg_hashes_before(struct segue_session *s, struct sg_run_request *request, segue_error *err)
{
    struct sg_state_hashes *h = s->hashes;
    if (!h->hidden_n || request->outputs_n) return SEGUE_OK;
    SG_TRY(values_for(s, request->tokens_n, err));
    request->outputs = h->outputs;
    request->outputs_n = h->hidden_n;
    request->values = h->values;
    return SEGUE_OK;
}

/* A new entry with room for all hashes; its memory lives as long as the recording. */
static segue_status new_run(struct segue_session *s, uint32_t tokens, struct sg_run_hash **out, segue_error *err)
{
    struct sg_state_hashes *h = s->hashes;
    if (h->runs_n == RUNS_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "hashes not recorded: more than %d runs; record a shorter answer", (int)RUNS_MAX);
    if (h->runs_n == h->runs_cap) {
        size_t cap = h->runs_cap ? 2 * h->runs_cap : 64;
        struct sg_run_hash *grown = sg_arena_alloc(&h->arena, cap * sizeof *grown);
        if (!grown) return sg_no_memory("hashes of states", cap * sizeof *grown, err);
        if (h->runs_n) memcpy(grown, h->runs, h->runs_n * sizeof *grown);
        h->runs = grown;
        h->runs_cap = cap;
    }
    struct sg_run_hash *r = &h->runs[h->runs_n];
    *r = (struct sg_run_hash){.tokens = tokens};
    r->slots = sg_arena_alloc(&h->arena, (h->slots_n + h->hidden_n + 1) * sizeof *r->slots);
    if (!r->slots) return sg_no_memory("hashes of states", (h->slots_n + h->hidden_n) * sizeof *r->slots, err);
    r->hidden = r->slots + h->slots_n;
    if (h->hidden_n && !(r->rows = sg_arena_alloc(&h->arena, tokens * sizeof *r->rows)))
        return sg_no_memory("hashes of states", tokens * sizeof *r->rows, err);
    *out = r;
    return SEGUE_OK;
}

/* The hash of slot i of the model's graph over positions [first, end). Positions that a window has dropped are left out. */
static segue_status hash_slot(struct segue_session *s, uint32_t i, uint64_t first, uint64_t end, uint64_t *out, segue_error *err)
{
    struct sg_state_hashes *h = s->hashes;
    const struct sg_slot *d = &s->engine->graph->slots[i];
    uint32_t index = 0;
    struct sg_layout_stage *stage = sg_layout_slot(&s->layouts[s->active], d->kind, d->layer, &index);
    if (!stage || !stage->state) return sg_fail(err, SEGUE_EUNIT, "hashes not recorded: slot %u has no state; report this", i);
    const struct sg_unit_ops *ops = sg_ops_of(stage->state);
    int by_row = sg_state_has_rows(d);
    enum sg_storage storage = by_row ? stage->kv : SG_F32;
    uint64_t held = 0, rows = 0;
    if (by_row) ops->state_held(stage->state, index, &held, &rows);
    if (held > first) first = held;
    size_t bytes = by_row ? (size_t)(end > first ? end - first : 0) * sg_slot_row_bytes(d, storage) : sg_slot_fixed_bytes(d);
    if (bytes > h->buffer_bytes) {
        sg_free(h->buffer);
        h->buffer = sg_alloc(bytes);
        h->buffer_bytes = h->buffer ? bytes : 0;
        if (!h->buffer) return sg_no_memory("hashes of states", bytes, err);
    }
    if (bytes) SG_TRY(ops->state_get(stage->state, index, first, end, storage, h->buffer, err));
    if (bytes && ops->state_flush) SG_TRY(ops->state_flush(stage->state, err));
    *out = sg_hash_bytes(h->buffer, bytes, 0).lo;
    return SEGUE_OK;
}

segue_status sg_hashes_after(struct segue_session *s, const struct sg_run_request *request, int decode, segue_error *err)
{
    struct sg_state_hashes *h = s->hashes;
    struct sg_run_hash *r = NULL;
    size_t row = s->engine->model->info.width * sizeof(float);
    SG_TRY(new_run(s, request->tokens_n, &r, err));
    r->first = s->computed - request->tokens_n;
    r->decode = decode != 0;
    r->placement = s->layouts[s->active].stages[0].placement;
    for (uint32_t i = 0; i < h->slots_n; i++) SG_TRY(hash_slot(s, i, r->first, s->computed, &r->slots[i], err));
    for (uint32_t i = 0; i < h->hidden_n; i++)
        r->hidden[i] = sg_hash_bytes(h->values[i], request->tokens_n * row, 0).lo;
    for (uint32_t t = 0; h->hidden_n && t < request->tokens_n; t++)
        r->rows[t] = (uint32_t)sg_hash_bytes((const uint8_t *)h->values[h->hidden_n - 1] + t * row, row, 0).lo;
    h->runs_n++;
    return SEGUE_OK;
}

void sg_hashes_free(struct sg_state_hashes *h)
{
    if (!h) return;
    for (uint32_t i = 0; i < h->hidden_n; i++) sg_free(h->values[i]);
    sg_free(h->buffer);
    sg_arena_free(&h->arena);
    sg_free(h);
}
