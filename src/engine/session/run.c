/* run.c: one run over the next tokens of one session, through all stages of its active layout, without recovery. A run
 * that fails leaves the session at the tokens that every stage has finished. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "engine/replay/state_hashes.h"
#include "engine/session/session.h"

/* After a failed run: cuts all stages to the tokens that every stage has finished. */
static void cut_to_common(struct segue_session *s, uint32_t done)
{
    struct sg_layout *l = &s->layouts[s->active];
    s->computed += l->n == 1 ? done : 0;
    if (l->n == 1 || sg_layout_cut(l, s->computed, NULL) == SEGUE_OK) return;
    size_t rows = s->computed;
    s->computed = SIZE_MAX;
    sg_session_cut(s, rows);
}

/* 1: the run is decode: one token after earlier ones, not on the prefill layout, and not part of a prompt that a unit reads
 * token by token. */
static int is_decode(const struct segue_session *s, uint32_t rows)
{
    int by_row = s->layouts[SG_PREFILL_LAYOUT].chunk_tokens == 1, prefill = s->split && s->active == SG_PREFILL_LAYOUT;
    return rows == 1 && s->computed && !prefill && !(by_row && s->computed < s->input_n);
}

/* Weight bytes are counted for decode only, whose speed they bound. */
static void count(struct segue_session *s, const struct sg_result *r, int decode)
{
    s->stats.dispatches += r->dispatches;
    if (decode) s->stats.weight_bytes_read += r->weight_bytes;
}

/* ELOST: the states are gone with the unit; failover.c recovers. */
static segue_status fail_run(struct segue_session *s, segue_status status, uint32_t done)
{
    sg_flow_close(s->flow);
    if (status != SEGUE_ELOST) cut_to_common(s, done);
    if (status == SEGUE_ECANCELED) atomic_store(&s->cancel, 0);
    return status;
}

/* Copying from start_ns to end_ns that outlasted the run is exposed time. The hand-off counts the CPU time of copies, because
 * the unit's threads may keep this one waiting; `counted` of it is in the sum. It is never less than the exposed time. */
static void count_exposed(struct segue_session *s, uint64_t counted, uint64_t start_ns, uint64_t end_ns, uint64_t run_end_ns)
{
    if (start_ns < run_end_ns) start_ns = run_end_ns;
    uint64_t exposed = end_ns > start_ns ? end_ns - start_ns : 0;
    s->stats.handoff_exposed_ns += exposed;
    if (exposed > counted) s->stats.handoff_ns += exposed - counted;
}

/* A run during which completed rows are copied to the decode layout. */
static segue_status run_flowing(struct segue_session *s, uint32_t k, const struct sg_run_request *request,
                                const struct sg_batch *b, struct sg_result *r, segue_error *err)
{
    const struct sg_layer_range *layer_range = s->layouts[s->active].stages[k].layer_range;
    struct sg_run *run = NULL;
    struct sg_batch batch = *b;
    batch.inline_hint = batch.quiet = 0;
    uint64_t start_ns = sg_now_ns();
    SG_TRY(sg_layer_range_start(layer_range, &batch, r, &run, err));
    uint64_t before = s->stats.handoff_ns, copy_ns = sg_now_ns();
    int done = sg_session_flow_send(s, k, request->tokens_n, request->is_last);
    uint64_t sent_ns = sg_now_ns();
    segue_status status = sg_layer_range_wait(layer_range, &batch, run, err);
    if (!done) sg_flow_close(s->flow);
    if (status == SEGUE_OK) count_exposed(s, s->stats.handoff_ns - before, copy_ns, sent_ns, start_ns + r->ns);
    return status;
}

/* Runs one stage. The first one takes tokens, the others the hidden values of the stage before; the last one returns what the
 * request asks for, the others their hidden values. */
static segue_status run_stage(struct segue_session *s, uint32_t k, struct sg_run_request *request, uint32_t *done,
                              segue_error *err)
{
    struct sg_layout *l = &s->layouts[s->active];
    const struct sg_layer_range *layer_range = l->stages[k].layer_range;
    int last = k + 1 == l->n;
    float *out_rows = s->hidden[k % 2];
    struct sg_span span = {.state = l->stages[k].state,
                           .rows = request->tokens_n,
                           .first = s->computed,
                           .loras = s->loras,
                           .loras_n = s->adapters_n,
                           .steps = 1};
    struct sg_batch batch = {.spans = &span, .spans_n = 1, .inline_hint = 1, .quiet = 1, .cancel = &s->cancel};
    struct sg_result result = {.rows_done = done};
    if (request->tokens_n > 1) memcpy(batch.shapes, l->shapes, sizeof batch.shapes);
    if (k == 0)
        span.tokens = s->tokens + s->computed;
    else
        span.values = s->hidden[(k - 1) % 2];
    if (last) {
        span.wanted = request->wanted;
        span.wanted_n = request->wanted_n;
        span.sampler = request->sampler;
        batch.outputs = request->outputs;
        batch.outputs_n = request->outputs_n;
        result.logits = request->logits;
        result.values = request->values;
        result.tokens = &request->token;
        result.logprobs = s->logprobs;
        result.logprobs_n = &s->logprobs_n;
    } else {
        batch.outputs = &layer_range->hidden;
        batch.outputs_n = 1;
        result.values = &out_rows;
    }
#ifdef SEGUE_FAULTS
    if (sg_fault_is_lost(layer_range->unit, s->computed, request->tokens_n, err)) return SEGUE_ELOST;
#endif
    uint64_t start_ns = sg_now_ns();
    segue_status status = sg_session_flow_open(s) ? run_flowing(s, k, request, &batch, &result, err)
                                                  : sg_layer_range_run(layer_range, &batch, &result, err);
    segue_phase phase = is_decode(s, request->tokens_n) ? SEGUE_DECODE : SEGUE_PREFILL;
    count(s, &result, phase == SEGUE_DECODE);
    if (status == SEGUE_OK) sg_record_run(s, &l->stages[k], phase, start_ns, request->tokens_n, &result);
    else sg_record_failed_run(s, &l->stages[k], phase, start_ns, &result);
    return status;
}

segue_status sg_session_run_once(struct segue_session *s, struct sg_run_request *request, segue_error *err)
{
    uint64_t start_ns = sg_now_ns();
    int decode = is_decode(s, request->tokens_n);
    uint32_t done = 0;
    segue_status status = SEGUE_OK;
    if (!decode) sg_session_prewarm_peers(s);
    if (s->hashes) SG_TRY(sg_hashes_before(s, request, err));
    for (uint32_t k = 0; k < s->layouts[s->active].n && status == SEGUE_OK; k++) {
        done = 0;
        status = run_stage(s, k, request, &done, err);
    }
    uint64_t *spent = decode ? &s->stats.decode_ns : &s->stats.prefill_ns;
    uint64_t ns = sg_now_ns() - start_ns;
    *spent += ns;
    if (status != SEGUE_OK) return fail_run(s, status, done);
    if (!decode) {
        s->prefill_ns += ns;
        s->prefill_tokens += request->tokens_n;
    }
    s->computed += request->tokens_n;
    sg_recovery_after_run(s, request->tokens_n);
    s->logits_known = 0;
    if (s->hashes) SG_TRY(sg_hashes_after(s, request, decode, err));
    return SEGUE_OK;
}
