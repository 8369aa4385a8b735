/* anechoose.c: the choice of tokens with option head=engine. Greedy tokens are chosen by the engine (anehead.c): the last part
 * leaves its row in a surface, which the head's program reads, and the host reads a few numbers. What the engine cannot decide is
 * decided from fp32 logits of the host: samplers that change logits, and rows whose best token a sampler excludes. Without
 * the option the unit chooses no tokens. See anerun.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ane/anerun.h"
#include "unit/generate.h"
#include "unit/mask_gate.h"

static int is_zero(float x) { return !(x < 0 || x > 0); }

/* 1: the sampler takes the highest logit among the tokens that it does not exclude. */
static int is_greedy(const struct sg_sampler *s)
{
    const segue_sampling *p = &s->p;
    int repeats = p->repeat_penalty > 0 && (p->repeat_penalty < 1 || p->repeat_penalty > 1);
    return p->temperature <= 0 && !p->bias_n && !repeats && is_zero(p->presence_penalty) && is_zero(p->frequency_penalty) &&
           is_zero(p->dry_multiplier) && !p->logprobs;
}

/* 1: the sampler excludes the token, so that the highest logit does not decide. */
static int is_excluded(const struct sg_sampler *s, int32_t token)
{
    uint32_t t = (uint32_t)token;
    if (s->limit && t >= s->limit) return 1;
    sg_sampler_wait(s);
    if (s->allowed && (t >= s->allowed_n || !(s->allowed[t / 32] >> t % 32 & 1))) return 1;
    for (size_t i = 0; s->p.ignore_stops && i < s->stops_n; i++)
        if (s->stops[i] == token) return 1;
    return 0;
}

/* 1: an adapter of the span changes the head; its program has no adapters. */
static int adapts_head(const struct sg_program *p, const struct sg_span *span)
{
    for (uint32_t i = 0; i < span->loras_n; i++)
        if (sg_lora_find(span->loras[i], p->base.graph->tensors[p->head.linear->u.linear.weight.tensor])) return 1;
    return 0;
}

int ane_chooses_on_engine(const struct sg_run *run)
{
    const struct sg_program *p = run->program;
    if (!p->head.linear || p->on_helper || run->all_rows || run->common.result.logits || run->common.batch.outputs_n) return 0;
    for (uint32_t s = 0; s < run->common.batch.spans_n; s++) {
        const struct sg_span *span = &run->common.spans[s];
        if (span->wanted_n && (!span->sampler || !is_greedy(span->sampler) || adapts_head(p, span))) return 0;
    }
    return 1;
}

/* --- logits for a later question --- */

/* The logits of the last run belong to the state's present length. */
static segue_status keep_logits(struct sg_run *run, struct sg_state *state, uint64_t tokens, const float *logits)
{
    const uint32_t vocab = run->host.g->vocab;
    if (!state->logits) state->logits = sg_alloc(vocab * sizeof *state->logits);
    if (!state->logits) return sg_no_memory("logits of a state", vocab * sizeof *state->logits, run->host.err);
    memcpy(state->logits, logits, vocab * sizeof *logits);
    state->logits_at = tokens;
    return SEGUE_OK;
}

/* Row r of the logits that ane_run_behind computed. */
static float *logits_row(const struct sg_run *run, uint32_t r)
{
    const struct sg_graph *g = run->host.g;
    return run->host.values[g->outputs[sg_graph_output(g, "logits")].value] + (size_t)r * g->vocab;
}

/* Logits of the row that is still in surface x[row_turn], by a separate run. */
static segue_status logits_of_surface(struct sg_program *p, float *out, segue_error *err)
{
    static const uint32_t first;
    struct sg_span span = {.rows = 1, .wanted = &first, .wanted_n = 1};
    const struct sg_ane_shape shape = {.rows = 1, .columns = p->base.unit->columns};
    struct sg_run run = {.program = p, .rows_n = {1, 1}};
    run.common.spans = &span;
    run.common.batch.spans_n = 1;
    run.host = (struct ane_host){.g = p->base.graph, .pool = p->base.unit->pool, .err = err};
    run.host.values = sg_alloc(p->base.graph->values_n * sizeof *run.host.values);
    if (!run.host.values) return sg_no_memory("logits", 0, err);
    segue_status status = ane_run_row_get(&run, 0, 0, &shape, p->x[p->row_turn]);
    if (status == SEGUE_OK) status = ane_run_behind(&run, 0);
    if (status == SEGUE_OK) memcpy(out, logits_row(&run, 0), p->base.graph->vocab * sizeof *out);
    for (uint32_t i = 0; i < p->base.graph->values_n; i++) sg_free(run.host.values[i]);
    sg_free(run.host.values);
    return status;
}

