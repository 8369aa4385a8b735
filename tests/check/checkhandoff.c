/* checkhandoff.c: level handoff: states. A small random model with attention, convolution, delta rule and a
 * window runs on one unit, its state moves to another, and the answer continues as if nothing had happened. On
 * each unit alone: forks, marks, cuts, cancellation, several steps in one run.
 *
 * Bounds: what happens on one unit with the same calls is bit-equal (bound 0). Between units: a share of the
 * largest logit: 2e-5 for fp32 weights and fp32 K and V (both units round the same sums in other orders;
 * seen: 2e-6), 1e-3 for K and V in 16 bit (an fp32 difference may turn the rounding of a number, by one part
 * in 256; seen: 6e-5), 2e-2 in q8, 3e-2 where one of them rounds every number to fp16 (seen: 6e-3); those hold K
 * and V in f16 alone.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "check.h"

enum {
    VOCAB = 61,
    WIDTH = 48,
    HEADS = 4,
    KV = 2,
    D = 16,
    KEYS = 2,
    VALUES = 4,
    DK = 8,
    DV = 12,
    TAPS = 4,
    WINDOW = 70,
    ROWS_MAX = 1200,
    STEPS = 8,
    OTHER = 97
};

/* A model of four layers and one sequence of tokens for it. */
struct tiny {
    struct sg_arena arena;
    struct check_rng rng;
    struct sg_builder b;
    struct sg_graph *graph;
    int32_t tokens[ROWS_MAX + OTHER];   /* another way from a row on: read OTHER tokens further */
};

/* --- the model --- */

static int32_t linear(struct tiny *m, int32_t x, uint32_t k, uint32_t n, int32_t residual)
{
    struct sg_builder *b = &m->b;
    const struct sg_tensor *w = check_tensor(&m->arena, &m->rng, SG_F32, n, k, 1 / sqrtf((float)k), "w");
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, w), sg_weight_of(b, NULL),
                     residual < 0 ? sg_absent() : sg_whole(b, residual));
}

static int32_t norm(struct tiny *m, int32_t x, uint32_t width, uint32_t groups)
{
    struct sg_norm p = {
        .kind = SG_NORM_RMS, .eps = 1e-5f, .groups = groups, .bias = sg_weight_of(&m->b, NULL)};
    p.weight = sg_weight_of(&m->b, check_vector(&m->arena, &m->rng, width / groups, 1, 0.1f, "norm"));
    return sg_norm(&m->b, sg_whole(&m->b, x), p, sg_absent());
}

static int32_t attention(struct tiny *m, int32_t x, int32_t table, uint32_t window)
{
    struct sg_builder *b = &m->b;
    int32_t h = norm(m, x, WIDTH, 1);
    int32_t q = sg_rope(b, sg_whole(b, linear(m, h, WIDTH, HEADS * D, -1)), HEADS, table);
    int32_t k = sg_rope(b, sg_whole(b, linear(m, h, WIDTH, KV * D, -1)), KV, table);
    int32_t v = linear(m, h, WIDTH, KV * D, -1);
    struct sg_attend p = {.heads = HEADS, .kv_heads = KV, .d = D, .dv = D, .scale = 0.25f, .window = window,
                          .sinks = sg_weight_of(b, NULL)};
    int32_t a = sg_attend(b, sg_whole(b, q), sg_whole(b, k), sg_whole(b, v), p, sg_absent());
    return linear(m, a, HEADS * D, WIDTH, x);
}

static int32_t recurrence(struct tiny *m, int32_t x)
{
    struct sg_builder *b = &m->b;
    uint32_t keys = KEYS * DK, values = VALUES * DV, width = 2 * keys + values;
    int32_t h = norm(m, x, WIDTH, 1), u = linear(m, h, WIDTH, width, -1),
            ab = linear(m, h, WIDTH, 2 * VALUES, -1);
    struct sg_conv c = {.taps = TAPS, .act = SG_ACT_SILU, .bias = sg_weight_of(b, NULL)};
    c.weight = sg_weight_of(b, check_vector(&m->arena, &m->rng, width * TAPS, 0.2f, 0.4f, "conv"));
    u = sg_conv(b, sg_whole(b, u), c);
    struct sg_delta d = {
        .k_heads = KEYS, .v_heads = VALUES, .dk = DK, .dv = DV, .decay_is_log = 1, .l2_eps = 1e-6f};
    d.decay = sg_weight_of(b, check_vector(&m->arena, &m->rng, VALUES, -1, 0.2f, "decay"));
    d.dt = sg_weight_of(b, check_vector(&m->arena, &m->rng, VALUES, 0, 0.5f, "dt"));
    struct sg_operand in[5] = {sg_columns(b, u, 0, keys), sg_columns(b, u, keys, keys),
                               sg_columns(b, u, 2 * keys, values), sg_columns(b, ab, 0, VALUES),
                               sg_columns(b, ab, VALUES, VALUES)};
    int32_t y = norm(m, sg_delta(b, in, d), values, VALUES);
    return linear(m, y, values, WIDTH, x);
}

