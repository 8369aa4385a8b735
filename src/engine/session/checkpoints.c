/* checkpoints.c: the checkpoints of a session. Recurrent slots and sliding windows cannot be cut back, so copies of the states
 * are kept where input starts and ends and after each chunk, within a budget of bytes: dense near the end of the sequence, where
 * edits happen, and sparse before. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/mem.h"
#include "engine/session/session.h"
#include "engine/store/prefixstore.h"

enum { GAP_TOKENS = 16 }; /* minimum distance of checkpoints: fewer tokens are computed again */

/* beyond: positions before its window that a slot may still hold. copies: of what is not K and V. */
static uint64_t bytes_of(const struct segue_session *s, uint32_t layout, uint64_t tokens_n, uint64_t beyond, uint64_t copies)
{
    uint64_t bytes = 0;
    const struct sg_layout *l = &s->layouts[layout];
    for (uint32_t i = 0; i < l->n; i++) {
        const struct sg_graph *g = l->stages[i].layer_range->graph;
        for (uint32_t k = 0; k < g->slots_n; k++) {
            uint64_t window = g->slots[k].window ? g->slots[k].window + beyond : 0,
                     rows = window && window < tokens_n ? window : tokens_n;
            bytes +=
                copies * sg_slot_fixed_bytes(&g->slots[k]) + rows * sg_slot_row_bytes(&g->slots[k], l->stages[i].kv);
        }
    }
    return bytes;
}

uint64_t sg_session_state_bytes(const struct segue_session *s, uint32_t layout, uint64_t tokens_n)
{
    return bytes_of(s, layout, tokens_n, 0, 1);
}

/* A slot with a window drops whole blocks after a run, so it holds a chunk more, and parts of two blocks. Units write recurrent
 * slots beside the old ones, so that a run that is stopped changes nothing. */
uint64_t sg_session_state_bytes_max(const struct segue_session *s, uint32_t layout, uint64_t tokens_n, uint64_t block)
{
    return bytes_of(s, layout, tokens_n, s->layouts[layout].chunk_tokens + 2 * block, 2);
}

/* Bytes of the checkpoints beyond the session's own states, with which they share K and V until the states are moved. */
static uint64_t cost_of(const struct segue_session *s)
{
    size_t vocab = s->engine->model->info.vocab;
    uint64_t bytes = 0, whole = sg_session_state_bytes(s, s->active, s->computed);
    uint64_t present = sg_layout_bytes(&s->layouts[s->active]);
    for (uint32_t i = 0; i < s->checkpoints_n; i++) bytes += sg_checkpoint_bytes(s->checkpoints[i].checkpoint, vocab);
    uint64_t shared = whole > present ? whole - present : 0;
    return bytes > shared ? bytes - shared : 0;
}

/* A checkpoint that forks also hold counts by this session's share. */
uint64_t sg_session_checkpoint_bytes(const struct segue_session *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->checkpoints_n; i++)
        bytes += sg_checkpoint_bytes(s->checkpoints[i].checkpoint, s->engine->model->info.vocab) /
                 atomic_load(&s->checkpoints[i].checkpoint->references);
    return bytes;
}

static void drop(struct segue_session *s, uint32_t i)
{
    sg_checkpoint_release(s->checkpoints[i].checkpoint);
    memmove(s->checkpoints + i, s->checkpoints + i + 1, (--s->checkpoints_n - i) * sizeof *s->checkpoints);
}

/* The checkpoint to evict: the one with the smallest gap between its neighbours relative to its distance from the end. The newest
 * one stays, and the newest at which input starts, because the last turn is the one most often edited. */
static uint32_t eviction_candidate(const struct segue_session *s)
{
    uint32_t best = 0, kept = UINT32_MAX, n = s->checkpoints_n;
    uint64_t end = s->checkpoints[n - 1].checkpoint->tokens_n;
    double best_cost = -1;
    for (uint32_t i = 0; n > 2 && i + 1 < n; i++)
        if (s->checkpoints[i].starts_input) kept = i;
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint64_t before = i ? s->checkpoints[i - 1].checkpoint->tokens_n : 0, rows = s->checkpoints[i].checkpoint->tokens_n;
        double cost = (double)(s->checkpoints[i + 1].checkpoint->tokens_n - before) / (double)(end - rows + GAP_TOKENS);
        if (i != kept && (best_cost < 0 || cost < best_cost)) {
            best_cost = cost;
            best = i;
        }
    }
    return best;
}

