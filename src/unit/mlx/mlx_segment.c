/* mlx_segment.c: divides a graph into segments, the ops between two attentions. No shape in a segment depends on the length of a
 * sequence, so that one closure serves all positions; attention itself has the keys that are held, and no mask.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

static uint32_t count_segments(const struct sg_graph *g)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < g->ops_n; i++) n += g->ops[i].code == SG_OP_ATTEND;
    return n;
}

static int is_inside(const struct mlx_segment *s, uint32_t op) { return op >= s->from && op < s->to; }

static int reads(const struct sg_op *op, int32_t value)
{
    for (uint32_t k = 0; k < SG_OP_INPUTS; k++)
        if (op->in[k].value == value) return 1;
    return 0;
}

/* 1: the segment computes the value. */
static int defines(const struct sg_graph *g, const struct mlx_segment *s, int32_t value)
{
    int32_t op = g->values[value].op;
    return op >= 0 && (is_inside(s, (uint32_t)op) || op == s->gated);
}

/* 1: a later op uses the value, or it is a result, or it is one of the numbers that show results beyond fp16. */
static int leaves(const struct sg_graph *g, const struct mlx_segment *s, int32_t value)
{
    const struct sg_op *mixer = mlx_last_mixer(g);
    for (uint32_t i = 0; i < g->outputs_n; i++)
        if (g->outputs[i].value == value) return 1;
    for (uint32_t i = s->to; i < g->ops_n; i++)
        if (reads(&g->ops[i], value)) return 1;
    return mixer && reads(mixer, value);
}

static void add(int32_t *list, uint32_t *n, int32_t value)
{
    for (uint32_t i = 0; i < *n; i++)
        if (list[i] == value) return;
    list[(*n)++] = value;
}

static void list_values(const struct sg_graph *g, struct mlx_segment *s)
{
    if (s->gated >= 0) {
        const struct sg_op *a = &g->ops[s->gated];
        add(s->in, &s->in_n, a->out);
        add(s->in, &s->in_n, a->in[3].value);
        if (leaves(g, s, a->out)) add(s->out, &s->out_n, a->out);
    }
    for (uint32_t i = s->from; i < s->to; i++) {
        const struct sg_op *op = &g->ops[i];
        for (uint32_t k = 0; k < SG_OP_INPUTS; k++)
            if (op->in[k].value >= 0 && !defines(g, s, op->in[k].value)) add(s->in, &s->in_n, op->in[k].value);
        if (leaves(g, s, op->out)) add(s->out, &s->out_n, op->out);
        if (op->code == SG_OP_CONV && op->u.conv.taps > 1) s->slots[s->slots_n++] = (uint32_t)op->u.conv.slot;
        if (op->code == SG_OP_DELTA) s->slots[s->slots_n++] = (uint32_t)op->u.delta.slot;
    }
}

static segue_status begin(const struct sg_graph *g, struct mlx_segment *s, segue_error *err)
{
    size_t n = (size_t)(s->to - s->from) * SG_OP_INPUTS + 2;
    s->in = sg_alloc(n * sizeof *s->in);
    s->out = sg_alloc(n * sizeof *s->out);
    s->slots = sg_alloc((g->slots_n + 1) * sizeof *s->slots);
    return s->in && s->out && s->slots ? SEGUE_OK : sg_no_memory("program of mlx", n * sizeof *s->in, err);
}

segue_status mlx_segments_new(const struct sg_graph *g, struct mlx_segment **out, uint32_t *n, segue_error *err)
{
    uint32_t from = 0;
    int32_t gated = -1;
    struct mlx_segment *list = sg_alloc(count_segments(g) * sizeof *list);
    if (!list) return sg_no_memory("program of mlx", g->ops_n * sizeof *list, err);
    *out = list;
    for (uint32_t i = 0; i <= g->ops_n; i++) {
        if (i < g->ops_n && g->ops[i].code != SG_OP_ATTEND) continue;
        struct mlx_segment *s = &list[(*n)++];
        *s = (struct mlx_segment){.from = from, .to = i, .gated = gated};
        SG_TRY(begin(g, s, err));
        list_values(g, s);
        from = i + 1;
        gated = i < g->ops_n && g->ops[i].in[3].value >= 0 ? (int32_t)i : -1;
    }
    return SEGUE_OK;
}

void mlx_segments_free(struct mlx_segment *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sg_free(list[i].in);
        sg_free(list[i].out);
        sg_free(list[i].slots);
    }
    sg_free(list);
}