/* recurrent 0: attention alone, so that the state can be cut. */
static segue_status tiny_make(struct tiny *m, uint64_t seed, int recurrent, segue_error *err)
{
    float inverse[D / 2];
    *m = (struct tiny){.rng = check_rng_of(seed, "handoff", (uint64_t)recurrent)};
    SG_TRY(sg_builder_begin(&m->b, err));
    for (int i = 0; i < D / 2; i++) inverse[i] = powf(10000.0f, -(float)i / (D / 2));
    int32_t table = sg_rope_table_add(&m->b, D / 2, inverse, 1);
    const struct sg_tensor *embed = check_tensor(&m->arena, &m->rng, SG_F32, VOCAB, WIDTH, 1, "embed");
    int32_t x = sg_embed(&m->b, sg_input_tokens(&m->b), embed, NULL, 1);
    m->b.layer = 0;
    x = attention(m, x, table, 0);
    m->b.layer = 1;
    if (recurrent) x = recurrence(m, x);
    m->b.layer = 2;
    x = attention(m, x, table, recurrent ? WINDOW : 0);
    m->b.layer = -1;
    x = norm(m, sg_rows(&m->b, sg_whole(&m->b, x)), WIDTH, 1);
    sg_output(&m->b, linear(m, x, WIDTH, VOCAB, -1), "logits");
    sg_hoist_rows(&m->b);
    for (int i = 0; i < ROWS_MAX + OTHER; i++) m->tokens[i] = (int32_t)check_below(&m->rng, VOCAB);
    return sg_builder_end(&m->b, &m->graph, err);
}

static void tiny_free(struct tiny *m)
{
    sg_graph_free(m->graph);
    sg_arena_free(&m->arena);
}

/* --- the model on a unit --- */

struct seat {
    const struct check_unit *u;
    const struct tiny *m;
    struct sg_program *program;
    struct sg_state *state;
    enum sg_storage kv;
    uint32_t other;                  /* OTHER: takes the other way */
    segue_error *err;
};

static segue_status seat_state(struct seat *s)
{
    struct sg_state_opts o = {.kv = s->kv, .rows = 32};
    return s->u->ops->state_new(s->u->unit, s->m->graph->slots, s->m->graph->slots_n, &o, &s->state, s->err);
}

/* A program and a fresh state on one unit. */
static segue_status seat_take(struct seat *s, const struct check_unit *u, const struct tiny *m,
                              enum sg_storage kv, segue_error *err)
{
    const struct sg_graph *graphs[] = {m->graph};
    *s = (struct seat){.u = u, .m = m, .kv = kv, .err = err};
    SG_TRY(u->ops->compile(u->unit, graphs, 1, NULL, &s->program, err));
    return seat_state(s);
}

static void seat_leave(struct seat *s)
{
    if (s->state) s->u->ops->state_free(s->state);
    if (s->program) s->u->ops->discard(s->program);
    *s = (struct seat){0};
}

/* What is done with the state while a run is in the air. */
struct beside { segue_status (*work)(struct seat *s, void *arg); void *arg; };

/* Rows [from, from + n) of the sequence, the last one wanted; logits [VOCAB] may be NULL. */
static segue_status feed_beside(struct seat *s, uint32_t from, uint32_t n, float *logits, const atomic_int *cancel,
                                uint32_t *done, const struct beside *beside)
{
    uint32_t wanted = n - 1;
    struct sg_span span = {.state = s->state,
                           .rows = n,
                           .first = from,
                           .tokens = s->m->tokens + from + s->other,
                           .wanted = &wanted,
                           .wanted_n = 1,
                           .steps = 1};
    struct sg_batch batch = {.spans = &span, .spans_n = 1, .inline_hint = beside ? 0 : n % 2, .cancel = cancel};
    struct sg_result result = {.logits = logits, .rows_done = done};
    struct sg_run *run;
    SG_TRY(s->u->ops->start(s->program, &batch, &result, &run, s->err));
    segue_status meanwhile = beside ? beside->work(s, beside->arg) : SEGUE_OK;
    segue_status status = s->u->ops->wait(run, UINT64_MAX, s->err);
    return status == SEGUE_OK ? meanwhile : status;
}

