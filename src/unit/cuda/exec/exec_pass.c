/* exec_pass.c: one pass of a run: selects the stream, issues or replays the steps, copies the results that were requested, and
 * counts the new rows. SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/exec/choose.h"
#include "unit/mask_gate.h"

/* Work in the new stream follows all work in the old one. Readers of kept logits look at l->stream under the lock. */
static segue_status change_stream(struct sg_run *run, cu_stream want)
{
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = run->lane;
    SG_TRY(cu_run_check(run, u->d.event_record(l->stream_event, l->stream)));
    SG_TRY(cu_run_check(run, u->d.stream_wait_event(want, l->stream_event, 0)));
    pthread_mutex_lock(&u->logits_lock);
    l->stream = want;
    pthread_mutex_unlock(&u->logits_lock);
    return SEGUE_OK;
}

/* A prefill pass in its SM partition waits for the decode steps that were issued on all multiprocessors: blocks of both on the
 * same multiprocessors would slow down both. */
static segue_status wait_for_full_gpu_steps(struct sg_run *run)
{
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = run->lane, *few = &run->program->lanes[CU_LANE_DECODE];
    pthread_mutex_lock(&u->logits_lock);
    int whole = few->stream == few->stream_all;
    pthread_mutex_unlock(&u->logits_lock);
    /* done[] are the events of the last decode steps, of both args blocks. */
    for (int i = 0; i < 2 && whole && l->stream == l->stream_part && l != few; i++)
        SG_TRY(cu_run_check(run, u->d.stream_wait_event(l->stream, few->done[i], 0)));
    return SEGUE_OK;
}

/* Decided per pass: a run that begins alone moves to its partition when a run of the other kind starts, and back. */
segue_status cu_pass_select_stream(struct sg_run *run)
{
    struct cu_lane *l = run->lane;
    cu_stream want = l->stream_part && cu_partition_active(run->program->base.unit, l->kind) ? l->stream_part : l->stream_all;
    if (want != l->stream) SG_TRY(change_stream(run, want));
    return wait_for_full_gpu_steps(run);
}

/* p->spans is set only when a span has adapters, so that all other passes use fused steps. All parts have one storage of K and
 * V. */
void cu_pass_begin(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, const struct sg_span **spans)
{
    const struct sg_unit *u = run->program->base.unit;
    *p = (struct cu_pass){.program = run->program,
                          .lane = run->lane,
                          .sms = run->lane->stream == run->lane->stream_part ? u->partition.sms[run->lane->kind] : u->sms,
                          .best = plan->best && !plan->sampled,
                          .sampled = plan->sampled,
                          .logprobs = plan->logprobs,
                          .screen = plan->screen && run->program->screen.head != NULL,
                          .banned = plan->banned,
                          .kv = run->base.spans[plan->parts[0].span].state->core.storage,
                          .err = &run->base.error,
                          .narrowed_by = -1};
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        spans[i] = &run->base.spans[plan->parts[i].span];
        if (spans[i]->loras_n) p->spans = spans;
    }
}

/* Two kinds of passes are captured: decode passes in which every row is wanted (one row per sequence), and padded prompts.
 * Passes of the greedy generation of one row may also skip the embedding, when the previous choice has written it. */
segue_status cu_pass_issue(struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p)
{
    /* few: one row of each sequence, all wanted. same: such a pass will be repeated, so capturing pays. */
    int few = p->rows_n[0] <= CU_DECODE_ROWS && p->rows_n[0] == p->rows_n[1] && p->rows_n[0] == p->spans_n;
    int same = few && p->program->base.unit->graphs && !cu_pass_is_unfused(run, p) && p->program->base.graph->vocab;
    struct cu_lane *l = p->lane;
    struct ck_embed next;
    int continues = same && plan->advance && p->rows_n[0] == 1;
    p->embedded = continues && l->embedded == 1 + p->args_index;
    p->embeds = continues && plan->best && !plan->late && cu_next_embed(p, &next);
    l->embedded = 0;
    /* The output head of a graph that serves every way to choose reports no best logits. */
    if (p->padded) p->best = 0;
    SG_TRY(cu_cluster_pass_begin(p));
    segue_status status = same || p->padded ? cu_pass_launch_graph(run, plan, p) : cu_pass_issue_steps(run, plan, p);
    if (status == SEGUE_OK) cu_cluster_pass_done(p);
    if (status == SEGUE_OK && p->embeds) l->embedded = 1 + (plan->advance == 2 ? !p->args_index : p->args_index);
    run->launches += p->launches;
    p->launches = 0;
    return status;
}

/* Counts the rows of each part as held, with the bytes that the pass read and wrote of its states. */
void cu_pass_commit(struct sg_run *run, const struct cu_pass_plan *plan)
{
    run->passes++;
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        const struct sg_span *s = &run->base.spans[plan->parts[i].span];
        run->base.rows_done[plan->parts[i].span] += plan->parts[i].rows;
        for (uint32_t k = 0; k < s->state->core.slots_n; k++) {
            const struct sg_core_slot *slot = sg_core_slot_at(&s->state->core, k);
            run->state_bytes += slot->fixed_bytes * 2 + slot->row_bytes * (s->first + plan->parts[i].from + plan->parts[i].rows);
        }
        cu_state_advance(s->state, plan->parts[i].rows);
    }
}

/* Pinned, so that copies do not block. */
segue_status cu_pass_logits_buffer(struct sg_run *run, float **out)
{
    struct cu_lane *l = run->lane;
    if (!l->host_logits) {
        void *p = NULL;
        SG_TRY(cu_run_check(run, run->program->base.unit->d.host_alloc(&p,
                                                                       (size_t)run->program->base.graph->vocab * CK_SPANS *
                                                                           sizeof(float),
                                                                       CU_HOST_MAPPED)));
        l->host_logits = p;
    }
    *out = l->host_logits;
    return SEGUE_OK;
}

