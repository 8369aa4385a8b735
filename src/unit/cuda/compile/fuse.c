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
    uint32_t *begin, *end, *readers; /* [values_n] first and last op that touches it; ops that read it */
    uint8_t *is_output;              /* [values_n] an output: must be there as it is */
    uint8_t *absorbed;               /* [ops_n] part of an earlier step */
    const struct sg_op **norm_of;    /* [values_n] the norm that products do themselves; NULL: none */
    uint32_t *piece;                 /* [values_n] columns of the piece that begins with it; 0: inside of another one's */
    int32_t *joined;                 /* [values_n] that one, or -1 */
};

static const struct sg_op *producer(const struct cu_fuser *f, int32_t value)
{
    if (value < 0 || f->g->values[value].op < 0) return NULL;
    return &f->g->ops[f->g->values[value].op];
}

static uint32_t width_of(const struct cu_fuser *f, int32_t value) { return f->g->values[value].width; }

static int is_whole(const struct cu_fuser *f, const struct sg_operand *x)
{
    return x->value >= 0 && x->at == 0 && x->width == f->g->values[x->value].width;
}

static int same_operand(const struct sg_operand *a, const struct sg_operand *b)
{
    return a->value == b->value && a->at == b->at && a->width == b->width;
}

static uint32_t index_of(const struct cu_fuser *f, const struct sg_op *op) { return (uint32_t)(op - f->g->ops); }

/* The value lives at op i too. */
static void extend_live(struct cu_fuser *f, int32_t value, uint32_t i)
{
    if (value < 0) return;
    if (i < f->begin[value]) f->begin[value] = i;
    if (i > f->end[value]) f->end[value] = i;
}

static void extend_live_inputs(struct cu_fuser *f, const struct sg_op *op, uint32_t i)
{
    for (int k = 0; k < SG_OP_INPUTS; k++) extend_live(f, op->in[k].value, i);
}

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

static const struct cu_tensor *weight(const struct cu_fuser *f, const struct sg_op *linear)
{
    return cu_weight_of(f->p->weights, f->g->tensors[linear->u.linear.weight.tensor]);
}

/* Only linears read the norm's value, each whole. */
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

/* May `op` join a product of `first` that runs at op `at`? */
static int may_join(const struct cu_fuser *f, const struct sg_op *first, const struct sg_op *op, uint32_t at)
{
    const struct cu_tensor *a = weight(f, first), *b = weight(f, op);
    const struct sg_op *added = producer(f, op->in[1].value);
    if (op->code != SG_OP_LINEAR || f->absorbed[index_of(f, op)] || !same_operand(&first->in[0], &op->in[0])) return 0;
    if (added && index_of(f, added) >= at) return 0;
    return a->w.kind == b->w.kind && a->w.pitch == b->w.pitch && a->w.scale_pitch == b->w.scale_pitch && a->w.group == b->w.group;
}

/* The gate's activation that alone reads both linears, or NULL. */
static const struct sg_op *find_glu(const struct cu_fuser *f, const struct sg_op *first)
{
    for (uint32_t i = index_of(f, first) + 1; i < f->g->ops_n; i++) {
        const struct sg_op *op = &f->g->ops[i], *gate, *up;
        if (op->code != SG_OP_GLU) continue;
        gate = producer(f, op->in[0].value);
        up = producer(f, op->in[1].value);
        if (!gate || !up || gate == up || (gate != first && up != first)) continue;
        const struct sg_op *other = gate == first ? up : gate;
        int fits = other->code == SG_OP_LINEAR && gate->in[1].value < 0 && up->in[1].value < 0 && is_whole(f, &op->in[0]) &&
                   is_whole(f, &op->in[1]) && f->readers[gate->out] == 1 && f->readers[up->out] == 1 &&
                   !f->is_output[gate->out] && !f->is_output[up->out] && may_join(f, first, other, index_of(f, first));
        return fits ? op : NULL;
    }
    return NULL;
}