static segue_status feed(struct seat *s, uint32_t from, uint32_t n, float *logits, const atomic_int *cancel,
                         uint32_t *done)
{
    return feed_beside(s, from, n, logits, cancel, done, NULL);
}

/* Decode STEPS rows from `from`, logits [STEPS, VOCAB]. */
static segue_status decode(struct seat *s, uint32_t from, float *logits)
{
    for (uint32_t i = 0; i < STEPS; i++) SG_TRY(feed(s, from + i, 1, logits + i * VOCAB, NULL, NULL));
    return SEGUE_OK;
}

/* Bytes of everything that the state holds, in its own storage: memory of sg_alloc. */
static segue_status state_bytes(struct seat *s, unsigned char **out, size_t *n)
{
    const struct sg_graph *g = s->m->graph;
    uint64_t first, rows;
    size_t at = 0;
    *n = 0;
    for (uint32_t i = 0; i < g->slots_n; i++)
        *n += sg_slot_fixed_bytes(&g->slots[i]) + sg_slot_row_bytes(&g->slots[i], s->kv) * ROWS_MAX;
    if (!(*out = sg_alloc(*n))) return sg_no_memory("check", *n, s->err);
    for (uint32_t i = 0; i < g->slots_n; i++) {
        size_t row = sg_slot_row_bytes(&g->slots[i], s->kv);
        s->u->ops->state_held(s->state, i, &first, &rows);
        uint64_t window = g->slots[i].window;
        if (window && rows >= first + window) first = rows + 1 - window;
        SG_TRY(s->u->ops->state_get(s->state, i, first, rows, row ? s->kv : SG_F32, *out + at, s->err));
        at += row ? row * (size_t)(rows - first) : sg_slot_fixed_bytes(&g->slots[i]);
    }
    *n = at;
    return SEGUE_OK;
}

/* from's state of `rows` rows into to's fresh one, slot by slot, in from's storage; K and V in two pieces. */
static segue_status move_rows(struct seat *from, struct seat *to, uint64_t rows)
{
    const struct sg_graph *g = from->m->graph;
    uint64_t first, held;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        size_t row = sg_slot_row_bytes(&g->slots[i], from->kv);
        enum sg_storage storage = row ? from->kv : SG_F32;
        from->u->ops->state_held(from->state, i, &first, &held);
        uint64_t window = g->slots[i].window;
        if (window && first + window <= rows) first = rows + 1 - window;
        char *bytes = sg_alloc(row * (size_t)(rows - first) + sg_slot_fixed_bytes(&g->slots[i]));
        if (!bytes) return sg_no_memory("check", row, from->err);
        uint64_t half = row ? first + (rows - first) / 2 : rows;
        segue_status status = from->u->ops->state_get(from->state, i, first, rows, storage, bytes, from->err);
        if (status == SEGUE_OK)
            status = to->u->ops->state_put(to->state, i, first, half, storage, bytes, to->err);
        if (status == SEGUE_OK && half < rows)
            status = to->u->ops->state_put(to->state, i, half, rows, storage,
                                           bytes + row * (size_t)(half - first), to->err);
        sg_free(bytes);
        SG_TRY(status);
    }
    return to->u->ops->state_put(to->state, UINT32_MAX, rows, rows, SG_F32, NULL, to->err);
}

static segue_status move(struct seat *from, struct seat *to)
{
    uint64_t first, rows;
    from->u->ops->state_held(from->state, 0, &first, &rows);
    return move_rows(from, to, rows);
}

/* --- cases on one unit: each leaves what it got in a and what it should be in b --- */

struct pairing {
    struct seat a, b;
    float got[STEPS * VOCAB], want[STEPS * VOCAB];
    uint32_t rows;                   /* of the prompt */
};

/* The fork goes another way, in turn with its original, which writes the same rows of blocks that were
 * shared. */
