/* cluster_match.c: which fused steps of a program are a window that ranks of blocks do in one launch (k_cluster_ops.cuh), and with how
 * many ranks and how much shared memory. A kind of window is one function of the table below. Launches are in issue_cluster.c.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/cuda/cu.h"

/* Bytes of shared memory with which two blocks share a multiprocessor; columns of x: the most, and up to where ranks are faster
 * than a launch a product (measured: 2,048 columns 49 us a layer for 44); units of a rank and rows of a box at most. */
enum { BUDGET = 112 << 10, WIDEST = 4096, WIDE = 1024, UNITS_MOST = 512, BOX_ROWS = 256, GROUP = CK_RANK_GROUP };

/* Clusters that a card of 132 multiprocessors holds at once, two blocks on each: a window's and the next one's should be no
 * more. */
enum { CLUSTERS = 30 };

struct look {
    struct sg_unit *u;
    const struct sg_program *p;
    const struct sg_graph *g;
};

uint32_t cu_step_ops(const struct cu_step *s, const struct sg_op *ops[CU_STEP_OPS])
{
    const struct sg_op *all[CU_STEP_OPS] = {s->op,     s->norm,   s->glu,    s->after,  s->conv,
                                            s->q_norm, s->k_norm, s->q_rope, s->k_rope, s->attend};
    uint32_t n = 0;
    memcpy(all + CU_STEP_OPS - CK_SEGMENTS, s->parts, sizeof s->parts);
    for (uint32_t i = 0; i < CU_STEP_OPS; i++) {
        uint32_t k = 0;
        while (k < n && ops[k] != all[i]) k++;
        if (all[i] && k == n) ops[n++] = all[i];
    }
    return n;
}

struct sg_operand cu_source(const struct sg_program *p, const struct sg_operand *x)
{
    struct sg_operand o = *x;
    if (x->value < 0 || p->places[x->value].from < 0) return o;
    o.value = p->places[x->value].from;
    o.at += p->places[x->value].from_at;
    return o;
}

/* --- values --- */

static int is_whole(const struct look *l, const struct sg_operand *x)
{
    return x->value >= 0 && x->at == 0 && x->width == l->g->values[x->value].width;
}

/* Columns of the same value, with one row. */
static int same_operand(const struct look *l, const struct sg_operand *x, const struct sg_operand *y)
{
    struct sg_operand a = cu_source(l->p, x), b = cu_source(l->p, y);
    return a.value >= 0 && a.value == b.value && a.at == b.at && a.width == b.width;
}

/* All of an op's value. */
static int is_out(const struct look *l, const struct sg_operand *x, const struct sg_op *op)
{
    const struct sg_operand all = {.value = op->out, .width = l->g->values[op->out].width};
    return same_operand(l, x, &all);
}

static int is_output(const struct look *l, int32_t value)
{
    for (uint32_t i = 0; i < l->g->outputs_n; i++)
        if (l->g->outputs[i].value == value) return 1;
    return 0;
}

static int does(const struct look *l, const struct cu_window *w, const struct sg_op *op)
{
    for (uint32_t i = w->first; i < w->first + w->steps; i++) {
        const struct sg_op *ops[CU_STEP_OPS];
        for (uint32_t n = cu_step_ops(&l->p->fused[i], ops); n; n--)
            if (ops[n - 1] == op) return 1;
    }
    return 0;
}

/* Nobody else wants what the steps make on the way. A norm that products do themselves is made by each of them. */
static int is_closed(const struct look *l, const struct cu_window *w)
{
    for (uint32_t i = 0; i < l->g->ops_n; i++) {
        const struct sg_op *op = &l->g->ops[i];
        if (op->out == w->y || op == w->of[0]->norm || !does(l, w, op)) continue;
        if (is_output(l, op->out)) return 0;
        for (uint32_t r = 0; r < l->g->ops_n; r++)
            for (int k = 0; k < SG_OP_INPUTS; k++)
                if (l->g->ops[r].in[k].value == op->out && !does(l, w, &l->g->ops[r])) return 0;
    }
    return 1;
}

/* The logits are read when the pass is over. */
static int is_logits(const struct look *l, int32_t value)
{
    int32_t logits = l->g->vocab ? sg_graph_output(l->g, "logits") : -1;
    return logits >= 0 && l->g->outputs[logits].value == value;
}

