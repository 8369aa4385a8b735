/* cpu_run.c: executes one run: check the batch, grow the scratch, run all stages in the pool, commit
 * the rows, choose tokens, and repeat for runs of several steps. Once the scratch has seen a batch of a
 * given size, nothing is allocated.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "unit/batch.h"
#include "unit/cpu/cpu_types.h"
#include "unit/generate.h"

enum { CANCELABLE_ROWS = 16 };             /* passes of more rows may be canceled midway */

/* New scratch is zeroed in pieces by all threads, which also distributes the page faults, and a cancel
 * ends it early: the areas of large batches are hundreds of megabytes. */
struct zeroing { uint8_t *at; size_t bytes; const atomic_int *cancel; };
/* Bytes that one item zeroes. */
enum { ZERO_BYTES = 1 << 20 };

static void zero_work(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    const struct zeroing *c = arg;
    size_t from = (size_t)item * ZERO_BYTES;
    (void)stage;
    (void)thread;
    if (c->cancel && atomic_load_explicit(c->cancel, memory_order_relaxed)) return;
    memset(c->at + from, 0, c->bytes - from < ZERO_BYTES ? c->bytes - from : ZERO_BYTES);
}

/* Replaces *area (a pointer of any type) by a zeroed one of n floats. ECANCELED or EMEMORY leave the
 * old area. */
static segue_status area_replace(struct sg_cpu_program *p, void *area, size_t n, const atomic_int *cancel,
                             segue_error *err)
{
    struct zeroing c = {.at = sg_alloc_unset(n * sizeof(float)), .bytes = n * sizeof(float), .cancel = cancel};
    uint32_t items = (uint32_t)((c.bytes + ZERO_BYTES - 1) / ZERO_BYTES);
    void *old;
    /* not cleared by the allocator: the threads below touch the pages first */
    if (!c.at) return sg_no_memory("scratch of a cpu program", c.bytes, err);
    struct sg_job job = {.items = &items, .stages = 1, .work = zero_work, .arg = &c};
    sg_pool_run(((const struct sg_cpu_unit *)(const void *)p->base.unit)->pool, &job);
    if (cancel && atomic_load(cancel)) {
        sg_free_aligned(c.at);
        return sg_fail(err, SEGUE_ECANCELED, "run: cpu: canceled");
    }
    /* the type of *area is unknown, so the pointer is copied by bytes */
    memcpy(&old, area, sizeof old);
    sg_free_aligned(old);
    memcpy(area, &c.at, sizeof c.at);
    p->scratch_bytes += c.bytes;
    return SEGUE_OK;
}

/* Capacity for n rows: multiples of 64 limit the number of reallocations. */
static uint32_t round_capacity(uint32_t n) { return n <= 16 ? 16 : (n + 63) / 64 * 64; }

/* Grows everything that is sized by the rows of a pass. t_cap is set last, so that a failure cannot
 * leave it too large. */
static segue_status rows_grow(struct sg_cpu_program *p, uint32_t t, const atomic_int *cancel, segue_error *err)
{
    uint32_t cap = round_capacity(t);
    p->t_cap = 0;                            /* on failure below, no rows are usable */
    SG_TRY(area_replace(p, &p->t_area, (size_t)p->t_columns * cap, cancel, err));
    SG_TRY(area_replace(p, &p->angles, (size_t)p->angle_columns * cap, cancel, err));
    SG_TRY(area_replace(p, &p->x_area, (p->x_row_bytes * cap + 1024) / sizeof(float), cancel, err));
    SG_TRY(area_replace(p, &p->row_span, cap, cancel, err));
    SG_TRY(area_replace(p, &p->wanted, cap, cancel, err));
    SG_TRY(area_replace(p, &p->row_pos, 2 * (size_t)cap, cancel, err));
    SG_TRY(area_replace(p, &p->tokens, cap, cancel, err));
    SG_TRY(area_replace(p, &p->tiles, (cap * sizeof *p->tiles + 3) / 4, cancel, err));
    if (p->lora_area) SG_TRY(area_replace(p, &p->lora_area, (size_t)p->lora_columns * cap, cancel, err));
    p->t_cap = cap;
    return SEGUE_OK;
}