static segue_status forked_ways(struct seat *s, struct sg_state *copy, uint32_t rows, float *logits)
{
    struct sg_state *states[] = {copy, s->state};
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < STEPS && status == SEGUE_OK; i++) {
        s->state = states[i % 2];
        s->other = i % 2 ? 0 : OTHER;
        status = feed(s, rows + i / 2, 1, logits + i * VOCAB, NULL, NULL);
    }
    s->state = states[1];
    s->other = 0;
    return status;
}

static segue_status case_fork(struct pairing *p)
{
    struct sg_state *copy = NULL;
    SG_TRY(feed(&p->a, 0, p->rows, NULL, NULL, NULL));
    SG_TRY(p->a.u->ops->state_fork(p->a.state, &copy, p->a.err));
    segue_status status = forked_ways(&p->a, copy, p->rows, p->got);
    p->a.u->ops->state_free(copy);
    SG_TRY(status);
    for (uint32_t way = 0; way < 2; way++) { /* each way alone, from a fresh state */
        p->b.other = 0;
        SG_TRY(p->b.u->ops->state_cut(p->b.state, 0, p->b.err));
        SG_TRY(feed(&p->b, 0, p->rows, NULL, NULL, NULL));
        p->b.other = way ? 0 : OTHER;
        for (uint32_t i = way; i < STEPS; i += 2)
            SG_TRY(feed(&p->b, p->rows + i / 2, 1, p->want + i * VOCAB, NULL, NULL));
    }
    return SEGUE_OK;
}

/* The original is gone: blocks live on in the fork. */
static segue_status case_fork_goes_on(struct pairing *p)
{
    struct sg_state *copy = NULL;
    SG_TRY(feed(&p->a, 0, p->rows, NULL, NULL, NULL));
    SG_TRY(p->a.u->ops->state_fork(p->a.state, &copy, p->a.err));
    p->a.u->ops->state_free(p->a.state);
    p->a.state = copy;
    SG_TRY(decode(&p->a, p->rows, p->got));
    SG_TRY(feed(&p->b, 0, p->rows, NULL, NULL, NULL));
    return decode(&p->b, p->rows, p->want);
}

/* Eight marks, one row apart; back to the third, over and over, and on from there. */
static segue_status case_mark(struct pairing *p)
{
    uint32_t marks[8];
    SG_TRY(feed(&p->a, 0, p->rows, NULL, NULL, NULL));
    for (uint32_t i = 0; i < 8; i++) {
        SG_TRY(p->a.u->ops->state_mark(p->a.state, &marks[i], p->a.err));
        SG_TRY(feed(&p->a, p->rows + i, 1, NULL, NULL, NULL));
    }
    SG_TRY(p->a.u->ops->state_back(p->a.state, marks[2], p->a.err));
    SG_TRY(decode(&p->a, p->rows + 2, p->got));
    SG_TRY(p->a.u->ops->state_back(p->a.state, marks[2], p->a.err));
    p->a.u->ops->state_drop(p->a.state, marks[1]);
    SG_TRY(decode(&p->a, p->rows + 2, p->got));
    if (p->a.u->ops->state_back(p->a.state, marks[5], NULL) != SEGUE_EARG ||
        p->a.u->ops->state_back(p->a.state, marks[0], NULL) != SEGUE_EARG)
        return sg_fail(p->a.err, SEGUE_EUNIT, "check: a forgotten mark is alive");
    SG_TRY(feed(&p->b, 0, p->rows, NULL, NULL, NULL));
    for (uint32_t i = 0; i < 2; i++) SG_TRY(feed(&p->b, p->rows + i, 1, NULL, NULL, NULL));
    return decode(&p->b, p->rows + 2, p->want);
}

/* Two marks around more rows than the window holds: what the older one needs must not be dropped. */
static segue_status case_mark_far(struct pairing *p)
{
    uint32_t mark, ahead = ROWS_MAX - p->rows - STEPS;
    SG_TRY(feed(&p->a, 0, p->rows, NULL, NULL, NULL));
    SG_TRY(p->a.u->ops->state_mark(p->a.state, &mark, p->a.err));
    SG_TRY(feed(&p->a, p->rows, ahead, NULL, NULL, NULL));
    SG_TRY(p->a.u->ops->state_back(p->a.state, mark, p->a.err));
    SG_TRY(decode(&p->a, p->rows, p->got));
    SG_TRY(feed(&p->b, 0, p->rows, NULL, NULL, NULL));
    return decode(&p->b, p->rows, p->want);
}

