/* graphcheck.c: the validity rules of a graph, one function per op. A unit can execute a graph that
 * passes without further checks: every index is in range, every width matches, every tensor has the
 * numbers that its op reads. Tensors come from files, so a wrong shape is EFORMAT; a wrong
 * index is a bug and EINTERNAL. Changes nothing.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/graph.h"

/* The op being checked and where errors go. */
struct graph_check {
    const struct sg_graph *g;
    const struct sg_op *op;
    uint32_t index;
    segue_error *err;
};

/* Fails with a message that names the op and its layer. */
static segue_status op_fail(const struct graph_check *j, segue_status status, const char *format, ...)
    SG_FORMAT(3, 4);
static segue_status op_fail(const struct graph_check *j, segue_status status, const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sg_fail(j->err, status, "check graph: op %u %s (layer %d): %s; %s", j->index,
                   sg_op_name(j->op->code), j->op->layer, text,
                   status == SEGUE_EFORMAT ? "the file is damaged or of another family" : "report this");
}

/* Input i must be present: ROWS, computed by an earlier op, a column range inside the value,
 * `width` columns (0 = any), and the same kind of rows (T or R) as the result. */
static segue_status check_input(const struct graph_check *j, int i, const char *what, uint64_t width)
{
    const struct sg_operand *x = &j->op->in[i];
    if (x->value < 0) return op_fail(j, SEGUE_EINTERNAL, "%s is absent", what);
    if ((uint32_t)x->value >= j->g->values_n || x->value == j->op->out)
        return op_fail(j, SEGUE_EINTERNAL, "%s: value %d is not defined", what, x->value);
    const struct sg_value *v = &j->g->values[x->value];
    /* Ops are executed in order: an operand must have been computed before. */
    if (v->op >= 0 && (uint32_t)v->op >= j->index)
        return op_fail(j, SEGUE_EINTERNAL, "%s: value %d is defined later, by op %d", what, x->value, v->op);
    if (v->kind != SG_VALUE_ROWS)
        return op_fail(j, SEGUE_EINTERNAL, "%s: value %d is of kind tokens, expected rows", what, x->value);
    if (!x->width || x->at > v->width || x->width > v->width - x->at)
        return op_fail(j, SEGUE_EINTERNAL, "%s: columns [%u, %llu) of value %d, which has %u columns", what, x->at,
                     (unsigned long long)x->at + x->width, x->value, v->width);
    if (width && x->width != width)
        return op_fail(j, SEGUE_EFORMAT, "%s has %u columns, expected %llu", what, x->width,
                     (unsigned long long)width);
    /* T and R rows cannot be combined: the same row index means different tokens. */
    if (j->op->code != SG_OP_ROWS && v->wanted != j->g->values[j->op->out].wanted)
        return op_fail(j, SEGUE_EINTERNAL, "%s: value %d has rows for %s", what, x->value,
                       v->wanted ? "the requested tokens only" : "all tokens");
    return SEGUE_OK;
}

/* The same, but the input may be absent. */
static segue_status check_optional_input(const struct graph_check *j, int i, const char *what, uint64_t width)
{
    return j->op->in[i].value < 0 ? SEGUE_OK : check_input(j, i, what, width);
}

/* A weight must be present, readable, and its row range inside the tensor. Sets *t. */
static segue_status check_tensor(const struct graph_check *j, const struct sg_weight *w, const char *what,
                           const struct sg_tensor **t)
{
    if (w->tensor < 0) return op_fail(j, SEGUE_EINTERNAL, "%s is absent", what);
    if ((uint32_t)w->tensor >= j->g->tensors_n)
        return op_fail(j, SEGUE_EINTERNAL, "%s: tensor index %d, the graph has %u tensors", what, w->tensor, j->g->tensors_n);
    *t = j->g->tensors[w->tensor];
    const struct sg_storage_info *info = sg_storage_info((*t)->storage);
    if (!info || !info->computable)
        return sg_fail(j->err, SEGUE_EUNSUPPORTED,
                       "check graph: op %u %s (layer %d): %s %s uses %s, which is not supported; "
                       "convert the file, for example to Q8_0", j->index, sg_op_name(j->op->code), j->op->layer, what, (*t)->name,
                       info && info->name ? info->name : "an unknown type");
    if (!w->rows || w->at > (*t)->rows || w->rows > (*t)->rows - w->at)
        return op_fail(j, SEGUE_EFORMAT, "%s: rows [%u, %llu) of %s, which has %llu rows", what, w->at,
                     (unsigned long long)w->at + w->rows, (*t)->name, (unsigned long long)(*t)->rows);
    return SEGUE_OK;
}

