/* fuse.c: converts a graph to two lists of steps: `plain`, one op per step, and `fused`. Fused steps are a norm with the
 * linears that read it (and their gated activation, activation or convolution), and attention with norm and rope of q and k
 * and the K/V store. A fused step runs in place of its first product, so the live ranges of its operands are extended over the
 * whole step. Then each value gets a block of columns; values that are not live at the same time share columns. No GPU memory
 * is allocated and nothing is launched here. SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/compile/program.h"

struct cu_fuser {
    const struct sg_graph *g;
    struct sg_program *p;
    uint32_t *begin, *end, *readers; /* [values_n] live range, as indices of ops; inputs of ops that read it */
    uint8_t *is_output;              /* [values_n] 1: the logits, which are read after the pass */
    uint8_t *absorbed;               /* [ops_n] 1: computed by a step that was built for another op */
    const struct sg_op **norm_of;    /* [values_n] the norm that produces it, when its readers compute that; NULL: none */
    uint32_t *block;                 /* [values_n] columns of the block that begins with it; 0: inside of another value's block */
    int32_t *joined;                 /* [values_n] that other value, or -1 */
};

/* The op that computes a value; NULL: an input of the graph, or no value. */
static const struct sg_op *producer(const struct cu_fuser *f, int32_t value)
{
    if (value < 0 || f->g->values[value].op < 0) return NULL;
    return &f->g->ops[f->g->values[value].op];
}

static uint32_t width_of(const struct cu_fuser *f, int32_t value) { return f->g->values[value].width; }

/* 1: the operand is all columns of its value. */
static int is_whole(const struct cu_fuser *f, const struct sg_operand *x)
{
    return x->value >= 0 && x->at == 0 && x->width == f->g->values[x->value].width;
}

/* 1: the same columns of the same value. */
static int same_operand(const struct sg_operand *a, const struct sg_operand *b)
{
    return a->value == b->value && a->at == b->at && a->width == b->width;
}

/* Index of an op in the graph; ops are in execution order. */
static uint32_t index_of(const struct cu_fuser *f, const struct sg_op *op) { return (uint32_t)(op - f->g->ops); }

/* Extends the live range of a value to op i. */
static void extend_live(struct cu_fuser *f, int32_t value, uint32_t i)
{
    if (value < 0) return;
    if (i < f->begin[value]) f->begin[value] = i;
    if (i > f->end[value]) f->end[value] = i;
}

/* The inputs of op are live at op i. */
static void extend_live_inputs(struct cu_fuser *f, const struct sg_op *op, uint32_t i)
{
    for (int k = 0; k < SG_OP_INPUTS; k++) extend_live(f, op->in[k].value, i);
}

/* Live ranges and readers of the unfused graph. The logits stay live to the end of the pass. */
static void find_live_ranges(struct cu_fuser *f)
{
    const struct sg_graph *g = f->g;
    for (uint32_t v = 0; v < g->values_n; v++) {
        f->begin[v] = g->values[v].op < 0 ? 0 : (uint32_t)g->values[v].op;
        f->end[v] = f->begin[v];
    }
    for (uint32_t i = 0; i < g->ops_n; i++) {
        extend_live_inputs(f, &g->ops[i], i);
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (g->ops[i].in[k].value >= 0) f->readers[g->ops[i].in[k].value]++;
    }
    int32_t logits = sg_graph_output(g, "logits");
    if (logits >= 0) f->end[g->outputs[logits].value] = g->ops_n;
    if (logits >= 0) f->is_output[g->outputs[logits].value] = 1;
}

/* --- fusions --- */

/* The uploaded weight of a linear. */
static const struct cu_tensor *weight(const struct cu_fuser *f, const struct sg_op *linear)
{
    return cu_weight_of(f->p->weights, f->g->tensors[linear->u.linear.weight.tensor]);
}

/* 1: only linears read the norm's result, each all of it, and the norm is of a kind that products compute: of the whole row, or
 * RMS by groups without bias (also gated). */
