/* anerun.c: one batch on the unit `ane`: each span is cut into dispatches of 1, 32, 64, .. 512 rows (aneshape.c), the last one
 * padded on the right; every part runs on them in turn, its output the next one's input. A dispatch is all or nothing: the state
 * turns when the last part is done. What stands behind `rows` is the helper's. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "unit/ane/aneunit.h"

struct sg_run {
    struct sg_thread_run own;
    struct sg_program *program;
    struct ane_host host;
    int kept;
    uint32_t rows_n[2];      /* of the batch: all, wanted */
    uint64_t dispatches, host_bytes; /* host_bytes: copied to and from surfaces */
    uint64_t columns, unseen;
};

static uint64_t state_rows(const struct sg_state *s) { return s->rows; }
static const struct sg_slot *state_slot(const struct sg_state *s, uint32_t i)
{
    return i < s->slots_n ? &s->slots[i].slot : NULL;
}
static const struct sg_batch_rules rules = {.unit = "ane", .rows = state_rows, .slot = state_slot};

/* --- rows to and from surfaces --- */

static segue_status value_room(struct sg_run *run, int32_t value, float **out)
{
    const struct sg_value *v = &run->host.g->values[value];
    size_t bytes;
    SG_TRY(sg_mul((size_t)v->width * sizeof(float), run->rows_n[v->wanted], &bytes, "rows of a run", run->host.err));
    if (!run->host.values[value]) run->host.values[value] = sg_alloc(bytes);
    *out = run->host.values[value];
    return *out ? SEGUE_OK : sg_no_memory("rows of a run", bytes, run->host.err);
}

/* Transposes fp32 rows [n][width] to fp16 channels [width][columns], scaled; columns after n are
 * zero. EUNSUPPORTED: a value overflows fp16 (exponent bits all set). */
static segue_status put_value(const float *rows, uint32_t n, uint32_t width, uint32_t columns, float scale, uint16_t *out,
                              segue_error *err)
{
    for (uint32_t c = 0; c < width; c++, out += columns) {
        for (uint32_t t = 0; t < n; t++) {
            out[t] = sg_f16_of_f32(rows[(size_t)t * width + c] * scale);
            if ((out[t] & 0x7c00) == 0x7c00)
                return sg_fail(err, SEGUE_EUNSUPPORTED,
                               "run: ane: row %u, column %u: %g is beyond fp16; use another unit for this model", t, c,
                               (double)rows[(size_t)t * width + c]);
        }
        memset(out + n, 0, (columns - n) * sizeof *out);
    }
    return SEGUE_OK;
}

/* The reverse: fp16 channels to fp32 rows, scaled back. */
static void get_value(const uint16_t *in, uint32_t n, uint32_t width, uint32_t columns, float scale, float *rows)
{
    for (uint32_t c = 0; c < width; c++, in += columns)
        for (uint32_t t = 0; t < n; t++) rows[(size_t)t * width + c] = sg_f32_of_f16(in[t]) * scale;
}

/* Copies rows [at, at + n) of all listed values to (in = 1) or from a border surface, where they
 * are packed one after the other. With a range plan, value v is stored divided by 2^shift[v].
 * Unused channels of an input are zeroed. */
static segue_status border(struct sg_run *run, const int32_t *values, uint32_t values_n, uint32_t at, uint32_t n,
                           const struct sg_ane_shape *shape, struct sg_ane_surface *s, int in)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(s);
    const struct sg_graph *g = run->host.g;
    segue_status status = SEGUE_OK;
    void *bytes;
    SG_TRY(ops->lock(s, in, &bytes, NULL, run->host.err));
    uint16_t *place = bytes;
    for (uint32_t i = 0; i < values_n && status == SEGUE_OK; i++) {
        uint32_t width = g->values[values[i]].width;
        const int8_t *shift = run->program->range.value; /* it lies divided by 2^this */
        float scale = shift ? ldexpf(1, shift[values[i]]) : 1, *rows;
        status = value_room(run, values[i], &rows);
        if (status != SEGUE_OK) break;
        rows += (size_t)at * width;
        if (in)
            status = put_value(rows, n, width, shape->columns, 1 / scale, place, run->host.err);
        else
            get_value(place, n, width, shape->columns, scale, rows);
        place += (size_t)width * shape->columns;
        run->host_bytes += 2ull * width * n;
    }
    uint16_t *end = (uint16_t *)bytes + (size_t)sg_ane_port_channels(g, values, values_n) * shape->columns;
    if (in && status == SEGUE_OK) memset(place, 0, (size_t)(end - place) * sizeof *place);
    ops->unlock(s);
    return status;
}

/* --- a dispatch --- */

