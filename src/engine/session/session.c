/* session.c: opening, appending tokens, forking and closing. Computes nothing: see advance.c and next.c.
 * SPDX-License-Identifier: MIT */
#include "engine/session/session.h"

#include <string.h>

#include "base/mem.h"
#include "engine/placement/plan.h"
#include "engine/replay/state_hashes.h"
#include "engine/sized.h"

enum { CONTEXT_DEFAULT = 4096, CONTEXT_MAX = INT32_MAX, CHECKPOINT_BYTES = 256 << 20 };

/* --- open, close --- */

/* 0: the model's context, at most CONTEXT_DEFAULT. */
static segue_status choose_context(struct segue_session *s, size_t context, segue_error *err)
{
    const struct segue_engine *e = s->engine;
    size_t trained = e->model->info.context ? e->model->info.context : CONTEXT_DEFAULT;
    if (context > CONTEXT_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "session not opened: context of %zu tokens: the maximum is %d; use a smaller one",
                       context, CONTEXT_MAX);
    if (e->context_max && context > e->context_max)
        return sg_fail(err, SEGUE_ELIMIT,
                       "session not opened: context of %zu tokens: the model has %llu positions; use a smaller one",
                       context, (unsigned long long)e->context_max);
    s->context = context ? context : trained < CONTEXT_DEFAULT ? trained : CONTEXT_DEFAULT;
    if (e->context_max && s->context > e->context_max) s->context = e->context_max;
    return SEGUE_OK;
}

/* An adapter refers to the tensors of the model that it was opened for by address, so it fits no other model. */
static segue_status take_adapters(struct segue_session *s, const segue_session_opts *o, segue_error *err)
{
    if (!o->adapters_n) return SEGUE_OK;
    if (!o->adapters || o->adapters_n > 1024)
        return sg_fail(err, SEGUE_EARG,
                       "session not opened: %zu adapters: adapters is NULL or has more than 1024 entries; pass fewer",
                       o->adapters_n);
    s->adapters = sg_alloc(o->adapters_n * sizeof(struct segue_adapter *));
    s->loras = sg_alloc(o->adapters_n * sizeof(struct sg_lora *));
    if (!s->adapters || !s->loras) return sg_no_memory("adapters of a session", o->adapters_n * 16, err);
    for (size_t i = 0; i < o->adapters_n; i++) {
        if (!o->adapters[i])
            return sg_fail(err, SEGUE_EARG, "session not opened: adapter %zu is NULL; open it first", i);
        if (o->adapters[i]->model != s->engine->model)
            return sg_fail(err, SEGUE_EARG,
                           "session not opened: adapter %zu was opened for another model; open it for this one",
                           i);
        s->adapters[i] = sg_adapter_ref(o->adapters[i]);
        s->loras[i] = &s->adapters[i]->lora;
        s->adapters_n++;
    }
    return SEGUE_OK;
}

/* A prompt is computed in runs of the largest shape and one of the smallest that fits the rest, which the unit selects. */
static void use_shapes(struct sg_layout *l, const struct segue_plan *plan)
{
    uint32_t max = 0;
    for (int i = 0; i < SEGUE_PLAN_SHAPES && plan->info.shapes[i]; i++) max = plan->info.shapes[i];
    if (max && (max < l->chunk_tokens || !l->chunk_tokens)) l->chunk_tokens = max;
    memcpy(l->shapes, plan->info.shapes, sizeof l->shapes);
}

/* If both phases run on the same units, the layouts are equal and states are never moved. */
static segue_status layouts_of_plan(struct segue_session *s, const struct segue_plan *plan, segue_error *err)
{
    SG_TRY(sg_plan_check(s->engine, plan, err));
    SG_TRY(sg_layout_make(&s->layouts[SG_PREFILL_LAYOUT], s->engine, plan, SEGUE_PREFILL, err));
    SG_TRY(sg_layout_make(&s->layouts[SG_DECODE_LAYOUT], s->engine, plan, SEGUE_DECODE, err));
    use_shapes(&s->layouts[SG_PREFILL_LAYOUT], plan);
    if (sg_layout_same(&s->layouts[0], &s->layouts[1])) {
        s->layouts[1].chunk_tokens = s->layouts[0].chunk_tokens;
        memcpy(s->layouts[1].shapes, s->layouts[0].shapes, sizeof s->layouts[1].shapes);
    }
    s->split = !sg_layout_same(&s->layouts[0], &s->layouts[1]);
    return sg_session_make_flow(s, err);
}

/* plan NULL: the one that the engine chooses. */
static segue_status make_layouts(struct segue_session *s, const struct segue_plan *plan, segue_error *err)
{
    segue_plan *chosen = NULL;
    if (plan) return layouts_of_plan(s, plan, err);
    SG_TRY(segue_plan_make(&chosen, s->engine, NULL, err));
    segue_status status = layouts_of_plan(s, chosen, err);
    segue_plan_close(chosen);
    return status;
}

