/* kernels.h: the table of functions below the cpu unit. k_generic.c is the specification of every entry;
 * k_avx2.c, k_avx512.c and k_neon.c overwrite what they do faster. Whoever calls must keep each contract;
 * whoever implements must keep every output row independent of the number of rows in the call (equal
 * reduction order for 1 and for 12).
 *
 * Packed weights: groups of 16 rows. Quantised ones run in blocks of 32 (or 16) columns; a block holds scales
 * d[16], for some kinds offsets m[16], then vectors of 64 bytes: 16 rows x 4 columns (row r, column c at byte
 * r*4 + c). Value = q*d + m. Activations: a tile of nt <= SG_TILE rows. Quantised: per block of 32 or 16
 * columns q[block/4][nt][4] s8, then d[nt] f32, then s[nt] f32, the sum of what was kept of x. When they are fine, the
 * rest r[block/4][nt][4] s8 stands between q and d (x = d * (256 q + r)). Float ("xf"): [k][nt] f32.
 *
 * Raised: spans of SG_SPAN columns (the last may be shorter) share one scale d; of every SG_RAISES columns, begun ones
 * too, one chunk of 4 has an upper byte: those that hold the largest numbers of the span, which so leave the scale to
 * the others. x = d * (q + 128 upper). A span of c columns, of b = c / block blocks: q[c/4][nt][4] s8, n[b][nt] s32,
 * s[b][nt] f32, d[nt] f32, and for each raised chunk upper[nt][4] s8, at[nt] u32, from[nt] u32, n[nt] s32. q of odd blocks
 * is negated. s: the sum of q + 128 upper; n: -128 times the sum of what stands in q (in upper), plus SG_BIAS for
 * blocks. at and from: where, in bytes from the beginning of the span of opened weights, the chunk's vector and the
 * scales of its block are.
 *
 * Wide: products of bf16, sums in fp32, for many rows. A number is rounded to one term, or to two: the second
 * is what the first leaves, rounded too. Weights of a group: per 32 columns, per term, 16 pairs of columns x
 * 16 rows x 2. Activations of 16 rows: per 32 columns, per term, 16 rows x 32. Both are filled up with zeros;
 * numbers below the normal range may become zero.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_KERNELS_H
#define SG_UNIT_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "graph/op.h"

enum { SG_GROUP = 16, SG_TILE = 12, SG_FEW = 4, SG_CHUNK = 128 };
enum { SG_COARSE, SG_FINE, SG_RAISED };      /* how exactly activations are quantised */
enum { SG_SPAN = 256, SG_RAISES = 64 };      /* columns: of a scale, for one raised chunk */
enum { SG_RAISED_MOST = (SG_SPAN + SG_RAISES - 1) / SG_RAISES }; /* raised chunks of a span */
enum { SG_BIAS = 0x4b400000 }; /* 1.5 * 2^23 as bits of fp32: integers up to 2^22 added to it are added to the number */
enum { SG_WIDE = 16, SG_WIDE_COLUMNS = 32, SG_WIDE_TERMS = 2 }; /* a wide tile: rows, columns */

/* Raise it whenever a byte of a packed layout changes its place or meaning: packs that an earlier version kept are then
 * refused. tests/cpu/cpu_pack.c holds every layout against it. */
enum { SG_PACK_LAYOUT = 3 };

enum sg_pack {
    SG_PACK_Q4,      /* d f16, 4 vectors of nibbles (low: columns 0-15, high: 16-31); m = -8 d */
    SG_PACK_Q4M,     /* d f16, m f16, 4 vectors of nibbles */
    SG_PACK_Q8,      /* d f16, 8 vectors u8; m = -128 d */
    SG_PACK_Q4F,     /* d f32, m f32, 4 vectors of nibbles */
    SG_PACK_Q8F,     /* d f32, m f32, 8 vectors u8: the open form of 32 */
    SG_PACK_Q8H,     /* blocks of 16: d f32, m f32, 4 vectors u8: the open form of 16 */
    SG_PACK_Q4K,     /* 256 columns: D f16, M f16; 8 x (s[16] u8, t[16] u8); 8 x 4 vectors of nibbles; of each
                        32 columns d = D s, m = -M t */
    SG_PACK_Q6K,     /* 256 columns: D f16, 32 bytes unused; 16 x s[16] s8; 8 x (4 vectors of nibbles as Q4, 2
                        vectors of upper bits: columns 4 i to 4 i + 3 in vector i % 2 from bit 2 (i / 2));
                        of each 16 columns d = D s, m = -32 d */
    SG_PACK_F32,     /* [k][16] */
    SG_PACK_F16,     /* [k][16] */
    SG_PACK_BF16,    /* [k][16] */
    SG_PACK_N
};

