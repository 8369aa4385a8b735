/* anerun.c: runs of the unit `ane`. Embeddings are computed on the host. Each span is then cut into dispatches (aneshape.c),
 * whose rows are padded to the number of columns of the program; each part of the graph runs on them in order, and its output
 * surface is the input surface of the next part. The operations after the selection of wanted rows run on the host again.
 *
 * A dispatch is all or nothing: the state advances when the last part is done, so rows_done counts complete dispatches. Tokens
 * are chosen in anechoose.c, with option head=engine only. See aneunit.h, anerun.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "unit/ane/anerun.h"

static struct sg_run *run_of(struct sg_thread_run *common) { return (struct sg_run *)(void *)common; }

/* --- a dispatch --- */

/* Where the ports of a part are bound. Values are read from x[turn] and written to x[!turn]; the state is read from `now` and
 * written to `next`. */
struct ane_binding {
    struct sg_run *run;
    const struct ane_lora *lora;
    struct sg_state *state;
    uint32_t part;
    int turn;
};

static struct sg_ane_surface *bound(void *context, enum sg_ane_role role, int is_output)
{
    const struct ane_binding *b = context;
    struct sg_program *p = b->run->program;
    if (is_output) return role == SG_ANE_STATE ? b->state->next[b->part] : p->x[!b->turn];
    return role == SG_ANE_INFO    ? p->info
           : role == SG_ANE_STATE ? b->state->now[b->part]
           : role == SG_ANE_LORA  ? b->lora->surfaces[b->part]
                                  : p->x[b->turn];
}

/* Evaluates one part on the engine. A part has at most 4 inputs (values, info, state, adapters) and 2 outputs. */
static segue_status evaluate(struct ane_binding *b, struct ane_set *set)
{
    struct sg_run *run = b->run;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(run->program->base.unit->device);
    const struct sg_ane_port *in, *out;
    struct sg_ane_surface *ins[4], *outs[2];
    uint32_t in_n, out_n;
    SG_TRY(ops->ports(set->programs[b->part], 0, &in, &in_n, &out, &out_n, run->host.err));
    for (uint32_t i = 0; i < in_n && i < 4; i++) ins[i] = bound(b, sg_ane_role_of(in[i].name), 0);
    for (uint32_t i = 0; i < out_n && i < 2; i++) outs[i] = bound(b, sg_ane_role_of(out[i].name), 1);
    run->dispatches++;
    run->layout_ops += set->layout_ops[b->part];
    return ops->evaluate(set->programs[b->part], 0, ins, outs, run->host.err);
}

/* Writes the info surface: positions, masks and ring entries of rows [first, first + n). Decode writes one row at a time; then
 * only the entries that differ from the previous position are written, if the surface has the layout of the same keys. */
static segue_status info_write(struct sg_run *run, const struct ane_set *set, uint64_t first, uint32_t n)
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

/* Runs rows [at, at + n) of the batch through all parts, on the engine or in fp32 on the host, and reads the values of the last
 * one unless the next program on the engine does. */
static segue_status run_parts(struct ane_binding *b, struct ane_set *set, uint32_t at, uint32_t n)
{
    struct sg_run *run = b->run;
    struct sg_program *p = run->program;
    const struct sg_ane_partition *cut = &p->cut[run->all_rows];
    uint64_t start_ns = sg_now_ns();
    b->turn = 0;
    SG_TRY(ane_run_copy(run, cut->parts[0].in, cut->parts[0].in_n, at, n, &set->shape, 0, p->x[0], 1));
    for (b->part = 0; b->part < cut->parts_n; b->part++, b->turn = !b->turn)
        SG_TRY(p->on_helper ? ane_wide_evaluate(p, set, b->part, bound, b, run->host.err) : evaluate(b, set));
    if (p->on_helper)
        run->host.ns += sg_now_ns() - start_ns;
    else
        SG_TRY(ane_losses_check(p->base.unit, &run->overflows, &run->underflows, run->host.err));
    /* After the last exchange x[turn] is the output of the last part. */
    const struct sg_ane_part *last = ane_run_last(run);
    return run->on_engine ? SEGUE_OK : ane_run_copy(run, last->out, last->out_n, at, n, &set->shape, 0, p->x[b->turn], 0);
}

