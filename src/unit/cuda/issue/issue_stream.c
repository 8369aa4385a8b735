/* issue_stream.c: when a product of one row uses k_stream.cu, and its arguments: how many warps share a weight row, the size
 * of a tile, and how many tiles are buffered in shared memory. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* Maximal bytes of weights per multiprocessor. For larger products k_gemv.cu is faster, since this kernel is bound by arithmetic
 * (measured on H200). Rows of more than LONG bytes and quantised weights have lower limits. */
enum { WARPS = 8, BYTES_MAX = 512 << 10, BYTES_MAX_LONG = 200 << 10, BYTES_MAX_QUANTISED = 128 << 10, LONG = 4096 };

/* Bytes of one entry of scales, for weights whose scales are copied with them. FP8 has one per row, which is read separately. */
static uint32_t scale_size(uint32_t kind)
{
    return kind == CK_Q8 ? 2 : kind == CK_Q4 ? 4 : kind == CK_G8 || kind == CK_G4 ? 8 : 0;
}

/* 1: the kernel computes the norm. A group is reduced by the lanes that have it, so these are a power of two within a warp. */
static int norm_fits(const struct ck_norm *n, uint32_t k, uint32_t pieces, uint32_t numbers)
{
    if (!n->present) return 1;
    if (pieces * numbers > CK_STREAM_NORMED || !cu_aligned(n->weight) || !cu_aligned(n->bias) || !cu_aligned(n->gate.p)) return 0;
    if (n->groups == 1) return 1;
    uint32_t group = k / n->groups, lanes = group / numbers;
    return group % numbers == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0;
}

/* 1: addresses and sizes of all bulk copies are multiples of 16 bytes. */
static int rows_fit(const struct ck_gemv *g, uint32_t scale_bytes, uint32_t outs)
{
    for (uint32_t i = 0; i < g->segments; i++) {
        const struct ck_segment *s = &g->segment[i];
        if (!cu_aligned(s->data) || !cu_aligned(s->scales)) return 0;
        if (scale_bytes % 16 && (s->at * scale_bytes % 16 || outs * scale_bytes % 16 || s->n * scale_bytes % 16)) return 0;
    }
    return 1;
}

/* split: warps per weight row, so that a warp has at most 32 pieces of 16 bytes. form: log2 of the pieces per thread. A tile is
 * what 8 warps compute at once. */
int cu_stream_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, struct cu_streamed *out)
{
    struct sg_unit *u = p->program->base.unit;
    const struct cu_tensor *t = cu_linear_tensor(p, s->parts[0]);
    uint32_t kind = t->w.kind, n = cu_weights_per_piece(kind), all = g->pitch / 16, split = 1, form = 0;
    if (!u->stream || u->major != 9 || g->k % 4 || !cu_aligned(g->x.p)) return 0;
    /* all: pieces of 16 bytes in a weight row. */
    while (split < WARPS && all > 32 * split) split *= 2;
    while ((32 * split) << form < all) form++;
    if (form > 3 || !u->k.stream[kind][form]) return 0;
    uint32_t pieces = 1u << form, per = CK_STREAM_ROWS(pieces) * WARPS / split, outs = g->glu ? per / 2 : per;
    uint32_t scale_bytes = g->scale_pitch * scale_size(kind);
    if (!outs || !norm_fits(&g->norm, g->k, pieces, n) || !rows_fit(g, scale_bytes, outs)) return 0;
    *out = (struct cu_streamed){.a = {.g = *g, .scale_bytes = scale_bytes},
                                .fn = u->k.stream[kind][form],
                                .threads = CK_STREAM_THREADS};
    out->a.g.split = split;
    out->a.g.rows = 1;
    cu_epilogue_of(p, s, &out->a.after);
    if (out->a.after.kind == CK_EPILOGUE_CONV && (pieces * n > CK_STREAM_NORMED || out->a.after.taps > CK_STREAM_TAPS)) return 0;
    for (uint32_t i = 0; i < CK_SEGMENTS; i++) {
        out->a.first[i] = i < g->segments && (!g->glu || !i) ? out->a.tiles : UINT32_MAX;
        if (out->a.first[i] != UINT32_MAX) out->a.tiles += (g->segment[i].n + outs - 1) / outs;
    }
    while (1u << out->a.split_log < split) out->a.split_log++;
    while (1u << out->a.per_log < per) out->a.per_log++;
    while (1u << out->a.outs_log < outs) out->a.outs_log++;
    out->a.stage_bytes = (per * (g->pitch + scale_bytes) + 127) / 128 * 128;
    out->blocks = out->a.tiles < p->sms ? out->a.tiles : p->sms;
    /* By the whole GPU, so that the selection of the kernel does not depend on the partition. */
    uint64_t bytes = (uint64_t)out->a.tiles * out->a.stage_bytes / u->sms;
    if (bytes > (kind >= CK_Q8 && kind != CK_F8 ? BYTES_MAX_QUANTISED : g->pitch > LONG ? BYTES_MAX_LONG : BYTES_MAX)) return 0;
    uint32_t max = (out->a.tiles + out->blocks - 1) / out->blocks,
             kbytes = kind < CK_Q8 || kind == CK_F8 ? u->stream : u->stream * 9 / 5, /* quantised: prefetching more is faster */
             fit = kbytes * 1024 / out->a.stage_bytes;
    if (fit < 3 && fit < max) fit = CU_STREAM_SHARED_MAX / out->a.stage_bytes; /* long rows: one block per multiprocessor */
    if (fit > CU_STREAM_SHARED_MAX / out->a.stage_bytes) fit = CU_STREAM_SHARED_MAX / out->a.stage_bytes;
    if (fit > CK_STREAM_STAGES) fit = CK_STREAM_STAGES;
    /* No more stages than tiles of a block. */
    out->a.stages = fit < max ? fit : max;
    out->shared = (size_t)out->a.stages * out->a.stage_bytes;
    return out->a.stages > 1 || out->a.stages == max; /* the kernel computes two tiles at once */
}
