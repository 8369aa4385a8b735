/* proc_run.c: one batch in the process. Tokens are chosen here, from logits that were copied out of shared memory first:
 * nobody may change them while they are looked at. Several steps are several requests. Nothing is allocated once the room
 * has seen a batch of this size. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "unit/proc/proc.h"

enum { LOGPROBS = 21, ALIGN = 64, LOOK_NS = 20000 };

/* --- room --- */

static segue_status room(void *list, size_t n, size_t size, segue_error *err)
{
    void *old, *wider;
    memcpy(&old, list, sizeof old);
    wider = sg_realloc(old, n * size);
    if (!wider) return sg_no_memory("run of a process", n * size, err);
    memcpy(list, &wider, sizeof wider);
    return SEGUE_OK;
}

static segue_status run_room(struct sg_run *run, const struct sg_batch *b, segue_error *err)
{
    if (b->spans_n > run->spans_cap) {
        SG_TRY(room(&run->spans, b->spans_n, sizeof *run->spans, err));
        SG_TRY(room(&run->rows_done, b->spans_n, sizeof *run->rows_done, err));
        run->spans_cap = b->spans_n;
    }
    if (b->outputs_n > run->values_cap) {
        SG_TRY(room(&run->values_at, b->outputs_n, sizeof *run->values_at, err));
        run->values_cap = b->outputs_n;
    }
    const struct sg_span *s = &b->spans[0];
    size_t history = s->steps > 1 ? s->sampler->history_n + s->steps : 0;
    if (history > run->history_cap) {
        SG_TRY(room(&run->history, history, sizeof *run->history, err));
        run->history_cap = history;
    }
    return SEGUE_OK;
}

static segue_status chooser_room(struct sg_unit *u, uint32_t vocab, segue_error *err)
{
    if (u->chooser && u->chooser_vocab == vocab) return SEGUE_OK;
    sg_chooser_free(u->chooser);
    u->chooser = NULL;
    SG_TRY(room(&u->row, vocab, sizeof *u->row, err));
    SG_TRY(sg_chooser_new(&u->chooser, vocab, err));
    u->chooser_vocab = vocab;
    return SEGUE_OK;
}

/* --- is the batch sound: as far as this side reads it; the unit in the process checks the rest --- */

static segue_status span_sound(const struct sg_program *p, const struct sg_batch *b, uint32_t i, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    const struct sg_span *s = &b->spans[i];
    struct sg_unit *u = p->base.unit;
    int tokens = g->values[g->inputs[0].value].kind == SG_VALUE_TOKENS;
    if (!s->rows || (tokens ? !s->tokens : !s->values) || (!s->state && g->slots_n) || (s->wanted_n && !s->wanted) ||
        (s->state && s->state->base.unit != u))
        return sg_fail(err, SEGUE_EARG, "run: %s: span %u lacks rows, input or a state of this unit; fill it in",
                       u->desc.info.spec, i);
    for (uint32_t k = 0; k < s->wanted_n; k++)
        if (s->wanted[k] >= s->rows || (k && s->wanted[k] <= s->wanted[k - 1]))
            return sg_fail(err, SEGUE_EARG, "run: %s: span %u: wanted row %u of %u; give rising rows of the span",
                           u->desc.info.spec, i, s->wanted[k], s->rows);
    if (s->sampler && (!s->wanted_n || !g->vocab))
        return sg_fail(err, SEGUE_EARG, "run: %s: span %u: a sampler without logits; want a row of a whole model",
                       u->desc.info.spec, i);
    if (s->steps > 1 && (b->spans_n != 1 || !s->sampler || !s->ring || s->ring->cap < s->steps || !tokens ||
                         s->wanted[s->wanted_n - 1] != s->rows - 1))
        return sg_fail(err, SEGUE_EARG, "run: %s: %u steps want one span, a sampler, a ring with room, and its last row",
                       u->desc.info.spec, s->steps);
    return s->state ? proc_state_here(u, s->state, err) : SEGUE_OK;
}

