/* serve_run.c: runs. Tokens are part of the request; floats are in the bulk memory of the first connection, so that the
 * unit writes logits directly to memory of the peer. SPDX-License-Identifier: MIT */
#include "unit/finite.h"
#include "unit/sample.h"
#include "unit/proc/server.h"

/* A decoded request. */
struct request {
    const struct sg_server_program *program;
    struct sg_batch batch;
    struct sg_result result;
    struct sg_span *spans;                   /* [batch.spans_n] */
    struct sg_server_state **states;         /* [batch.spans_n] NULL: none */
    uint64_t logits_at, *outputs_at;         /* offsets in bulk memory; logits_at UINT64_MAX: none */
    uint64_t rows, wanted;                   /* T and R */
};

static segue_status damaged(segue_error *err) { return sg_server_reject(err, "a run: damaged"); }

/* n entries in the arena of the request. */
static void *scratch_array(struct sg_server *v, size_t n, size_t size)
{
    return n > SIZE_MAX / size ? NULL : sg_arena_alloc(&v->scratch, n * size);
}

/* rows x width floats at an offset of the bulk memory; NULL: out of bounds or misaligned. */
static float *floats_at(const struct sg_server *v, uint64_t at, uint64_t rows, uint64_t width)
{
    const struct sg_shared *area = &v->areas[0];
    if (!area->data || at % 64 || at > area->size || (width && rows > (area->size - at) / sizeof(float) / width))
        return NULL;
    return (float *)(void *)(area->data + at);
}

/* Copies n 32-bit words of the request, which may be unaligned. list: address of the pointer. */
static segue_status words_read(struct sg_server *v, struct sg_reader *in, uint32_t n, void *list, segue_error *err)
{
    if (in->bad || n > in->left / 4) return damaged(err);
    uint32_t *words = scratch_array(v, n, sizeof *words);
    if (!words) return sg_no_memory("run", n * sizeof *words, err);
    sg_reader_array(in, words, n, sizeof *words);
    memcpy(list, &words, sizeof words);
    return SEGUE_OK;
}

/* Numbers of the adapters of a span; their matrices were sent before. */
static segue_status loras_read(struct sg_server *v, struct sg_reader *in, struct sg_span *span, segue_error *err)
{
    uint32_t n = sg_reader_u32(in);
    if (in->bad || n > in->left / 4) return damaged(err);
    const struct sg_lora **list = scratch_array(v, n, sizeof *list);
    if (!list) return sg_no_memory("run", n * sizeof *list, err);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = sg_reader_u32(in);
        if (id >= v->loras_n || !v->loras[id].pairs) return sg_server_reject(err, "a run: unknown adapter");
        list[i] = &v->loras[id].lora;
    }
    span->loras = list;
    span->loras_n = n;
    return SEGUE_OK;
}

/* One span: state, tokens or offset of input rows, wanted rows, adapters. Totals are checked against the limits. */
static segue_status span_read(struct sg_server *v, struct sg_reader *in, struct request *q, uint32_t i, segue_error *err)
{
    struct sg_span *span = &q->spans[i];
    const struct sg_graph *g = q->program->graph;
    uint32_t state = sg_reader_u32(in);
    if (state != UINT32_MAX) {
        if (state >= v->states_n || !v->states[state].state) return sg_server_reject(err, "a run: unknown state");
        q->states[i] = &v->states[state];
        span->state = v->states[state].state;
    }
    span->rows = sg_reader_u32(in);
    span->first = sg_reader_u64(in);
    span->steps = 1;
    q->rows += span->rows;
    if (in->bad || q->rows > SG_WIRE_ROWS || span->first > INT32_MAX) return damaged(err);
    if (g->values[g->inputs[0].value].kind == SG_VALUE_TOKENS) {
        SG_TRY(words_read(v, in, span->rows, &span->tokens, err));
    } else {
        span->values = floats_at(v, sg_reader_u64(in), span->rows, g->values[g->inputs[0].value].width);
        if (!span->values) return sg_server_reject(err, "a run: input rows outside of the shared memory");
    }
    span->wanted_n = sg_reader_u32(in);
    q->wanted += span->wanted_n;
    SG_TRY(words_read(v, in, span->wanted_n, &span->wanted, err));
    return loras_read(v, in, span, err);
}

/* Indices of graph outputs and the offsets of their rows. */
static segue_status outputs_read(struct sg_server *v, struct sg_reader *in, struct request *q, segue_error *err)
{
    uint32_t n = sg_reader_u32(in);
    /* 12 bytes per output: index and offset. */
    if (in->bad || n > in->left / 12) return damaged(err);
    int32_t *outputs = scratch_array(v, n, sizeof *outputs);
    q->outputs_at = scratch_array(v, n, sizeof *q->outputs_at);
    q->result.values = scratch_array(v, n, sizeof *q->result.values);
    if (!outputs || !q->outputs_at || !q->result.values) return sg_no_memory("run", n * sizeof *outputs, err);
    for (uint32_t i = 0; i < n; i++) {
        outputs[i] = (int32_t)sg_reader_u32(in);
        q->outputs_at[i] = sg_reader_u64(in);
        if (outputs[i] < 0 || (uint32_t)outputs[i] >= q->program->graph->outputs_n) return damaged(err);
    }
    q->batch.outputs = outputs;
    q->batch.outputs_n = n;
    return SEGUE_OK;
}

