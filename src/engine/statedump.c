/* statedump.c: writes everything that a session computed as safetensors, with the names and shapes of the test goldens, for
 * inspection and for comparison with other programs. A dump cannot be loaded; state files can (statefile/).
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/session/score.h"
#include "engine/statefile/statefile.h"
#include "tensor/archive.h"

/* A dump in progress. */
struct dump {
    struct segue_session *session;
    struct sg_arena arena;    /* owns everything below */
    struct sg_st_item *items; /* [items_n] */
    size_t items_n, items_cap;
    int32_t *outputs; /* [outputs_n] graph outputs hidden.<i> */
    float **values;   /* [outputs_n] each [T, width] */
    uint32_t outputs_n;
};

/* Allocates a * b * size bytes for the dump. The factors come from a file, so the products are checked. */
static segue_status dump_alloc(struct dump *d, size_t a, size_t b, size_t size, void *out, segue_error *err)
{
    size_t bytes;
    void *p = NULL;
    SG_TRY(sg_mul(a, b, &bytes, "dump", err));
    SG_TRY(sg_mul(bytes, size, &bytes, "dump", err));
    p = sg_arena_alloc(&d->arena, bytes);
    if (!p) return sg_no_memory("dump", bytes, err);
    memcpy(out, &p, sizeof p);
    return SEGUE_OK;
}

/* Adds a tensor. layer < 0: the name is `kind` alone. The shape ends at the first 0. */
static segue_status add(struct dump *d, const char *kind, int layer, enum sg_storage storage,
                        const uint64_t shape[3], const void *data, segue_error *err)
{
    char *name =
        layer < 0 ? sg_arena_printf(&d->arena, "%s", kind) : sg_arena_printf(&d->arena, "%s.%d", kind, layer);
    if (!name) return sg_no_memory("dump", 32, err);
    struct sg_st_item *item = &d->items[d->items_n++];
    *item = (struct sg_st_item){.name = name, .storage = storage, .data = data};
    for (int i = 0; i < 3 && shape[i]; i++) item->shape[item->rank++] = shape[i];
    return SEGUE_OK;
}

/* The rows of K or V that the next token attends to. */
static segue_status add_rows(struct dump *d, struct sg_state *state, uint32_t index,
                             const struct sg_slot *slot, segue_error *err)
{
    const struct sg_unit_ops *ops = sg_ops_of(state);
    uint64_t first = 0, end = 0;
    float *rows = NULL, *heads = NULL;
    ops->state_held(state, index, &first, &end);
    if (slot->window && end - first >= slot->window)
        first = end - slot->window + 1;
    size_t n = end - first, wide = (size_t)slot->heads * slot->width;
    SG_TRY(dump_alloc(d, n, wide, sizeof(float), &rows, err));
    SG_TRY(dump_alloc(d, n, wide, sizeof(float), &heads, err));
    SG_TRY(ops->state_get(state, index, first, end, SG_F32, rows, err));
    sg_dump_heads(slot, n, rows, heads);
    const uint64_t shape[3] = {slot->heads, n, slot->width};
    return add(d, slot->kind == SG_SLOT_K ? "k" : "v", (int)slot->layer, SG_F32, shape, heads, err);
}

/* A recurrent slot: CONV is transposed, DELTA is written as stored. */
static segue_status add_fixed(struct dump *d, struct sg_state *state, uint32_t index,
                              const struct sg_slot *slot, segue_error *err)
{
    float *whole = NULL, *transposed = NULL;
    SG_TRY(dump_alloc(d, sg_slot_fixed_bytes(slot), 1, 1, &whole, err));
    SG_TRY(sg_ops_of(state)->state_get(state, index, 0, 0, SG_F32, whole, err));
    if (slot->kind == SG_SLOT_DELTA) {
        const uint64_t shape[3] = {slot->heads, slot->depth, slot->width};
        return add(d, "rec", (int)slot->layer, SG_F32, shape, whole, err);
    }
    SG_TRY(dump_alloc(d, slot->heads, slot->width, sizeof(float), &transposed, err));
    sg_dump_conv(slot, whole, transposed);
    const uint64_t shape[3] = {slot->width, slot->heads, 0};
    return add(d, "conv", (int)slot->layer, SG_F32, shape, transposed, err);
}

