/* issue_batch.c: when a product uses k_batch.cu: 2 to 16 rows of 16-bit, fp8 or Q8_0 weights, on tensor cores. Fewer are faster
 * with other kernels. Here the sums of a row do not depend on the batch size; they differ from those of fewer rows only by the
 * order of fp32 additions. With "invariant=1" a single row is computed here too. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* Least rows, and those of Q8_0 with more than COLUMNS_Q8 columns (docs/log/CUDA.md); columns are a multiple of COLUMNS. */
enum { FROM = 2, FROM_Q8 = 3, COLUMNS_Q8 = 1024, COLUMNS = 32, COLUMNS_F8 = 64 };

/* For the widest linear: two parts of CU_DECODE_ROWS rows. */
size_t cu_batch_split_bytes(const struct sg_program *p)
{
    const struct sg_graph *g = p->base.graph;
    size_t max = COLUMNS;
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_LINEAR && g->tensors[g->ops[i].u.linear.weight.tensor]->cols > max)
            max = g->tensors[g->ops[i].u.linear.weight.tensor]->cols;
    return 2 * CU_DECODE_ROWS * max * sizeof(uint16_t);
}

int cu_batch_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, uint32_t rows)
{
    int wide = (w->kind == CK_F16 || w->kind == CK_BF16 || w->kind == CK_Q8) && w->cols % COLUMNS == 0,
        f8 = w->kind == CK_F8 && w->cols % COLUMNS_F8 == 0;
    uint32_t from = w->kind == CK_Q8 && w->cols > COLUMNS_Q8 ? FROM_Q8 : FROM;
    if (p->program->base.unit->invariant) from = 1;
    return rows >= from && rows <= CU_DECODE_ROWS && (wide || f8) && s->parts_n <= CK_SEGMENTS;
}

cu_ptr cu_split_low(const struct cu_pass *p, uint32_t cols)
{
    return p->lane->x_split + (size_t)CU_DECODE_ROWS * cols * sizeof(uint16_t);
}

/* A gated norm of whole rows is issued as an op before. */
segue_status cu_split_x(struct cu_pass *p, const struct cu_step *s, uint32_t cols, uint32_t bf16, const struct ck_gemv *g,
                        uint32_t rows)
{
    int inside = s->norm && (g->norm.groups > 1 || !g->norm.gate.p);
    if (s->norm && !inside) SG_TRY(cu_issue_small(p, s->norm));
    struct ck_narrow a = {.x = s->norm && !inside ? cu_view_of(p, &s->op->in[0]) : g->x,
                          .y = (void *)(uintptr_t)p->lane->x_split,
                          .low = (void *)(uintptr_t)cu_split_low(p, cols),
                          .rows = rows,
                          .k = cols,
                          .bf16 = bf16,
                          .norm = {.groups = 1}};
    if (inside) a.norm = g->norm;
    const struct ck_norm *n = &a.norm;
    int plain = !n->present || (n->groups == 1 && !n->layer && !n->bias && !n->gate.p && cu_aligned(n->weight));
    if (plain && cols % 4 == 0 && cu_is_float4(&a.x))
        return cu_launch(p, p->program->base.unit->k.split_x, rows, cu_pieces(cols, 4 * CK_SPLIT_X_THREADS), 1,
                         CK_SPLIT_X_THREADS, 0, &a);
    return cu_launch(p, p->program->base.unit->k.narrow, rows, 1, 1, 256, 0, &a);
}

/* Index of a weight type in the table of kernels. */
static uint32_t form_of(uint32_t kind) { return kind == CK_Q8 ? 3 : kind == CK_F8 ? 2 : kind == CK_BF16; }

/* A block computes 16 or 32 weight rows. With glu a block has rows of gate and of up, so segment 1 adds none. */
segue_status cu_issue_batch(struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, const struct ck_gemv *g,
                            uint32_t rows)
{
    const struct sg_unit *u = p->program->base.unit;
    struct ck_batch b = {.x = (const void *)(uintptr_t)p->lane->x_split,
                         .low = (const void *)(uintptr_t)cu_split_low(p, w->cols),
                         .rows = rows,
                         .k = w->cols,
                         .pitch = w->pitch,
                         .scale_pitch = w->scale_pitch,
                         .segments = g->segments,
                         .glu = g->glu,
                         .act = g->act};
    uint32_t all = 0, wide, blocks = 0;
    for (uint32_t i = 0; i < g->segments; i++) all += g->segment[i].n;
    /* Blocks of 32 weight rows read x half as often. */
    wide = g->glu || all >= 32 * u->sms; /* else too few blocks for the GPU */
    for (uint32_t i = 0; i < g->segments; i++) {
        b.segment[i] = g->segment[i];
        b.first[i] = blocks;
        blocks += g->glu ? (i ? 0 : (g->segment[i].n + 15) / 16) : (g->segment[i].n + (wide ? 31 : 15)) / (wide ? 32 : 16);
    }
    /* Two launches: x is split once for all blocks. */
    SG_TRY(cu_split_x(p, s, w->cols, w->kind != CK_F16, g, rows));
    return cu_launch(p, u->k.batch[form_of(w->kind)][wide][rows > 8], blocks, 1, 1, CK_BATCH_THREADS, 0, &b);
}
