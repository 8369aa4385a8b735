/* dump.c: prints a graph as text, one op per line, for debugging and for golden tests.
 * Deterministic: equal graphs give equal text. graph.h shows an example line.
 * SPDX-License-Identifier: MIT */
#include "base/buf.h"
#include "graph/graph.h"

/* `%9`, or `%9[0:64]` for a column range. Nothing for an absent operand. */
static void put_operand(const struct sg_graph *g, struct sg_buf *out, const char *label,
                        const struct sg_operand *x)
{
    if (x->value < 0) return;
    sg_buf_printf(out, " %s%%%d", label, x->value);
    if (x->at || x->width != g->values[x->value].width)
        sg_buf_printf(out, "[%u:%u]", x->at, x->at + x->width);
}

/* `blk.0.attn_q.weight [576x576 q4_1]`, with [from:to] after the name for a row range. */
static void put_weight(const struct sg_graph *g, struct sg_buf *out, const char *label,
                       const struct sg_weight *w)
{
    if (w->tensor < 0) return;
    const struct sg_tensor *t = g->tensors[w->tensor];
    sg_buf_printf(out, " %s%s", label, t->name);
    if (w->at || w->rows != t->rows) sg_buf_printf(out, "[%u:%u]", w->at, w->at + w->rows);
    if (t->rows == 1)
        sg_buf_printf(out, " [%llu %s]", (unsigned long long)t->cols, sg_storage_info(t->storage)->name);
    else
        sg_buf_printf(out, " [%ux%llu %s]", w->rows, (unsigned long long)t->cols,
                      sg_storage_info(t->storage)->name);
}

/* heads=query/KV heads, d=key/value width of a head. */
static void put_attend(const struct sg_graph *g, struct sg_buf *out, const struct sg_op *op)
{
    const struct sg_attend *p = &op->u.attend;
    put_operand(g, out, "gate=", &op->in[3]);
    sg_buf_printf(out, " heads=%u/%u d=%u/%u scale=%.9g", p->heads, p->kv_heads, p->d, p->dv,
                  (double)p->scale);
    if (p->window) sg_buf_printf(out, " window=%u", p->window);
    if (p->softcap > 0) sg_buf_printf(out, " softcap=%.9g", (double)p->softcap);
    put_weight(g, out, "sinks=", &p->sinks);
    sg_buf_printf(out, " slots=%d,%d", p->slot_k, p->slot_v);
}

/* heads=key/value heads. decay=exp: the tensor holds the logarithm of the decay. */
static void put_delta(const struct sg_graph *g, struct sg_buf *out, const struct sg_op *op)
{
    const struct sg_delta *p = &op->u.delta;
    put_operand(g, out, "a=", &op->in[3]);
    put_operand(g, out, "b=", &op->in[4]);
    sg_buf_printf(out, " heads=%u/%u d=%u/%u", p->k_heads, p->v_heads, p->dk, p->dv);
    put_weight(g, out, p->decay_is_log ? "decay=exp " : "decay=", &p->decay);
    put_weight(g, out, "dt=", &p->dt);
    sg_buf_printf(out, " l2_eps=%.9g slot=%d", (double)p->l2_eps, p->slot);
}

/* `1+` before the weight: 1 is added to each weight. */
static void put_norm(const struct sg_graph *g, struct sg_buf *out, const struct sg_op *op)
{
    const struct sg_norm *p = &op->u.norm;
    put_operand(g, out, "gate=", &op->in[1]);
    put_weight(g, out, p->plus_one ? "1+" : "", &p->weight);
    put_weight(g, out, "bias=", &p->bias);
    sg_buf_printf(out, " %s eps=%.9g", p->kind == SG_NORM_RMS ? "rms" : "layer", (double)p->eps);
    if (p->groups > 1) sg_buf_printf(out, " groups=%u", p->groups);
}

static void put_route(const struct sg_graph *g, struct sg_buf *out, const struct sg_op *op)
{
    sg_buf_printf(out, " %u of %u %s%s scale=%.9g", op->u.route.k, op->u.route.experts,
                  op->u.route.sigmoid ? "sigmoid" : "softmax",
                  op->u.route.renormalise ? " renormalised" : "", (double)op->u.route.scale);
    put_weight(g, out, "bias=", &op->u.route.bias);
}

static void put_experts(const struct sg_graph *g, struct sg_buf *out, const struct sg_op *op)
{
    put_operand(g, out, "", &op->in[1]);
    put_weight(g, out, "", &op->u.experts.gate);
    put_weight(g, out, "", &op->u.experts.up);
    put_weight(g, out, "", &op->u.experts.down);
    sg_buf_printf(out, " %u of %u %s", op->u.experts.k, op->u.experts.experts,
                  sg_act_name(op->u.experts.act));
}

