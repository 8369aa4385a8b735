/* mlx_stack.c: matrices that are multiplied with one value are stacked at load, so that a decode step has one product for them:
 * the projections of an attention, gate and up of an MLP. The arrays of the single matrices, with which several rows are
 * multiplied, become parts of the stack, which takes no more memory.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/mlx/mlxunit.h"

/* --- which --- */

static struct mlx_weight *weight_of(const struct mlx_weights *w, const struct sg_tensor *t, enum mlx_role role)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->list[i].tensor == t && w->list[i].role == role) return &w->list[i];
    return NULL;
}

/* The matrix of a linear op that multiplies with all of it; NULL: it is not stacked. */
static struct mlx_weight *whole(const struct mlx_weights *w, const struct sg_graph *g, const struct sg_op *op)
{
    const struct sg_linear *l = &op->u.linear;
    if (op->code != SG_OP_LINEAR || mlx_is_fp32(g, op->out)) return NULL;
    const struct sg_tensor *t = g->tensors[l->weight.tensor];
    if (l->weight.at || l->weight.rows != t->rows) return NULL;
    return weight_of(w, t, MLX_MATRIX);
}

static int same_input(const struct sg_op *a, const struct sg_op *b)
{
    return a->in[0].value == b->in[0].value && a->in[0].at == b->in[0].at && a->in[0].width == b->in[0].width;
}

static int fits(const struct sg_op *a, const struct mlx_weight *x, const struct sg_op *b, const struct mlx_weight *y)
{
    int biased = (a->u.linear.bias.tensor >= 0) == (b->u.linear.bias.tensor >= 0);
    return y && same_input(a, b) && biased && x->bits == y->bits && x->group == y->group;
}

/* Ops of a stack that begins with op `first`, in one segment; returns how many, 1: none. */
static uint32_t list_ops(const struct mlx_weights *w, const struct sg_graph *g, uint32_t first, uint32_t ops[MLX_STACK_OPS])
{
    const struct mlx_weight *x = whole(w, g, &g->ops[first]);
    uint32_t n = 1;
    ops[0] = first;
    for (uint32_t i = first + 1; x && i < g->ops_n && g->ops[i].code != SG_OP_ATTEND && n < MLX_STACK_OPS; i++) {
        const struct mlx_weight *y = whole(w, g, &g->ops[i]);
        int again = 0;
        for (uint32_t k = 0; k < n; k++) again |= y && y->tensor == g->tensors[g->ops[ops[k]].u.linear.weight.tensor];
        if (!again && fits(&g->ops[first], x, &g->ops[i], y)) ops[n++] = i;
    }
    return n;
}

/* Index of the stack with the matrices of these ops, or -1; *used: some of them is in another one. */
static int32_t find(const struct mlx_weights *w, const struct sg_graph *g, const uint32_t *ops, uint32_t n, int *used)
{
    int32_t found = -1;
    *used = 0;
    for (uint32_t s = 0; s < w->stacks_n; s++) {
        const struct mlx_stack *stack = &w->stacks[s];
        uint32_t equal = 0;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < stack->n; k++) {
                int same = stack->tensors[k] == g->tensors[g->ops[ops[i]].u.linear.weight.tensor];
                *used |= same;
                equal += same && i == k;
            }
        if (equal == n && stack->n == n) found = (int32_t)s;
    }
    return found;
}

/* Calls each for the ops of every possible stack. */
typedef segue_status stack_fn(void *context, const uint32_t *ops, uint32_t n, segue_error *err);
static segue_status for_stacks(const struct mlx_weights *w, const struct sg_graph *g, stack_fn *each, void *context,
                               segue_error *err)
{
    uint8_t *seen = sg_alloc(g->ops_n + 1);
    segue_status status = seen ? SEGUE_OK : sg_no_memory("program of mlx", g->ops_n, err);
    for (uint32_t i = 0; i < g->ops_n && status == SEGUE_OK; i++) {
        uint32_t ops[MLX_STACK_OPS], n = seen[i] ? 1 : list_ops(w, g, i, ops);
        for (uint32_t k = 0; n > 1 && k < n; k++) seen[ops[k]] = 1;
        if (n > 1) status = each(context, ops, n, err);
    }
    sg_free(seen);
    return status;
}

/* --- stacking --- */

struct stacking {
    struct mlx_weights *w;
    struct sg_unit *unit;
    const struct sg_graph *g;
};