segue_status sg_cpu_scratch(struct sg_cpu_program *p, uint32_t t, uint32_t r, int local_logits,
                            const atomic_int *cancel, segue_error *err)
{
    const struct sg_cpu_unit *u = (const struct sg_cpu_unit *)(const void *)p->base.unit;
    uint32_t threads = sg_pool_threads(u->pool);
    if (!p->threads) {
        uint8_t **list = sg_alloc(threads * sizeof(uint8_t *)),
                *scratch = sg_alloc_aligned(threads * (p->thread_bytes + 64));
        if (!list || !scratch) {
            sg_free(list);
            sg_free_aligned(scratch);
            return sg_no_memory("scratch of a cpu program", threads * p->thread_bytes, err);
        }
        for (uint32_t j = 0; j < threads; j++) list[j] = scratch + j * (p->thread_bytes + 64);
        p->threads = list;
        p->scratch_bytes += threads * p->thread_bytes;
    }
    if (!p->items && !(p->items = sg_alloc(p->stages_n * sizeof *p->items)))
        return sg_no_memory("scratch of a cpu program", p->stages_n * sizeof *p->items, err);
    if (t > p->t_cap) SG_TRY(rows_grow(p, t, cancel, err));
    if (r > p->r_cap) {
        uint32_t cap = round_capacity(r);
        SG_TRY(area_replace(p, &p->r_area, (size_t)p->r_columns * cap, cancel, err));
        p->r_cap = cap;
    }
    if (local_logits && r > p->logits_cap) {
        SG_TRY(area_replace(p, &p->logits_area, (size_t)p->base.graph->vocab * r, cancel, err));
        p->logits_cap = r;
    }
    return SEGUE_OK;
}

/* The areas are reallocated, never freed, during the life of a program. */
void sg_cpu_scratch_free(struct sg_cpu_program *p)
{
    void *aligned[] = {p->t_area,    p->r_area, p->logits_area, p->angles,
                       p->lora_area, p->x_area, p->row_span,    p->wanted,
                       p->row_pos,   p->tokens, p->tiles,       p->threads ? p->threads[0] : NULL};
    for (size_t i = 0; i < sizeof aligned / sizeof aligned[0]; i++) sg_free_aligned(aligned[i]);
    sg_free(p->threads);
    sg_free(p->items);
    sg_free(p->split);
    sg_free(p->pending);
    sg_free(p->sample_row);
    sg_chooser_free(p->chooser);
}

/* A graph has one input: tokens, or values from the previous range of layers. */
static const struct sg_port *input_of(const struct sg_graph *g) { return &g->inputs[0]; }

/* Publishes the stage that starts, for readers of the states. The pool hands out the first item of a
 * stage only after all earlier stages are complete, so those are visible to a reader that sees this
 * number. */
static void stage_publish(struct sg_cpu_pass *a, uint32_t stage)
{
    for (uint32_t s = 0; s < a->spans_n; s++) {
        if (!a->spans[s].state) continue;
        struct sg_cpu_state *state = sg_cpu_state_of(a->spans[s].state);
        atomic_store(&state->stage, stage);
        sg_cpu_state_notify(state);
    }
}

/* The pool's callback: dispatches an item to the file that implements the stage. */
static void stage_work(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    struct sg_cpu_pass *a = arg;
    stage += a->stage_from;
    const struct sg_cpu_stage *st = &a->p->stages[stage];
    if (sg_cpu_pass_canceled(a)) return;
    /* item 0 exists in every stage that has work, and is executed once */
    if (!item) stage_publish(a, stage);
    /* the KEYS stage before it is complete, and the next one begins after it */
    if (!item && st->kind == SG_ST_ATTEND) sg_attend_fit(a, st);
    switch (st->kind) {
    case SG_ST_LORA:
    case SG_ST_PREP:
    case SG_ST_MM: sg_matrix_work(a, st, item, thread); break;
    case SG_ST_KEYS:
    case SG_ST_ATTEND: sg_attend_work(a, st, item, thread); break;
    default: sg_rows_work(a, st, item, thread);
    }
}

/* Number of items of a stage in this pass; 0: nothing to do. */
static uint32_t stage_items(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st)
{
    switch (st->kind) {
    case SG_ST_LORA:
    case SG_ST_PREP:
    case SG_ST_MM: return sg_matrix_items(a, st);
    case SG_ST_KEYS:
    case SG_ST_ATTEND: return sg_attend_items(a, st);
    default: return sg_rows_items(a, st);
    }
}

/* Concatenates rows, positions, tokens and wanted rows of all spans; copies input values when the graph
 * starts from values. */
