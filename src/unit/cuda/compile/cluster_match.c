/* cluster_match.c: finds the consecutive fused steps that thread-block clusters can compute in one launch (struct cu_fusion,
 * k_cluster_ops.cuh), and selects the number of clusters and the ring of weights in shared memory. Each kind of fusion has one
 * match function in the table `matchers`. Hopper only; not with "rank=0". Launches are in issue_cluster.c.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/compile/program.h"
#include "unit/cuda/kernels/include/params/kparams_cluster_packed.h"

/* BUDGET: bytes of shared memory per block with which two blocks fit on a multiprocessor. WIDEST: max. columns of x. WIDE:
 * columns up to which clusters are faster than one launch per product (measured at 2048 columns: 49 us per layer, 44 without).
 * MAX_UNITS: max. hidden units of a cluster. BOX_ROWS: max. rows of a box of the tensor map. */
enum { BUDGET = 112 << 10, WIDEST = 4096, WIDE = 1024, MAX_UNITS = 512, BOX_ROWS = 256, GROUP = CK_CLUSTER_ROW_GROUP };

/* Clusters that 132 multiprocessors hold at once with two blocks each. A fusion and the next one together should have no more, so
 * that the next one's blocks are resident and can prefetch weights while the first one runs. */
enum { CLUSTERS = 30 };

/* What all match functions need. */
struct cu_matcher {
    struct sg_unit *u;
    const struct sg_program *p;
    const struct sg_graph *g;
};

/* parts are at the end of `all`, so that the members before them do not depend on their number. */
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

/* Follows one selection: the input of op `rows` is never the result of another one. */
struct sg_operand cu_source(const struct sg_program *p, const struct sg_operand *x)
{
    struct sg_operand o = *x;
    if (x->value < 0 || p->value_locs[x->value].from < 0) return o;
    o.value = p->value_locs[x->value].from;
    o.at += p->value_locs[x->value].from_at;
    return o;
}

/* --- values --- */

static int is_whole(const struct cu_matcher *l, const struct sg_operand *x)
{
    return x->value >= 0 && x->at == 0 && x->width == l->g->values[x->value].width;
}

/* 1: the same columns of the same value. A selection of rows counts as its input: a pass with one row selects all rows. */
static int same_operand(const struct cu_matcher *l, const struct sg_operand *x, const struct sg_operand *y)
{
    struct sg_operand a = cu_source(l->p, x), b = cu_source(l->p, y);
    return a.value >= 0 && a.value == b.value && a.at == b.at && a.width == b.width;
}

/* 1: x is the whole result of op. */
static int is_out(const struct cu_matcher *l, const struct sg_operand *x, const struct sg_op *op)
{
    const struct sg_operand all = {.value = op->out, .width = l->g->values[op->out].width};
    return same_operand(l, x, &all);
}

/* 1: the graph has the value as an output, which the caller may request. */
static int is_output(const struct cu_matcher *l, int32_t value)
{
    for (uint32_t i = 0; i < l->g->outputs_n; i++)
        if (l->g->outputs[i].value == value) return 1;
    return 0;
}

/* 1: one of the fusion's steps computes op. */
static int contains_op(const struct cu_matcher *l, const struct cu_fusion *w, const struct sg_op *op)
{
    for (uint32_t i = w->first; i < w->first + w->steps; i++) {
        const struct sg_op *ops[CU_STEP_OPS];
        for (uint32_t n = cu_step_ops(&l->p->fused[i], ops); n; n--)
            if (ops[n - 1] == op) return 1;
    }
    return 0;
}

/* 1: no op outside of the fusion reads an intermediate result, and none is an output of the graph. The first norm is excepted:
 * every product that reads it computes it. */
static int is_self_contained(const struct cu_matcher *l, const struct cu_fusion *w)
{
    for (uint32_t i = 0; i < l->g->ops_n; i++) {
        const struct sg_op *op = &l->g->ops[i];
        if (op->out == w->y || op == w->step[0]->norm || !contains_op(l, w, op)) continue;
        if (is_output(l, op->out)) return 0;
        for (uint32_t r = 0; r < l->g->ops_n; r++)
            for (int k = 0; k < SG_OP_INPUTS; k++)
                if (l->g->ops[r].in[k].value == op->out && !contains_op(l, w, &l->g->ops[r])) return 0;
    }
    return 1;
}

