/* mlx_step.c: decode steps of one sequence that are issued ahead: while a step is computed, the next one is issued for its best
 * token. It changes nothing that the sequence has: K and V rows are beyond its end, recurrent slots are new arrays. So it is
 * dropped when the next run asks for something else.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/mlx/mlxunit.h"

int mlx_step_fits(const struct sg_graph *g)
{
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    if (logits < 0 || g->inputs_n != 1 || g->values[g->inputs[0].value].kind != SG_VALUE_TOKENS) return 0;
    for (uint32_t i = 0; i < g->ops_n; i++)      /* the best token is the next input */
        if (g->ops[i].code == SG_OP_EMBED && g->ops[i].u.embed.table.rows < g->vocab) return 0;
    return 1;
}

/* --- issuing --- */

static segue_status compute(struct mlx_pass *p, struct mlx_issued *i, segue_error *err)
{
    SG_TRY(mlx_pass_begin(p, err));
    SG_TRY(mlx_pass_compiled(p, err));
    struct mlx_best best = mlx_best_of(p);
    i->logits = mxc_keep(p->t, best.logits);
    i->token = mxc_keep(p->t, best.token);
    i->flag = mxc_keep(p->t, best.flag);
    p->states[p->states_n++] = best.token;
    p->states[p->states_n++] = best.flag;
    (void)mxc_issue(p->t, p->states, p->states_n);
    return mlx_status(p->unit, "run", err);
}

/* token: uint32 [1], or NULL: that of the span. fixed NULL: the recurrent slots of the state; else [slots_n]. The tape keeps
 * nothing that the next step overwrites. */
static segue_status issue(struct mlx_pass *p, const struct sg_span *span, const struct mxc_held *token,
                          struct mxc_held *const *fixed, struct mlx_issued *i, segue_error *err)
{
    const struct sg_span *before = p->spans;
    p->spans = span;
    p->token = token;
    p->fixed = fixed;
    p->fixed_next = i->fixed;
    segue_status status = compute(p, i, err);
    p->spans = before;
    p->token = NULL;
    p->fixed = NULL;
    p->fixed_next = NULL;
    mxc_tape_clear(p->t);
    p->unit->steps_issued++;
    i->first = span->first;
    i->version = span->state->version;
    i->program = p->program->number;
    i->adapters = mlx_adapters_of(span);
    return status;
}

/* 1: the issued step is the one that the run asks for. */
static int is_expected(const struct sg_program *program, const struct sg_span *span, const struct mlx_issued *i)
{
    return i->token && i->first == span->first && i->version == span->state->version && i->program == program->number &&
           i->input == span->tokens[0] && i->adapters == mlx_adapters_of(span);
}

static segue_status read_step(struct mlx_pass *p, const struct mlx_issued *i, struct mlx_choice *best, segue_error *err)
{
    float flag = 0;
    (void)mxc_read(p->t, mxc_use(p->t, i->token), &best->token, sizeof best->token);
    (void)mxc_read_number(p->t, mxc_use(p->t, i->flag), &flag);
    best->finite = isfinite(flag);
    return mlx_status(p->unit, "run", err);
}

segue_status mlx_step_run(struct mlx_pass *p, const struct sg_span *span, int ahead, struct mlx_choice *best, segue_error *err)
{
    struct sg_state *st = span->state;
    struct mlx_issued *now = &st->issued[0], *next = &st->issued[1];
    struct sg_span after = *span;
    struct mlx_issued taken = *next;
    after.first++;
    *next = *now;                    /* holds no arrays: they were released by the run */
    *now = taken;
    if (!is_expected(p->program, span, now)) {
        mlx_issued_clear(st, now);
        SG_TRY(issue(p, span, NULL, NULL, now, err));
    }
    if (ahead) SG_TRY(issue(p, &after, now->token, now->fixed, next, err));
    SG_TRY(read_step(p, now, best, err));
    next->input = best->token;
    for (uint32_t k = 0; k < st->core.slots_n; k++) {
        struct mlx_slot *slot = mlx_slot_at(st, k);
        if (sg_slot_grows(&slot->core.slot)) continue;
        mxc_release(slot->next);
        slot->next = now->fixed[k];
        now->fixed[k] = NULL;
    }
    return SEGUE_OK;
}

mxc_ref mlx_step_logits(const struct mlx_pass *p, const struct sg_span *span)
{
    return mxc_use(p->t, span->state->issued[0].logits);
}