static void rows_index(struct sg_cpu_pass *a)
{
    struct sg_cpu_program *p = a->p;
    const struct sg_graph *g = p->base.graph;
    const struct sg_port *in = input_of(g);
    uint32_t t = 0, r = 0;
    for (uint32_t s = 0; s < a->spans_n; s++) {
        const struct sg_span *span = &a->spans[s];
        for (uint32_t i = 0; i < span->wanted_n; i++) p->wanted[r++] = t + span->wanted[i];
        for (uint32_t i = 0; i < span->rows; i++, t++) {
            p->row_span[t] = s;
            p->row_pos[t] = span->first + i;
            if (g->values[in->value].kind == SG_VALUE_TOKENS) {
                p->tokens[t] = span->tokens[i];
            } else {
                size_t stride, width = g->values[in->value].width;
                memcpy(sg_cpu_operand_row(a, (struct sg_operand){in->value, 0, 0}, t, &stride),
                       span->values + i * width, width * sizeof(float));
            }
        }
    }
}

/* Makes the blocks for the new rows private to each state. A long pass, which can be canceled, also
 * saves the recurrent slots for undo. */
static segue_status states_reserve(struct sg_cpu_pass *a, segue_error *err)
{
    for (uint32_t s = 0; s < a->spans_n; s++)
        if (a->spans[s].state)
            SG_TRY(sg_cpu_state_reserve(sg_cpu_state_of(a->spans[s].state), a->spans[s].rows,
                                        a->t > CANCELABLE_ROWS, err));
    for (uint32_t s = 0; s < a->spans_n; s++)
        if (a->spans[s].state)
            sg_cpu_state_pass_set(sg_cpu_state_of(a->spans[s].state), a->p->slot_stage, a->spans[s].rows);
    return SEGUE_OK;
}

static void stages_run(struct sg_pool *pool, struct sg_cpu_pass *a, uint32_t from, uint32_t to)
{
    struct sg_job job = {
        .items = a->p->items + from, .stages = to - from, .work = stage_work, .arg = a, .stopped = &a->stopped};
    a->stage_from = from;
    if (to > from) sg_pool_run(pool, &job);
}

/* Counts K and V beyond their storage. The rows of such a pass are taken back where that is possible. */
static segue_status kv_check(struct sg_cpu_run *run, struct sg_cpu_pass *a, segue_error *err)
{
    for (uint32_t s = a->p->stages_n; s-- > 0;)   /* an attend op without wanted rows has no items */
        if (a->p->stages[s].kind == SG_ST_KEYS) {
            sg_attend_fit(a, &a->p->stages[s]);
            break;
        }
    if (!a->unfit) return SEGUE_OK;
    run->common.result.overflows += a->unfit_count.heads[SG_KV_INFINITE];
    run->common.result.underflows += a->unfit_count.heads[SG_KV_LOST];
    const struct sg_cpu_state *state = sg_cpu_state_of(a->spans[0].state);
    return sg_kv_fit_fail("cpu", a->unfit, a->unfit_is_v, &a->unfit_count, state->core.storage, err);
}

/* One pass: appends the rows to all states, or returns ECANCELED and leaves all states as they were. A short pass over recurrent
 * slots is appended also if its K or V do not fit, because it cannot be taken back. */
static segue_status pass_run(struct sg_cpu_run *run, struct sg_cpu_pass *a, segue_error *err)
{
    struct sg_cpu_program *p = a->p;
    SG_TRY(sg_cpu_scratch(p, a->t, a->r, !a->logits && p->base.graph->vocab, a->cancel, err));
    if (a->loras && !p->lora_area)
        SG_TRY(area_replace(p, &p->lora_area, (size_t)p->lora_columns * p->t_cap, a->cancel, err));
    if (!a->logits) a->logits = p->logits_area;
    SG_TRY(states_reserve(a, err));
    SG_TRY(sg_attend_plan(a, err));
    rows_index(a);
    /* invalidates activations that an earlier pass prepared in the threads' scratch */
    p->pass_number++;
    for (uint32_t s = 0; s < p->stages_n; s++) {
        p->items[s] = stage_items(a, &p->stages[s]);
        run->common.result.dispatches += p->items[s] != 0;
    }
    /* A short pass over recurrent slots was not saved for undo, so it runs to the end. */
    int stoppable = a->t > CANCELABLE_ROWS || !p->recurrent;
    const atomic_int *cancel = a->cancel;
    /* hides the flag from the stages while a pass must not stop */
    if (!stoppable) a->cancel = NULL;
    if (cancel && atomic_load(cancel)) return sg_fail(err, SEGUE_ECANCELED, "run: cpu: canceled");
    uint32_t cut = p->fault_stage < p->stages_n ? p->fault_stage + 1 : p->stages_n;
    stages_run(run->unit->pool, a, 0, cut);
    if (p->fault_stage < p->stages_n) {
        sg_cpu_fault_apply(a);
        stages_run(run->unit->pool, a, cut, p->stages_n);
    }
    a->cancel = cancel;
    /* a cancel that came too late to stop an item still discards the pass */
    int stopped = atomic_load(&a->stopped) || (stoppable && cancel && atomic_load(cancel));
    segue_status fits = stopped ? SEGUE_OK : kv_check(run, a, err);
    if (fits && stoppable) stopped = 1;
    for (uint32_t s = 0; s < a->spans_n; s++) {
        if (!stopped) run->common.rows_done[s] += a->spans[s].rows;
        if (!a->spans[s].state) continue;
        struct sg_cpu_state *state = sg_cpu_state_of(a->spans[s].state);
        /* all states of the batch are committed or none is */
        if (stopped) sg_cpu_state_undo(state);
        else sg_cpu_state_commit(state, a->spans[s].rows);
    }
    if (fits) return fits;
    return stopped ? sg_fail(err, SEGUE_ECANCELED, "run: cpu: canceled") : SEGUE_OK;
}