static segue_status batch_sound(const struct sg_program *p, const struct sg_batch *b, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    uint64_t rows = 0;
    if (!b->spans_n || b->spans_n > SG_WIRE_SPANS)
        return sg_fail(err, SEGUE_EARG, "run: proc: %u spans; 1 to %d are taken", b->spans_n, SG_WIRE_SPANS);
    for (uint32_t i = 0; i < b->spans_n; i++) {
        SG_TRY(span_sound(p, b, i, err));
        rows += b->spans[i].rows;
    }
    if (rows > SG_WIRE_ROWS)
        return sg_fail(err, SEGUE_ELIMIT, "run: proc: %llu rows in a run, at most %d; give them in pieces",
                       (unsigned long long)rows, SG_WIRE_ROWS);
    for (uint32_t i = 0; i < b->outputs_n; i++)
        if (b->outputs[i] < 0 || (uint32_t)b->outputs[i] >= g->outputs_n)
            return sg_fail(err, SEGUE_EARG, "run: proc: output %d of %u; name one of the graph", b->outputs[i], g->outputs_n);
    return SEGUE_OK;
}

/* --- the request of one step --- */

/* n rows of a width behind what is taken of the area already; its offset. */
static uint64_t place(uint64_t *used, uint64_t rows, uint64_t width)
{
    uint64_t at = *used;
    *used += (rows * width * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* Input rows, logits, wanted values: where each lies, and room for all. */
static segue_status lay_out(struct sg_run *run, uint64_t *input_at, segue_error *err)
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
    *input_at = in->kind == SG_VALUE_ROWS ? place(&used, run->rows, in->width) : 0;
    run->logits_at = UINT64_MAX;
    if (g->vocab && run->wanted && (run->result->logits || choosing)) run->logits_at = place(&used, run->wanted, g->vocab);
    for (uint32_t i = 0; i < run->batch.outputs_n; i++) {
        const struct sg_value *v = &g->values[g->outputs[run->batch.outputs[i]].value];
        run->values_at[i] = place(&used, v->wanted ? run->wanted : run->rows, v->width);
    }
    return proc_area(run->program->base.unit, PROC_FIRST, (size_t)used + ALIGN, err);
}

/* Input rows of all spans lie behind each other, each span at a multiple of 64 bytes. */
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
            place(&input_at, s->rows, width);
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

static segue_status send(struct sg_run *run, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    uint64_t input_at;
    uint32_t number;
    /* Adapters are lent by requests of their own, so before this one is begun. */
    for (uint32_t i = 0; i < run->batch.spans_n; i++)
        for (uint32_t k = 0; k < run->spans[i].loras_n; k++)
            SG_TRY(proc_lora_number(u, run->program, run->spans[i].loras[k], &number, err));
    SG_TRY(lay_out(run, &input_at, err));
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    sg_put_u32(b, run->program->id);
    sg_put_u32(b, run->batch.priority);
    sg_put_u32(b, !run->batch.inline_hint);
    sg_put_u64(b, run->logits_at);
    sg_put_u32(b, run->batch.outputs_n);
    for (uint32_t i = 0; i < run->batch.outputs_n; i++) {
        sg_put_u32(b, (uint32_t)run->batch.outputs[i]);
        sg_put_u64(b, run->values_at[i]);
    }
    SG_TRY(spans_put(run, input_at, err));
    atomic_store(&((struct sg_wire_page *)(void *)u->child.page.data)->cancel,
                 run->batch.cancel ? atomic_load(run->batch.cancel) : 0);
    run->begun = sg_now_ns();
    run->limit_ns = proc_time_limit(u, run->rows);
    return proc_send(u, PROC_FIRST, SG_WIRE_RUN, -1, err);
}

/* --- the reply of one step --- */

/* Counters, rows and states. failed: fewer rows than asked for are no lie then. */
static segue_status results_take(struct sg_run *run, struct sg_reader *in, int failed, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    struct sg_result *r = run->result;
    uint64_t *counters[SG_WIRE_COUNTERS];
    sg_wire_counters(r, counters);
    for (int i = 0; i < SG_WIRE_COUNTERS; i++) *counters[i] += sg_take_u64(in);
    r->unseen = sg_take_u64(in);
    atomic_store(&run->program->compiles, sg_take_u64(in));
    for (uint32_t i = 0; i < run->batch.spans_n; i++) {
        struct sg_span *s = &run->spans[i];
        uint32_t done = sg_take_u32(in);
        if (in->bad || done > s->rows || (!failed && done != s->rows))
            return proc_lose(u, "it lied about the rows of a run", err);
        run->rows_done[i] += done;
        if (s->state) SG_TRY(proc_held_read(s->state, in, s->state->slots_n ? s->first + done : UINT64_MAX, err));
    }
    return sg_reader_done(in) ? SEGUE_OK : proc_lose(u, "it answered nonsense", err);
}

static int no_nan(const float *x, size_t n)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) bad += x[i] != x[i];
    return !bad;
}

