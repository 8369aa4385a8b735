/* issue_cluster.c: launches of cluster fusions, in passes of one row. The output of a fusion stays as partial sums
 * (fixed-point words of the lane). Another fusion reads the sums directly; for any other step they are first added up into the
 * value buffer. The sums are zero when a pass begins. Later kernels of the pass clear them after their last reader (struct
 * ck_fixed_sums). SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/issue/issue.h"
#include "unit/cuda/kernels/include/params/kparams_cluster_packed.h"

enum { SUM_THREADS = 64 };

/* --- buffers of partial sums --- */

/* 1: fusions can be used in this pass (one row). */
static int can_fuse(const struct cu_pass *p) { return p->program->fusions_n && p->rows_n[0] == 1 && p->spans_n == 1; }

/* The flag is 0 while a pass is issued: after a failure the sums are in an unknown state and the next pass clears all of them. */
segue_status cu_cluster_pass_begin(struct cu_pass *p)
{
    const struct cu_driver *d = &p->program->base.unit->d;
    memset(p->in_parts, 0, sizeof p->in_parts);
    p->used_n = 0;
    if (!can_fuse(p)) return SEGUE_OK;
    int zero = p->lane->partial_sums_zero;
    p->lane->partial_sums_zero = 0;
    if (zero) return SEGUE_OK;
    return cu_check(d, d->memset_d8(p->lane->partial_sums, 0, cu_cluster_sums_bytes(p->program), p->lane->stream), "run", p->err);
}

void cu_cluster_pass_done(struct cu_pass *p)
{
    if (can_fuse(p)) p->lane->partial_sums_zero = 1;
}

/* The fusion's fixed-point sums: two words per column of its result. */
static uint64_t *sums_of(const struct cu_pass *p, const struct cu_fusion *w)
{
    return (uint64_t *)(uintptr_t)p->lane->partial_sums + w->sums_at;
}

static uint32_t width_of(const struct cu_pass *p, const struct cu_fusion *w)
{
    return p->program->base.graph->values[w->y].width;
}

/* 1: steps that follow may read the fusion's sums. */
static int is_still_read(const struct cu_pass *p, const struct cu_fusion *w)
{
    return p->in_parts[0].fusion == w || p->in_parts[1].fusion == w;
}

static void remove_used(struct cu_pass *p, uint32_t i)
{
    p->used_n--;
    memmove(p->used + i, p->used + i + 1, (p->used_n - i) * sizeof *p->used);
}

/* Takes the oldest fusion whose sums no later step reads from the list of those to clear; NULL: none. */
static const struct cu_fusion *next_to_clear(struct cu_pass *p)
{
    uint32_t i = 0;
    while (i < p->used_n && is_still_read(p, p->used[i])) i++;
    if (i == p->used_n) return NULL;
    const struct cu_fusion *w = p->used[i];
    remove_used(p, i);
    return w;
}

/* What the next kernel should clear, as kernel argument; empty: nothing. */
static struct ck_clear clear_of(struct cu_pass *p)
{
    const struct cu_fusion *w = next_to_clear(p);
    return w ? (struct ck_clear){sums_of(p, w), width_of(p, w)} : (struct ck_clear){0};
}

/* Clears sums with memset until at most n fusions are in the list, or only those that are still read. */
static segue_status clear_used(struct cu_pass *p, uint32_t n)
{
    const struct cu_driver *d = &p->program->base.unit->d;
    while (p->used_n > n) {
        struct ck_clear c = clear_of(p);
        if (!c.fours) break;
        SG_TRY(cu_check(d, d->memset_d8((cu_ptr)(uintptr_t)c.p, 0, (size_t)c.fours * 16, p->lane->stream), "run", p->err));
    }
    return SEGUE_OK;
}

/* At the end nothing is read any more, so everything is cleared. Part of the captured graph. */
segue_status cu_cluster_pass_end(struct cu_pass *p)
{
    memset(p->in_parts, 0, sizeof p->in_parts);
    return clear_used(p, 0);
}

/* --- values that are partial sums --- */

/* The operand that is read in place of x: the input of a selection when all rows are selected. */
static struct sg_operand source_of(const struct cu_pass *p, const struct sg_operand *x)
{
    return p->rows_n[0] == p->rows_n[1] ? cu_source(p->program, x) : *x;
}

