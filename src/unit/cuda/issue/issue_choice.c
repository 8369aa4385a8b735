/* issue_choice.c: the choice of a token on the GPU: the best logit of each block is reduced to the best row, or k_sample.cu has
 * chosen. The token is written to pinned memory and, for generation, becomes the input of the next pass.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* 1: the choice kernel can dequantise rows of this kind, four numbers at a time. */
static int has_float4_rows(const struct ck_weight *w)
{
    return w->kind == CK_F32 || w->kind == CK_F16 || w->kind == CK_BF16 || w->kind == CK_Q8;
}

/* Possible when the embedding is the first step and no other. Only with cluster fusions: without them a separate launch, which
 * overlaps with others, is faster. */
int cu_next_embed(const struct cu_pass *p, struct ck_embed *out)
{
    const struct cu_step *s = p->program->fused;
    if (!p->program->fusions_n) return 0;
    for (uint32_t i = 0; i < p->program->fused_n; i++)
        if ((s[i].kind == CU_STEP_OP && s[i].op->code == SG_OP_EMBED) != !i) return 0;
    *out = cu_embed_args(p, s->op);
    return cu_is_float4(&out->y) && has_float4_rows(&out->table) && (!out->places.data || has_float4_rows(&out->places));
}

/* argmax_rows only when the output head has not reported best logits. The pinned buffers are written through their GPU addresses.
 * `next` are the arguments of the other args block, which a lookahead step reads. */
segue_status cu_issue_choice(struct cu_pass *p, uint32_t advance, uint32_t stops_n)
{
    const struct sg_graph *g = p->program->base.graph;
    struct cu_lane *l = p->lane;
    struct sg_unit *u = p->program->base.unit;
    uint32_t *best_index = (uint32_t *)(uintptr_t)l->best_index;
    if (p->sampled) {
        SG_TRY(cu_issue_sample(p, advance));
        /* Without a next input the outcomes are all that is needed. */
        if (!advance) return SEGUE_OK;
    } else if (!p->best_done) {
        int32_t value = g->outputs[sg_graph_output(g, "logits")].value;
        struct sg_operand whole = {.value = value, .width = g->vocab};
        struct ck_argmax a = {.x = cu_view_of(p, &whole),
                              .best_value = cu_floats(l->best_value),
                              .best_index = best_index,
                              .banned = p->banned,
                              .blocks = 64,
                              .rows = p->rows_n[1]};
        p->best_blocks = a.blocks;
        SG_TRY(cu_launch(p, u->k.argmax_rows, a.blocks, a.rows, 1, 256, 0, &a));
    }
    cu_ptr ring = 0, chosen = 0;
    SG_TRY(cu_check(&u->d, u->d.host_ptr(&ring, l->ring, 0), "run", p->err));
    SG_TRY(cu_check(&u->d, u->d.host_ptr(&chosen, l->host_chosen, 0), "run", p->err));
    /* As p, with the other args block. */
    struct cu_pass other = *p;
    other.args_index = !p->args_index;
    /* advance 1 writes tokens to the ring, 0 and 2 to host_chosen. */
    struct ck_choose c = {.pass = cu_kernel_pass(p),
                          .next = cu_kernel_pass(&other),
                          .best_value = cu_floats(l->best_value),
                          .best_index = best_index,
                          .blocks = p->best_blocks,
                          .rows = p->rows_n[1],
                          .advance = advance,
                          .stops_n = stops_n,
                          .stops = (int32_t *)(uintptr_t)l->stops,
                          .ring = (int32_t *)(uintptr_t)ring,
                          .ring_cap = CU_RING_TOKENS,
                          .ring_written = (uint32_t *)(uintptr_t)(ring + CU_RING_TOKENS * sizeof(int32_t)),
                          .chosen = advance == 1 ? NULL : (int32_t *)(uintptr_t)chosen + p->args_index * CU_DECODE_ROWS};
    if (p->embeds) cu_next_embed(p, &c.embed);
    return cu_launch(p, u->k.choose_best, c.rows, 1, 1, CK_CHOOSE_THREADS, 0, &c);
}