/* A matrix weight must have exactly rows x cols, in the order of PyTorch: output features x input
 * features. */
static segue_status check_matrix(const struct graph_check *j, const struct sg_weight *w, const char *what, uint64_t rows,
                           uint64_t cols)
{
    const struct sg_tensor *t = NULL;
    SG_TRY(check_tensor(j, w, what, &t));
    if (w->rows != rows || t->cols != cols)
        return op_fail(j, SEGUE_EFORMAT, "%s %s is %u x %llu, expected %llu x %llu", what, t->name, w->rows,
                     (unsigned long long)t->cols, (unsigned long long)rows, (unsigned long long)cols);
    return SEGUE_OK;
}

/* A vector weight must have n numbers in total, whatever its dimensions in the file. The comparison
 * of rows and cols with n keeps their product from overflowing. */
static segue_status check_vector(const struct graph_check *j, const struct sg_weight *w, const char *what, uint64_t n)
{
    const struct sg_tensor *t = NULL;
    SG_TRY(check_tensor(j, w, what, &t));
    if (w->at || w->rows != t->rows || t->cols > n || t->rows > n || t->rows * t->cols != n)
        return op_fail(j, SEGUE_EFORMAT, "%s %s has %llu x %llu numbers, expected %llu", what, t->name,
                     (unsigned long long)t->rows, (unsigned long long)t->cols, (unsigned long long)n);
    return SEGUE_OK;
}

/* The same, but the weight may be absent. */
static segue_status check_optional_vector(const struct graph_check *j, const struct sg_weight *w, const char *what,
                                 uint64_t n)
{
    return w->tensor < 0 ? SEGUE_OK : check_vector(j, w, what, n);
}

/* Parameters come from files: NaN or infinity is reported here instead of as bad output later. */
static segue_status check_finite(const struct graph_check *j, const char *what, float x)
{
    return isfinite(x) ? SEGUE_OK : op_fail(j, SEGUE_EFORMAT, "%s is not a finite number", what);
}

/* The activation must be a value of its enum. */
static segue_status check_activation(const struct graph_check *j, enum sg_act act)
{
    return (unsigned)act > SG_ACT_TANH ? op_fail(j, SEGUE_EINTERNAL, "activation %d is unknown", (int)act)
                                       : SEGUE_OK;
}

/* The slot must exist, have the shape `want` and belong to the op's layer. Ops with state need all tokens, so their result
 * cannot have R rows. */
static segue_status check_slot(const struct graph_check *j, int32_t index, const struct sg_slot *want)
{
    if (index < 0 || (uint32_t)index >= j->g->slots_n)
        return op_fail(j, SEGUE_EINTERNAL, "slot index %d, the graph has %u slots", index, j->g->slots_n);
    const struct sg_slot *s = &j->g->slots[index];
    if (s->kind != want->kind || s->heads != want->heads || s->width != want->width ||
        s->depth != want->depth || s->window != want->window || j->op->layer < 0 ||
        s->layer != (uint32_t)j->op->layer)
        return op_fail(j, SEGUE_EINTERNAL, "slot %d does not match the op", index);
    if (j->g->values[j->op->out].wanted) return op_fail(j, SEGUE_EINTERNAL, "an op with state after rows");
    return SEGUE_OK;
}

/* --- one function per op; each sets *width to the width of the result --- */

/* Table and positions must have the same width. Token ids are checked when a run starts. */
static segue_status check_embed(const struct graph_check *j, uint64_t *width)
{
    const struct sg_embed *p = &j->op->u.embed;
    const struct sg_tensor *table = NULL;
    int32_t x = j->op->in[0].value;
    if (x < 0 || (uint32_t)x >= j->g->values_n || j->g->values[x].kind != SG_VALUE_TOKENS)
        return op_fail(j, SEGUE_EINTERNAL, "value %d is not of kind tokens", x);
    SG_TRY(check_tensor(j, &p->table, "table", &table));
    SG_TRY(check_matrix(j, &p->table, "table", table->rows, table->cols));
    if (p->positions.tensor >= 0) {
        const struct sg_tensor *positions = NULL;
        SG_TRY(check_tensor(j, &p->positions, "positions", &positions));
        SG_TRY(check_matrix(j, &p->positions, "positions", positions->rows, table->cols));
    }
    *width = table->cols;
    return check_finite(j, "scale", p->scale);
}