segue_status ane_state_logits(struct sg_state *s, float *out, segue_error *err)
{
    const struct sg_unit *u = s->core.base.unit;
    for (struct sg_program *p = u->programs; p; p = p->next) {
        if (s->logits && s->logits_at == s->core.tokens) {
            memcpy(out, s->logits, p->base.graph->vocab * sizeof *out);
            return SEGUE_OK;
        }
        if (p->row_id && p->row_id == s->row_id && p->row_at == s->core.tokens) return logits_of_surface(p, out, err);
    }
    return sg_fail(err, SEGUE_EUNSUPPORTED, "get logits: ane: the engine chose the token; compute the last one again");
}

/* --- choice --- */

/* From the logits of one row, which the host computes. tokens: length of the sequence that ends with the row. */
static segue_status choose_on_host(struct sg_run *run, uint32_t s, uint64_t tokens)
{
    const struct sg_span *span = &run->common.spans[s];
    SG_TRY(ane_run_behind(run, (int)s));
    SG_TRY(keep_logits(run, span->state, tokens, logits_row(run, 0)));
    SG_TRY(sg_thread_run_chooser(&run->common, run->host.g->vocab, run->host.err));
    return sg_choose_for_span(run->common.chooser, span->sampler, span, s, logits_row(run, 0), NULL, &run->common.result,
                              &run->token, run->host.err);
}

/* From the row in column 0 of x[turn]. */
static segue_status choose_on_engine(struct sg_run *run, uint32_t s, uint64_t tokens, int turn)
{
    struct sg_program *p = run->program;
    const int32_t *token = &run->token;
    SG_TRY(ane_head_evaluate(p, turn, &run->token, run->host.err));
    run->dispatches++;
    run->layout_ops += p->head_layout_ops;
    run->host_bytes += SG_ANE_CHOICE * sizeof(uint16_t);
    SG_TRY(ane_losses_check(p->base.unit, &run->overflows, &run->underflows, run->host.err));
    p->row_id = run->common.spans[s].state->row_id = ++p->base.unit->row_ids;
    p->row_at = tokens;
    p->row_turn = turn;
    if (run->common.result.tokens) run->common.result.tokens[s] = *token;
    if (run->common.result.logprobs_n) run->common.result.logprobs_n[s] = 0;
    return SEGUE_OK;
}

/* A dispatch of several rows has the row in some column, from where it is moved to column 0. The host reads a row only where it
 * needs it. */
segue_status ane_choose_row(struct sg_run *run, uint32_t s, uint32_t at, uint32_t column, const struct sg_ane_shape *shape,
                            int turn)
{
    struct sg_program *p = run->program;
    const struct sg_span *span = &run->common.spans[s];
    uint64_t tokens = span->state->core.tokens + column + 1;
    int here = p->on_helper || shape->rows > 1; /* the row is on the host */
    if (here) SG_TRY(ane_run_row_get(run, at, column, shape, p->x[turn]));
    if (p->on_helper) return choose_on_host(run, s, tokens);
    if (here) SG_TRY(ane_run_row_put(run, at, p->x[turn]));
    segue_status status = choose_on_engine(run, s, tokens, turn);
    int wide = status == SEGUE_EUNSUPPORTED && p->base.unit->losses == ANE_LOSSES_FP32;
    if (!wide && (status != SEGUE_OK || !is_excluded(span->sampler, run->token))) return status;
    if (!here) SG_TRY(ane_run_row_get(run, at, column, shape, p->x[turn]));
    return choose_on_host(run, s, tokens);
}

segue_status ane_choose_from_logits(struct sg_run *run)
{
    for (uint32_t s = 0, rows = 0; run->program->head.linear && s < run->common.batch.spans_n; s++) {
        const struct sg_span *span = &run->common.spans[s];
        rows += span->wanted_n;
        if (!span->wanted_n) continue;
        float *logits = logits_row(run, rows - 1);
        if (!run->common.result.logits && span->wanted[span->wanted_n - 1] == span->rows - 1)
            SG_TRY(keep_logits(run, span->state, span->state->core.tokens, logits));
        if (!span->sampler) continue;
        SG_TRY(sg_thread_run_chooser(&run->common, run->host.g->vocab, run->host.err));
        SG_TRY(sg_choose_for_span(run->common.chooser, span->sampler, span, s, logits, NULL, &run->common.result, &run->token,
                                  run->host.err));
    }
    return SEGUE_OK;
}
