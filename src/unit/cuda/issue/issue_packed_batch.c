/* issue_packed_batch.c: when a product of packed weights with several rows uses k_packed_batch.cu: up to 16 rows of Q4_0, Q4_K,
 * Q5_K and Q6_K. One row is faster with k_packed.cu; with "invariant=1" it is computed here too. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

enum { FROM = 2 };

static int has_form(uint32_t kind)
{
    return kind == CK_P_Q4_0 || kind == CK_P_Q4_K || kind == CK_P_Q5_K || kind == CK_P_Q6_K;
}

int cu_packed_batch_fits(const struct cu_pass *p, const struct cu_step *s, uint32_t rows)
{
    for (uint32_t i = 0; i < s->parts_n; i++)
        if (!has_form(cu_linear_tensor(p, s->parts[i])->w.kind)) return 0;
    return rows <= CU_DECODE_ROWS && rows >= (p->program->base.unit->invariant ? 1 : FROM);
}

/* How the warps of a block share the work. form: index of the kernel; rows: of weights, of a block. */
struct shape {
    uint32_t form, split_log, rows;
};

/* A block with more rows reads x less often from the L2 cache; two blocks for each multiprocessor are needed. */
static struct shape shape_of(const struct sg_unit *u, const struct ck_gemv *g, uint32_t all)
{
    uint32_t blocks = 2 * u->sms;
    if (all >= 64 * blocks) return (struct shape){1, 1, 128};
    if (g->glu || all >= 32 * blocks) return (struct shape){1, 3, 32};
    return (struct shape){0, 3, 16};
}

segue_status cu_issue_packed_batch(struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, uint32_t rows)
{
    const struct sg_unit *u = p->program->base.unit;
    uint32_t all = 0, blocks = 0;
    for (uint32_t i = 0; i < g->segments; i++) all += g->segment[i].n;
    const struct shape f = shape_of(u, g, all);
    const uint32_t each = g->glu ? f.rows / 2 : f.rows;
    struct ck_packed_batch b = {.x = (const void *)(uintptr_t)p->lane->x_split,
                                .low = (const void *)(uintptr_t)cu_split_low(p, g->k),
                                .rows = rows,
                                .k = g->k,
                                .segments = g->segments,
                                .glu = g->glu,
                                .act = g->act,
                                .split_log = f.split_log};
    for (uint32_t i = 0; i < g->segments; i++) {
        const struct ck_weight *w = &cu_linear_tensor(p, s->parts[i])->w;
        b.segment[i] = g->segment[i];
        b.of[i].kind = w->kind;
        b.of[i].pitch = w->pitch;
        b.first[i] = blocks;
        blocks += g->glu && i ? 0 : cu_pieces(g->segment[i].n, each);
    }
    SG_TRY(cu_split_x(p, s, g->k, 1, g, rows));
    return cu_launch(p, u->k.packed_batch[f.form][rows > 8], blocks, 1, 1, CK_BATCH_THREADS, 0, &b);
}
