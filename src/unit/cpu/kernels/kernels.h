/* kernels.h: the kernel table of the cpu unit. k_generic.c specifies every entry; k_avx2.c,
 * k_avx512*.c, k_amx.c and k_neon.c replace entries that they compute faster. Callers keep the
 * preconditions given at each entry. Every kernel computes each output row with the same operations in
 * the same order, however many rows the call has, so that a result does not depend on the batch size.
 *
 * Packed weights: rows in groups of 16. Quantised kinds consist of blocks of 32 (or 16, or 256)
 * columns. A block holds the scales d[16], for some kinds the offsets m[16], then vectors of 64 bytes
 * with 16 rows x 4 columns: row r, column c of a vector is byte r*4 + c. A weight is q*d + m. One such
 * vector is one operand of vpdpbusd (or of two AVX2 or four NEON multiplies), so sums are never taken
 * across the lanes of a register.
 *
 * Quantised activations: a tile of nt rows, at most SG_TILE, or few_rows for `few`. Per block of 32 or
 * 16 columns: q[block/4][nt][4] s8, then d[nt] f32, then s[nt] f32, the sum of the quantised x of the
 * block, which multiplies m. SG_FINE: a second array r[block/4][nt][4] s8 between q and d holds the
 * remainder, x = d * (256 q + r). Float activations ("xf"): [k][nt] f32.
 *
 * SG_OUTLIER: superblocks of SG_SUPERBLOCK columns (the last may be shorter) share one scale d. The
 * scale is chosen for the columns that remain after the largest chunks are set aside: of every
 * SG_OUTLIER_COLS columns (rounded up) one chunk of 4 columns, an outlier chunk, gets an additional
 * high byte, x = d * (q + 128 upper). The outlier chunks are those with the largest numbers of the
 * superblock. Layout for c columns in b = c / block blocks: q[c/4][nt][4] s8, n[b][nt] s32, s[b][nt]
 * f32, d[nt] f32, and per outlier chunk upper[nt][4] s8, at[nt] u32, from[nt] u32, n[nt] s32. q of odd
 * blocks is negated. s: sum of q + 128 upper of the block. n: -128 times the sum of the stored q (of
 * upper), plus SG_BIAS for blocks. at, from: byte offsets, from the start of the superblock of unpacked
 * weights, of the chunk's vector and of its block's scales.
 *
 * bf16: products of bf16 with fp32 sums, for many rows. A number is rounded to one bf16 term, or to
 * two, where the second is the rounded remainder of the first. Weights of a group: per 32 columns, per
 * term, 16 column pairs x 16 rows x 2. Activations of 16 rows: per 32 columns, per term, 16 rows x 32.
 * Both are padded with zeros. Subnormal numbers may be flushed to zero.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_KERNELS_H
#define SG_UNIT_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "graph/op.h"

/* Weight rows of a group; rows of an activation tile; rows up to which `few` is used; keys of an
 * attention chunk */
enum { SG_GROUP = 16, SG_TILE = 12, SG_FEW = 4, SG_FEW_MAX = 16, SG_CHUNK = 128 };
enum { SG_COARSE, SG_FINE, SG_OUTLIER };      /* precision of quantised activations */
enum { SG_SUPERBLOCK = 256, SG_OUTLIER_COLS = 64 };      /* columns that share a scale; columns per outlier chunk */
/* outlier chunks of a full superblock */
enum { SG_OUTLIERS_MAX = (SG_SUPERBLOCK + SG_OUTLIER_COLS - 1) / SG_OUTLIER_COLS };
/* Bits of 1.5 * 2^23 in fp32: adding an integer below 2^22 in magnitude to the bits adds it to the
 * number, so an integer sum that starts here is an fp32 number without a conversion. */
enum { SG_BIAS = 0x4b400000 };
/* rows and columns of a bf16 tile, largest number of terms */
enum { SG_BF16_ROWS = 16, SG_BF16_COLS = 32, SG_BF16_TERMS = 2 };

