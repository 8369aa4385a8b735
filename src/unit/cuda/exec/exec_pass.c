/* exec_pass.c: one pass of a run: its head filled (whose rows, where, which slots), its steps issued, what was asked for taken
 * out. Passes of one row per sequence and of short prompts are captured (capture.c).
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/exec/exec_pass.h"

/* --- the head --- */

static void fill_part(const struct sg_run *run, struct trip *trip, struct cu_pass *p, uint32_t i)
{
    const struct cu_pass_args *l = &p->lane->headings[p->heading];
    const struct part *part = &trip->parts[i];
    const struct sg_span *s = &run->own.spans[part->span];
    struct ck_head *h = cu_trip_pinned(l, l->head);
    int32_t *tokens = cu_trip_pinned(l, l->tokens);
    uint32_t *place = cu_trip_pinned(l, l->place), *span = cu_trip_pinned(l, l->span),
             *wanted = cu_trip_pinned(l, l->wanted);
    cu_ptr *slots = cu_trip_pinned(l, l->slots), *slots_out = cu_trip_pinned(l, l->slots_out);
    uint32_t t = p->from[0][i], r = p->from[1][i];
    h->first[i] = (uint32_t)s->first + part->from;
    h->from[i] = t;
    h->from[i + 1] = t + part->rows;
    for (uint32_t k = 0; k < part->rows; k++) {
        if (s->tokens) tokens[t + k] = s->tokens[part->from + k];
        place[t + k] = h->first[i] + k;
        span[t + k] = i;
    }
    for (uint32_t k = 0; k < p->from[1][i + 1] - r; k++)
        wanted[r + k] = t + s->wanted[trip->wanted_from[i] + k] - part->from;
    for (uint32_t k = 0; k < s->state->slots_n; k++) {
        const struct cu_slot *slot = &s->state->slots[k];
        cu_ptr in = trip->advance == 2 && slot->other && p->heading ? slot->other : slot->memory;
        slots[i * s->state->slots_n + k] = in;
        slots_out[i * s->state->slots_n + k] =
            trip->advance == 2 && slot->other ? (p->heading ? slot->memory : slot->other) : in;
    }
}

uint32_t cu_trip_wanted(const struct sg_span *s, const struct part *part, uint32_t *first)
{
    uint32_t a = 0, b;
    while (a < s->wanted_n && s->wanted[a] < part->from) a++;
    for (b = a; b < s->wanted_n && s->wanted[b] < part->from + part->rows; b++) {}
    *first = a;
    return b - a;
}

segue_status cu_trip_head(const struct sg_run *run, struct trip *trip, struct cu_pass *p)
{
    struct ck_head *h = cu_trip_pinned(&p->lane->headings[p->heading], p->lane->headings[p->heading].head);
    uint64_t furthest = 0;
    p->spans_n = trip->parts_n;
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        const struct part *part = &trip->parts[i];
        const struct sg_span *s = &run->own.spans[part->span];
        p->from[0][i + 1] = p->from[0][i] + part->rows;
        p->from[1][i + 1] = p->from[1][i] + cu_trip_wanted(s, part, &trip->wanted_from[i]);
        if (s->first + part->from + part->rows > furthest) furthest = s->first + part->from + part->rows;
    }
    p->rows_n[0] = p->from[0][p->spans_n];
    p->rows_n[1] = p->from[1][p->spans_n];
    for (p->chunks = CU_CHUNKS_LEAST; (uint64_t)p->chunks * CK_CHUNK < furthest; p->chunks *= 2) {}
    memset(h, 0, sizeof *h);
    h->spans = p->spans_n;
    h->rows = p->rows_n[0];
    h->wanted = p->rows_n[1];
    for (uint32_t i = 0; i < trip->parts_n; i++) fill_part(run, trip, p, i);
    return SEGUE_OK;
}

/* --- memory of values --- */