/* The arrays, one below the other; those that are given become parts of it. */
static struct mxc_held *join(struct sg_unit *u, struct mxc_held **arrays[], uint32_t n)
{
    mxc_ref parts[MLX_STACK_OPS] = {MXC_NONE};
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) parts[i] = mxc_use(u->tape, *arrays[i]);
    mxc_ref all = mxc_concat(u->tape, parts, n, 0);
    (void)mxc_eval(u->tape, &all, 1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rows = mxc_dim(u->tape, parts[i], 0);
        mxc_ref part = mxc_slice(u->tape, all, 0, at, at + rows);
        (void)mxc_eval(u->tape, &part, 1);
        struct mxc_held *held = mxc_keep(u->tape, part);
        if (held) {
            mxc_release(*arrays[i]);
            *arrays[i] = held;
        }
        at += rows;
    }
    struct mxc_held *held = mxc_keep(u->tape, all);
    mxc_tape_clear(u->tape);
    return held;
}

static struct mlx_stack *stack_new(struct mlx_weights *w)
{
    struct mlx_stack *more = sg_alloc((w->stacks_n + 1) * sizeof *more);
    if (!more) return NULL;
    if (w->stacks_n) memcpy(more, w->stacks, w->stacks_n * sizeof *more);
    sg_free(w->stacks);
    w->stacks = more;
    return &more[w->stacks_n++];
}

static segue_status stack(void *context, const uint32_t *ops, uint32_t n, segue_error *err)
{
    struct stacking *s = context;
    struct mxc_held **numbers[MLX_STACK_OPS], **scales[MLX_STACK_OPS], **biases[MLX_STACK_OPS], **added[MLX_STACK_OPS];
    int used;
    if (find(s->w, s->g, ops, n, &used) >= 0 || used) return SEGUE_OK;
    struct mlx_stack *new = stack_new(s->w);
    if (!new) return sg_no_memory("weights of mlx", sizeof *new, err);
    const struct sg_linear *first = &s->g->ops[ops[0]].u.linear;
    const struct mlx_weight *like = weight_of(s->w, s->g->tensors[first->weight.tensor], MLX_MATRIX);
    *new = (struct mlx_stack){.n = n, .all = {.role = MLX_MATRIX, .bits = like->bits, .group = like->group}};
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_linear *l = &s->g->ops[ops[i]].u.linear;
        new->tensors[i] = s->g->tensors[l->weight.tensor];
        struct mlx_weight *w = weight_of(s->w, new->tensors[i], MLX_MATRIX);
        numbers[i] = &w->numbers;
        scales[i] = &w->scales;
        biases[i] = &w->biases;
        if (l->bias.tensor >= 0) added[i] = &weight_of(s->w, s->g->tensors[l->bias.tensor], MLX_VECTOR)->numbers;
    }
    new->all.numbers = join(s->unit, numbers, n);
    if (like->bits) new->all.scales = join(s->unit, scales, n);
    if (like->bits) new->all.biases = join(s->unit, biases, n);
    if (!like->bits && first->bias.tensor >= 0) new->bias = join(s->unit, added, n);
    mxc_free_unused();
    int whole_stack = new->all.numbers && (!like->bits || (new->all.scales && new->all.biases));
    if (whole_stack && (like->bits || first->bias.tensor < 0 || new->bias)) return SEGUE_OK;
    return sg_no_memory("weights of mlx", mxc_held_bytes(new->all.numbers), err);
}

segue_status mlx_stacks_add(struct mlx_weights *w, struct sg_unit *u, const struct sg_graph *g, segue_error *err)
{
    struct stacking s = {w, u, g};
    return for_stacks(w, g, stack, &s, err);
}

/* --- use --- */

struct finding {
    const struct mlx_weights *w;
    const struct sg_graph *g;
    int32_t *of;
    uint32_t *at;
};

static segue_status note(void *context, const uint32_t *ops, uint32_t n, segue_error *err)
{
    struct finding *f = context;
    int used;
    int32_t stack = find(f->w, f->g, ops, n, &used);
    (void)err;
    /* A pass keeps one product of a stack: matrices that are multiplied with a second value are not taken from it. */
    for (uint32_t i = 0; i < f->g->ops_n; i++)
        if (f->of[i] == stack) return SEGUE_OK;
    for (uint32_t i = 0, at = 0; i < n; at += f->g->ops[ops[i++]].u.linear.weight.rows) {
        f->of[ops[i]] = stack;
        f->at[ops[i]] = at;
    }
    return SEGUE_OK;
}

segue_status mlx_stacks_find(const struct mlx_weights *w, const struct sg_graph *g, int32_t *of, uint32_t *at, segue_error *err)
{
    struct finding f = {w, g, of, at};
    for (uint32_t i = 0; i < g->ops_n; i++) of[i] = -1;
    return for_stacks(w, g, note, &f, err);
}