/* Weight and bias have the width of one group. */
static segue_status check_norm(const struct graph_check *j, uint64_t *width)
{
    const struct sg_norm *p = &j->op->u.norm;
    SG_TRY(check_input(j, 0, "x", 0));
    *width = j->op->in[0].width;
    if (!p->groups || *width % p->groups)
        return op_fail(j, SEGUE_EFORMAT, "%llu columns cannot be divided into %u groups", (unsigned long long)*width, p->groups);
    if (p->kind != SG_NORM_RMS && p->kind != SG_NORM_LAYER)
        return op_fail(j, SEGUE_EINTERNAL, "kind %d is unknown", (int)p->kind);
    SG_TRY(check_optional_input(j, 1, "gate", *width));
    SG_TRY(check_optional_vector(j, &p->weight, "weight", *width / p->groups));
    SG_TRY(check_optional_vector(j, &p->bias, "bias", *width / p->groups));
    return p->eps >= 0 ? check_finite(j, "eps", p->eps) : op_fail(j, SEGUE_EFORMAT, "eps is negative");
}

/* The weight is checked before bias and residual: a file with other shapes than expected is the
 * most common error. */
static segue_status check_linear(const struct graph_check *j, uint64_t *width)
{
    const struct sg_linear *p = &j->op->u.linear;
    SG_TRY(check_input(j, 0, "x", 0));
    SG_TRY(check_matrix(j, &p->weight, "weight", p->weight.rows, j->op->in[0].width));
    *width = p->weight.rows;
    SG_TRY(check_optional_vector(j, &p->bias, "bias", *width));
    return check_optional_input(j, 1, "residual", *width);
}

/* The rotated columns are the first 2 * pairs of each head. The op needs the positions of its rows,
 * which are only known for T rows. */
static segue_status check_rope(const struct graph_check *j, uint64_t *width)
{
    const struct sg_rope *p = &j->op->u.rope;
    SG_TRY(check_input(j, 0, "x", 0));
    *width = j->op->in[0].width;
    if (!p->heads || (uint64_t)p->heads * p->head_width != *width)
        return op_fail(j, SEGUE_EFORMAT, "%llu columns are not %u heads of %u", (unsigned long long)*width,
                     p->heads, p->head_width);
    if (p->table < 0 || (uint32_t)p->table >= j->g->ropes_n)
        return op_fail(j, SEGUE_EINTERNAL, "table index %d, the graph has %u rotary tables", p->table, j->g->ropes_n);
    const struct sg_rope_table *t = &j->g->ropes[p->table];
    if (!t->pairs || t->pairs > p->head_width / 2)
        return op_fail(j, SEGUE_EFORMAT, "%u rotated pairs do not fit in heads of %u columns", t->pairs, p->head_width);
    if (p->sign != 1 && p->sign != -1) return op_fail(j, SEGUE_EINTERNAL, "sign is %d", p->sign);
    if (j->g->values[j->op->out].wanted) return op_fail(j, SEGUE_EINTERNAL, "an op with positions after rows");
    for (uint32_t i = 0; i < t->pairs; i++) SG_TRY(check_finite(j, "an inverse frequency", t->inverse[i]));
    return check_finite(j, "mscale", t->mscale);
}

/* The number of query heads must be a multiple of the number of KV heads. Both slots have the op's
 * window. */
static segue_status check_attend(const struct graph_check *j, uint64_t *width)
{
    const struct sg_attend *p = &j->op->u.attend;
    if (!p->kv_heads || !p->heads || p->heads % p->kv_heads || !p->d || !p->dv)
        return op_fail(j, SEGUE_EFORMAT, "invalid head counts or widths: %u heads, %u KV heads, widths %u and %u",
                       p->heads, p->kv_heads, p->d,
                     p->dv);
    *width = (uint64_t)p->heads * p->dv;
    SG_TRY(check_input(j, 0, "q", (uint64_t)p->heads * p->d));
    SG_TRY(check_input(j, 1, "k", (uint64_t)p->kv_heads * p->d));
    SG_TRY(check_input(j, 2, "v", (uint64_t)p->kv_heads * p->dv));
    SG_TRY(check_optional_input(j, 3, "gate", *width));
    SG_TRY(check_optional_vector(j, &p->sinks, "sinks", p->heads));
    SG_TRY(check_finite(j, "scale", p->scale));
    if (!(p->softcap >= 0)) return op_fail(j, SEGUE_EFORMAT, "softcap is negative");
    SG_TRY(check_finite(j, "softcap", p->softcap));
    struct sg_slot want = {.kind = SG_SLOT_K, .heads = p->kv_heads, .width = p->d, .window = p->window};
    SG_TRY(check_slot(j, p->slot_k, &want));
    want.kind = SG_SLOT_V;
    want.width = p->dv;
    return check_slot(j, p->slot_v, &want);
}