/* Products of training: rows and columns of C of a panel; elements that are summed at a time */
enum { SG_GEMM_ROWS = 12, SG_GEMM_COLS = 32, SG_GEMM_DEPTH = 192 };
/* How their factors are packed and multiplied. A factor consists of panels, A of SG_GEMM_ROWS rows of C, B of SG_GEMM_COLS
 * columns: [elements][width], zeros beyond the edge. An element has 4 bytes, `each` numbers that are neighbours in `inner`. */
struct sg_gemm_kernels {
    uint32_t each;
    /* `depth` numbers of `inner` of the panels of all lines, rows or columns of C: x is [lines, depth]. panel: elements from one
     * panel to the next. width: SG_GEMM_ROWS or SG_GEMM_COLS. depth is a multiple of `each`, except at the end of `inner`. */
    void (*pack_turned)(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *out, size_t panel);
    /* The same of [depth, lines]. */
    void (*pack_straight)(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *out, size_t panel);
    /* One block of C, at most SG_GEMM_ROWS x SG_GEMM_COLS, of n elements of a panel of each factor; sums are in ascending order
     * and do not depend on the rows and columns beside them. add 1: C += the product. */
    void (*block)(const void *a, const void *b, uint32_t n, uint32_t rows, uint32_t cols, float *c, size_t ldc, int add);
};

/* Increment whenever a byte of a packed layout changes position or meaning: cached packs of an earlier
 * version are then rejected. tests/cpu/cpu_pack.c compares every layout against fixed hashes. */
enum { SG_PACK_LAYOUT = 3 };

/* Layouts of packed weights, per block. "Vector": 64 bytes, 16 rows x 4 columns. K-quant kinds keep the
 * file's 6-bit or 8-bit scales; the others have the scales of the file as they are. */