/* 1: the value is the logits. They are read after the pass, so they cannot be the result of a fusion. */
static int is_logits(const struct cu_matcher *l, int32_t value)
{
    int32_t logits = l->g->vocab ? sg_graph_output(l->g, "logits") : -1;
    return logits >= 0 && l->g->outputs[logits].value == value;
}

/* 1: v is the value or the selection of all its rows. */
static int is_alias_of(const struct cu_matcher *l, int32_t v, int32_t value)
{
    return v >= 0 && (v == value || l->p->value_locs[v].from == value);
}

/* Index of the last fused step that reads a value, directly or through a selection of all rows. */
static uint32_t last_reader(const struct cu_matcher *l, int32_t value)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < l->p->fused_n; i++) {
        const struct sg_op *ops[CU_STEP_OPS];
        for (uint32_t n = cu_step_ops(&l->p->fused[i], ops); n; n--)
            for (int k = 0; k < SG_OP_INPUTS; k++)
                if (is_alias_of(l, ops[n - 1]->in[k].value, value)) last = i;
    }
    return last;
}

/* The uploaded weight of a linear. */
static const struct ck_weight *weight_of(const struct cu_matcher *l, const struct sg_op *linear)
{
    return &cu_weight_of(l->p->weights, l->g->tensors[linear->u.linear.weight.tensor])->w;
}

/* --- shapes --- */

/* The largest number of clusters up to `max`, and to what the GPU can hold, that divides the columns evenly into pieces. 0:
 * less than half of the maximum, which is not worth a fusion. */
static uint32_t cluster_count(const struct cu_matcher *l, uint32_t columns, uint32_t piece, uint32_t max)
{
    uint32_t pieces = columns / piece, fit = l->u->sms / CK_CLUSTER_BLOCKS, clusters;
    if (l->u->cluster_fusion > 1) max = l->u->cluster_fusion;
    if (max > fit) max = fit;
    if (max > pieces) max = pieces;
    for (clusters = max; clusters && pieces % clusters; clusters--) {}
    return clusters * 2 > max ? clusters : 0;
}

/* Rows of the second product per stage: whole groups of GROUP, as many as fit, but with `rows` divided evenly over the fills. */
static uint32_t back_rows(uint32_t rows, uint32_t stage_bytes, uint32_t row_bytes)
{
    uint32_t max = stage_bytes / row_bytes / GROUP * GROUP;
    if (max > BOX_ROWS) max = BOX_ROWS;
    uint32_t turns = (rows + max - 1) / max, each = (rows + turns - 1) / turns;
    return (each + GROUP - 1) / GROUP * GROUP;
}

/* Packed weights: chunks that contain the cluster's columns of the second product. */
static uint32_t chunks_of(const struct cu_fusion *w) { return (w->cluster_cols + CK_PACKED_CHUNK - 1) / CK_PACKED_CHUNK; }

/* Bytes per row in a stage: n columns of the first product, with scales; the cluster's columns of the second. */
static size_t first_bytes(const struct cu_fusion *w, uint32_t n)
{
    if (w->weights == CU_FUSION_PACKED) return w->pitch;
    return w->weights == CU_FUSION_Q8 ? n + n / 16 : 2 * (size_t)n;
}
static uint32_t second_bytes(const struct cu_fusion *w)
{
    if (w->weights == CU_FUSION_PACKED) return w->back_pitch * chunks_of(w);
    return w->weights == CU_FUSION_Q8 ? w->cluster_cols : 2 * w->cluster_cols;
}

/* Fills of the ring that may be in flight at once. Few, so that the copies of a kernel that computes do not queue behind those of
 * the next kernel, which prefetches. Never more than stages. Attention has no limit. */