/* Bytes of one block of a quantised kind, or of one column of a float kind. */
static inline size_t sg_pack_block_bytes(enum sg_pack kind)
{
    static const uint16_t bytes[SG_PACK_N] = {32 + 256,  64 + 256,        32 + 512,        128 + 256, 128 + 512,
                                              128 + 256, 320 + 8 * 256, 320 + 8 * 384, 64,        32,
                                              32};
    return bytes[kind];
}
/* Columns of one block; 1 for float kinds. */
static inline uint32_t sg_pack_block(enum sg_pack kind)
{
    return kind >= SG_PACK_F32 ? 1u : kind == SG_PACK_Q8H ? 16u : kind >= SG_PACK_Q4K ? 256u : 32u;
}
/* Columns that share one scale, which is how activations are quantised for it. Quantised kinds. */
static inline uint32_t sg_pack_run(enum sg_pack kind)
{
    return kind == SG_PACK_Q8H || kind == SG_PACK_Q6K ? 16u : 32u;
}
/* What is known of opened weights: their blocks, and whether m = -128 d. */
enum { SG_OPEN_32, SG_OPEN_16, SG_OPEN_32_EVEN, SG_OPEN_N };
static inline uint32_t sg_open_of(enum sg_pack kind)
{
    return sg_pack_run(kind) == 16 ? SG_OPEN_16 : kind == SG_PACK_Q8 ? SG_OPEN_32_EVEN : SG_OPEN_32;
}
/* Bytes of one opened group of k columns: Q8F, or Q8H where runs are of 16; F32 for float kinds. */
static inline size_t sg_open_bytes(enum sg_pack kind, size_t k)
{
    if (kind >= SG_PACK_F32) return k * 64;
    return sg_pack_run(kind) == 16 ? k / 16 * (128 + 256) : k / 32 * (128 + 512);
}
/* Bytes of one block of nt rows before d; not raised. */
static inline size_t sg_tile_scales(uint32_t block, uint32_t fine, size_t nt)
{
    return nt * (block + (fine == SG_FINE ? block : 0u));
}
/* Raised chunks of c columns of a span. */
static inline uint32_t sg_raised_chunks(uint32_t c) { return (c + SG_RAISES - 1) / SG_RAISES; }

/* Bytes of a quantised tile of nt rows and k columns. */
static inline size_t sg_tile_bytes(size_t k, uint32_t block, uint32_t fine, size_t nt)
{
    const size_t whole = k / SG_SPAN, spans = (k + SG_SPAN - 1) / SG_SPAN,
                 chunks = whole * SG_RAISED_MOST + sg_raised_chunks((uint32_t)(k % SG_SPAN));
    return fine == SG_RAISED ? nt * (k + k / block * 8 + spans * 4 + chunks * 16)
                             : k / block * (sg_tile_scales(block, fine, nt) + nt * 8u);
}

/* A span of c columns of a raised tile of nt rows. */
struct sg_span_at {
    const uint8_t *q, *n, *s, *d, *raised;
    uint32_t blocks, chunks;         /* chunks: raised ones */
};
static inline struct sg_span_at sg_span_of(const uint8_t *x, size_t left, uint32_t block, size_t nt)
{
    const uint32_t c = left < SG_SPAN ? (uint32_t)left : (uint32_t)SG_SPAN;
    struct sg_span_at a = {.q = x, .n = x + nt * c, .blocks = c / block, .chunks = sg_raised_chunks(c)};
    a.s = a.n + nt * a.blocks * 4;
    a.d = a.s + nt * a.blocks * 4;
    a.raised = a.d + nt * 4;
    return a;
}

/* Numbers of one group, or of 16 rows, in wide form. */
static inline size_t sg_wide_size(size_t k, uint32_t terms)
{
    return (k + SG_WIDE_COLUMNS - 1) / SG_WIDE_COLUMNS * SG_WIDE_COLUMNS * SG_WIDE * terms;
}

/* out[t*ldo + r] for rows r < rows (any number; weights are padded to whole groups) and t < nt. fine: the
 * form of x (float kinds: unused). */
typedef void sg_mm_fn(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine,
                      float *out, size_t ldo);

/* A wide product: columns, groups of weights, tiles of 16 rows, terms of either. */
struct sg_wide {
    size_t k;
    uint32_t groups, tiles, w_terms, x_terms;
};

