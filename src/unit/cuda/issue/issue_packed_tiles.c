/* issue_packed_tiles.c: when a product of several rows uses k_packed_tiles.cu (Hopper, packed weights of one kind), and its
 * arguments. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

enum { FEW = 8, CHUNK = CK_PACKED_CHUNK }; /* FEW: rows up to which other kernels are faster (docs/log/CUDA.md) */

/* Sizes of the segments; 0: they differ in kind. */
static int describe_segments(const struct cu_pass *p, const struct cu_step *s, struct ck_packed_tiles *a)
{
    for (uint32_t i = 0; i < s->parts_n; i++) {
        const struct ck_weight *w = &cu_linear_tensor(p, s->parts[i])->w;
        if (w->kind != cu_linear_tensor(p, s->parts[0])->w.kind) return 0;
        a->of[i].block = (uint16_t)(w->pitch * 8 / (w->cols / CHUNK));
        a->of[i].group = (uint16_t)(w->group % CK_GROUP_BF16);
        a->of[i].bf16 = w->group >= CK_GROUP_BF16;
        a->of[i].pitch = w->pitch;
        if (8u * a->of[i].block > a->stage_bytes) a->stage_bytes = 8u * a->of[i].block;
    }
    return 1;
}

/* 1: the other kernels are slower: k_packed_few.cu (Q4_0), where x, gated norms and the convolution are launches of their own;
 * k_packed_rows.cu (kinds that k_packed_batch.cu lacks), eight rows per launch. With "invariant=1" the kernel must not depend on
 * the number of rows, and for one row the others are faster. */
static int pays(const struct sg_unit *u, uint32_t kind, uint32_t rows, const struct ck_gemv *g)
{
    if (u->invariant || rows < 2) return 0;
    if (cu_packed_batch_form(kind)) return rows > FEW && u->packed < 2 && cu_packed_few(g);
    return rows > FEW || u->packed > 1;
}

int cu_packed_tiles_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, uint32_t rows,
                         struct ck_packed_tiles *a, struct cu_tiled *out)
{
    struct sg_unit *u = p->program->base.unit;
    const uint32_t kind = cu_linear_tensor(p, s->parts[0])->w.kind;
    if (rows > CU_DECODE_ROWS || kind < CK_PACKED || !u->k.packed_tiles[kind - CK_PACKED] || !pays(u, kind, rows, g)) return 0;
    *a = (struct ck_packed_tiles){.chunks = g->k / CHUNK};
    if (!describe_segments(p, s, a) || !cu_tiles_plan(p, s, g, CHUNK, a->stage_bytes, &a->t, out)) return 0;
    out->fn = u->k.packed_tiles[kind - CK_PACKED];
    return 1;
}
