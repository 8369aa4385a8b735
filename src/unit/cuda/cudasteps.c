/* cudasteps.c: passes and generation. A pass fills the head (whose rows, where, which slots), issues the
 * steps, takes out what was asked for. Passes of one row per sequence are captured the second time they come
 * and launched as a graph from then on. Greedy generation never comes back to the host between tokens: the
 * choice kernel moves the head on, and tokens arrive through a ring in pinned memory; up to four steps are in
 * flight. Other samplers choose on the host, a step at a time. A run of one greedy row leaves the next one
 * running behind it (run_leading). SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "unit/cuda/curun.h"

enum { SPIN = 4000, NAP_NS = 20000, CHUNKS_LEAST = 4, LOGPROBS = 21 };

struct part {
    uint32_t span, from, rows;
}; /* rows [from, from + rows) of a span */

struct trip { /* one pass of a run */
    struct part parts[CK_SPANS];
    uint32_t parts_n, best, advance, stops_n;
    struct ck_banned banned;        /* what the best row must not be */
    uint32_t wanted_from[CK_SPANS]; /* first wanted row of the span that lies in its part */
};

static int stopped(const struct sg_run *run) { return run->own.batch.cancel && atomic_load(run->own.batch.cancel); }

static segue_status check(struct sg_run *run, cu_result r)
{
    return cu_check(&run->program->base.unit->d, r, "run", &run->own.error);
}

/* --- the head --- */

static void *pinned_of(const struct cu_heading *h, cu_ptr p) { return h->pinned + (p - h->head); }

static void fill_part(const struct sg_run *run, struct trip *trip, struct cu_pass *p, uint32_t i)
{
    const struct cu_heading *l = &p->lane->headings[p->heading];
    const struct part *part = &trip->parts[i];
    const struct sg_span *s = &run->own.spans[part->span];
    struct ck_head *h = pinned_of(l, l->head);
    int32_t *tokens = pinned_of(l, l->tokens);
    uint32_t *place = pinned_of(l, l->place), *span = pinned_of(l, l->span),
             *wanted = pinned_of(l, l->wanted);
    cu_ptr *slots = pinned_of(l, l->slots), *slots_out = pinned_of(l, l->slots_out);
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

/* Which wanted rows of its span lie in a part. */
static uint32_t find_wanted(const struct sg_span *s, const struct part *part, uint32_t *first)
{
    uint32_t a = 0, b;
    while (a < s->wanted_n && s->wanted[a] < part->from) a++;
    for (b = a; b < s->wanted_n && s->wanted[b] < part->from + part->rows; b++) {}
    *first = a;
    return b - a;
}

static segue_status fill_head(const struct sg_run *run, struct trip *trip, struct cu_pass *p)
{
    struct ck_head *h = pinned_of(&p->lane->headings[p->heading], p->lane->headings[p->heading].head);
    uint64_t furthest = 0;
    p->spans_n = trip->parts_n;
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        const struct part *part = &trip->parts[i];
        const struct sg_span *s = &run->own.spans[part->span];
        p->from[0][i + 1] = p->from[0][i] + part->rows;
        p->from[1][i + 1] = p->from[1][i] + find_wanted(s, part, &trip->wanted_from[i]);
        if (s->first + part->from + part->rows > furthest) furthest = s->first + part->from + part->rows;
    }
    p->rows_n[0] = p->from[0][p->spans_n];
    p->rows_n[1] = p->from[1][p->spans_n];
    for (p->chunks = CHUNKS_LEAST; (uint64_t)p->chunks * CK_CHUNK < furthest; p->chunks *= 2) {}
    memset(h, 0, sizeof *h);
    h->spans = p->spans_n;
    h->rows = p->rows_n[0];
    h->wanted = p->rows_n[1];
    for (uint32_t i = 0; i < trip->parts_n; i++) fill_part(run, trip, p, i);
    return SEGUE_OK;
}

/* --- memory of values --- */