/* Evicts until the number and the budget hold; remembers the range of evicted positions for reuse_reason. */
static void enforce_budget(struct segue_session *s)
{
    while (s->checkpoints_n && (s->checkpoints_n == SG_CHECKPOINTS_MAX || cost_of(s) > s->checkpoints_budget)) {
        uint32_t i = eviction_candidate(s);
        uint64_t rows = s->checkpoints[i].checkpoint->tokens_n;
        if (!s->evicted_from || rows < s->evicted_from) s->evicted_from = rows;
        if (rows > s->evicted_to) s->evicted_to = rows;
        drop(s, i);
    }
}

/* 1: take a checkpoint now. States that can be cut need none; for them only the ends of inputs are saved, for the prefix
 * store. */
static int wanted(const struct segue_session *s, int begins)
{
    if (s->needs_checkpoints) return s->checkpoints_budget != 0;
    return s->uses_store && (begins || s->computed >= s->input_n);
}

/* 1: the states are of the prefill unit, and the check of their hand-off is still to come. */
static int awaits_verification(const struct segue_session *s)
{
    return s->verify_tokens && s->split && s->active == SG_PREFILL_LAYOUT;
}

static void put_in_store(struct segue_session *s, struct sg_checkpoint *p)
{
    struct sg_state_origin origin;
    if (awaits_verification(s)) return;
    sg_session_store_origin(s, &origin);
    sg_store_put(s->engine->store, &origin, s->tokens, sg_session_prefill_cost_ns(s, p->tokens_n), p);
}

/* The logits are read into the checkpoint's own memory: with a large vocabulary a copy more is noticed. */
static int new_checkpoint(const struct segue_session *s, struct sg_checkpoint **out)
{
    float *logits = s->logits_known ? sg_alloc(s->engine->model->info.vocab * sizeof *logits) : NULL;
    if (s->logits_known && !logits) return 0;
    if (logits && !sg_session_copy_logits(s, logits)) {
        sg_free(logits);
        logits = NULL;
    }
    if (sg_checkpoint_take(out, &s->layouts[s->active], s->computed, logits, NULL) == SEGUE_OK) return 1;
    sg_free(logits);
    return 0;
}

void sg_session_checkpoint(struct segue_session *s, int begins)
{
    struct sg_layout *l = &s->layouts[s->active];
    struct sg_checkpoint_ref *last = s->checkpoints_n ? &s->checkpoints[s->checkpoints_n - 1] : NULL;
    uint64_t gap = l->chunk_tokens < GAP_TOKENS ? l->chunk_tokens : GAP_TOKENS;
    s->checkpoint_pending = 0;
    if (!wanted(s, begins) || !s->computed || !sg_layout_holds(l)) return;
    if (last && last->checkpoint->tokens_n == s->computed) {
        last->starts_input |= begins != 0;
        return;
    }
    if (s->computed < (last ? last->checkpoint->tokens_n : 0) + gap) return;
    if (s->checkpoints_n == SG_CHECKPOINTS_MAX) enforce_budget(s);
    struct sg_checkpoint_ref *m = &s->checkpoints[s->checkpoints_n];
    *m = (struct sg_checkpoint_ref){.starts_input = begins != 0};
    if (!new_checkpoint(s, &m->checkpoint)) return; /* out of memory: a later rewind computes the tokens again */
    if (s->uses_store) put_in_store(s, m->checkpoint);
    if (!s->needs_checkpoints) {
        sg_checkpoint_release(m->checkpoint);
        return;
    }
    s->checkpoints_n++;
    enforce_budget(s);
}

void sg_session_checkpoint_due(struct segue_session *s)
{
    uint64_t last = s->checkpoints_n ? s->checkpoints[s->checkpoints_n - 1].checkpoint->tokens_n : 0;
    if (!s->checkpoint_pending) return;
    int parts_here = s->computed == s->store_matched;
    if (s->computed < s->input_n && s->computed < last + s->layouts[s->active].chunk_tokens &&
        !parts_here)
        s->checkpoint_pending = 0;
    else sg_session_checkpoint(s, 0);
}

void sg_session_store_checkpoints(struct segue_session *s)
{
    for (uint32_t i = 0; s->uses_store && i < s->checkpoints_n; i++) put_in_store(s, s->checkpoints[i].checkpoint);
}