/* The activation or convolution that alone reads a part of the product: done behind it. */
static void find_epilogue(struct cu_fuser *f, struct cu_step *s, uint32_t at)
{
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
    for (uint32_t i = at + 1; i < f->g->ops_n && !s->glu && s->parts_n < CK_SEGMENTS; i++) {
        const struct sg_op *op = &f->g->ops[i];
        if (op->code == SG_OP_LINEAR && may_join(f, first, op, at) && !find_glu(f, op)) s->parts[s->parts_n++] = op;
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

/* The rotation that alone makes this operand, and the norm of heads before it. */
static int find_turn(const struct cu_fuser *f, const struct sg_operand *x, const struct sg_op **rope, const struct sg_op **norm)
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

static void add_attend(struct cu_fuser *f, struct cu_step *s, const struct sg_op *op)
{
    uint32_t at = index_of(f, op);
    *s = (struct cu_step){.kind = CU_STEP_OP, .op = op};
    const struct sg_attend *a = &op->u.attend;
    if (a->d > 512 || !find_turn(f, &op->in[0], &s->q_rope, &s->q_norm) || !find_turn(f, &op->in[1], &s->k_rope, &s->k_norm) ||
        s->q_rope->u.rope.table != s->k_rope->u.rope.table || s->q_rope->u.rope.head_width != a->d ||
        s->k_rope->u.rope.head_width != a->d)
        return;
    s->kind = CU_STEP_ATTEND;
    s->attend = op;
    const struct sg_op *raw[] = {s->q_norm ? s->q_norm : s->q_rope, s->k_norm ? s->k_norm : s->k_rope};
    for (int i = 0; i < 2; i++) extend_live_inputs(f, raw[i], at);
}

/* Marks norms and ropes that a later attention step computes itself. */
static void mark_absorbed(struct cu_fuser *f)
{
    for (uint32_t i = 0; i < f->g->ops_n; i++) {
        const struct sg_op *op = &f->g->ops[i];
        if (op->code == SG_OP_NORM && norm_fits(f, op)) {
            f->norm_of[op->out] = op;
            f->absorbed[i] = 1;
            /* the value itself may be written by the product that wants it in memory */
            extend_live(f, op->out, i);
        }
        struct cu_step s;
        if (op->code != SG_OP_ATTEND) continue;
        add_attend(f, &s, op);
        if (s.kind != CU_STEP_ATTEND) continue;
        const struct sg_op *gone[] = {s.q_norm, s.k_norm, s.q_rope, s.k_rope};
        for (int k = 0; k < 4; k++)
            if (gone[k]) f->absorbed[index_of(f, gone[k])] = 1;
    }
}

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

/* Gate * up that only the next product reads goes to it narrowed, without a stop in memory. */
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
        for (uint32_t k = 0; s->feeds_next && k < next->parts_n; k++) /* it may lie in their place (issue_glu.c) */
            extend_live(f, s->glu->in[0].value, index_of(f, next->parts[k]));
    }
}

static int is_graph_output(const struct cu_fuser *f, int32_t value)
{
    for (uint32_t i = 0; i < f->g->outputs_n; i++)
        if (f->g->outputs[i].value == value) return 1;
    return 0;
}

/* Only a norm of groups of 128 reads the value, as its gate, and only products of many rows read that norm. */
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

/* Parts of a product that the delta rule reads, or that are gates of a norm: they may be in bf16. */
static int can_be_bf16(const struct cu_fuser *f, const struct cu_step *s)
{
    for (uint32_t i = 0; i < s->parts_n; i++) {
        int32_t v = s->parts[i]->out;
        int is_its = v == s->after->in[0].value ||
                     ((v == s->delta->in[3].value || v == s->delta->in[4].value) && f->readers[v] == 1);
        if (is_graph_output(f, v) || width_of(f, v) % 8 || (!is_its && !is_only_gate(f, v))) return 0;
    }
    return 1;
}

/* The delta rule that alone reads a convolution, as q, k and v: what is before the convolution stays until then. */
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

