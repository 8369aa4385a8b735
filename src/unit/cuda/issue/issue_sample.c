/* issue_sample.c: sampling on the GPU: grid and arguments of k_sample.cu. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* Blocks of a job meet at barriers, so all of them must be resident: one per multiprocessor at most. */
static uint32_t group_log(uint32_t jobs, uint32_t sms)
{
    uint32_t log = 0;
    while (jobs << (log + 1) <= sms) log++;
    return log;
}

segue_status cu_issue_sample(struct cu_pass *p, uint32_t advance)
{
    const struct sg_graph *g = p->program->base.graph;
    struct cu_lane *l = p->lane;
    struct sg_unit *u = p->program->base.unit;
    struct sg_operand whole = {.value = g->outputs[sg_graph_output(g, "logits")].value, .width = g->vocab};
    uint32_t jobs = p->logprobs ? 2 * p->sampled : p->sampled;
    cu_ptr out = 0;
    SG_TRY(cu_check(&u->d, u->d.host_ptr(&out, l->sampling.out, 0), "run", p->err));
    struct ck_sample a = {.pass = cu_kernel_pass(p),
                          .logits = cu_view_of(p, &whole).p,
                          .samplers = (struct ck_sampler *)(uintptr_t)l->sampling.samplers,
                          .work = cu_floats(l->sampling.work),
                          .counts = (uint32_t *)(uintptr_t)l->sampling.counts,
                          .jobs = (struct ck_sample_job *)(uintptr_t)l->sampling.jobs,
                          .out = (struct ck_sampled *)(uintptr_t)out + p->args_index * CK_SPANS,
                          .best_value = cu_floats(l->best_value),
                          .best_index = (uint32_t *)(uintptr_t)l->best_index,
                          .vocab = g->vocab,
                          .rows = p->sampled,
                          .group_log = group_log(jobs, p->sms),
                          .id_bits = 1,
                          .logprobs = p->logprobs,
                          .series = advance == 1};
    while (1ull << a.id_bits < g->vocab) a.id_bits++;
    p->best_blocks = 1;
    return cu_launch(p, u->k.sample_rows, jobs << a.group_log, 1, 1, CK_SAMPLE_THREADS, 0, &a);
}
