/* proc_run.c: runs. A batch is one request; a run of several steps is one request per step. Tokens are chosen in this
 * process, from logits that are first copied out of shared memory, because the child could change them meanwhile. Buffers
 * are kept between runs and grow to the largest batch. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "unit/proc/proc.h"

enum { ALIGN = 64 };

/* --- buffers --- */

/* Grows an array; list is the address of a pointer to any type. */
static segue_status grow(void *list, size_t n, size_t size, segue_error *err)
{
    void *old, *wider;
    memcpy(&old, list, sizeof old);
    wider = sg_realloc(old, n * size);
    if (!wider) return sg_no_memory("run of a process", n * size, err);
    memcpy(list, &wider, sizeof wider);
    return SEGUE_OK;
}

/* Makes the buffers of the run large enough for the batch. */
static segue_status run_buffers(struct sg_run *run, const struct sg_batch *b, segue_error *err)
{
    if (b->spans_n > run->spans_cap) {
        SG_TRY(grow(&run->spans, b->spans_n, sizeof *run->spans, err));
        SG_TRY(grow(&run->rows_done, b->spans_n, sizeof *run->rows_done, err));
        run->spans_cap = b->spans_n;
    }
    if (b->outputs_n > run->values_cap) {
        SG_TRY(grow(&run->values_at, b->outputs_n, sizeof *run->values_at, err));
        run->values_cap = b->outputs_n;
    }
    /* Several steps keep a history of tokens for the penalties of the sampler. */
    const struct sg_span *s = &b->spans[0];
    size_t history = s->steps > 1 ? s->sampler->history_n + s->steps : 0;
    if (history > run->history_cap) {
        SG_TRY(grow(&run->history, history, sizeof *run->history, err));
        run->history_cap = history;
    }
    return SEGUE_OK;
}

/* One chooser is kept per unit, for the vocabulary used last. */
static segue_status chooser_for(struct sg_unit *u, uint32_t vocab, segue_error *err)
{
    if (u->chooser && u->chooser_vocab == vocab) return SEGUE_OK;
    sg_chooser_free(u->chooser);
    u->chooser = NULL;
    SG_TRY(grow(&u->row, vocab, sizeof *u->row, err));
    SG_TRY(sg_chooser_new(&u->chooser, vocab, err));
    u->chooser_vocab = vocab;
    return SEGUE_OK;
}

/* --- validation of what this side reads; the unit in the child checks the rest --- */

/* Pointers, wanted rows, sampler and steps of a span; its state must be in the current child. */
static segue_status check_span(const struct sg_program *p, const struct sg_batch *b, uint32_t i, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    const struct sg_span *s = &b->spans[i];
    struct sg_unit *u = p->base.unit;
    int tokens = g->values[g->inputs[0].value].kind == SG_VALUE_TOKENS;
    if (!s->rows || (tokens ? !s->tokens : !s->values) || (!s->state && g->slots_n) || (s->wanted_n && !s->wanted) ||
        (s->state && s->state->base.unit != u))
        return sg_fail(err, SEGUE_EARG, "run: %s: span %u has no tokens, no input or no state of this unit",
                       u->desc.info.spec, i);
    for (uint32_t k = 0; k < s->wanted_n; k++)
        if (s->wanted[k] >= s->rows || (k && s->wanted[k] <= s->wanted[k - 1]))
            return sg_fail(err, SEGUE_EARG, "run: %s: span %u: wanted row %u of %u; use ascending rows of the span",
                           u->desc.info.spec, i, s->wanted[k], s->rows);
    if (s->sampler && (!s->wanted_n || !g->vocab))
        return sg_fail(err, SEGUE_EARG, "run: %s: span %u: a sampler without logits; select a row of a graph that ends in logits",
                       u->desc.info.spec, i);
    if (s->steps > 1 && (b->spans_n != 1 || !s->sampler || !s->ring || s->ring->cap < s->steps || !tokens ||
                         s->wanted[s->wanted_n - 1] != s->rows - 1))
        return sg_fail(err, SEGUE_EARG, "run: %s: %u steps need one span, a sampler, a ring for all tokens and the last row",
                       u->desc.info.spec, s->steps);
    return s->state ? proc_state_here(u, s->state, err) : SEGUE_OK;
}

