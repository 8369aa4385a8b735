/* resident.c: the calls of a resident unit: operations with the addresses of their operands, rows of the head, sums of gradients.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "train/train.h"

/* --- operations --- */

static struct sg_resident_weight weight_of(const struct sg_train_pass *p, const struct sg_weight *w)
{
    struct sg_resident_weight r = {0};
    if (w->tensor < 0) return r;
    const struct sg_train_tensor *s = &p->t->tensors[w->tensor];
    const struct sg_tensor *x = p->g->tensors[w->tensor];
    size_t at = (size_t)w->at * x->cols;
    r.rows = w->rows;
    r.cols = (uint32_t)x->cols;
    r.value = (s->param >= 0 ? p->t->params[s->param].field[SEGUE_PARAM_VALUE] : s->frozen) + at;
    if (s->param >= 0) r.gradient = p->t->params[s->param].field[SEGUE_PARAM_GRADIENT] + at;
    return r;
}

/* A, or the rows of B that belong to the op's part of the tensor. */
static struct sg_resident_weight pair_of(const struct sg_param *x, size_t at)
{
    struct sg_resident_weight r = {.rows = (uint32_t)x->info.rows, .cols = (uint32_t)(x->n / x->info.rows)};
    r.value = x->field[SEGUE_PARAM_VALUE] + at * r.cols;
    r.gradient = x->field[SEGUE_PARAM_GRADIENT] + at * r.cols;
    return r;
}

static void set_pair(const struct sg_train_pass *p, const struct sg_weight *w, struct sg_resident_call *c)
{
    int32_t pair = p->t->tensors[w->tensor].pair;
    if (pair < 0 || p->base) return;
    c->pair[0] = pair_of(&p->t->params[pair], 0);
    c->pair[1] = pair_of(&p->t->params[pair + 1], w->at);
    c->pair_scale = p->t->info.lora_scale;
}

static void set_weights(const struct sg_train_pass *p, const struct sg_op *op, struct sg_resident_call *c)
{
    const struct sg_weight *w[2] = {NULL, NULL};
    switch (op->code) {
    case SG_OP_EMBED: w[0] = &op->u.embed.table, w[1] = &op->u.embed.positions; break;
    case SG_OP_NORM: w[0] = &op->u.norm.weight, w[1] = &op->u.norm.bias; break;
    case SG_OP_LINEAR: w[0] = &op->u.linear.weight, w[1] = &op->u.linear.bias; break;
    case SG_OP_ATTEND: w[0] = &op->u.attend.sinks; break;
    case SG_OP_CONV: w[0] = &op->u.conv.weight, w[1] = &op->u.conv.bias; break;
    case SG_OP_DELTA: w[0] = &op->u.delta.decay, w[1] = &op->u.delta.dt; break;
    case SG_OP_SCALE: w[0] = &op->u.scale.weight; break;
    default: break;
    }
    for (int i = 0; i < 2; i++)
        if (w[i]) c->weight[i] = weight_of(p, w[i]);
    if (op->code == SG_OP_LINEAR) set_pair(p, w[0], c);
}

segue_status sg_resident_run(struct sg_train_pass *p, const struct sg_op *op, float *out, const float *dout)
{
    struct sg_resident_call c = {.op = op, .back = dout != NULL, .rows = sg_train_rows(p, op), .tokens = &p->on_unit,
                                 .width = p->g->values[op->out].width, .out = out, .dout = dout};
    struct sg_train_grad grad[SG_OP_INPUTS] = {{0}};
    c.stride = sg_train_stride(p->t, c.width);
    if (dout && op->code != SG_OP_EMBED) SG_TRY(sg_train_grads_of(p, op, grad));
    for (int i = 0; i < SG_OP_INPUTS; i++) {
        if (op->code == SG_OP_EMBED || op->in[i].value < 0) continue;
        struct sg_train_view in = sg_train_in(p, &op->in[i]);
        c.in[i] = (struct sg_resident_matrix){(float *)(uintptr_t)in.data, in.stride, in.width, 0};
        c.grad[i] = (struct sg_resident_matrix){grad[i].data, grad[i].stride, grad[i].width, grad[i].fresh};
    }
    set_weights(p, op, &c);
    if (op->code == SG_OP_ROPE) {
        c.angles = p->t->angles[op->u.rope.table];
        c.angle_rows = (uint32_t)p->t->info.sequence_tokens;
        c.pairs = p->g->ropes[op->u.rope.table].pairs;
    }
    return sg_resident_ops(p->t->resident)->run(p->t->resident, &c, p->err);
}

