/* exec_steps.c: which rows of a run go together, and generation. Greedy generation never comes back to the host between
 * tokens: the choice kernel moves the head on, and tokens arrive through a ring in pinned memory; up to four steps are in
 * flight. Other samplers choose on the host, a step at a time. A run of one greedy row of each sequence leaves the next one
 * running behind it (run_leading). SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "unit/cuda/exec/exec_pass.h"

enum { SPIN = 4000, NAP_NS = 20000, LOGPROBS = 21 };

/* --- choosing --- */

static int is_greedy(const struct sg_sampler *s)
{
    const segue_sampling *p = &s->p;
    return p->temperature <= 0 && !p->bias_n &&
           (p->repeat_penalty <= 0 || (p->repeat_penalty >= 1 && p->repeat_penalty <= 1)) &&
           !(p->presence_penalty > 0 || p->presence_penalty < 0) &&
           !(p->frequency_penalty > 0 || p->frequency_penalty < 0) &&
           !(p->dry_multiplier > 0 || p->dry_multiplier < 0) &&
           !(p->ignore_stops && s->stops_n > CK_BANNED) && !p->logprobs && s->stops_n <= CU_STOPS;
}

static struct ck_banned banned_of(const struct sg_run *run, const struct sg_sampler *s)
{
    uint32_t vocab = run->program->base.graph->vocab;
    struct ck_banned b = {.limit = s->limit && s->limit < vocab ? s->limit : vocab};
    if (s->p.ignore_stops)
        for (; b.n < s->stops_n; b.n++) b.rows[b.n] = s->stops[b.n];
    return b;
}

/* The parts' spans all choose the highest logit of the same rows. */
static int all_greedy(const struct sg_run *run, const struct trip *trip, struct ck_banned *banned)
{
    int any = 0;
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        const struct sg_sampler *s = run->own.spans[trip->parts[i].span].sampler;
        if (!s) continue;
        if (!is_greedy(s)) return 0;
        struct ck_banned own = banned_of(run, s);
        if (any++ && memcmp(banned, &own, sizeof own)) return 0;
        *banned = own;
    }
    return any;
}

/* Several rows and prompts narrow what meets these to fp16 (docs/CUDA-KERNELS.md, "16 bits"). */
static int has_f16(const struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_LINEAR && g->tensors[g->ops[i].u.linear.weight.tensor]->storage == SG_F16) return 1;
    return 0;
}

static segue_status nothing_to_choose(struct sg_run *run)
{
    return sg_fail(&run->own.error, SEGUE_EFORMAT,
                   "choose a token: cuda: a logit is not a number; the model or its file is damaged%s",
                   has_f16(run->program->base.graph) ? ", or numbers beyond a million met its F16 weights: try another unit"
                                                     : "");
}

/* Each part's last wanted row chooses when it is its span's last one. */
static segue_status choose_parts(struct sg_run *run, const struct trip *trip, float *logits,
                                 const struct sg_sampler *one, int32_t *token)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        uint32_t s = trip->parts[i].span, first;
        const struct sg_span *span = &run->own.spans[s];
        uint32_t n = cu_trip_wanted(span, &trip->parts[i], &first);
        row += n;
        if (!span->sampler || !n || first + n != span->wanted_n) continue;
        segue_logprob *logprobs = run->own.result.logprobs ? run->own.result.logprobs + (size_t)s * LOGPROBS : NULL;
        size_t logprobs_n = 0;
        if (trip->best) {
            *token = run->lane->host_chosen[row - 1];
            if (*token < 0) return nothing_to_choose(run);
        } else {
            SG_TRY(sg_thread_run_chooser(&run->own, run->program->base.graph->vocab, &run->own.error));
            SG_TRY(sg_choose(run->own.chooser, one ? one : span->sampler,
                             logits + (size_t)i * run->program->base.graph->vocab,
                             span->first + span->wanted[span->wanted_n - 1] + 1, token, logprobs, &logprobs_n,
                             &run->own.error));
        }
        if (run->own.result.logprobs_n) run->own.result.logprobs_n[s] = logprobs_n;
        if (run->own.result.tokens) run->own.result.tokens[s] = *token;
    }
    return SEGUE_OK;
}

