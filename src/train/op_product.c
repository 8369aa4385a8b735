/* op_product.c: products with the weights of the layers on a device (train_device.h). Linear operations of a layer that read
 * the same operand are one product: their results side by side forward, the sum of their gradients back.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "train/train.h"

/* Intervals of a group in a micro-batch: forward, forward again, input gradient, weight gradients. */
enum { INTERVALS = 4 };

/* --- groups --- */

static int same_operand(const struct sg_operand *a, const struct sg_operand *b)
{
    return a->value == b->value && a->at == b->at && a->width == b->width;
}

/* A residual would have to be added before the first op of the group, so such an op is alone. */
static int joins(const struct sg_graph *g, const struct sg_train_group *group, const struct sg_op *op)
{
    const struct sg_op *first = &g->ops[group->ops[0]];
    return group->n < SG_TRAIN_PARTS && first->layer == op->layer && same_operand(&first->in[0], &op->in[0]) &&
           first->in[1].value < 0 && op->in[1].value < 0;
}

segue_status sg_train_groups(struct segue_trainer *t, segue_error *err)
{
    const struct sg_graph *g = t->graph;
    t->groups = sg_arena_alloc(&t->arena, g->ops_n * sizeof *t->groups);
    t->group_of = sg_arena_alloc(&t->arena, g->ops_n * sizeof *t->group_of);
    if (!t->groups || !t->group_of) return sg_no_memory("groups of products", g->ops_n * sizeof *t->groups, err);
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        t->group_of[i] = -1;
        if (op->code != SG_OP_LINEAR || i > t->rows_op) continue;
        uint32_t at = t->groups_n;
        while (at && !joins(g, &t->groups[at - 1], op)) at--;
        if (!at) at = ++t->groups_n;
        struct sg_train_group *group = &t->groups[at - 1];
        group->ops[group->n++] = i;
        t->group_of[i] = (int32_t)at - 1;
    }
    t->intervals_cap = t->groups_n * INTERVALS;
    t->intervals = sg_arena_alloc(&t->arena, (t->intervals_cap + 1) * sizeof *t->intervals);
    return t->intervals ? SEGUE_OK : sg_no_memory("intervals", t->intervals_cap * sizeof *t->intervals, err);
}

void sg_train_interval(struct segue_trainer *t, segue_train_work work, int32_t layer, uint64_t begin_ns, uint64_t end_ns)
{
    if (t->intervals_n == t->intervals_cap) return;
    t->intervals[t->intervals_n++] = (segue_train_interval){.size = sizeof *t->intervals, .work = work, .layer = layer,
                                                            .begin_ns = begin_ns, .end_ns = end_ns};
}

const struct sg_train_group *sg_train_group_of(const struct sg_train_pass *p, const struct sg_op *op)
{
    const struct segue_trainer *t = p->t;
    int32_t group = t->device ? t->group_of[op - p->g->ops] : -1;
    return group < 0 ? NULL : &t->groups[group];
}

int sg_train_deferred(const struct sg_train_pass *p, uint32_t i)
{
    const struct sg_train_group *group = sg_train_group_of(p, &p->g->ops[i]);
    return group && group->ops[0] != i;
}

int sg_train_due(const struct sg_train_pass *p, uint32_t i)
{
    const struct sg_train_group *group = sg_train_group_of(p, &p->g->ops[i]);
    for (uint32_t k = 0; group && group->ops[0] == i && k < group->n; k++)
        if (p->grads[p->g->ops[group->ops[k]].out]) return 1;
    return 0;
}

/* --- products --- */

/* Matrices of a group. The result depends on trained weights only through `version`. */
static struct sg_train_product product_of(const struct sg_train_pass *p, const struct sg_train_group *group, int back)
{
    const struct segue_trainer *t = p->t;
    struct sg_train_product out = {.id = (uint32_t)(group - t->groups), .back = back, .tokens = p->rows[0],
                                   .parts_n = group->n};
    for (uint32_t i = 0; i < group->n; i++) {
        const struct sg_weight *w = &p->g->ops[group->ops[i]].u.linear.weight;
        const struct sg_tensor *x = p->g->tensors[w->tensor];
        int32_t param = t->tensors[w->tensor].param;
        out.w[i] = (struct sg_train_matrix){.tensor = x, .at = w->at, .rows = w->rows, .cols = (uint32_t)x->cols};
        if (param < 0) continue;
        out.w[i].data = t->params[param].field[SEGUE_PARAM_VALUE] + (size_t)w->at * x->cols;
        out.version = t->version;
    }
    return out;
}

/* Ends the product that was started last. One without a dispatch has no interval. */
static segue_status wait_for(struct sg_train_pass *p, segue_train_work work, int32_t layer)
{
    struct sg_train_device *d = p->t->device;
    struct sg_train_counts now;
    segue_status status = sg_train_device_ops_of(d)->wait(d, p->err);
    sg_train_device_ops_of(d)->count(d, &now);
    if (status == SEGUE_OK && now.end_ns != p->t->device_end_ns) sg_train_interval(p->t, work, layer, now.begin_ns, now.end_ns);
    p->t->device_end_ns = now.end_ns;
    return status;
}