/* The limit on taps bounds the memory of the slot. */
static segue_status check_conv(const struct graph_check *j, uint64_t *width)
{
    const struct sg_conv *p = &j->op->u.conv;
    SG_TRY(check_input(j, 0, "x", 0));
    *width = j->op->in[0].width;
    if (!p->taps || p->taps > 1024) return op_fail(j, SEGUE_EFORMAT, "%u taps, allowed are 1 to 1024", p->taps);
    SG_TRY(check_vector(j, &p->weight, "weight", *width * p->taps));
    SG_TRY(check_optional_vector(j, &p->bias, "bias", *width));
    SG_TRY(check_activation(j, p->act));
    struct sg_slot want = {.kind = SG_SLOT_CONV, .heads = p->taps - 1, .width = (uint32_t)*width};
    return check_slot(j, p->slot, &want);
}

/* The number of value heads must be a multiple of the number of key heads. decay and dt have one
 * number per value head. */
static segue_status check_delta(const struct graph_check *j, uint64_t *width)
{
    const struct sg_delta *p = &j->op->u.delta;
    if (!p->k_heads || !p->v_heads || p->v_heads % p->k_heads || !p->dk || !p->dv)
        return op_fail(j, SEGUE_EFORMAT, "invalid head counts or widths: %u key heads, %u value heads, widths %u and %u",
                       p->k_heads,
                     p->v_heads, p->dk, p->dv);
    *width = (uint64_t)p->v_heads * p->dv;
    SG_TRY(check_input(j, 0, "q", (uint64_t)p->k_heads * p->dk));
    SG_TRY(check_input(j, 1, "k", (uint64_t)p->k_heads * p->dk));
    SG_TRY(check_input(j, 2, "v", *width));
    SG_TRY(check_input(j, 3, "a", p->v_heads));
    SG_TRY(check_input(j, 4, "b", p->v_heads));
    SG_TRY(check_vector(j, &p->decay, "decay", p->v_heads));
    SG_TRY(check_vector(j, &p->dt, "dt", p->v_heads));
    if (!(p->l2_eps >= 0)) return op_fail(j, SEGUE_EFORMAT, "l2_eps is negative");
    SG_TRY(check_finite(j, "l2_eps", p->l2_eps));
    struct sg_slot want = {.kind = SG_SLOT_DELTA, .heads = p->v_heads, .depth = p->dk, .width = p->dv};
    return check_slot(j, p->slot, &want);
}

/* Two inputs of the same width, which is the width of the result. */
static segue_status check_pair(const struct graph_check *j, const char *x, const char *y, uint64_t *width)
{
    SG_TRY(check_input(j, 0, x, 0));
    *width = j->op->in[0].width;
    return check_input(j, 1, y, *width);
}

/* The weight has one number per column, or a single number. */
static segue_status check_scale(const struct graph_check *j, uint64_t *width)
{
    const struct sg_scale *p = &j->op->u.scale;
    SG_TRY(check_input(j, 0, "x", 0));
    *width = j->op->in[0].width;
    if (p->weight.tensor < 0) return check_finite(j, "value", p->value);
    const struct sg_tensor *t = NULL;
    SG_TRY(check_tensor(j, &p->weight, "weight", &t));
    return check_vector(j, &p->weight, "weight", t->rows == 1 && t->cols == 1 ? 1 : *width);
}

/* Expert indices are stored as fp32, which represents integers exactly up to 2^24. */
static segue_status check_route(const struct graph_check *j, uint64_t *width)
{
    const struct sg_route *p = &j->op->u.route;
    if (!p->k || p->k > p->experts || p->experts > 1u << 24)
        return op_fail(j, SEGUE_EFORMAT, "cannot select %u of %u experts", p->k, p->experts);
    *width = 2 * (uint64_t)p->k;
    SG_TRY(check_input(j, 0, "logits", p->experts));
    SG_TRY(check_finite(j, "scale", p->scale));
    return check_optional_vector(j, &p->bias, "bias", p->experts);
}