static int norm_fits(const struct cu_fuser *f, const struct sg_op *op)
{
    const struct sg_norm *n = &op->u.norm;
    uint32_t linears = 0;
    int whole = n->groups == 1 && op->in[1].value < 0;
    int grouped = n->groups > 1 && n->kind == SG_NORM_RMS && n->bias.tensor < 0;
    if (f->is_output[op->out] || (!whole && !grouped)) return 0;
    for (uint32_t i = index_of(f, op) + 1; i < f->g->ops_n; i++)
        if (f->g->ops[i].code == SG_OP_LINEAR && f->g->ops[i].in[0].value == op->out) linears += is_whole(f, &f->g->ops[i].in[0]);
    return linears && linears == f->readers[op->out];
}

/* 1: linear `op` can be computed in one product with `first`, at the position of op `at`: it has the same input and a weight of
 * the same layout, and what is added to it exists by then. any_packed 1: packed weights may have different storages. */
static int can_join(const struct cu_fuser *f, const struct sg_op *first, const struct sg_op *op, uint32_t at, int any_packed)
{
    const struct cu_tensor *a = weight(f, first), *b = weight(f, op);
    const struct sg_op *added = producer(f, op->in[1].value);
    if (op->code != SG_OP_LINEAR || f->absorbed[index_of(f, op)] || !same_operand(&first->in[0], &op->in[0])) return 0;
    if (added && index_of(f, added) >= at) return 0;
    if (any_packed && a->w.kind >= CK_PACKED && b->w.kind >= CK_PACKED) return 1;
    return a->w.kind == b->w.kind && a->w.pitch == b->w.pitch && a->w.scale_pitch == b->w.scale_pitch && a->w.group == b->w.group;
}

/* The gated activation of `first` and another linear when nothing else reads either, so that one product can compute all three;
 * or NULL. */
static const struct sg_op *find_glu(const struct cu_fuser *f, const struct sg_op *first)
{
    for (uint32_t i = index_of(f, first) + 1; i < f->g->ops_n; i++) {
        const struct sg_op *op = &f->g->ops[i], *gate, *up;
        if (op->code != SG_OP_GLU) continue;
        gate = producer(f, op->in[0].value);
        up = producer(f, op->in[1].value);
        if (!gate || !up || gate == up || (gate != first && up != first)) continue;
        /* Neither may have a residual: the fused product would add it after the activation. */
        const struct sg_op *other = gate == first ? up : gate;
        int fits = other->code == SG_OP_LINEAR && gate->in[1].value < 0 && up->in[1].value < 0 && is_whole(f, &op->in[0]) &&
                   is_whole(f, &op->in[1]) && f->readers[gate->out] == 1 && f->readers[up->out] == 1 &&
                   !f->is_output[gate->out] && !f->is_output[up->out] && can_join(f, first, other, index_of(f, first), 0);
        return fits ? op : NULL;
    }
    return NULL;
}

/* Sets s->after: an activation or convolution that is the only reader of a part. The product computes it after that part. An
 * activation only when the product has one part. */
static void find_epilogue(struct cu_fuser *f, struct cu_step *s, uint32_t at)
{
    /* Convolutions of more taps are not in the product kernels. */
    for (uint32_t i = at + 1; i < f->g->ops_n && !s->after; i++) {
        const struct sg_op *op = &f->g->ops[i];
        if ((op->code != SG_OP_ACT && op->code != SG_OP_CONV) || f->absorbed[i] || !is_whole(f, &op->in[0])) continue;
        if (op->code == SG_OP_ACT && s->parts_n > 1) continue;
        if (op->code == SG_OP_CONV && op->u.conv.taps > CK_STREAM_TAPS) continue;
        for (uint32_t k = 0; k < s->parts_n; k++) {
            int32_t value = s->parts[k]->out;
            if (value != op->in[0].value || f->readers[value] != 1 || f->is_output[value]) continue;
            s->after = op;
            s->after_part = k;
        }
    }
    if (!s->after) return;
    f->absorbed[index_of(f, s->after)] = 1;
    extend_live(f, s->after->out, at);
    extend_live_inputs(f, s->after, index_of(f, s->after));
}

/* Builds the step of a linear: with the gated activation that reads it, or else with all other linears of the same input, and an
 * epilogue. It runs at the position of `first`, so the inputs of all parts and of the norm must be live there, and their results
 * from there on. */
