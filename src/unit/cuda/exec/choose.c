/* choose.c: choice of tokens after a pass: on the GPU where all samplers are greedy with the same options, else on the host
 * from logits. SPDX-License-Identifier: MIT */
#include "unit/cuda/exec/choose.h"

#include <string.h>

#include "unit/generate.h"

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

/* 1: the graph has F16 weights. Passes of several rows convert their inputs to fp16 (docs/CUDA-KERNELS.md, "16 bits"). */
static int has_f16(const struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_LINEAR && g->tensors[g->ops[i].u.linear.weight.tensor]->storage == SG_F16) return 1;
    return 0;
}

/* fp16 weights overflow when activations do; then another unit may work. */
segue_status cu_no_finite_logit(struct sg_run *run)
{
    return sg_fail(&run->base.error, SEGUE_EFORMAT,
                   "choose a token: cuda: a logit is not a number; check the model file%s",
                   has_f16(run->program->base.graph)
                       ? ", or use another unit: activations may have exceeded the range of its F16 weights"
                       : "");
}

/* Chooses for each part whose last wanted row is the last one of its span. logits [parts][vocab]: not used when the GPU has
 * chosen. host_chosen has a token for every wanted row of the pass. */
static segue_status choose_parts(struct sg_run *run, const struct cu_pass_plan *plan, float *logits, const struct sg_sampler *one,
                                 int32_t *token)
{
    struct sg_result *r = &run->base.result;
    uint32_t vocab = run->program->base.graph->vocab, row = 0;
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        uint32_t s = plan->parts[i].span, first;
        const struct sg_span *span = &run->base.spans[s];
        uint32_t n = cu_part_wanted(span, &plan->parts[i], &first);
        row += n;
        if (!span->sampler || !n || first + n != span->wanted_n) continue;
        if (!plan->best) {
            SG_TRY(sg_thread_run_chooser(&run->base, vocab, &run->base.error));
            SG_TRY(sg_choose_for_span(run->base.chooser, one ? one : span->sampler, span, s, logits + (size_t)i * vocab, NULL, r,
                                      token, &run->base.error));
            continue;
        }
        *token = run->lane->host_chosen[row - 1];
        if (*token < 0) return cu_no_finite_logit(run);
        if (r->logprobs_n) r->logprobs_n[s] = 0;
        if (r->tokens) r->tokens[s] = *token;
    }
    return SEGUE_OK;
}

/* The GPU chooses only if it can for every span that ends in this pass, since a pass has one set of options. */
segue_status cu_pass_and_choose(struct sg_run *run, struct cu_pass_plan *plan, int first, const struct sg_sampler *one,
                                int32_t *token)
{
    float *logits = NULL;
    int choosing = 0;
    uint32_t wanted = 0, at;
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        const struct sg_span *s = &run->base.spans[plan->parts[i].span];
        uint32_t n = cu_part_wanted(s, &plan->parts[i], &at);
        wanted += n;
        choosing |= s->sampler && n && at + n == s->wanted_n;
    }
    /* host_chosen has CU_DECODE_ROWS entries. */
    if (choosing) plan->best = cu_all_greedy(run, plan, &plan->banned) && wanted <= CU_DECODE_ROWS;
    if (choosing && !plan->best) SG_TRY(cu_pass_logits_buffer(run, &logits));
    SG_TRY(cu_pass_run(run, plan, first, logits));
    return choosing ? choose_parts(run, plan, logits, one, token) : SEGUE_OK;
}