/* Index of a value in in_parts; 2: its values are in the value buffer. */
static uint32_t partial_index(const struct cu_pass *p, int32_t value)
{
    uint32_t k = 0;
    while (k < 2 && (!p->in_parts[k].fusion || p->in_parts[k].fusion->y != value)) k++;
    return k;
}

/* Removes values from in_parts that no step from s on reads. */
static void drop_unread(struct cu_pass *p, const struct cu_step *s)
{
    for (int k = 0; k < 2; k++)
        if (p->in_parts[k].fusion && p->in_parts[k].fusion->last < (size_t)(s - p->program->fused)) p->in_parts[k].fusion = NULL;
}

/* 1: the launch that writes the sums is the previous one and may still run when the next kernel starts (dependent launch).
 * Without partial sums: 0. */
static int is_concurrent(const struct cu_pass *p, uint32_t reads)
{
    return reads < 2 && p->in_parts[reads].launched == p->launches && p->program->base.unit->pdl;
}

/* Adds up the partial sums of in_parts[k] into the value buffer. The kernel clears these sums, and those of another fusion. */
static segue_status sum_partials(struct cu_pass *p, uint32_t k)
{
    const struct cu_fusion *w = p->in_parts[k].fusion;
    struct sg_operand whole = {.value = w->y, .width = width_of(p, w)};
    struct ck_sum_parts a = {.x = {sums_of(p, w), w->clusters, whole.width, (uint32_t)is_concurrent(p, k)},
                       .y = cu_view_of(p, &whole).p};
    a.clear = clear_of(p);
    p->in_parts[k].fusion = NULL;
    for (uint32_t i = p->used_n; i; i--)
        if (p->used[i - 1] == w) remove_used(p, i - 1);
    return cu_launch(p, p->program->base.unit->k.sum_parts, (whole.width + SUM_THREADS - 1) / SUM_THREADS, 1, 1, SUM_THREADS, 0,
                     &a);
}

segue_status cu_cluster_settle(struct cu_pass *p, const struct cu_step *s)
{
    const struct sg_op *ops[CU_STEP_OPS];
    if (!p->in_parts[0].fusion && !p->in_parts[1].fusion) return SEGUE_OK;
    if (s->kind == CU_STEP_OP && s->op->code == SG_OP_ROWS && p->rows_n[0] == p->rows_n[1] &&
        p->program->value_locs[s->op->out].from >= 0)
        return SEGUE_OK; /* the selection copies nothing */
    drop_unread(p, s);
    for (uint32_t n = cu_step_ops(s, ops); n; n--)
        for (int i = 0; i < SG_OP_INPUTS; i++) {
            uint32_t k = partial_index(p, source_of(p, &ops[n - 1]->in[i]).value);
            if (k < 2) SG_TRY(sum_partials(p, k));
        }
    return SEGUE_OK;
}

/* --- fusions --- */

/* The input of a fusion: fp32 values (n 0), or the partial sums of n clusters. 0: the kernel cannot read it, because it is not
 * aligned, or a column range of partial sums. */
static int x_parts_of(const struct cu_pass *p, const struct cu_fusion *w, struct ck_fixed_sums *out)
{
    struct sg_operand x = source_of(p, &w->x);
    uint32_t k = partial_index(p, x.value);
    struct ck_view v = cu_view_of(p, &w->x);
    *out = (struct ck_fixed_sums){v.p, 0, w->x.width, 0};
    if (k == 2) return cu_is_float4(&v);
    out->p = sums_of(p, p->in_parts[k].fusion);
    out->n = p->in_parts[k].fusion->clusters;
    return !x.at && x.width == width_of(p, p->in_parts[k].fusion);
}

/* Returns the entry of in_parts for the result of w: not the one that w reads. What is there now is added up first. Also makes
 * space in the list of sums to clear. */
static segue_status claim_partial(struct cu_pass *p, const struct cu_fusion *w, struct ck_fixed_sums *x,
                                  struct cu_partial_value **out)
{
    /* k: the entry that is not read, preferably an empty one. */
    uint32_t reads = partial_index(p, source_of(p, &w->x).value), k = reads == 0 || (reads == 2 && p->in_parts[0].fusion);
    if (p->in_parts[k].fusion) SG_TRY(sum_partials(p, k));
    x->live = is_concurrent(p, reads);
    *out = &p->in_parts[k];
    return clear_used(p, sizeof p->used / sizeof *p->used - 1);
}

