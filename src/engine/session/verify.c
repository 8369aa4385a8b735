/* verify.c: see verify.h. SPDX-License-Identifier: MIT */
#include "engine/session/verify.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/session/session.h"

enum { TOKENS_MAX = 256, LOGITS_MAX = 1 << 24 }; /* tokens, and numbers of logits, that are compared */

/* Bounds relative to the largest logit and to the rms of a slot. Two units differ by rounding, a broken hand-off by the size of
 * the numbers (docs/STATE.md). With the same kernels on both sides no bit may differ. */
static const double bound_logits = 0.05, bound_slots = 0.05, bound_q8 = 0.08;

/* --- logits --- */

/* The requested number of tokens, reduced to the pending ones, to one chunk of both layouts, and to LOGITS_MAX bytes of
 * logits. */
uint32_t sg_verify_token_count(const struct segue_session *s)
{
    size_t waiting = s->tokens_n - s->computed, vocab = s->engine->model->info.vocab, n = s->verify_tokens;
    if (n > waiting) n = waiting;
    if (n > TOKENS_MAX) n = TOKENS_MAX;
    if (n > s->layouts[SG_PREFILL_LAYOUT].chunk_tokens) n = s->layouts[SG_PREFILL_LAYOUT].chunk_tokens;
    if (n > s->layouts[SG_DECODE_LAYOUT].chunk_tokens) n = s->layouts[SG_DECODE_LAYOUT].chunk_tokens;
    while (n > 1 && n * vocab > LOGITS_MAX) n /= 2;
    return (uint32_t)n;
}

/* Opens s->verifier: a session on the decode layout only, with a copy of the states at the tokens computed so far. */
static segue_status verifier_open(struct segue_session *s, segue_error *err)
{
    struct sg_hostcopy copy = {0};
    segue_session_opts o = {.size = sizeof o, .context = s->tokens_n + 1, .adapters = s->adapters, .adapters_n = s->adapters_n,
                            .checkpoint_bytes = SEGUE_NO_CHECKPOINTS};
    struct segue_session *c;
    segue_session_close(s->verifier);
    s->verifier = NULL;
    SG_TRY(segue_session_open(&c, s->engine, &o, err));
    s->verifier = c;
    c->layouts[0] = s->layouts[SG_DECODE_LAYOUT];
    for (uint32_t i = 0; i < c->layouts[0].n; i++) c->layouts[0].stages[i].state = NULL;
    c->layouts[1] = c->layouts[0];
    c->split = 0;
    memcpy(c->tokens, s->tokens, s->tokens_n * sizeof *c->tokens);
    c->tokens_n = s->tokens_n;
    SG_TRY(sg_layout_states(&c->layouts[0], c->context, err));
    if (!s->computed) return SEGUE_OK;
    segue_status status = sg_hostcopy_save(&copy, s->engine->graph, &s->layouts[SG_PREFILL_LAYOUT], s->computed, err);
    if (status == SEGUE_OK) status = sg_hostcopy_restore(&copy, s->engine->graph, &c->layouts[0], err);
    sg_hostcopy_free(&copy);
    c->computed = s->computed;
    return status;
}

static size_t best_of(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* 1: both layouts have the same kernels, weights and storage in every layer. */
static int same_kernels(struct segue_session *s)
{
    const struct sg_graph *g = s->engine->graph;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        uint32_t ignored;
        const struct sg_layout_stage *a = sg_layout_slot(&s->layouts[SG_PREFILL_LAYOUT], g->slots[i].kind, g->slots[i].layer,
                                                         &ignored),
                                     *b = sg_layout_slot(&s->layouts[SG_DECODE_LAYOUT], g->slots[i].kind, g->slots[i].layer,
                                                         &ignored);
        const char *kernels = a->layer_range->unit->desc.kernels;
        if (!*kernels || strcmp(kernels, b->layer_range->unit->desc.kernels) || a->kv != b->kv ||
            a->layer_range->model != b->layer_range->model)
            return 0;
    }
    return 1;
}

/* The largest difference relative to the largest logit; counts rows with another best token. */
static void compare_rows(segue_verify *v, const float *want, const float *got, uint32_t rows, size_t vocab, int same)
{
    double max = 0, size = 0;
    for (size_t i = 0; i < rows * vocab; i++) {
        double d = fabs((double)got[i] - (double)want[i]), x = fabs((double)want[i]);
        if (!(d <= max)) max = d; /* NaN stays */
        if (x > size) size = x;
    }
    for (uint32_t r = 0; r < rows; r++)
        v->near_ties += best_of(want + r * vocab, vocab) != best_of(got + r * vocab, vocab);
    v->tokens = rows;
    v->max_abs = max;
    v->bound = same ? 0 : bound_logits * size;
    v->ok = max <= v->bound;
}

static segue_status run_rows(struct segue_session *s, uint32_t rows, const uint32_t *wanted, float *logits, segue_error *err)
{
    struct sg_run_request request = {.tokens_n = rows, .wanted = wanted, .wanted_n = rows, .logits = logits, .token = -1};
    return sg_session_run(s, &request, err);
}