static uint32_t max_fills_ahead(const struct cu_fusion *w)
{
    if (w->kind == CU_FUSION_HEADS) return w->fills;
    if (w->weights == CU_FUSION_PACKED) return 4;
    return w->kind == CU_FUSION_MLP && w->weights == CU_FUSION_Q8 ? 1 : 2;
}

/* Dimensions the ring of weights in shared memory: `first` fills of `rows` rows of the first product (d columns), then fills of
 * the second product: the cluster's columns of the d / CK_CLUSTER_BLOCKS rows that a block finishes. rest: other dynamic shared
 * memory; fixed: static. Tries to fit two blocks per multiprocessor, then one. 0: at least two stages do not fit. */
static int make_ring(const struct sg_unit *u, struct cu_fusion *w, uint32_t d, uint32_t first, uint32_t rows, size_t rest,
                     size_t fixed)
{
    size_t first_stage = rows * first_bytes(w, d) + (w->weights == CU_FUSION_Q8 ? CK_CLUSTER_Q8_PAD : 0),
           second_stage = (size_t)GROUP * second_bytes(w);
    size_t whole = u->shared_max - fixed, budget = BUDGET - fixed;
    w->stage_bytes = (uint32_t)((first_stage > second_stage ? first_stage : second_stage) + 127) / 128 * 128;
    w->back_rows = back_rows(d / CK_CLUSTER_BLOCKS, w->stage_bytes, second_bytes(w));
    w->fills = first + (d / CK_CLUSTER_BLOCKS + w->back_rows - 1) / w->back_rows;
    if (budget > whole || rest + 2 * (size_t)w->stage_bytes > budget) budget = whole;
    if (rest + 2 * (size_t)w->stage_bytes > budget) return 0;
    size_t fit = (budget - rest) / w->stage_bytes;
    w->stages = fit < w->fills ? (uint32_t)fit : w->fills;
    if (w->stages > CK_CLUSTER_STAGES) w->stages = CK_CLUSTER_STAGES;
    w->ahead = max_fills_ahead(w);
    w->shared = (size_t)w->stages * w->stage_bytes + rest;
    return 1;
}

/* The tensor map with which clusters copy their columns of the second product's weight; as 32-bit words, whatever the type. */
static int make_map(struct sg_unit *u, const struct ck_weight *w, uint32_t at, uint32_t rows, struct cu_fusion *out)
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

/* Bytes of shared memory: x in fp32; a block's share of it; partial sums of `rows` rows in groups of `per`; k numbers split into
 * 16-bit parts. */
static size_t x_bytes(uint32_t d) { return 4 * (size_t)d; }
static size_t x_share_bytes(uint32_t d) { return x_bytes(d) / CK_CLUSTER_BLOCKS; }
static size_t sums_bytes(uint32_t rows, uint32_t per) { return (size_t)(rows + per - 1) / per * CK_CLUSTER_SUMS_BYTES; }
static size_t parts_bytes(uint32_t k) { return CK_CLUSTER_X_BYTES((size_t)k); }
static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

/* Index of the MLP kernel's instance for d columns: 512, 1024, 2048, 4096. */
static uint32_t mlp_instance(uint32_t d)
{
    uint32_t form = 0;
    while (512u << form < d) form++;
    return form;
}

/* --- kinds of fusions --- */

/* Weight type as the cluster kernels read it: packed, 16 bits without padding, or Q8_0 with a multiple of four blocks per row. */
static enum cu_fusion_weights weights_of(const struct ck_weight *w)
{
    if (w->kind >= CK_PACKED) return CU_FUSION_PACKED;
    if (w->kind == CK_Q8 && w->cols % CK_CLUSTER_UNIT_MULTIPLE_Q8 == 0) return CU_FUSION_Q8;
    if (w->pitch != w->cols * 2) return CU_FUSION_NONE;
    return w->kind == CK_F16 ? CU_FUSION_F16 : w->kind == CK_BF16 ? CU_FUSION_BF16 : CU_FUSION_NONE;
}

/* All weights of the fusion have one type; packed ones may have several kinds. Scales of Q8_0 rows are copied in 16-byte units:
 * every second row begins with one. */