segue_status cu_trip_room(struct sg_run *run, struct cu_pass *p)
{
    struct cu_lane *l = p->lane;
    p->room = &l->few[p->heading];
    if (p->rows_n[0] <= CU_EXACT) return SEGUE_OK;
    p->room = &l->many;
    for (int k = 0; k < 2; k++) {
        uint32_t rows = (p->rows_n[k] + 255) / 256 * 256;
        if (rows <= l->many.rows[k] && l->many.memory[k]) continue;
        cu_room_free(p->program->base.unit, &l->many.memory[k]);
        l->many.rows[k] = 0;
        SG_TRY(cu_room(p->program->base.unit,
                       (size_t)(rows ? rows : 1) * p->program->columns[k] * sizeof(float), "room of a run",
                       &l->many.memory[k], &run->own.error));
        l->many.rows[k] = rows ? rows : 1;
    }
    if (l->workspace || !p->program->base.unit->blas.handle) return SEGUE_OK;
    return cu_room(p->program->base.unit, CU_BLAS_WORKSPACE, "room of a run", &l->workspace, &run->own.error);
}

static segue_status send_inputs(struct sg_run *run, const struct trip *trip, struct cu_pass *p)
{
    const struct sg_graph *g = p->program->base.graph;
    struct sg_unit *u = p->program->base.unit;
    for (uint32_t i = 0; i < g->inputs_n; i++) {
        const struct sg_value *v = &g->values[g->inputs[i].value];
        if (v->kind == SG_VALUE_TOKENS) continue;
        struct sg_operand whole = {.value = g->inputs[i].value, .width = v->width};
        struct ck_view x = cu_view_of(p, &whole);
        for (uint32_t k = 0; k < trip->parts_n; k++) {
            const struct part *part = &trip->parts[k];
            const float *from = run->own.spans[part->span].values + (size_t)part->from * v->width;
            SG_TRY(cu_run_check(run, u->d.to_card((cu_ptr)(uintptr_t)(x.p + (size_t)p->from[0][k] * v->width), from,
                                           (size_t)part->rows * v->width * sizeof(float), p->lane->stream)));
        }
    }
    return SEGUE_OK;
}

/* --- results --- */

/* Rows of this span that come before it among all T (wanted 0) or R (1) rows of the batch. */
static size_t rows_before(const struct sg_run *run, uint32_t span, int wanted)
{
    size_t n = 0;
    for (uint32_t s = 0; s < span; s++) n += wanted ? run->own.batch.spans[s].wanted_n : run->own.batch.spans[s].rows;
    return n;
}

/* A value's rows to the caller's memory, which holds all spans' rows. */
static segue_status give_rows(struct sg_run *run, const struct trip *trip, struct cu_pass *p, int32_t value,
                              float *out)
{
    const struct sg_value *v = &p->program->base.graph->values[value];
    struct sg_unit *u = p->program->base.unit;
    struct sg_operand whole = {.value = value, .width = v->width};
    struct ck_view x = cu_view_of(p, &whole);
    for (uint32_t k = 0; k < trip->parts_n; k++) {
        const struct part *part = &trip->parts[k];
        size_t at =
            rows_before(run, part->span, (int)v->wanted) + (v->wanted ? trip->wanted_from[k] : part->from);
        uint32_t from = p->from[v->wanted][k], n = p->from[v->wanted][k + 1] - from;
        if (!n) continue;
        SG_TRY(
            cu_run_check(run, u->d.to_host(out + at * v->width, (cu_ptr)(uintptr_t)(x.p + (size_t)from * v->width),
                                    (size_t)n * v->width * sizeof(float), p->lane->stream)));
    }
    return SEGUE_OK;
}

static segue_status give_outputs(struct sg_run *run, const struct trip *trip, struct cu_pass *p,
                                 int32_t value)
{
    const struct sg_graph *g = p->program->base.graph;
    for (uint32_t i = 0; i < run->own.batch.outputs_n; i++)
        if (g->outputs[run->own.batch.outputs[i]].value == value && run->own.result.values && run->own.result.values[i])
            SG_TRY(give_rows(run, trip, p, value, run->own.result.values[i]));
    return SEGUE_OK;
}

/* --- issuing --- */

int cu_trip_loras(const struct sg_run *run)
{
    for (uint32_t s = 0; s < run->own.batch.spans_n; s++)
        if (run->own.spans[s].loras_n) return 1;
    return 0;
}

static int is_plain(const struct sg_run *run, const struct cu_pass *p)
{
    return p->spans != NULL || run->own.batch.outputs_n;
}

