/* checksample.c: sampling by a unit against unit/sample.c on the logits that the unit returns in the same run: the tokens must
 * be equal, and so must the log-probabilities. An output head alone, up to 16 sequences per run, each with other settings:
 * logits with ties, in a row of equal ones, far apart, some forbidden; every step of sample.h, alone and with others.
 * sample.few is part of the level; sample.many (100,000 rows) runs when a --case names it. SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "check.h"

enum { WIDTH = 64, VOCAB = 3000, SEQS = 16, HISTORY = 400, BIASES = 40, FEW = 2000, MANY = 100000 };

/* One sequence: its settings, what they point to, and the row of numbers that gives its logits. */
struct sample_row {
    struct sg_state *state;
    struct sg_sampler s;
    struct segue_bias bias[BIASES];
    int32_t history[HISTORY], stops[3];
    uint8_t breakers[VOCAB];
    uint32_t allowed[(VOCAB + 31) / 32];
    float x[WIDTH];
    uint64_t first;
};

struct samples {
    const struct check_unit *u;
    struct check_rng rng;
    struct sg_program *program;
    struct sg_chooser *chooser;
    struct sample_row rows[SEQS];
    float logits[SEQS * VOCAB], work[VOCAB];
    uint32_t wrong;
};

static uint32_t below(struct samples *t, uint32_t n) { return check_below(&t->rng, n); }
static float part(struct samples *t) { return 0.5f + 0.5f * check_uniform(&t->rng); }

/* Filters and temperature. */
static void pick_filters(struct samples *t, segue_sampling *p)
{
    static const float temperatures[] = {0, 0.8f, 1, 1.5f, 0.1f, 30, 1e-30f, 1e30f};
    static const int32_t ks[] = {0, 0, 40, 1, 20, 500, 2500, 100000};
    p->temperature = temperatures[below(t, 8)];
    p->top_k = ks[below(t, 8)];
    p->top_p = below(t, 2) ? 0 : below(t, 4) ? 0.95f : part(t);
    p->min_p = below(t, 3) ? 0 : part(t) * part(t);
    p->typical_p = below(t, 4) ? 0 : part(t);
    p->seed = check_next(&t->rng);
    p->logprobs = below(t, 4) ? 0 : below(t, SG_LOGPROBS_MAX + 1);
}

/* Penalties over a history that repeats itself. */
static void pick_penalties(struct samples *t, struct sample_row *r)
{
    segue_sampling *p = &r->s.p;
    size_t n = below(t, HISTORY);
    uint32_t tokens = below(t, 2) ? 20 : VOCAB;
    for (size_t i = 0; i < n; i++) r->history[i] = i >= n / 2 && n > 1 ? r->history[i - n / 2] : (int32_t)below(t, tokens);
    r->s.history = r->history;
    r->s.history_n = n;
    if (!below(t, 3)) p->repeat_penalty = 0.5f + part(t);
    if (!below(t, 6)) p->frequency_penalty = check_uniform(&t->rng);
    if (!below(t, 6)) p->presence_penalty = check_uniform(&t->rng);
    p->repeat_last_n = below(t, 3) ? 0 : (int32_t)below(t, HISTORY) - 1;
    if (below(t, 5)) return;
    p->dry_multiplier = part(t);
    p->dry_base = below(t, 2) ? 0 : 1 + part(t);
    p->dry_allowed_length = (int32_t)below(t, 4);
    memset(r->breakers, 0, sizeof r->breakers);
    r->breakers[below(t, tokens)] = 1;
    r->s.breakers = r->breakers;
    r->s.breakers_n = VOCAB;
}

/* Biases, stop tokens, and the mask. */
static void pick_forbidden(struct samples *t, struct sample_row *r)
{
    segue_sampling *p = &r->s.p;
    for (p->bias_n = below(t, 5) ? 0 : below(t, BIASES); p->bias_n > 0;) {
        for (size_t i = 0; i < p->bias_n; i++)
            r->bias[i] = (struct segue_bias){(int32_t)below(t, 50), below(t, 9) ? 5 * check_normal(&t->rng) : -INFINITY};
        p->bias = r->bias;
        break;
    }
    for (int i = 0; i < 3; i++) r->stops[i] = (int32_t)below(t, VOCAB);
    r->s.stops = r->stops;
    r->s.stops_n = 3;
    p->ignore_stops = !below(t, 4);
    r->s.limit = below(t, 3) ? 0 : VOCAB - below(t, 100);
    if (below(t, 6)) return;
    uint32_t every = 1 + below(t, 3) * 40;
    memset(r->allowed, 0, sizeof r->allowed);
    for (uint32_t i = 0; i < VOCAB; i++)
        if (!below(t, every)) r->allowed[i / 32] |= 1u << i % 32;
    r->s.allowed = r->allowed;
    r->s.allowed_n = below(t, 3) ? VOCAB : VOCAB - below(t, VOCAB);
}

static void pick(struct samples *t, struct sample_row *r)
{
    static const float scales[] = {0, 0.01f, 1, 1, 3, 30, 1e6f, 1e30f};
    float scale = scales[below(t, 8)];
    int whole = !below(t, 3); /* whole numbers: many ties */
    for (int i = 0; i < WIDTH; i++) r->x[i] = whole ? (float)((int)below(t, 3) - 1) : scale * check_normal(&t->rng);
    r->s = (struct sg_sampler){.p = {.size = sizeof r->s.p}};
    pick_filters(t, &r->s.p);
    if (!below(t, 2)) pick_penalties(t, r);
    if (!below(t, 2)) pick_forbidden(t, r);
}

