/* issue_digits.c: when a product of one row with large weights uses k_digits.cu (Hopper), and its arguments.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* Columns of x. EACH: multiples that give every warp whole groups of 128 columns; EACH_Q8: and scales in multiples of 16
 * bytes. WIDEST: maximum; NORMED: maximum with a norm or a convolution. LEAST: from here on the kernel is faster than the
 * others. */
enum { EACH = 1024, EACH_Q8 = 2048, WIDEST = 16384, NORMED = 4096, LEAST = 2048 };

/* 1: the kernel computes the norm: RMS of whole rows without gate, or of groups of 128. */
static int norm_fits(const struct ck_norm *n, uint32_t k)
{
    if (!n->present) return 1;
    if (k > NORMED || n->layer || n->bias || !cu_aligned(n->weight) || !cu_aligned(n->gate.p)) return 0;
    return n->groups == 1 ? !n->gate.p : k / n->groups == 128;
}

/* Tiles of all segments, 16 rows each; with glu eight rows of each. One block per multiprocessor at most. */
static void count_tiles(struct ck_stream *a, uint32_t sms, uint32_t *blocks)
{
    uint32_t outs = a->g.glu ? 8 : 16;
    a->split_log = 3;
    a->per_log = 4;
    a->outs_log = a->g.glu ? 3 : 4;
    for (uint32_t i = 0; i < CK_SEGMENTS; i++) {
        a->first[i] = i < a->g.segments && (!a->g.glu || !i) ? a->tiles : UINT32_MAX;
        if (a->first[i] != UINT32_MAX) a->tiles += (a->g.segment[i].n + outs - 1) / outs;
    }
    *blocks = a->tiles < sms ? a->tiles : sms;
}

/* 1: faster than the kernel that would be used instead (measured on H200). Q8_0: than k_wide.cu. 16 bits: than k_stream.cu, and
 * with 2048 columns than k_wide.cu too. */
static int is_faster(uint32_t kind, uint32_t k, int streamed)
{
    return kind == CK_Q8 ? !streamed : k == LEAST || (k > LEAST && streamed);
}

/* Steps of weights that a block prefetches before x is available; all: steps of a block. Measured on H200: without a norm the
 * whole ring, since the launch starts late; with a norm three quarters of it; Q8_0 half. */
static uint32_t prefetch_steps(const struct ck_gemv *g, uint32_t kind, uint32_t all)
{
    uint32_t early = kind == CK_Q8 ? CK_DIGITS_STEPS / 2 : g->norm.present ? CK_DIGITS_STEPS * 3 / 4 : CK_DIGITS_STEPS;
    return kind != CK_Q8 && all < early ? all : early;
}

/* cu_digits_fits without the gate fields. */
static int fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, int streamed, struct cu_streamed *out)
{
    const struct sg_unit *u = p->program->base.unit;
    const struct ck_weight *w = &cu_linear_tensor(p, s->parts[0])->w;
    /* A warp has an eighth of the columns. */
    uint32_t width = g->k / 8, form = width <= 4 * 128 ? 0 : width <= 8 * 128 ? 1 : 2;
    if (!u->k.digits[w->kind][form] || !is_faster(w->kind, g->k, streamed) || g->k % (w->kind == CK_Q8 ? EACH_Q8 : EACH) ||
        g->k > WIDEST || !cu_aligned(g->x.p) || !norm_fits(&g->norm, g->k))
        return 0;
    for (uint32_t i = 0; i < g->segments; i++)
        if (!cu_aligned(g->segment[i].data) || !cu_aligned(g->segment[i].scales)) return 0;
    *out = (struct cu_streamed){.a = {.g = *g, .scale_bytes = w->kind == CK_Q8 ? g->scale_pitch * 2 : 0},
                                .fn = u->k.digits[w->kind][form],
                                .threads = CK_DIGITS_THREADS};
    cu_epilogue_of(p, s, &out->a.after);
    if (out->a.after.kind == CK_EPILOGUE_CONV && (g->k > NORMED || out->a.after.taps > CK_STREAM_TAPS)) return 0;
    out->a.g.rows = 1;
    count_tiles(&out->a, p->sms, &out->blocks);
    out->a.stages = w->kind == CK_Q8 ? 3 : 0;
    uint32_t all = (out->a.tiles + out->blocks - 1) / out->blocks * ((width * 2 + 127) / 128), steps = CK_DIGITS_STEPS;
    out->a.early = prefetch_steps(g, w->kind, all);
    if (w->kind != CK_Q8 && all <= CK_DIGITS_STEPS / 2) steps = all; /* a small ring: blocks of the next product fit beside it */
    out->a.stage_bytes = steps * 2048 + out->a.stages * 512;
    out->shared = CK_DIGITS_BYTES(w->kind, g->k, CK_DIGITS_TURN(out->a.tiles, out->blocks), out->a.stage_bytes);
    return out->shared + CU_DIGITS_STATIC <= u->shared_max;
}

/* 1 + the part to be stored after SiLU, 0: none. The product two steps later has that part as the gate of its norm, and certainly
 * uses this kernel too. */
static uint32_t gate_of(const struct cu_pass *p, const struct cu_step *s, uint32_t k)
{
    struct cu_streamed other;
    if (!s->gate) return 0;
    struct ck_gemv next = cu_gemv_of(p, s + 2);
    uint32_t kind = cu_linear_tensor(p, s[2].parts[0])->w.kind;
    return next.k == k && k == LEAST && (kind == CK_BF16 || kind == CK_F16) && fits(p, s + 2, &next, 0, &other) ? s->gate : 0;
}

/* gate_done: the gate of this product's norm was stored after SiLU by an earlier product. */
int cu_digits_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, int streamed,
                   struct cu_streamed *out)
{
    if (!fits(p, s, g, streamed, out)) return 0;
    out->a.gates = gate_of(p, s, g->k);
    out->a.gate_done = s->norm && g->norm.gate.p && p->gate == 1 + (uint32_t)s->norm->in[1].value;
    return 1;
}