static int same_weights(const struct cu_matcher *l, const struct cu_step *s, const struct ck_weight *back)
{
    enum cu_fusion_weights weights = weights_of(back);
    for (uint32_t i = 0; i < s->parts_n; i++) {
        const struct ck_weight *w = weight_of(l, s->parts[i]);
        if (weights_of(w) != weights || (weights == CU_FUSION_Q8 && s->parts[i]->u.linear.weight.at % 2)) return 0;
    }
    return weights != CU_FUSION_NONE;
}

/* 1: the weights have the same kind, so that one stage may hold rows of both. */
static int same_kind(const struct ck_weight *a, const struct ck_weight *b) { return a->kind == b->kind && a->group == b->group; }

/* Bytes of packed rows, for the ring. */
static void set_pitches(const struct cu_matcher *l, const struct ck_weight *back, struct cu_fusion *w)
{
    for (uint32_t i = 0; i < w->step[0]->parts_n; i++) {
        uint32_t pitch = weight_of(l, w->step[0]->parts[i])->pitch;
        if (pitch > w->pitch) w->pitch = pitch;
    }
    w->back_pitch = back->pitch / (back->cols / CK_PACKED_CHUNK);
}

/* Sets first, steps and step[0..n-1] from fused step `at` on, without selections of all rows. 0: there are not n steps. */
static int collect_steps(const struct cu_matcher *l, uint32_t at, uint32_t n, struct cu_fusion *w)
{
    uint32_t end = at;
    for (uint32_t k = 0; k < n; k++, end++) {
        while (end < l->p->fused_n && k && l->p->fused[end].op->code == SG_OP_ROWS &&
               l->p->value_locs[l->p->fused[end].op->out].from >= 0)
            end++;
        if (end >= l->p->fused_n) return 0;
        w->step[k] = &l->p->fused[end];
    }
    w->first = at;
    w->steps = end - at;
    return 1;
}

/* What all kinds have in common. The first of n steps is a norm of a whole value x with products of it; the last is one product
 * whose result is added to x. Sets x, y and weights. */
static int match_ends(const struct cu_matcher *l, uint32_t at, uint32_t n, struct cu_fusion *w)
{
    *w = (struct cu_fusion){0};
    if (!collect_steps(l, at, n, w)) return 0;
    const struct cu_step *s = w->step[0], *end = w->step[n - 1];
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
    if (w->weights == CU_FUSION_PACKED) {
        if (first->cols > CK_CLUSTER_PACKED_COLS) return 0;
        set_pitches(l, second, w);
    }
    return same_weights(l, s, second) && first->cols % 64 == 0 && first->cols <= (l->u->cluster_fusion > 1 ? WIDEST : WIDE) &&
           back->u.linear.weight.rows == first->cols && is_self_contained(l, w);
}

/* After the ring is chosen: the tensor map of the second product. Packed weights have none. */
static int finish_match(const struct cu_matcher *l, struct cu_fusion *w, const struct cu_step *end)
{
    return w->weights == CU_FUSION_PACKED ||
           make_map(l->u, weight_of(l, end->op), end->op->u.linear.weight.at, end->op->u.linear.weight.rows, w);
}

/* Maximum for an MLP: what the GPU holds beside the fusion before it, the layer's mixer. */
static uint32_t mlp_clusters(const struct cu_matcher *l)
{
    const struct cu_fusion *before = l->p->fusions_n ? &l->p->fusions[l->p->fusions_n - 1] : NULL;
    uint32_t beside = before && before->kind != CU_FUSION_MLP ? before->clusters : CK_CLUSTERS_MAX;
    return CLUSTERS - beside < CK_CLUSTERS_MAX ? CLUSTERS - beside : CK_CLUSTERS_MAX;
}

