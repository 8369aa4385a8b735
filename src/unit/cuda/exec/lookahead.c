/* lookahead.c: decoding one token per run with the next step issued in advance. A run of one row per sequence leaves
 * the following step running on the token just chosen. That step writes fixed slots to a second block (fixed_alt), and its K
 * and V rows beyond those held, so it is discarded without effect when the next run asks for something else.
 * Where a sampler has a mask of allowed tokens, the step in advance is without its choice: the mask depends on the token before,
 * so the host makes it while that step computes, and the choice follows in the next run.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/exec/choose.h"
#include "unit/cuda/exec/exec_pass.h"

enum { HISTORY_GROWTH = 1024 }; /* tokens after which the histories of samplers are written again */

/* 1: the run has one row per sequence, so the next run will probably continue with the chosen tokens. Fills the parts of the plan
 * and how tokens are chosen: greedily if all rows are, else by sampling. */
int cu_can_look_ahead(struct sg_run *run, struct cu_pass_plan *plan)
{
    const struct sg_batch *b = &run->base.batch;
    if (!run->program->base.unit->graphs || !run->program->lookahead_ok || b->spans_n > CK_SPANS || cu_run_has_loras(run) ||
        b->outputs_n || (b->spans_n > 1 && run->base.result.logits))
        return 0;
    for (uint32_t i = 0; i < b->spans_n; i++) {
        const struct sg_span *s = &run->base.spans[i];
        if (s->rows != 1 || s->steps > 1 || s->wanted_n != 1 || !s->sampler ||
            s->state->core.storage != run->base.spans[0].state->core.storage)
            return 0;
        plan->parts[plan->parts_n++] = (struct cu_span_part){i, 0, 1};
    }
    if (!cu_all_greedy(run, plan, &plan->banned)) {
        plan->banned = (struct ck_banned){0};
        plan->sampled = plan->parts_n;
    }
    for (uint32_t i = 0; i < plan->sampled; i++) plan->logprobs += run->base.spans[i].sampler->p.logprobs != 0;
    /* The second block of fixed slots is allocated before anything is issued. */
    for (uint32_t i = 0; i < b->spans_n; i++)
        if (cu_state_alloc_alt(run->base.spans[i].state, NULL) != SEGUE_OK) return 0; /* no memory: without lookahead */
    return 1;
}

/* The rows to choose for: one per span. Returns whether one of them has a mask. */
static int sampled_rows(const struct sg_run *run, struct cu_sampled_row rows[CK_SPANS])
{
    int masked = 0;
    for (uint32_t i = 0; i < run->base.batch.spans_n; i++) {
        rows[i] = (struct cu_sampled_row){run->base.spans[i].sampler, i, i};
        masked |= rows[i].sampler->gate || rows[i].sampler->allowed;
    }
    return masked;
}

/* 1: the lane's lookahead step computes exactly this run: same states, unchanged since, at the next position with the chosen
 * token, and the same way to choose. The histories of samplers continue with the states. A late choice is not part of it. */
static int is_expected(const struct sg_run *run, const struct cu_pass_plan *plan)
{
    const struct cu_lookahead *a = &run->lane->ahead;
    struct cu_sampled_row rows[CK_SPANS];
    if (!a->active || a->spans_n != run->base.batch.spans_n || a->sampled != plan->sampled || a->late != (plan->late != NULL) ||
        memcmp(&a->banned, &plan->banned, sizeof plan->banned))
        return 0;
    sampled_rows(run, rows);
    if (plan->sampled && !plan->late && !cu_samplers_equal(run, rows, plan->sampled)) return 0;
    for (uint32_t i = 0; i < a->spans_n; i++) {
        const struct sg_span *s = &run->base.spans[i];
        if (a->spans[i].state != s->state->id || a->spans[i].version != s->state->version || a->spans[i].first != s->first ||
            a->spans[i].token != s->tokens[0])
            return 0;
    }
    return 1;
}

/* The highest position of the run's rows. */
static uint64_t max_position(const struct sg_run *run)
{
    uint64_t max = 0;
    for (uint32_t n = 0; n < run->base.batch.spans_n; n++)
        if (run->base.spans[n].first > max) max = run->base.spans[n].first;
    return max;
}

/* 1: the next row of each sequence fits into every K and V slot and into the table of learned positions. Lookahead does not grow
 * slots, nor histories, which a late choice brings along. */