segue_status cu_trip_flow(struct sg_run *run, const struct trip *trip, struct cu_pass *p, const struct cu_step *step)
{
    const struct part *part = &trip->parts[0];
    const struct sg_span *s = &run->own.spans[part->span];
    if (p->rows_n[0] <= CU_FEW || trip->parts_n > 1 || run->own.batch.quiet) return SEGUE_OK;
    return cu_flow_step(p, step, s->state, s->first + part->from + part->rows);
}

segue_status cu_trip_choice(const struct trip *trip, struct cu_pass *p)
{
    return trip->best && p->rows_n[1] ? cu_issue_choice(p, trip->advance, trip->stops_n) : SEGUE_OK;
}

segue_status cu_trip_straight(struct sg_run *run, const struct trip *trip, struct cu_pass *p)
{
    struct sg_program *program = p->program;
    int plain = is_plain(run, p);
    const struct cu_step *steps = plain ? program->plain : program->fused;
    uint32_t n = plain ? program->plain_n : program->fused_n;
    for (uint32_t i = 0; plain && i < program->base.graph->inputs_n; i++)
        if (program->base.graph->values[program->base.graph->inputs[i].value].kind != SG_VALUE_TOKENS)
            SG_TRY(give_outputs(run, trip, p, program->base.graph->inputs[i].value));
    for (uint32_t i = 0, many; i < n; i += many) {
        SG_TRY(cu_rank_issue(p, &steps[i], &many));
        for (uint32_t k = 0; k < many; k++) SG_TRY(cu_trip_flow(run, trip, p, &steps[i + k]));
        if (plain) SG_TRY(give_outputs(run, trip, p, steps[i].op->out));
    }
    SG_TRY(cu_rank_end(p));
    return cu_trip_choice(trip, p);
}

segue_status cu_trip_issue(struct sg_run *run, struct trip *trip, struct cu_pass *p)
{
    int few = p->rows_n[0] <= CU_FEW && p->rows_n[0] == p->rows_n[1] && p->rows_n[0] == p->spans_n;
    int same = few && p->program->base.unit->graphs && !is_plain(run, p) && p->program->base.graph->vocab;
    struct cu_lane *l = p->lane;
    struct ck_embed next;
    int goes_on = same && trip->advance && p->rows_n[0] == 1;
    p->embedded = goes_on && l->embedded == 1 + p->heading;
    p->embeds = goes_on && trip->best && cu_next_embed(p, &next);
    l->embedded = 0;
    SG_TRY(cu_rank_begin(p));
    segue_status status = same || p->padded ? cu_trip_captured(run, trip, p) : cu_trip_straight(run, trip, p);
    if (status == SEGUE_OK) cu_rank_over(p);
    if (status == SEGUE_OK && p->embeds) l->embedded = 1 + (trip->advance == 2 ? !p->heading : p->heading);
    run->launches += p->launches;
    p->launches = 0;
    return status;
}

/* A prompt of up to some hundred rows is filled up with rows that nobody reads, so that prompts of about its length run the
 * same captured pass: the host takes longer to issue the steps than the card to do them. */
static void pad(const struct sg_run *run, const struct trip *trip, struct cu_pass *p)
{
    const struct sg_graph *g = p->program->base.graph;
    const struct cu_pass_args *l = &p->lane->headings[p->heading];
    uint32_t rows = p->rows_n[0], all = (rows + CU_PAD - 1) / CU_PAD * CU_PAD;
    if (rows <= CU_EXACT || rows > CU_PADDED || trip->parts_n > 1 || !p->program->base.unit->graphs || is_plain(run, p) ||
        !g->vocab || g->inputs_n != 1 || g->values[g->inputs[0].value].kind != SG_VALUE_TOKENS)
        return;
    for (uint32_t t = rows; t < all; t++) {
        ((int32_t *)cu_trip_pinned(l, l->tokens))[t] = 0;
        ((uint32_t *)cu_trip_pinned(l, l->place))[t] = 0;
        ((uint32_t *)cu_trip_pinned(l, l->span))[t] = 0;
    }
    p->rows_n[0] = all;
    p->padded = 1;
}

/* --- one pass --- */

static segue_status change_stream(struct sg_run *run, cu_stream want)
{
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = run->lane;
    SG_TRY(cu_run_check(run, u->d.event_record(l->turn, l->stream)));
    SG_TRY(cu_run_check(run, u->d.stream_after(want, l->turn, 0)));
    pthread_mutex_lock(&u->keeping); /* who reads logits looks there */
    l->stream = want;
    pthread_mutex_unlock(&u->keeping);
    return SEGUE_OK;
}