/* The weight rows that compute operand x in product s; .data NULL: no part of s does (an absent gate). */
static struct ck_cluster_weight weight_rows_of(const struct cu_pass *p, const struct cu_step *s, const struct sg_operand *x)
{
    const struct sg_op *part = cu_part_of(p->program, s, x);
    if (!part) return (struct ck_cluster_weight){0};
    const struct sg_linear *l = &part->u.linear;
    const struct ck_weight *w = &cu_weight_of(p->program->weights, p->program->base.graph->tensors[l->weight.tensor])->w;
    uint32_t at = cu_source(p->program, x).at;
    const float *bias = cu_vector_of(p, &l->bias);
    size_t row = (size_t)l->weight.at + at;
    return (struct ck_cluster_weight){(const unsigned char *)w->data + row * w->pitch, bias ? bias + at : NULL, w->pitch,
                                   w->kind == CK_Q8 ? (const uint16_t *)w->scales + row * w->scale_pitch : NULL};
}

/* Scales of the second product's weight; empty unless it is Q8_0. */
static struct ck_cluster_scales scales_of(const struct cu_pass *p, const struct cu_step *back)
{
    const struct sg_linear *l = &back->op->u.linear;
    const struct ck_weight *w = &cu_weight_of(p->program->weights, p->program->base.graph->tensors[l->weight.tensor])->w;
    if (w->kind != CK_Q8) return (struct ck_cluster_scales){0};
    return (struct ck_cluster_scales){(const uint16_t *)w->scales + (size_t)l->weight.at * w->scale_pitch, w->scale_pitch};
}

static struct ck_packed_kind packed_kind(const struct ck_weight *w)
{
    return (struct ck_packed_kind){(uint16_t)w->kind, (uint16_t)(w->group % CK_GROUP_BF16), w->group >= CK_GROUP_BF16,
                                   (uint16_t)(8 * w->pitch / (w->cols / CK_PACKED_CHUNK))};
}

static const struct ck_weight *weight_of(const struct cu_pass *p, const struct sg_op *linear)
{
    return &cu_weight_of(p->program->weights, p->program->base.graph->tensors[linear->u.linear.weight.tensor])->w;
}

/* The kinds of the weights that compute in[0..n-1] from step s, and the second weight. Empty unless they are packed. */
static struct ck_packed_kinds kinds_of(const struct cu_pass *p, const struct cu_fusion *w, const struct sg_operand *const in[],
                                       uint32_t n)
{
    struct ck_packed_kinds k = {0};
    const struct sg_op *back = w->step[w->kind == CU_FUSION_MLP ? 1 : 2]->op;
    if (w->weights != CU_FUSION_PACKED) return k;
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_op *part = cu_part_of(p->program, w->step[0], in[i]);
        if (part) k.in[i] = packed_kind(weight_of(p, part));
    }
    const struct ck_weight *out = weight_of(p, back);
    k.out = packed_kind(out);
    k.data = (const unsigned char *)out->data + (size_t)back->u.linear.weight.at * out->pitch;
    k.pitch = out->pitch;
    return k;
}

/* 1: the pass runs in an SM partition, which one fusion fills. Kernels then start their dependents late (field `late`): blocks of
 * the next fusion that wait for free multiprocessors would delay blocks of the other partition in the same hardware queue. */
static uint32_t is_partitioned(const struct cu_pass *p) { return p->sms != p->program->base.unit->sms; }

/* Both instances are the same for fusions that do not read K and V. */
static segue_status launch_fusion(struct cu_pass *p, const struct cu_fusion *w, const void *args)
{
    cu_fn fn = w->fn[cu_storage_of(p->kv) == CK_KV_BF16];
    return cu_launch_clusters(p, fn, w->clusters * CK_CLUSTER_BLOCKS, CK_CLUSTER_BLOCKS, CK_CLUSTER_THREADS, w->shared, args);
}