/* All spans, the number of rows and the requested outputs. EARG, ELIMIT. */
static segue_status check_batch(const struct sg_program *p, const struct sg_batch *b, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    uint64_t rows = 0;
    if (!b->spans_n || b->spans_n > SG_WIRE_SPANS)
        return sg_fail(err, SEGUE_EARG, "run: proc: %u spans; 1 to %d are supported", b->spans_n, SG_WIRE_SPANS);
    for (uint32_t i = 0; i < b->spans_n; i++) {
        SG_TRY(check_span(p, b, i, err));
        rows += b->spans[i].rows;
    }
    if (rows > SG_WIRE_ROWS)
        return sg_fail(err, SEGUE_ELIMIT, "run: proc: %llu tokens in one run, the limit is %d; split them",
                       (unsigned long long)rows, SG_WIRE_ROWS);
    for (uint32_t i = 0; i < b->outputs_n; i++)
        if (b->outputs[i] < 0 || (uint32_t)b->outputs[i] >= g->outputs_n)
            return sg_fail(err, SEGUE_EARG, "run: proc: output %d of %u does not exist", b->outputs[i], g->outputs_n);
    return SEGUE_OK;
}

/* --- the request of one step --- */

/* Reserves rows x width floats of the area, in which *used bytes are reserved already; returns the offset. */
static uint64_t reserve(uint64_t *used, uint64_t rows, uint64_t width)
{
    uint64_t at = *used;
    *used += (rows * width * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* Offsets of input rows, logits and outputs in the shared area, which grows when necessary. */
static segue_status layout_area(struct sg_run *run, uint64_t *input_at, segue_error *err)
{
    const struct sg_graph *g = run->program->base.graph;
    const struct sg_value *in = &g->values[g->inputs[0].value];
    uint64_t used = 0;
    int choosing = 0;
    run->rows = run->wanted = 0;
    for (uint32_t i = 0; i < run->batch.spans_n; i++) {
        run->rows += run->spans[i].rows;
        run->wanted += run->spans[i].wanted_n;
        choosing |= run->spans[i].sampler != NULL;
    }
    /* Tokens are part of the request; input values, logits and outputs are in shared memory. */
    *input_at = in->kind == SG_VALUE_ROWS ? reserve(&used, run->rows, in->width) : 0;
    run->logits_at = UINT64_MAX;
    if (g->vocab && run->wanted && (run->result->logits || choosing)) run->logits_at = reserve(&used, run->wanted, g->vocab);
    for (uint32_t i = 0; i < run->batch.outputs_n; i++) {
        const struct sg_value *v = &g->values[g->outputs[run->batch.outputs[i]].value];
        run->values_at[i] = reserve(&used, v->wanted ? run->wanted : run->rows, v->width);
    }
    return proc_area(run->program->base.unit, PROC_FIRST, (size_t)used + ALIGN, err);
}

/* Input rows of the spans follow each other, each span at a multiple of ALIGN bytes. */
static segue_status spans_put(struct sg_run *run, uint64_t input_at, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    const struct sg_graph *g = run->program->base.graph;
    struct sg_buf *b = &u->out[PROC_FIRST];
    sg_put_u32(b, run->batch.spans_n);
    for (uint32_t i = 0; i < run->batch.spans_n; i++) {
        const struct sg_span *s = &run->spans[i];
        sg_put_u32(b, s->state ? s->state->id : UINT32_MAX);
        sg_put_u32(b, s->rows);
        sg_put_u64(b, s->first);
        if (g->values[g->inputs[0].value].kind == SG_VALUE_TOKENS) {
            sg_buf_add(b, s->tokens, s->rows * sizeof *s->tokens);
        } else {
            uint64_t width = g->values[g->inputs[0].value].width;
            sg_put_u64(b, input_at);
            memcpy(u->child.areas[PROC_FIRST].data + input_at, s->values, s->rows * width * sizeof *s->values);
            reserve(&input_at, s->rows, width);
        }
        sg_put_u32(b, s->wanted_n);
        sg_buf_add(b, s->wanted, s->wanted_n * sizeof *s->wanted);
        sg_put_u32(b, s->loras_n);
        for (uint32_t k = 0; k < s->loras_n; k++) {
            uint32_t number = 0;
            SG_TRY(proc_lora_number(u, run->program, s->loras[k], &number, err));
            sg_put_u32(b, number);
        }
    }
    return SEGUE_OK;
}

/* Writes and sends the request of one step. announce 1: the child sends SG_WIRE_ACCEPTED before the reply. The cancel flag of the
 * page is reset to the caller's value first. */
static segue_status send(struct sg_run *run, uint32_t announce, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    uint64_t input_at;
    uint32_t number;
    /* Adapters are sent by separate requests, so before this one is written. */
    for (uint32_t i = 0; i < run->batch.spans_n; i++)
        for (uint32_t k = 0; k < run->spans[i].loras_n; k++)
            SG_TRY(proc_lora_number(u, run->program, run->spans[i].loras[k], &number, err));
    SG_TRY(layout_area(run, &input_at, err));
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    sg_put_u32(b, announce);
    sg_put_u32(b, run->program->id);
    sg_put_u32(b, run->batch.priority);
    sg_put_u32(b, !run->batch.inline_hint);
    for (int i = 0; i < SEGUE_PLAN_SHAPES; i++) sg_put_u32(b, run->batch.shapes[i]);
    sg_put_u64(b, run->logits_at);
    sg_put_u32(b, run->batch.outputs_n);
    for (uint32_t i = 0; i < run->batch.outputs_n; i++) {
        sg_put_u32(b, (uint32_t)run->batch.outputs[i]);
        sg_put_u64(b, run->values_at[i]);
    }
    SG_TRY(spans_put(run, input_at, err));
    atomic_store(&((struct sg_wire_page *)(void *)u->child.page.data)->cancel,
                 run->batch.cancel ? atomic_load(run->batch.cancel) : 0);
    run->start_ns = sg_now_ns();
    run->limit_ns = proc_time_limit(u, run->rows);
    atomic_store(&u->run_rows, run->rows);
    return proc_send(u, PROC_FIRST, SG_WIRE_RUN, -1, err);
}

/* --- the reply of one step --- */

/* Counters, tokens done and states. failed: fewer tokens than requested are valid. */
static segue_status results_read(struct sg_run *run, struct sg_reader *in, int failed, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    struct sg_result *r = run->result;
    uint64_t *counters[SG_WIRE_COUNTERS];
    sg_wire_counters(r, counters);
    /* Added, not assigned: a run of several steps has one reply per step. */
    for (int i = 0; i < SG_WIRE_COUNTERS; i++) *counters[i] += sg_reader_u64(in);
    r->unseen = sg_reader_u64(in);
    atomic_store(&run->program->compiles, sg_reader_u64(in));
    for (uint32_t i = 0; i < run->batch.spans_n; i++) {
        struct sg_span *s = &run->spans[i];
        /* A count that is too large would move the state past the tokens of the caller. */
        uint32_t done = sg_reader_u32(in);
        if (in->bad || done > s->rows || (!failed && done != s->rows))
            return proc_lose(u, "it reported wrong token counts of a run", err);
        run->rows_done[i] += done;
        if (s->state) SG_TRY(proc_held_read(s->state, in, s->state->slots_n ? s->first + done : UINT64_MAX, err));
    }
    return sg_reader_done(in) ? SEGUE_OK : proc_lose(u, "it sent an invalid reply", err);
}

/* Counts without a branch, so that the compiler vectorizes it. */
static int no_nan(const float *x, size_t n)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) bad += x[i] != x[i];
    return !bad;
}