static void add_product(struct cu_fuser *f, struct cu_step *s, const struct sg_op *first)
{
    uint32_t at = index_of(f, first);
    *s = (struct cu_step){.kind = CU_STEP_PRODUCT, .op = first, .parts = {first}, .parts_n = 1};
    s->norm = f->norm_of[first->in[0].value];
    s->glu = find_glu(f, first);
    if (s->glu) {
        s->parts[0] = producer(f, s->glu->in[0].value);
        s->parts[1] = producer(f, s->glu->in[1].value);
        s->parts_n = 2;
        f->absorbed[index_of(f, s->glu)] = 1;
        extend_live(f, s->glu->out, at);
    }
    /* A linear that has a gated activation with another one gets a step with that. */
    for (uint32_t i = at + 1; i < f->g->ops_n && !s->glu && s->parts_n < CK_SEGMENTS; i++) {
        const struct sg_op *op = &f->g->ops[i];
        if (op->code == SG_OP_LINEAR && can_join(f, first, op, at, 1) && !find_glu(f, op)) s->parts[s->parts_n++] = op;
    }
    if (!s->glu) find_epilogue(f, s, at);
    for (uint32_t k = 0; k < s->parts_n; k++) {
        f->absorbed[index_of(f, s->parts[k])] = 1;
        extend_live(f, s->parts[k]->out, at);
        extend_live(f, s->parts[k]->out, s->glu ? index_of(f, s->glu) : at);
        extend_live_inputs(f, s->parts[k], at);
        if (s->norm) extend_live_inputs(f, s->norm, index_of(f, s->parts[k]));
    }
    if (s->norm) extend_live_inputs(f, s->norm, at);
}

/* 1: the operand is the result of a rope that nothing else reads. *norm: the RMS norm per head before it, under the same
 * condition, or NULL. */
static int find_rope(const struct cu_fuser *f, const struct sg_operand *x, const struct sg_op **rope, const struct sg_op **norm)
{
    const struct sg_op *op = producer(f, x->value);
    if (!op || op->code != SG_OP_ROPE || !is_whole(f, x) || f->readers[op->out] != 1 || f->is_output[op->out] ||
        op->u.rope.sign != 1)
        return 0;
    *rope = op;
    const struct sg_op *before = producer(f, op->in[0].value);
    *norm = NULL;
    if (before && before->code == SG_OP_NORM && is_whole(f, &op->in[0]) && f->readers[before->out] == 1 &&
        !f->is_output[before->out] && before->u.norm.groups == op->u.rope.heads && before->u.norm.kind == SG_NORM_RMS &&
        before->u.norm.bias.tensor < 0 && before->in[1].value < 0)
        *norm = before;
    return 1;
}

/* Builds the step of an attention op. It is fused (CU_STEP_ATTEND) when q and k come from ropes of the same table and of the head
 * width; then the inputs before norm and rope stay live until here. */
static void add_attend(struct cu_fuser *f, struct cu_step *s, const struct sg_op *op)
{
    uint32_t at = index_of(f, op);
    *s = (struct cu_step){.kind = CU_STEP_OP, .op = op};
    const struct sg_attend *a = &op->u.attend;
    if (a->d > 512 || !find_rope(f, &op->in[0], &s->q_rope, &s->q_norm) || !find_rope(f, &op->in[1], &s->k_rope, &s->k_norm) ||
        s->q_rope->u.rope.table != s->k_rope->u.rope.table || s->q_rope->u.rope.head_width != a->d ||
        s->k_rope->u.rope.head_width != a->d)
        return;
    s->kind = CU_STEP_ATTEND;
    s->attend = op;
    const struct sg_op *raw[] = {s->q_norm ? s->q_norm : s->q_rope, s->k_norm ? s->k_norm : s->k_rope};
    for (int i = 0; i < 2; i++) extend_live_inputs(f, raw[i], at);
}