/* The value, or one that stands for it when all rows are chosen. */
static int is_of(const struct look *l, int32_t v, int32_t value)
{
    return v >= 0 && (v == value || l->p->places[v].from == value);
}

static uint32_t last_reader(const struct look *l, int32_t value)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < l->p->fused_n; i++) {
        const struct sg_op *ops[CU_STEP_OPS];
        for (uint32_t n = cu_step_ops(&l->p->fused[i], ops); n; n--)
            for (int k = 0; k < SG_OP_INPUTS; k++)
                if (is_of(l, ops[n - 1]->in[k].value, value)) last = i;
    }
    return last;
}

static const struct ck_weight *weight_of(const struct look *l, const struct sg_op *linear)
{
    return &cu_weight_of(l->p->weights, l->g->tensors[linear->u.linear.weight.tensor])->w;
}

/* --- shapes --- */

/* As many ranks as `most` and the card allow, and as columns deal evenly to; 0: too few to be worth it. */
static uint32_t ranks_of(const struct look *l, uint32_t columns, uint32_t piece, uint32_t most)
{
    uint32_t pieces = columns / piece, clusters = l->u->sms / CK_RANK_BLOCKS, ranks;
    if (l->u->rank > 1) most = l->u->rank;
    if (most > clusters) most = clusters;
    if (most > pieces) most = pieces;
    for (ranks = most; ranks && pieces % ranks; ranks--) {}
    return ranks * 2 > most ? ranks : 0;
}

/* Rows of the second product in a stage: whole groups that fit, and the block's rows in equal shares. */
static uint32_t back_rows(uint32_t rows, uint32_t stage_bytes, uint32_t row_bytes)
{
    uint32_t most = stage_bytes / row_bytes / GROUP * GROUP;
    if (most > BOX_ROWS) most = BOX_ROWS;
    uint32_t turns = (rows + most - 1) / most, each = (rows + turns - 1) / turns;
    return (each + GROUP - 1) / GROUP * GROUP;
}

/* Bytes of n columns of a row of the first product as it stands in a stage, its scales with it; of the second one's. */
static size_t first_bytes(const struct cu_window *w, uint32_t n)
{
    return w->weights == CU_WINDOW_Q8 ? n + n / 16 : 2 * (size_t)n;
}
static uint32_t second_bytes(const struct cu_window *w) { return w->weights == CU_WINDOW_Q8 ? w->own : 2 * w->own; }

/* So many fills are under way at once, few enough that those of the kernel that is at work do not queue up behind them. Never
 * more than stages: the gate that is waited at would be a turn further. Attention's come as they may. */
static uint32_t most_ahead(const struct cu_window *w)
{
    if (w->kind == CU_WINDOW_HEADS) return w->fills;
    return w->kind == CU_WINDOW_MLP && w->weights == CU_WINDOW_Q8 ? 1 : 2;
}

/* The ring of weights: `first` fills with `rows` rows of d columns each, then the rank's columns of the rows that a block ends.
 * Beside it the kernel has `rest` bytes of shared memory and `fixed` ones that it always has. 0: they do not fit. */
static int make_ring(const struct sg_unit *u, struct cu_window *w, uint32_t d, uint32_t first, uint32_t rows, size_t rest,
                     size_t fixed)
{
    size_t ahead = rows * first_bytes(w, d) + (w->weights == CU_WINDOW_Q8 ? CK_RANK_APART8 : 0),
           behind = (size_t)GROUP * second_bytes(w);
    size_t whole = u->shared_max - fixed, room = BUDGET - fixed;
    w->stage_bytes = (uint32_t)((ahead > behind ? ahead : behind) + 127) / 128 * 128;
    w->back_rows = back_rows(d / CK_RANK_BLOCKS, w->stage_bytes, second_bytes(w));
    w->fills = first + (d / CK_RANK_BLOCKS + w->back_rows - 1) / w->back_rows;
    if (room > whole || rest + 2 * (size_t)w->stage_bytes > room) room = whole; /* a block fills its multiprocessor */
    if (rest + 2 * (size_t)w->stage_bytes > room) return 0;
    size_t fit = (room - rest) / w->stage_bytes;
    w->stages = fit < w->fills ? (uint32_t)fit : w->fills;
    if (w->stages > CK_RANK_STAGES) w->stages = CK_RANK_STAGES;
    w->ahead = most_ahead(w);
    w->shared = (size_t)w->stages * w->stage_bytes + rest;
    return 1;
}