/* CU_FUSION_MLP: norm, gate and up (or up with an activation), down. A cluster computes cluster_cols hidden units. */
static int match_mlp(const struct cu_matcher *l, uint32_t at, struct cu_fusion *w)
{
    if (!match_ends(l, at, 2, w)) return 0;
    const struct cu_step *s = w->step[0], *back = w->step[1];
    const struct sg_op *act = s->glu ? s->glu : s->parts_n == 1 ? s->after : NULL;
    if (!act || (s->glu && s->after) || (!s->glu && act->code != SG_OP_ACT) || back->norm || !is_out(l, &back->op->in[0], act))
        return 0;
    uint32_t d = weight_of(l, s->parts[0])->cols, ff = l->g->values[act->out].width;
    uint32_t piece = w->weights == CU_FUSION_PACKED ? CK_PACKED_CHUNK
                     : w->weights == CU_FUSION_Q8   ? CK_CLUSTER_UNIT_MULTIPLE_Q8
                                                    : CK_CLUSTER_UNIT_MULTIPLE;
    if (w->weights == CU_FUSION_PACKED && s->glu && !same_kind(weight_of(l, s->parts[0]), weight_of(l, s->parts[1]))) return 0;
    if (ff % piece || !(w->clusters = cluster_count(l, ff, piece, mlp_clusters(l))) || ff / w->clusters > MAX_UNITS) return 0;
    w->kind = CU_FUSION_MLP;
    w->cluster_cols = ff / w->clusters;
    w->fn[0] = w->fn[1] = l->u->k.mlp[w->weights][mlp_instance(d)];
    /* per: hidden units per group of rows. With a gate a group has rows of gate and of up. */
    uint32_t pairs = (w->cluster_cols + 63) / 64 * 64, each = w->cluster_cols / CK_CLUSTER_BLOCKS,
             per = s->glu ? GROUP / 2 : GROUP;
    size_t rest = 4 * (size_t)pairs + x_share_bytes(d) + max_size(x_bytes(d), sums_bytes(each, per)) +
                  parts_bytes(d > pairs ? d : pairs);
    /* Q8_0: the scales of down are in shared memory for the whole launch. */
    if (w->weights == CU_FUSION_Q8) rest += (size_t)d / CK_CLUSTER_BLOCKS * (w->cluster_cols / 16);
    return make_ring(l->u, w, d, (each + per - 1) / per, GROUP, rest, CK_CLUSTER_STATIC_BYTES) && finish_match(l, w, back);
}

const struct sg_op *cu_part_of(const struct sg_program *p, const struct cu_step *s, const struct sg_operand *x)
{
    int32_t value = cu_source(p, x).value;
    for (uint32_t i = 0; i < s->parts_n; i++)
        if (value >= 0 && s->parts[i]->out == value) return s->parts[i];
    return NULL;
}

/* The shapes that k_linear.cu supports: beta, alpha and the gate are parts of the product, heads of 128, SiLU after a short
 * convolution, RMS norms without bias. */
static int linear_fits(const struct cu_matcher *l, const struct cu_step *s, const struct cu_step *rule,
                       const struct cu_step *back)
{
    const struct sg_delta *d = &rule->op->u.delta;
    const struct sg_conv *c = &s->after->u.conv;
    const struct sg_norm *before = &s->norm->u.norm, *n = &back->norm->u.norm;
    for (uint32_t i = 0; i < s->parts_n; i++)
        if (s->parts[i]->u.linear.bias.tensor >= 0) return 0;
    return cu_part_of(l->p, s, &rule->op->in[3]) && cu_part_of(l->p, s, &rule->op->in[4]) &&
           cu_part_of(l->p, s, &back->norm->in[1]) && is_out(l, &back->norm->in[0], rule->op) &&
           is_out(l, &back->op->in[0], back->norm) && before->kind == SG_NORM_RMS && before->bias.tensor < 0 &&
           n->kind == SG_NORM_RMS && n->bias.tensor < 0 && n->groups == d->v_heads && d->dk == CK_LINEAR_HEAD_DIM &&
           d->dv == CK_LINEAR_HEAD_DIM && d->k_heads <= CK_CLUSTERS_MAX && c->taps > 1 && c->taps <= CK_LINEAR_TAPS &&
           c->act == SG_ACT_SILU;
}