/* Before steps are built: marks norms that products compute, and norms and ropes that attention steps compute. */
static void mark_absorbed(struct cu_fuser *f)
{
    for (uint32_t i = 0; i < f->g->ops_n; i++) {
        const struct sg_op *op = &f->g->ops[i];
        if (op->code == SG_OP_NORM && norm_fits(f, op)) {
            f->norm_of[op->out] = op;
            f->absorbed[i] = 1;
            /* A product that does not compute norms writes the value to memory. */
            extend_live(f, op->out, i);
        }
        struct cu_step s;
        if (op->code != SG_OP_ATTEND) continue;
        add_attend(f, &s, op);
        if (s.kind != CU_STEP_ATTEND) continue;
        const struct sg_op *absorbed_ops[] = {s.q_norm, s.k_norm, s.q_rope, s.k_rope};
        for (int k = 0; k < 4; k++)
            if (absorbed_ops[k]) f->absorbed[index_of(f, absorbed_ops[k])] = 1;
    }
}

/* Both lists in one pass over the ops: plain has every op, fused those that no other step computes. */
static void find_steps(struct cu_fuser *f)
{
    struct sg_program *p = f->p;
    mark_absorbed(f);
    for (uint32_t i = 0; i < f->g->ops_n; i++) {
        const struct sg_op *op = &f->g->ops[i];
        p->plain[p->plain_n++] = (struct cu_step){.kind = op->code == SG_OP_LINEAR ? CU_STEP_PRODUCT : CU_STEP_OP,
                                                  .op = op,
                                                  .parts = {op},
                                                  .parts_n = 1};
        if (f->absorbed[i]) continue;
        struct cu_step *s = &p->fused[p->fused_n++];
        if (op->code == SG_OP_LINEAR)
            add_product(f, s, op);
        else if (op->code == SG_OP_ATTEND)
            add_attend(f, s, op);
        else
            *s = (struct cu_step){.kind = CU_STEP_OP, .op = op};
    }
}

/* Sets feeds_next: a gated activation that only the next product reads is stored in 16 bits, as that product reads it. The 16-bit
 * rows may be written over the gate's columns (issue_glu.c), which therefore stay live until the next product. */
static void find_feeds_next(struct cu_fuser *f)
{
    for (uint32_t i = 0; i + 1 < f->p->fused_n; i++) {
        struct cu_step *s = &f->p->fused[i], *next = s + 1;
        if (s->kind != CU_STEP_PRODUCT || next->kind != CU_STEP_PRODUCT || !s->glu || next->norm) continue;
        int32_t value = s->glu->out;
        uint32_t kind = weight(f, s->parts[0])->w.kind, other = weight(f, next->parts[0])->w.kind;
        s->feeds_next = !f->is_output[value] && f->readers[value] == next->parts_n && next->op->in[0].value == value &&
                        is_whole(f, &next->op->in[0]) && kind != CK_F32 && other != CK_F32 &&
                        (kind == CK_F16) == (other == CK_F16);
        for (uint32_t k = 0; s->feeds_next && k < next->parts_n; k++)
            extend_live(f, s->glu->in[0].value, index_of(f, next->parts[k]));
    }
}

/* 1: an output of the graph, logits or another value that a batch may request. */
static int is_graph_output(const struct cu_fuser *f, int32_t value)
{
    for (uint32_t i = 0; i < f->g->outputs_n; i++)
        if (f->g->outputs[i].value == value) return 1;
    return 0;
}

/* 1: the only reader of the value is a norm by groups of 128, as its gate, inside a product of 16-bit or quantised weights. The
 * kernels that compute such a norm also read a bf16 gate. */
static int is_only_gate(const struct cu_fuser *f, int32_t value)
{
    for (uint32_t i = 0; i < f->p->fused_n; i++) {
        const struct cu_step *s = &f->p->fused[i];
        if (s->kind != CU_STEP_PRODUCT || !s->norm || s->norm->in[1].value != value) continue;
        const struct sg_op *n = s->norm;
        return f->readers[value] == 1 && n->u.norm.groups > 1 && width_of(f, n->out) == 128 * n->u.norm.groups &&
               is_whole(f, &n->in[1]) && weight(f, s->parts[0])->w.kind != CK_F32 &&
               f->g->values[s->op->out].wanted == f->g->values[value].wanted;
    }
    return 0;
}

/* 1: every part of the product is an input of its convolution or delta rule, or the gate of a norm, so that all may be stored in
 * bf16. Rows must be multiples of 16 bytes. */
