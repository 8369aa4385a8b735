/* train_attend.c: attention of training. Score matrices of some heads of some sequences exist at a time, within SCORES numbers.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/train/cu_train.h"

enum { SCORES = 1 << 27, ITEMS_MAX = 32768 };

static struct ct_attend args_of(const struct sg_resident_call *c)
{
    const struct sg_attend *a = &c->op->u.attend;
    return (struct ct_attend){.q = cu_train_matrix(c->in[0]), .k = cu_train_matrix(c->in[1]), .v = cu_train_matrix(c->in[2]),
                              .gate = cu_train_matrix(c->in[3]), .dq = cu_train_matrix(c->grad[0]),
                              .dk = cu_train_matrix(c->grad[1]), .dv = cu_train_matrix(c->grad[2]),
                              .dgate = cu_train_matrix(c->grad[3]), .sinks = c->weight[0].value, .dout = c->dout, .out = c->out,
                              .from = c->tokens->from, .heads = a->heads, .kv_heads = a->kv_heads, .d = a->d, .dvw = a->dv,
                              .longest = c->tokens->longest, .window = a->window, .rows = c->rows, .scale = a->scale,
                              .softcap = a->softcap};
}

/* Divides the heads of all sequences into launches: whole groups of heads, of one sequence or of all heads of several. */
static void set_items(struct ct_attend *a, size_t matrices, uint32_t sequences)
{
    size_t square = (size_t)a->longest * a->longest, items = SCORES / matrices / square;
    uint32_t group = a->heads / a->kv_heads;
    if (items > ITEMS_MAX) items = ITEMS_MAX;
    a->heads_n = items >= a->heads ? a->heads : items < group ? group : (uint32_t)(items / group * group);
    a->sequences = a->heads_n == a->heads && items > a->heads ? (uint32_t)(items / a->heads) : 1;
    if (a->sequences > sequences) a->sequences = sequences;
}

struct attend_grid { uint32_t tiles, items, keys; };

static segue_status forward_part(struct cu_train *t, const struct ct_attend *a, struct attend_grid g, segue_error *err)
{
    SG_TRY(cu_train_launch(t, t->k.scores, g.tiles, g.tiles, g.items, CT_THREADS, a, err));
    SG_TRY(cu_train_launch(t, t->k.softmax, a->longest, g.items, 1, CT_THREADS, a, err));
    return cu_train_launch(t, t->k.attend_out, cu_pieces(a->dvw, CT_TILE), g.tiles, g.items, CT_THREADS, a, err);
}

/* The scores are computed again. a->dout is the gradient before the gate. */
static segue_status backward_part(struct cu_train *t, const struct ct_attend *a, struct attend_grid g, segue_error *err)
{
    SG_TRY(cu_train_launch(t, t->k.scores, g.tiles, g.tiles, g.items, CT_THREADS, a, err));
    SG_TRY(cu_train_launch(t, t->k.softmax, a->longest, g.items, 1, CT_THREADS, a, err));
    if (a->dv.p) SG_TRY(cu_train_launch(t, t->k.dv, cu_pieces(a->dvw, CT_TILE), g.tiles, g.keys, CT_THREADS, a, err));
    SG_TRY(cu_train_launch(t, t->k.dscores, g.tiles, g.tiles, g.items, CT_THREADS, a, err));
    SG_TRY(cu_train_launch(t, t->k.softmax_back, a->longest, g.items, 1, CT_THREADS, a, err));
    if (a->dq.p) SG_TRY(cu_train_launch(t, t->k.dq, cu_pieces(a->d, CT_TILE), g.tiles, g.items, CT_THREADS, a, err));
    if (a->dk.p) SG_TRY(cu_train_launch(t, t->k.dk, cu_pieces(a->d, CT_TILE), g.tiles, g.keys, CT_THREADS, a, err));
    return a->sink_parts ? cu_train_launch(t, t->k.sinks, a->heads_n, 1, 1, CT_THREADS, a, err) : SEGUE_OK;
}

typedef segue_status run_part(struct cu_train *t, const struct ct_attend *a, struct attend_grid g, segue_error *err);

static segue_status each_part(struct cu_train *t, struct ct_attend *a, uint32_t sequences, segue_error *err, run_part *run)
{
    uint32_t group = a->heads / a->kv_heads, heads_n = a->heads_n, sequences_n = a->sequences;
    for (uint32_t s = 0; s < sequences; s += sequences_n)
        for (uint32_t h = 0; h < a->heads; h += heads_n) {
            struct ct_attend part = *a;
            part.first = s;
            part.heads_from = h;
            part.sequences = sequences - s < sequences_n ? sequences - s : sequences_n;
            part.heads_n = a->heads - h < heads_n ? a->heads - h : heads_n;
            struct attend_grid g = {cu_pieces(a->longest, CT_TILE), part.sequences * part.heads_n, 0};
            g.keys = g.items / group;
            SG_TRY(run(t, &part, g, err));
        }
    return SEGUE_OK;
}

/* Output before the gate, gradient before the gate, both [rows, heads * dv]: with a gate the backward pass needs them whole. */
static segue_status undo_gate(struct cu_train *t, struct ct_attend *a, float *plain, float *before, uint32_t sequences,
                              segue_error *err)
{
    struct ct_attend f = *a;
    f.plain = plain;
    f.slopes = NULL;
    f.sink_parts = NULL;
    SG_TRY(each_part(t, &f, sequences, err, forward_part));
    f.out = before;
    a->dout = before;
    return cu_train_launch_items(t, t->k.gate_back, (size_t)a->rows * a->heads * a->dvw, &f, err);
}

segue_status cu_train_attend(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    struct ct_attend a = args_of(c);
    uint32_t sequences = c->tokens->sequences;
    size_t matrices = !c->back ? 1 : a.softcap > 0 ? 3 : 2, width = (size_t)a.rows * a.heads * a.dvw, gate = 0;
    set_items(&a, matrices, sequences);
    size_t items = (size_t)a.sequences * a.heads_n, square = items * a.longest * a.longest;
    if (c->back && a.gate.p) gate = 2 * width;
    SG_TRY(cu_train_scratch(t, matrices * square + gate + items * a.longest, &a.scores, err));
    if (!c->back) return each_part(t, &a, sequences, err, forward_part);
    a.dscores = a.scores + square;
    if (matrices == 3) a.slopes = a.dscores + square;
    float *rest = a.scores + matrices * square;
    if (gate) SG_TRY(undo_gate(t, &a, rest, rest + width, sequences, err));
    a.out = c->weight[0].gradient;
    if (a.out) a.sink_parts = rest + gate;
    return each_part(t, &a, sequences, err, backward_part);
}