static segue_status find_room(struct sg_run *run, struct cu_pass *p)
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
            SG_TRY(check(run, u->d.to_card((cu_ptr)(uintptr_t)(x.p + (size_t)p->from[0][k] * v->width), from,
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
            check(run, u->d.to_host(out + at * v->width, (cu_ptr)(uintptr_t)(x.p + (size_t)from * v->width),
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

static int has_loras(const struct sg_run *run)
{
    for (uint32_t s = 0; s < run->own.batch.spans_n; s++)
        if (run->own.spans[s].loras_n) return 1;
    return 0;
}

static segue_status issue_all(struct sg_run *run, struct trip *trip, struct cu_pass *p)
{
    struct sg_program *program = p->program;
    int plain = p->spans != NULL || run->own.batch.outputs_n;
    const struct cu_step *steps = plain ? program->plain : program->fused;
    uint32_t n = plain ? program->plain_n : program->fused_n;
    for (uint32_t i = 0; plain && i < program->base.graph->inputs_n; i++)
        if (program->base.graph->values[program->base.graph->inputs[i].value].kind != SG_VALUE_TOKENS)
            SG_TRY(give_outputs(run, trip, p, program->base.graph->inputs[i].value));
    for (uint32_t i = 0; i < n; i++) {
        SG_TRY(cu_issue(p, &steps[i]));
        if (p->rows_n[0] > CU_FEW && trip->parts_n == 1) {
            const struct sg_span *s = &run->own.spans[trip->parts[0].span];
            SG_TRY(cu_flow_step(p, &steps[i], s->state, s->first + trip->parts[0].from + trip->parts[0].rows));
        }
        if (plain) SG_TRY(give_outputs(run, trip, p, steps[i].op->out));
    }
    return trip->best && p->rows_n[1] ? cu_issue_choice(p, trip->advance, trip->stops_n) : SEGUE_OK;
}

static void forget_captured(struct cu_pass *p)
{
    for (uint32_t i = 0; i < p->lane->captured_n; i++)
        if (p->lane->captured[i].exec) p->program->base.unit->d.exec_free(p->lane->captured[i].exec);
    p->lane->captured_n = p->lane->captured_next = 0;
}

static struct cu_captured *captured_of(struct cu_lane *l, const struct cu_graph_key *key, int *is_new)
{
    *is_new = 0;
    for (uint32_t i = 0; i < l->captured_n; i++)
        if (!memcmp(&l->captured[i].key, key, sizeof *key)) return &l->captured[i];
    *is_new = 1;
    return NULL;
}

static segue_status capture(struct sg_run *run, struct trip *trip, struct cu_pass *p, cu_exec *out)
{
    struct sg_unit *u = p->program->base.unit;
    cu_graph graph = NULL;
    SG_TRY(check(run, u->d.capture(p->lane->stream, 1)));
    segue_status status = issue_all(run, trip, p);
    cu_result r = u->d.capture_end(p->lane->stream, &graph);
    if (status == SEGUE_OK) status = check(run, r);
    if (status == SEGUE_OK) status = check(run, u->d.graph_make(out, graph, 0));
    if (graph) u->d.graph_free(graph);
    return status;
}

/* Straight the first time, which makes all room; captured the second; launched from then on. */
static segue_status issue_captured(struct sg_run *run, struct trip *trip, struct cu_pass *p)
{
    struct sg_unit *u = p->program->base.unit;
    struct cu_lane *l = p->lane;
    struct cu_graph_key key = {p->rows_n[0],         p->chunks,     trip->best, trip->advance,
                               cu_storage_of(p->kv), trip->stops_n, p->heading, trip->banned};
    int is_new;
    struct cu_captured *c = captured_of(l, &key, &is_new);
    if (is_new) {
        cu_ptr parts = l->parts, scratch = l->scratch;
        SG_TRY(issue_all(run, trip, p));
        if (parts != l->parts || scratch != l->scratch) forget_captured(p);
        if (l->captured_n == CU_CAPTURED) forget_captured(p);
        l->captured[l->captured_n++] = (struct cu_captured){.key = key};
        return SEGUE_OK;
    }
    if (!c->exec) SG_TRY(capture(run, trip, p, &c->exec));
    p->launches++;
    return check(run, u->d.exec_run(c->exec, l->stream));
}

static segue_status issue(struct sg_run *run, struct trip *trip, struct cu_pass *p)
{
    int few = p->rows_n[0] <= CU_FEW && p->rows_n[0] == p->rows_n[1] && p->rows_n[0] == p->spans_n;
    int same = few && p->program->base.unit->graphs && !p->spans && !run->own.batch.outputs_n &&
               p->program->base.graph->vocab;
    segue_status status = same ? issue_captured(run, trip, p) : issue_all(run, trip, p);
    run->launches += p->launches;
    p->launches = 0;
    return status;
}

/* --- one pass --- */

static void begin_pass(struct sg_run *run, const struct trip *trip, struct cu_pass *p,
                       const struct sg_span **spans)
{
    *p = (struct cu_pass){.program = run->program,
                          .lane = &run->program->lane,
                          .best = trip->best,
                          .banned = trip->banned,
                          .kv = run->own.spans[trip->parts[0].span].state->storage,
                          .err = &run->own.error,
                          .narrowed_by = -1};
    for (uint32_t i = 0; i < trip->parts_n; i++) spans[i] = &run->own.spans[trip->parts[i].span];
    p->spans = has_loras(run) ? spans : NULL;
}

static void pass_over(struct sg_run *run, const struct trip *trip)
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

/* The counts of a pass of one row. */
static segue_status fill_counts(struct cu_pass *p)
{
    p->spans_n = p->rows_n[0] = p->rows_n[1] = p->from[0][1] = p->from[1][1] = 1;
    return SEGUE_OK;
}

static segue_status send_head(struct sg_run *run, const struct cu_pass *p)
{
    const struct cu_heading *h = &p->lane->headings[p->heading];
    return check(
        run, run->program->base.unit->d.to_card(h->head, h->pinned, p->lane->head_bytes, p->lane->stream));
}

static segue_status host_logits(struct sg_run *run, float **out)
{
    struct cu_lane *l = &run->program->lane;
    if (!l->host_logits) {
        void *p = NULL;
        SG_TRY(check(run, run->program->base.unit->d.host_alloc(
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
    SG_TRY(host_logits(run, &to));
    return check(run, run->program->base.unit->d.to_host(to, (cu_ptr)(uintptr_t)cu_view_of(p, &whole).p,
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

static segue_status keep_clear(struct sg_run *run)
{
    return cu_kept_clear(run->program->base.unit, &run->program->lane, run->program->lane.runs, run->own.spans, run->own.batch.spans_n,
                         &run->own.error);
}

/* The last wanted row's logits of each part stay where they are until somebody asks. */
static void keep_logits(struct sg_run *run, const struct trip *trip, const struct cu_pass *p)
{
    const struct sg_graph *g = run->program->base.graph;
    if (!g->vocab || run->own.result.logits) return;
    struct sg_operand whole = {.value = g->outputs[sg_graph_output(g, "logits")].value, .width = g->vocab};
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        const float *row = cu_view_of(p, &whole).p + (size_t)(p->from[1][i + 1] - 1) * g->vocab;
        if (p->from[1][i + 1] > p->from[1][i])
            cu_kept_add(p->lane, run->own.spans[trip->parts[i].span].state, (cu_ptr)(uintptr_t)row, g->vocab, p->lane->runs);
    }
}

/* Issues a pass and waits for it. want_logits: a room for the last wanted row's logits of each part, or NULL.
 */
static segue_status one_pass(struct sg_run *run, struct trip *trip, int give_logits, float *last_logits)
{
    const struct sg_span *spans[CK_SPANS];
    const struct sg_graph *g = run->program->base.graph;
    struct sg_unit *u = run->program->base.unit;
    struct cu_pass p;
    if (stopped(run)) return sg_fail(&run->own.error, SEGUE_ECANCELED, "run: cuda: canceled by the caller");
    begin_pass(run, trip, &p, spans);
    p.lane->ahead.active = 0;
    SG_TRY(keep_clear(run));
    SG_TRY(fill_head(run, trip, &p));
    SG_TRY(find_room(run, &p));
    SG_TRY(send_head(run, &p));
    SG_TRY(send_inputs(run, trip, &p));
    SG_TRY(issue(run, trip, &p));
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
        SG_TRY(check(run, u->d.to_host(last_logits + (size_t)i * g->vocab, (cu_ptr)(uintptr_t)row,
                                       g->vocab * sizeof(float), p.lane->stream)));
    }
    SG_TRY(check(run, u->d.stream_wait(p.lane->stream)));
    if (pinned) spread_logits(run, trip, &p);
    keep_logits(run, trip, &p);
    pass_over(run, trip);
    return SEGUE_OK;
}

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

static segue_status nothing_to_choose(struct sg_run *run)
{
    return sg_fail(&run->own.error, SEGUE_EFORMAT,
                   "choose a token: cuda: a logit is not a number; the model or its file is damaged");
}

/* Each part's last wanted row chooses when it is its span's last one. */
static segue_status choose_parts(struct sg_run *run, const struct trip *trip, float *logits,
                                 const struct sg_sampler *one, int32_t *token)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < trip->parts_n; i++) {
        uint32_t s = trip->parts[i].span, first;
        const struct sg_span *span = &run->own.spans[s];
        uint32_t n = find_wanted(span, &trip->parts[i], &first);
        row += n;
        if (!span->sampler || !n || first + n != span->wanted_n) continue;
        segue_logprob *logprobs = run->own.result.logprobs ? run->own.result.logprobs + (size_t)s * LOGPROBS : NULL;
        size_t logprobs_n = 0;
        if (trip->best) {
            *token = run->program->lane.host_chosen[row - 1];
            if (*token < 0) return nothing_to_choose(run);
        } else {
            SG_TRY(sg_own_run_chooser(&run->own, run->program->base.graph->vocab, &run->own.error));
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
        uint32_t n = find_wanted(s, &trip->parts[i], &at);
        wanted += n;
        choosing |= s->sampler && n && at + n == s->wanted_n;
    }
    if (choosing) trip->best = all_greedy(run, trip, &trip->banned) && wanted <= CU_FEW;
    if (choosing && !trip->best) SG_TRY(host_logits(run, &logits));
    SG_TRY(one_pass(run, trip, first, logits));
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
        enum sg_storage kv = run->own.spans[s].state->storage;
        for (; s < run->own.batch.spans_n && trip.parts_n < CK_SPANS && rows + run->own.spans[s].rows <= CU_FEW &&
               run->own.spans[s].state->storage == kv;
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
    const struct cu_lane *l = &run->program->lane;
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
            cu_result r = u->d.stream_ask(run->program->lane.stream);
            if (r && r != CU_NOT_READY) return check(run, r);
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
    struct cu_lane *l = &run->program->lane;
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
    SG_TRY(keep_clear(run));
    begin_pass(run, &trip, &p, spans);
    SG_TRY(fill_head(run, &trip, &p));
    SG_TRY(find_room(run, &p));
    ((struct ck_head *)pinned_of(&l->headings[0], l->headings[0].head))->steps = steps;
    l->ahead.active = 0;
    *l->written = 0;
    if (trip.stops_n)
        SG_TRY(check(
            run, u->d.to_card(l->stops, span->sampler->stops, trip.stops_n * sizeof(int32_t), l->stream)));
    SG_TRY(send_head(run, &p));
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < steps && status == SEGUE_OK && !stopped(run); i++) {
        for (p.chunks = CHUNKS_LEAST; (uint64_t)p.chunks * CK_CHUNK < span->first + i + 1; p.chunks *= 2) {}
        status = issue(run, &trip, &p);
        p.best_done = 0;
        run->passes++;
        if (status == SEGUE_OK && i + 1 >= CU_AHEAD)
            status = wait_for(run, span, published, before, i + 2 - CU_AHEAD);
        if (*published > before && is_stop(span->sampler, span->ring->tokens[*published - 1])) break;
    }
    cu_result r = u->d.stream_wait(l->stream);
    if (status == SEGUE_OK) status = check(run, r);
    if (!r) written = take_arrived(run, span, published, before);
    run->own.rows_done[0] += written;
    cu_state_moved(span->state, written);
    for (uint32_t i = 0; i < written; i++) run->own.history[span->sampler->history_n + before + i] = l->ring[i];
    if (status == SEGUE_OK && written > *published - before) status = nothing_to_choose(run);
    if (status == SEGUE_OK && stopped(run))
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
    int ahead = is_greedy(&sampler) && !has_loras(run) && !run->own.batch.outputs_n;
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

/* One row of one sequence, greedy: the kind of run that comes again with the token it chose. */
static int may_lead(const struct sg_run *run)
{
    const struct sg_span *s = &run->own.spans[0];
    return run->own.batch.spans_n == 1 && s->rows == 1 && s->steps <= 1 && s->wanted_n == 1 && s->sampler &&
           is_greedy(s->sampler) && run->program->may_lead && run->program->base.unit->graphs &&
           !has_loras(run) && !run->own.batch.outputs_n;
}

static int is_expected(const struct sg_run *run)
{
    const struct cu_ahead *a = &run->program->lane.ahead;
    const struct sg_span *s = &run->own.spans[0];
    struct ck_banned banned = banned_of(run, s->sampler);
    return a->active && a->state == s->state->id && a->version == s->state->version && a->first == s->first &&
           a->token == s->tokens[0] && !memcmp(&a->banned, &banned, sizeof banned);
}

/* The row after this one has a place: in every K and V slot, and in the table of positions. */
static int has_next(const struct sg_run *run)
{
    const struct sg_span *s = &run->own.spans[0];
    const struct sg_graph *g = run->program->base.graph;
    for (uint32_t k = 0; k < s->state->slots_n; k++)
        if (s->state->slots[k].row_bytes && s->first + 2 > s->state->slots[k].room) return 0;
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_EMBED && g->ops[i].u.embed.positions.tensor >= 0 &&
            s->first + 2 > g->ops[i].u.embed.positions.rows)
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
    for (p->chunks = CHUNKS_LEAST; (uint64_t)p->chunks * CK_CHUNK < place + 1; p->chunks *= 2) {}
    SG_TRY(issue(run, trip, p));
    return check(run, run->program->base.unit->d.event_record(p->lane->done[heading], p->lane->stream));
}

static segue_status give_led(struct sg_run *run, struct cu_pass *p, uint32_t heading)
{
    const struct sg_graph *g = run->program->base.graph;
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = p->lane;
    struct sg_operand whole = {.value = g->outputs[sg_graph_output(g, "logits")].value, .width = g->vocab};
    float *to;
    if (!run->own.result.logits) return SEGUE_OK;
    SG_TRY(host_logits(run, &to));
    p->heading = heading;
    p->room = &l->few[heading];
    SG_TRY(check(run, u->d.stream_after(l->gives, l->done[heading], 0)));
    SG_TRY(
        check(run, u->d.to_host(to + (size_t)heading * g->vocab, (cu_ptr)(uintptr_t)cu_view_of(p, &whole).p,
                                g->vocab * sizeof(float), l->gives)));
    return check(run, u->d.event_record(l->given[heading], l->gives));
}

/* What was read becomes what is written next, and the other way round. */
static void exchange(struct sg_state *s)
{
    cu_ptr before = s->fixed;
    s->fixed = s->fixed_other;
    s->fixed_other = before;
    cu_state_place(s);
}

/* This step (which may be running already), and behind it the one that will most likely be asked for next: it
 * reads what this one leaves and writes elsewhere, so that it can be dropped without a trace. */
static segue_status run_leading(struct sg_run *run)
{
    const struct sg_span *spans[CK_SPANS];
    struct sg_span *s = &run->own.spans[0];
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = &run->program->lane;
    struct trip trip = {
        .parts = {{0, 0, 1}}, .parts_n = 1, .best = 1, .advance = 2, .banned = banned_of(run, s->sampler)};
    struct cu_pass p;
    uint32_t q = 0;
    if (stopped(run)) return sg_fail(&run->own.error, SEGUE_ECANCELED, "run: cuda: canceled by the caller");
    int expected = is_expected(run);
    SG_TRY(keep_clear(run));
    SG_TRY(cu_state_others(s->state, &run->own.error));
    begin_pass(run, &trip, &p, spans);
    SG_TRY(fill_counts(&p));
    if (expected) {
        q = l->ahead.heading;
    } else {
        if (l->ahead.active) SG_TRY(check(run, u->d.stream_wait(l->stream)));
        for (uint32_t heading = 0; heading < 2; heading++) {
            begin_pass(run, &trip, &p, spans);
            p.heading = heading;
            SG_TRY(fill_head(run, &trip, &p));
            SG_TRY(send_head(run, &p));
        }
        SG_TRY(lead(run, &trip, &p, 0, s->first));
    }
    l->ahead.active = 0;
    SG_TRY(give_led(run, &p, q));
    int next = has_next(run);
    s->state->ahead |= next;
    if (next) SG_TRY(lead(run, &trip, &p, !q, s->first + 1));
    SG_TRY(check(run, u->d.event_wait(run->own.result.logits ? l->given[q] : l->done[q])));
    int32_t token = l->host_chosen[q * CU_FEW];
    if (run->own.result.logits)
        memcpy(run->own.result.logits, l->host_logits + (size_t)q * run->program->base.graph->vocab,
               run->program->base.graph->vocab * sizeof(float));
    exchange(s->state);
    p.heading = q;
    p.room = &l->few[q];
    keep_logits(run, &trip, &p);
    pass_over(run, &trip);
    if (token < 0) return nothing_to_choose(run);
    if (run->own.result.tokens) run->own.result.tokens[0] = token;
    l->ahead = (struct cu_ahead){.active = next,
                                 .state = s->state->id,
                                 .version = s->state->version,
                                 .first = s->first + 1,
                                 .heading = !q,
                                 .banned = trip.banned,
                                 .token = token};
    return SEGUE_OK;
}

segue_status cu_run_all(struct sg_run *run)
{
    run->program->lane.runs++;
    if (may_lead(run)) return run_leading(run);
    if (run->own.batch.spans_n == 1 && run->own.spans[0].steps > 1) return run_steps(run);
    return run_spans(run);
}
