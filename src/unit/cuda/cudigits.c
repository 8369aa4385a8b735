/* cudigits.c: when a product of one row with large weights takes k_digits.cu, and what that kernel is told.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/cu.h"

/* Columns: all warps' shares of x are whole groups of 128, of scales whole 16 bytes; of x at most; with a norm or a convolution. */
enum { EACH = 1024, EACH_Q8 = 2048, WIDEST = 16384, NORMED = 4096, LEAST = 2048 };

static int norm_fits(const struct ck_norm *n, uint32_t k)
{
    if (!n->present) return 1;
    if (k > NORMED || n->layer || n->bias || !cu_aligned(n->weight) || !cu_aligned(n->gate.p)) return 0;
    return n->groups == 1 ? !n->gate.p : k / n->groups == 128;
}

/* Tiles of all segments; with glu a tile has rows of both. */
static void deal_tiles(struct ck_stream *a, uint32_t sms, uint32_t *blocks)
{
    uint32_t outs = a->g.glu ? 8 : 16;
    a->split_log = 3;
    a->per_log = 4;
    a->outs_log = a->g.glu ? 3 : 4;
    for (uint32_t i = 0; i < CK_SEGMENTS; i++) {
        a->first[i] = i < a->g.segments && (!a->g.glu || !i) ? a->tiles : UINT32_MAX;
        if (a->first[i] != UINT32_MAX) a->tiles += (a->g.segment[i].n + outs - 1) / outs;
    }
    *blocks = a->tiles < sms ? a->tiles : sms;
}

/* Measured: Q8_0 in place of k_wide.cu, 16 bits in place of k_stream.cu and, with rows of 2,048, of both. */
static int pays(uint32_t kind, uint32_t k, int streamed) { return kind == CK_Q8 ? !streamed : k == LEAST || (k > LEAST && streamed); }

/* Whether one op alone reads a value. */
static int read_once(const struct sg_graph *g, int32_t value, const struct sg_op *by)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (g->ops[i].in[k].value == value && &g->ops[i] != by) return 0;
    for (uint32_t i = 0; i < g->outputs_n; i++)
        if (g->outputs[i].value == value) return 0;
    return 1;
}

/* 1 + the part of a step that may leave as its SiLU: the gate of a norm two steps on, behind the delta rule, in a product that comes
 * here as well. */
static uint32_t gate_of(const struct cu_pass *p, const struct cu_step *s, uint32_t k)
{
    const struct cu_step *end = p->program->fused + p->program->fused_n, *next = s + 2;
    if (s < p->program->fused || next >= end || s->glu || next->kind != CU_STEP_PRODUCT || !next->norm || next->glu || s[1].kind != CU_STEP_OP || s[1].op->code != SG_OP_DELTA)
        return 0;
    const struct ck_weight *w = &cu_weight_of(p->program->weights, p->program->base.graph->tensors[next->parts[0]->u.linear.weight.tensor])->w;
    struct ck_norm n = cu_norm_of(p, next->norm);
    struct ck_view x = cu_view_of(p, &next->norm->in[0]);
    if (w->cols != k || k != LEAST || (w->kind != CK_BF16 && w->kind != CK_F16) || !n.gate.p || !norm_fits(&n, k) || !cu_aligned(x.p)) return 0;
    for (uint32_t i = 0; i < s->parts_n; i++) {
        const struct sg_operand *gate = &next->norm->in[1];
        if (s->parts[i]->out == gate->value && !gate->at && (!s->after || s->after_part != i) && read_once(p->program->base.graph, gate->value, next->norm)) return 1 + i;
    }
    return 0;
}

int cu_digits_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, int streamed, struct cu_streamed *out)
{
    const struct sg_unit *u = p->program->base.unit;
    const struct ck_weight *w = &cu_weight_of(p->program->weights, p->program->base.graph->tensors[s->parts[0]->u.linear.weight.tensor])->w;
    uint32_t width = g->k / 8, form = width <= 4 * 128 ? 0 : width <= 8 * 128 ? 1 : 2;
    if (!u->k.digits[w->kind][form] || !pays(w->kind, g->k, streamed) || g->k % (w->kind == CK_Q8 ? EACH_Q8 : EACH) || g->k > WIDEST || !cu_aligned(g->x.p) ||
        !norm_fits(&g->norm, g->k))
        return 0;
    for (uint32_t i = 0; i < g->segments; i++)
        if (!cu_aligned(g->segment[i].data) || !cu_aligned(g->segment[i].scales)) return 0;
    *out = (struct cu_streamed){.a = {.g = *g, .scale_bytes = w->kind == CK_Q8 ? g->scale_pitch * 2 : 0}, .fn = u->k.digits[w->kind][form], .threads = CK_DIGITS_THREADS};
    cu_after_of(p, s, &out->a.after); /* the convolution's memory is its one span's */
    if (out->a.after.kind == CK_AFTER_CONV && (g->k > NORMED || out->a.after.taps > CK_STREAM_TAPS)) return 0;
    out->a.g.rows = 1;
    out->a.gates = gate_of(p, s, g->k);
    out->a.gate_done = s->norm && g->norm.gate.p && p->gate == 1 + (uint32_t)s->norm->in[1].value;
    deal_tiles(&out->a, p->sms, &out->blocks);
    out->a.stages = w->kind == CK_Q8 ? 3 : 0;
    uint32_t all = (out->a.tiles + out->blocks - 1) / out->blocks * ((width * 2 + 127) / 128), steps = CK_DIGITS_STEPS;
    if (w->kind != CK_Q8 && all <= CK_DIGITS_EARLY) steps = all; /* the next product's blocks come beside these */
    out->a.stage_bytes = steps * 2048 + out->a.stages * 512;
    out->shared = CK_DIGITS_BYTES(w->kind, g->k, CK_DIGITS_TURN(out->a.tiles, out->blocks), out->a.stage_bytes);
    return out->shared + CU_DIGITS_STATIC <= u->shared_max;
}