/* Without a gate the only part is `up`. */
static segue_status issue_mlp(struct cu_pass *p, const struct cu_fusion *w, const struct ck_fixed_sums *x, struct ck_clear clear)
{
    const struct cu_step *s = w->step[0], *back = w->step[1];
    const struct sg_operand up = {.value = s->parts[s->glu != NULL]->out}, gate = {.value = s->parts[0]->out};
    struct ck_mlp a = {.x = *x,
                       .norm = cu_norm_of(p, s->norm),
                       .up = weight_rows_of(p, s, &up),
                       .down_bias = cu_vector_of(p, &back->op->u.linear.bias),
                       .down_scales = scales_of(p, back),
                       .y = sums_of(p, w),
                       .clear = clear,
                       .late = is_partitioned(p),
                       .d = x->width,
                       .act = s->glu ? s->glu->u.glu.act : s->after->u.act.act,
                       .units = w->cluster_cols,
                       .stages = w->stages,
                       .stage_bytes = w->stage_bytes,
                       .fills = w->fills,
                       .ahead = w->ahead,
                       .down_rows = w->back_rows};
    if (s->glu) a.gate = weight_rows_of(p, s, &gate);
    memcpy(a.down.v, w->map, sizeof w->map);
    const struct sg_operand *const in[] = {&up};
    struct ck_mlp_packed packed = {a, kinds_of(p, w, in, 1)};
    return launch_fusion(p, w, &packed);
}

/* q, k and v are column ranges of the convolution's input, which parts of the product compute. */
static segue_status issue_linear(struct cu_pass *p, const struct cu_fusion *w, const struct ck_fixed_sums *x,
                                 struct ck_clear clear)
{
    const struct cu_step *s = w->step[0], *back = w->step[2];
    const struct sg_op *rule = w->step[1]->op, *conv = s->after;
    const struct sg_delta *d = &rule->u.delta;
    const struct sg_conv *c = &conv->u.conv;
    /* The state of convolution and delta rule is updated by the same launch. */
    struct ck_linear a = {.x = *x,
                          .norm = cu_norm_of(p, s->norm),
                          .pass = cu_kernel_pass(p),
                          .conv = {.weight = cu_vector_of(p, &c->weight),
                                   .bias = cu_vector_of(p, &c->bias),
                                   .taps = c->taps,
                                   .slot = (uint32_t)c->slot,
                                   .width = conv->in[0].width,
                                   .at = {rule->in[0].at, rule->in[1].at, rule->in[2].at}},
                          .decay = cu_vector_of(p, &d->decay),
                          .dt = cu_vector_of(p, &d->dt),
                          .is_log = d->decay_is_log,
                          .slot = (uint32_t)d->slot,
                          .l2_eps = d->l2_eps,
                          .gated = cu_norm_of(p, back->norm),
                          .out_bias = cu_vector_of(p, &back->op->u.linear.bias),
                          .y = sums_of(p, w),
                          .clear = clear,
                          .late = is_partitioned(p),
                          .d = x->width,
                          .k_heads = d->k_heads,
                          .v_heads = d->v_heads,
                          .stages = w->stages,
                          .stage_bytes = w->stage_bytes,
                          .ahead = w->ahead,
                          .out_rows = w->back_rows};
    a.out_scales = scales_of(p, back);
    struct sg_operand raw[3]; /* q, k, v before the convolution */
    for (int i = 0; i < 3; i++) {
        raw[i] = (struct sg_operand){.value = conv->in[0].value, .at = rule->in[i].at};
        a.in[CK_LINEAR_Q + i] = weight_rows_of(p, s, &raw[i]);
    }
    a.in[CK_LINEAR_Z] = weight_rows_of(p, s, &back->norm->in[1]);
    a.in[CK_LINEAR_A] = weight_rows_of(p, s, &rule->in[3]);
    a.in[CK_LINEAR_B] = weight_rows_of(p, s, &rule->in[4]);
    memcpy(a.out.v, w->map, sizeof w->map);
    const struct sg_operand *const in[] = {&raw[0], &raw[1], &raw[2], &back->norm->in[1], &rule->in[3], &rule->in[4]};
    struct ck_linear_packed packed = {a, kinds_of(p, w, in, CK_LINEAR_INS)};
    return launch_fusion(p, w, &packed);
}

