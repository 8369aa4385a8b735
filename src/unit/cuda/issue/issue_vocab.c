/* issue_vocab.c: when the output head of one row uses k_vocab.cu (Hopper), and its arguments. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

enum { WARPS = 8, UNIT = 128, EACH_Q8 = 256, EACH = 2 /* blocks of a multiprocessor */, LEAST = 8 << 20 /* bytes of weights */ };

static int norm_fits(const struct ck_norm *n)
{
    return !n->present || (n->groups == 1 && !n->gate.p && cu_aligned(n->weight) && cu_aligned(n->bias));
}

/* Rows of weights without gaps, of whole units, x and they where 16 bytes are one load. */
static int weights_fit(const struct ck_gemv *g, const struct ck_weight *w)
{
    const struct ck_segment *s = &g->segment[0];
    if (g->segments != 1 || g->glu || s->bias || s->residual.p || (uint64_t)s->n * g->pitch < LEAST) return 0;
    if (!cu_aligned(g->x.p) || !cu_aligned(s->data) || !cu_aligned(s->scales)) return 0;
    return w->kind == CK_Q8 ? g->k % EACH_Q8 == 0 && g->k == g->pitch : g->pitch % UNIT == 0 && g->k * 2 == g->pitch;
}

int cu_vocab_fits(const struct cu_pass *p, const struct ck_gemv *g, const struct ck_weight *w, struct cu_vocab *out)
{
    const struct sg_unit *u = p->program->base.unit;
    uint32_t form = 0;
    while (form < 2 && g->pitch > (uint32_t)WARPS * UNIT << form) form++;
    uint32_t units = 1u << form, rows = CK_VOCAB_GROUPS(units) * 8, own = CK_VOCAB_WARP_BYTES(w->kind, units) * WARPS;
    if (!u->k.vocab[w->kind][form] || g->pitch > WARPS * UNIT * units || !weights_fit(g, w) || !norm_fits(&g->norm)) return 0;
    struct ck_vocab *a = &out->a;
    *out = (struct cu_vocab){.a = {.g = *g, .draws = (uint32_t *)(uintptr_t)p->lane->draws}, .fn = u->k.vocab[w->kind][form]};
    a->g.rows = 1;
    a->g.best_value = (float *)(uintptr_t)p->lane->best_value;
    a->g.best_index = (uint32_t *)(uintptr_t)p->lane->best_index;
    a->scale_bytes = w->kind == CK_Q8 ? g->scale_pitch * 2 : 0;
    while (1u << a->rows_log < rows) a->rows_log++;
    a->tiles = (g->segment[0].n + rows - 1) / rows;
    a->stage_bytes = rows * (g->pitch + a->scale_bytes);
    a->stages = (CU_VOCAB_SHARED_MAX - own) / a->stage_bytes;
    if (a->stages > CK_VOCAB_STAGES) a->stages = CK_VOCAB_STAGES;
    out->blocks = EACH * p->sms < a->tiles ? EACH * p->sms : a->tiles;
    if (a->stages > a->tiles / out->blocks) a->stages = a->tiles / out->blocks; /* all of a full ring's tiles are there */
    out->shared = (size_t)a->stages * a->stage_bytes + own;
    return out->blocks <= CU_CHOICE_BLOCKS && a->stages > 0;
}