enum { SG_DELTA_COLUMNS = 64 };
/* Rows of one head of the delta rule: q, k [rows][ldk]; v [rows][ldv], o [rows][ldo]; decay, beta [rows]. room:
 * [dk][SG_DELTA_COLUMNS], where columns of the state lie side by side while many rows work on them. */
struct sg_delta_rows {
    uint32_t rows, dk, dv;
    const float *q, *k, *v, *decay, *beta;
    float *o, *room;
    size_t ldk, ldv, ldo;
};

/* Of several queries over some keys: maxima of the scores, sums of exp(score - m), values weighed by those. */
struct sg_sums { float *m, *l, *o; };

/* Attention of many rows in integers: a row of numbers is a scale times 16-bit n, products are summed in 32 bits. Scales of a
 * row that is not finite are NaN, and so is what comes of it. Every row is independent of its neighbours. keys <= SG_CHUNK. */
enum { SG_NARROW_SUM = 4095 };       /* most of |n| of weights and values: SG_CHUNK products fit */
/* Columns of a row in pairs. */
static inline uint32_t sg_narrow_width(uint32_t d) { return (d + 1) / 2 * 2; }
struct sg_narrow {
    /* nq rows of d columns -> n [nq][width]; scale [nq]. Keys too: n within sqrt(2^31 / d). */
    void (*rows)(const float *q, uint32_t nq, uint32_t d, int16_t *n, float *scale);
    /* k [keys/16][d][16], fp32 or f16 -> n [keys/16][width/2][16][2]; scale [keys], both to whole 16 keys. */
    void (*keys)(const void *k, int f16, uint32_t d, uint32_t keys, int16_t *n, float *scale);
    /* v [keys][dvp], fp32 or f16 -> n [(keys + 1) / 2][dvp][2]; scale, and the largest up to each: [keys to whole 16] */
    void (*values)(const void *v, int f16, uint32_t dvp, uint32_t keys, int16_t *n, float *scale, float *top);
    /* As scores, but for the scale of q. */
    void (*scores)(const int16_t *q, uint32_t nq, uint32_t d, const int16_t *k, const float *scale, uint32_t keys, float *s);
    /* p [keys], in [0, 1], 0 where scale > top; to whole 16 keys -> n of p * scale / top. */
    void (*weights)(const float *p, const float *scale, float top, uint32_t keys, int16_t *n);
    /* As weigh; p [nq][SG_CHUNK]; top [nq] as given to weights. */
    void (*weigh)(const int16_t *p, const float *top, uint32_t nq, uint32_t keys, const int16_t *v, uint32_t dvp, float *o);
};

struct sg_kernels {
    const char *isa;
    uint32_t level;                  /* of the list in dispatch.c */

    /* --- matrices. Tolerance: fp32 rounding of the same sums; the integer sums inside are exact, those of a raised
     * block within four units. --- */
    sg_mm_fn *few[SG_PACK_N];        /* packed weights, nt <= SG_FEW (float kinds: <= SG_TILE); not raised */
    /* Open weights, by sg_open_of; nt <= SG_TILE. Bit-equal to `few` of that isa, or raised. */
    sg_mm_fn *tile[SG_OPEN_N];
    /* One group -> open form. Exact. NULL for kinds that are open. */
    void (*open[SG_PACK_N])(const uint8_t *w, size_t k, uint8_t *out);
    /* nt rows of k columns (k multiple of block) -> tile. Exact: q = nearest even of y = x * (127 / max|x|),
     * the rest nearest even of (y - q) * 256, within 127. Raised: max|x| over the chunks of a span that are not raised,
     * its last six bits set unless it is below them, at least 1/128 of the largest one of the span; upper = (y rounded + 64)
     * / 128 rounded down; the chunks in the order of their largest numbers without those bits, of equal ones the first. */
    void (*quant)(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t block, uint32_t fine,
                  uint8_t *tile);
    void (*spread)(const float *x, size_t ldx, uint32_t nt, size_t k, float *tile);   /* -> "xf"; exact */