static segue_status pass_and_choose(struct sg_run *run, struct trip *trip, int first,
                                    const struct sg_sampler *one, int32_t *token)
{
    float *logits = NULL;
    int choosing = 0;
    uint32_t wanted = 0, at;
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        const struct sg_span *s = &run->own.spans[trip->parts[i].span];
        uint32_t n = cu_trip_wanted(s, &trip->parts[i], &at);
        wanted += n;
        choosing |= s->sampler && n && at + n == s->wanted_n;
    }
    if (choosing) trip->best = all_greedy(run, trip, &trip->banned) && wanted <= CU_FEW;
    if (choosing && !trip->best) SG_TRY(cu_trip_logits(run, &logits));
    SG_TRY(cu_trip_go(run, trip, first, logits));
    return choosing ? choose_parts(run, trip, logits, one, token) : SEGUE_OK;
}

/* --- spans without further steps --- */

/* A long span: pieces of up to 2,048 rows of which up to 256 are wanted. */
static segue_status run_long(struct sg_run *run, uint32_t s, int32_t *token)
{
    const struct sg_span *span = &run->own.spans[s];
    for (uint32_t at = 0, w = 0; at < span->rows;) {
        uint32_t rows = span->rows - at < CU_MANY ? span->rows - at : CU_MANY, end = w;
        while (end < span->wanted_n && end < w + CU_LOGITS && span->wanted[end] < at + rows) end++;
        if (end < span->wanted_n && end == w + CU_LOGITS && span->wanted[end] < at + rows)
            rows = span->wanted[end] - at;
        struct trip trip = {.parts = {{s, at, rows}}, .parts_n = 1};
        SG_TRY(pass_and_choose(run, &trip, 1, NULL, token));
        at += rows;
        w = end;
    }
    return SEGUE_OK;
}

/* One kind of states a pass; and since a pass with an adapter takes steps that are not fused, with invariant=1 those with an
 * adapter go apart from those without. */
static int may_go_together(const struct sg_run *run, uint32_t s, uint32_t other)
{
    const struct sg_span *a = &run->own.spans[s], *b = &run->own.spans[other];
    return a->state->storage == b->state->storage && (!run->program->base.unit->invariant || !a->loras_n == !b->loras_n);
}

static segue_status run_spans(struct sg_run *run)
{
    int32_t token;
    for (uint32_t s = 0; s < run->own.batch.spans_n;) {
        struct trip trip = {0};
        uint32_t rows = 0;
        if (run->own.spans[s].rows > CU_FEW) {
            SG_TRY(run_long(run, s++, &token));
            continue;
        }
        for (uint32_t first = s; s < run->own.batch.spans_n && trip.parts_n < CK_SPANS &&
                                 rows + run->own.spans[s].rows <= CU_FEW && may_go_together(run, first, s);
             s++) {
            trip.parts[trip.parts_n++] = (struct part){s, 0, run->own.spans[s].rows};
            rows += run->own.spans[s].rows;
        }
        SG_TRY(pass_and_choose(run, &trip, 1, NULL, &token));
    }
    return SEGUE_OK;
}

/* --- generation --- */

static int is_stop(const struct sg_sampler *s, int32_t token)
{
    for (size_t i = 0; i < s->stops_n && !s->p.ignore_stops; i++)
        if (s->stops[i] == token) return 1;
    return 0;
}

static void publish(struct sg_span *span, uint32_t *published, int32_t token)
{
    span->ring->tokens[*published] = token;
    atomic_store(&span->ring->written, ++*published);
}

/* Tokens that arrived since; returns how many are there. */
static uint32_t take_arrived(const struct sg_run *run, struct sg_span *span, uint32_t *published,
                             uint32_t before)
{
    const struct cu_lane *l = run->lane;
    uint32_t written = *l->written;
    atomic_thread_fence(memory_order_acquire);
    while (*published - before < written) {
        int32_t token = l->ring[*published - before];
        if (token < 0) break;
        publish(span, published, token);
    }
    return written;
}

static segue_status wait_for(struct sg_run *run, struct sg_span *span, uint32_t *published, uint32_t before,
                             uint32_t target)
{
    struct sg_unit *u = run->program->base.unit;
    for (uint32_t spins = 0; take_arrived(run, span, published, before) < target; spins++) {
        if (spins < SPIN) continue;
        if (spins % 64 == 0) {
            cu_result r = u->d.stream_ask(run->lane->stream);
            if (r && r != CU_NOT_READY) return cu_run_check(run, r);
            if (!r) return SEGUE_OK; /* all done: what is missing will not come */
        }
        sg_pause_ns(NAP_NS);
    }
    return SEGUE_OK;
}