enum sg_pack {
    SG_PACK_Q4,      /* d f16, 4 vectors of nibbles (low: columns 0-15, high: 16-31); m = -8 d */
    SG_PACK_Q4M,     /* d f16, m f16, 4 vectors of nibbles */
    SG_PACK_Q8,      /* d f16, 8 vectors u8; m = -128 d */
    SG_PACK_Q4F,     /* d f32, m f32, 4 vectors of nibbles */
    SG_PACK_Q8F,     /* d f32, m f32, 8 vectors u8: the unpacked form of 32 */
    SG_PACK_Q8H,     /* blocks of 16: d f32, m f32, 4 vectors u8: the unpacked form of 16 */
    /* 256 columns: D f16, M f16; 8 x (s[16] u8, t[16] u8); 8 x 4 vectors of nibbles. Per 32 columns d =
     * D s, m = -M t. */
    SG_PACK_Q4K,
    /* 256 columns: D f16, 32 bytes unused; 16 x s[16] s8; 8 x (4 vectors of nibbles as Q4, 2 vectors of
     * high bits: columns 4 i to 4 i + 3 in vector i % 2 from bit 2 (i / 2)). Per 16 columns d = D s, m
     * = -32 d. */
    SG_PACK_Q6K,
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
static inline uint32_t sg_pack_block_cols(enum sg_pack kind)
{
    return kind >= SG_PACK_F32 ? 1u : kind == SG_PACK_Q8H ? 16u : kind >= SG_PACK_Q4K ? 256u : 32u;
}
/* Columns that share one scale; activations for such weights are quantised in blocks of that size.
 * Quantised kinds only. */
static inline uint32_t sg_pack_scale_cols(enum sg_pack kind)
{
    return kind == SG_PACK_Q8H || kind == SG_PACK_Q6K ? 16u : 32u;
}
/* Forms of unpacked weights: blocks of 32 or 16 columns; SYM: m = -128 d is known, so m need not be
 * read. */
enum { SG_UNPACKED_32, SG_UNPACKED_16, SG_UNPACKED_32_SYM, SG_UNPACKED_N };
static inline uint32_t sg_unpacked_form(enum sg_pack kind)
{
    return sg_pack_scale_cols(kind) == 16 ? SG_UNPACKED_16 : kind == SG_PACK_Q8 ? SG_UNPACKED_32_SYM : SG_UNPACKED_32;
}
/* Bytes of one unpacked group of k columns: Q8F, or Q8H where 16 columns share a scale; F32 for float
 * kinds. */
static inline size_t sg_unpacked_bytes(enum sg_pack kind, size_t k)
{
    if (kind >= SG_PACK_F32) return k * 64;
    return sg_pack_scale_cols(kind) == 16 ? k / 16 * (128 + 256) : k / 32 * (128 + 512);
}
/* Offset of d in one block of nt rows: the bytes of q, and of the remainders if fine. Not for
 * SG_OUTLIER. */
static inline size_t sg_tile_scales(uint32_t block, uint32_t fine, size_t nt)
{
    return nt * (block + (fine == SG_FINE ? block : 0u));
}
/* Outlier chunks in c columns of a superblock. */
static inline uint32_t sg_outlier_chunks(uint32_t c) { return (c + SG_OUTLIER_COLS - 1) / SG_OUTLIER_COLS; }

/* Bytes of a quantised tile of nt rows and k columns. */
static inline size_t sg_tile_bytes(size_t k, uint32_t block, uint32_t fine, size_t nt)
{
    const size_t whole = k / SG_SUPERBLOCK, spans = (k + SG_SUPERBLOCK - 1) / SG_SUPERBLOCK,
                 chunks = whole * SG_OUTLIERS_MAX + sg_outlier_chunks((uint32_t)(k % SG_SUPERBLOCK));
    return fine == SG_OUTLIER ? nt * (k + k / block * 8 + spans * 4 + chunks * 16)
                             : k / block * (sg_tile_scales(block, fine, nt) + nt * 8u);
}

/* Pointers into one superblock of an SG_OUTLIER tile of nt rows. */
struct sg_superblock {
    const uint8_t *q, *n, *s, *d, *raised;
    uint32_t blocks, chunks;         /* chunks: number of outlier chunks */
};
/* x: start of the superblock, left: columns of the row from here on. */
static inline struct sg_superblock sg_superblock_at(const uint8_t *x, size_t left, uint32_t block, size_t nt)
{
    const uint32_t c = left < SG_SUPERBLOCK ? (uint32_t)left : (uint32_t)SG_SUPERBLOCK;
    struct sg_superblock a = {.q = x, .n = x + nt * c, .blocks = c / block, .chunks = sg_outlier_chunks(c)};
    a.s = a.n + nt * a.blocks * 4;
    a.d = a.s + nt * a.blocks * 4;
    a.raised = a.d + nt * 4;
    return a;
}

/* bf16 numbers of one group of weights, or of 16 rows of activations. */
static inline size_t sg_bf16_size(size_t k, uint32_t terms)
{
    return (k + SG_BF16_COLS - 1) / SG_BF16_COLS * SG_BF16_COLS * SG_BF16_ROWS * terms;
}

/* out[t*ldo + r] for rows r < rows and t < nt. rows is arbitrary, since weights are padded to whole
 * groups. fine: form of x (SG_COARSE, SG_FINE or SG_OUTLIER; ignored by float kinds). */
typedef void sg_mm_fn(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine,
                      float *out, size_t ldo);

/* Shape of a bf16 product: columns, groups of weights, tiles of 16 rows, terms of each operand. */
struct sg_bf16_shape {
    size_t k;
    uint32_t groups, tiles, w_terms, x_terms;
};

enum { SG_DELTA_COLS = 64 };
/* Arguments of the gated delta rule for one head: q, k [rows][ldk]; v [rows][ldv], o [rows][ldo];
 * decay, beta [rows]. room: scratch [dk][SG_DELTA_COLS], a contiguous copy of the state columns while
 * several rows update them. */
struct sg_delta_args {
    uint32_t rows, dk, dv;
    const float *q, *k, *v, *decay, *beta;
    float *o, *scratch;
    size_t ldk, ldv, ldo;
};

/* Partial softmax attention of some queries over some keys: maxima of the scores, sums of exp(score -
 * m), and values weighted by those exponentials (not normalised). */
struct sg_softmax_part { float *m, *l, *o; };

/* Attention of long passes in integers: a row is a scale times 16-bit integers n; products are summed
 * exactly in 32 bits. A row with a non-finite number gets the scale NaN, and so does its result. Rows
 * do not affect each other. keys <= SG_CHUNK. */
enum { SG_ATTN_I16_MAX = 4095 };       /* largest |n| of weights and values: SG_CHUNK products fit in 32 bits */
/* Columns of a row, rounded up to pairs. */
static inline uint32_t sg_attn_i16_width(uint32_t d) { return (d + 1) / 2 * 2; }
struct sg_attn_i16 {
    /* nq rows of d columns -> n [nq][width], scale [nq]. |n| is limited to sqrt(2^31 / d), as for keys. */
    void (*rows)(const float *q, uint32_t nq, uint32_t d, int16_t *n, float *scale);
    /* k [keys/16][d][16], fp32 or f16 -> n [keys/16][width/2][16][2], scale [keys]; both padded to a
     * multiple of 16 keys. */
    void (*keys)(const void *k, int f16, uint32_t d, uint32_t keys, int16_t *n, float *scale);
    /* v [keys][dvp], fp32 or f16 -> n [(keys + 1) / 2][dvp][2]; scale and the running maximum of scale
     * (top), both padded to a multiple of 16 keys. */
    void (*values)(const void *v, int f16, uint32_t dvp, uint32_t keys, int16_t *n, float *scale, float *top);
    /* As sg_kernels.scores, without the factor of q's scale. */
    void (*scores)(const int16_t *q, uint32_t nq, uint32_t d, const int16_t *k, const float *scale, uint32_t keys, float *s);
    /* p [keys] in [0, 1], 0 where scale > top -> n = p * scale / top as integers, padded to a multiple
     * of 16 keys. */
    void (*weights)(const float *p, const float *scale, float top, uint32_t keys, int16_t *n);
    /* o = p x v as in sg_kernels; p [nq][SG_CHUNK], top [nq] as passed to weights. */
    void (*pv)(const int16_t *p, const float *top, uint32_t nq, uint32_t keys, const int16_t *v, uint32_t dvp, float *o);
};

/* The kernel table. No pointer needs more than the natural alignment of its type. */
struct sg_kernels {
    const char *isa;