/* Buffers for the whole context, so that decode does not allocate. */
static segue_status buffers_alloc(struct segue_session *s, segue_error *err)
{
    size_t vocab = s->engine->model->info.vocab;
    s->tokens = sg_alloc(s->context * sizeof *s->tokens);
    s->logits = sg_alloc(vocab * sizeof *s->logits);
    if (!s->tokens || !s->logits) return sg_no_memory("session", (s->context + vocab) * 4, err);
    return sg_recovery_alloc(s, err);
}

/* Hidden values between stages; none if each layout has one stage. */
static segue_status make_rows(struct segue_session *s, segue_error *err)
{
    const struct sg_layout *a = &s->layouts[0], *b = &s->layouts[1];
    size_t bytes, chunk = a->chunk_tokens > b->chunk_tokens ? a->chunk_tokens : b->chunk_tokens;
    if (a->n == 1 && b->n == 1) return SEGUE_OK;
    SG_TRY(sg_mul(chunk, s->engine->model->info.width * sizeof(float), &bytes, "rows between stages", err));
    for (int i = 0; i < 2; i++)
        if (!(s->hidden[i] = sg_alloc(bytes))) return sg_no_memory("rows between stages", bytes, err);
    return SEGUE_OK;
}

/* Recurrent slots and sliding windows cannot be cut back, so rewinding needs checkpoints. */
static void read_slots(struct segue_session *s)
{
    const struct sg_graph *g = s->engine->graph;
    for (uint32_t i = 0; i < g->slots_n; i++)
        if (g->slots[i].kind == SG_SLOT_CONV || g->slots[i].kind == SG_SLOT_DELTA || g->slots[i].window)
            s->needs_checkpoints = 1;
}

static segue_status fill(struct segue_session *s, const segue_session_opts *o, segue_error *err)
{
    s->verify_tokens = o->verify_tokens;
    SG_TRY(choose_context(s, o->context, err));
    SG_TRY(take_adapters(s, o, err));
    SG_TRY(make_layouts(s, o->plan, err));
    SG_TRY(sg_session_set_realm(s, o->realm, err));
    s->may_use_store = s->engine->store && !o->no_store && !s->engine->fixed_chunks;
    s->uses_store = s->may_use_store;
    s->drafts = o->drafts != 0;
    s->checkpoints_budget = o->checkpoint_bytes == SEGUE_NO_CHECKPOINTS ? 0
                       : o->checkpoint_bytes                       ? o->checkpoint_bytes
                                                                   : CHECKPOINT_BYTES;
    SG_TRY(buffers_alloc(s, err));
    SG_TRY(make_rows(s, err));
    SG_TRY(sg_record_alloc(s, o->intervals, err));
    read_slots(s);
    return segue_session_sampling(s, o->sampling, err);
}

segue_status segue_session_open(segue_session **out, segue_engine *engine, const segue_session_opts *opts,
                                segue_error *err)
{
    segue_session_opts o;
    if (!out || !engine)
        return sg_fail(err, SEGUE_EARG, "session not opened: out or engine is NULL; pass both");
    SG_TRY(sg_sized_in(&o, sizeof o, opts, "session options", err));
    struct segue_session *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("session", sizeof *s, err);
    s->engine = sg_engine_share(engine);
    atomic_init(&s->cancel, 0);
    atomic_init(&s->busy, 0);
    s->stats = (segue_stats){.size = sizeof s->stats, .reuse_reason = "first-use"};
    segue_status status = fill(s, &o, err);
    if (status != SEGUE_OK) {
        segue_session_close(s);
        return status;
    }
    *out = s;
    return SEGUE_OK;
}

void segue_session_close(segue_session *s)
{
    if (!s) return;
    sg_away_forget(&s->away);
    sg_session_store_put(s);
    sg_layout_drop_states(&s->layouts[0]);
    sg_layout_drop_states(&s->layouts[1]);
    sg_session_forget_checkpoints(s, 0);
    sg_flow_free(s->flow);
    sg_free(s->intervals);
    sg_hashes_free(s->hashes);
    for (uint32_t i = 0; i < s->adapters_n; i++) sg_adapter_unref(s->adapters[i]);
    sg_free(s->adapters);
    sg_free(s->loras);
    sg_free(s->tokens);
    sg_free(s->logits);
    sg_free(s->hidden[0]);
    sg_free(s->hidden[1]);
    sg_constraint_free(&s->constraint);
    sg_free(s->bias);
    sg_free(s->realm_id);
    sg_free(s->sampler_logits);
    segue_session_close(s->verifier);
    sg_recovery_free(s);
    sg_free(s->shares);
    sg_chooser_free(s->chooser);
    segue_engine_close(s->engine);
    sg_free(s);
}