/* Runs one part. Ports are matched to surfaces by the role in their name. Activations alternate
 * between p->x[0] and p->x[1]; states are read from `now` and written to `next`. */
static segue_status evaluate(struct sg_run *run, struct ane_set *set, const struct ane_lora *lora, struct sg_state *state,
                             uint32_t part, int turn)
{
    struct sg_program *p = run->program;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    const struct sg_ane_port *in, *out;
    struct sg_ane_surface *ins[4], *outs[2];
    uint32_t in_n, out_n;
    SG_TRY(ops->ports(set->programs[part], 0, &in, &in_n, &out, &out_n, run->host.err));
    for (uint32_t i = 0; i < in_n && i < 4; i++) {
        enum sg_ane_role role = sg_ane_role_of(in[i].name);
        ins[i] = role == SG_ANE_INFO    ? p->info
                 : role == SG_ANE_STATE ? state->now[part]
                 : role == SG_ANE_LORA  ? lora->surfaces[part]
                                        : p->x[turn];
    }
    for (uint32_t i = 0; i < out_n && i < 2; i++)
        outs[i] = sg_ane_role_of(out[i].name) == SG_ANE_STATE ? state->next[part] : p->x[!turn];
    run->dispatches++;
    return ops->evaluate(set->programs[part], 0, ins, outs, run->host.err);
}

/* Writes the info surface (positions, masks). In single-row decode only the entries that differ
 * from the previous position are written, when the surface still has the same key count. */
static segue_status inform(struct sg_run *run, const struct ane_set *set, uint64_t first, uint32_t n)
{
    struct sg_program *p = run->program;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    const struct sg_ane_shape *shape = &set->shape;
    void *bytes;
    if (!set->info.channels) return SEGUE_OK;
    SG_TRY(ops->lock(p->info, 1, &bytes, NULL, run->host.err));
    if (shape->rows == 1 && p->info_keys == shape->keys) {
        run->host_bytes += 2 * sg_ane_info_step(&set->info, p->base.graph, shape, p->info_first, first, bytes);
    } else {
        sg_ane_info_fill(&set->info, p->base.graph, shape, first, n, bytes);
        run->host_bytes += 2ull * set->info.channels * shape->columns;
    }
    ops->unlock(p->info);
    p->info_keys = shape->rows == 1 ? shape->keys : 0;
    p->info_first = first;
    return SEGUE_OK;
}

/* Runs rows [at, at + n) of the batch through all parts; they are the next rows of the span's
 * state. Order matters: marks copy rows before the engine overwrites them, and the state must be
 * on the engine before that. */
static segue_status dispatch(struct sg_run *run, const struct sg_span *span, const struct sg_ane_shape *shape, uint32_t at,
                             uint32_t n)
{
    struct sg_program *p = run->program;
    const struct sg_ane_partition *cut = &p->cut[run->kept];
    struct sg_state *state = span->state;
    struct ane_lora *lora;
    struct ane_set *set;
    int turn = 0;
    SG_TRY(ane_set_of(p, shape, run->kept, &set, run->host.err));
    uint64_t before = state->copied;
    SG_TRY(ane_state_upload(state, p, shape->keys, set->state_bytes, run->host.err));
    SG_TRY(ane_state_prepare(state, n, run->host.err));
    run->host_bytes += state->copied - before;
    SG_TRY(ane_lora_of(p, set, span, &lora, &run->host_bytes, run->host.err));
    SG_TRY(border(run, cut->parts[0].in, cut->parts[0].in_n, at, n, shape, p->x[0], 1));
    SG_TRY(inform(run, set, state->rows, n));
    for (uint32_t i = 0; i < cut->parts_n; i++, turn = !turn) SG_TRY(evaluate(run, set, lora, state, i, turn));
    const struct sg_ane_part *last = &cut->parts[cut->parts_n - 1];
    return border(run, last->out, last->out_n, at, n, shape, p->x[turn], 0);
}

/* Number of rows that keys=N hides from the last row, the maximum over layers. */
static uint64_t unseen_of(const struct sg_state *s)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct sg_slot *slot = &s->slots[i].slot;
        uint64_t reach = ane_is_rows(slot) ? ane_reach(s, slot) : 0,
                 asked = slot->window && slot->window < s->rows ? slot->window : s->rows;
        if (reach && asked > reach && asked - reach > most) most = asked - reach;
    }
    return most;
}

/* Cuts the rows of a span into dispatches of the row counts that programs exist for, and advances
 * the state after each. Cancellation is checked between dispatches. */
