/* check_kernel.c: level kernel: every entry of the cpu unit's kernel table, for each instruction set that
 * this machine has, against k_generic.c. Integer results (quantised activations, opened weights, half floats)
 * are compared bit by bit; sums of fp32 within rounding. Widths have odd tails, data has outliers, zeros and
 * equal numbers, results have guards around.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "checkkernel.h"
#include "unit/cpu/cpu_gemm.h"
#include "unit/cpu/dispatch.h"

struct kernel_case {
    struct check *c;
    const struct sg_kernels *a, *b;          /* generic, and the one that is tested */
    struct check_rng rng;
    struct check_case k;
    double spread;                           /* largest |expected| so far */
};

static const char *const pack_names[SG_PACK_N] = {"q4",  "q4m", "q8",  "q4f", "q8f",
                                                  "q8h", "q4k", "q6k", "f32", "f16", "bf16"};

static int begin(struct kernel_case *t, const char *name, uint64_t index)
{
    t->k = (struct check_case){.level = "kernel", .unit = t->b->isa, .against = "generic"};
    snprintf(t->k.name, sizeof t->k.name, "%s.%u", name, (unsigned)index);
    t->rng = check_rng_of(t->c->seed, name, index);
    t->spread = 0;
    return check_wants(t->c, &t->k);
}

static void bits(struct kernel_case *t, const void *want, const void *got, size_t n)
{
    const unsigned char *w = want, *g = got;
    for (size_t i = 0; i < n; i++)
        if (w[i] != g[i]) t->k.max_abs = 1 + abs(w[i] - g[i]);
}

/* Equal bits; what was below the normal range before rounding may be zero. */
static void bf16_bits(struct kernel_case *t, const uint16_t *want, const uint16_t *got, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (want[i] != got[i] && ((want[i] & 0x7fff) > 0x80 || (got[i] & 0x7fff) > 0x80))
            t->k.max_abs = 1 + abs(want[i] - got[i]);
}

static void floats(struct kernel_case *t, const float *want, const float *got, size_t n, double share)
{
    for (size_t i = 0; i < n; i++)
        if (fabs((double)want[i]) > t->spread) t->spread = fabs((double)want[i]);
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)want[i] - (double)got[i]);
        if (isnan(want[i]) != isnan(got[i])) d = INFINITY;
        if (d > t->k.max_abs) t->k.max_abs = d;
    }
    t->k.bound = share * (t->spread > 1e-30 ? t->spread : 1e-30);
}

static void end(struct kernel_case *t, const struct check_guard *g)
{
    if (!check_guard_ok(g)) t->k.ok = -1;
    check_report(t->c, &t->k);
}

static float *data(struct kernel_case *t, struct sg_arena *arena, size_t n)
{
    float *x = sg_arena_alloc(arena, n * sizeof *x);
    if (x) check_fill(&t->rng, x, n, (enum check_data)check_below(&t->rng, CHECK_DATA_N), 1.0f);
    return x;
}

/* Packed weights of random integers; scales and offsets that real files have. */
static uint8_t *weights(struct kernel_case *t, struct sg_arena *arena, enum sg_pack kind, size_t k, uint32_t groups)
{
    size_t bytes = sg_pack_block_bytes(kind), n = k / sg_pack_block_cols(kind) * groups;
    uint8_t *w = sg_arena_alloc(arena, n * bytes + 64);
    for (size_t i = 0; w && i < n * bytes; i++) w[i] = (uint8_t)check_below(&t->rng, 256);
    for (size_t i = 0; w && i < n; i++)
        for (int r = 0; r < 32; r++) {
            float f = check_normal(&t->rng) * (sg_pack_block_cols(kind) == 256 ? 0.0001f : 0.01f);
            uint16_t h = kind == SG_PACK_BF16 ? sg_bf16_of_f32(f) : sg_f16_of_f32(f);
            int halves = kind == SG_PACK_Q4M || kind == SG_PACK_Q4K ? 32 : 16,
                half = kind <= SG_PACK_Q8 || kind == SG_PACK_Q4K || kind == SG_PACK_Q6K || kind >= SG_PACK_F16;
            if (half && r < halves) memcpy(w + i * bytes + 2 * r, &h, 2);
            if (!half && (kind != SG_PACK_F32 || r < 16)) memcpy(w + i * bytes + 4 * r, &f, 4);
        }
    return w;
}