static int has_next_position(const struct sg_run *run, const struct cu_pass_plan *plan, uint64_t furthest)
{
    if (plan->sampled && !plan->late && (!run->lane->sampling.seen_n || run->lane->sampling.growth < 2)) return 0;

    const struct sg_graph *g = run->program->base.graph;
    for (uint32_t n = 0; n < run->base.batch.spans_n; n++) {
        const struct sg_span *s = &run->base.spans[n];
        for (uint32_t k = 0; k < s->state->core.slots_n; k++) {
            const struct cu_slot *slot = cu_slot_at(s->state, k);
            if (slot->core.row_bytes && s->first + 2 > slot->capacity) return 0;
        }
    }
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_EMBED && g->ops[i].u.embed.positions.tensor >= 0 &&
            furthest + 2 > g->ops[i].u.embed.positions.rows)
            return 0;
    return 1;
}

/* Issues the pass with these arguments, which are on the GPU already, for rows up to position `pos`. */
static segue_status issue_step(struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p, uint32_t args_index,
                               uint64_t pos)
{
    p->args_index = args_index;
    p->best_done = 0;
    if (plan->sampled && !plan->late) p->lane->sampling.growth--;
    p->values = &p->lane->values_few[args_index];
    p->chunks = cu_chunks_for(pos + 1);
    SG_TRY(cu_pass_issue(run, plan, p));
    return cu_run_check(run, run->program->base.unit->d.event_record(p->lane->done[args_index], p->lane->stream));
}

/* The logits that the caller requested, in a separate stream, so that the copy overlaps with the next step. */
static segue_status copy_step_logits(struct sg_run *run, struct cu_pass *p, uint32_t args_index)
{
    const struct sg_graph *g = run->program->base.graph;
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = p->lane;
    struct sg_operand whole = {.value = g->outputs[sg_graph_output(g, "logits")].value, .width = g->vocab};
    float *to;
    if (!run->base.result.logits) return SEGUE_OK;
    SG_TRY(cu_pass_logits_buffer(run, &to));
    p->args_index = args_index;
    p->values = &l->values_few[args_index];
    SG_TRY(cu_run_check(run, u->d.stream_wait_event(l->logits_stream, l->done[args_index], 0)));
    SG_TRY(cu_run_check(run, u->d.copy_dtoh(to + (size_t)args_index * g->vocab, (cu_ptr)(uintptr_t)cu_view_of(p, &whole).p,
                                            g->vocab * sizeof(float), l->logits_stream)));
    return cu_run_check(run, u->d.event_record(l->logits_copied[args_index], l->logits_stream));
}

/* The block that the step has written becomes the contents; the next step writes the other one. */
static void swap_fixed(struct sg_state *s)
{
    cu_ptr before = s->fixed;
    s->fixed = s->fixed_alt;
    s->fixed_alt = before;
    cu_state_set_fixed(s);
}

/* What the step with these arguments will compute, for is_expected of the next run. next 0: none was issued. */
static void record_lookahead(struct sg_run *run, const struct cu_pass_plan *plan, uint32_t args_index, int next)
{
    struct cu_lookahead *a = &run->lane->ahead;
    *a = (struct cu_lookahead){.active = next,
                               .args_index = args_index,
                               .spans_n = plan->parts_n,
                               .sampled = plan->sampled,
                               .late = plan->late != NULL,
                               .banned = plan->banned};
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        const struct sg_span *s = &run->base.spans[i];
        a->spans[i].state = s->state->id;
        a->spans[i].version = s->state->version;
        a->spans[i].first = s->first + 1;
        a->spans[i].token = run->lane->host_chosen[!args_index * CU_DECODE_ROWS + i];
    }
}

/* No lookahead step is usable: sends both args blocks and issues this step with block 0. Block 1 is for the next step; the choice
 * kernel fills in its token. An unused lookahead step must end first, since it reads the blocks. */
static segue_status start_unexpected(struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p,
                                     const struct sg_span **spans, uint64_t pos)
{
    if (run->lane->ahead.active) SG_TRY(cu_run_check(run, run->program->base.unit->d.stream_sync(run->lane->stream)));
    for (uint32_t args_index = 0; args_index < 2; args_index++) {
        cu_pass_begin(run, plan, p, spans);
        p->args_index = args_index;
        SG_TRY(cu_pass_fill_head(run, plan, p));
        SG_TRY(cu_pass_send_head(run, p));
    }
    struct cu_sampled_row rows[CK_SPANS];
    sampled_rows(run, rows);
    if (plan->sampled && !plan->late)
        SG_TRY(cu_samplers_upload(run, rows, plan->sampled, HISTORY_GROWTH, run->lane->stream));
    return issue_step(run, plan, p, 0, pos);
}