/* A long pass in its part begins when the steps that were begun on all multiprocessors have ended: among each other's blocks both
 * are slow. */
static segue_status after_whole(struct sg_run *run)
{
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = run->lane, *few = &run->program->lanes[CU_LANE_FEW];
    pthread_mutex_lock(&u->keeping);
    int whole = few->stream == few->whole;
    pthread_mutex_unlock(&u->keeping);
    for (int i = 0; i < 2 && whole && l->stream == l->part && l != few; i++)
        SG_TRY(cu_run_check(run, u->d.stream_after(l->stream, few->done[i], 0)));
    return SEGUE_OK;
}

segue_status cu_trip_stream(struct sg_run *run)
{
    struct cu_lane *l = run->lane;
    cu_stream want = l->part && cu_share_wanted(run->program->base.unit, l->kind) ? l->part : l->whole;
    if (want != l->stream) SG_TRY(change_stream(run, want));
    return after_whole(run);
}

void cu_trip_begin(struct sg_run *run, const struct trip *trip, struct cu_pass *p,
                       const struct sg_span **spans)
{
    const struct sg_unit *u = run->program->base.unit;
    *p = (struct cu_pass){.program = run->program,
                          .lane = run->lane,
                          .sms = run->lane->stream == run->lane->part ? u->share.sms[run->lane->kind] : u->sms,
                          .best = trip->best,
                          .screen = trip->screen && run->program->screen.head != NULL,
                          .banned = trip->banned,
                          .kv = run->own.spans[trip->parts[0].span].state->storage,
                          .err = &run->own.error,
                          .narrowed_by = -1};
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        spans[i] = &run->own.spans[trip->parts[i].span];
        if (spans[i]->loras_n) p->spans = spans;
    }
}

void cu_trip_over(struct sg_run *run, const struct trip *trip)
{
    run->passes++;
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        const struct sg_span *s = &run->own.spans[trip->parts[i].span];
        run->own.rows_done[trip->parts[i].span] += trip->parts[i].rows;
        for (uint32_t k = 0; k < s->state->slots_n; k++)
            run->state_bytes +=
                s->state->slots[k].fixed_bytes * 2 +
                s->state->slots[k].row_bytes * (s->first + trip->parts[i].from + trip->parts[i].rows);
        cu_state_moved(s->state, trip->parts[i].rows);
    }
}

/* The counts of a pass of one row of each of n sequences. */
void cu_trip_counts(struct cu_pass *p, uint32_t n)
{
    p->spans_n = p->rows_n[0] = p->rows_n[1] = n;
    for (uint32_t i = 0; i < n; i++) p->from[0][i + 1] = p->from[1][i + 1] = i + 1;
}

segue_status cu_trip_send(struct sg_run *run, const struct cu_pass *p)
{
    const struct cu_pass_args *h = &p->lane->headings[p->heading];
    p->lane->embedded = 0;
    return cu_run_check(
        run, run->program->base.unit->d.to_card(h->head, h->pinned, p->lane->head_bytes, p->lane->stream));
}

segue_status cu_trip_logits(struct sg_run *run, float **out)
{
    struct cu_lane *l = run->lane;
    if (!l->host_logits) {
        void *p = NULL;
        SG_TRY(cu_run_check(run, run->program->base.unit->d.host_alloc(
                              &p, (size_t)run->program->base.graph->vocab * CK_SPANS * sizeof(float),
                              CU_HOST_MAPPED)));
        l->host_logits = p;
    }
    *out = l->host_logits;
    return SEGUE_OK;
}

/* All wanted rows' logits into pinned memory, in one copy; then to where the caller wants them. */
static segue_status fetch_logits(struct sg_run *run, struct cu_pass *p, int32_t logits)
{
    uint32_t vocab = run->program->base.graph->vocab;
    struct sg_operand whole = {.value = logits, .width = vocab};
    float *to;
    SG_TRY(cu_trip_logits(run, &to));
    return cu_run_check(run, run->program->base.unit->d.to_host(to, (cu_ptr)(uintptr_t)cu_view_of(p, &whole).p,
                                                         (size_t)p->rows_n[1] * vocab * sizeof(float),
                                                         p->lane->stream));
}