/* 1: k_linear.cu supports these packed weights: a and b of one kind, the cluster's rows of them in one group of eight. */
static int packed_linear_fits(const struct cu_matcher *l, const struct cu_step *s, const struct cu_step *rule)
{
    const struct sg_op *a = cu_part_of(l->p, s, &rule->op->in[3]), *b = cu_part_of(l->p, s, &rule->op->in[4]);
    const struct sg_operand ends[2] = {cu_source(l->p, &rule->op->in[3]), cu_source(l->p, &rule->op->in[4])};
    return same_kind(weight_of(l, a), weight_of(l, b)) && ends[0].at % 8 == 0 && ends[1].at % 8 == 0;
}

/* CU_FUSION_LINEAR: norm, q k v z a b, convolution, delta rule, its norm and gate, output product. One cluster per key head. */
static int match_linear(const struct cu_matcher *l, uint32_t at, struct cu_fusion *w)
{
    if (!match_ends(l, at, 3, w)) return 0;
    const struct cu_step *s = w->step[0], *rule = w->step[1], *back = w->step[2];
    if (s->glu || !s->after || s->after->code != SG_OP_CONV || rule->conv != s->after || !back->norm ||
        !linear_fits(l, s, rule, back))
        return 0;
    /* A cluster computes one key head with its one or two value heads; more do not fit into its shared memory. */
    uint32_t v_per_k = rule->op->u.delta.v_heads / rule->op->u.delta.k_heads, d = weight_of(l, s->parts[0])->cols;
    if (v_per_k < 1 || v_per_k > 2 || d % (w->weights == CU_FUSION_Q8 ? 256 : CK_LINEAR_HEAD_DIM) ||
        d > (v_per_k == 2 ? 4096 : 2048))
        return 0;
    int packed = w->weights == CU_FUSION_PACKED;
    if (packed && !packed_linear_fits(l, s, rule)) return 0;
    w->kind = CU_FUSION_LINEAR;
    w->clusters = rule->op->u.delta.k_heads;
    w->cluster_cols = v_per_k * CK_LINEAR_HEAD_DIM;
    w->fn[0] = w->fn[1] = l->u->k.linear[w->weights][v_per_k == 2 ? 2 : d > 1024];
    /* A stage has eight rows; with packed weights 16, and one more stage has a and b. */
    uint32_t first = packed ? 3 + 2 * v_per_k : 4 + 4 * v_per_k;
    return make_ring(l->u, w, d, first, packed ? GROUP : GROUP / 2, CK_LINEAR_BYTES(d, v_per_k), 2 * CK_CLUSTER_STATIC_BYTES) &&
           finish_match(l, w, back);
}

/* The shapes that k_heads.cu supports: q, k, v and the gate are parts of the product, equal head widths, no soft cap and no
 * sinks, a power of two of rope pairs. */
static int heads_fit(const struct cu_matcher *l, const struct cu_step *s, const struct cu_step *step, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    uint32_t pairs = step->q_rope ? l->g->ropes[step->q_rope->u.rope.table].pairs : 0;
    for (int i = 0; i < 4; i++)
        if ((i < 3 || op->in[i].value >= 0) && !cu_part_of(l->p, s, cu_raw_of(step, i))) return 0;
    return a->d == a->dv && a->heads % a->kv_heads == 0 && !(a->softcap > 0) && a->sinks.tensor < 0 && pairs % 32 == 0 &&
           pairs <= a->d / 2 && !(pairs & (pairs - 1));
}

/* v and the gate are inputs of the attention op; q and k those of their norm, or of their rope without a norm. */
const struct sg_operand *cu_raw_of(const struct cu_step *s, int input)
{
    const struct sg_op *norm = input ? s->k_norm : s->q_norm, *rope = input ? s->k_rope : s->q_rope,
                       *attend = s->kind == CU_STEP_ATTEND ? s->attend : s->op;
    if (input > 1 || !rope) return &attend->in[input];
    return norm ? &norm->in[0] : &rope->in[0];
}

/* CU_FUSION_HEADS: norm, q k v and gate, norm and rope of heads, K and V store, attention, output product. A cluster computes
 * cluster_cols columns of a query head. */
