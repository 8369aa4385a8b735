/* check_kernel_bench.c: `check --level kernel --bench`: what each kernel takes at the sizes of a model of
 * 1,024 columns, on one thread. Few rows read 64 MB of packed weights from memory; everything else stays in
 * the core's own caches. The roof is measured right beside: the table's own reading loop over as many bytes,
 * or the peak of the instruction set. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "checkkernel.h"

enum { K = 1024, WIDE_ROWS = 64, KEYS = SG_CHUNK, HEAD = 128, QUERIES = 4, CHANNELS = 4096, DELTA_ROWS = 32 };
enum { STREAM_BYTES = 64 << 20, INPUTS = 1 << 18 };

/* What the calls below work on. */
struct kernel_bench {
    struct check *c;
    const struct sg_kernels *generic, *table;
    const char *isa;
    struct check_rng rng;
    struct sg_arena arena;
    enum sg_pack kind;
    uint32_t rows, nt, fine, block;
    uint8_t *w, *open, *tile;
    float *x, *y, *out, *state; /* [INPUTS] each */
    uint16_t *half;
    double peak_int8, peak_fp32;
};

typedef void call_fn(struct kernel_bench *b, const struct sg_kernels *k, float *out);

/* Nanoseconds of one call: best of five windows of some milliseconds. */
static double time_of(struct kernel_bench *b, const struct sg_kernels *k, call_fn *call)
{
    double best = INFINITY;
    uint64_t times = 1, ns = 0;
    call(b, k, b->out);
    for (int i = 0; i < 5;) {
        uint64_t from = sg_now_ns();
        for (uint64_t n = 0; n < times; n++) call(b, k, b->out);
        ns = sg_now_ns() - from;
        if (ns < 2000000u) {
            times *= 2;
            continue;
        }
        if ((double)ns / (double)times < best) best = (double)ns / (double)times;
        i++;
        if (ns > 100000000u) break; /* plain C on much memory */
    }
    return best;
}

static void read_all(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    out[0] = (float)k->sum((const uint64_t *)(const void *)b->w, (size_t)b->rows);
}

/* GB/s of reading `bytes` with the table's own loop. */
static double read_rate(struct kernel_bench *b, double bytes)
{
    uint32_t rows = b->rows;
    b->rows = (uint32_t)(bytes / 8) / 16 * 16;
    if (b->rows < 256) b->rows = 256;
    double rate = (double)b->rows * 8 / time_of(b, b->table, read_all);
    b->rows = rows;
    return rate;
}

/* bytes: GB/s and the reading roof. ops: GOP/s and the peak given. */
static void measure(struct kernel_bench *b, const char *name, call_fn *call, double bytes, double ops, double peak)
{
    struct check_case k = {.level = "kernel", .unit = b->isa, .against = "generic"};
    snprintf(k.name, sizeof k.name, "bench.%s", name);
    if (!check_wants(b->c, &k)) return;
    k.ns = time_of(b, b->table, call);
    k.against_ns = b->table == b->generic ? k.ns : time_of(b, b->generic, call);
    k.rate_unit = ops > 0 ? "GOP/s" : "GB/s";
    k.rate = (ops > 0 ? ops : bytes) / k.ns;
    k.roof = ops > 0 ? peak : read_rate(b, bytes);
    check_report(b->c, &k);
}

/* --- matrices --- */

static void few(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->few[b->kind](b->w, K, b->rows, b->tile, b->nt, b->fine, out, b->rows);
}
static void tiles(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->tile[b->block == 16 ? SG_UNPACKED_16 : SG_UNPACKED_32](b->open, K, b->rows, b->tile, b->nt, b->fine, out, b->rows);
}
static void open_weights(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    (void)out;
    k->open[b->kind](b->w, K, b->open);
}
static void quantise(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    (void)out;
    k->quant(b->x, K, b->nt, K, b->block, b->fine, b->tile);
}
static void spread(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->spread(b->x, K, b->nt, K, out);
}