static void spread_logits(struct sg_run *run, const struct trip *trip, const struct cu_pass *p)
{
    size_t vocab = run->program->base.graph->vocab;
    for (uint32_t k = 0; k < trip->parts_n; k++) {
        uint32_t from = p->from[1][k], n = p->from[1][k + 1] - from;
        size_t at = rows_before(run, trip->parts[k].span, 1) + trip->wanted_from[k];
        memcpy(run->own.result.logits + at * vocab, p->lane->host_logits + from * vocab,
               n * vocab * sizeof(float));
    }
}

segue_status cu_trip_clear(struct sg_run *run)
{
    return cu_kept_clear(run->program->base.unit, run->lane, run->lane->runs, run->own.spans, run->own.batch.spans_n,
                         &run->own.error);
}

/* The last wanted row's logits of each part stay where they are until somebody asks. */
void cu_trip_keep(struct sg_run *run, const struct trip *trip, const struct cu_pass *p)
{
    const struct sg_graph *g = run->program->base.graph;
    for (uint32_t i = 0; p->screen && i < trip->parts_n; i++) cu_kept_forget(run->own.spans[trip->parts[i].span].state);
    if (!g->vocab || run->own.result.logits || p->screen) return;
    struct sg_operand whole = {.value = g->outputs[sg_graph_output(g, "logits")].value, .width = g->vocab};
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        const float *row = cu_view_of(p, &whole).p + (size_t)(p->from[1][i + 1] - 1) * g->vocab;
        if (p->from[1][i + 1] > p->from[1][i])
            cu_kept_add(p->lane, run->own.spans[trip->parts[i].span].state, (cu_ptr)(uintptr_t)row, g->vocab, p->lane->runs);
    }
}

/* Issues a pass and waits for it. want_logits: a room for the last wanted row's logits of each part, or NULL.
 */
segue_status cu_trip_go(struct sg_run *run, struct trip *trip, int give_logits, float *last_logits)
{
    const struct sg_span *spans[CK_SPANS];
    const struct sg_graph *g = run->program->base.graph;
    struct sg_unit *u = run->program->base.unit;
    struct cu_pass p;
    if (cu_run_stopped(run)) return sg_fail(&run->own.error, SEGUE_ECANCELED, "run: cuda: canceled by the caller");
    SG_TRY(cu_trip_stream(run));
    cu_trip_begin(run, trip, &p, spans);
    p.lane->ahead.active = 0;
    SG_TRY(cu_trip_clear(run));
    SG_TRY(cu_trip_head(run, trip, &p));
    pad(run, trip, &p);
    SG_TRY(cu_trip_room(run, &p));
    SG_TRY(cu_trip_send(run, &p));
    SG_TRY(send_inputs(run, trip, &p));
    SG_TRY(cu_trip_issue(run, trip, &p));
    int32_t logits = g->vocab ? g->outputs[sg_graph_output(g, "logits")].value : -1;
    int give = logits >= 0 && give_logits && run->own.result.logits,
        pinned = give && !last_logits && p.rows_n[1] <= CK_SPANS && p.rows_n[1];
    if (pinned)
        SG_TRY(fetch_logits(run, &p, logits));
    else if (give)
        SG_TRY(give_rows(run, trip, &p, logits, run->own.result.logits));
    for (uint32_t i = 0; i < trip->parts_n && last_logits; i++) {
        struct sg_operand whole = {.value = logits, .width = g->vocab};
        if (p.from[1][i + 1] == p.from[1][i]) continue;
        const float *row = cu_view_of(&p, &whole).p + (size_t)(p.from[1][i + 1] - 1) * g->vocab;
        SG_TRY(cu_run_check(run, u->d.to_host(last_logits + (size_t)i * g->vocab, (cu_ptr)(uintptr_t)row,
                                       g->vocab * sizeof(float), p.lane->stream)));
    }
    SG_TRY(cu_run_check(run, u->d.stream_wait(p.lane->stream)));
    if (pinned) spread_logits(run, trip, &p);
    cu_trip_keep(run, trip, &p);
    cu_trip_over(run, trip);
    return SEGUE_OK;
}