/* The programs of a shape, and that of the head where this dispatch needs it. When a budget of the engine ends between the two,
 * both are loaded anew. */
static segue_status programs_of(struct sg_run *run, const struct sg_ane_shape *shape, int with_head, struct ane_set **set)
{
    struct sg_program *p = run->program;
    SG_TRY(ane_set_of(p, shape, run->all_rows, set, run->host.err));
    if (!with_head || p->on_helper) return SEGUE_OK;
    segue_status status = ane_head_ready(p, run->host.err);
    if (status != SEGUE_ELIMIT) return status;
    SG_TRY(ane_restart(p->base.unit, run->host.err));
    SG_TRY(ane_head_ready(p, run->host.err));
    return ane_set_of(p, shape, run->all_rows, set, run->host.err);
}

/* Runs rows [done, done + n) of span s, `from` + these of the batch; they are the next n tokens of its state, and one of them may
 * be the row that a token is chosen from. The state is uploaded before it is
 * prepared, because the rows that marks must save depend on the rings of that layout. The state does not advance here, so that
 * rows whose results leave the range of fp16 can be computed again on the host. */
static segue_status dispatch(struct sg_run *run, uint32_t s, const struct sg_ane_shape *shape, uint32_t from, uint32_t done,
                             uint32_t n)
{
    const struct sg_span *span = &run->common.spans[s];
    struct sg_program *p = run->program;
    struct sg_state *state = span->state;
    struct ane_lora *lora;
    struct ane_set *set;
    uint32_t row = run->on_engine && span->wanted_n ? span->wanted[span->wanted_n - 1] : UINT32_MAX;
    int chooses = row >= done && row < done + n;
    p->row_id = 0;
    SG_TRY(programs_of(run, shape, chooses, &set));
    /* state->copied counts both directions; the difference is what this dispatch copied. */
    uint64_t before = state->copied;
    SG_TRY(ane_state_upload(state, p, shape->keys, set->state_bytes, run->host.err));
    SG_TRY(ane_state_prepare(state, n, run->host.err));
    run->host_bytes += state->copied - before;
    SG_TRY(ane_lora_of(p, set, span, &lora, &run->host_bytes, run->host.err));
    SG_TRY(info_write(run, set, state->core.tokens, n));
    struct ane_binding b = {.run = run, .lora = lora, .state = state};
    segue_status status = run_parts(&b, set, from + done, n);
    if (status == SEGUE_EUNSUPPORTED && !p->on_helper && p->base.unit->losses == ANE_LOSSES_FP32) {
        p->on_helper = 1;
        status = run_parts(&b, set, from + done, n);
    }
    if (status != SEGUE_OK || !chooses) return status;
    return ane_choose_row(run, s, from + row, row - done, shape, b.turn);
}

/* Positions that the model attends to and option keys= hides from the last token: the maximum over the layers. */
static uint64_t unseen_of(const struct sg_state *s)
{
    uint64_t unseen = 0, tokens = s->core.tokens;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        const struct sg_slot *slot = &ane_slot_at(s, i)->core.slot;
        uint64_t reach = sg_slot_grows(slot) ? ane_reach(s, slot) : 0,
                 wanted = slot->window && slot->window < tokens ? slot->window : tokens;
        if (reach && wanted > reach && wanted - reach > unseen) unseen = wanted - reach;
    }
    return unseen;
}

/* Cuts the rows of span s, of which the first is row `at` of the batch, into dispatches, and advances the state after each. A
 * cancel is noticed between dispatches. A graph without parts has nothing to dispatch; its state advances all the same. */
