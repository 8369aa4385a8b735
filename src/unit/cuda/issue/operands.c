/* operands.c: kernel arguments of graph operands: addresses of values and weights, norms, and the arguments that all product
 * kernels share. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* The value of the input is read instead when all rows are selected. An absent operand has .p NULL. */
struct ck_view cu_view_of(const struct cu_pass *p, const struct sg_operand *x)
{
    if (x->value < 0) return (struct ck_view){0};
    const struct cu_value_loc *loc = &p->program->value_locs[x->value];
    uint32_t at = x->at;
    if (loc->from >= 0 && p->rows_n[0] == p->rows_n[1]) {
        at += loc->from_at;
        loc = &p->program->value_locs[loc->from];
    }
    cu_ptr base = p->values->memory[loc->wanted] + (cu_ptr)loc->at * p->values->rows[loc->wanted] * sizeof(float);
    return (struct ck_view){.p = cu_floats(base) + loc->inside + at, .stride = loc->stride, .width = x->width};
}

/* A bf16 row begins where the fp32 row of the whole block would. */
struct ck_view cu_bf16_view_of(const struct cu_pass *p, const struct sg_operand *x)
{
    struct ck_view v = cu_view_of(p, x);
    uint32_t inside = p->program->value_locs[x->value].inside + x->at;
    v.p = (float *)(void *)((uint16_t *)(void *)(v.p - inside) + inside);
    return v;
}

struct ck_view cu_output_view(const struct cu_pass *p, const struct sg_op *op)
{
    struct sg_operand whole = {.value = op->out, .width = p->program->base.graph->values[op->out].width};
    return cu_view_of(p, &whole);
}

/* Addresses only: the contents may change between replays of a captured pass. */
struct ck_pass cu_kernel_pass(const struct cu_pass *p)
{
    const struct cu_pass_args *l = &p->lane->pass_args[p->args_index];
    return (struct ck_pass){.head = (void *)(uintptr_t)l->head,
                            .tokens = (void *)(uintptr_t)l->tokens,
                            .place = (void *)(uintptr_t)l->pos,
                            .span = (void *)(uintptr_t)l->span,
                            .wanted = (void *)(uintptr_t)l->wanted,
                            .slots = (void *)(uintptr_t)l->slots,
                            .slots_out = (void *)(uintptr_t)l->slots_out,
                            .slots_n = p->program->base.graph->slots_n};
}

const struct cu_tensor *cu_weight_tensor(const struct cu_pass *p, const struct sg_weight *w)
{
    return w->tensor < 0 ? NULL : cu_weight_of(p->program->weights, p->program->base.graph->tensors[w->tensor]);
}

const float *cu_vector_of(const struct cu_pass *p, const struct sg_weight *w)
{
    const struct cu_tensor *t = cu_weight_tensor(p, w);
    return t ? cu_floats(t->vector) : NULL;
}

uint32_t cu_out_rows(const struct cu_pass *p, const struct sg_op *op)
{
    return p->rows_n[p->program->base.graph->values[op->out].wanted];
}

/* gate is absent unless the norm has a second input. */
struct ck_norm cu_norm_of(const struct cu_pass *p, const struct sg_op *op)
{
    if (!op) return (struct ck_norm){.groups = 1};
    const struct sg_norm *n = &op->u.norm;
    return (struct ck_norm){.weight = cu_vector_of(p, &n->weight),
                            .bias = cu_vector_of(p, &n->bias),
                            .gate = cu_view_of(p, &op->in[1]),
                            .eps = n->eps,
                            .layer = n->kind == SG_NORM_LAYER,
                            .groups = n->groups,
                            .plus_one = n->plus_one,
                            .present = 1};
}

const struct cu_tensor *cu_linear_tensor(const struct cu_pass *p, const struct sg_op *op)
{
    return cu_weight_of(p->program->weights, p->program->base.graph->tensors[op->u.linear.weight.tensor]);
}

/* One weight of a product: its rows, what is added, and where the result goes. */
struct ck_segment cu_segment_of(const struct cu_pass *p, const struct sg_op *op)
{
    const struct cu_tensor *t = cu_linear_tensor(p, op);
    return (struct ck_segment){.data = t->w.data,
                               .scales = t->w.scales,
                               .bias = cu_vector_of(p, &op->u.linear.bias),
                               .residual = cu_view_of(p, &op->in[1]),
                               .y = cu_output_view(p, op),
                               .n = op->u.linear.weight.rows,
                               .at = op->u.linear.weight.at};
}

/* Warps that share a pair of weight rows: doubled while there are too few pairs to fill the GPU and each warp keeps 3 pieces of
 * 16 bytes per lane. It depends on the shape alone, so that the result of a row does not depend on the batch. */
static uint32_t split_of(const struct sg_unit *u, uint32_t pieces, uint32_t pairs)
{
    uint32_t split = 1;
    while (split < 8 && (uint64_t)pairs * split < (uint64_t)u->sms * 12 && pieces >= 96 * split * 2) split *= 2;
    return split;
}

/* With glu both segments have the same rows, and their result is the activation's, in segment 0. pairs: pairs of weight rows, the
 * unit of work of k_gemv.cu. */
struct ck_gemv cu_gemv_of(const struct cu_pass *p, const struct cu_step *s)
{
    const struct ck_weight *w = &cu_linear_tensor(p, s->parts[0])->w;
    struct ck_gemv a = {.x = cu_view_of(p, s->norm ? &s->norm->in[0] : &s->op->in[0]),
                        .norm = cu_norm_of(p, s->norm),
                        .k = w->cols,
                        .pitch = w->pitch,
                        .scale_pitch = w->scale_pitch,
                        .group = w->group,
                        .segments = s->parts_n};
    for (uint32_t i = 0; i < s->parts_n; i++) {
        a.segment[i] = cu_segment_of(p, s->parts[i]);
        a.pairs += s->glu ? (i == 0 ? a.segment[i].n : 0) : (a.segment[i].n + 1) / 2;
    }
    if (s->glu) {
        a.glu = 1;
        a.act = s->glu->u.glu.act;
        a.segment[0].y = cu_output_view(p, s->glu);
    }
    a.split = split_of(p->program->base.unit, w->pitch / 16, a.pairs);
    a.best_value = cu_floats(p->lane->best_value);
    a.best_index = (uint32_t *)(uintptr_t)p->lane->best_index;
    return a;
}

void cu_epilogue_of(const struct cu_pass *p, const struct cu_step *s, struct ck_epilogue *out)
{
    const struct sg_op *op = s->after;
    *out = (struct ck_epilogue){0};
    if (!op) return;
    *out = (struct ck_epilogue){.kind = op->code == SG_OP_CONV ? CK_EPILOGUE_CONV : CK_EPILOGUE_ACT,
                             .segment = s->after_part,
                             .y = cu_output_view(p, op),
                             .pass = cu_kernel_pass(p)};
    if (op->code == SG_OP_ACT) {
        out->act = op->u.act.act;
        return;
    }
    const struct sg_conv *c = &op->u.conv;
    out->act = c->act;
    out->taps = c->taps;
    out->slot = (uint32_t)c->slot;
    out->weight = cu_vector_of(p, &c->weight);
    out->bias = cu_vector_of(p, &c->bias);
}