static void link_deltas(struct cu_fuser *f)
{
    for (uint32_t i = 0; i < f->p->fused_n; i++)
        if (f->p->fused[i].after && f->p->fused[i].after->code == SG_OP_CONV) link_delta(f, &f->p->fused[i]);
    for (uint32_t i = 0; i < f->p->fused_n; i++)
        if (f->p->fused[i].delta) f->p->fused[i].parts_bf16 = can_be_bf16(f, &f->p->fused[i]);
}

/* The gate of a norm behind the delta rule that is a part of the product before it. Nobody else may read the part, nor that norm:
 * who takes the part must be sure to come and to be alone. The head may be screened, which norms apart. */
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

/* What the parts of a product make lies side by side, so that one product of many rows can write it all (issue_product.c): the
 * first part's piece has room for all of them and lives as long as any. */
static void place_parts_together(const struct cu_fuser *f, const struct cu_step *s)
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
    f->piece[first] = all;
    for (uint32_t i = 0, inside = 0; i < s->parts_n; i++) {
        int32_t v = s->parts[i]->out;
        locs[v].inside = inside;
        locs[v].stride = all;
        inside += width_of(f, v);
        if (!i) continue;
        f->piece[v] = 0;
        f->joined[v] = first;
        if (f->begin[v] < f->begin[first]) f->begin[first] = f->begin[v];
        if (f->end[v] > f->end[first]) f->end[first] = f->end[v];
    }
}

/* The lowest columns that no piece alive at the same time has. */
static uint32_t find_columns(const struct cu_fuser *f, uint32_t v)
{
    const struct cu_value_loc *locs = f->p->value_locs;
    uint32_t at = 0, width = (f->piece[v] + 31) / 32 * 32;
    for (int moved = 1; moved;) {
        moved = 0;
        for (uint32_t o = 0; o < v; o++) {
            uint32_t other = (f->piece[o] + 31) / 32 * 32;
            if (!other || f->g->values[o].wanted != f->g->values[v].wanted || f->begin[o] > f->end[v] || f->end[o] < f->begin[v])
                continue;
            if (locs[o].at >= at + width || locs[o].at + other <= at) continue;
            at = locs[o].at + other;
            moved = 1;
        }
    }
    return at;
}

/* What rows are chosen from stays as long as they are read: all of them are read there. */
static void alias_chosen_rows(struct cu_fuser *f)
{
    for (uint32_t i = 0; i < f->g->ops_n; i++) {
        const struct sg_op *op = &f->g->ops[i];
        if (op->code != SG_OP_ROWS || is_graph_output(f, op->out)) continue;
        f->p->value_locs[op->out].from = op->in[0].value;
        f->p->value_locs[op->out].from_at = op->in[0].at;
        extend_live(f, op->in[0].value, f->end[op->out]);
    }
}

static void assign_columns(struct cu_fuser *f)
{
    struct cu_value_loc *locs = f->p->value_locs;
    for (uint32_t v = 0; v < f->g->values_n; v++) {
        f->piece[v] = locs[v].stride = f->g->values[v].width;
        f->joined[v] = locs[v].from = -1;
    }
    alias_chosen_rows(f);
    for (uint32_t i = 0; i < f->p->fused_n; i++)
        if (f->p->fused[i].kind == CU_STEP_PRODUCT && f->p->fused[i].parts_n > 1) place_parts_together(f, &f->p->fused[i]);
    for (uint32_t v = 0; v < f->g->values_n; v++) {
        uint32_t wanted = f->g->values[v].wanted, width = (f->piece[v] + 31) / 32 * 32;
        locs[v].wanted = wanted;
        locs[v].at = f->joined[v] >= 0 ? locs[f->joined[v]].at : find_columns(f, v);
        if (locs[v].at + width > f->p->columns[wanted]) f->p->columns[wanted] = locs[v].at + width;
    }
}

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
    f.piece = sg_arena_alloc(&arena, f.g->values_n * sizeof *f.piece);
    f.joined = sg_arena_alloc(&arena, f.g->values_n * sizeof *f.joined);
    int ok = f.begin && f.end && f.readers && f.is_output && f.absorbed && f.norm_of && f.piece && f.joined;
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