/* Without rope there is no table, and no pairs are rotated. */
static segue_status issue_heads(struct cu_pass *p, const struct cu_fusion *w, const struct ck_fixed_sums *x,
                                struct ck_clear clear)
{
    const struct cu_step *s = w->step[0], *step = w->step[1];
    const struct sg_op *rope = step->q_rope, *op = step->kind == CU_STEP_ATTEND ? step->attend : step->op;
    const struct sg_attend *t = &op->u.attend;
    const struct sg_rope_table *table = rope ? &p->program->base.graph->ropes[rope->u.rope.table] : NULL;
    struct ck_heads a = {.x = *x,
                         .norm = cu_norm_of(p, s->norm),
                         .q_norm = cu_norm_of(p, step->q_norm),
                         .k_norm = cu_norm_of(p, step->k_norm),
                         .out_bias = cu_vector_of(p, &w->step[2]->op->u.linear.bias),
                         .out_scales = scales_of(p, w->step[2]),
                         .y = sums_of(p, w),
                         .clear = clear,
                         .late = is_partitioned(p),
                         .pass = cu_kernel_pass(p),
                         .inverse = table ? (const float *)(uintptr_t)p->program->inverse[rope->u.rope.table] : NULL,
                         .mscale = table ? table->mscale : 1,
                         .scale = t->scale,
                         .d = x->width,
                         .kv_heads = t->kv_heads,
                         .pairs = table ? table->pairs : 0,
                         .slot_k = (uint32_t)t->slot_k,
                         .slot_v = (uint32_t)t->slot_v,
                         .stages = w->stages,
                         .stage_bytes = w->stage_bytes,
                         .fills = w->fills,
                         .ahead = w->ahead,
                         .out_rows = w->back_rows};
    const struct sg_operand *in[4];
    for (int i = 0; i < 4; i++) in[i] = cu_raw_of(step, i), a.in[i] = weight_rows_of(p, s, in[i]);
    memcpy(a.out.v, w->map, sizeof w->map);
    struct ck_heads_packed packed = {a, kinds_of(p, w, in, 4)};
    return launch_fusion(p, w, &packed);
}

/* 1: k_heads.cu supports the pass: few positions, all inside of the window, K and V in 16 bits. */
static int heads_supported(const struct cu_pass *p, const struct cu_fusion *w)
{
    const struct cu_step *step = w->step[1];
    uint32_t window = (step->kind == CU_STEP_ATTEND ? step->attend : step->op)->u.attend.window;
    enum ck_storage storage = cu_storage_of(p->kv);
    return (storage == CK_KV_F16 || storage == CK_KV_BF16) && p->chunks <= CU_HEADS_CHUNKS &&
           (!window || window >= p->chunks * CK_CHUNK);
}

/* By kind of fusion. x: the input; clear: what the kernel clears in addition. */
typedef segue_status issue_fn(struct cu_pass *p, const struct cu_fusion *w, const struct ck_fixed_sums *x, struct ck_clear clear);
static issue_fn *const issue[] = {
    [CU_FUSION_MLP] = issue_mlp,
    [CU_FUSION_LINEAR] = issue_linear,
    [CU_FUSION_HEADS] = issue_heads,
};

/* A fusion that cannot be used leaves its steps to the other kernels. */
segue_status cu_cluster_issue(struct cu_pass *p, const struct cu_step *s, uint32_t *steps)
{
    const struct cu_fusion *w = s->fusion;
    struct ck_fixed_sums x;
    struct cu_partial_value *entry;
    *steps = 0;
    if (!w || !can_fuse(p) || p->spans || p->rows_n[p->program->base.graph->values[w->y].wanted] != 1 ||
        (w->kind == CU_FUSION_HEADS && !heads_supported(p, w)) || !x_parts_of(p, w, &x))
        return SEGUE_OK;
    drop_unread(p, s);
    SG_TRY(claim_partial(p, w, &x, &entry));
    SG_TRY(issue[w->kind](p, w, &x, clear_of(p)));
    /* launched counts this launch, so the next one sees it as its predecessor. */
    p->used[p->used_n++] = w;
    *entry = (struct cu_partial_value){w, p->launches};
    *steps = w->steps;
    return SEGUE_OK;
}
