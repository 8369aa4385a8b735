/* sampler_upload.c: the settings of samplers in GPU memory for k_sample.cu, and its outcomes. The settings are written when a run
 * is no continuation of the previous one; while the same sequences continue with the same settings, nothing is copied.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "unit/cuda/exec/choose.h"

enum { ALIGN = 16, WINDOW = 64 }; /* of each list, in bytes; repeat_last_n 0 */

static int has_penalties(const segue_sampling *p)
{
    return (p->repeat_penalty > 0 && !(p->repeat_penalty >= 1 && p->repeat_penalty <= 1)) || p->frequency_penalty > 0 ||
           p->frequency_penalty < 0 || p->presence_penalty > 0 || p->presence_penalty < 0;
}

static double dry_base(const segue_sampling *p) { return p->dry_base > 0 ? (double)p->dry_base : 1.75; }
static int has_dry(const segue_sampling *p) { return p->dry_multiplier > 0 && dry_base(p) >= 1; }

/* Tokens at the end of the history that the steps read. */
static size_t history_needed(const struct sg_sampler *s)
{
    size_t window = s->p.repeat_last_n == 0 ? WINDOW : (size_t)s->p.repeat_last_n;
    if (has_dry(&s->p) || (has_penalties(&s->p) && s->p.repeat_last_n < 0)) return s->history_n;
    if (!has_penalties(&s->p)) return 0;
    return window < s->history_n ? window : s->history_n;
}

/* --- lists: first their size is counted, then they are written --- */

struct lists {
    unsigned char *pinned; /* NULL: only count */
    cu_ptr device;
    size_t used;
    int failed; /* 1: no memory */
};

/* Reserves n bytes and copies `from` (NULL: nothing) to the pinned memory; returns their address on the GPU. */
static void *add_list(struct lists *l, const void *from, size_t n, size_t reserved)
{
    size_t at = l->used;
    l->used += (reserved + ALIGN - 1) / ALIGN * ALIGN;
    if (l->pinned && from && n) memcpy(l->pinned + at, from, n);
    return (void *)(uintptr_t)(l->device + at);
}

struct ordered_bias {
    struct segue_bias bias;
    size_t place;
};