/* Attention alone: cut back to the prompt. Recurrent: cutting is refused, cutting to nothing starts afresh.
 */
static segue_status case_cut(struct pairing *p)
{
    int recurrent = p->a.m->graph->slots_n > 4;
    SG_TRY(feed(&p->a, 0, p->rows, NULL, NULL, NULL));
    SG_TRY(feed(&p->a, p->rows, 7, NULL, NULL, NULL));
    segue_status status = p->a.u->ops->state_cut(p->a.state, p->rows, p->a.err);
    if (recurrent) {
        if (status != SEGUE_EUNSUPPORTED)
            return sg_fail(p->a.err, SEGUE_EUNIT, "check: a recurrent slot was cut");
        SG_TRY(p->a.u->ops->state_cut(p->a.state, p->rows + 7, p->a.err));
        SG_TRY(p->a.u->ops->state_cut(p->a.state, 0, p->a.err));
        SG_TRY(feed(&p->a, 0, p->rows, NULL, NULL, NULL));
    } else {
        SG_TRY(status);
    }
    SG_TRY(decode(&p->a, p->rows, p->got));
    SG_TRY(feed(&p->b, 0, p->rows, NULL, NULL, NULL));
    return decode(&p->b, p->rows, p->want);
}

/* Canceled before it began: no row, and the answer continues as if nothing had happened. */
static segue_status case_cancel(struct pairing *p)
{
    atomic_int cancel = 1;
    uint32_t done = 99;
    uint64_t first, rows;
    SG_TRY(feed(&p->a, 0, p->rows, NULL, NULL, NULL));
    segue_status status = feed(&p->a, p->rows, 5, NULL, &cancel, &done);
    p->a.u->ops->state_held(p->a.state, 0, &first, &rows);
    if (status != SEGUE_ECANCELED || done || rows != p->rows)
        return sg_fail(p->a.err, SEGUE_EUNIT, "check: canceled run: status %d, %u rows done, %u held",
                       (int)status, done, (unsigned)rows);
    SG_TRY(decode(&p->a, p->rows, p->got));
    SG_TRY(feed(&p->b, 0, p->rows, NULL, NULL, NULL));
    return decode(&p->b, p->rows, p->want);
}

/* Tokens as numbers: STEPS in one run equal STEPS runs of one. */
static segue_status case_steps(struct pairing *p)
{
    int32_t ring_tokens[STEPS], history[ROWS_MAX], token = -1;
    struct sg_ring ring = {.tokens = ring_tokens, .cap = STEPS};
    struct sg_sampler sampler = {.history = history, .history_n = p->rows};
    uint32_t wanted = p->rows - 1, done = 0;
    sampler.p = (segue_sampling){
        .size = sizeof sampler.p, .temperature = 0.9f, .top_k = 20, .repeat_penalty = 1.2f, .seed = 7};
    memcpy(history, p->a.m->tokens, p->rows * sizeof token);
    struct sg_span span = {.state = p->a.state,
                           .rows = p->rows,
                           .tokens = p->a.m->tokens,
                           .wanted = &wanted,
                           .wanted_n = 1,
                           .sampler = &sampler,
                           .steps = STEPS,
                           .ring = &ring};
    struct sg_batch batch = {.spans = &span, .spans_n = 1};
    struct sg_result result = {.rows_done = &done, .tokens = &token};
    struct sg_run *run;
    SG_TRY(p->a.u->ops->start(p->a.program, &batch, &result, &run, p->a.err));
    SG_TRY(p->a.u->ops->wait(run, UINT64_MAX, p->a.err));
    if (ring.written != STEPS || done != p->rows + STEPS - 1 || token != ring_tokens[STEPS - 1])
        return sg_fail(p->a.err, SEGUE_EUNIT, "check: %u tokens, %u rows of %u steps", (unsigned)ring.written,
                       done, STEPS);
    span.state = p->b.state;
    span.steps = 1;
    span.ring = NULL;
    for (uint32_t i = 0; i < STEPS; i++) {
        SG_TRY(p->b.u->ops->start(p->b.program, &batch, &result, &run, p->b.err));
        SG_TRY(p->b.u->ops->wait(run, UINT64_MAX, p->b.err));
        p->got[i] = (float)ring_tokens[i];
        p->want[i] = (float)token;
        history[sampler.history_n++] = token;
        span.first += span.rows;
        span.rows = 1;
        wanted = 0;
        span.tokens = &history[sampler.history_n - 1];
    }
    return SEGUE_OK;
}