    /* Matrix products. Tolerance: fp32 rounding of the same sums. The integer sums are exact; those of
     * an SG_OUTLIER block are exact within four units. */
    /* packed weights, nt <= few_rows (float kinds: <= SG_TILE); not SG_OUTLIER */
    sg_mm_fn *few[SG_PACK_N];
    uint32_t few_rows; /* SG_FEW to SG_FEW_MAX */
    /* Unpacked weights, indexed by sg_unpacked_form; nt <= SG_TILE. Bit-equal to `few` of the same
     * table, or SG_OUTLIER. */
    sg_mm_fn *tile[SG_UNPACKED_N];
    /* One group -> unpacked form, exactly. NULL for kinds that are stored unpacked. */
    void (*open[SG_PACK_N])(const uint8_t *w, size_t k, uint8_t *out);
    /* nt rows of k columns (k a multiple of block) -> tile, bit-equal in all tables: q = y rounded to
     * nearest even, with y = x * (127 / max|x|); remainder = (y - q) * 256 rounded to nearest even,
     * clamped to 127. SG_OUTLIER: max|x| is taken over the chunks that are not outliers, with its last
     * six bits set (unless it is smaller than those), and is at least 1/128 of the largest number of
     * the superblock; upper = floor((round(y) + 64) / 128). Outlier chunks are ordered by their largest
     * number without its last six bits, then by index. */
    void (*quant)(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t block, uint32_t fine,
                  uint8_t *tile);
    void (*spread)(const float *x, size_t ldx, uint32_t nt, size_t k, float *tile);   /* -> "xf", exact */

    /* bf16 products. Output rows are independent of each other. */
    /* 1: bf16 is faster than tiles on this processor; the entries below exist in any case */
    uint32_t wide;
    /* Unpacks one group of a kind into bf16 terms of fma(q, d, m) in fp32, or of the stored number. */
    void (*bf16_unpack[SG_PACK_N])(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out);
    /* nt <= SG_BF16_ROWS rows of k columns into terms. */
    void (*bf16_rows)(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t terms, uint16_t *out);
    /* out[t*ldo + r] = x w for all 16 rows of every tile and group. The product of both second terms is
     * omitted. Tolerance: fp32 rounding. A thread calls begin before and end after its products (AMX
     * tile configuration). */
    void (*bf16_begin)(void), (*bf16_end)(void);
    void (*bf16_mm)(const struct sg_bf16_shape *m, const uint16_t *w, const uint16_t *x, float *out, size_t ldo);

