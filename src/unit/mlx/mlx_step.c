/* mlx_step.c: decode steps that are issued ahead: while a step is computed, the next one of the same sequences is issued for its
 * best tokens. It changes nothing that a sequence has: K and V rows are beyond its end, recurrent slots are new arrays. So it is
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

/* Room for spans_n sequences; the step holds no arrays. */
static segue_status reserve(struct mlx_issued *i, uint32_t spans_n, uint32_t slots_n, segue_error *err)
{
    size_t n = (size_t)spans_n * slots_n + 1;
    i->spans_n = spans_n;
    if (spans_n <= i->spans_cap) return SEGUE_OK;
    mlx_issued_free(i);
    i->fixed = sg_alloc(n * sizeof *i->fixed);
    i->expected = sg_alloc(spans_n * sizeof *i->expected);
    if (!i->fixed || !i->expected) return sg_no_memory("a run of mlx", n * sizeof *i->fixed, err);
    i->spans_n = i->spans_cap = spans_n;
    return SEGUE_OK;
}

/* after NULL: the step of the spans, with their tokens and the recurrent slots of their states; else the step after that one. The
 * tape keeps nothing that the next step overwrites. */
static segue_status issue(struct mlx_pass *p, const struct mlx_issued *after, struct mlx_issued *i, segue_error *err)
{
    struct sg_span spans[MLX_STEP_SPANS];
    const struct sg_span *before = p->spans;
    SG_TRY(reserve(i, p->spans_n, p->graph->slots_n, err));
    for (uint32_t s = 0; s < p->spans_n; s++) {
        spans[s] = p->spans[s];
        spans[s].first += after != NULL;
    }
    p->spans = spans;
    p->token = after ? after->token : NULL;
    p->fixed = after ? after->fixed : NULL;
    p->fixed_next = i->fixed;
    segue_status status = compute(p, i, err);
    p->spans = before;
    p->token = NULL;
    p->fixed = NULL;
    p->fixed_next = NULL;
    mxc_tape_clear(p->t);
    p->unit->steps_issued++;
    i->program = p->program->number;
    for (uint32_t s = 0; s < p->spans_n; s++)
        i->expected[s] = (struct mlx_expected){.first = spans[s].first, .state = spans[s].state->number,
                                               .version = spans[s].state->version, .adapters = mlx_adapters_of(&spans[s])};
    return status;
}

/* --- using --- */

/* 1: the issued step is the one that the run asks for. */
static int is_expected(const struct mlx_pass *p, const struct mlx_issued *i)
{
    int same = i->token && i->program == p->program->number && i->spans_n == p->spans_n;
    for (uint32_t s = 0; same && s < p->spans_n; s++) {
        const struct sg_span *span = &p->spans[s];
        const struct mlx_expected *e = &i->expected[s];
        same = e->state == span->state->number && e->version == span->state->version && e->first == span->first &&
               e->input == span->tokens[0] && e->adapters == mlx_adapters_of(span);
    }
    return same;
}

static segue_status read_step(struct mlx_pass *p, const struct mlx_issued *i, int32_t *tokens, int *finite, segue_error *err)
{
    float flag = 0;
    (void)mxc_read(p->t, mxc_use(p->t, i->token), tokens, p->spans_n * sizeof *tokens);
    (void)mxc_read_number(p->t, mxc_use(p->t, i->flag), &flag);
    *finite = isfinite(flag);
    return mlx_status(p->unit, "run", err);
}

segue_status mlx_step_run(struct mlx_pass *p, int ahead, int32_t *tokens, int *finite, segue_error *err)
{
    struct sg_state *owner = p->spans[0].state;
    struct mlx_issued *now = &owner->issued[0], *next = &owner->issued[1], taken = *next;
    uint32_t slots_n = p->graph->slots_n;
    *next = *now;                    /* holds no arrays: they were released by the run */
    *now = taken;
    if (!is_expected(p, now)) {
        mlx_issued_clear(owner, now);
        SG_TRY(issue(p, NULL, now, err));
    }
    if (ahead) SG_TRY(issue(p, now, next, err));
    SG_TRY(read_step(p, now, tokens, finite, err));
    for (uint32_t s = 0; ahead && s < p->spans_n; s++) next->expected[s].input = tokens[s];
    for (uint32_t k = 0; k < p->spans_n * slots_n; k++) {
        struct mlx_slot *slot = mlx_slot_at(p->spans[k / slots_n].state, k % slots_n);
        if (sg_slot_grows(&slot->core.slot)) continue;
        mxc_release(slot->next);
        slot->next = now->fixed[k];
        now->fixed[k] = NULL;
    }
    return SEGUE_OK;
}

mxc_ref mlx_step_logits(const struct mlx_pass *p) { return mxc_use(p->t, p->spans[0].state->issued[0].logits); }
