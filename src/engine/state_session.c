/* state_session.c: segue_session_save and segue_session_load: a session's states and checkpoints to and from a file.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "engine/session/session.h"
#include "engine/sized.h"
#include "engine/state_session.h"

/* --- save --- */

/* The newest checkpoints, and the newest one where new text begins: after a restart the last turn can still be edited.
 */
static uint32_t choose_points(const struct segue_session *s, struct sg_checkpoint *out[SG_STATE_CHECKPOINTS])
{
    enum { NEWEST = 3 };
    uint32_t n = 0, end = s->checkpoints_n, begins = UINT32_MAX;
    while (end && s->checkpoints[end - 1].checkpoint->tokens_n >= s->computed) end--;
    for (uint32_t i = 0; i < end; i++)
        if (s->checkpoints[i].starts_input) begins = i;
    for (uint32_t i = 0; i < end; i++)
        if (i == begins || i + NEWEST >= end) out[n++] = s->checkpoints[i].checkpoint;
    return n;
}

segue_status segue_session_save(const segue_session *session, const char *path, segue_error *err)
{
    SG_TRY(sg_session_check(session, "state not saved", err));
    if (!path || !*path) return sg_fail(err, SEGUE_EARG, "state not saved: no path given; name a file");
    struct segue_session *s = (struct segue_session *)(uintptr_t)session; /* get only reads a state */
    struct sg_checkpoint *points[SG_STATE_CHECKPOINTS];
    struct sg_state_origin origin;
    if (!s->computed || !sg_layout_holds(&s->layouts[s->active]))
        return sg_fail(err, SEGUE_EARG,
                       "state not saved: session of %zu tokens: none is computed; prefill first",
                       s->tokens_n);
    sg_session_origin(s, &origin);
    struct sg_state_contents v = {.engine = s->engine,
                        .origin = &origin,
                        .tokens = s->tokens,
                        .tokens_n = s->tokens_n,
                        .layout = &s->layouts[s->active],
                        .computed = s->computed,
                        .prefill_ns = sg_session_prefill_cost_ns(s, s->computed),
                        .logits = sg_session_known_logits(s),
                        .checkpoints = points,
                        .checkpoints_n = choose_points(s, points)};
    return sg_state_save(&v, path, err);
}

/* --- load --- */

static void take_logits(struct segue_session *s, const float *logits)
{
    s->logits_known = logits != NULL;
    if (logits) memcpy(s->logits, logits, s->engine->model->info.vocab * sizeof *logits);
}

/* Everything was checked: from here on only an allocation can fail. */
static segue_status fill(const struct sg_statefile *f, struct segue_session *s, segue_error *err)
{
    struct sg_checkpoint *points[SG_STATE_CHECKPOINTS];
    uint32_t n = 0;
    SG_TRY(segue_session_append(s, sg_statefile_tokens(f), f->head.tokens_n, err));
    s->active = s->split ? SG_DECODE_LAYOUT : SG_PREFILL_LAYOUT;
    SG_TRY(sg_session_make_states(s, err));
    int keep = s->needs_checkpoints && s->checkpoints_budget;
    segue_status status =
        sg_statefile_fill(f, s->engine, &s->layouts[s->active], 0, keep ? points : NULL, &n, err);
    for (uint32_t i = 0; i < n; i++) s->checkpoints[s->checkpoints_n++] = (struct sg_checkpoint_ref){points[i], 1};
    if (status != SEGUE_OK) return status;
    s->computed = f->head.rows;
    sg_recovery_reset(s);
    take_logits(s, sg_statefile_logits(f, 0));
    s->stats.tokens_reused = s->computed;
    s->stats.reuse_reason = "all";
    return SEGUE_OK;
}

/* The tokens are sound and of this vocabulary: the next call computes them all. */
static segue_status repair(const struct sg_statefile *f, struct segue_session *s, segue_error *err)
{
    if (f->head.vocab != s->engine->model->info.vocab) 
        return sg_fail(err, SEGUE_EFORMAT,
                       "state not loaded: %s: it has another vocabulary; load it with the model that saved it",
                       f->path);
    SG_TRY(segue_session_append(s, sg_statefile_tokens(f), f->head.tokens_n, err));
    s->rewound = 1; /* so that the reason stays */
    s->stats.reuse_reason = f->text_only ? "no-checkpoint" : "model-changed";
    return SEGUE_OK;
}

static segue_status load(struct segue_session *s, const char *path, int mend, segue_error *err)
{
    struct sg_statefile f;
    struct sg_state_origin origin;
    segue_status status = sg_statefile_open(&f, path, mend ? SG_STATE_SALVAGE : 0, err);
    if (status != SEGUE_OK && !f.text_only) return status;
    segue_status own = sg_file_check_owner(&f.map.id, path, err);
    if (own != SEGUE_OK) {
        sg_statefile_close(&f);
        return own;
    }
    sg_session_origin(s, &origin);
    if (status == SEGUE_OK) status = sg_statefile_fits(&f, s->engine, origin.adapters, err);
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