/* Result buffers in bulk memory, once T and R are known. */
static segue_status result_buffers(struct sg_server *v, struct request *q, segue_error *err)
{
    const struct sg_graph *g = q->program->graph;
    if (q->logits_at != UINT64_MAX) {
        q->result.logits = floats_at(v, q->logits_at, q->wanted, g->vocab);
        if (!q->result.logits) return sg_server_reject(err, "a run: logits outside of the shared memory");
    }
    for (uint32_t i = 0; i < q->batch.outputs_n; i++) {
        const struct sg_value *value = &g->values[g->outputs[q->batch.outputs[i]].value];
        q->result.values[i] = floats_at(v, q->outputs_at[i], value->wanted ? q->wanted : q->rows, value->width);
        if (!q->result.values[i]) return sg_server_reject(err, "a run: outputs outside of the shared memory");
    }
    q->result.rows_done = scratch_array(v, q->batch.spans_n, sizeof *q->result.rows_done);
    return q->result.rows_done ? SEGUE_OK : sg_no_memory("run", q->batch.spans_n, err);
}

/* Everything is validated before the unit sees it, except what sg_batch_check of the unit checks. */
static segue_status request_read(struct sg_server *v, struct sg_reader *in, struct request *q, segue_error *err)
{
    uint32_t id = sg_reader_u32(in);
    if (in->bad || id >= v->programs_n || !v->programs[id].program)
        return sg_server_reject(err, "a run: unknown program");
    q->program = &v->programs[id];
    q->batch.priority = sg_reader_u32(in);
    q->batch.inline_hint = !sg_reader_u32(in);
    for (int i = 0; i < SEGUE_PLAN_SHAPES; i++) q->batch.shapes[i] = sg_reader_u32(in);
    q->logits_at = sg_reader_u64(in);
    SG_TRY(outputs_read(v, in, q, err));
    uint32_t n = sg_reader_u32(in);
    if (in->bad || !n || n > SG_WIRE_SPANS || n > in->left / 16) return damaged(err);
    q->spans = scratch_array(v, n, sizeof *q->spans);
    q->states = scratch_array(v, n, sizeof *q->states);
    if (!q->spans || !q->states) return sg_no_memory("run", n * sizeof *q->spans, err);
    q->batch.spans = q->spans;
    for (; q->batch.spans_n < n; q->batch.spans_n++) SG_TRY(span_read(v, in, q, q->batch.spans_n, err));
    if (!sg_reader_done(in)) return damaged(err);
    return result_buffers(v, q, err);
}

/* From now on a get on the second connection waits in the unit for what the run writes. A failure to send is found again when
 * the reply is sent. */
static void send_accepted(struct sg_server *v, uint32_t asked)
{
    if (asked && v->first)
        sg_channel_send(v->first, SG_WIRE_ACCEPTED, v->number, NULL, 0, -1, SG_SERVER_SEND_S * (uint64_t)1000000000, NULL);
}

/* The page has the cancel flag that the peer sets. */
static segue_status run(struct sg_server *v, struct request *q, uint32_t asked, segue_error *err)
{
    struct sg_run *started = NULL;
    struct sg_wire_page *page = (struct sg_wire_page *)(void *)v->page.data;
    q->batch.cancel = page ? &page->cancel : &v->own_cancel;
    segue_status status = v->ops->start(q->program->program, &q->batch, &q->result, &started, err);
    send_accepted(v, asked);
    SG_TRY(status);
    /* 1 s per call; the peer enforces the time limit of the run. */
    do status = v->ops->wait(started, 1000000000, err);
    while (status == SEGUE_END);
    return status;
}

/* If weights make products overflow, the model is at fault and not this process. So the result is checked here and an error
 * is returned, as by a unit in the parent's process: the parent treats a NaN in a reply as the loss of the unit. */
static segue_status results_check(const struct request *q, segue_error *err)
{
    const struct sg_graph *g = q->program->graph;
    for (uint32_t i = 0; q->result.logits && i < q->wanted; i++)
        SG_TRY(sg_logits_check(q->result.logits + (size_t)i * g->vocab, g->vocab, err));
    for (uint32_t i = 0; i < q->batch.outputs_n; i++) {
        const struct sg_value *value = &g->values[g->outputs[q->batch.outputs[i]].value];
        size_t n = (size_t)(value->wanted ? q->wanted : q->rows) * value->width;
        if (!sg_numbers_finite(q->result.values[i], n * sizeof(float), SG_F32))
            return sg_fail(err, SEGUE_EFORMAT, "run: layer %u: its rows are not numbers; the weights are damaged", g->layer_to);
    }
    return SEGUE_OK;
}

/* Counters and states are sent after a failed run too, because tokens may have been completed. */
segue_status sg_serve_run(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    struct request q = {0};
    uint32_t asked = sg_reader_u32(in);
    segue_status status = request_read(v, in, &q, err);
    /* Also after a rejected request: the peer expects the message before the reply. */
    if (status != SEGUE_OK) send_accepted(v, asked);
    SG_TRY(status);
    status = run(v, &q, asked, err);
    if (status == SEGUE_OK) status = results_check(&q, err);
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
