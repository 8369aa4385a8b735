/* lowerhead.c: see lowerhead.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lowerhead.h"

#include "unit/ane/lower/lowercommon.h"
#include "unit/ane/passes/pass.h"

enum { SLICES_MAX = SG_ANE_HEAD_SLICE }; /* the second argmax has the limit of the first */

/* 1: the operation keeps the order of the logits. */
static int keeps_order(const struct sg_op *op)
{
    if (op->code == SG_OP_SCALE) return op->u.scale.weight.tensor < 0 && op->u.scale.value > 0;
    return op->code == SG_OP_ACT && op->u.act.act == SG_ACT_TANH;
}

segue_status sg_ane_head_of(struct sg_ane_head *out, const struct sg_graph *g, const struct sg_ane_partition *cut,
                            segue_error *err)
{
    const struct sg_op *ops[3] = {NULL};
    const char *why = NULL;
    *out = (struct sg_ane_head){0};
    for (uint32_t i = 0; i < cut->behind_n && !why; i++) {
        const struct sg_op *op = &g->ops[cut->behind[i]];
        if (i < 3)
            ops[i] = op;
        else if (!keeps_order(op))
            why = sg_op_name(op->code);
    }
    if (!why && (!cut->parts_n || !ops[2] || ops[0]->code != SG_OP_ROWS || ops[1]->code != SG_OP_NORM ||
                 ops[1]->in[1].value >= 0 || ops[2]->code != SG_OP_LINEAR || ops[2]->in[1].value >= 0))
        why = "its end is not a norm and a product";
    if (!why && ops[2]->u.linear.weight.rows > (uint32_t)SG_ANE_HEAD_SLICE * SLICES_MAX) why = "its vocabulary is too large";
    if (why)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "compile: ane: head=engine: the output head of this model: %s; use head=helper",
                       why);
    *out = (struct sg_ane_head){ops[0], ops[1], ops[2]};
    return SEGUE_OK;
}

/* Input: the values that leave the part, of which the operand of `rows` is used. */
static uint32_t row_input(struct sg_lowering *l, const struct sg_operand *x)
{
    int64_t width = 0, at = 0;
    for (uint32_t i = 0; i < l->part->out_n; i++) {
        if (l->part->out[i] == x->value) at = width;
        width += l->g->values[l->part->out[i]].width;
    }
    uint32_t port = sg_mil_build_input(&l->b, "in_x", SG_MIL_FP16, 4, (int64_t[]){1, width, 1, 1});
    return sg_ane_channels(l, port, at, l->g->values[x->value].width);
}

/* Index of the first highest element of axis 2, as fp16. */
static uint32_t argmax(struct sg_lowering *l, uint32_t x)
{
    const struct sg_mil_operand arg[] = {{.name = "axis", .value = sg_mil_build_int(&l->b, 2)},
                                         {.name = "keep_dims", .value = sg_mil_build_bool(&l->b, 1)},
                                         {.name = "x", .value = x}};
    uint32_t index = sg_mil_build_op(&l->b, "reduce_argmax", arg, 3, 1);
    const struct sg_mil_operand cast[] = {{.name = "dtype", .value = sg_mil_build_text(&l->b, "fp16")},
                                          {.name = "x", .value = index}};
    return sg_mil_build_op(&l->b, "cast", cast, 2, 1);
}

/* Maxima and their indices of slices of logits, in the order of the vocabulary. */
struct slices {
    uint32_t *max, *index;           /* [n] each [1, slices, 1, 1] */
    uint32_t n;
};

/* Adds `slices` slices of `size` channels of y, from channel `at` on. */
static void add_slices(struct sg_lowering *l, uint32_t y, int64_t at, int64_t slices, int64_t size, struct slices *out)
{
    int64_t shape[4] = {1, slices, 1, 1};
    if (!slices || !size || l->b.status) return;
    uint32_t x = sg_mil_build_reshape(&l->b, sg_ane_channels(l, y, at, slices * size), 4, (int64_t[]){1, slices, size, 1});
    out->max[out->n] = sg_mil_build_reshape(&l->b, sg_mil_build_reduce(&l->b, "reduce_max", x, 2), 4, shape);
    out->index[out->n++] = sg_mil_build_reshape(&l->b, argmax(l, x), 4, shape);
}

/* Logits of tokens [from, from + n). */
static uint32_t tile(struct sg_lowering *l, const struct sg_linear *p, uint32_t x, uint32_t from, uint32_t n)
{
    const struct sg_weight w = {p->weight.tensor, p->weight.at + from, n};
    const struct sg_tensor *t = l->g->tensors[w.tensor];
    uint32_t y = sg_mil_build_conv(&l->b, x, sg_ane_weight(l, &w, SG_ANE_MATRIX, SG_ANE_SHAPE(n, (int64_t)t->cols, 1, 1)), 1);
    if (p->bias.tensor < 0) return y;
    uint32_t bias = sg_ane_weight(l, &p->bias, SG_ANE_AS_IS, SG_ANE_SHAPE(1, (int64_t)p->weight.rows, 1, 1));
    return SG_ANE_BIN("add", y, sg_ane_channels(l, bias, from, n));
}