static int can_be_bf16(const struct cu_fuser *f, const struct cu_step *s)
{
    for (uint32_t i = 0; i < s->parts_n; i++) {
        int32_t v = s->parts[i]->out;
        int feeds_delta = v == s->after->in[0].value ||
                     ((v == s->delta->in[3].value || v == s->delta->in[4].value) && f->readers[v] == 1);
        if (is_graph_output(f, v) || width_of(f, v) % 8 || (!feeds_delta && !is_only_gate(f, v))) return 0;
    }
    return 1;
}

/* Links the convolution after product s to the delta rule that is its only reader, as q, k and v. Chunked kernels compute the
 * convolution in the step of the delta rule, so its input stays live until then. */
static void link_delta(struct cu_fuser *f, struct cu_step *s)
{
    const struct sg_op *conv = s->after;
    for (uint32_t i = 0; i < f->p->fused_n; i++) {
        struct cu_step *d = &f->p->fused[i];
        if (d->kind != CU_STEP_OP || d->op->code != SG_OP_DELTA || is_graph_output(f, conv->out)) continue;
        if (d->op->in[0].value != conv->out || d->op->in[1].value != conv->out || d->op->in[2].value != conv->out ||
            f->readers[conv->out] != 3)
            continue;
        d->conv = conv;
        s->delta = d->op;
        extend_live(f, conv->in[0].value, index_of(f, d->op));
    }
}

/* parts_bf16 needs all links: another convolution may read a part. */
static void link_deltas(struct cu_fuser *f)
{
    for (uint32_t i = 0; i < f->p->fused_n; i++)
        if (f->p->fused[i].after && f->p->fused[i].after->code == SG_OP_CONV) link_delta(f, &f->p->fused[i]);
    for (uint32_t i = 0; i < f->p->fused_n; i++)
        if (f->p->fused[i].delta) f->p->fused[i].parts_bf16 = can_be_bf16(f, &f->p->fused[i]);
}

/* Sets s->gate: product, delta rule, product, where the last one's norm is gated by a part of the first. The part may be stored
 * after SiLU if that norm is its only reader and only this product computes the norm. Not before the output head, whose candidate
 * filter computes norms separately. */
static void find_silu_gate(const struct cu_fuser *f, struct cu_step *s)
{
    const struct cu_step *rule = s + 1, *next = s + 2;
    if (s->kind != CU_STEP_PRODUCT || s->glu || rule->kind != CU_STEP_OP || rule->op->code != SG_OP_DELTA) return;
    if (next->kind != CU_STEP_PRODUCT || next->glu || !next->norm || f->is_output[next->op->out] ||
        f->readers[next->norm->out] != next->parts_n)
        return;
    const struct sg_operand *gate = &next->norm->in[1];
    if (gate->value < 0 || !is_whole(f, gate) || is_graph_output(f, gate->value) || f->readers[gate->value] != 1) return;
    for (uint32_t i = 0; i < s->parts_n; i++)
        if (s->parts[i]->out == gate->value) s->gate = 1 + i;
}

/* --- value locations --- */

/* Places the results of a product's parts side by side, so that one GEMM can write all of them (issue_gemm.c). The block of the
 * first part contains all, and is live as long as any of them. Nothing is joined when a part is an output of the graph, which is
 * copied as a contiguous matrix. */
static void join_parts(const struct cu_fuser *f, const struct cu_step *s)
{
    struct cu_value_loc *locs = f->p->value_locs;
    int32_t first = s->parts[0]->out;
    uint32_t all = 0;
    for (uint32_t i = 0; i < s->parts_n; i++) {
        int32_t v = s->parts[i]->out;
        if (is_graph_output(f, v) || width_of(f, v) % 4 || v < first || f->g->values[v].wanted != f->g->values[first].wanted)
            return;
        all += width_of(f, v);
    }
    f->block[first] = all;
    for (uint32_t i = 0, inside = 0; i < s->parts_n; i++) {
        int32_t v = s->parts[i]->out;
        locs[v].inside = inside;
        locs[v].stride = all;
        inside += width_of(f, v);
        if (!i) continue;
        f->block[v] = 0;
        f->joined[v] = first;
        if (f->begin[v] < f->begin[first]) f->begin[first] = f->begin[v];
        if (f->end[v] > f->end[first]) f->end[first] = f->end[v];
    }
}