static int same_logprobs(const segue_logprob *a, const segue_logprob *b, size_t n)
{
    int same = 1;
    for (size_t i = 0; i < n; i++) same &= a[i].token == b[i].token && !memcmp(&a[i].logprob, &b[i].logprob, sizeof a->logprob);
    return same;
}

/* What sample.c chooses from the logits of each row. A row that has no choice makes the whole run fail. */
static int expected(struct samples *t, uint32_t n, int32_t *tokens, segue_logprob *logprobs, size_t *logprobs_n)
{
    int all = 1;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(t->work, t->logits + (size_t)i * VOCAB, sizeof t->work);
        all &= sg_choose(t->chooser, &t->rows[i].s, t->work, t->rows[i].first + 1, &tokens[i], logprobs + i * SG_LOGPROBS_MAX,
                         &logprobs_n[i], NULL) == SEGUE_OK;
    }
    return all;
}

/* One run of n sequences, each with one row. */
static segue_status run(struct samples *t, uint32_t n, segue_error *err)
{
    static const uint32_t first_row = 0;
    struct sg_span spans[SEQS];
    int32_t tokens[SEQS], want[SEQS];
    segue_logprob logprobs[SEQS * SG_LOGPROBS_MAX], want_logprobs[SEQS * SG_LOGPROBS_MAX];
    size_t logprobs_n[SEQS], want_n[SEQS];
    uint32_t done[SEQS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        struct sample_row *r = &t->rows[i];
        pick(t, r);
        spans[i] = (struct sg_span){.state = r->state, .rows = 1, .first = r->first, .values = r->x};
        spans[i].wanted = &first_row;
        spans[i].wanted_n = 1;
        spans[i].sampler = &r->s;
    }
    struct sg_batch batch = {.spans = spans, .spans_n = n, .inline_hint = 1};
    struct sg_result result = {.logits = t->logits, .tokens = tokens, .logprobs = logprobs, .logprobs_n = logprobs_n};
    result.rows_done = done;
    struct sg_run *one;
    SG_TRY(t->u->ops->start(t->program, &batch, &result, &one, err));
    segue_status status = t->u->ops->wait(one, UINT64_MAX, err);
    if (status != SEGUE_OK && status != SEGUE_EFORMAT) return status;
    int all = expected(t, n, want, want_logprobs, want_n);
    t->wrong += all != (status == SEGUE_OK);
    for (uint32_t i = 0; i < n && all && status == SEGUE_OK; i++) {
        const size_t at = (size_t)i * SG_LOGPROBS_MAX;
        t->wrong += tokens[i] != want[i] || logprobs_n[i] != want_n[i] ||
                    !same_logprobs(logprobs + at, want_logprobs + at, want_n[i]);
    }
    for (uint32_t i = 0; i < n; i++) t->rows[i].first += done[i];
    return SEGUE_OK;
}

/* The head: whole numbers and others. */
static segue_status make_graph(struct samples *t, struct sg_arena *arena, struct sg_graph **g, segue_error *err)
{
    struct sg_builder b;
    SG_TRY(sg_builder_begin(&b, err));
    const struct sg_tensor *head = check_tensor(arena, &t->rng, SG_F32, VOCAB, WIDTH, 0.3f, "head");
    int32_t rows = sg_rows(&b, sg_whole(&b, sg_input_rows(&b, WIDTH)));
    sg_output(&b, sg_linear(&b, sg_whole(&b, rows), sg_weight_of(&b, head), sg_weight_of(&b, NULL), sg_absent()), "logits");
    return sg_builder_end(&b, g, err);
}

static segue_status run_all(struct samples *t, uint32_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < SEQS; i++) SG_TRY(t->u->ops->state_new(t->u->unit, NULL, 0, NULL, &t->rows[i].state, err));
    for (uint32_t done = 0; done < rows;) {
        uint32_t n = below(t, 4) ? SEQS : 1 + below(t, SEQS);
        SG_TRY(run(t, n, err));
        done += n;
    }
    return SEGUE_OK;
}

static void check_one(struct check *c, const struct check_unit *u, const char *name, uint32_t rows)
{
    struct check_case k = {.level = "op", .unit = u->spec, .against = "sample.c"};
    struct sg_arena arena = {0};
    struct sg_graph *g = NULL;
    segue_error err = {0};
    snprintf(k.name, sizeof k.name, "%s", name);
    if (!check_wants(c, &k)) return;
    struct samples *t = sg_alloc(sizeof *t);
    if (!t) return;
    t->u = u;
    t->rng = check_rng_of(c->seed, name, 0);
    segue_status status = make_graph(t, &arena, &g, &err);
    const struct sg_graph *graphs[] = {g};
    if (status == SEGUE_OK) status = sg_chooser_new(&t->chooser, VOCAB, &err);
    if (status == SEGUE_OK) status = u->ops->compile(u->unit, graphs, 1, NULL, &t->program, &err);
    if (status == SEGUE_OK) status = run_all(t, rows, &err);
    for (uint32_t i = 0; i < SEQS; i++)
        if (t->rows[i].state) u->ops->state_free(t->rows[i].state);
    if (t->program) u->ops->discard(t->program);
    sg_chooser_free(t->chooser);
    sg_graph_free(g);
    sg_arena_free(&arena);
    k.skipped = status == SEGUE_EUNSUPPORTED ? err.text : NULL;
    k.max_abs = status == SEGUE_OK ? t->wrong : INFINITY;
    if (status != SEGUE_OK && !k.skipped) fprintf(stderr, "%s %s: %s\n", u->spec, name, err.text);
    check_report(c, &k);
    sg_free(t);
}

void check_samples(struct check *c, const struct check_unit *u)
{
    if (!u->desc.samples) return;
    check_one(c, u, "sample.few", FEW);
    if (c->names_n) check_one(c, u, "sample.many", MANY);
}
