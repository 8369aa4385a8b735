/* session_core.c: accessors of a session that every other session file may call: argument check, cancel, sampler view, cost
 * estimate and the logits of the last computed token. Calls units only, no other session file. SPDX-License-Identifier: MIT */
#include <string.h>

#include "engine/session/session.h"

#include "base/clock.h"

segue_status sg_session_check(const struct segue_session *s, const char *what, segue_error *err)
{
    if (s) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "%s: the session is NULL; open one", what);
}

void sg_session_sampler(const struct segue_session *s, struct sg_sampler *out)
{
    const struct segue_model *m = s->engine->model;
    int masked = s->constraint.grammar && s->constraint.masked == s->tokens_n + 1;
    *out = (struct sg_sampler){.p = s->sampling,
                               .stops = m->stops,
                               .stops_n = m->stops_n,
                               .history = s->tokens,
                               .history_n = s->tokens_n,
                               .breakers = s->breakers,
                               .breakers_n = s->breakers_n,
                               .limit = s->engine->token_limit,
                               .allowed = masked ? s->constraint.allowed : NULL,
                               .allowed_n = masked ? m->info.vocab : 0};
}

segue_status sg_session_mask(struct segue_session *s, segue_error *err)
{
    return sg_constraint_update(&s->constraint, s->tokens, s->tokens_n, s->input_n, err);
}

uint64_t sg_session_prefill_cost_ns(const struct segue_session *s, uint64_t rows)
{
    return s->prefill_tokens ? (uint64_t)((double)s->prefill_ns / (double)s->prefill_tokens * (double)rows) : 0;
}

void sg_session_end_draft(struct segue_session *s)
{
    if (!s->is_draft) return;
    s->is_draft = 0;
    s->uses_store = s->may_use_store;
}

void sg_session_begin_call(struct segue_session *s)
{
    if (!s->is_draft) atomic_store(&s->cancel, 0);
}

segue_status sg_session_check_cancel(struct segue_session *s, segue_error *err)
{
    if (!atomic_exchange(&s->cancel, 0)) return SEGUE_OK;
    return sg_fail(err, SEGUE_ECANCELED, "canceled: session of %zu tokens: by segue_session_cancel; call again to continue",
                   s->tokens_n);
}

/* --- logits of the last computed token --- */

/* The unit of the last stage has the logits. */
int sg_session_unit_samples(const struct segue_session *s)
{
    const struct sg_layout *l = &s->layouts[s->active];
    return l->stages[l->n - 1].layer_range->unit->desc.samples != 0;
}

/* Logits stay on the unit only where the states stay: not before a hand-off. */
uint32_t sg_session_logits_after_run(const struct segue_session *s)
{
    const struct sg_layout *l = &s->layouts[s->active];
    int states_stay = !(s->split && s->active == SG_PREFILL_LAYOUT) && sg_session_unit_samples(s);
    return states_stay && sg_ops_of(l->stages[l->n - 1].layer_range->unit->unit)->state_logits ? SG_LOGITS_LATE : SG_LOGITS_HERE;
}

/* Logits that are still on the unit. */
static int read_late_logits(const struct segue_session *s, float *out)
{
    const struct sg_layout *l = &s->layouts[s->active];
    const struct sg_layout_stage *last = &l->stages[l->n - 1];
    if (!last->state || sg_unit_enter(last->layer_range->unit, NULL, NULL) != SEGUE_OK) return 0;
    segue_status status = sg_ops_of(last->state)->state_logits(last->state, out, NULL);
    sg_unit_leave(last->layer_range->unit);
    return status == SEGUE_OK;
}

const float *sg_session_known_logits(const struct segue_session *s)
{
    if (s->logits_known != SG_LOGITS_LATE) return s->logits_known ? s->logits : NULL;
    return read_late_logits(s, s->logits) ? s->logits : NULL;
}

int sg_session_copy_logits(const struct segue_session *s, float *out)
{
    if (s->logits_known == SG_LOGITS_LATE) return read_late_logits(s, out);
    if (s->logits_known) memcpy(out, s->logits, s->engine->model->info.vocab * sizeof *out);
    return s->logits_known != 0;
}

void sg_session_fetch_logits(struct segue_session *s)
{
    if (s->logits_known == SG_LOGITS_LATE) s->logits_known = sg_session_known_logits(s) ? SG_LOGITS_HERE : 0;
}
