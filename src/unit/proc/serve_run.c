/* serve_run.c: one batch of the other side. Tokens come with the request; rows of numbers go through bulk memory, so that
 * a unit writes its logits where the other side reads them. SPDX-License-Identifier: MIT */
#include "unit/proc/server.h"

/* A request as it is taken apart. */
struct request {
    const struct sg_server_program *program;
    struct sg_batch batch;
    struct sg_result result;
    struct sg_span *spans;                   /* [batch.spans_n] */
    struct sg_server_state **states;         /* [batch.spans_n] NULL: none */
    uint64_t logits_at, *outputs_at;         /* UINT64_MAX: not wanted */
    uint64_t rows, wanted;                   /* T and R */
};

static segue_status damaged(segue_error *err) { return sg_server_reject(err, "a run: it is damaged"); }

static void *room(struct sg_server *v, size_t n, size_t size)
{
    return n > SIZE_MAX / size ? NULL : sg_arena_alloc(&v->scratch, n * size);
}

/* n floats at an offset of this connection's bulk memory; NULL: not there. */
static float *floats_at(const struct sg_server *v, uint64_t at, uint64_t rows, uint64_t width)
{
    const struct sg_shared *area = &v->areas[0];
    if (!area->data || at % 64 || at > area->size || (width && rows > (area->size - at) / sizeof(float) / width))
        return NULL;
    return (float *)(void *)(area->data + at);
}

/* n 32-bit words copied out of the request: it may lie unaligned. */
static segue_status words_take(struct sg_server *v, struct sg_reader *in, uint32_t n, void *list, segue_error *err)
{
    if (in->bad || n > in->left / 4) return damaged(err);
    uint32_t *words = room(v, n, sizeof *words);
    if (!words) return sg_no_memory("run", n * sizeof *words, err);
    sg_take_into(in, words, n, sizeof *words);
    memcpy(list, &words, sizeof words);
    return SEGUE_OK;
}

static segue_status loras_take(struct sg_server *v, struct sg_reader *in, struct sg_span *span, segue_error *err)
{
    uint32_t n = sg_take_u32(in);
    if (in->bad || n > in->left / 4) return damaged(err);
    const struct sg_lora **list = room(v, n, sizeof *list);
    if (!list) return sg_no_memory("run", n * sizeof *list, err);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = sg_take_u32(in);
        if (id >= v->loras_n || !v->loras[id].pairs) return sg_server_reject(err, "a run: an adapter that is none");
        list[i] = &v->loras[id].lora;
    }
    span->loras = list;
    span->loras_n = n;
    return SEGUE_OK;
}

static segue_status span_take(struct sg_server *v, struct sg_reader *in, struct request *q, uint32_t i, segue_error *err)
{
    struct sg_span *span = &q->spans[i];
    const struct sg_graph *g = q->program->graph;
    uint32_t state = sg_take_u32(in);
    if (state != UINT32_MAX) {
        if (state >= v->states_n || !v->states[state].state) return sg_server_reject(err, "a run: a state that is none");
        q->states[i] = &v->states[state];
        span->state = v->states[state].state;
    }
    span->rows = sg_take_u32(in);
    span->first = sg_take_u64(in);
    span->steps = 1;
    q->rows += span->rows;
    if (in->bad || q->rows > SG_WIRE_ROWS || span->first > INT32_MAX) return damaged(err);
    if (g->values[g->inputs[0].value].kind == SG_VALUE_TOKENS) {
        SG_TRY(words_take(v, in, span->rows, &span->tokens, err));
    } else {
        span->values = floats_at(v, sg_take_u64(in), span->rows, g->values[g->inputs[0].value].width);
        if (!span->values) return sg_server_reject(err, "a run: rows outside of the shared memory");
    }
    span->wanted_n = sg_take_u32(in);
    q->wanted += span->wanted_n;
    SG_TRY(words_take(v, in, span->wanted_n, &span->wanted, err));
    return loras_take(v, in, span, err);
}