/* Where the columns of each rank are in the second product's weight. */
static int make_map(struct sg_unit *u, const struct ck_weight *w, uint32_t at, uint32_t rows, struct cu_window *out)
{
    struct ck_tensor_map map;
    const uint64_t dims[2] = {w->pitch / 4, rows}, strides[1] = {w->pitch};
    const uint32_t box[2] = {second_bytes(out) / 4, out->back_rows}, steps[2] = {1, 1};
    void *from = (unsigned char *)(uintptr_t)w->data + (size_t)at * w->pitch;
    cu_enter(u);
    cu_result r = u->d.tensor_map(&map, CU_TENSOR_INT32, 2, from, dims, strides, box, steps, 0, 0, CU_TENSOR_L2_256, 0);
    cu_leave(u);
    memcpy(out->map, map.v, sizeof out->map);
    return !r;
}

/* Bytes of x as it comes, of the block's own columns of it, of sums of groups of rows, of numbers as parts. */
static size_t x_bytes(uint32_t d) { return 4 * (size_t)d; }
static size_t own_bytes(uint32_t d) { return x_bytes(d) / CK_RANK_BLOCKS; }
static size_t sums_bytes(uint32_t rows, uint32_t per) { return (size_t)(rows + per - 1) / per * CK_RANK_SUMS_BYTES; }
static size_t parts_bytes(uint32_t k) { return CK_RANK_PARTS_BYTES((size_t)k); }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static uint32_t form_of(uint32_t d)
{
    uint32_t form = 0;
    while (512u << form < d) form++;
    return form;
}

/* --- kinds of windows --- */

/* As kernels of ranks read it: in 16 bits, or Q8_0 in whole groups of four blocks. */
static enum cu_window_weights weights_of(const struct ck_weight *w)
{
    if (w->kind == CK_Q8 && w->cols % CK_RANK_PIECE8 == 0) return CU_WINDOW_Q8;
    if (w->pitch != w->cols * 2) return CU_WINDOW_NONE;
    return w->kind == CK_F16 ? CU_WINDOW_F16 : w->kind == CK_BF16 ? CU_WINDOW_BF16 : CU_WINDOW_NONE;
}

/* Weights of one kind; of Q8_0, scales begin with 16 whole bytes. */
static int one_kind(const struct look *l, const struct cu_step *s, const struct ck_weight *back)
{
    enum cu_window_weights weights = weights_of(back);
    for (uint32_t i = 0; i < s->parts_n; i++) {
        const struct ck_weight *w = weight_of(l, s->parts[i]);
        if (weights_of(w) != weights || (weights == CU_WINDOW_Q8 && s->parts[i]->u.linear.weight.at % 2)) return 0;
    }
    return weights != CU_WINDOW_NONE;
}

/* Steps from `at` on, of which those that choose rows are none with one row. 0: there are not so many. */
static int take_steps(const struct look *l, uint32_t at, uint32_t n, struct cu_window *w)
{
    uint32_t end = at;
    for (uint32_t k = 0; k < n; k++, end++) {
        while (end < l->p->fused_n && k && l->p->fused[end].op->code == SG_OP_ROWS &&
               l->p->places[l->p->fused[end].op->out].from >= 0)
            end++;
        if (end >= l->p->fused_n) return 0;
        w->of[k] = &l->p->fused[end];
    }
    w->first = at;
    w->steps = end - at;
    return 1;
}

/* A norm of all of x, products of it in 16 bits; behind n - 2 steps a product of what the last one makes, alone, to which what
 * the norm read is added. */