    /* --- wide. Every output row is independent of its neighbours. --- */
    uint32_t wide; /* 1: faster than tiles here; the entries below exist either way */
    /* One group of a kind, fp32 fma(q, d, m) or the number itself, in terms. */
    void (*wide_open[SG_PACK_N])(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out);
    /* nt <= SG_WIDE rows of k columns in terms. */
    void (*wide_rows)(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t terms, uint16_t *out);
    /* out[t*ldo + r] = x w: all 16 rows of every tile and group are written. The product of both second
     * terms is left out. Tolerance: fp32 rounding. A thread stands between its own begin and end. */
    void (*wide_begin)(void), (*wide_end)(void);
    void (*wide_mm)(const struct sg_wide *m, const uint16_t *w, const uint16_t *x, float *out, size_t ldo);

    /* --- rows. Any n, any alignment; tolerance 4 ulp of the largest term where a sum is involved. --- */
    void (*norm)(const float *x, size_t n, const struct sg_norm *p, const float *w, const float *bias,
                 float *y);
    void (*rope)(const float *x, uint32_t pairs, uint32_t width, const float *cs, float sign,
                 float *y); /* one head; cs [pairs][2] */
    void (*act)(enum sg_act act, const float *x, size_t n, float *y);
    void (*glu)(enum sg_act act, const float *gate, const float *up, size_t n, float *y);
    void (*add)(const float *x, const float *y, size_t n, float *out);
    void (*mul)(const float *x, const float *y, size_t n, float *out);
    float (*dot)(const float *x, const float *y, size_t n);
    void (*axpy)(float a, const float *x, size_t n, float *y);          /* y += a x */

    /* --- attention over one chunk of at most SG_CHUNK keys. --- */
    void (*to_f16)(const float *x, size_t n, uint16_t *y);              /* exact rounding */
    void (*of_f16)(const uint16_t *x, size_t n, float *y);              /* exact */
    void (*of_bf16)(const uint16_t *x, size_t n, float *y);             /* exact */
    /* q [nq][d] (nq <= 6), k [keys/16][d][16], s [nq][SG_CHUNK]; keys is rounded up to 64. */
    void (*scores)(const float *q, uint32_t nq, uint32_t d, const float *k, uint32_t keys, float *s);
    /* The same over keys and values in f16, bit for bit; v [keys][dvp]. NULL: load them as fp32 first. next: what is
     * read next, as many bytes as k or v; it is brought nearer meanwhile (NULL, or any address, is no error). */
    void (*scores_f16)(const float *q, uint32_t nq, uint32_t d, const uint16_t *k, uint32_t keys, float *s,
                       const void *next);
    void (*weigh_f16)(const float *p, uint32_t nq, uint32_t keys, const uint16_t *v, uint32_t dvp, float *o,
                      const void *next);
    const struct sg_narrow *narrow;          /* for passes of many rows; NULL: they are taken as few are */
    /* s -> exp(s - max) over keys [lo, hi), 0 elsewhere below keys; max and sum out. Empty: max = -inf, sum =
     * 0. Before: s * scale, then softcap * tanh(s / softcap) when softcap > 0. */
    void (*soften)(float *s, uint32_t lo, uint32_t hi, uint32_t keys, float scale, float softcap, float *max,
                   float *sum);
    /* o [nq][dvp] = p [nq][SG_CHUNK] x v [keys][dvp]; dvp multiple of 16, nq <= 6. */
    void (*weigh)(const float *p, uint32_t nq, uint32_t keys, const float *v, uint32_t dvp, float *o);
    /* The sums of nq <= 6 queries and those over more keys become sums over both; rows of o lie ldo and ldf floats apart.
     * m = -inf: no keys, and o may hold anything. */
    void (*join)(uint32_t nq, uint32_t dv, const struct sg_sums *to, size_t ldo, const struct sg_sums *from, size_t ldf);

    /* --- recurrences --- */
    /* y[c] = act(bias[c] + sum_j w[j*ldw + c] * x[j][c]) for n channels; x: taps pointers. bias may be NULL.
     */
    void (*conv)(const float *const *x, uint32_t taps, const float *w, size_t ldw, const float *bias,
                 enum sg_act act, size_t n, float *y);
    /* s [dk][dv], row after row: s *= decay; u = beta * (v - s^T k); s += k u^T; o = s^T q. */
    void (*delta)(float *s, const struct sg_delta_rows *r);

    uint64_t (*sum)(const uint64_t *x, size_t n);                       /* reads memory as fast as it can */
};

/* Fill a table: every entry, or those that the instruction set improves. */
void sg_kernels_generic(struct sg_kernels *k);
void sg_kernels_avx2(struct sg_kernels *k);
void sg_kernels_avx512(struct sg_kernels *k);
void sg_kernels_amx(struct sg_kernels *k);
void sg_kernels_neon(struct sg_kernels *k);

#endif