static segue_status outputs_take(struct sg_server *v, struct sg_reader *in, struct request *q, segue_error *err)
{
    uint32_t n = sg_take_u32(in);
    if (in->bad || n > in->left / 12) return damaged(err);
    int32_t *outputs = room(v, n, sizeof *outputs);
    q->outputs_at = room(v, n, sizeof *q->outputs_at);
    q->result.values = room(v, n, sizeof *q->result.values);
    if (!outputs || !q->outputs_at || !q->result.values) return sg_no_memory("run", n * sizeof *outputs, err);
    for (uint32_t i = 0; i < n; i++) {
        outputs[i] = (int32_t)sg_take_u32(in);
        q->outputs_at[i] = sg_take_u64(in);
        if (outputs[i] < 0 || (uint32_t)outputs[i] >= q->program->graph->outputs_n) return damaged(err);
    }
    q->batch.outputs = outputs;
    q->batch.outputs_n = n;
    return SEGUE_OK;
}

/* Where results go, once T and R are known. */
static segue_status places(struct sg_server *v, struct request *q, segue_error *err)
{
    const struct sg_graph *g = q->program->graph;
    if (q->logits_at != UINT64_MAX) {
        q->result.logits = floats_at(v, q->logits_at, q->wanted, g->vocab);
        if (!q->result.logits) return sg_server_reject(err, "a run: no place for logits in the shared memory");
    }
    for (uint32_t i = 0; i < q->batch.outputs_n; i++) {
        const struct sg_value *value = &g->values[g->outputs[q->batch.outputs[i]].value];
        q->result.values[i] = floats_at(v, q->outputs_at[i], value->wanted ? q->wanted : q->rows, value->width);
        if (!q->result.values[i]) return sg_server_reject(err, "a run: no place for rows in the shared memory");
    }
    q->result.rows_done = room(v, q->batch.spans_n, sizeof *q->result.rows_done);
    return q->result.rows_done ? SEGUE_OK : sg_no_memory("run", q->batch.spans_n, err);
}

static segue_status request_take(struct sg_server *v, struct sg_reader *in, struct request *q, segue_error *err)
{
    uint32_t id = sg_take_u32(in);
    if (in->bad || id >= v->programs_n || !v->programs[id].program)
        return sg_server_reject(err, "a run: a program that is none");
    q->program = &v->programs[id];
    q->batch.priority = sg_take_u32(in);
    q->batch.inline_hint = !sg_take_u32(in);
    q->logits_at = sg_take_u64(in);
    SG_TRY(outputs_take(v, in, q, err));
    uint32_t n = sg_take_u32(in);
    if (in->bad || !n || n > SG_WIRE_SPANS || n > in->left / 16) return damaged(err);
    q->spans = room(v, n, sizeof *q->spans);
    q->states = room(v, n, sizeof *q->states);
    if (!q->spans || !q->states) return sg_no_memory("run", n * sizeof *q->spans, err);
    q->batch.spans = q->spans;
    for (; q->batch.spans_n < n; q->batch.spans_n++) SG_TRY(span_take(v, in, q, q->batch.spans_n, err));
    if (!sg_reader_done(in)) return damaged(err);
    return places(v, q, err);
}

/* From here on the second connection may ask for what the run will write: the unit itself makes it wait. */
static void begun(struct sg_server *v)
{
    struct sg_wire_page *page = (struct sg_wire_page *)(void *)v->page.data;
    if (page) atomic_store(&page->begun, (uint32_t)v->number);
}

static segue_status run(struct sg_server *v, struct request *q, segue_error *err)
{
    struct sg_run *started = NULL;
    struct sg_wire_page *page = (struct sg_wire_page *)(void *)v->page.data;
    q->batch.cancel = page ? &page->cancel : &v->own_cancel;
    segue_status status = v->ops->start(q->program->program, &q->batch, &q->result, &started, err);
    begun(v);
    SG_TRY(status);
    do status = v->ops->wait(started, 1000000000, err);
    while (status == SEGUE_END);
    return status;
}

/* What a run came to is said also when it failed: rows may have been finished. */
segue_status sg_serve_run(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    struct request q = {0};
    segue_status status = request_take(v, in, &q, err);
    if (status != SEGUE_OK) begun(v);
    SG_TRY(status);
    status = run(v, &q, err);
    uint64_t *counters[SG_WIRE_COUNTERS];
    sg_wire_counters(&q.result, counters);
    for (int i = 0; i < SG_WIRE_COUNTERS; i++) sg_put_u64(out, *counters[i]);
    sg_put_u64(out, q.result.unseen);
    sg_put_u64(out, sg_program_compiles(q.program->program));
    for (uint32_t i = 0; i < q.batch.spans_n; i++) {
        sg_put_u32(out, q.result.rows_done[i]);
        if (q.states[i]) sg_serve_held_write(v, q.states[i], out);
    }
    return status;
}