segue_status sg_verify_logits(struct segue_session *s, segue_error *err)
{
    size_t vocab = s->engine->model->info.vocab;
    uint32_t n = (uint32_t)(s->tokens_n - s->computed), wanted[TOKENS_MAX];
    for (uint32_t i = 0; i < n; i++) wanted[i] = i;
    SG_TRY(verifier_open(s, err));
    float *want = sg_alloc(n * vocab * sizeof *want), *got = sg_alloc(n * vocab * sizeof *got);
    segue_status status = want && got ? run_rows(s->verifier, n, wanted, want, err)
                                      : sg_no_memory("logits to compare", 2 * n * vocab * sizeof *want, err);
    if (status == SEGUE_OK) status = run_rows(s, n, wanted, got, err);
    if (status == SEGUE_OK) {
        segue_verify *v = &s->stats.verify;
        *v = (segue_verify){.action = "none"};
        compare_rows(v, want, got, n, vocab, same_kernels(s));
        memcpy(s->logits, got + (n - 1) * vocab, vocab * sizeof *got);
        s->logits_known = 1;
        s->stats.tokens_in += n;
    }
    sg_free(want);
    sg_free(got);
    return status;
}

/* --- states --- */

/* Adds the squares of the differences, and of the values, of one slot, read as fp32 row by row from both layouts. */
static segue_status slot_error(struct sg_layout *a, struct sg_layout *b, const struct sg_slot *slot, uint64_t rows, float *x,
                               float *y, double *error, double *size, segue_error *err)
{
    uint32_t ia = 0, ib = 0;
    struct sg_layout_stage *sa = sg_layout_slot(a, slot->kind, slot->layer, &ia),
                           *sb = sg_layout_slot(b, slot->kind, slot->layer, &ib);
    const struct sg_unit_ops *oa = sg_ops_of(sa->state), *ob = sg_ops_of(sb->state);
    int whole = slot->kind == SG_SLOT_CONV || slot->kind == SG_SLOT_DELTA;
    size_t n = whole ? sg_slot_fixed_bytes(slot) / sizeof *x : (size_t)slot->heads * slot->width;
    uint64_t first = 0, other = 0, held;
    oa->state_held(sa->state, ia, &first, &held);
    ob->state_held(sb->state, ib, &other, &held);
    for (uint64_t r = whole ? 0 : first > other ? first : other, end = whole ? 1 : rows; r < end; r++) {
        SG_TRY(oa->state_get(sa->state, ia, r, r + 1, SG_F32, x, err));
        SG_TRY(ob->state_get(sb->state, ib, r, r + 1, SG_F32, y, err));
        for (size_t i = 0; i < n; i++) {
            double d = (double)y[i] - (double)x[i];
            *error += d * d;
            *size += (double)x[i] * (double)x[i];
        }
    }
    return SEGUE_OK;
}

static segue_status compare_states(struct segue_session *s, segue_error *err)
{
    const struct sg_graph *g = s->engine->graph;
    segue_verify *v = &s->stats.verify;
    struct sg_layout *expected = &s->verifier->layouts[0], *received = &s->layouts[SG_DECODE_LAYOUT];
    size_t max = 1;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        size_t n = (size_t)g->slots[i].heads * g->slots[i].width, fixed = sg_slot_fixed_bytes(&g->slots[i]) / sizeof(float);
        max = n > max ? n : max;
        max = fixed > max ? fixed : max;
    }
    float *x = sg_alloc(max * sizeof *x), *y = sg_alloc(max * sizeof *y);
    segue_status status = x && y ? SEGUE_OK : sg_no_memory("slots to compare", 2 * max * sizeof *x, err);
    v->state_bound = same_kernels(s) ? 0 : received->stages[0].kv == SG_Q8_0 ? bound_q8 : bound_slots;
    for (uint32_t i = 0; i < g->slots_n && status == SEGUE_OK; i++) {
        double error = 0, size = 0;
        status = slot_error(expected, received, &g->slots[i], s->computed, x, y, &error, &size, err);
        double relative = size > 0 ? sqrt(error / size) : sqrt(error);
        if (!(relative <= v->state_error)) v->state_error = relative;
    }
    v->ok = v->ok && v->state_error <= v->state_bound;
    sg_free(x);
    sg_free(y);
    return status;
}

/* Drops everything that the prefill unit computed; the decode layout becomes the only one. */
static segue_status recompute(struct segue_session *s, segue_error *err)
{
    s->stats.verify.action = "recomputed";
    sg_flow_free(s->flow);
    s->flow = NULL;
    for (int i = 0; i < 2; i++) sg_layout_drop_states(&s->layouts[i]);
    sg_session_forget_checkpoints(s, 0);
    sg_recovery_cut(s, 0);
    s->layouts[SG_PREFILL_LAYOUT] = s->layouts[SG_DECODE_LAYOUT];
    s->split = 0;
    s->active = SG_PREFILL_LAYOUT;
    s->computed = 0;
    s->logits_known = 0;
    return sg_session_compute_all(s, err);
}

segue_status sg_verify_states(struct segue_session *s, segue_error *err)
{
    segue_status status = SEGUE_OK;
    if (s->active == SG_DECODE_LAYOUT && sg_layout_holds(&s->layouts[SG_DECODE_LAYOUT]) && s->verifier->computed == s->computed)
        status = compare_states(s, err);
    else
        s->stats.verify = (segue_verify){0}; /* a unit was lost, so no states were handed over */
    segue_session_close(s->verifier);
    s->verifier = NULL;
    if (status == SEGUE_OK && s->stats.verify.tokens && !s->stats.verify.ok) status = recompute(s, err);
    return status;
}