/* a -> b -> c: bytes of a and c equal, in the same storage. */
static segue_status case_to_and_fro(struct pairing *p)
{
    unsigned char *before = NULL, *after = NULL;
    size_t n = 0, m = 0;
    SG_TRY(feed(&p->a, 0, p->rows, NULL, NULL, NULL));
    segue_status status = move(&p->a, &p->b);
    if (status == SEGUE_OK) status = state_bytes(&p->a, &before, &n);
    p->a.u->ops->state_free(p->a.state);
    p->a.state = NULL;
    if (status == SEGUE_OK) status = seat_state(&p->a);
    if (status == SEGUE_OK) status = move(&p->b, &p->a);
    if (status == SEGUE_OK) status = state_bytes(&p->a, &after, &m);
    p->got[0] = status == SEGUE_OK && (n != m || memcmp(before, after, n));
    sg_free(before);
    sg_free(after);
    return status;
}

/* The prompt in two runs, where it is long enough. */
static segue_status prefill(struct seat *s, uint32_t rows)
{
    uint32_t half = rows / 2;
    if (half) SG_TRY(feed(s, 0, half, NULL, NULL, NULL));
    return feed(s, half, rows - half, NULL, NULL, NULL);
}

/* All of it on b, for comparison: the prompt as `prefill` feeds it. */
static segue_status b_alone(struct pairing *p)
{
    struct seat alone;
    segue_status status = seat_take(&alone, p->b.u, p->b.m, p->b.kv, p->b.err);
    if (status == SEGUE_OK) status = prefill(&alone, p->rows);
    if (status == SEGUE_OK) status = decode(&alone, p->rows, p->want);
    seat_leave(&alone);
    return status;
}

/* Prefill on a, move, decode on b; all of it on b. */
static segue_status case_handoff(struct pairing *p)
{
    SG_TRY(prefill(&p->a, p->rows));
    SG_TRY(move(&p->a, &p->b));
    SG_TRY(decode(&p->b, p->rows, p->got));
    return b_alone(p);
}

static segue_status move_all(struct seat *a, void *arg)
{
    struct pairing *p = arg;
    return move_rows(a, &p->b, p->rows);
}

/* The state goes over while the second half of the prompt is read: get waits until the rows are there. */
static segue_status case_stream(struct pairing *p)
{
    uint32_t half = p->rows / 2;
    struct beside beside = {move_all, p};
    if (half) SG_TRY(feed(&p->a, 0, half, NULL, NULL, NULL));
    SG_TRY(feed_beside(&p->a, half, p->rows - half, NULL, NULL, NULL, &beside));
    SG_TRY(decode(&p->b, p->rows, p->got));
    return b_alone(p);
}

/* The direct path gives the bytes that get and put give. */
static segue_status case_pass(struct pairing *p)
{
    unsigned char *before = NULL, *after = NULL;
    size_t n = 0, m = 0;
    SG_TRY(prefill(&p->a, p->rows));
    segue_status status = state_bytes(&p->a, &before, &n);
    if (status == SEGUE_OK) status = p->b.u->ops->state_transfer(p->b.state, p->a.state, p->b.err);
    if (status == SEGUE_OK) status = state_bytes(&p->b, &after, &m);
    if (status == SEGUE_OK && (n != m || memcmp(before, after, n)))
        status = sg_fail(p->b.err, SEGUE_EUNIT, "check: the state changed on its way");
    sg_free(before);
    sg_free(after);
    SG_TRY(status);
    p->a.u->ops->state_free(p->a.state); /* nothing of it is needed any more */
    p->a.state = NULL;
    SG_TRY(decode(&p->b, p->rows, p->got));
    return b_alone(p);
}

static const struct handoff_kind {
    const char *name;
    segue_status (*run)(struct pairing *p);
    int pairs;                       /* 1: between two units, else on one */
    int samples;                     /* 1: only where the unit samples */
} kinds[] = {
    {"fork", case_fork, 0, 0},     {"fork_goes_on", case_fork_goes_on, 0, 0}, {"mark", case_mark, 0, 0},
    {"mark_far", case_mark_far, 0, 0}, {"cut", case_cut, 0, 0},           {"cancel", case_cancel, 0, 0},
    {"steps", case_steps, 0, 1},   {"to_and_fro", case_to_and_fro, 1, 0},     {"handoff", case_handoff, 1, 0},
    {"stream", case_stream, 1, 0}, {"pass", case_pass, 1, 0},
};

