/* choose.c: choice of tokens after a pass: greedily where all samplers are greedy with the same options, else by sampling.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/exec/choose.h"

#include <string.h>

/* Everything that could change the order of logits must be off. The limits are those of the kernel's arguments. */
int cu_is_greedy(const struct sg_sampler *s)
{
    const segue_sampling *p = &s->p;
    return p->temperature <= 0 && !p->bias_n && (p->repeat_penalty <= 0 || (p->repeat_penalty >= 1 && p->repeat_penalty <= 1)) &&
           !(p->presence_penalty > 0 || p->presence_penalty < 0) && !(p->frequency_penalty > 0 || p->frequency_penalty < 0) &&
           !(p->dry_multiplier > 0 || p->dry_multiplier < 0) && !(p->ignore_stops && s->stops_n > CK_BANNED) && !p->logprobs &&
           !s->allowed && s->stops_n <= CU_STOPS;
}

/* limit: ids from there on are padding of the embedding table. */
struct ck_banned cu_banned_of(const struct sg_run *run, const struct sg_sampler *s)
{
    uint32_t vocab = run->program->base.graph->vocab;
    struct ck_banned b = {.limit = s->limit && s->limit < vocab ? s->limit : vocab};
    if (s->p.ignore_stops)
        for (; b.n < s->stops_n; b.n++) b.rows[b.n] = s->stops[b.n];
    return b;
}

/* Banned tokens are compared as memory: unused entries are zero. */
int cu_all_greedy(const struct sg_run *run, const struct cu_pass_plan *plan, struct ck_banned *banned)
{
    int any = 0;
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        const struct sg_sampler *s = run->base.spans[plan->parts[i].span].sampler;
        if (!s) continue;
        if (!cu_is_greedy(s)) return 0;
        struct ck_banned this = cu_banned_of(run, s);
        if (any++ && memcmp(banned, &this, sizeof this)) return 0;
        *banned = this;
    }
    return any;
}

/* The rows to choose for: those of the parts whose last wanted row is the last one of its span. Returns their number; *wanted:
 * all wanted rows of the pass. */
static uint32_t rows_to_choose(const struct sg_run *run, const struct cu_pass_plan *plan, const struct sg_sampler *one,
                               struct cu_sampled_row *rows, uint32_t *wanted)
{
    uint32_t n = 0;
    *wanted = 0;
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        const struct sg_span *span = &run->base.spans[plan->parts[i].span];
        uint32_t first, here = cu_part_wanted(span, &plan->parts[i], &first);
        *wanted += here;
        if (span->sampler && here && first + here == span->wanted_n)
            rows[n++] = (struct cu_sampled_row){one ? one : span->sampler, plan->parts[i].span, *wanted - 1};
    }
    return n;
}

/* The token that k_choose.cu has found for a row. */
static segue_status greedy_result(struct sg_run *run, const struct cu_sampled_row *row, int32_t *token)
{
    struct sg_result *r = &run->base.result;
    *token = run->lane->host_chosen[row->row];
    if (*token < 0) return cu_no_finite_logit(run);
    if (r->logprobs_n) r->logprobs_n[row->span] = 0;
    if (r->tokens) r->tokens[row->span] = *token;
    return SEGUE_OK;
}

/* A pass chooses greedily only if all samplers are greedy with the same options. host_chosen has CU_DECODE_ROWS entries. */
segue_status cu_pass_and_choose(struct sg_run *run, struct cu_pass_plan *plan, int copy_logits, const struct sg_sampler *one,
                                int32_t *token)
{
    struct cu_sampled_row rows[CK_SPANS];
    uint32_t wanted, n = rows_to_choose(run, plan, one, rows, &wanted);
    if (n) {
        plan->best = 1;
        plan->sampled = cu_all_greedy(run, plan, &plan->banned) && wanted <= CU_DECODE_ROWS ? 0 : n;
        for (uint32_t i = 0; i < n; i++) plan->logprobs += plan->sampled && rows[i].sampler->p.logprobs;
    }
    plan->late = NULL;
    for (uint32_t i = 0; i < n && plan->sampled; i++)
        if (rows[i].sampler->gate) plan->late = rows;
    /* An unused lookahead step reads the settings. */
    if (plan->sampled && run->lane->ahead.active)
        SG_TRY(cu_run_check(run, run->program->base.unit->d.stream_sync(run->lane->stream)));
    if (plan->sampled && !plan->late) SG_TRY(cu_samplers_upload(run, rows, n, 0, run->lane->stream));
    SG_TRY(cu_pass_run(run, plan, copy_logits));
    for (uint32_t i = 0; i < n; i++)
        SG_TRY(plan->sampled ? cu_sampled_result(run, &rows[i], 0, i, token) : greedy_result(run, &rows[i], token));
    return SEGUE_OK;
}