/* Everything after the first operand: further operands, weights and parameters. */
static void put_rest(const struct sg_graph *g, struct sg_buf *out, const struct sg_op *op)
{
    switch (op->code) {
    case SG_OP_EMBED:
        put_weight(g, out, "", &op->u.embed.table);
        put_weight(g, out, "positions=", &op->u.embed.positions);
        if (op->u.embed.scale != 1) sg_buf_printf(out, " scale=%.9g", (double)op->u.embed.scale);
        break;
    case SG_OP_NORM: put_norm(g, out, op); break;
    case SG_OP_LINEAR:
        put_weight(g, out, "", &op->u.linear.weight);
        put_weight(g, out, "bias=", &op->u.linear.bias);
        put_operand(g, out, "residual=", &op->in[1]);
        break;
    case SG_OP_ROPE:
        sg_buf_printf(out, " heads=%u table=%d", op->u.rope.heads, op->u.rope.table);
        if (op->u.rope.sign < 0) sg_buf_puts(out, " undo");
        break;
    case SG_OP_ATTEND:
        put_operand(g, out, "", &op->in[1]);
        put_operand(g, out, "", &op->in[2]);
        put_attend(g, out, op);
        break;
    case SG_OP_CONV:
        put_weight(g, out, "", &op->u.conv.weight);
        put_weight(g, out, "bias=", &op->u.conv.bias);
        sg_buf_printf(out, " taps=%u %s slot=%d", op->u.conv.taps, sg_act_name(op->u.conv.act),
                      op->u.conv.slot);
        break;
    case SG_OP_DELTA:
        put_operand(g, out, "", &op->in[1]);
        put_operand(g, out, "", &op->in[2]);
        put_delta(g, out, op);
        break;
    case SG_OP_GLU:
        put_operand(g, out, "", &op->in[1]);
        sg_buf_printf(out, " %s", sg_act_name(op->u.glu.act));
        break;
    case SG_OP_ACT: sg_buf_printf(out, " %s", sg_act_name(op->u.act.act)); break;
    case SG_OP_ADD: put_operand(g, out, "", &op->in[1]); break;
    case SG_OP_SCALE:
        if (op->u.scale.weight.tensor < 0) sg_buf_printf(out, " value=%.9g", (double)op->u.scale.value);
        put_weight(g, out, "", &op->u.scale.weight);
        break;
    case SG_OP_ROUTE: put_route(g, out, op); break;
    case SG_OP_EXPERTS: put_experts(g, out, op); break;
    case SG_OP_JOIN: sg_buf_printf(out, " %s %u ranks", op->u.join.sum ? "sum of" : "concatenation of", op->u.join.ranks); break;
    default: break;
    }
}

/* One line per state slot: kind, heads x [depth x] width, window, layer. */
static void put_slot(struct sg_buf *out, uint32_t i, const struct sg_slot *s)
{
    static const char *const kinds[] = {"k", "v", "conv", "delta"};
    sg_buf_printf(out, "slot %u = %s %ux", i, kinds[s->kind], s->heads);
    if (s->kind == SG_SLOT_DELTA) sg_buf_printf(out, "%ux", s->depth);
    sg_buf_printf(out, "%u", s->width);
    if (s->window) sg_buf_printf(out, " window=%u", s->window);
    sg_buf_printf(out, "   # layer %u\n", s->layer);
}

segue_status sg_graph_dump(const struct sg_graph *g, struct sg_buf *out)
{
    for (uint32_t i = 0; i < g->inputs_n; i++)
        sg_buf_printf(out, "%%%d = input %s -> %u\n", g->inputs[i].value, g->inputs[i].name,
                      g->values[g->inputs[i].value].width);
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        sg_buf_printf(out, "%%%d = %s", op->out, sg_op_name(op->code));
        put_operand(g, out, "", &op->in[0]);
        put_rest(g, out, op);
        sg_buf_printf(out, " -> %u", g->values[op->out].width);
        if (op->layer >= 0) sg_buf_printf(out, "   # layer %d", op->layer);
        sg_buf_puts(out, "\n");
    }
    for (uint32_t i = 0; i < g->outputs_n; i++)
        sg_buf_printf(out, "output %s = %%%d\n", g->outputs[i].name, g->outputs[i].value);
    for (uint32_t i = 0; i < g->slots_n; i++) put_slot(out, i, &g->slots[i]);
    return out->failed;
}