static int match_heads(const struct cu_matcher *l, uint32_t at, struct cu_fusion *w)
{
    if (!match_ends(l, at, 3, w)) return 0;
    const struct cu_step *s = w->step[0], *step = w->step[1], *back = w->step[2];
    const struct sg_op *op = step->kind == CU_STEP_ATTEND ? step->attend : step->op;
    if (s->glu || s->after || back->norm || step->kind == CU_STEP_PRODUCT || op->code != SG_OP_ATTEND) return 0;
    uint32_t d = weight_of(l, s->parts[0])->cols, head = op->u.attend.d;
    uint32_t width = head == 64 ? 0 : head == 128 ? 1 : 2, form = d > 1024 ? 3 : width;
    if (!is_out(l, &back->op->in[0], op) || !heads_fit(l, s, step, op) || head != 64u << width || d > (width == 2 ? 2048 : 1024))
        return 0;
    w->kind = CU_FUSION_HEADS;
    w->cluster_cols = CK_HEADS_COLS(head);
    w->clusters = op->u.attend.heads * (head / w->cluster_cols);
    for (int kv = 0; kv < 2; kv++) w->fn[kv] = l->u->k.heads[w->weights][kv][form];
    if (!w->fn[0] || w->clusters > CK_CLUSTERS_MAX) return 0;
    /* Rows of the first product per block: k and v of the head, and the cluster's columns of q and of the gate. */
    uint32_t each = (2 * head + (op->in[3].value >= 0 ? 2 : 1) * w->cluster_cols) / CK_CLUSTER_BLOCKS;
    size_t rest = CK_HEADS_BYTES((size_t)head, (size_t)d);
    /* Q8_0: the scales of the output product are in shared memory for the whole launch. */
    if (w->weights == CU_FUSION_Q8) rest += (size_t)d / CK_CLUSTER_BLOCKS * (w->cluster_cols / 16);
    /* Packed weights: x has memory of its own, and the head's output needs more than its 16-bit parts. */
    if (w->weights == CU_FUSION_PACKED) rest += CK_CLUSTER_PACKED_X_BYTES(CK_PACKED_CHUNK) + CK_CLUSTER_PACKED_X_BYTES((size_t)d);
    return make_ring(l->u, w, d, (each + GROUP - 1) / GROUP, GROUP, rest, CK_HEADS_STATIC_BYTES(head)) &&
           finish_match(l, w, back);
}

/* Fills *w and returns 1 if a fusion of the kind begins with fused step `at`. */
static int (*const matchers[])(const struct cu_matcher *l, uint32_t at, struct cu_fusion *w) = {match_mlp, match_linear,
                                                                                                match_heads};

size_t cu_cluster_sums_bytes(const struct sg_program *p) { return p->sums_words * sizeof(uint64_t); }

/* Greedy, in order; fusions do not overlap. sums: two 64-bit words per column of the result. */
segue_status cu_cluster_match(struct sg_unit *u, struct sg_program *p, segue_error *err)
{
    struct cu_matcher l = {u, p, p->base.graph};
    if (!u->cluster_fusion || u->major != 9 || !u->d.tensor_map) return SEGUE_OK;
    p->fusions = sg_alloc((p->fused_n + 1) * sizeof *p->fusions);
    if (!p->fusions) return sg_no_memory("program of cuda", p->fused_n * sizeof *p->fusions, err);
    for (uint32_t at = 0; at < p->fused_n;) { /* the entry after the last one is scratch for a match that fails */
        struct cu_fusion *w = &p->fusions[p->fusions_n];
        size_t k = 0, kinds = sizeof matchers / sizeof *matchers;
        while (k < kinds && !matchers[k](&l, at, w)) k++;
        at += k < kinds ? w->steps : 1;
        if (k == kinds) continue;
        w->sums_at = p->sums_words;
        w->last = last_reader(&l, w->y);
        p->fused[w->first].fusion = w;
        p->fusions_n++;
        p->sums_words += 2 * (size_t)l.g->values[w->y].width;
    }
    return SEGUE_OK;
}