/* From `token` on, all on the GPU: one row per step. */
static segue_status run_ahead(struct sg_run *run, int32_t token, uint32_t steps, uint32_t *published)
{
    struct sg_span *span = &run->own.spans[0];
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = run->lane;
    const struct sg_span *spans[CK_SPANS];
    struct trip trip = {.parts = {{0, 0, 1}},
                        .parts_n = 1,
                        .best = 1,
                        .advance = 1,
                        .banned = banned_of(run, span->sampler),
                        .stops_n = span->sampler->p.ignore_stops ? 0 : (uint32_t)span->sampler->stops_n};
    struct cu_pass p;
    uint32_t before = *published, written = 0;
    const uint32_t zero = 0;
    span->rows = span->wanted_n = 1;
    span->wanted = &zero;
    span->tokens = &token;
    span->first = span->state->rows;
    SG_TRY(cu_trip_stream(run));
    SG_TRY(cu_trip_clear(run));
    cu_trip_begin(run, &trip, &p, spans);
    SG_TRY(cu_trip_head(run, &trip, &p));
    SG_TRY(cu_trip_room(run, &p));
    ((struct ck_head *)cu_trip_pinned(&l->headings[0], l->headings[0].head))->steps = steps;
    l->ahead.active = 0;
    *l->written = 0;
    if (trip.stops_n)
        SG_TRY(cu_run_check(
            run, u->d.to_card(l->stops, span->sampler->stops, trip.stops_n * sizeof(int32_t), l->stream)));
    SG_TRY(cu_trip_send(run, &p));
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < steps && status == SEGUE_OK && !cu_run_stopped(run); i++) {
        for (p.chunks = CU_CHUNKS_LEAST; (uint64_t)p.chunks * CK_CHUNK < span->first + i + 1; p.chunks *= 2) {}
        status = cu_trip_issue(run, &trip, &p);
        p.best_done = 0;
        run->passes++;
        if (status == SEGUE_OK && i + 1 >= CU_AHEAD)
            status = wait_for(run, span, published, before, i + 2 - CU_AHEAD);
        int over = *published > before && is_stop(span->sampler, span->ring->tokens[*published - 1]);
        struct sg_rank_sync *m = run->own.batch.rank_sync; /* ranks issue the same number of steps */
        if (m ? sg_rank_sync_should_stop(m, run->own.batch.rank, over) : over) break;
    }
    cu_result r = u->d.stream_wait(l->stream);
    if (status == SEGUE_OK) status = cu_run_check(run, r);
    if (!r) written = take_arrived(run, span, published, before);
    run->own.rows_done[0] += written;
    cu_state_moved(span->state, written);
    for (uint32_t i = 0; i < written; i++) run->own.history[span->sampler->history_n + before + i] = l->ring[i];
    if (status == SEGUE_OK && written > *published - before) status = nothing_to_choose(run);
    const struct sg_rank_sync *m = run->own.batch.rank_sync;
    if (status == SEGUE_OK && (m ? sg_rank_sync_canceled(run->own.batch.rank_sync) : cu_run_stopped(run)))
        status = sg_fail(&run->own.error, SEGUE_ECANCELED, "run: cuda: canceled by the caller");
    return status;
}

/* Choosing on the host, a step at a time. */
static segue_status run_by_step(struct sg_run *run, struct sg_sampler *sampler, int32_t token, uint32_t steps,
                                uint32_t *published)
{
    struct sg_span *span = &run->own.spans[0];
    const uint32_t zero = 0;
    for (uint32_t i = 0; i < steps; i++) {
        struct trip trip = {.parts = {{0, 0, 1}}, .parts_n = 1};
        span->first = span->state->rows;
        span->rows = span->wanted_n = 1;
        span->tokens = &token;
        span->wanted = &zero;
        SG_TRY(pass_and_choose(run, &trip, 0, sampler, &token));
        run->own.history[sampler->history_n++] = token;
        publish(span, published, token);
        if (is_stop(sampler, token)) break;
    }
    return SEGUE_OK;
}

static segue_status run_steps(struct sg_run *run)
{
    struct sg_span *span = &run->own.spans[0];
    struct sg_sampler sampler = *span->sampler;
    uint32_t published = 0, steps = span->steps;
    int32_t token = -1;
    if (sampler.history_n) memcpy(run->own.history, sampler.history, sampler.history_n * sizeof token);
    sampler.history = run->own.history;
    span->sampler = &sampler;
    if (span->rows > CU_FEW) {
        SG_TRY(run_long(run, 0, &token));
    } else {
        struct trip trip = {.parts = {{0, 0, span->rows}}, .parts_n = 1};
        SG_TRY(pass_and_choose(run, &trip, 1, &sampler, &token));
    }
    run->own.history[sampler.history_n] = token;
    publish(span, &published, token);
    if (is_stop(&sampler, token)) return SEGUE_OK;
    int ahead = is_greedy(&sampler) && !cu_trip_loras(run) && !run->own.batch.outputs_n;
    if (!ahead) {
        sampler.history_n++;
        return run_by_step(run, &sampler, token, steps - 1, &published);
    }
    while (published < steps) {
        uint32_t many = steps - published < CU_RING ? steps - published : CU_RING, before = published;
        SG_TRY(run_ahead(run, token, many, &published));
        token = span->ring->tokens[published - 1];
        if (published - before < many || is_stop(&sampler, token)) break;
    }
    return SEGUE_OK;
}