/* The product of ops [from, ..) of a group, by their index in the graph. */
static segue_status run_forward(struct sg_train_pass *p, const struct sg_train_group *group, uint32_t from)
{
    struct sg_train_device *d = p->t->device;
    struct sg_train_product product = product_of(p, group, 0);
    struct sg_train_view x = sg_train_in(p, &p->g->ops[group->ops[0]].in[0]);
    product.in[0] = x.data;
    product.in_stride[0] = x.stride;
    for (uint32_t i = 0; i < group->n; i++) {
        product.out[i] = group->ops[i] < from ? NULL : p->values[p->g->ops[group->ops[i]].out];
        product.out_stride[i] = product.w[i].rows;
    }
    SG_TRY(sg_train_device_ops_of(d)->start(d, &product, p->err));
    return wait_for(p, SEGUE_TRAIN_FORWARD, p->g->ops[group->ops[0]].layer);
}

segue_status sg_train_device_forward(struct sg_train_pass *p, const struct sg_op *op)
{
    const struct sg_train_group *group = sg_train_group_of(p, op);
    uint32_t i = (uint32_t)(op - p->g->ops);
    if (p->early[i]) {
        p->early[i] = 0;
        return SEGUE_OK;
    }
    for (uint32_t k = 0; k < group->n; k++) {
        int32_t v = p->g->ops[group->ops[k]].out;
        if (group->ops[k] <= i) continue; /* with recomputation an earlier value may still be there */
        if (!p->values[v]) p->values[v] = sg_train_take_live(p, v);
        if (!p->values[v]) return SEGUE_EMEMORY;
        p->early[group->ops[k]] = 1;
    }
    return run_forward(p, group, i);
}

segue_status sg_train_device_back(struct sg_train_pass *p, const struct sg_train_group *group, struct sg_train_grad dx)
{
    struct sg_train_device *d = p->t->device;
    p->product = product_of(p, group, 1);
    for (uint32_t i = 0; i < group->n; i++) {
        p->product.in[i] = p->grads[p->g->ops[group->ops[i]].out];
        p->product.in_stride[i] = p->product.w[i].rows;
    }
    p->product.out[0] = dx.data;
    p->product.out_stride[0] = dx.stride;
    return sg_train_device_ops_of(d)->start(d, &p->product, p->err);
}

segue_status sg_train_device_wait(struct sg_train_pass *p)
{
    const struct sg_train_group *group = &p->t->groups[p->product.id];
    return wait_for(p, SEGUE_TRAIN_INPUT_GRADIENT, p->g->ops[group->ops[0]].layer);
}

/* --- speed --- */

static double group_flops(const struct segue_trainer *t, const struct sg_train_group *group)
{
    double flops = 0;
    for (uint32_t i = 0; i < group->n; i++) {
        const struct sg_op *op = &t->graph->ops[group->ops[i]];
        flops += 2.0 * (double)t->info.batch_tokens * op->in[0].width * op->u.linear.weight.rows;
    }
    return flops;
}

/* One product after the other until they took ALL_NS; the first one, with its compile, is not timed. */
static segue_status time_product(struct segue_trainer *t, const struct sg_train_product *product, uint64_t *best,
                                 segue_error *err)
{
    static const uint64_t ALL_NS = 40000000;
    const struct sg_train_device_ops *ops = sg_train_device_ops_of(t->device);
    *best = UINT64_MAX;
    for (uint64_t all = 0, rounds = 0, took; all < ALL_NS; rounds++) {
        uint64_t begin = sg_now_ns();
        SG_TRY(ops->start(t->device, product, err));
        SG_TRY(ops->wait(t->device, err));
        took = sg_now_ns() - begin + 1;
        if (!rounds) continue;
        all += took;
        if (took < *best) *best = took;
    }
    return SEGUE_OK;
}

segue_status sg_train_device_rate(struct segue_trainer *t, double *flops_per_s, segue_error *err)
{
    struct sg_train_pass p = {.t = t, .g = t->graph, .rows = {(uint32_t)t->info.batch_tokens, 0}, .err = err};
    const struct sg_train_group *group = t->groups;
    uint64_t best;
    for (uint32_t i = 1; i < t->groups_n; i++)
        if (group_flops(t, &t->groups[i]) > group_flops(t, group)) group = &t->groups[i];
    struct sg_train_product product = product_of(&p, group, 0);
    size_t in = t->info.batch_tokens * product.w[0].cols, out = t->info.batch_tokens * product.w[0].rows;
    float *data = sg_alloc_aligned((in + out) * sizeof *data);
    if (!data) return sg_no_memory("a product", (in + out) * sizeof *data, err);
    for (size_t i = 0; i < in; i++) data[i] = (float)(i % 61) / 61 - 0.5f;
    product.in[0] = data, product.in_stride[0] = product.w[0].cols;
    product.out[0] = data + in, product.out_stride[0] = product.w[0].rows;
    segue_status status = time_product(t, &product, &best, err);
    if (status == SEGUE_OK) *flops_per_s = group_flops(t, group) / (double)best * 1e9;
    sg_free_aligned(data);
    return status;
}
