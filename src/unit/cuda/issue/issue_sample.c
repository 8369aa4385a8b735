/* issue_sample.c: sampling on the GPU: grid and arguments of k_sample.cu. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* Blocks of a job meet at barriers, so all blocks must be resident. One job has no use for more than one per multiprocessor. */
static uint32_t blocks_for(uint32_t jobs, uint32_t sms)
{
    uint32_t max = (jobs < CK_SAMPLE_BLOCKS ? jobs : CK_SAMPLE_BLOCKS) * sms;
    return max > jobs ? max : jobs;
}

segue_status cu_issue_sample(struct cu_pass *p, uint32_t advance)
{
    const struct sg_graph *g = p->program->base.graph;
    struct cu_lane *l = p->lane;
    struct sg_unit *u = p->program->base.unit;
    struct sg_operand whole = {.value = g->outputs[sg_graph_output(g, "logits")].value, .width = g->vocab};
    uint32_t jobs = p->sampled + p->logprobs;
    cu_ptr out = 0;
    SG_TRY(cu_check(&u->d, u->d.host_ptr(&out, l->sampling.out, 0), "run", p->err));
    struct ck_sample a = {.pass = cu_kernel_pass(p),
                          .logits = cu_view_of(p, &whole).p,
                          .samplers = (struct ck_sampler *)(uintptr_t)l->sampling.samplers,
                          .plan = (const struct ck_sample_plan *)(uintptr_t)(l->sampling.samplers + CU_SAMPLE_PLAN_AT),
                          .work = cu_floats(l->sampling.work),
                          .counts = (uint32_t *)(uintptr_t)l->sampling.counts,
                          .jobs = (struct ck_sample_job *)(uintptr_t)l->sampling.jobs,
                          .out = (struct ck_sampled *)(uintptr_t)out + p->args_index * CK_SPANS,
                          .best_value = cu_floats(l->best_value),
                          .best_index = (uint32_t *)(uintptr_t)l->best_index,
                          .vocab = g->vocab,
                          .id_bits = 1,
                          .series = advance == 1};
    while (1ull << a.id_bits < g->vocab) a.id_bits++;
    p->best_blocks = 1;
    return cu_launch(p, u->k.sample_rows, blocks_for(jobs, p->sms), 1, 1, CK_SAMPLE_THREADS, 0, &a);
}