/* Copies logits and outputs of the first step to the result. */
static segue_status copy_results(struct sg_run *run, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    const struct sg_graph *g = run->program->base.graph;
    const uint8_t *area = u->child.areas[PROC_FIRST].data;
    size_t logits = (size_t)run->wanted * g->vocab;
    if (run->logits_at != UINT64_MAX && run->result->logits) {
        memcpy(run->result->logits, area + run->logits_at, logits * sizeof(float));
        if (!no_nan(run->result->logits, logits)) return proc_lose(u, "its logits are NaN", err);
    }
    for (uint32_t i = 0; i < run->batch.outputs_n && run->result->values; i++) {
        const struct sg_value *v = &g->values[g->outputs[run->batch.outputs[i]].value];
        size_t n = (size_t)(v->wanted ? run->wanted : run->rows) * v->width;
        if (!run->result->values[i]) continue;
        memcpy(run->result->values[i], area + run->values_at[i], n * sizeof(float));
        if (!no_nan(run->result->values[i], n)) return proc_lose(u, "its output rows are NaN", err);
    }
    return SEGUE_OK;
}

/* The token of span i, whose last wanted row ends at row `end` of the logits. */
static segue_status choose(struct sg_run *run, uint32_t i, uint32_t end, const struct sg_sampler *sampler, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    const struct sg_graph *g = run->program->base.graph;
    memcpy(u->row, u->child.areas[PROC_FIRST].data + run->logits_at + (size_t)(end - 1) * g->vocab * sizeof(float),
           g->vocab * sizeof(float));
    if (!no_nan(u->row, g->vocab)) return proc_lose(u, "its logits are NaN", err);
    return sg_choose_for_span(u->chooser, sampler, &run->spans[i], i, u->row, NULL, run->result, &run->token, err);
}