/* Estimated bytes read: all weights once, and the states. */
static void count_traffic(struct sg_cpu_run *run, const struct sg_cpu_pass *a)
{
    run->common.result.weight_bytes += a->p->read_per_token;
    for (uint32_t s = 0; s < a->spans_n; s++)
        if (a->spans[s].state) run->common.result.state_bytes += sg_cpu_state_bytes(a->spans[s].state);
}

/* Copies the requested output values to the caller's buffers. */
static void values_copy(const struct sg_cpu_run *run, const struct sg_cpu_pass *a)
{
    const struct sg_graph *g = a->p->base.graph;
    for (uint32_t i = 0; i < run->common.batch.outputs_n && run->common.result.values; i++) {
        int32_t v = g->outputs[run->common.batch.outputs[i]].value;
        uint32_t rows = g->values[v].wanted ? a->r : a->t, width = g->values[v].width;
        for (uint32_t t = 0; run->common.result.values[i] && t < rows; t++) {
            size_t stride;
            const float *x = sg_cpu_operand_row(a, (struct sg_operand){v, 0, 0}, t, &stride);
            memcpy(run->common.result.values[i] + (size_t)t * width, x, width * sizeof *x);
        }
    }
}

/* Allocates what sampling needs, on first use. */
static segue_status chooser_ready(struct sg_cpu_program *p, segue_error *err)
{
    uint32_t vocab = p->base.graph->vocab;
    if (!p->chooser) SG_TRY(sg_chooser_new(&p->chooser, vocab, err));
    if (!p->sample_row) p->sample_row = sg_alloc(vocab * sizeof *p->sample_row);
    return p->sample_row ? SEGUE_OK
                         : sg_no_memory("sampling of a cpu program", vocab * sizeof *p->sample_row, err);
}

/* Chooses the token of span s from row `row` of the logits, its last wanted row. The logits stay unchanged. */
static segue_status choose_token(struct sg_cpu_run *run, struct sg_cpu_pass *a, uint32_t s, uint32_t row,
                                 const struct sg_sampler *sampler, int32_t *token, segue_error *err)
{
    struct sg_cpu_program *p = a->p;
    return sg_choose_for_span(p->chooser, sampler, &a->spans[s], s, a->logits + (size_t)row * p->base.graph->vocab,
                              p->sample_row, &run->common.result, token, err);
}

/* Chooses a token for every span that has a sampler and a single step. */
static segue_status tokens_choose(struct sg_cpu_run *run, struct sg_cpu_pass *a, segue_error *err)
{
    uint32_t row = 0;
    for (uint32_t s = 0; s < a->spans_n; s++) {
        const struct sg_span *span = &a->spans[s];
        int32_t token = -1;
        row += span->wanted_n;
        if (run->common.result.tokens) run->common.result.tokens[s] = -1;
        /* a span with several steps chooses in steps_run */
        if (!span->sampler || span->steps > 1) continue;
        SG_TRY(chooser_ready(a->p, err));
        SG_TRY(choose_token(run, a, s, row - 1, span->sampler, &token, err));
    }
    return SEGUE_OK;
}