/* Experts are stacked by rows: expert e has rows [e * ff, (e + 1) * ff) of gate and up. */
static segue_status check_experts(const struct graph_check *j, uint64_t *width)
{
    const struct sg_experts *p = &j->op->u.experts;
    if (!p->experts || !p->k || p->k > p->experts || !p->ff)
        return op_fail(j, SEGUE_EFORMAT, "cannot select %u of %u experts with %u columns", p->k, p->experts, p->ff);
    SG_TRY(check_input(j, 0, "x", 0));
    SG_TRY(check_input(j, 1, "routing", 2 * (uint64_t)p->k));
    SG_TRY(check_matrix(j, &p->gate, "gate", (uint64_t)p->experts * p->ff, j->op->in[0].width));
    SG_TRY(check_matrix(j, &p->up, "up", (uint64_t)p->experts * p->ff, j->op->in[0].width));
    *width = p->down.rows / p->experts;
    SG_TRY(check_matrix(j, &p->down, "down", *width * p->experts, p->ff));
    return check_activation(j, p->act);
}

/* The input must have T rows: `rows` cannot be applied twice. */
static segue_status check_rows(const struct graph_check *j, uint64_t *width)
{
    SG_TRY(check_input(j, 0, "x", 0));
    *width = j->op->in[0].width;
    return j->g->values[j->op->in[0].value].wanted ? op_fail(j, SEGUE_EINTERNAL, "rows after rows") : SEGUE_OK;
}

/* A collective of one rank would be useless and is refused. */
static segue_status check_join(const struct graph_check *j, uint64_t *width)
{
    const struct sg_join *p = &j->op->u.join;
    SG_TRY(check_input(j, 0, "x", 0));
    *width = p->sum ? j->op->in[0].width : (uint64_t)j->op->in[0].width * p->ranks;
    return p->ranks > 1 ? SEGUE_OK : op_fail(j, SEGUE_EINTERNAL, "%u ranks, expected at least 2", p->ranks);
}

/* Dispatch on the op code. */
static segue_status check_code(const struct graph_check *j, uint64_t *width)
{
    switch (j->op->code) {
    case SG_OP_EMBED: return check_embed(j, width);
    case SG_OP_NORM: return check_norm(j, width);
    case SG_OP_LINEAR: return check_linear(j, width);
    case SG_OP_ROPE: return check_rope(j, width);
    case SG_OP_ATTEND: return check_attend(j, width);
    case SG_OP_CONV: return check_conv(j, width);
    case SG_OP_DELTA: return check_delta(j, width);
    case SG_OP_GLU: SG_TRY(check_activation(j, j->op->u.glu.act)); return check_pair(j, "gate", "up", width);
    case SG_OP_ACT:
        SG_TRY(check_activation(j, j->op->u.act.act));
        SG_TRY(check_input(j, 0, "x", 0));
        *width = j->op->in[0].width;
        return SEGUE_OK;
    case SG_OP_ADD: return check_pair(j, "x", "y", width);
    case SG_OP_SCALE: return check_scale(j, width);
    case SG_OP_ROUTE: return check_route(j, width);
    case SG_OP_EXPERTS: return check_experts(j, width);
    case SG_OP_ROWS: return check_rows(j, width);
    case SG_OP_JOIN: return check_join(j, width);
    default: return op_fail(j, SEGUE_EINTERNAL, "code %d is unknown", (int)j->op->code);
    }
}

segue_status sg_op_check(const struct sg_graph *g, uint32_t index, segue_error *err)
{
    /* The result value is checked first, because the rules of the ops read its kind of rows. */
    struct graph_check j = {.g = g, .op = &g->ops[index], .index = index, .err = err};
    uint64_t width = 0;
    int32_t out = j.op->out;
    if (out < 0 || (uint32_t)out >= g->values_n || g->values[out].op != (int32_t)index ||
        g->values[out].kind != SG_VALUE_ROWS)
        return op_fail(&j, SEGUE_EINTERNAL, "result: value %d is not computed by this op", out);
    SG_TRY(check_code(&j, &width));
    if (g->values[out].width != width)
        return op_fail(&j, SEGUE_EINTERNAL, "result has %u columns, expected %llu", g->values[out].width,
                     (unsigned long long)width);
    if (j.op->code == SG_OP_ROWS && !g->values[out].wanted)
        return op_fail(&j, SEGUE_EINTERNAL, "the result of rows has rows for all tokens");
    if (j.op->layer >= 0 && g->layer_to &&
        ((uint32_t)j.op->layer < g->layer_from || (uint32_t)j.op->layer >= g->layer_to))
        return op_fail(&j, SEGUE_EINTERNAL, "it is outside of the graph's layers [%u, %u)", g->layer_from, g->layer_to);
    return SEGUE_OK;
}