static int begins(const struct look *l, uint32_t at, uint32_t n, struct cu_window *w)
{
    *w = (struct cu_window){0};
    if (!take_steps(l, at, n, w)) return 0;
    const struct cu_step *s = w->of[0], *end = w->of[n - 1];
    if (s->kind != CU_STEP_PRODUCT || end->kind != CU_STEP_PRODUCT || !s->norm || end->parts_n != 1 || end->glu || end->after)
        return 0;
    for (uint32_t i = 0; i < s->parts_n; i++)
        if (s->parts[i]->in[1].value >= 0) return 0;
    const struct sg_op *back = end->op;
    const struct ck_weight *first = weight_of(l, s->parts[0]), *second = weight_of(l, back);
    if (s->norm->u.norm.groups != 1 || s->norm->in[1].value >= 0 || !is_whole(l, &s->norm->in[0]) ||
        !same_operand(l, &s->norm->in[0], &back->in[1]) || is_logits(l, back->out))
        return 0;
    w->x = s->norm->in[0];
    w->y = back->out;
    w->weights = weights_of(first);
    return one_kind(l, s, second) && first->cols % 64 == 0 && first->cols <= (l->u->rank > 1 ? WIDEST : WIDE) &&
           back->u.linear.weight.rows == first->cols && is_closed(l, w);
}

static int ends(const struct look *l, struct cu_window *w, const struct cu_step *end)
{
    return make_map(l->u, weight_of(l, end->op), end->op->u.linear.weight.at, end->op->u.linear.weight.rows, w);
}

/* As many as the card holds beside the mixer's, which are the window before. */
static uint32_t mlp_ranks(const struct look *l)
{
    const struct cu_window *before = l->p->windows_n ? &l->p->windows[l->p->windows_n - 1] : NULL;
    uint32_t beside = before && before->kind != CU_WINDOW_MLP ? before->ranks : CK_RANK_MOST;
    return CLUSTERS - beside < CK_RANK_MOST ? CLUSTERS - beside : CK_RANK_MOST;
}

/* Norm, gate and up (or up alone, an activation behind it), down. */
static int find_mlp(const struct look *l, uint32_t at, struct cu_window *w)
{
    if (!begins(l, at, 2, w)) return 0;
    const struct cu_step *s = w->of[0], *back = w->of[1];
    const struct sg_op *act = s->glu ? s->glu : s->parts_n == 1 ? s->after : NULL;
    if (!act || (s->glu && s->after) || (!s->glu && act->code != SG_OP_ACT) || back->norm || !is_out(l, &back->op->in[0], act))
        return 0;
    uint32_t d = weight_of(l, s->parts[0])->cols, ff = l->g->values[act->out].width;
    uint32_t piece = w->weights == CU_WINDOW_Q8 ? CK_RANK_PIECE8 : CK_RANK_PIECE;
    if (ff % piece || !(w->ranks = ranks_of(l, ff, piece, mlp_ranks(l))) || ff / w->ranks > UNITS_MOST) return 0;
    w->kind = CU_WINDOW_MLP;
    w->own = ff / w->ranks;
    w->fn[0] = w->fn[1] = l->u->k.mlp[w->weights][form_of(d)];
    uint32_t pairs = (w->own + 63) / 64 * 64, each = w->own / CK_RANK_BLOCKS, per = s->glu ? GROUP / 2 : GROUP;
    size_t rest = 4 * (size_t)pairs + own_bytes(d) + larger(x_bytes(d), sums_bytes(each, per)) +
                  parts_bytes(d > pairs ? d : pairs);
    if (w->weights == CU_WINDOW_Q8) rest += (size_t)d / CK_RANK_BLOCKS * (w->own / 16); /* scales of down */
    return make_ring(l->u, w, d, (each + per - 1) / per, GROUP, rest, CK_RANK_FIXED) && ends(l, w, back);
}

const struct sg_op *cu_part_of(const struct sg_program *p, const struct cu_step *s, const struct sg_operand *x)
{
    int32_t value = cu_source(p, x).value;
    for (uint32_t i = 0; i < s->parts_n; i++)
        if (value >= 0 && s->parts[i]->out == value) return s->parts[i];
    return NULL;
}