static struct sg_cpu_run *run_of(struct sg_thread_run *common) { return (struct sg_cpu_run *)(void *)common; }

/* The whole batch; a later step is one row of the only span. The caller's logits then hold the newest row. */
static void pass_begin(struct sg_cpu_run *run, int first)
{
    struct sg_thread_run *c = &run->common;
    struct sg_cpu_pass *a = &run->program->pass;
    *a = (struct sg_cpu_pass){.p = run->program,
                              .spans = c->spans,
                              .spans_n = c->batch.spans_n,
                              .cancel = c->batch.cancel,
                              .logits = c->result.logits,
                              .t = !first,
                              .r = !first};
    /* t: all rows of the batch, r: rows whose logits are wanted */
    for (uint32_t s = 0; first && s < a->spans_n; s++) {
        a->t += c->spans[s].rows;
        a->r += c->spans[s].wanted_n;
    }
    for (uint32_t s = 0; s < a->spans_n; s++) a->loras |= c->spans[s].loras_n != 0;
}

/* With sampler, a run of several steps: the token of the only span is chosen by it. */
static segue_status run_step(struct sg_thread_run *common, int first, const struct sg_sampler *sampler, int32_t *token)
{
    struct sg_cpu_run *run = run_of(common);
    struct sg_cpu_pass *a = &run->program->pass;
    segue_error *err = &common->error;
    pass_begin(run, first);
    SG_TRY(pass_run(run, a, err));
    count_traffic(run, a);
    if (first) values_copy(run, a);
    if (!sampler) return tokens_choose(run, a, err);
    SG_TRY(chooser_ready(run->program, err));
    return choose_token(run, a, 0, a->r - 1, sampler, token, err);
}

/* Runs of one unit are serialised: the pool executes one job list at a time. */
static void run_work(struct sg_thread_run *common)
{
    struct sg_cpu_run *run = run_of(common);
    pthread_mutex_lock(&run->unit->work);
    uint64_t start_ns = sg_now_ns();
    sg_thread_run_steps(common);
    run->ns = sg_now_ns() - start_ns;
    pthread_mutex_unlock(&run->unit->work);
}

static struct sg_run_queue *queue_of(struct sg_program *p)
{
    return &((struct sg_cpu_unit *)(void *)((struct sg_cpu_program *)(void *)p)->base.unit)->queue;
}

static segue_status run_fill(struct sg_thread_run *common, struct sg_program *p, segue_error *err)
{
    struct sg_cpu_run *run = run_of(common);
    (void)err;
    run->program = (struct sg_cpu_program *)(void *)p;
    run->unit = (struct sg_cpu_unit *)(void *)run->program->base.unit;
    common->result.dispatches = common->result.weight_bytes = common->result.state_bytes = 0;
    common->result.overflows = common->result.underflows = 0;
    return SEGUE_OK;
}

/* From now on concurrent gets wait for rows that the run writes. */
static segue_status run_acquired(struct sg_thread_run *common, segue_error *err)
{
    (void)err;
    for (uint32_t i = 0; i < common->batch.spans_n; i++)
        if (common->spans[i].state) sg_cpu_state_pass_set(sg_cpu_state_of(common->spans[i].state), NULL, 0);
    return SEGUE_OK;
}

static void run_released(struct sg_thread_run *common)
{
    for (uint32_t i = 0; i < common->batch.spans_n; i++)
        if (common->spans[i].state) sg_cpu_state_notify(sg_cpu_state_of(common->spans[i].state));
}

static void run_report(const struct sg_thread_run *common, struct sg_result *r)
{
    r->ns = ((const struct sg_cpu_run *)(const void *)common)->ns;
    r->dispatches = common->result.dispatches;
    r->weight_bytes = common->result.weight_bytes;
    r->state_bytes = common->result.state_bytes;
    r->overflows = common->result.overflows;
    r->underflows = common->result.underflows;
}

static const struct sg_thread_run_ops run_ops = {
    .rules = {.unit = "cpu",
              .rows_max = SG_CPU_ROWS_MAX,
              .stateless = 1,
              .rows = sg_state_core_tokens,
              .slot = sg_state_core_slot_info},
    .size = sizeof(struct sg_cpu_run),
    .queue = queue_of,
    .fill = run_fill,
    .acquired = run_acquired,
    .work = run_work,
    .released = run_released,
    .step = run_step,
    .report = run_report,
};

segue_status sg_cpu_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                          segue_error *err)
{
    return sg_thread_run_open(&run_ops, p, b, r, out, err);
}