/* --- the whole graph --- */

/* Inputs are values without an op, outputs are ROWS values computed by an op. Names must be unique:
 * callers look outputs up by name. */
static segue_status check_ports(const struct sg_graph *g, const struct sg_port *ports, uint32_t n,
                                const char *what, int inputs, segue_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_port *p = &ports[i];
        if (!p->name || !*p->name || p->value < 0 || (uint32_t)p->value >= g->values_n)
            return sg_fail(err, SEGUE_EINTERNAL, "check graph: %s %u: value %d is not defined; report this",
                           what, i, p->value);
        if ((inputs != 0) != (g->values[p->value].op < 0) ||
            (!inputs && g->values[p->value].kind != SG_VALUE_ROWS))
            return sg_fail(err, SEGUE_EINTERNAL,
                           "check graph: %s %s: value %d has the wrong kind; report this", what, p->name,
                           p->value);
        for (uint32_t k = 0; k < i; k++)
            if (!strcmp(ports[k].name, p->name))
                return sg_fail(err, SEGUE_EINTERNAL, "check graph: duplicate %s %s; report this", what,
                               p->name);
    }
    return SEGUE_OK;
}

/* A graph has the input "tokens", the input "rows", or both; the name must match the kind. */
static segue_status check_inputs(const struct sg_graph *g, segue_error *err)
{
    SG_TRY(check_ports(g, g->inputs, g->inputs_n, "input", 1, err));
    if (!g->inputs_n) return sg_fail(err, SEGUE_EINTERNAL, "check graph: no input; report this");
    for (uint32_t i = 0; i < g->inputs_n; i++) {
        const struct sg_value *v = &g->values[g->inputs[i].value];
        const char *name = v->kind == SG_VALUE_TOKENS ? "tokens" : "rows";
        if (strcmp(g->inputs[i].name, name) || v->wanted || !v->width)
            return sg_fail(err, SEGUE_EINTERNAL, "check graph: input %s: its name should be %s; report this",
                           g->inputs[i].name, name);
    }
    return SEGUE_OK;
}

/* Number of ops that use the slot. */
static uint32_t slot_uses(const struct sg_graph *g, int32_t slot)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        if (op->code == SG_OP_ATTEND) n += (op->u.attend.slot_k == slot) + (op->u.attend.slot_v == slot);
        if (op->code == SG_OP_CONV) n += op->u.conv.slot == slot;
        if (op->code == SG_OP_DELTA) n += op->u.delta.slot == slot;
    }
    return n;
}

/* Checks, in this order: inputs, one definition for each value, every op, one user for each slot (two would write
 * it twice per run), outputs. */
segue_status sg_graph_check(const struct sg_graph *g, segue_error *err)
{
    SG_TRY(check_inputs(g, err));
    /* Every value must be an input or the result of exactly one op; otherwise a unit would read
     * uninitialised memory. */
    uint32_t defined = 0;
    for (uint32_t i = 0; i < g->values_n; i++) {
        if (g->values[i].op < 0 || (uint32_t)g->values[i].op >= g->ops_n) defined += g->values[i].op < 0;
        else defined += g->ops[g->values[i].op].out == (int32_t)i;
    }
    if (defined != g->values_n)
        return sg_fail(err, SEGUE_EINTERNAL, "check graph: %u of %u values have no definition; report this",
                       g->values_n - defined, g->values_n);
    for (uint32_t i = 0; i < g->ops_n; i++) SG_TRY(sg_op_check(g, i, err));
    for (uint32_t i = 0; i < g->slots_n; i++)
        if (slot_uses(g, (int32_t)i) != 1)
            return sg_fail(err, SEGUE_EINTERNAL, "check graph: slot %u is used by %u ops; report this", i,
                           slot_uses(g, (int32_t)i));
    SG_TRY(check_ports(g, g->outputs, g->outputs_n, "output", 0, err));
    if (!g->outputs_n) return sg_fail(err, SEGUE_EINTERNAL, "check graph: no output; report this");
    /* vocab is what callers use to size logit buffers. */
    int32_t logits = sg_graph_output(g, "logits");
    uint32_t vocab = logits < 0 ? 0 : g->values[g->outputs[logits].value].width;
    if (vocab != g->vocab)
        return sg_fail(err, SEGUE_EINTERNAL, "check graph: vocab is %u, logits have %u columns; report this",
                       g->vocab, vocab);
    return SEGUE_OK;
}