/* --- a step ahead --- */

/* One row of each sequence, greedy: the kind of run that comes again with the tokens it chose. Fills the trip's parts and what
 * is never chosen. */
static int may_lead(struct sg_run *run, struct trip *trip)
{
    const struct sg_batch *b = &run->own.batch;
    if (!run->program->base.unit->graphs || !run->program->may_lead || b->spans_n > CK_SPANS || cu_trip_loras(run) ||
        b->outputs_n || (b->spans_n > 1 && run->own.result.logits))
        return 0;
    for (uint32_t i = 0; i < b->spans_n; i++) {
        const struct sg_span *s = &run->own.spans[i];
        if (s->rows != 1 || s->steps > 1 || s->wanted_n != 1 || !s->sampler ||
            s->state->storage != run->own.spans[0].state->storage)
            return 0;
        trip->parts[trip->parts_n++] = (struct part){i, 0, 1};
    }
    if (!all_greedy(run, trip, &trip->banned)) return 0;
    for (uint32_t i = 0; i < b->spans_n; i++)
        if (cu_state_others(run->own.spans[i].state, NULL) != SEGUE_OK) return 0; /* no memory for it */
    return 1;
}

static int is_expected(const struct sg_run *run, const struct ck_banned *banned)
{
    const struct cu_ahead *a = &run->lane->ahead;
    if (!a->active || a->spans_n != run->own.batch.spans_n || memcmp(&a->banned, banned, sizeof *banned)) return 0;
    for (uint32_t i = 0; i < a->spans_n; i++) {
        const struct sg_span *s = &run->own.spans[i];
        if (a->of[i].state != s->state->id || a->of[i].version != s->state->version || a->of[i].first != s->first ||
            a->of[i].token != s->tokens[0])
            return 0;
    }
    return 1;
}

static uint64_t furthest_of(const struct sg_run *run)
{
    uint64_t most = 0;
    for (uint32_t n = 0; n < run->own.batch.spans_n; n++)
        if (run->own.spans[n].first > most) most = run->own.spans[n].first;
    return most;
}

/* The row after each has a place: in every K and V slot, and in the table of positions. */
static int has_next(const struct sg_run *run, uint64_t furthest)
{
    const struct sg_graph *g = run->program->base.graph;
    for (uint32_t n = 0; n < run->own.batch.spans_n; n++) {
        const struct sg_span *s = &run->own.spans[n];
        for (uint32_t k = 0; k < s->state->slots_n; k++)
            if (s->state->slots[k].row_bytes && s->first + 2 > s->state->slots[k].room) return 0;
    }
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_EMBED && g->ops[i].u.embed.positions.tensor >= 0 &&
            furthest + 2 > g->ops[i].u.embed.positions.rows)
            return 0;
    return 1;
}

/* Issues the pass of a heading for a row at `place`; heads lie on the GPU. */
static segue_status lead(struct sg_run *run, struct trip *trip, struct cu_pass *p, uint32_t heading,
                         uint64_t place)
{
    p->heading = heading;
    p->best_done = 0;
    p->room = &p->lane->few[heading];
    for (p->chunks = CU_CHUNKS_LEAST; (uint64_t)p->chunks * CK_CHUNK < place + 1; p->chunks *= 2) {}
    SG_TRY(cu_trip_issue(run, trip, p));
    return cu_run_check(run, run->program->base.unit->d.event_record(p->lane->done[heading], p->lane->stream));
}

static segue_status give_led(struct sg_run *run, struct cu_pass *p, uint32_t heading)
{
    const struct sg_graph *g = run->program->base.graph;
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = p->lane;
    struct sg_operand whole = {.value = g->outputs[sg_graph_output(g, "logits")].value, .width = g->vocab};
    float *to;
    if (!run->own.result.logits) return SEGUE_OK;
    SG_TRY(cu_trip_logits(run, &to));
    p->heading = heading;
    p->room = &l->few[heading];
    SG_TRY(cu_run_check(run, u->d.stream_after(l->gives, l->done[heading], 0)));
    SG_TRY(
        cu_run_check(run, u->d.to_host(to + (size_t)heading * g->vocab, (cu_ptr)(uintptr_t)cu_view_of(p, &whole).p,
                                g->vocab * sizeof(float), l->gives)));
    return cu_run_check(run, u->d.event_record(l->given[heading], l->gives));
}