static segue_status run_span(struct sg_run *run, uint32_t s, uint32_t at)
{
    const struct sg_span *span = &run->own.spans[s];
    uint32_t rank = ane_lora_columns(run->program, span);
    for (uint32_t done = 0; done < span->rows;) {
        uint32_t left = span->rows - done, rows = ane_rows_for(run->program, span->state->rows, left),
                 n = left < rows ? left : rows;
        struct sg_ane_shape shape;
        SG_TRY(ane_shape_of(run->program, rows, span->state->rows + n, rank, &shape, run->host.err));
        if (run->own.batch.cancel && atomic_load(run->own.batch.cancel))
            return sg_fail(run->host.err, SEGUE_ECANCELED, "run: ane: canceled by the caller");
        if (run->program->cut[0].parts_n) SG_TRY(dispatch(run, span, &shape, at + done, n));
        ane_state_advance(span->state, n);
        run->columns += shape.columns;
        done += n;
        run->own.rows_done[s] = done;
    }
    uint64_t unseen = unseen_of(span->state);
    if (unseen > run->unseen) run->unseen = unseen;
    return SEGUE_OK;
}

/* --- the helper's part --- */

/* Fills the graph inputs of all spans on the host: given values are copied, embeddings are looked
 * up. */
static segue_status inputs(struct sg_run *run)
{
    const struct sg_graph *g = run->host.g;
    const struct sg_ane_partition *cut = &run->program->cut[run->kept];
    for (uint32_t s = 0, at = 0; s < run->own.batch.spans_n; at += run->own.spans[s++].rows) {
        const struct sg_span *span = &run->own.spans[s];
        float *rows;
        for (uint32_t i = 0; i < g->inputs_n; i++) {
            const struct sg_value *v = &g->values[g->inputs[i].value];
            if (v->kind != SG_VALUE_ROWS) continue;
            SG_TRY(value_room(run, g->inputs[i].value, &rows));
            memcpy(rows + (size_t)at * v->width, span->values, (size_t)span->rows * v->width * sizeof *rows);
        }
        for (uint32_t i = 0; i < cut->before_n; i++) {
            const struct sg_op *op = &g->ops[cut->before[i]];
            SG_TRY(value_room(run, op->out, &rows));
            SG_TRY(ane_embed(&run->host, op, span->tokens, span->first, span->rows,
                             rows + (size_t)at * g->values[op->out].width));
        }
    }
    return SEGUE_OK;
}

/* Gathers the wanted rows of all spans. */
static void select_rows(struct sg_run *run, const struct sg_op *op, float *out)
{
    const struct sg_operand *x = &op->in[0];
    uint32_t stride = run->host.g->values[x->value].width, at = 0;
    for (uint32_t s = 0; s < run->own.batch.spans_n; at += run->own.spans[s++].rows)
        for (uint32_t i = 0; i < run->own.spans[s].wanted_n; i++, out += x->width)
            memcpy(out, run->host.values[x->value] + (size_t)(at + run->own.spans[s].wanted[i]) * stride + x->at,
                   x->width * sizeof *out);
}

/* Host operations after the last part, on wanted rows only: row selection, output projection, its
 * adapters. */
static segue_status behind(struct sg_run *run)
{
    const struct sg_ane_partition *cut = &run->program->cut[run->kept];
    run->host.rows = run->rows_n[1];
    for (uint32_t i = 0; i < cut->behind_n && run->rows_n[1]; i++) {
        const struct sg_op *op = &run->host.g->ops[cut->behind[i]];
        float *out;
        SG_TRY(value_room(run, op->out, &out));
        if (op->code == SG_OP_ROWS)
            select_rows(run, op, out);
        else
            SG_TRY(ane_host_op(&run->host, op, out));
        for (uint32_t s = 0, at = 0; s < run->own.batch.spans_n; at += run->own.spans[s++].wanted_n)
            SG_TRY(ane_host_lora(&run->host, op, &run->own.spans[s], at, out));
    }
    return SEGUE_OK;
}

static void give(struct sg_run *run, int32_t value, float *to)
{
    const struct sg_value *v = &run->host.g->values[value];
    if (to && run->host.values[value])
        memcpy(to, run->host.values[value], (size_t)v->width * run->rows_n[v->wanted] * sizeof *to);
}

static void results(struct sg_run *run)
{
    const struct sg_graph *g = run->host.g;
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    if (logits >= 0) give(run, g->outputs[logits].value, run->own.result.logits);
    for (uint32_t i = 0; run->own.result.values && i < run->own.batch.outputs_n; i++)
        give(run, g->outputs[run->own.batch.outputs[i]].value, run->own.result.values[i]);
}