/* One token for each span with a sampler. */
static segue_status choose_all(struct sg_run *run, segue_error *err)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < run->batch.spans_n; i++) {
        const struct sg_span *s = &run->spans[i];
        end += s->wanted_n;
        if (s->sampler) SG_TRY(choose(run, i, end, s->steps > 1 ? &run->generation.sampler : s->sampler, err));
    }
    return SEGUE_OK;
}

/* --- start and wait --- */

/* Resets the unit's run and sends the first step. */
static segue_status run_begin(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, segue_error *err)
{
    struct sg_unit *u = p->base.unit;
    struct sg_run *run = &u->run;
    SG_TRY(proc_is_lost(u, err));
    SG_TRY(check_batch(p, b, err));
    SG_TRY(run_buffers(run, b, err));
    for (uint32_t i = 0; i < b->spans_n; i++)
        if (b->spans[i].sampler) SG_TRY(chooser_for(u, p->base.graph->vocab, err));
    /* One run at a time on this connection, so that the unit has a single reusable run. */
    run->base.ops = u->base.ops;
    run->program = p;
    run->batch = *b;
    run->result = r;
    memcpy(run->spans, b->spans, b->spans_n * sizeof *run->spans);
    memset(run->rows_done, 0, b->spans_n * sizeof *run->rows_done);
    uint64_t *counters[SG_WIRE_COUNTERS];
    sg_wire_counters(r, counters);
    for (int i = 0; i < SG_WIRE_COUNTERS; i++) *counters[i] = 0;
    r->unseen = 0;
    for (uint32_t i = 0; r->tokens && i < b->spans_n; i++) r->tokens[i] = -1;
    for (uint32_t i = 0; r->logprobs_n && i < b->spans_n; i++) r->logprobs_n[i] = 0;
    run->generation = (struct sg_generation){0};
    if (b->spans[0].steps > 1) sg_generation_begin(&run->generation, &run->spans[0], run->history);
    u->runs++;
    SG_TRY(send(run, !b->inline_hint, err));
    /* After the acceptance, a state_get waits in the child for what this run writes. */
    return b->inline_hint ? SEGUE_OK : proc_accepted(u, b->cancel, run->start_ns, run->limit_ns, err);
}

segue_status proc_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                        segue_error *err)
{
    struct sg_unit *u = p->base.unit;
    proc_enter(u, PROC_FIRST);           /* left when wait returns the end of the run */
    segue_status status = run_begin(p, b, r, err);
    if (status != SEGUE_OK) {
        proc_leave(u, PROC_FIRST);
        return status;
    }
    *out = &u->run;
    return SEGUE_OK;
}

/* Handles one reply. END: another step was sent. Only the first step fills logits and outputs. */
static segue_status step_end(struct sg_run *run, segue_status status, struct sg_reader *in, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    if (status != SEGUE_OK) {
        /* an unrequested cancel would end the command without a message */
        if (status == SEGUE_ECANCELED && !(run->batch.cancel && atomic_load(run->batch.cancel)))
            return proc_lose(u, "it canceled a run without being asked", err);
        if (status == SEGUE_ELOST) return proc_lose(u, "its unit was lost", err);
        if (status == SEGUE_EUNIT) return proc_lose(u, "its unit failed", err);
        if (in->left && results_read(run, in, 1, err) != SEGUE_OK) return SEGUE_ELOST;
        return status;
    }
    SG_TRY(results_read(run, in, 0, err));
    if (!run->generation.published) SG_TRY(copy_results(run, err));
    SG_TRY(choose_all(run, err));
    if (run->spans[0].steps <= 1 || sg_generation_publish(&run->generation, run->token)) return SEGUE_OK;
    sg_generation_next(&run->generation);
    SG_TRY(send(run, 0, err));
    return SEGUE_END;
}

/* Steps after the first are sent from here. The end of the run frees the first connection. */
segue_status proc_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    struct sg_reader in = {0};
    segue_status status;
    do {
        status = proc_reply(u, PROC_FIRST, SG_WIRE_RUN, run->batch.cancel, timeout_ns, run->start_ns, run->limit_ns, &in, err);
        if (status == SEGUE_END) return SEGUE_END;
        status = step_end(run, status, &in, err);
    } while (status == SEGUE_END);
    if (run->result->rows_done)
        memcpy(run->result->rows_done, run->rows_done, run->batch.spans_n * sizeof *run->rows_done);
    atomic_store(&u->run_rows, 0);
    proc_leave(u, PROC_FIRST);
    return status;
}