/* Rows that make `bytes` of this kind, and activations of nt rows for it. */
static int prepare(struct kernel_bench *b, enum sg_pack kind, double bytes, uint32_t nt, uint32_t fine)
{
    size_t group = K / sg_pack_block_cols(kind) * sg_pack_block_bytes(kind);
    uint32_t groups = (uint32_t)(bytes / (double)group);
    b->kind = kind;
    b->rows = 16 * groups;
    if ((size_t)b->rows * nt > INPUTS) b->rows = INPUTS / nt / 16 * 16; /* the results must fit */
    b->nt = nt;
    b->fine = fine;
    b->block = kind < SG_PACK_F32 ? sg_pack_scale_cols(kind) : 32;
    if (kind < SG_PACK_F32)
        b->generic->quant(b->x, K, nt, K, b->block, fine, b->tile);
    else
        b->generic->spread(b->x, K, nt, K, (float *)(void *)b->tile);
    return groups > 0;
}

static void bench_few(struct kernel_bench *b, enum sg_pack kind)
{
    static const uint32_t rows[] = {1, SG_FEW};
    char name[48];
    size_t group = K / sg_pack_block_cols(kind) * sg_pack_block_bytes(kind);
    struct sg_arena arena = {0};
    b->w = check_pack_weights(&b->rng, &arena, kind, K, (uint32_t)(STREAM_BYTES / group));
    for (int i = 0; b->w && i < 2; i++) {
        prepare(b, kind, STREAM_BYTES, rows[i], SG_FINE);
        snprintf(name, sizeof name, "few.%s.%u", check_pack_name(kind), (unsigned)rows[i]);
        measure(b, name, few, (double)group * b->rows / 16, 0, 0);
    }
    if (b->w && kind >= SG_PACK_F32) {
        prepare(b, kind, WIDE_ROWS / 16 * (double)group, SG_TILE, SG_COARSE);
        snprintf(name, sizeof name, "few.%s.%u", check_pack_name(kind), (unsigned)SG_TILE);
        measure(b, name, few, 0, 2.0 * K * b->rows * SG_TILE, b->peak_fp32);
    }
    if (b->w && b->table->open[kind]) {
        snprintf(name, sizeof name, "open.%s", check_pack_name(kind));
        measure(b, name, open_weights, (double)group, 0, 0);
    }
    sg_arena_free(&arena);
}

static void bench_tiles(struct kernel_bench *b)
{
    static const char *const forms[] = {"coarse", "fine", "raised"};
    char name[48];
    for (int half = 0; half < 2; half++)
        for (uint32_t fine = SG_COARSE; fine <= SG_OUTLIER; fine++) {
            enum sg_pack kind = half ? SG_PACK_Q8H : SG_PACK_Q8F;
            double group = (double)(K / sg_pack_block_cols(kind) * sg_pack_block_bytes(kind));
            b->open = check_pack_weights(&b->rng, &b->arena, kind, K, WIDE_ROWS / 16);
            if (!b->open || !prepare(b, kind, WIDE_ROWS / 16 * group, SG_TILE, fine)) return;
            snprintf(name, sizeof name, "tile.%u.%u.%s", b->block, (unsigned)SG_TILE, forms[fine]);
            measure(b, name, tiles, 0, 2.0 * K * b->rows * SG_TILE, b->peak_int8);
            b->w = b->open; /* something to read */
            snprintf(name, sizeof name, "quant.%u.%s", b->block, forms[fine]);
            measure(b, name, quantise, 4.0 * K * SG_TILE, 0, 0);
        }
    measure(b, "spread", spread, 4.0 * K * SG_TILE, 0, 0);
}

/* --- rows, attention, recurrences --- */