static int linear_fits(const struct look *l, const struct cu_step *s, const struct cu_step *rule, const struct cu_step *back)
{
    const struct sg_delta *d = &rule->op->u.delta;
    const struct sg_conv *c = &s->after->u.conv;
    const struct sg_norm *before = &s->norm->u.norm, *n = &back->norm->u.norm;
    for (uint32_t i = 0; i < s->parts_n; i++)
        if (s->parts[i]->u.linear.bias.tensor >= 0) return 0;
    return cu_part_of(l->p, s, &rule->op->in[3]) && cu_part_of(l->p, s, &rule->op->in[4]) &&
           cu_part_of(l->p, s, &back->norm->in[1]) && is_out(l, &back->norm->in[0], rule->op) &&
           is_out(l, &back->op->in[0], back->norm) && before->kind == SG_NORM_RMS && before->bias.tensor < 0 &&
           n->kind == SG_NORM_RMS && n->bias.tensor < 0 && n->groups == d->v_heads && d->dk == CK_LINEAR_WIDE &&
           d->dv == CK_LINEAR_WIDE && d->k_heads <= CK_RANK_MOST && c->taps > 1 && c->taps <= CK_LINEAR_TAPS &&
           c->act == SG_ACT_SILU;
}

/* Norm, q k v z a b, the convolution, the delta rule, its norm and gate, the product back. */
static int find_linear(const struct look *l, uint32_t at, struct cu_window *w)
{
    if (!begins(l, at, 3, w)) return 0;
    const struct cu_step *s = w->of[0], *rule = w->of[1], *back = w->of[2];
    if (s->glu || !s->after || s->after->code != SG_OP_CONV || rule->conv != s->after || !back->norm ||
        !linear_fits(l, s, rule, back))
        return 0;
    uint32_t share = rule->op->u.delta.v_heads / rule->op->u.delta.k_heads, d = weight_of(l, s->parts[0])->cols;
    if (share < 1 || share > 2 || d % (w->weights == CU_WINDOW_Q8 ? 256 : CK_LINEAR_WIDE) || d > (share == 2 ? 4096 : 2048))
        return 0;
    w->kind = CU_WINDOW_LINEAR;
    w->ranks = rule->op->u.delta.k_heads;
    w->own = share * CK_LINEAR_WIDE;
    w->fn[0] = w->fn[1] = l->u->k.linear[w->weights][share == 2 ? 2 : d > 1024];
    return make_ring(l->u, w, d, 4 + 4 * share, GROUP / 2, CK_LINEAR_ROOM(d, share), 2 * CK_RANK_FIXED) && ends(l, w, back);
}

static int heads_fit(const struct look *l, const struct cu_step *s, const struct cu_step *step, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    uint32_t pairs = step->q_rope ? l->g->ropes[step->q_rope->u.rope.table].pairs : 0;
    for (int i = 0; i < 4; i++)
        if ((i < 3 || op->in[i].value >= 0) && !cu_part_of(l->p, s, cu_raw_of(step, i))) return 0;
    return a->d == a->dv && a->heads % a->kv_heads == 0 && !(a->softcap > 0) && a->sinks.tensor < 0 &&
           pairs % 32 == 0 && pairs <= a->d / 2 && !(pairs & (pairs - 1));
}

const struct sg_operand *cu_raw_of(const struct cu_step *s, int input)
{
    const struct sg_op *norm = input ? s->k_norm : s->q_norm, *rope = input ? s->k_rope : s->q_rope,
                       *attend = s->kind == CU_STEP_PREPARE ? s->attend : s->op;
    if (input > 1 || !rope) return &attend->in[input];
    return norm ? &norm->in[0] : &rope->in[0];
}