static segue_status add_slots(struct dump *d, segue_error *err)
{
    struct sg_layout_stage *stage = &d->session->layouts[d->session->active].stages[0];
    const struct sg_graph *g = stage->layer_range->graph;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        int rows = g->slots[i].kind == SG_SLOT_K || g->slots[i].kind == SG_SLOT_V;
        if (rows)
            SG_TRY(add_rows(d, stage->state, i, &g->slots[i], err));
        else
            SG_TRY(add_fixed(d, stage->state, i, &g->slots[i], err));
    }
    return SEGUE_OK;
}

/* Outputs of the graph beside the logits: hidden.0 to hidden.<layers>. */
static segue_status find_outputs(struct dump *d, size_t rows, segue_error *err)
{
    const struct sg_graph *g = d->session->engine->graph;
    size_t width = d->session->engine->model->info.width;
    SG_TRY(dump_alloc(d, g->outputs_n + 1, 1, sizeof(int32_t), &d->outputs, err));
    SG_TRY(dump_alloc(d, g->outputs_n + 1, 1, sizeof(float *), &d->values, err));
    for (uint32_t i = 0; i < g->outputs_n; i++) {
        if (strncmp(g->outputs[i].name, "hidden.", 7) != 0) continue;
        d->outputs[d->outputs_n] = (int32_t)i;
        SG_TRY(dump_alloc(d, rows, width, sizeof(float), &d->values[d->outputs_n], err));
        d->outputs_n++;
    }
    return SEGUE_OK;
}

/* The outputs of the graph have the names of the goldens. */
static segue_status add_hidden(struct dump *d, size_t rows, segue_error *err)
{
    const struct sg_graph *g = d->session->engine->graph;
    const uint64_t shape[3] = {rows, d->session->engine->model->info.width, 0};
    for (uint32_t i = 0; i < d->outputs_n; i++)
        SG_TRY(add(d, g->outputs[d->outputs[i]].name, -1, SG_F32, shape, d->values[i], err));
    return SEGUE_OK;
}

/* Runs all tokens first, then reads the slots, which hold the state after the last token. */
static segue_status collect(struct dump *d, segue_error *err)
{
    struct segue_session *s = d->session;
    size_t rows = s->tokens_n, vocab = s->engine->model->info.vocab;
    float *logits = NULL;
    SG_TRY(dump_alloc(d, s->engine->graph->outputs_n + s->engine->graph->slots_n + 2, 1, sizeof *d->items,
                &d->items, err));
    SG_TRY(dump_alloc(d, rows, vocab, sizeof(float), &logits, err));
    SG_TRY(find_outputs(d, rows, err));
    struct sg_score_request r = {.logits = logits,
                           .outputs = d->outputs,
                           .outputs_n = d->outputs_n,
                           .values = d->values,
                           .width = s->engine->model->info.width};
    SG_TRY(sg_session_run_scored(s, &r, err));
    const uint64_t tokens_shape[3] = {rows, 0, 0}, logits_shape[3] = {rows, vocab, 0};
    SG_TRY(add(d, "tokens", -1, SG_I32, tokens_shape, s->tokens, err));
    SG_TRY(add(d, "logits", -1, SG_F32, logits_shape, logits, err));
    SG_TRY(add_hidden(d, rows, err));
    return add_slots(d, err);
}

segue_status segue_session_dump(segue_session *session, const int32_t *tokens, size_t n, const char *path,
                                segue_error *err)
{
    SG_TRY(sg_session_check(session, "session not dumped", err));
    if (!path || !*path || (n && !tokens))
        return sg_fail(err, SEGUE_EARG, "session not dumped: path or tokens is NULL; pass both");
    if (!session->engine->keep_values)
        return sg_fail(err, SEGUE_EARG,
                       "session not dumped: the engine was opened without keep_values; set it");
    if (session->computed || session->tokens_n + n == 0)
        return sg_fail(
            err, SEGUE_EARG,
            "session not dumped: %zu tokens are computed: a dump needs tokens, none of them computed; open a new session",
            session->computed);
    if (session->layouts[session->active].n != 1)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "session not dumped: the layers are on several units; use a plan with one unit");
    sg_session_begin_call(session);
    SG_TRY(segue_session_append(session, tokens, n, err));
    struct dump d = {.session = session};
    segue_status status = collect(&d, err);
    if (status == SEGUE_OK) status = sg_safetensors_write(path, d.items, d.items_n, err);
    sg_arena_free(&d.arena);
    return status;
}
