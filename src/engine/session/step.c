/* step.c: one token for each of many sessions in as few runs as possible: a run has the pending token of each running answer and
 * a chunk of each prompt. Sessions that cannot join (the states are to be handed off, several stages, the unit cannot sample)
 * take their step alone, as by segue_session_next; the tokens are the same. What they offer is owned by the first session
 * and kept, so that later steps do not allocate. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/mem.h"
#include "engine/session/shared_run.h"

enum { SESSIONS_MAX = 4096 };

/* Values of segue_session.busy during a step. */
enum { STEP_PENDING = 1, STEP_DONE = 2 };

/* Sets the result of session i; `err` has the text of a failure. */
static void set_result(segue_error *each, segue_status status, const segue_error *err)
{
    if (status < 0 && err && err->status == status) *each = *err;
    each->status = status;
}

static void step_alone(struct segue_session *s, int32_t *token, segue_error *each)
{
    segue_error err = {0};
    atomic_store(&s->busy, STEP_DONE);
    set_result(each, sg_session_next_token(s, token, &err), &err);
}

/* 1: the session is still to be served, and joins a run on this range (NULL: on any). */
static int joins(struct segue_session *s, const segue_error *each, const struct sg_layer_range *range)
{
    int open = each->status == SEGUE_OK && atomic_load(&s->busy) == STEP_PENDING;
    const struct sg_layer_range *own = open ? sg_shared_range(s, 1) : NULL;
    return own && (!range || own == range);
}

/* Offers the chunk that each session would have alone. The step ends after its longest prompt, so its answers are patient. */
static uint32_t offer(segue_session *const *sessions, size_t n, const struct sg_layer_range *range, struct sg_share *shares,
                      const segue_error *each)
{
    uint32_t spans = 0;
    for (size_t i = 0; i < n; i++) {
        if (!joins(sessions[i], &each[i], range)) continue;
        if (sessions[i]->checkpoint_pending) sg_session_checkpoint(sessions[i], 0);
        sg_share_init(&shares[spans], sessions[i], 0, SG_THEN_CHOOSE);
        shares[spans++].index = (uint32_t)i;
    }
    return spans;
}

/* Runs sessions of the list on this layer range, as many as the unit takes in one run; step_all calls again for the rest and for
 * prompts of several chunks. */
static void step_together(segue_session *const *sessions, size_t n, const struct sg_layer_range *range, int32_t *tokens,
                          segue_error *each)
{
    struct sg_run_group g = {.shares = sessions[0]->shares, .patient = 1};
    g.shares_n = offer(sessions, n, range, g.shares, each);
    sg_shared_run_group(range, &g);
    for (uint32_t k = 0; k < g.shares_n; k++) {
        const struct sg_share *p = &g.shares[k];
        size_t i = p->index;
        segue_error err = p->error;
        int chose = p->does == SG_THEN_CHOOSE;
        if (!p->tokens_n) continue;
        if (err.status == SEGUE_OK && !chose) err.status = sg_session_check_cancel(sessions[i], &err);
        if (err.status == SEGUE_OK && !chose) continue;
        atomic_store(&sessions[i]->busy, STEP_DONE);
        set_result(&each[i], err.status, &err);
        if (err.status >= 0) tokens[i] = p->token;
    }
}

/* Marks the sessions as part of this step. EARG: NULL, another engine, or a session that is in the list twice, which would be
 * advanced twice. */
static segue_status claim(segue_session *const *sessions, size_t n, segue_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *why = NULL;
        if (!sessions[i])
            why = "is NULL; open it first";
        else if (sessions[i]->engine != sessions[0]->engine)
            why = "belongs to another engine; step it in another call";
        else if (atomic_exchange(&sessions[i]->busy, STEP_PENDING))
            why = "is in the list twice; pass it once";
        if (!why) continue;
        for (size_t k = 0; k < i; k++) atomic_store(&sessions[k]->busy, 0);
        return sg_fail(err, SEGUE_EARG, "no step taken: session %zu %s", i, why);
    }
    return SEGUE_OK;
}

/* Before the run: states, a prefix from the store, a due checkpoint. */
static segue_status make_ready(segue_session *s, segue_error *err)
{
    SG_TRY(sg_session_check_choose(s, err));
    SG_TRY(sg_session_check_cancel(s, err));
    size_t pending = sg_session_pending(s);
    if (!pending || (pending == 1 && s->computed && !s->checkpoint_pending)) return SEGUE_OK;
    return sg_session_prepare(s, err);
}

static void step_all(segue_session *const *sessions, size_t n, int32_t *tokens, segue_error *each)
{
    for (size_t i = 0; i < n; i++) {
        segue_error err = {0};
        tokens[i] = -1;
        each[i] = (segue_error){0};
        set_result(&each[i], make_ready(sessions[i], &err), &err);
    }
    for (size_t i = 0; i < n; i++) {
        while (joins(sessions[i], &each[i], NULL)) step_together(sessions, n, sg_shared_range(sessions[i], 1), tokens, each);
        if (each[i].status == SEGUE_OK && atomic_load(&sessions[i]->busy) == STEP_PENDING)
            step_alone(sessions[i], &tokens[i], &each[i]);
    }
}

static segue_status reserve(struct segue_session *s, size_t n, segue_error *err)
{
    if (s->shares_cap >= n) return SEGUE_OK;
    struct sg_share *shares = sg_realloc(s->shares, n * sizeof *shares);
    if (!shares) return sg_no_memory("step over sessions", n * sizeof *shares, err);
    s->shares = shares;
    s->shares_cap = n;
    return SEGUE_OK;
}

segue_status segue_session_step(segue_session *const *sessions, size_t n, int32_t *tokens, segue_error *each,
                                segue_error *err)
{
    if (!sessions || !tokens || !each || n == 0 || n > SESSIONS_MAX)
        return sg_fail(err, SEGUE_EARG,
                       "no step taken: %zu sessions, from 1 to %d are allowed, or a list is NULL; pass all lists", n,
                       SESSIONS_MAX);
    SG_TRY(claim(sessions, n, err));
    for (size_t i = 0; i < n; i++) {
        sg_session_end_draft(sessions[i]);
        sg_session_begin_call(sessions[i]);
    }
    segue_status status = reserve(sessions[0], n, err);
    if (status == SEGUE_OK) step_all(sessions, n, tokens, each);
    for (size_t i = 0; i < n; i++) atomic_store(&sessions[i]->busy, 0);
    return status;
}