static segue_status run_span(struct sg_run *run, uint32_t s, uint32_t at)
{
    const struct sg_span *span = &run->common.spans[s];
    uint32_t rank = ane_lora_columns(run->program, span);
    for (uint32_t done = 0; done < span->rows;) {
        uint32_t left = span->rows - done, rows = ane_rows_for(run->program, span->state->core.tokens, left,
                                                                       run->common.batch.shapes),
                 n = left < rows ? left : rows;
        struct sg_ane_shape shape;
        SG_TRY(ane_shape_of(run->program, rows, span->state->core.tokens + n, rank, &shape, run->host.err));
        if (run->common.batch.cancel && atomic_load(run->common.batch.cancel))
            return sg_fail(run->host.err, SEGUE_ECANCELED, "run: ane: canceled by the caller");
        if (run->program->cut[0].parts_n) SG_TRY(dispatch(run, s, &shape, at, done, n));
        ane_state_advance(span->state, n);
        run->columns += shape.columns;
        done += n;
        run->common.rows_done[s] += n;
    }
    uint64_t unseen = unseen_of(span->state);
    if (unseen > run->unseen) run->unseen = unseen;
    return SEGUE_OK;
}

/* --- operations on the host --- */

/* Inputs of the first part, for all spans: values of the caller are copied, tokens are embedded. */
static segue_status host_inputs(struct sg_run *run)
{
    const struct sg_graph *g = run->host.g;
    const struct sg_ane_partition *cut = &run->program->cut[run->all_rows];
    for (uint32_t s = 0, at = 0; s < run->common.batch.spans_n; at += run->common.spans[s++].rows) {
        const struct sg_span *span = &run->common.spans[s];
        float *rows;
        for (uint32_t i = 0; i < g->inputs_n; i++) {
            const struct sg_value *v = &g->values[g->inputs[i].value];
            if (v->kind != SG_VALUE_ROWS) continue;
            SG_TRY(ane_run_value(run, g->inputs[i].value, &rows));
            memcpy(rows + (size_t)at * v->width, span->values, (size_t)span->rows * v->width * sizeof *rows);
        }
        for (uint32_t i = 0; i < cut->before_n; i++) {
            const struct sg_op *op = &g->ops[cut->before[i]];
            SG_TRY(ane_run_value(run, op->out, &rows));
            SG_TRY(ane_embed(&run->host, op, span->tokens, span->first, span->rows,
                             rows + (size_t)at * g->values[op->out].width));
        }
    }
    return SEGUE_OK;
}

/* All rows of a value to the caller's buffer, if there is one and the value was computed. */
static void copy_result(struct sg_run *run, int32_t value, float *to)
{
    const struct sg_value *v = &run->host.g->values[value];
    if (to && run->host.values[value])
        memcpy(to, run->host.values[value], (size_t)v->width * run->rows_n[v->wanted] * sizeof *to);
}

/* The logits and the outputs that the caller requested. */
static void copy_results(struct sg_run *run)
{
    const struct sg_graph *g = run->host.g;
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    if (logits >= 0) copy_result(run, g->outputs[logits].value, run->common.result.logits);
    for (uint32_t i = 0; run->common.result.values && i < run->common.batch.outputs_n; i++)
        copy_result(run, g->outputs[run->common.batch.outputs[i]].value, run->common.result.values[i]);
}

/* One pass over the batch, with the choice of tokens. first: the results are copied, which later steps do not. host.ns covers
 * the host operations before and after the dispatches, not the copies during them. */
static segue_status pass(struct sg_run *run, int first)
{
    uint64_t start_ns = sg_now_ns();
    run->on_engine = ane_chooses_on_engine(run);
    run->rows_n[0] = run->rows_n[1] = 0;
    for (uint32_t s = 0; s < run->common.batch.spans_n; s++) {
        run->rows_n[0] += run->common.spans[s].rows;
        run->rows_n[1] += run->common.spans[s].wanted_n;
    }
    SG_TRY(host_inputs(run));
    run->host.ns += sg_now_ns() - start_ns;
    for (uint32_t s = 0, at = 0; s < run->common.batch.spans_n; at += run->common.spans[s++].rows) SG_TRY(run_span(run, s, at));
    if (run->on_engine) return SEGUE_OK;
    start_ns = sg_now_ns();
    SG_TRY(ane_run_behind(run, ANE_ALL_SPANS));
    if (first) copy_results(run);
    SG_TRY(ane_choose_from_logits(run));
    run->host.ns += sg_now_ns() - start_ns;
    return SEGUE_OK;
}