static int by_token_and_place(const void *a, const void *b)
{
    const struct ordered_bias *x = a, *y = b;
    if (x->bias.token != y->bias.token) return x->bias.token < y->bias.token ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* The biases by token: the kernel handles those of one token in one thread, in the caller's order. */
static void add_biases(struct lists *l, const segue_sampling *p, struct ck_sampler *a)
{
    size_t n = p->bias_n, tokens_at = l->used;
    a->bias_n = (uint32_t)n;
    a->bias_tokens = add_list(l, NULL, 0, n * sizeof(int32_t));
    size_t biases_at = l->used;
    a->biases = add_list(l, NULL, 0, n * sizeof(float));
    if (!l->pinned || !n) return;
    struct ordered_bias *all = sg_alloc(n * sizeof *all);
    l->failed |= !all;
    if (!all) return;
    for (size_t i = 0; i < n; i++) all[i] = (struct ordered_bias){p->bias[i], i};
    qsort(all, n, sizeof *all, by_token_and_place);
    for (size_t i = 0; i < n; i++) {
        memcpy(l->pinned + tokens_at + i * sizeof(int32_t), &all[i].bias.token, sizeof(int32_t));
        memcpy(l->pinned + biases_at + i * sizeof(float), &all[i].bias.bias, sizeof(float));
    }
    sg_free(all);
}

/* The settings of one row, and its lists. */
static struct ck_sampler settings_of(const struct sg_run *run, const struct cu_sampled_row *row, uint32_t growth, struct lists *l)
{
    const struct sg_sampler *s = row->sampler;
    const segue_sampling *p = &s->p;
    uint32_t vocab = run->program->base.graph->vocab;
    size_t need = history_needed(s);
    struct ck_sampler a = {.temperature = p->temperature, .top_p = p->top_p, .min_p = p->min_p, .typical_p = p->typical_p};
    a.repeat = p->repeat_penalty;
    a.frequency = p->frequency_penalty;
    a.presence = p->presence_penalty;
    a.dry_multiplier = has_dry(p) ? p->dry_multiplier : 0;
    a.dry_base = dry_base(p);
    a.dry_allowed = p->dry_allowed_length > 0 ? (uint32_t)p->dry_allowed_length : 2;
    a.seed = p->seed;
    a.top_k = p->top_k > 0 ? (uint32_t)p->top_k : 0;
    a.last_n = p->repeat_last_n < 0 ? UINT32_MAX : p->repeat_last_n ? (uint32_t)p->repeat_last_n : WINDOW;
    a.limit = s->limit && s->limit < vocab ? s->limit : vocab;
    a.logprobs = p->logprobs;
    a.row = row->row;
    a.stops_n = p->ignore_stops ? (uint32_t)s->stops_n : 0;
    a.breakers_n = has_dry(p) && s->breakers ? (uint32_t)s->breakers_n : 0;
    add_biases(l, p, &a);
    a.changed = a.bias_n || a.stops_n || s->allowed || has_penalties(p) || a.dry_multiplier > 0;
    a.stops = add_list(l, s->stops, a.stops_n * sizeof *s->stops, a.stops_n * sizeof *s->stops);
    if (a.breakers_n) a.breakers = add_list(l, s->breakers, a.breakers_n, a.breakers_n);
    if (s->allowed) {
        a.allowed_n = s->allowed_n;
        a.allowed = add_list(l, s->allowed, cu_pieces(s->allowed_n, 32) * 4, cu_pieces(s->allowed_n, 32) * 4);
    }
    if (!has_penalties(p) && !has_dry(p)) return a;
    a.history_n = (uint32_t)need;
    a.history_cap = (uint32_t)need + growth;
    a.history = add_list(l, s->history + s->history_n - need, need * sizeof(int32_t), a.history_cap * sizeof(int32_t));
    return a;
}

/* --- memory --- */

static segue_status grow_pinned(struct sg_run *run, size_t want)
{
    struct sg_unit *u = run->program->base.unit;
    struct cu_sampling *m = &run->lane->sampling;
    void *p = NULL;
    if (want <= m->pinned_bytes) return SEGUE_OK;
    /* A copy from the old memory may still be in progress. */
    SG_TRY(cu_run_check(run, u->d.stream_sync(run->lane->stream)));
    if (m->pinned) u->d.host_free(m->pinned);
    m->pinned = NULL;
    m->pinned_bytes = 0;
    SG_TRY(cu_run_check(run, u->d.host_alloc(&p, want, CU_HOST_MAPPED)));
    m->pinned = p;
    m->pinned_bytes = want;
    return SEGUE_OK;
}

/* Zeroed GPU memory. */
static segue_status alloc_zero(struct sg_run *run, size_t bytes, cu_ptr *out)
{
    struct sg_unit *u = run->program->base.unit;
    SG_TRY(cu_mem_alloc(u, bytes, "sampling", out, &run->base.error));
    return cu_run_check(run, u->d.memset_d8(*out, 0, bytes, run->lane->stream));
}

/* Memory for n rows. Captured graphs have the old addresses. */
static segue_status grow_rows(struct sg_run *run, uint32_t n)
{
    struct sg_unit *u = run->program->base.unit;
    struct cu_sampling *m = &run->lane->sampling;
    size_t row = (size_t)run->program->base.graph->vocab * 4;
    void *p = NULL;
    if (n <= m->rows) return SEGUE_OK;
    SG_TRY(cu_run_check(run, u->d.stream_sync(run->lane->stream)));
    cu_captured_forget(u, run->lane);
    m->rows = 0;
    cu_mem_free(u, &m->work);
    cu_mem_free(u, &m->counts);
    cu_mem_free(u, &m->jobs);
    SG_TRY(cu_mem_alloc(u, n * row, "sampling", &m->work, &run->base.error));
    SG_TRY(alloc_zero(run, n * row, &m->counts));
    SG_TRY(alloc_zero(run, 2 * n * sizeof(struct ck_sample_job), &m->jobs));
    if (!m->samplers)
        SG_TRY(cu_mem_alloc(u, CU_SAMPLE_PLAN_AT + sizeof(struct ck_sample_plan), "sampling", &m->samplers, &run->base.error));
    if (!m->out) SG_TRY(cu_run_check(run, u->d.host_alloc(&p, 2 * CK_SPANS * sizeof *m->out, CU_HOST_MAPPED)));
    if (p) m->out = p;
    m->rows = n;
    return SEGUE_OK;
}

/* --- comparison with the next run --- */

static segue_sampling without_pointers(const segue_sampling *p)
{
    segue_sampling q = *p;
    q.bias = NULL;
    return q;
}

/* Remembers the settings; without memory they are unknown, so the next run writes them again. */
static int remember(struct cu_sampler_seen *seen, const struct sg_sampler *s)
{
    size_t biases = s->p.bias_n * sizeof *s->p.bias, stops = s->stops_n * sizeof *s->stops;
    if (biases + stops > seen->lists_cap) {
        sg_free(seen->lists);
        seen->lists = sg_alloc(biases + stops);
        seen->lists_cap = seen->lists ? biases + stops : 0;
        if (!seen->lists) return 0;
    }
    if (biases) memcpy(seen->lists, s->p.bias, biases);
    if (stops) memcpy(seen->lists + biases, s->stops, stops);
    seen->p = without_pointers(&s->p);
    seen->breakers = s->breakers;
    seen->breakers_n = s->breakers_n;
    seen->limit = s->limit;
    seen->lists_bytes = biases + stops;
    return 1;
}

/* A mask may change with every token, so it never counts as known. */
static int is_seen(const struct cu_sampler_seen *seen, const struct sg_sampler *s)
{
    size_t biases = s->p.bias_n * sizeof *s->p.bias, stops = s->stops_n * sizeof *s->stops;
    segue_sampling q = without_pointers(&s->p);
    return !s->allowed && !memcmp(&q, &seen->p, sizeof q) && s->breakers == seen->breakers && s->breakers_n == seen->breakers_n &&
           s->limit == seen->limit && biases + stops == seen->lists_bytes &&
           (!biases || !memcmp(s->p.bias, seen->lists, biases)) && (!stops || !memcmp(s->stops, seen->lists + biases, stops));
}

int cu_samplers_equal(const struct sg_run *run, const struct cu_sampled_row *rows, uint32_t n)
{
    const struct cu_sampling *m = &run->lane->sampling;
    int equal = m->seen_n == n;
    for (uint32_t i = 0; i < n && equal; i++) equal = is_seen(&m->seen[i], rows[i].sampler);
    return equal;
}

/* --- upload and outcome --- */

/* Relative time of a choice with these settings: filters over the whole vocabulary take more rounds. */
static uint32_t choice_weight(const segue_sampling *p)
{
    enum { FEW = 2, WIDE = 6, TYPICAL = 12 };
    int narrow = !(p->temperature > 0) || (p->top_k > 0 && p->top_k <= CK_SAMPLE_LIST);
    return narrow ? FEW : p->typical_p > 0 && p->typical_p < 1 ? TYPICAL : WIDE;
}

/* The choices of all rows, then the log-probabilities of those that want them. */
static void fill_plan(struct ck_sample_plan *plan, const struct cu_sampled_row *rows, uint32_t n)
{
    enum { LOGPROBS = 4 };
    memset(plan, 0, sizeof *plan);
    for (uint32_t logprobs = 0; logprobs < 2; logprobs++)
        for (uint32_t i = 0; i < n; i++) {
            if (logprobs && !rows[i].sampler->p.logprobs) continue;
            uint32_t j = plan->jobs++;
            plan->row[j] = (uint8_t)i;
            plan->logprobs[j] = (uint8_t)logprobs;
            plan->weights[j + 1] = plan->weights[j] + (logprobs ? LOGPROBS : choice_weight(&rows[i].sampler->p));
        }
}

segue_status cu_samplers_upload(struct sg_run *run, const struct cu_sampled_row *rows, uint32_t n, uint32_t growth,
                                cu_stream stream)
{
    struct sg_unit *u = run->program->base.unit;
    struct cu_sampling *m = &run->lane->sampling;
    struct lists count = {0};
    const size_t head = CU_SAMPLE_PLAN_AT + (sizeof(struct ck_sample_plan) + ALIGN - 1) / ALIGN * ALIGN;
    struct ck_sample_plan plan;
    m->seen_n = 0;
    SG_TRY(grow_rows(run, n));
    for (uint32_t i = 0; i < n; i++) (void)settings_of(run, &rows[i], growth, &count);
    SG_TRY(grow_pinned(run, head + count.used + ALIGN));
    SG_TRY(cu_mem_grow(u, &m->lists, &m->lists_bytes, count.used + ALIGN, "sampling", &run->base.error));
    struct lists lists = {.pinned = m->pinned + head, .device = m->lists};
    for (uint32_t i = 0; i < n; i++) {
        struct ck_sampler a = settings_of(run, &rows[i], growth, &lists);
        memcpy(m->pinned + i * sizeof a, &a, sizeof a);
    }
    fill_plan(&plan, rows, n);
    memcpy(m->pinned + CU_SAMPLE_PLAN_AT, &plan, sizeof plan);
    if (lists.failed) return sg_no_memory("biases of a sampler", 0, &run->base.error);
    SG_TRY(cu_run_check(run, u->d.copy_htod(m->samplers, m->pinned, CU_SAMPLE_PLAN_AT + sizeof plan, stream)));
    if (lists.used) SG_TRY(cu_run_check(run, u->d.copy_htod(m->lists, lists.pinned, lists.used, stream)));
    uint32_t known = 0;
    while (known < n && remember(&m->seen[known], rows[known].sampler)) known++;
    m->seen_n = known == n ? n : 0;
    m->growth = growth;
    return SEGUE_OK;
}

/* The chosen token first, then the best ones, as sample.c reports them. */
static void report_logprobs(struct sg_result *r, uint32_t span, const struct ck_sampled *out, uint32_t wanted)
{
    size_t n = 0;
    if (wanted && r->logprobs && r->logprobs_n) {
        segue_logprob *to = r->logprobs + (size_t)span * SG_LOGPROBS_MAX;
        to[n++] = (segue_logprob){out->token, sg_logprob_of(out->logit, out->top, out->sum)};
        for (uint32_t i = 0; i < out->best_n && i + 1 < wanted; i++)
            to[n++] = (segue_logprob){out->best[i], sg_logprob_of(out->best_logits[i], out->top, out->sum)};
    }
    if (r->logprobs_n) r->logprobs_n[span] = n;
}

segue_status cu_sampled_result(struct sg_run *run, const struct cu_sampled_row *row, uint32_t args_index, uint32_t i,
                               int32_t *token)
{
    const struct ck_sampled *out = &run->lane->sampling.out[args_index * CK_SPANS + i];
    struct sg_result *r = &run->base.result;
    if (out->status == 2) return sg_choice_all_masked(&run->base.error);
    if (out->status) return cu_no_finite_logit(run);
    *token = out->token;
    if (r->tokens) r->tokens[row->span] = out->token;
    report_logprobs(r, row->span, out, row->sampler->p.logprobs);
    return SEGUE_OK;
}