/* --- tokens --- */

segue_status segue_session_append(segue_session *session, const int32_t *tokens, size_t n, segue_error *err)
{
    SG_TRY(sg_session_check(session, "tokens not appended", err));
    if (n && !tokens)
        return sg_fail(err, SEGUE_EARG, "tokens not appended: n is %zu and tokens is NULL; pass the list", n);
    if (n > session->context - session->tokens_n)
        return sg_fail(err, SEGUE_ELIMIT,
                       "tokens not appended: the session has %zu tokens and %zu more exceed the context of %zu; shorten the "
                       "prompt or enlarge the context",
                       session->tokens_n, n, session->context);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= session->engine->model->info.vocab)
            return sg_fail(err, SEGUE_EARG,
                           "tokens not appended: token %d at index %zu: the vocabulary has %u tokens; use one of them",
                           tokens[i], i, session->engine->model->info.vocab);
    if (!n) return SEGUE_OK;
    memcpy(session->tokens + session->tokens_n, tokens, n * sizeof *tokens);
    session->tokens_n += n;
    session->input_n = session->tokens_n;
    session->store_queried = 0;
    if (session->rewound) return SEGUE_OK; /* tokens_reused and reuse_reason were set by rewind */
    session->stats.tokens_reused = session->computed;
    session->stats.reuse_reason = session->computed ? "all" : "first-use";
    return SEGUE_OK;
}

size_t segue_session_tokens(const segue_session *session, const int32_t **tokens)
{
    if (tokens) *tokens = session ? session->tokens : NULL;
    return session ? session->tokens_n : 0;
}

void segue_session_cancel(segue_session *session)
{
    if (session) atomic_store(&session->cancel, 1);
}

/* --- fork --- */

/* `to` was opened without a plan and takes the layouts of `from`. */
static segue_status copy_into(struct segue_session *to, const struct segue_session *from, segue_error *err)
{
    memcpy(to->tokens, from->tokens, from->tokens_n * sizeof *to->tokens);
    const float *logits = sg_session_known_logits(from);
    if (logits) memcpy(to->logits, logits, from->engine->model->info.vocab * sizeof *to->logits);
    to->tokens_n = from->tokens_n;
    to->logits_known = logits ? SG_LOGITS_HERE : 0;
    to->split = from->split;
    to->active = from->active;
    for (uint32_t i = 0; i < 2; i++) {
        to->layouts[i] = from->layouts[i];
        for (uint32_t k = 0; k < from->layouts[i].n; k++) to->layouts[i].stages[k].state = NULL;
    }
    if (!to->hidden[0]) SG_TRY(make_rows(to, err));
    SG_TRY(sg_session_make_flow(to, err));
    SG_TRY(sg_layout_fork(&from->layouts[from->active], &to->layouts[from->active], err));
    to->computed = from->computed;
    sg_recovery_fork(to, from);
    to->input_n = from->input_n;
    to->checkpoint_pending = from->checkpoint_pending;
    for (; to->checkpoints_n < from->checkpoints_n; to->checkpoints_n++) {
        to->checkpoints[to->checkpoints_n] = from->checkpoints[to->checkpoints_n];
        sg_checkpoint_share(to->checkpoints[to->checkpoints_n].checkpoint);
    }
    to->stats.tokens_reused = from->computed;
    to->stats.reuse_reason = "all";
    return SEGUE_OK;
}

segue_status segue_session_fork(segue_session **out, segue_session *session, segue_error *err)
{
    SG_TRY(sg_session_check(session, "session not forked", err));
    if (!out) return sg_fail(err, SEGUE_EARG, "session not forked: out is NULL; pass it");
    segue_session_opts o = {.size = sizeof o,
                            .context = session->context,
                            .sampling = &session->sampling,
                            .adapters = session->adapters,
                            .adapters_n = session->adapters_n,
                            .no_store = !session->may_use_store,
                            .checkpoint_bytes =
                                session->checkpoints_budget ? session->checkpoints_budget : SEGUE_NO_CHECKPOINTS,
                            .intervals = session->intervals_cap};
    struct segue_session *fork;
    SG_TRY(segue_session_open(&fork, session->engine, &o, err));
    segue_status status = SEGUE_OK;
    fork->drafts = session->drafts;
    fork->is_draft = session->drafts || session->is_draft;
    fork->uses_store = session->uses_store && !fork->is_draft;
    if (session->realm_id && !(fork->realm_id = sg_strndup(session->realm_id, strlen(session->realm_id))))
        status = sg_no_memory("realm of a session", strlen(session->realm_id), err);
    if (status == SEGUE_OK) status = copy_into(fork, session, err);
    if (status != SEGUE_OK) {
        segue_session_close(fork);
        return status;
    }
    *out = fork;
    return SEGUE_OK;
}