void sg_session_store_put(struct segue_session *s)
{
    struct sg_layout *l = &s->layouts[s->active];
    struct sg_checkpoint *p;
    if (!s->uses_store || awaits_verification(s) || !s->computed || !s->tokens || !sg_layout_holds(l)) return;
    if (!(p = sg_alloc(sizeof *p))) return;
    *p = (struct sg_checkpoint){.layout = *l, .tokens_n = s->computed};
    atomic_init(&p->references, 1);
    sg_session_fetch_logits(s);
    if (s->logits_known) { /* the checkpoint takes over the session's buffer */
        p->logits = s->logits;
        s->logits = NULL;
    }
    for (uint32_t i = 0; i < l->n; i++) l->stages[i].state = NULL;
    put_in_store(s, p);
    sg_checkpoint_release(p);
}

segue_status sg_session_preempt(struct segue_session *s, segue_error *err)
{
    size_t bytes = s->engine->model->info.vocab * sizeof *s->logits;
    sg_flow_close(s->flow);
    sg_session_store_put(s);
    sg_layout_drop_states(&s->layouts[0]);
    sg_layout_drop_states(&s->layouts[1]);
    sg_session_forget_checkpoints(s, 0);
    sg_recovery_cut(s, 0);
    s->replay_until = s->computed;
    s->computed = 0;
    s->logits_known = 0;
    s->store_queried = 0;
    s->active = SG_PREFILL_LAYOUT;
    if (!s->logits) s->logits = sg_alloc(bytes);
    return s->logits ? SEGUE_OK : sg_no_memory("logits", bytes, err);
}

void sg_session_forget_checkpoints(struct segue_session *s, uint64_t rows)
{
    s->checkpoint_pending = 0;
    while (s->checkpoints_n && s->checkpoints[s->checkpoints_n - 1].checkpoint->tokens_n > rows) drop(s, s->checkpoints_n - 1);
}

void sg_session_drop_lost_checkpoints(struct segue_session *s, const struct sg_layout *lost)
{
    for (uint32_t i = s->checkpoints_n; i-- > 0;) {
        int gone = 0;
        const struct sg_layout *l = &s->checkpoints[i].checkpoint->layout;
        for (uint32_t a = 0; a < l->n; a++)
            for (uint32_t b = 0; b < lost->n; b++)
                gone |= l->stages[a].layer_range->unit == lost->stages[b].layer_range->unit;
        if (gone) drop(s, i);
    }
    s->checkpoint_pending = 0;
}

/* Replaces the session's states by `states`, on the layout that they are in. States of a layout that the session no longer has
 * are moved to the prefill layout. */
static segue_status take_states(struct segue_session *s, struct sg_layout *states)
{
    for (uint32_t i = 0; i < 2; i++) {
        if (!sg_layout_same(&s->layouts[i], states)) continue;
        sg_layout_drop_states(&s->layouts[0]);
        sg_layout_drop_states(&s->layouts[1]);
        s->layouts[i] = *states;
        s->active = i;
        return SEGUE_OK;
    }
    sg_layout_drop_states(&s->layouts[0]);
    sg_layout_drop_states(&s->layouts[1]);
    s->active = SG_PREFILL_LAYOUT;
    segue_status status = sg_session_move_states(s, states, &s->layouts[SG_PREFILL_LAYOUT], NULL);
    sg_layout_drop_states(states);
    return status;
}

segue_status sg_session_restore(struct segue_session *s, const struct sg_checkpoint *p)
{
    struct sg_layout states;
    sg_flow_close(s->flow); /* rows that were sent belong to the states that are replaced */
    SG_TRY(sg_layout_fork(&p->layout, &states, NULL));
    SG_TRY(take_states(s, &states));
    s->computed = p->tokens_n;
    s->logits_known = p->logits != NULL;
    if (p->logits) memcpy(s->logits, p->logits, s->engine->model->info.vocab * sizeof *p->logits);
    return SEGUE_OK;
}

int sg_session_to_checkpoint(struct segue_session *s, uint64_t rows)
{
    sg_session_forget_checkpoints(s, rows);
    while (s->checkpoints_n) {
        if (sg_session_restore(s, s->checkpoints[s->checkpoints_n - 1].checkpoint) == SEGUE_OK) return 1;
        drop(s, s->checkpoints_n - 1);
    }
    return 0;
}