const char *check_pack_name(enum sg_pack kind) { return pack_names[kind]; }

uint8_t *check_pack_weights(struct check_rng *rng, struct sg_arena *arena, enum sg_pack kind, size_t k, uint32_t groups)
{
    struct kernel_case t = {.rng = *rng};
    return weights(&t, arena, kind, k, groups);
}

static size_t columns(struct kernel_case *t, enum sg_pack kind)
{
    return sg_pack_block_cols(kind) == 256 ? 256 * check_between(&t->rng, 1, 3) : 32 * check_between(&t->rng, 1, 9);
}

static void check_mm(struct kernel_case *t, enum sg_pack kind, uint64_t index)
{
    if (!begin(t, pack_names[kind], index)) return;
    struct sg_arena arena = {0};
    uint32_t quant = kind < SG_PACK_F32, block = quant ? sg_pack_scale_cols(kind) : 1,
             nt = check_between(&t->rng, 1, quant ? t->b->few_rows : SG_TILE);
    uint32_t rows = check_between(&t->rng, 1, 90), groups = (rows + 15) / 16, fine = quant ? check_below(&t->rng, 2) : 0;
    size_t k = quant ? columns(t, kind) : check_between(&t->rng, 1, 70), ldo = rows + check_below(&t->rng, 5);
    float *x = data(t, &arena, nt * k), *want = sg_arena_alloc(&arena, nt * ldo * sizeof *want);
    uint8_t *w = weights(t, &arena, kind, k, groups), *tile = sg_arena_alloc(&arena, 8 * nt * k + 64);
    struct check_guard g;
    float *got = check_guard_new(&g, ((nt - 1) * ldo + rows) * sizeof *got, 4 * check_below(&t->rng, 4));
    if (x && want && w && tile && got) {
        if (quant) t->a->quant(x, k, nt, k, block, fine, tile);
        else t->a->spread(x, k, nt, k, (float *)(void *)tile);
        t->a->few[kind](w, k, rows, tile, nt, fine, want, ldo);
        t->b->few[kind](w, k, rows, tile, nt, fine, got, ldo);
        for (uint32_t i = 0; i < nt; i++) floats(t, want + i * ldo, got + i * ldo, rows, 1e-5);
        for (uint32_t i = 0; i < nt && quant; i++) { /* bits do not depend on the other rows */
            t->a->quant(x + i * k, k, 1, k, block, fine, tile);
            t->b->few[kind](w, k, rows, tile, 1, fine, want, ldo);
            bits(t, want, got + i * ldo, rows * sizeof *want);
        }
    }
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

/* What may be lost to sums of a raised row: four units of the integers of each block. */
static double raised_range(const uint8_t *open, const uint8_t *x, size_t k, uint32_t block)
{
    double largest = 0;
    for (uint32_t r = 0; r < 16; r++) {
        const uint8_t *w = open, *at = x;
        double all = 0;
        for (size_t left = k; left;) {
            const struct sg_superblock a = sg_superblock_at(at, left, block, 1);
            float scale, d;
            memcpy(&scale, a.d, 4);
            for (uint32_t b = 0; b < a.blocks; b++, w += 128 + 16 * block) {
                memcpy(&d, w + 4 * r, 4);
                all += 4 * fabs((double)d) * scale;
            }
            left -= a.blocks * block;
            at = a.raised + 16 * a.chunks;
        }
        largest = all > largest ? all : largest;
    }
    return largest;
}

/* Opened weights are equal bits; a tile gives each row the bits that it has alone: from `few`, or raised; those are also
 * what generic has. */
static void check_open(struct kernel_case *t, enum sg_pack kind, uint64_t index)
{
    char name[32];
    snprintf(name, sizeof name, "open.%s", pack_names[kind]);
    if (!begin(t, name, index)) return;
    struct sg_arena arena = {0};
    uint32_t block = sg_pack_scale_cols(kind), nt = check_between(&t->rng, 1, SG_TILE),
             fine = check_below(&t->rng, 3);
    size_t k = columns(t, kind), open = k * 24;
    uint8_t *w = weights(t, &arena, kind, k, 1), *want = sg_arena_alloc(&arena, open),
            *one = sg_arena_alloc(&arena, 4 * k);
    uint8_t *tile = sg_arena_alloc(&arena, 8 * nt * k);
    float *x = data(t, &arena, nt * k), *out = sg_arena_alloc(&arena, nt * 16 * sizeof *out), alone[16];
    struct check_guard g;
    uint8_t *got = check_guard_new(&g, open, 0);
    double range = 0;
    if (w && want && one && tile && x && out && got) {
        memset(got, 0, open);
        if (t->a->open[kind]) {
            t->a->open[kind](w, k, want);
            t->b->open[kind](w, k, got);
            bits(t, want, got, open);
        }
        t->b->quant(x, k, nt, k, block, fine, tile);
        t->b->tile[sg_unpacked_form(kind)](t->a->open[kind] ? got : w, k, 16, tile, nt, fine, out, 16);
        for (uint32_t i = 0; i < nt; i++) {
            t->b->quant(x + i * k, k, 1, k, block, fine, one);
            if (fine == SG_OUTLIER)
                t->b->tile[sg_unpacked_form(kind)](t->a->open[kind] ? got : w, k, 16, one, 1, fine, alone, 16);
            else t->b->few[kind](w, k, 16, one, 1, fine, alone, 16);
            bits(t, alone, out + i * 16, sizeof alone);
            if (fine != SG_OUTLIER) continue;
            t->a->quant(x + i * k, k, 1, k, block, fine, one);
            t->a->tile[sg_unpacked_form(kind)](t->a->open[kind] ? want : w, k, 16, one, 1, fine, alone, 16);
            floats(t, alone, out + i * 16, 16, 1e-5);
            const double more = raised_range(t->a->open[kind] ? want : w, one, k, block);
            range = more > range ? more : range;
        }
    }
    t->k.bound += range;
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

/* Float weights: opened ones are equal bits, and a tile of them gives each row the bits that `few` gives it alone. */
static void check_open_float(struct kernel_case *t, enum sg_pack kind, uint64_t index)
{
    char name[32];
    snprintf(name, sizeof name, "open.%s", pack_names[kind]);
    if (!begin(t, name, index)) return;
    struct sg_arena arena = {0};
    uint32_t nt = check_between(&t->rng, 1, SG_TILE), rows = check_between(&t->rng, 1, 32);
    size_t k = check_between(&t->rng, 1, 70), open = 2 * sg_unpacked_bytes(kind, k), group = k * sg_pack_block_bytes(kind);
    uint8_t *w = weights(t, &arena, kind, k, 2), *want = sg_arena_alloc(&arena, open);
    float *x = data(t, &arena, nt * k), *tile = sg_arena_alloc(&arena, nt * k * sizeof *tile),
          *out = sg_arena_alloc(&arena, nt * 32 * sizeof *out), alone[32] = {0};
    struct check_guard g;
    uint8_t *got = check_guard_new(&g, open, 0);
    if (w && want && x && tile && out && got) {
        for (uint32_t i = 0; i < 2; i++) {
            t->a->open[kind](w + i * group, k, want + i * open / 2);
            t->b->open[kind](w + i * group, k, got + i * open / 2);
        }
        bits(t, want, got, open);
        t->b->spread(x, k, nt, k, tile);
        t->b->few[SG_PACK_F32](got, k, rows, tile, nt, 0, out, 32);
        for (uint32_t i = 0; i < nt; i++) {
            t->b->few[kind](w, k, rows, x + i * k, 1, 0, alone, 32);
            bits(t, alone, out + i * 32, rows * sizeof *alone);
        }
    }
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

/* Opened weights and rows are equal bits; products agree, and each row is that of a tile of its own. */
static void check_wide(struct kernel_case *t, enum sg_pack kind, uint64_t index)
{
    char name[32];
    snprintf(name, sizeof name, "wide.%s", pack_names[kind]);
    if (!begin(t, name, index)) return;
    struct sg_arena arena = {0};
    uint32_t terms = check_between(&t->rng, 1, 2), x_terms = check_between(&t->rng, 1, 2),
             groups = check_between(&t->rng, 1, 5), nt = check_between(&t->rng, 1, 70),
             tiles = (nt + 15) / 16;
    size_t k = kind < SG_PACK_F32 ? columns(t, kind) : check_between(&t->rng, 1, 90),
           each = sg_bf16_size(k, terms), x_each = sg_bf16_size(k, x_terms),
           ldo = 16 * groups + check_below(&t->rng, 5), step = sg_pack_block_bytes(kind);
    uint8_t *w = weights(t, &arena, kind, k, groups);
    float *x = data(t, &arena, nt * k), *want = sg_arena_alloc(&arena, tiles * 16 * ldo * sizeof *want);
    uint16_t *open[2], *rows[2];
    for (int i = 0; i < 2; i++) {
        open[i] = sg_arena_alloc(&arena, groups * each * sizeof *open[i]);
        rows[i] = sg_arena_alloc(&arena, tiles * x_each * sizeof *rows[i]);
    }
    struct check_guard g;
    float *got = check_guard_new(&g, ((tiles * 16 - 1) * ldo + groups * 16) * sizeof *got, 0);
    if (w && x && want && open[0] && open[1] && rows[0] && rows[1] && got) {
        for (int i = 0; i < 2; i++) {
            const struct sg_kernels *kernels = i ? t->b : t->a;
            for (uint32_t n = 0; n < groups; n++)
                kernels->bf16_unpack[kind](w + n * (k / sg_pack_block_cols(kind) * step), k, terms,
                                         open[i] + n * each);
            for (uint32_t n = 0; n < nt; n += 16)
                kernels->bf16_rows(x + n * k, k, nt - n < 16 ? nt - n : 16, k, x_terms,
                                   rows[i] + n / 16 * x_each);
        }
        bf16_bits(t, open[0], open[1], groups * each);
        bf16_bits(t, rows[0], rows[1], tiles * x_each);
        struct sg_bf16_shape m = {k, groups, tiles, terms, x_terms}, alone = {k, 1, 1, terms, x_terms};
        t->a->bf16_mm(&m, open[0], rows[0], want, ldo);
        t->b->bf16_begin();
        t->b->bf16_mm(&m, open[0], rows[0], got, ldo);
        for (uint32_t i = 0; i < nt; i++) floats(t, want + i * ldo, got + i * ldo, 16 * groups, 1e-5);
        for (uint32_t n = 0; n < tiles * groups; n++) {
            float *own = want + n / groups * 16 * ldo + n % groups * 16;
            t->b->bf16_mm(&alone, open[0] + n % groups * each, rows[0] + n / groups * x_each, own, ldo);
            for (uint32_t i = 0; i < 16; i++)
                bits(t, own + i * ldo, got + (n / groups * 16 + i) * ldo + n % groups * 16, 64);
        }
        t->b->bf16_end();
    }
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

static void check_quant(struct kernel_case *t, uint64_t index)
{
    if (!begin(t, "quant", index)) return;
    struct sg_arena arena = {0};
    uint32_t block = check_below(&t->rng, 2) ? 16 : 32, nt = check_between(&t->rng, 1, SG_TILE),
             fine = check_below(&t->rng, 3);
    size_t k = block * check_between(&t->rng, 1, 12), ldx = k + check_below(&t->rng, 7),
           n = sg_tile_bytes(k, block, fine, nt);
    float *x = data(t, &arena, nt * ldx);
    uint8_t *want = sg_arena_alloc(&arena, n);
    struct check_guard g;
    uint8_t *got = check_guard_new(&g, n, 4 * check_below(&t->rng, 3));
    if (x && want && got) {
        t->a->quant(x, ldx, nt, k, block, fine, want);
        t->b->quant(x, ldx, nt, k, block, fine, got);
        bits(t, want, got, n);
    }
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

/* Norms, activations, gated units, sums, halves, rotations: one row of odd width. */
static void check_row(struct kernel_case *t, uint64_t index)
{
    if (!begin(t, "row", index)) return;
    struct sg_arena arena = {0};
    uint32_t n = check_between(&t->rng, 1, 200), what = (uint32_t)index % 8, pairs = n / 3;
    float *x = data(t, &arena, n + 2), *y = data(t, &arena, n + 2),
          *want = sg_arena_alloc(&arena, n * sizeof *want);
    struct sg_norm p = {.kind = what ? SG_NORM_LAYER : SG_NORM_RMS,
                        .eps = 1e-5f,
                        .groups = 1,
                        .plus_one = check_below(&t->rng, 2)};
    enum sg_act act = (enum sg_act)check_below(&t->rng, SG_ACT_TANH + 1);
    struct check_guard g;
    float *got = check_guard_new(&g, n * sizeof *got, 4 * check_below(&t->rng, 3));
    if (!x || !y || !want || !got) what = 99;
    for (int i = 0; i < 2 && what < 99; i++) {
        const struct sg_kernels *k = i ? t->b : t->a;
        float *out = i ? got : want;
        memcpy(out, x, n * sizeof *out);
        if (what < 2) k->norm(x, n, &p, y, index % 16 > 8 ? y : NULL, out);
        else if (what == 2) k->act(act, x, n, out);
        else if (what == 3) k->glu(act, x, y, n, out);
        else if (what == 4) k->axpy(0.7f, y, n, out);
        else if (what == 5) k->rope(x, pairs, n, y, -1.0f, out);
        else if (what == 6) out[0] = k->dot(x, y, n);
        else k->add(x, y, n, out);
    }
    if (what < 99) floats(t, want, got, n, 2e-6 * sqrt(n));
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

static void check_halves(struct kernel_case *t, uint64_t index)
{
    if (!begin(t, "halves", index)) return;
    struct sg_arena arena = {0};
    uint32_t n = check_between(&t->rng, 1, 70);
    float *x = data(t, &arena, n), *back = sg_arena_alloc(&arena, 2 * n * sizeof *back);
    uint16_t *want = sg_arena_alloc(&arena, n * sizeof *want);
    struct check_guard g;
    uint16_t *got = check_guard_new(&g, n * sizeof *got, 2);
    if (x && back && want && got) {
        if (index == 0) x[0] = 1e30f;
        t->a->to_f16(x, n, want);
        t->b->to_f16(x, n, got);
        bits(t, want, got, n * sizeof *got);
        t->a->of_f16(want, n, back);
        t->b->of_f16(want, n, back + n);
        bits(t, back, back + n, n * sizeof *back);
        t->a->of_bf16(want, n, back);
        t->b->of_bf16(want, n, back + n);
        bits(t, back, back + n, n * sizeof *back);
    }
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

/* One chunk of attention: scores, softmax with bounds, weighted sum. */
static void check_attention(struct kernel_case *t, uint64_t index)
{
    if (!begin(t, "attention", index)) return;
    struct sg_arena arena = {0};
    uint32_t nq = check_between(&t->rng, 1, 6), d = check_between(&t->rng, 1, 80),
             keys = check_between(&t->rng, 1, SG_CHUNK);
    uint32_t dvp = 16 * check_between(&t->rng, 1, 9), hi = check_between(&t->rng, 0, keys),
             lo = check_between(&t->rng, 0, hi);
    float *q = data(t, &arena, nq * d), *kv = data(t, &arena, SG_CHUNK * d),
          *v = data(t, &arena, SG_CHUNK * dvp);
    float *s = sg_arena_alloc(&arena, 2 * nq * SG_CHUNK * sizeof *s),
          *want = sg_arena_alloc(&arena, nq * dvp * sizeof *want);
    float sums[2][2] = {{0}}, cap = check_below(&t->rng, 2) ? 20.0f : 0.0f;
    struct check_guard g;
    float *got = check_guard_new(&g, nq * dvp * sizeof *got, 0);
    if (q && kv && v && s && want && got) {
        for (int i = 0; i < 2; i++) {
            const struct sg_kernels *k = i ? t->b : t->a;
            float *si = s + i * (int)(nq * SG_CHUNK);
            k->scores(q, nq, d, kv, keys, si);
            for (uint32_t j = 0; j < nq; j++)
                k->softmax_chunk(si + j * SG_CHUNK, lo, hi, keys, 0.1f, cap, &sums[i][0], &sums[i][1]);
            k->pv(si, nq, keys, v, dvp, i ? got : want);
        }
        floats(t, want, got, nq * dvp, 2e-5);
        if (lo < hi) floats(t, sums[0], sums[1], 2, 2e-5);
        else if (sums[1][0] != -INFINITY || sums[1][1] != 0.0f) t->k.ok = -1;
    }
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

/* Sums of up to 6 queries joined, some of them without keys on either side; rows are not touched behind dv. */
static void check_join(struct kernel_case *t, uint64_t index)
{
    if (!begin(t, "attention.join", index)) return;
    enum { APART = 90 };
    struct sg_arena arena = {0};
    uint32_t nq = check_between(&t->rng, 1, 6), dv = check_between(&t->rng, 1, APART);
    float *x = data(t, &arena, nq * (APART + 2)), *y = data(t, &arena, nq * (APART + 2)),
          *two = sg_arena_alloc(&arena, 2 * nq * (APART + 2) * sizeof *two);
    if (x && y && two) {
        struct sg_softmax_part more = {y, y + nq, y + 2 * nq};
        for (uint32_t i = 0; i < nq; i++) {
            more.l[i] = x[nq + i] = 1.0f + (float)i;
            if (!check_below(&t->rng, 4)) more.m[i] = -INFINITY;
            if (!check_below(&t->rng, 4)) x[i] = -INFINITY;
        }
        for (int i = 0; i < 2; i++) {
            float *to = two + i * (int)(nq * (APART + 2));
            memcpy(to, x, nq * (APART + 2) * sizeof *to);
            struct sg_softmax_part sums = {to, to + nq, to + 2 * nq};
            (i ? t->b : t->a)->join(nq, dv, &sums, APART, &more, APART);
            for (uint32_t j = 0; j < nq; j++) {
                int none = more.m[j] == -INFINITY && x[j] == -INFINITY;
                if (none != (to[j] == -INFINITY)) t->k.ok = -1;
                if (none) to[j] = 0.0f;
            }
        }
        floats(t, two, two + nq * (APART + 2), nq * (APART + 2), 2e-6);
    }
    check_report(t->c, &t->k);
    sg_arena_free(&arena);
}

/* Keys and values in f16, unconverted: the bits of the same numbers in fp32. */
static void check_in_place(struct kernel_case *t, uint64_t index)
{
    if (!t->b->scores_f16 || !begin(t, "attention.f16", index)) return;
    struct sg_arena arena = {0};
    uint32_t nq = check_between(&t->rng, 1, 6), d = 16 * check_between(&t->rng, 1, 5),
             keys = check_between(&t->rng, 1, SG_CHUNK);
    float *q = data(t, &arena, nq * d), *p = data(t, &arena, nq * SG_CHUNK), *kv = data(t, &arena, SG_CHUNK * d);
    float *s = sg_arena_alloc(&arena, 2 * nq * SG_CHUNK * sizeof *s), *o = sg_arena_alloc(&arena, 2 * nq * d * sizeof *o);
    uint16_t *half = sg_arena_alloc(&arena, SG_CHUNK * d * sizeof *half);
    if (q && p && kv && s && o && half) {
        t->b->to_f16(kv, SG_CHUNK * d, half);
        t->b->of_f16(half, SG_CHUNK * d, kv);
        t->b->scores(q, nq, d, kv, keys, s);
        t->b->scores_f16(q, nq, d, half, keys, s + nq * SG_CHUNK, index % 2 ? half : NULL);
        t->b->pv(p, nq, keys, kv, d, o);
        t->b->pv_f16(p, nq, keys, half, d, o + nq * d, index % 2 ? half : NULL);
        for (uint32_t i = 0; i < nq; i++)
            bits(t, s + i * SG_CHUNK, s + (nq + i) * SG_CHUNK, keys * sizeof *s);
        bits(t, o, o + nq * d, nq * d * sizeof *o);
    }
    check_report(t->c, &t->k);
    sg_arena_free(&arena);
}

/* One chunk of attention in integers: beside fp32. */
static void check_narrow(struct kernel_case *t, uint64_t index)
{
    if (!t->b->narrow || !begin(t, "attention.narrow", index)) return;
    t->k.max_abs = check_narrow_distance(&t->rng, t->a, t->b, &t->spread);
    t->k.bound = 2e-3 * t->spread;
    check_report(t->c, &t->k);
}

/* Up to 9 rows of the delta rule at once; in one call each they have the same bits. */
static void check_delta(struct kernel_case *t, uint64_t index)
{
    if (!begin(t, "delta", index)) return;
    struct sg_arena arena = {0};
    uint32_t rows = check_between(&t->rng, 1, 9), dk = check_between(&t->rng, 1, 40);
    uint32_t dv = index % 2 ? 16 * check_between(&t->rng, 1, 13) : check_between(&t->rng, 1, 150);
    size_t each = 2 * dk + dv, size = (size_t)dk * dv;
    float *s = sg_arena_alloc(&arena, 3 * size * sizeof *s), *x = data(t, &arena, rows * each),
          *scratch = sg_arena_alloc(&arena, SG_DELTA_COLS * dk * sizeof *scratch),
          *gates = sg_arena_alloc(&arena, 2 * rows * sizeof *gates),
          *want = sg_arena_alloc(&arena, 2 * rows * dv * sizeof *want);
    struct check_guard g;
    float *got = check_guard_new(&g, rows * dv * sizeof *got, 4);
    if (s && x && scratch && gates && want && got) {
        struct sg_delta_args r = {.rows = rows, .dk = dk, .dv = dv, .q = x, .k = x + dk, .v = x + 2 * dk, .ldk = each,
                                  .ldv = each, .ldo = dv, .decay = gates, .beta = gates + rows, .o = want, .scratch = scratch};
        for (uint32_t i = 0; i < rows * each; i++) x[i] /= sqrtf((float)dk) * (1.0f + fabsf(x[i]));
        for (uint32_t i = 0; i < 2 * rows; i++) gates[i] = (float)check_below(&t->rng, 1000) / 999.0f;
        t->a->delta(s, &r);
        r.o = got;
        t->b->delta(s + size, &r);
        floats(t, want, got, rows * dv, 2e-5);
        floats(t, s, s + size, size, 2e-5);
        float *alone = want + rows * dv;
        r.rows = 1;
        for (uint32_t i = 0; i < rows; i++, r.q += each, r.k += each, r.v += each, r.decay++, r.beta++) {
            r.o = alone + i * dv;
            t->b->delta(s + 2 * size, &r);
        }
        bits(t, alone, got, rows * dv * sizeof *got);
        bits(t, s + size, s + 2 * size, size * sizeof *s);
    }
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

static void check_conv(struct kernel_case *t, uint64_t index)
{
    if (!begin(t, "conv", index)) return;
    struct sg_arena arena = {0};
    uint32_t taps = check_between(&t->rng, 1, 5), n = check_between(&t->rng, 1, 90);
    enum sg_act act = (enum sg_act)check_between(&t->rng, SG_ACT_NONE, SG_ACT_TANH);
    float *x = data(t, &arena, taps * n), *w = data(t, &arena, taps * n), *bias = data(t, &arena, n),
          *want = sg_arena_alloc(&arena, n * sizeof *want);
    struct check_guard g;
    float *got = check_guard_new(&g, n * sizeof *got, 4);
    if (x && w && bias && want && got) {
        const float *at[5];
        for (uint32_t j = 0; j < taps; j++) at[j] = x + j * n;
        t->a->conv(at, taps, w, n, index % 2 ? bias : NULL, act, n, want);
        t->b->conv(at, taps, w, n, index % 2 ? bias : NULL, act, n, got);
        floats(t, want, got, n, 2e-5);
    }
    end(t, &g);
    check_guard_free(&g);
    sg_arena_free(&arena);
}

/* The product with both factors packed before, in parts of the depth. */
static void packed_product(const struct sg_gemm_kernels *k, const struct sg_gemm *g, struct sg_arena *arena)
{
    uint32_t elements = (g->inner + k->each - 1) / k->each, cut = elements / 3 * k->each;
    size_t panel[2] = {(size_t)elements * SG_GEMM_ROWS, (size_t)elements * SG_GEMM_COLS};
    float *a = sg_arena_alloc(arena, (g->rows / SG_GEMM_ROWS + 1) * panel[0] * sizeof *a),
          *b = sg_arena_alloc(arena, (g->cols / SG_GEMM_COLS + 1) * panel[1] * sizeof *b);
    int turned[2] = {g->kind != SG_GEMM_TN, g->kind == SG_GEMM_NT};
    for (uint32_t at = 0, n = cut; a && b && at < g->inner; at += n, n = g->inner - at) {
        if (!n) n = g->inner;
        (turned[0] ? k->pack_turned : k->pack_straight)(g->a + at * (turned[0] ? 1 : g->lda), g->lda, g->rows, n, SG_GEMM_ROWS,
                                                        a + at / k->each * SG_GEMM_ROWS, panel[0]);
        (turned[1] ? k->pack_turned : k->pack_straight)(g->b + at * (turned[1] ? 1 : g->ldb), g->ldb, g->cols, n, SG_GEMM_COLS,
                                                        b + at / k->each * SG_GEMM_COLS, panel[1]);
    }
    if (a && b) sg_cpu_gemm_packed(k, g, a, b, elements);
}

/* All kinds, edges and row distances, against sums in double; in two parts, the bits are the same. */
static void check_gemm(struct kernel_case *t, uint64_t index, int bf16)
{
    const struct sg_gemm_kernels *gemm = bf16 ? t->b->gemm_bf16 : t->b->gemm;
    if (!gemm || !begin(t, bf16 ? "gemm-bf16" : "gemm", index)) return;
    struct sg_arena arena = {0};
    uint32_t rows = check_between(&t->rng, 1, 150), cols = check_between(&t->rng, 1, 70), inner = check_between(&t->rng, 1, 800);
    uint32_t cut = check_below(&t->rng, rows), gap = check_below(&t->rng, 3);
    float *a = data(t, &arena, (rows + 2) * (inner + 2)), *b = data(t, &arena, (cols + 2) * (inner + 2));
    struct sg_gemm g = {(enum sg_gemm_kind)(index % 3), rows, cols, inner, a, b, 0, 0, cols, NULL, (int)(index & 1)};
    for (uint32_t i = 0; bf16 && a && i < (rows + 2) * (inner + 2); i++) a[i] = sg_f32_of_bf16(sg_bf16_of_f32(a[i]));
    for (uint32_t i = 0; bf16 && b && i < (cols + 2) * (inner + 2); i++) b[i] = sg_f32_of_bf16(sg_bf16_of_f32(b[i]));
    g.lda = (g.kind == SG_GEMM_TN ? rows : inner) + gap;
    g.ldb = (g.kind == SG_GEMM_NT ? inner : cols) + gap;
    float *want = data(t, &arena, rows * cols), *parts = sg_arena_alloc(&arena, rows * cols * sizeof *parts);
    struct check_guard guard;
    float *got = check_guard_new(&guard, rows * cols * sizeof *got, 4), *scratch = data(t, &arena, SG_CPU_GEMM_SCRATCH);
    if (g.a && g.b && want && parts && got && scratch) {
        memcpy(parts, want, rows * cols * sizeof *parts);
        memcpy(got, want, rows * cols * sizeof *got);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < cols; j++) {
                double sum = g.add ? (double)want[i * cols + j] : 0;
                for (uint32_t k = 0; k < inner; k++)
                    sum += (double)g.a[g.kind == SG_GEMM_TN ? k * g.lda + i : i * g.lda + k] *
                           (double)g.b[g.kind == SG_GEMM_NT ? j * g.ldb + k : k * g.ldb + j];
                want[i * cols + j] = (float)sum;
            }
        g.c = got, sg_cpu_gemm(gemm, &g, scratch);
        floats(t, want, got, rows * cols, 2e-5);
        g.c = parts, g.rows = cut, sg_cpu_gemm(gemm, &g, scratch);
        g.c = parts + cut * cols, g.rows = rows - cut, g.a += g.kind == SG_GEMM_TN ? cut : cut * g.lda;
        packed_product(gemm, &g, &arena);
        bits(t, got, parts, rows * cols * sizeof *got);
    }
    end(t, &guard);
    check_guard_free(&guard);
    sg_arena_free(&arena);
}

void check_kernels(struct check *c)
{
    struct sg_kernels generic, table;
    if (sg_isa_choose("generic", &generic, NULL) != SEGUE_OK) return;
    uint32_t n = c->quick ? 8 : 60;
    for (int isa = SG_ISA_GENERIC; isa < SG_ISA_N; isa++) {
        if (!sg_isa_present((enum sg_isa)isa) ||
            sg_isa_choose(sg_isa_name((enum sg_isa)isa), &table, NULL) != SEGUE_OK)
            continue;
        struct kernel_case t = {.c = c, .a = &generic, .b = &table};
        for (uint32_t i = 0; i < n; i++) {
            for (int kind = 0; kind < SG_PACK_N; kind++) check_mm(&t, (enum sg_pack)kind, i);
            for (int kind = 0; kind < SG_PACK_F32; kind++) check_open(&t, (enum sg_pack)kind, i);
            for (int kind = SG_PACK_F16; kind < SG_PACK_N; kind++) check_open_float(&t, (enum sg_pack)kind, i);
            for (int kind = 0; kind < SG_PACK_N; kind++) check_wide(&t, (enum sg_pack)kind, i);
            check_quant(&t, i);
            check_row(&t, i);
            check_halves(&t, i);
            check_attention(&t, i);
            check_in_place(&t, i);
            check_narrow(&t, i);
            check_join(&t, i);
            check_delta(&t, i);
            check_conv(&t, i);
            for (int bf16 = 0; bf16 < 2; bf16++) check_gemm(&t, i, bf16);
        }
        if (c->bench) check_bench_kernels(c, &generic, &table);
    }
}