static segue_status run_all(struct sg_run *run)
{
    uint64_t begun = sg_now_ns();
    SG_TRY(inputs(run));
    run->host.ns = sg_now_ns() - begun;
    for (uint32_t s = 0, at = 0; s < run->own.batch.spans_n; at += run->own.spans[s++].rows) SG_TRY(run_span(run, s, at));
    begun = sg_now_ns();
    SG_TRY(behind(run));
    results(run);
    run->host.ns += sg_now_ns() - begun;
    return SEGUE_OK;
}

/* Marks a state as free and wakes waiting threads. */
static void release(struct sg_state *s)
{
    pthread_mutex_lock(&s->lock);
    s->busy = 0;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

static void work(struct sg_thread_run *own)
{
    struct sg_run *run = (struct sg_run *)(void *)own;
    own->status = run_all(run);
    for (uint32_t s = 0; s < own->batch.spans_n; s++) release(own->spans[s].state);
}

/* --- start and wait --- */

static void run_free(struct sg_run *run)
{
    for (uint32_t i = 0; run->host.values && i < run->host.g->values_n; i++) sg_free(run->host.values[i]);
    sg_free(run->host.values);
    sg_thread_run_free(&run->own);
    sg_free(run);
}

/* 1 if the caller asks for an output over all rows that a part computes; only programs of the
 * second cut write it out. */
static int wants_kept(const struct sg_graph *g, const struct sg_batch *b)
{
    for (uint32_t i = 0; i < b->outputs_n; i++) {
        const struct sg_value *v = &g->values[g->outputs[b->outputs[i]].value];
        if (!v->wanted && v->op >= 0 && g->ops[v->op].code != SG_OP_EMBED) return 1;
    }
    return 0;
}

static segue_status refuse(const struct sg_batch *b, segue_error *err)
{
    for (uint32_t i = 0; i < b->spans_n; i++) {
        const struct sg_span *s = &b->spans[i];
        const char *why = s->sampler || s->steps > 1 ? "choosing tokens" : NULL;
        if (why) return sg_fail(err, SEGUE_EUNSUPPORTED, "run: ane: %s: not on this unit; use another", why);
    }
    return SEGUE_OK;
}

static segue_status run_fill(struct sg_run *run, const struct sg_batch *b, struct sg_result *r, segue_error *err)
{
    struct sg_program *p = run->program;
    const struct sg_graph *g = p->base.graph;
    run->host = (struct ane_host){.g = g, .pool = p->base.unit->pool, .err = &run->own.error};
    run->kept = wants_kept(g, b);
    SG_TRY(sg_thread_run_init(&run->own, &p->base, b, r, work, err));
    run->host.values = sg_alloc(g->values_n * sizeof *run->host.values);
    if (!run->host.values) return sg_no_memory("a run of ane", 0, err);
    for (uint32_t i = 0; i < b->spans_n; i++) {
        run->rows_n[0] += b->spans[i].rows;
        run->rows_n[1] += b->spans[i].wanted_n;
    }
    return SEGUE_OK;
}

/* Marks all states of the batch as busy, or none: EARG when one is in use, which also catches two
 * spans with the same state. */
static segue_status take_states(const struct sg_batch *b, segue_error *err)
{
    for (uint32_t i = 0; i < b->spans_n; i++) {
        struct sg_state *s = b->spans[i].state;
        pthread_mutex_lock(&s->lock);
        int busy = s->busy;
        s->busy = 1;
        pthread_mutex_unlock(&s->lock);
        if (!busy) continue;
        while (i) release(b->spans[--i].state);
        return sg_fail(err, SEGUE_EARG, "run: ane: two spans or runs share a state; fork it");
    }
    return SEGUE_OK;
}

segue_status ane_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                       segue_error *err)
{
    SG_TRY(sg_batch_check(&rules, &p->base, b, err));
    SG_TRY(refuse(b, err));
    struct sg_run *run = sg_alloc(sizeof *run);
    if (!run) return sg_no_memory("a run of ane", sizeof *run, err);
    run->program = p;
    segue_status status = run_fill(run, b, r, err);
    if (status == SEGUE_OK) status = take_states(b, err);
    if (status != SEGUE_OK) {
        run_free(run);
        return status;
    }
    sg_thread_run_start(&run->own);
    *out = run;
    return SEGUE_OK;
}

segue_status ane_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    segue_status status = sg_thread_run_wait(&run->own, timeout_ns, err);
    if (status == SEGUE_END) return status;
    run->own.report->dispatches = run->dispatches;
    run->own.report->host_bytes = run->host_bytes;
    run->own.report->columns = run->columns;
    run->own.report->unseen = run->unseen;
    run->own.report->weight_bytes = run->host.weight_bytes;
    run->own.report->helper_ns = run->host.ns;
    run->own.report->state_bytes = 0;
    run_free(run);
    return status;
}