/* First fit: the lowest column from which a block of v's size overlaps with no block of a smaller value that is live at the same
 * time, in the same buffer. Blocks are multiples of 32 columns. */
static uint32_t find_columns(const struct cu_fuser *f, uint32_t v)
{
    const struct cu_value_loc *locs = f->p->value_locs;
    uint32_t at = 0, width = (f->block[v] + 31) / 32 * 32;
    for (int moved = 1; moved;) {
        moved = 0;
        for (uint32_t o = 0; o < v; o++) {
            uint32_t other = (f->block[o] + 31) / 32 * 32;
            if (!other || f->g->values[o].wanted != f->g->values[v].wanted || f->begin[o] > f->end[v] || f->end[o] < f->begin[v])
                continue;
            if (locs[o].at >= at + width || locs[o].at + other <= at) continue;
            at = locs[o].at + other;
            moved = 1;
        }
    }
    return at;
}

/* When all rows are selected, op `rows` copies nothing: its readers read its input, which stays live as long as they need it. */
static void alias_selected_rows(struct cu_fuser *f)
{
    for (uint32_t i = 0; i < f->g->ops_n; i++) {
        const struct sg_op *op = &f->g->ops[i];
        if (op->code != SG_OP_ROWS || is_graph_output(f, op->out)) continue;
        f->p->value_locs[op->out].from = op->in[0].value;
        f->p->value_locs[op->out].from_at = op->in[0].at;
        extend_live(f, op->in[0].value, f->end[op->out]);
    }
}

/* Values are placed in ascending order. Those with a row per token and those with a row per wanted row have separate buffers,
 * hence columns[2]. */
static void assign_columns(struct cu_fuser *f)
{
    struct cu_value_loc *locs = f->p->value_locs;
    for (uint32_t v = 0; v < f->g->values_n; v++) {
        f->block[v] = locs[v].stride = f->g->values[v].width;
        f->joined[v] = locs[v].from = -1;
    }
    alias_selected_rows(f);
    for (uint32_t i = 0; i < f->p->fused_n; i++)
        if (f->p->fused[i].kind == CU_STEP_PRODUCT && f->p->fused[i].parts_n > 1) join_parts(f, &f->p->fused[i]);
    for (uint32_t v = 0; v < f->g->values_n; v++) {
        uint32_t wanted = f->g->values[v].wanted, width = (f->block[v] + 31) / 32 * 32;
        locs[v].wanted = wanted;
        locs[v].at = f->joined[v] >= 0 ? locs[f->joined[v]].at : find_columns(f, v);
        if (locs[v].at + width > f->p->columns[wanted]) f->p->columns[wanted] = locs[v].at + width;
    }
}

/* The order matters: steps extend live ranges, and columns are assigned from the final ones. */
segue_status cu_fuse(struct sg_program *p, segue_error *err)
{
    struct sg_arena arena = {0};
    struct cu_fuser f = {.g = p->base.graph, .p = p};
    f.begin = sg_arena_alloc(&arena, f.g->values_n * sizeof *f.begin);
    f.end = sg_arena_alloc(&arena, f.g->values_n * sizeof *f.end);
    f.readers = sg_arena_alloc(&arena, f.g->values_n * sizeof *f.readers);
    f.is_output = sg_arena_alloc(&arena, f.g->values_n);
    f.absorbed = sg_arena_alloc(&arena, f.g->ops_n);
    f.norm_of = sg_arena_alloc(&arena, f.g->values_n * sizeof(void *));
    f.block = sg_arena_alloc(&arena, f.g->values_n * sizeof *f.block);
    f.joined = sg_arena_alloc(&arena, f.g->values_n * sizeof *f.joined);
    int ok = f.begin && f.end && f.readers && f.is_output && f.absorbed && f.norm_of && f.block && f.joined;
    if (ok) {
        find_live_ranges(&f);
        find_steps(&f);
        find_feeds_next(&f);
        link_deltas(&f);
        for (uint32_t i = 0; i + 2 < p->fused_n; i++) find_silu_gate(&f, &p->fused[i]);
        assign_columns(&f);
    }
    sg_arena_free(&arena);
    return ok ? SEGUE_OK : sg_no_memory("program of cuda", f.g->values_n * 16, err);
}
