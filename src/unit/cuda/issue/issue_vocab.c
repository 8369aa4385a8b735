/* issue_vocab.c: when the output head of one row uses k_vocab.cu (Hopper), and its arguments. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* UNIT: bytes of a weight row that a warp reads at once. EACH_Q8: columns of Q8_0 rows are a multiple. EACH: blocks per
 * multiprocessor. LEAST: bytes of weights from which the kernel is used. */
enum { WARPS = 8, UNIT = 128, EACH_Q8 = 256, EACH = 2, LEAST = 8 << 20 };

/* 1: the kernel computes the norm: of whole rows, without gate. */
static int norm_fits(const struct ck_norm *n)
{
    return !n->present || (n->groups == 1 && !n->gate.p && cu_aligned(n->weight) && cu_aligned(n->bias));
}

/* 1: one segment of contiguous rows of whole units, nothing added, everything aligned to 16 bytes. */
static int weights_fit(const struct ck_gemv *g, const struct ck_weight *w)
{
    const struct ck_segment *s = &g->segment[0];
    if (g->segments != 1 || g->glu || s->bias || s->residual.p || (uint64_t)s->n * g->pitch < LEAST) return 0;
    if (!cu_aligned(g->x.p) || !cu_aligned(s->data) || !cu_aligned(s->scales)) return 0;
    return w->kind == CK_Q8 ? g->k % EACH_Q8 == 0 && g->k == g->pitch : g->pitch % UNIT == 0 && g->k * 2 == g->pitch;
}

/* A warp has a fixed slice of the columns; blocks draw tiles of rows from a counter, so that fast ones compute more. */
int cu_vocab_fits(const struct cu_pass *p, const struct ck_gemv *g, const struct ck_weight *w, struct cu_vocab *out)
{
    const struct sg_unit *u = p->program->base.unit;
    uint32_t form = 0;
    /* form: log2 of the units that a warp reads of each weight row. */
    while (form < 2 && g->pitch > (uint32_t)WARPS * UNIT << form) form++;
    uint32_t units = 1u << form, rows = CK_VOCAB_GROUPS(units) * 8, warp_bytes = CK_VOCAB_WARP_BYTES(w->kind, units) * WARPS;
    if (!u->k.vocab[w->kind][form] || g->pitch > WARPS * UNIT * units || !weights_fit(g, w) || !norm_fits(&g->norm)) return 0;
    struct ck_vocab *a = &out->a;
    *out = (struct cu_vocab){.a = {.g = *g, .draws = (uint32_t *)(uintptr_t)p->lane->draws}, .fn = u->k.vocab[w->kind][form]};
    a->g.rows = 1;
    a->scale_bytes = w->kind == CK_Q8 ? g->scale_pitch * 2 : 0;
    while (1u << a->rows_log < rows) a->rows_log++;
    a->tiles = (g->segment[0].n + rows - 1) / rows;
    a->stage_bytes = rows * (g->pitch + a->scale_bytes);
    a->stages = (CU_VOCAB_SHARED_MAX - warp_bytes) / a->stage_bytes;
    if (a->stages > CK_VOCAB_STAGES) a->stages = CK_VOCAB_STAGES;
    out->blocks = EACH * p->sms < a->tiles ? EACH * p->sms : a->tiles;
    if (a->stages > a->tiles / out->blocks) a->stages = a->tiles / out->blocks; /* no more stages than every block has tiles */
    out->shared = (size_t)a->stages * a->stage_bytes + warp_bytes;
    return out->blocks <= CU_CHOICE_BLOCKS && a->stages > 0;
}