/* Logits and values of the first step, to where the caller wants them. */
static segue_status values_give(struct sg_run *run, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    const struct sg_graph *g = run->program->base.graph;
    const uint8_t *area = u->child.areas[PROC_FIRST].data;
    size_t logits = (size_t)run->wanted * g->vocab;
    if (run->logits_at != UINT64_MAX && run->result->logits) {
        memcpy(run->result->logits, area + run->logits_at, logits * sizeof(float));
        if (!no_nan(run->result->logits, logits)) return proc_lose(u, "its logits are no numbers", err);
    }
    for (uint32_t i = 0; i < run->batch.outputs_n && run->result->values; i++) {
        const struct sg_value *v = &g->values[g->outputs[run->batch.outputs[i]].value];
        size_t n = (size_t)(v->wanted ? run->wanted : run->rows) * v->width;
        if (!run->result->values[i]) continue;
        memcpy(run->result->values[i], area + run->values_at[i], n * sizeof(float));
        if (!no_nan(run->result->values[i], n)) return proc_lose(u, "its rows are no numbers", err);
    }
    return SEGUE_OK;
}

/* The token of span i, whose last wanted row ends at row `end` of the logits. */
static segue_status choose(struct sg_run *run, uint32_t i, uint32_t end, const struct sg_sampler *sampler, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    const struct sg_graph *g = run->program->base.graph;
    const struct sg_span *s = &run->spans[i];
    struct sg_result *r = run->result;
    size_t n = 0;
    memcpy(u->row, u->child.areas[PROC_FIRST].data + run->logits_at + (size_t)(end - 1) * g->vocab * sizeof(float),
           g->vocab * sizeof(float));
    if (!no_nan(u->row, g->vocab)) return proc_lose(u, "its logits are no numbers", err);
    SG_TRY(sg_choose(u->chooser, sampler, u->row, s->first + s->wanted[s->wanted_n - 1] + 1, &run->token,
                     r->logprobs ? r->logprobs + (size_t)i * LOGPROBS : NULL, &n, err));
    if (r->logprobs_n) r->logprobs_n[i] = n;
    if (r->tokens) r->tokens[i] = run->token;
    return SEGUE_OK;
}

static segue_status choose_all(struct sg_run *run, segue_error *err)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < run->batch.spans_n; i++) {
        const struct sg_span *s = &run->spans[i];
        end += s->wanted_n;
        if (s->sampler) SG_TRY(choose(run, i, end, s->steps > 1 ? &run->sampler : s->sampler, err));
    }
    return SEGUE_OK;
}

static int is_stop(const struct sg_sampler *s, int32_t token)
{
    for (size_t i = 0; i < s->stops_n && !s->p.ignore_stops; i++)
        if (s->stops[i] == token) return 1;
    return 0;
}

/* Publish the token; 1: there is a step to come, which feeds it back. */
static int next_step(struct sg_run *run)
{
    static const uint32_t zero = 0;
    struct sg_span *s = &run->spans[0];
    if (s->steps <= 1) return 0;
    run->history[run->sampler.history_n++] = run->token;
    s->ring->tokens[run->step] = run->token;
    atomic_store(&s->ring->written, ++run->step);
    if (run->step == s->steps || is_stop(&run->sampler, run->token)) return 0;
    s->first += s->rows;
    s->rows = s->wanted_n = 1;
    s->tokens = &run->token;
    s->wanted = &zero;
    return 1;
}

/* --- start and wait --- */