static double bound_of(const struct handoff_kind *k, const struct check_unit *a, const struct check_unit *b,
                       enum sg_storage kv)
{
    if (a == b || (k->run != case_handoff && k->run != case_stream && k->run != case_pass)) return 0;
    if (a->desc.half || b->desc.half) return 3e-2 * fmax(check_half(a), check_half(b));
    return kv == SG_F32 ? 2e-5 : kv == SG_Q8_0 ? 2e-2 : 1e-3;
}

static void seats_leave(struct pairing *p)
{
    seat_leave(&p->a);
    seat_leave(&p->b);
}

/* One line: what a and b gave, compared. */
static void one_case(struct check *c, const struct handoff_kind *k, const struct check_unit *a,
                     const struct check_unit *b, const struct tiny *m, enum sg_storage kv, uint32_t rows)
{
    struct check_case line = {.level = "handoff", .unit = a->spec, .against = b->spec};
    struct pairing p = {.rows = rows};
    segue_error err = {0};
    double scale;
    const char *storage = kv == SG_Q8_0 ? "q8" : sg_storage_info(kv)->name;
    snprintf(line.name, sizeof line.name, "%s.%s.%s.%u", k->name,
             m->graph->slots_n > 4 ? "hybrid" : "attention", storage, rows);
    if (!check_wants(c, &line)) return;
    segue_status status = seat_take(&p.a, a, m, kv, &err);
    if (status == SEGUE_OK) status = seat_take(&p.b, b, m, kv, &err);
    if (k->samples && !a->desc.samples) line.skipped = "the unit does not sample";
    else if (status == SEGUE_OK) status = k->run(&p);
    if (status != SEGUE_OK) {
        fprintf(stderr, "check: %s %s %s: %s\n", line.unit, line.against, line.name, err.text);
        line.ok = -1;
    }
    line.max_abs =
        status == SEGUE_OK ? check_distance(p.got, STEPS * VOCAB, p.want, STEPS * VOCAB, &scale) : INFINITY;
    line.bound = status == SEGUE_OK ? bound_of(k, a, b, kv) * scale : 0;
    check_report(c, &line);
    seats_leave(&p);
}

/* Lengths around the taps of the convolution, blocks of 64 and the window of 70. */
static void cases_of(struct check *c, const struct tiny *m, const struct check_unit *a,
                     const struct check_unit *b)
{
    static const enum sg_storage storages[] = {SG_F32, SG_F16, SG_BF16, SG_Q8_0};
    static const uint32_t lengths[] = {1, 2, 3, 4, 63, 64, 65, 69, 70, 71, 100, 410, 1000};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            if (kinds[k].pairs ? a == b && kinds[k].run == case_to_and_fro : a != b) continue;
            if (kinds[k].run == case_stream && !a->desc.streams) continue;
            if (kinds[k].run == case_pass && (a->ops != b->ops || !a->ops->state_transfer)) continue;
            if (c->quick && (i % 5 != 3 || (a != b && (a - b + (long)i + (long)k) % 2))) continue;
            enum sg_storage kv = a->desc.half || b->desc.half ? SG_F16 : storages[(i + k) % 4];
            one_case(c, &kinds[k], a, b, m, kv, lengths[i]);
        }
}

void check_handoffs(struct check *c)
{
    for (uint32_t i = 0; c->bench && i < c->units_n; i++) check_handoff_times(c, &c->units[i]);
    for (int recurrent = 0; recurrent < 2; recurrent++) {
        struct tiny m;
        segue_error err;
        if (tiny_make(&m, c->seed, recurrent, &err) != SEGUE_OK) {
            struct check_case line = {
                .level = "handoff", .unit = "-", .against = "-", .name = "model", .ok = -1};
            fprintf(stderr, "check: %s\n", err.text);
            check_report(c, &line);
            continue;
        }
        for (uint32_t i = 0; i < c->units_n; i++)
            for (uint32_t k = 0; k < c->units_n; k++) cases_of(c, &m, &c->units[i], &c->units[k]);
        tiny_free(&m);
    }
}