/* The choice of a step that was issued without it. No choice is in progress, so the settings can be copied while the step
 * computes. */
static segue_status choose_step(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, uint32_t args_index)
{
    struct cu_lane *l = run->lane;
    p->args_index = args_index;
    p->values = &l->values_few[args_index];
    SG_TRY(cu_pass_choose_late(run, plan, p, l->logits_stream));
    return cu_run_check(run, run->program->base.unit->d.event_record(l->done[args_index], l->stream));
}

/* The step with arguments q is complete: returns its tokens and commits its rows. */
static segue_status finish_step(struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p, uint32_t q)
{
    const int32_t *chosen = run->lane->host_chosen + (size_t)q * CU_DECODE_ROWS;
    struct sg_result *r = &run->base.result;
    struct cu_sampled_row rows[CK_SPANS];
    int32_t token;
    int found = 1;
    sampled_rows(run, rows);
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        swap_fixed(run->base.spans[i].state);
        found &= chosen[i] >= 0;
        if (r->tokens) r->tokens[i] = chosen[i];
        if (r->logprobs_n) r->logprobs_n[i] = 0;
    }
    p->args_index = q;
    p->values = &run->lane->values_few[q];
    cu_pass_keep_logits(run, plan, p);
    cu_pass_commit(run, plan);
    for (uint32_t i = 0; i < plan->sampled; i++) SG_TRY(cu_sampled_result(run, &rows[i], q, i, &token));
    return found ? SEGUE_OK : cu_no_finite_logit(run);
}

/* Waits for this step, which may have been issued by the previous run, after issuing the following one. That one reads what this
 * one writes, and writes to the other block of fixed slots, so it can be discarded. The candidate filter is used for one sequence
 * without logits. gpu_pending is set before the launch, so that a state freed after an error waits. */
segue_status cu_run_lookahead(struct sg_run *run, struct cu_pass_plan *plan)
{
    const struct sg_span *spans[CK_SPANS];
    struct cu_sampled_row rows[CK_SPANS];
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = run->lane;
    struct cu_pass p;
    uint64_t furthest = max_position(run);
    uint32_t q = 0;
    plan->best = 1;
    plan->advance = 2;
    plan->screen = plan->parts_n == 1 && !run->base.result.logits && !plan->sampled;
    plan->late = plan->sampled && sampled_rows(run, rows) ? rows : NULL;
    if (cu_run_stopped(run)) return sg_fail(&run->base.error, SEGUE_ECANCELED, "run: cuda: canceled by the caller");
    int expected = is_expected(run, plan);
    SG_TRY(cu_pass_select_stream(run));
    SG_TRY(cu_pass_save_logits(run));
    cu_pass_begin(run, plan, &p, spans);
    cu_pass_one_row_counts(&p, plan->parts_n);
    /* q: args block of this step; the lookahead step uses the other one. */
    if (expected)
        q = l->ahead.args_index;
    else
        SG_TRY(start_unexpected(run, plan, &p, spans, furthest));
    l->ahead.active = 0;
    if (plan->late) SG_TRY(choose_step(run, plan, &p, q));
    SG_TRY(copy_step_logits(run, &p, q));
    /* After the upload, which says how many tokens the histories can take. */
    int next = has_next_position(run, plan, furthest);
    for (uint32_t i = 0; i < plan->parts_n; i++) run->base.spans[i].state->gpu_pending |= next;
    if (next) SG_TRY(issue_step(run, plan, &p, !q, furthest + 1));
    SG_TRY(cu_run_check(run, u->d.event_sync(run->base.result.logits ? l->logits_copied[q] : l->done[q])));
    if (run->base.result.logits)
        memcpy(run->base.result.logits, l->host_logits + (size_t)q * run->program->base.graph->vocab,
               run->program->base.graph->vocab * sizeof(float));
    SG_TRY(finish_step(run, plan, &p, q));
    record_lookahead(run, plan, !q, next);
    return SEGUE_OK;
}