    /* Row kernels. Any n and any alignment, including tails; tolerance 4 ulp of the largest term where
     * a sum is involved. */
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

    /* Attention over one chunk of at most SG_CHUNK keys. */
    void (*to_f16)(const float *x, size_t n, uint16_t *y);              /* correctly rounded */
    void (*of_f16)(const uint16_t *x, size_t n, float *y);              /* exact */
    void (*of_bf16)(const uint16_t *x, size_t n, float *y);             /* exact */
    /* s = q k^T: q [nq][d] (nq <= 6), k [keys/16][d][16], s [nq][SG_CHUNK]. May read and write keys up
     * to the next multiple of 64. */
    void (*scores)(const float *q, uint32_t nq, uint32_t d, const float *k, uint32_t keys, float *s);
    /* The same on f16 keys and values, bit-equal to converting first; v [keys][dvp]. NULL: the caller
     * converts to fp32. next: data that is read next, as large as k or v, which is prefetched
     * meanwhile. It may be NULL or any address. */
    void (*scores_f16)(const float *q, uint32_t nq, uint32_t d, const uint16_t *k, uint32_t keys, float *s,
                       const void *next);
    void (*pv_f16)(const float *p, uint32_t nq, uint32_t keys, const uint16_t *v, uint32_t dvp, float *o,
                      const void *next);
    const struct sg_attn_i16 *narrow;          /* integer attention for long passes; NULL: fp32 only */
    /* s -> exp(s - max) for keys [lo, hi), 0 for the others below keys; returns max and the sum. No
     * key: max = -inf, sum = 0. Before that: s * scale, then softcap * tanh(s / softcap) if softcap >
     * 0. */
    void (*softmax_chunk)(float *s, uint32_t lo, uint32_t hi, uint32_t keys, float scale, float softcap, float *max,
                   float *sum);
    /* o [nq][dvp] = p [nq][SG_CHUNK] x v [keys][dvp]; dvp a multiple of 16, nq <= 6. */
    void (*pv)(const float *p, uint32_t nq, uint32_t keys, const float *v, uint32_t dvp, float *o);
    /* Merges partial softmax results of nq <= 6 queries: `to` becomes the result over both sets of
     * keys. Rows of o are ldo and ldf floats apart. m = -inf: no keys, and o is not read. */
    void (*join)(uint32_t nq, uint32_t dv, const struct sg_softmax_part *to, size_t ldo, const struct sg_softmax_part *from,
                 size_t ldf);

    /* y[c] = act(bias[c] + sum_j w[j*ldw + c] * x[j][c]) for n channels; x: one pointer per tap. bias
     * may be NULL. */
    void (*conv)(const float *const *x, uint32_t taps, const float *w, size_t ldw, const float *bias,
                 enum sg_act act, size_t n, float *y);
    /* Gated delta rule on the state s [dk][dv], row after row: s *= decay; u = beta * (v - s^T k); s +=
     * k u^T; o = s^T q. */
    void (*delta)(float *s, const struct sg_delta_args *r);

    const struct sg_gemm_kernels *gemm;       /* the product of training, in fp32 */
    const struct sg_gemm_kernels *gemm_bf16;  /* with factors rounded to bf16, sums in fp32. NULL: no instruction for it */

    uint64_t (*sum)(const uint64_t *x, size_t n);                       /* sum of words, to measure memory bandwidth */
};

/* Fill a table: generic sets every entry; the others overwrite what their instruction set improves. */
void sg_kernels_generic(struct sg_kernels *k);
void sg_kernels_avx2(struct sg_kernels *k);
void sg_kernels_avx512(struct sg_kernels *k);
void sg_kernels_avx512_bf16(struct sg_kernels *k); /* beside avx512, where the processor has AVX512-BF16 */
void sg_kernels_amx(struct sg_kernels *k);
void sg_kernels_neon(struct sg_kernels *k);

#endif