/* A sampler of several steps replaces that of the span: its history grows. */
static segue_status step(struct sg_thread_run *common, int first, const struct sg_sampler *sampler, int32_t *token)
{
    struct sg_run *run = run_of(common);
    if (sampler) common->spans[0].sampler = sampler;
    SG_TRY(pass(run, first));
    *token = run->token;
    return SEGUE_OK;
}

/* --- what the common run calls --- */

static void release(struct sg_thread_run *common)
{
    struct ane_host *host = &run_of(common)->host;
    for (uint32_t i = 0; host->values && i < host->g->values_n; i++) sg_free(host->values[i]);
    sg_free(host->values);
}

/* 1: the caller requests an output for all rows that is computed on the engine. Only programs of cut[1] write it to a surface. */
static int wants_all_rows(const struct sg_graph *g, const struct sg_batch *b)
{
    for (uint32_t i = 0; i < b->outputs_n; i++) {
        const struct sg_value *v = &g->values[g->outputs[b->outputs[i]].value];
        if (!v->wanted && v->op >= 0 && g->ops[v->op].code != SG_OP_EMBED) return 1;
    }
    return 0;
}

/* Without option head=engine, sampling and runs of several steps are left to the caller: the logits are in host memory anyway. */
static segue_status refuse(const struct sg_program *p, const struct sg_batch *b, segue_error *err)
{
    for (uint32_t i = 0; i < b->spans_n && !p->head.linear; i++) {
        const struct sg_span *s = &b->spans[i];
        if (s->sampler || s->steps > 1)
            return sg_fail(err, SEGUE_EUNSUPPORTED, "run: ane: this unit does not choose tokens; choose them from the logits");
    }
    return SEGUE_OK;
}

/* Everything is checked before a state is acquired. */
static segue_status fill(struct sg_thread_run *common, struct sg_program *p, segue_error *err)
{
    struct sg_run *run = run_of(common);
    const struct sg_graph *g = p->base.graph;
    SG_TRY(refuse(p, &common->batch, err));
    run->program = p;
    run->host = (struct ane_host){.g = g, .pool = p->base.unit->pool, .err = &common->error};
    run->all_rows = wants_all_rows(g, &common->batch);
    run->host.values = sg_alloc(g->values_n * sizeof *run->host.values);
    return run->host.values ? SEGUE_OK : sg_no_memory("a run of ane", g->values_n * sizeof *run->host.values, err);
}

static void report(const struct sg_thread_run *common, struct sg_result *r)
{
    const struct sg_run *run = (const struct sg_run *)(const void *)common;
    r->dispatches = run->dispatches;
    r->host_bytes = run->host_bytes;
    r->columns = run->columns;
    r->layout_ops = run->layout_ops;
    r->overflows = run->overflows;
    r->underflows = run->underflows;
    r->unseen = run->unseen;
    r->weight_bytes = run->host.weight_bytes;
    r->helper_ns = run->host.ns;
    r->state_bytes = 0;
}

static const struct sg_thread_run_ops run_ops = {
    .rules = {.unit = "ane", .rows = sg_state_core_tokens, .slot = sg_state_core_slot_info},
    .size = sizeof(struct sg_run),
    .fill = fill,
    .work = sg_thread_run_steps,
    .step = step,
    .report = report,
    .release = release,
};

segue_status ane_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out, segue_error *err)
{
    return sg_thread_run_open(&run_ops, p, b, r, out, err);
}