/* What was read becomes what is written next, and the other way round. */
static void exchange(struct sg_state *s)
{
    cu_ptr before = s->fixed;
    s->fixed = s->fixed_other;
    s->fixed_other = before;
    cu_state_place(s);
}

static void remember(struct sg_run *run, const struct trip *trip, uint32_t heading, int next)
{
    struct cu_ahead *a = &run->lane->ahead;
    *a = (struct cu_ahead){.active = next, .heading = heading, .spans_n = trip->parts_n, .banned = trip->banned};
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        const struct sg_span *s = &run->own.spans[i];
        a->of[i].state = s->state->id;
        a->of[i].version = s->state->version;
        a->of[i].first = s->first + 1;
        a->of[i].token = run->lane->host_chosen[!heading * CU_FEW + i];
    }
}

/* The step that nobody led: both heads are sent, its pass is issued. */
static segue_status begin_leading(struct sg_run *run, struct trip *trip, struct cu_pass *p, const struct sg_span **spans,
                                  uint64_t place)
{
    if (run->lane->ahead.active) SG_TRY(cu_run_check(run, run->program->base.unit->d.stream_wait(run->lane->stream)));
    for (uint32_t heading = 0; heading < 2; heading++) {
        cu_trip_begin(run, trip, p, spans);
        p->heading = heading;
        SG_TRY(cu_trip_head(run, trip, p));
        SG_TRY(cu_trip_send(run, p));
    }
    return lead(run, trip, p, 0, place);
}

/* What the step of heading q chose, and what it left behind. */
static segue_status take_led(struct sg_run *run, struct trip *trip, struct cu_pass *p, uint32_t q)
{
    const int32_t *chosen = run->lane->host_chosen + (size_t)q * CU_FEW;
    struct sg_result *r = &run->own.result;
    int found = 1;
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        exchange(run->own.spans[i].state);
        found &= chosen[i] >= 0;
        if (r->tokens) r->tokens[i] = chosen[i];
        if (r->logprobs_n) r->logprobs_n[i] = 0;
    }
    p->heading = q;
    p->room = &run->lane->few[q];
    cu_trip_keep(run, trip, p);
    cu_trip_over(run, trip);
    return found ? SEGUE_OK : nothing_to_choose(run);
}

/* This step (which may be running already), and behind it the one that will most likely be asked for next: it
 * reads what this one leaves and writes elsewhere, so that it can be dropped without a trace. */
static segue_status run_leading(struct sg_run *run, struct trip *trip)
{
    const struct sg_span *spans[CK_SPANS];
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = run->lane;
    struct cu_pass p;
    uint64_t furthest = furthest_of(run);
    uint32_t q = 0;
    trip->best = 1;
    trip->advance = 2;
    trip->screen = trip->parts_n == 1 && !run->own.result.logits;
    if (cu_run_stopped(run)) return sg_fail(&run->own.error, SEGUE_ECANCELED, "run: cuda: canceled by the caller");
    int expected = is_expected(run, &trip->banned), next = has_next(run, furthest);
    SG_TRY(cu_trip_stream(run));
    SG_TRY(cu_trip_clear(run));
    cu_trip_begin(run, trip, &p, spans);
    cu_trip_counts(&p, trip->parts_n);
    if (expected)
        q = l->ahead.heading;
    else
        SG_TRY(begin_leading(run, trip, &p, spans, furthest));
    l->ahead.active = 0;
    SG_TRY(give_led(run, &p, q));
    for (uint32_t i = 0; i < trip->parts_n; i++) run->own.spans[i].state->ahead |= next;
    if (next) SG_TRY(lead(run, trip, &p, !q, furthest + 1));
    SG_TRY(cu_run_check(run, u->d.event_wait(run->own.result.logits ? l->given[q] : l->done[q])));
    if (run->own.result.logits)
        memcpy(run->own.result.logits, l->host_logits + (size_t)q * run->program->base.graph->vocab,
               run->program->base.graph->vocab * sizeof(float));
    SG_TRY(take_led(run, trip, &p, q));
    remember(run, trip, !q, next);
    return SEGUE_OK;
}

segue_status cu_run_all(struct sg_run *run)
{
    run->lane->runs++;
    struct trip trip = {0};
    if (may_lead(run, &trip)) return run_leading(run, &trip);
    if (run->own.batch.spans_n == 1 && run->own.spans[0].steps > 1) return run_steps(run);
    return run_spans(run);
}