/* --- tokens and rows --- */

/* Four numbers for each labelled row; see sg_resident_tokens. */
static void put_policy(const struct sg_train_pass *p, uint32_t *to)
{
    const segue_train_policy *y = p->policy;
    for (size_t i = 0; i < p->labelled_n; i++) {
        uint32_t t = p->labelled[i];
        float four[4] = {y->advantages[t], y->weights[t], y->old_logprobs[t], y->ref_logprobs ? y->ref_logprobs[t] : 0};
        memcpy(to + 4 * i, four, sizeof four);
    }
}

/* The lists of a micro-batch in one block: tokens, labels, positions, labelled rows, first rows. All are words of 32 bits. */
segue_status sg_resident_tokens_put(struct sg_train_pass *p)
{
    size_t rows = p->rows[0], lists = 3 * rows + p->labelled_n + p->sequences + 1;
    size_t words = lists + (p->policy ? 4 * p->labelled_n : 0);
    uint32_t *host = sg_alloc(words * sizeof *host), *at = host;
    float *block = sg_train_take(p, words);
    segue_status status = SEGUE_EMEMORY;
    if (!host) (void)sg_no_memory("tokens of a micro-batch", words * sizeof *host, p->err);
    if (host && block) {
        for (size_t i = 0; i < rows; i++) *at++ = (uint32_t)p->tokens[i];
        for (size_t i = 0; i < rows; i++) *at++ = p->labels ? (uint32_t)p->labels[i] : UINT32_MAX;
        for (size_t i = 0; i < rows; i++) *at++ = p->position[i];
        for (size_t i = 0; i < p->labelled_n; i++) *at++ = p->labelled[i];
        for (size_t i = 0; i <= p->sequences; i++) *at++ = (uint32_t)p->from[i];
        if (p->policy) put_policy(p, at);
        status = sg_resident_ops(p->t->resident)->write(p->t->resident, block, host, words * sizeof *host, p->err);
        const uint32_t *words_on_unit = (const uint32_t *)(const void *)block;
        p->on_unit = (struct sg_resident_tokens){.ids = (const int32_t *)(const void *)block,
                                                 .labels = (const int32_t *)(const void *)(block + rows),
                                                 .position = words_on_unit + 2 * rows,
                                                 .labelled = words_on_unit + 3 * rows,
                                                 .from = words_on_unit + 3 * rows + p->labelled_n,
                                                 .rows = (uint32_t)rows,
                                                 .sequences = p->sequences,
                                                 .longest = (uint32_t)p->longest};
        if (p->policy) {
            p->on_unit.policy = block + lists;
            p->on_unit.clip = p->policy->clip > 0 ? p->policy->clip : 0.2f;
            p->on_unit.kl = p->policy->ref_logprobs ? p->policy->kl : 0;
        }
    }
    sg_free(host);
    return status;
}

/* rows is a part of p->labelled. */
segue_status sg_resident_select(struct sg_train_pass *p, struct sg_train_view x, const uint32_t *rows, uint32_t n, float *out)
{
    struct sg_resident_matrix m = {(float *)(uintptr_t)x.data, x.stride, x.width, 0};
    return sg_resident_ops(p->t->resident)->select(p->t->resident, m, p->on_unit.labelled + (rows - p->labelled), n, out, p->err);
}

segue_status sg_resident_select_back(struct sg_train_pass *p, struct sg_train_grad dx, const uint32_t *rows, uint32_t n,
                                     const float *dout)
{
    struct sg_resident_matrix m = {dx.data, dx.stride, dx.width, dx.fresh};
    return sg_resident_ops(p->t->resident)->select_back(p->t->resident, m, p->on_unit.labelled + (rows - p->labelled), n, dout,
                                                        p->err);
}

/* --- update --- */

segue_status sg_resident_squares(struct segue_trainer *t, double *sums, segue_error *err)
{
    size_t count = t->info.params_n;
    const float **x = sg_alloc(count * sizeof *x);
    size_t *n = sg_alloc(count * sizeof *n);
    segue_status status = SEGUE_EMEMORY;
    if (x && n) {
        for (size_t i = 0; i < count; i++) x[i] = t->params[i].field[SEGUE_PARAM_GRADIENT], n[i] = t->params[i].n;
        status = sg_resident_ops(t->resident)->squares(t->resident, x, n, count, sums, err);
    } else
        (void)sg_no_memory("a list of gradients", count * (sizeof *x + sizeof *n), err);
    sg_free(x);
    sg_free(n);
    return status;
}