static void norm(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    static const struct sg_norm p = {.kind = SG_NORM_RMS, .eps = 1e-5f, .groups = 1};
    k->norm(b->x, CHANNELS, &p, b->y, NULL, out);
}
static void rope(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    for (int h = 0; h < CHANNELS / HEAD; h++)
        k->rope(b->x + h * HEAD, HEAD / 2, HEAD, b->y, 1.0f, out + h * HEAD);
}
static void glu(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->glu(SG_ACT_SILU, b->x, b->y, CHANNELS, out);
}
static void act(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->act(SG_ACT_SILU, b->x, CHANNELS, out);
}
static void add(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->add(b->x, b->y, CHANNELS, out);
}
static void dot(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    out[0] = k->dot(b->x, b->y, CHANNELS);
}
static void axpy(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->axpy(1e-6f, b->x, CHANNELS, out);
}
static void to_f16(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    (void)out;
    k->to_f16(b->x, CHANNELS, b->half);
}
static void of_f16(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->of_f16(b->half, CHANNELS, out);
}
static void scores(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->scores(b->x, QUERIES, HEAD, b->y, KEYS, out);
}
static void softmax_chunk(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    memcpy(out, b->x, KEYS * sizeof *out);
    k->softmax_chunk(out, 0, KEYS, KEYS, 0.1f, 0, out + KEYS, out + KEYS + 1);
}
static void pv(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    k->pv(b->x, QUERIES, KEYS, b->y, HEAD, out);
}
static void conv(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    const float *taps[4] = {b->x, b->x + CHANNELS, b->x + 2 * CHANNELS, b->x + 3 * CHANNELS};
    k->conv(taps, 4, b->y, CHANNELS, NULL, SG_ACT_SILU, CHANNELS, out);
}
static void delta(struct kernel_bench *b, const struct sg_kernels *k, float *out)
{
    float gates[2 * DELTA_ROWS];
    for (int i = 0; i < DELTA_ROWS; i++) {
        gates[i] = 0.5f;
        gates[DELTA_ROWS + i] = 0.1f;
    }
    struct sg_delta_args r = {.rows = b->nt,
                              .dk = HEAD,
                              .dv = HEAD,
                              .q = b->x,
                              .k = b->y,
                              .v = b->x,
                              .decay = gates,
                              .beta = gates + DELTA_ROWS,
                              .o = out,
                              .scratch = b->out + INPUTS / 2,
                              .ldk = HEAD,
                              .ldv = HEAD,
                              .ldo = HEAD};
    k->delta(b->state, &r);
}

static void bench_rows(struct kernel_bench *b)
{
    const double n = 4.0 * CHANNELS, products = 2.0 * QUERIES * KEYS * HEAD;
    b->w = (uint8_t *)b->x;
    for (int i = 0; i < INPUTS; i++)
        b->y[i] *= 0.05f; /* keys and values that stay in range over many steps */
    measure(b, "norm.rms", norm, n, 0, 0);
    measure(b, "rope", rope, n, 0, 0);
    measure(b, "silu", act, n, 0, 0);
    measure(b, "glu.silu", glu, 2 * n, 0, 0);
    measure(b, "add", add, 2 * n, 0, 0);
    measure(b, "dot", dot, 2 * n, 0, 0);
    measure(b, "axpy", axpy, 2 * n, 0, 0);
    measure(b, "to_f16", to_f16, n, 0, 0);
    measure(b, "of_f16", of_f16, n / 2, 0, 0);
    measure(b, "attention.scores", scores, 0, products, b->peak_fp32);
    measure(b, "attention.softmax_chunk", softmax_chunk, 4.0 * KEYS, 0, 0);
    measure(b, "attention.weigh", pv, 0, products, b->peak_fp32);
    measure(b, "conv.4", conv, 4 * n, 0, 0);
    memset(b->state, 0, INPUTS * sizeof *b->state);
    b->nt = 1;
    measure(b, "delta.128", delta, 2.0 * 4 * HEAD * HEAD, 0, 0);
    b->nt = DELTA_ROWS;                      /* four multiplications and additions a number at best */
    measure(b, "delta.128.rows", delta, 0, 8.0 * HEAD * HEAD * DELTA_ROWS, b->peak_fp32);
}

void check_bench_kernels(struct check *c, const struct sg_kernels *generic, const struct sg_kernels *table)
{
    struct kernel_bench b = {.c = c, .generic = generic, .isa = table->isa};
    b.table = strcmp(table->isa, generic->isa) ? table : generic;
    b.rng = check_rng_of(c->seed, "bench", 0);
    float **const all[] = {&b.x, &b.y, &b.out, &b.state};
    for (int i = 0; i < 4; i++) {
        *all[i] = sg_arena_alloc(&b.arena, INPUTS * sizeof(float));
        if (*all[i]) check_fill(&b.rng, *all[i], INPUTS, CHECK_NORMAL, 1.0f);
    }
    b.half = sg_arena_alloc(&b.arena, INPUTS * sizeof *b.half);
    b.tile = sg_arena_alloc(&b.arena, 8 * K * SG_TILE + 64);
    b.open = sg_arena_alloc(&b.arena, 64 * K);
    if (b.x && b.y && b.out && b.state && b.half && b.tile && b.open) {
        if (!c->list) {
            b.peak_int8 = check_peak_int8(b.isa);
            b.peak_fp32 = check_peak_fp32(b.isa);
        }
        for (int kind = 0; kind < SG_PACK_N; kind++) bench_few(&b, (enum sg_pack)kind);
        bench_tiles(&b);
        bench_rows(&b);
    }
    sg_arena_free(&b.arena);
}