/* Copies the logits of all wanted rows to pinned memory, in one copy. */
static segue_status fetch_logits(struct sg_run *run, struct cu_pass *p, int32_t logits)
{
    uint32_t vocab = run->program->base.graph->vocab;
    struct sg_operand whole = {.value = logits, .width = vocab};
    float *to;
    SG_TRY(cu_pass_logits_buffer(run, &to));
    return cu_run_check(run, run->program->base.unit->d.copy_dtoh(to, (cu_ptr)(uintptr_t)cu_view_of(p, &whole).p,
                                                                  (size_t)p->rows_n[1] * vocab * sizeof(float), p->lane->stream));
}

/* From the lane's pinned buffer to the result, which has the wanted rows of all spans in order. */
static void scatter_logits(struct sg_run *run, const struct cu_pass_plan *plan, const struct cu_pass *p)
{
    size_t vocab = run->program->base.graph->vocab;
    for (uint32_t k = 0; k < plan->parts_n; k++) {
        uint32_t from = p->from[1][k], n = p->from[1][k + 1] - from;
        size_t at = cu_rows_before(run, plan->parts[k].span, 1) + plan->wanted_from[k];
        memcpy(run->base.result.logits + at * vocab, p->lane->host_logits + from * vocab, n * vocab * sizeof(float));
    }
}

/* The value buffers have logits of earlier runs, which callers may still request from their states. */
segue_status cu_pass_save_logits(struct sg_run *run)
{
    return cu_logits_move_out(run->program->base.unit, run->lane, run->lane->runs, run->base.spans, run->base.batch.spans_n,
                              &run->base.error);
}

/* Records where the logits of each part's last wanted row are. With the candidate filter most logits do not exist, so none are
 * kept; when the caller received them, it does not request them again. */
void cu_pass_keep_logits(struct sg_run *run, const struct cu_pass_plan *plan, const struct cu_pass *p)
{
    const struct sg_graph *g = run->program->base.graph;
    for (uint32_t i = 0; p->screen && i < plan->parts_n; i++) cu_logits_forget(run->base.spans[plan->parts[i].span].state);
    if (!g->vocab || run->base.result.logits || p->screen) return;
    struct sg_operand whole = {.value = g->outputs[sg_graph_output(g, "logits")].value, .width = g->vocab};
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        const float *row = cu_view_of(p, &whole).p + (size_t)(p->from[1][i + 1] - 1) * g->vocab;
        if (p->from[1][i + 1] > p->from[1][i])
            cu_logits_keep(p->lane, run->base.spans[plan->parts[i].span].state, (cu_ptr)(uintptr_t)row, g->vocab, p->lane->runs);
    }
}

/* While the GPU computes the pass, the host waits for the masks; the choice follows in the pass's stream. */
segue_status cu_pass_choose_late(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, cu_stream copies)
{
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = run->lane;
    for (uint32_t i = 0; i < plan->sampled; i++) sg_sampler_wait(plan->late[i].sampler);
    SG_TRY(cu_samplers_upload(run, plan->late, plan->sampled, 0, copies));
    if (copies != l->stream) {
        SG_TRY(cu_run_check(run, u->d.event_record(l->stream_event, copies)));
        SG_TRY(cu_run_check(run, u->d.stream_wait_event(l->stream, l->stream_event, 0)));
    }
    segue_status status = cu_issue_choice(p, plan->advance, plan->stops_n);
    run->launches += p->launches;
    p->launches = 0;
    return status;
}

/* Logits for the caller go through pinned memory when they are few. States advance only after the stream is synchronised: until
 * then an error leaves them as they were. */
segue_status cu_pass_run(struct sg_run *run, struct cu_pass_plan *plan, int copy_logits)
{
    const struct sg_span *spans[CK_SPANS];
    const struct sg_graph *g = run->program->base.graph;
    struct sg_unit *u = run->program->base.unit;
    struct cu_pass p;
    if (cu_run_stopped(run)) return sg_fail(&run->base.error, SEGUE_ECANCELED, "run: cuda: canceled by the caller");
    SG_TRY(cu_pass_select_stream(run));
    cu_pass_begin(run, plan, &p, spans);
    /* This pass overwrites the arguments of the lookahead step. */
    p.lane->ahead.active = 0;
    SG_TRY(cu_pass_save_logits(run));
    SG_TRY(cu_pass_fill_head(run, plan, &p));
    cu_pass_pad(run, plan, &p);
    SG_TRY(cu_pass_alloc(run, &p));
    SG_TRY(cu_pass_send_head(run, &p));
    SG_TRY(cu_pass_send_inputs(run, plan, &p));
    SG_TRY(cu_pass_issue(run, plan, &p));
    if (plan->late) SG_TRY(cu_pass_choose_late(run, plan, &p, p.lane->stream));
    int32_t logits = g->vocab ? g->outputs[sg_graph_output(g, "logits")].value : -1;
    int wants_logits = logits >= 0 && copy_logits && run->base.result.logits,
        pinned = wants_logits && p.rows_n[1] <= CK_SPANS && p.rows_n[1];
    if (pinned)
        SG_TRY(fetch_logits(run, &p, logits));
    else if (wants_logits)
        SG_TRY(cu_copy_rows_out(run, plan, &p, logits, run->base.result.logits));
    SG_TRY(cu_run_check(run, u->d.stream_sync(p.lane->stream)));
    if (pinned) scatter_logits(run, plan, &p);
    cu_pass_keep_logits(run, plan, &p);
    cu_pass_commit(run, plan);
    return SEGUE_OK;
}