/* Rows that are asked for beside a run are waited for by the unit in the process, once it has the run. What ends the wait
 * otherwise (an early reply, a loss, no time left) is seen by whoever asks, and by wait. */
static void until_begun(struct sg_unit *u)
{
    const struct sg_wire_page *page = (struct sg_wire_page *)(void *)u->child.page.data;
    uint64_t until = sg_now_ns() + u->patience_ns;
    uint32_t number = (uint32_t)u->numbers[PROC_FIRST];
    while (page && atomic_load(&page->begun) != number && !sg_channel_waits(&u->child.channels[PROC_FIRST]) &&
           sg_now_ns() < until)
        sg_pause_ns(LOOK_NS);
}

static segue_status begin(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, segue_error *err)
{
    struct sg_unit *u = p->base.unit;
    struct sg_run *run = &u->run;
    SG_TRY(proc_is_lost(u, err));
    SG_TRY(batch_sound(p, b, err));
    SG_TRY(run_room(run, b, err));
    for (uint32_t i = 0; i < b->spans_n; i++)
        if (b->spans[i].sampler) SG_TRY(chooser_room(u, p->base.graph->vocab, err));
    run->base.ops = u->base.ops;
    run->program = p;
    run->batch = *b;
    run->result = r;
    run->step = 0;
    memcpy(run->spans, b->spans, b->spans_n * sizeof *run->spans);
    memset(run->rows_done, 0, b->spans_n * sizeof *run->rows_done);
    uint64_t *counters[SG_WIRE_COUNTERS];
    sg_wire_counters(r, counters);
    for (int i = 0; i < SG_WIRE_COUNTERS; i++) *counters[i] = 0;
    r->unseen = 0;
    for (uint32_t i = 0; r->tokens && i < b->spans_n; i++) r->tokens[i] = -1;
    for (uint32_t i = 0; r->logprobs_n && i < b->spans_n; i++) r->logprobs_n[i] = 0;
    if (b->spans[0].steps > 1) {
        run->sampler = *b->spans[0].sampler;
        if (run->sampler.history_n)
            memcpy(run->history, run->sampler.history, run->sampler.history_n * sizeof *run->history);
        run->sampler.history = run->history;
    }
    u->runs++;
    SG_TRY(send(run, err));
    if (!b->inline_hint) until_begun(u);
    return SEGUE_OK;
}

segue_status proc_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                        segue_error *err)
{
    struct sg_unit *u = p->base.unit;
    proc_enter(u, PROC_FIRST);           /* until wait has seen the end */
    segue_status status = begin(p, b, r, err);
    if (status != SEGUE_OK) {
        proc_leave(u, PROC_FIRST);
        return status;
    }
    *out = &u->run;
    return SEGUE_OK;
}

/* One reply. END: another step was sent. The first step alone gives logits and values. */
static segue_status step_end(struct sg_run *run, segue_status status, struct sg_reader *in, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    if (status != SEGUE_OK) {
        if (status == SEGUE_ELOST) return proc_lose(u, "the unit in it was lost", err);
        if (status == SEGUE_EUNIT) return proc_lose(u, "the unit in it failed", err);
        if (in->left && results_take(run, in, 1, err) != SEGUE_OK) return SEGUE_ELOST;
        return status;
    }
    SG_TRY(results_take(run, in, 0, err));
    if (!run->step) SG_TRY(values_give(run, err));
    SG_TRY(choose_all(run, err));
    if (!next_step(run)) return SEGUE_OK;
    SG_TRY(send(run, err));
    return SEGUE_END;
}

segue_status proc_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    struct sg_unit *u = run->program->base.unit;
    struct sg_reader in = {0};
    segue_status status;
    do {
        status = proc_reply(u, PROC_FIRST, SG_WIRE_RUN, run->batch.cancel, timeout_ns, run->begun, run->limit_ns, &in, err);
        if (status == SEGUE_END) return SEGUE_END;
        status = step_end(run, status, &in, err);
    } while (status == SEGUE_END);
    if (run->result->rows_done)
        memcpy(run->result->rows_done, run->rows_done, run->batch.spans_n * sizeof *run->rows_done);
    proc_leave(u, PROC_FIRST);
    return status;
}