/* Norm, q, k, v and gate, heads made ready, K and V stored, attention, the product back. */
static int find_heads(const struct look *l, uint32_t at, struct cu_window *w)
{
    if (!begins(l, at, 3, w)) return 0;
    const struct cu_step *s = w->of[0], *step = w->of[1], *back = w->of[2];
    const struct sg_op *op = step->kind == CU_STEP_PREPARE ? step->attend : step->op;
    if (s->glu || s->after || back->norm || step->kind == CU_STEP_PRODUCT || op->code != SG_OP_ATTEND) return 0;
    uint32_t d = weight_of(l, s->parts[0])->cols, head = op->u.attend.d;
    uint32_t width = head == 64 ? 0 : head == 128 ? 1 : 2, form = d > 1024 ? 3 : width;
    if (!is_out(l, &back->op->in[0], op) || !heads_fit(l, s, step, op) || head != 64u << width || d > (width == 2 ? 2048 : 1024))
        return 0;
    w->kind = CU_WINDOW_HEADS;
    w->own = CK_HEADS_OWN(head);
    w->ranks = op->u.attend.heads * (head / w->own);
    for (int kv = 0; kv < 2; kv++) w->fn[kv] = l->u->k.heads[w->weights][kv][form];
    if (!w->fn[0] || w->ranks > CK_RANK_MOST) return 0;
    uint32_t each = (2 * head + (op->in[3].value >= 0 ? 2 : 1) * w->own) / CK_RANK_BLOCKS;
    size_t rest = CK_HEADS_ROOM((size_t)head, (size_t)d);
    if (w->weights == CU_WINDOW_Q8) rest += (size_t)d / CK_RANK_BLOCKS * (w->own / 16); /* scales of the product back */
    return make_ring(l->u, w, d, (each + GROUP - 1) / GROUP, GROUP, rest, CK_HEADS_FIXED(head)) && ends(l, w, back);
}

static int (*const finders[])(const struct look *l, uint32_t at, struct cu_window *w) = {find_mlp, find_linear, find_heads};

size_t cu_rank_room(const struct sg_program *p) { return p->parts * sizeof(uint64_t); }

segue_status cu_rank_find(struct sg_unit *u, struct sg_program *p, segue_error *err)
{
    struct look l = {u, p, p->base.graph};
    if (!u->rank || u->major != 9 || !u->d.tensor_map) return SEGUE_OK;
    p->windows = sg_alloc((p->fused_n + 1) * sizeof *p->windows);
    if (!p->windows) return sg_no_memory("program of cuda", p->fused_n * sizeof *p->windows, err);
    for (uint32_t at = 0; at < p->fused_n;) {
        struct cu_window *w = &p->windows[p->windows_n];
        size_t k = 0, kinds = sizeof finders / sizeof *finders;
        while (k < kinds && !finders[k](&l, at, w)) k++;
        at += k < kinds ? w->steps : 1;
        if (k == kinds) continue;
        w->room = p->parts;
        w->last = last_reader(&l, w->y);
        p->fused[w->first].window = w;
        p->windows_n++;
        p->parts += 2 * (size_t)l.g->values[w->y].width;
    }
    return SEGUE_OK;
}

/* --- their kernels --- */

static segue_status open_kernel(struct sg_unit *u, const char *file, const char *name, size_t fixed, cu_fn *out, segue_error *err)
{
    SG_TRY(cu_kernel_roomy(u, file, name, (int)(u->shared_max - fixed), out, err));
    return cu_check(&u->d, u->d.function_set(*out, CU_FN_CARVEOUT, 100), "open unit", err);
}

segue_status cu_rank_open(struct sg_unit *u, segue_error *err)
{
    static const char *const kinds[3] = {"f16", "bf16", "q8"};
    char name[40];
    for (int i = 0; i < 12 && u->major == 9; i++) {
        snprintf(name, sizeof name, "mlp_%s_%d", kinds[i / 4], i == 8 ? 2 : 1 << i % 4); /* Q8_0: 512 columns as 1024 */
        SG_TRY(open_kernel(u, "k_mlp", name, 0, &u->k.mlp[i / 4][i % 4], err));
    }
    for (int i = 0; i < 9 && u->major == 9; i++) {
        snprintf(name, sizeof name, "linear_%s_%d", kinds[i / 3], 2 << i % 3);
        SG_TRY(open_kernel(u, "k_linear", name, 0, &u->k.linear[i / 3][i % 3], err));
    }
    for (int i = 0; i < 24 && u->major == 9; i++) {
        int form = i % 4, width = form < 3 ? 64 << form : 256;
        if (i >= 16 && (form == 0 || form == 3)) continue; /* Q8_0: heads of whole groups of columns, rows of up to 1024 */
        snprintf(name, sizeof name, "heads_%s_%s_%d_%d", kinds[i / 8], kinds[i / 4 % 2], form < 3 ? 2 : 4, width);
        SG_TRY(open_kernel(u, "k_heads", name, CK_HEADS_FIXED(width), &u->k.heads[i / 8][i / 4 % 2][form], err));
    }
    return SEGUE_OK;
}