/* The element of x [1, 1, n, 1] at index k: the sum of its product with a vector that is 1 at k and 0 elsewhere. */
static uint32_t element_at(struct sg_lowering *l, uint32_t x, uint32_t k)
{
    double order[SLICES_MAX];
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    if (l->b.status) return 0;
    for (int32_t i = 0; i < t->dim[2]; i++) order[i] = i;
    uint32_t all = sg_mil_build_real_tensor(&l->b, SG_MIL_FP16, 4, (int64_t[]){1, 1, t->dim[2], 1}, order,
                                            (uint64_t)t->dim[2]);
    uint32_t apart = SG_ANE_UN("abs", SG_ANE_BIN("sub", all, k));
    uint32_t here = SG_ANE_UN("relu", SG_ANE_BIN("sub", SG_ANE_NUM(1), apart));
    return sg_mil_build_reduce(&l->b, "reduce_sum", SG_ANE_BIN("mul", x, here), 2);
}

/* One value of the lists as [1, 1, n, 1]. */
static uint32_t joined(struct sg_lowering *l, const uint32_t *list, uint32_t n)
{
    uint32_t x = n > 1 ? sg_mil_build_concat(&l->b, list, n, 1) : list[0];
    return sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, 1, sg_mil_build_type(&l->b, x)->dim[1], 1});
}

static segue_status lower(struct sg_lowering *l, const struct sg_ane_head *head, struct slices *s, segue_error *err)
{
    const struct sg_linear *p = &head->linear->u.linear;
    struct sg_op norm = *head->norm; /* reads what `rows` selects from */
    norm.in[0].value = head->rows->in[0].value;
    norm.in[0].at += head->rows->in[0].at;
    l->values[norm.in[0].value] = row_input(l, &head->rows->in[0]);
    l->values[norm.out] = sg_ane_lower_stateless(l, &norm);
    uint32_t x = sg_ane_operand(l, &head->linear->in[0]);
    for (uint32_t at = 0; at < p->weight.rows && !l->b.status; at += SG_ANE_HEAD_TILE) {
        uint32_t n = p->weight.rows - at < SG_ANE_HEAD_TILE ? p->weight.rows - at : SG_ANE_HEAD_TILE;
        uint32_t whole = n / SG_ANE_HEAD_SLICE, rest = n % SG_ANE_HEAD_SLICE, y = tile(l, p, x, at, n);
        add_slices(l, y, 0, whole, SG_ANE_HEAD_SLICE, s);
        add_slices(l, y, (int64_t)whole * SG_ANE_HEAD_SLICE, rest != 0, rest, s);
    }
    uint32_t max = joined(l, s->max, s->n), best = argmax(l, max);
    uint32_t choice[SG_ANE_CHOICE] = {best, element_at(l, joined(l, s->index, s->n), best),
                                      sg_mil_build_reduce(&l->b, "reduce_max", max, 2)};
    sg_mil_build_name(&l->b, "to_out");
    uint32_t out = sg_mil_build_concat(&l->b, choice, SG_ANE_CHOICE, 1);
    return sg_mil_build_end(&l->b, &out, 1, err);
}

/* Lists in one allocation: values, maxima, indices. A tile has at most two groups of slices. */
segue_status sg_ane_lower_head(struct sg_mil_program **out, const struct sg_graph *g, const struct sg_ane_part *part,
                               const struct sg_ane_head *head, uint32_t columns, struct sg_ane_blobs *blobs, segue_error *err)
{
    static const struct sg_ane_info no_info;
    const struct sg_ane_shape shape = {.rows = 1, .columns = columns};
    uint32_t groups = 2 * (head->linear->u.linear.weight.rows / SG_ANE_HEAD_TILE + 1);
    struct sg_lowering l = {.g = g, .part = part, .info = &no_info, .shape = &shape, .blobs = blobs, .s = 1};
    struct sg_mil_program *p = sg_mil_program_new(SG_MIL_VERBOSE);
    uint32_t *lists = sg_alloc(((size_t)g->values_n + 2 * (size_t)groups) * sizeof *lists);
    if (!p || !lists) {
        sg_mil_program_free(p);
        sg_free(lists);
        return sg_no_memory("a program", 0, err);
    }
    struct slices s = {lists + g->values_n, lists + g->values_n + groups, 0};
    l.values = lists;
    blobs->programs++;
    sg_mil_build_begin(&l.b, p, "main", blobs->storage ? "ios18" : NULL);
    segue_status status = lower(&l, head, &s, err);
    if (status == SEGUE_OK) status = sg_passes(p, SG_ANE_PAD, columns, err);
    sg_free(lists);
    if (status == SEGUE_OK)
        *out = p;
    else
        sg_mil_program_free(p);
    return status;
}
