/* k_generic.c: every kernel in plain C, built for every processor. It is the specification that the
 * other kernel files are tested against (tests/check/check_kernel.c), so it favours clarity: one reader
 * of packed layouts (block_read), scalar loops with integer sums in int32, and the same order of fp32
 * operations that the vector kernels use.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/kernels/k_plain.h"

/* As block_read, for the K-quant kinds: the columns [column, column + scale_cols) of a block of 256
 * columns. */
static void kblock_read(enum sg_pack kind, const uint8_t *b, uint32_t column, uint8_t q[16][32], float *d,
                     float *m)
{
    uint32_t part = column / 32, half = column / 16 % 2, q6 = kind == SG_PACK_Q6K;
    const uint8_t *s = b + 64 + 32 * part + 16 * (q6 ? half : 0), *v = b + 320 + part * (q6 ? 384u : 256u);
    for (uint32_t r = 0; r < 16; r++) {
        d[r] = sg_f32_of_f16(sg_le16(b + 2 * r)) * (q6 ? (float)(int8_t)s[r] : (float)s[r]);
        m[r] = q6 ? -32.0f * d[r] : -(sg_f32_of_f16(sg_le16(b + 32 + 2 * r)) * (float)s[16 + r]);
        for (uint32_t c = 0; c < sg_pack_scale_cols(kind); c++) {
            /* the vector of 4 columns, and the byte of row r in it */
            uint32_t chunk = c / 4 + 4 * (q6 ? half : 0), at = r * 4 + c % 4;
            q[r][c] = v[chunk % 4 * 64 + at] >> 4 * (chunk / 4) & 15;
            if (q6) q[r][c] |= (uint8_t)((v[256 + chunk % 2 * 64 + at] >> 2 * (chunk / 2) & 3) << 4);
        }
    }
}

/* Unpacks the columns of a group that share a scale, beginning at `column`: 16 x 32 unsigned integers q
 * [row][column], scales d and offsets m of the 16 rows. */
static void block_read(enum sg_pack kind, const uint8_t *b, size_t column, uint8_t q[16][32], float *d,
                       float *m)
{
    b += column / sg_pack_block_cols(kind) * sg_pack_block_bytes(kind);
    if (sg_pack_block_cols(kind) == 256) {
        kblock_read(kind, b, (uint32_t)(column % 256), q, d, m);
        return;
    }
    /* scales stored as f16 */
    int half = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q8;
    for (int r = 0; r < 16; r++) {
        d[r] = half ? sg_f32_of_f16(sg_le16(b + 2 * r)) : sg_f32_of_bits(sg_le32(b + 4 * r));
        if (kind == SG_PACK_Q4) m[r] = -8.0f * d[r];
        else if (kind == SG_PACK_Q8) m[r] = -128.0f * d[r];
        else m[r] = half ? sg_f32_of_f16(sg_le16(b + 32 + 2 * r)) : sg_f32_of_bits(sg_le32(b + 64 + 4 * r));
    }
    const uint8_t *v = b + (half ? (kind == SG_PACK_Q4M ? 64 : 32) : 128);
    int nibbles = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q4F;
    uint32_t block = sg_pack_block_cols(kind);
    for (int r = 0; r < 16; r++)
        for (uint32_t c = 0; c < block; c++) {
            /* nibble kinds: chunks 4 to 7 are the high halves of vectors 0 to 3 */
            uint32_t chunk = c / 4, at = (nibbles ? chunk % 4 : chunk) * 64 + (uint32_t)r * 4 + c % 4;
            q[r][c] = !nibbles ? v[at] : chunk < 4 ? v[at] & 15 : v[at] >> 4;
        }
}

/* Packed weights times quantised activations. Per block: an exact integer sum, then two fp32
 * multiply-adds, sum * (d * d_x) and m * s_x. SG_FINE adds the sum of the remainders to 256 times the
 * sum of the high bytes. */
static void mm_quant(enum sg_pack kind, const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x,
                     uint32_t nt, uint32_t fine, float *out, size_t ldo)
{
    uint32_t block = sg_pack_scale_cols(kind);
    size_t blocks = k / block, group = k / sg_pack_block_cols(kind) * sg_pack_block_bytes(kind);
    for (uint32_t g = 0; g < rows; g += 16, w += group) {
        /* one chain of additions per output */
        float acc[SG_FEW_MAX][16] = {{0}};
        for (size_t b = 0; b < blocks; b++) {
            uint8_t q[16][32];
            float d[16], m[16];
            block_read(kind, w, b * block, q, d, m);
            size_t bytes = (size_t)nt * block;
            const uint8_t *xb = x + b * sg_tile_bytes(block, block, fine, nt), *more = xb + bytes,
                          *scales = xb + sg_tile_scales(block, fine, nt);
            const float *xd = (const float *)(const void *)scales, *xs = xd + nt;
            for (uint32_t t = 0; t < nt; t++)
                for (int r = 0; r < 16; r++) {
                    int32_t sum = 0, rests = 0;
                    for (uint32_t c = 0; c < block; c++) {
                        size_t at = ((c / 4) * nt + t) * 4 + c % 4;
                        sum += (int32_t)q[r][c] * (int8_t)xb[at];
                        if (fine == SG_FINE) rests += (int32_t)q[r][c] * (int8_t)more[at];
                    }
                    /* exact in int32: 32 products of at most 255 * 128 * 256 */
                    if (fine == SG_FINE) sum = sum * 256 + rests;
                    acc[t][r] = (float)sum * (d[r] * xd[t]) + acc[t][r];
                    acc[t][r] = m[r] * xs[t] + acc[t][r];
                }
        }
        for (uint32_t t = 0; t < nt; t++)
            memcpy(out + t * ldo + g, acc[t], sizeof(float) * (rows - g < 16 ? rows - g : 16));
    }
}

/* Sum of four products u8 x s8: one lane of vpdpbusd. */
static int32_t dot4(const uint8_t *w, const uint8_t *x)
{
    int32_t sum = 0;
    for (int c = 0; c < 4; c++) sum += (int32_t)w[c] * (int8_t)x[c];
    return sum;
}

/* Row r of an unpacked group times row t of one superblock of an SG_OUTLIER tile: blocks first, then
 * the outlier chunks, whose sum counts 128 times. */
static float superblock_dot(const uint8_t *w, uint32_t block, const struct sg_superblock *a, uint32_t r, uint32_t t, uint32_t nt)
{
    const float *s = (const float *)(const void *)a->s;
    float d, m, sum = 0.0f, outliers = 0.0f;
    for (uint32_t b = 0; b < a->blocks; b++) {
        const uint8_t *wb = w + b * sg_unpacked_bytes(block == 16 ? SG_PACK_Q8H : SG_PACK_Q8F, block);
        int32_t n = 0;
        for (uint32_t c = 0; c < block / 4; c++)
            n += dot4(wb + 128 + 64 * c + 4 * r, a->q + ((b * block / 4 + c) * nt + t) * 4);
        memcpy(&d, wb + 4 * r, 4);
        memcpy(&m, wb + 64 + 4 * r, 4);
        /* odd blocks hold negated activations */
        sum = (float)(b % 2 ? -n : n) * d + sum;
        sum = m * s[b * nt + t] + sum;
    }
    for (uint32_t i = 0; i < a->chunks; i++) {
        /* this row's outlier chunk: bytes, then offsets of vector and scales */
        const uint8_t *one = a->raised + 16 * (size_t)nt * i;
        memcpy(&d, w + sg_le32(one + 4 * (2 * nt + t)) + 4 * r, 4);
        outliers = (float)dot4(w + sg_le32(one + 4 * (nt + t)) + 4 * r, one + 4 * t) * d + outliers;
    }
    return 128.0f * outliers + sum;
}

/* Unpacked weights times an SG_OUTLIER tile, one superblock after the other; acc is fp32. */
static void mm_outlier(uint32_t block, const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt,
                      float *out, size_t ldo)
{
    const enum sg_pack kind = block == 16 ? SG_PACK_Q8H : SG_PACK_Q8F;
    const size_t group = sg_unpacked_bytes(kind, k), span = sg_unpacked_bytes(kind, SG_SUPERBLOCK);
    for (uint32_t t = 0; t < nt; t++)
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *wr = w + r / 16 * group, *xs = x;
            float acc = 0.0f, d;
            /* one scale of the activations per superblock */
            for (size_t from = 0; from < k; from += SG_SUPERBLOCK, wr += span) {
                const struct sg_superblock a = sg_superblock_at(xs, k - from, block, nt);
                memcpy(&d, a.d + 4 * t, 4);
                acc = d * superblock_dot(wr, block, &a, r % 16, t, nt) + acc;
                xs = a.raised + 16 * (size_t)nt * a.chunks;
            }
            out[t * ldo + r] = acc;
        }
}

/* One number of a float kind. */
static float float_at(enum sg_pack kind, const uint8_t *p)
{
    return kind == SG_PACK_F32   ? sg_f32_of_bits(sg_le32(p))
           : kind == SG_PACK_F16 ? sg_f32_of_f16(sg_le16(p))
                                 : sg_f32_of_bf16(sg_le16(p));
}

/* Float weights times float activations, fp32 sums in rising column order. */
static void mm_float(enum sg_pack kind, const uint8_t *w, size_t k, uint32_t rows, const float *x,
                     uint32_t nt, float *out, size_t ldo)
{
    size_t step = sg_pack_block_bytes(kind);
    for (uint32_t g = 0; g < rows; g += 16, w += k * step) {
        float acc[SG_TILE][16] = {{0}};
        for (size_t i = 0; i < k; i++) {
            float v[16];
            for (int r = 0; r < 16; r++)
                v[r] = float_at(kind, w + i * step + step / 16 * (size_t)r);
            for (uint32_t t = 0; t < nt; t++)
                for (int r = 0; r < 16; r++) acc[t][r] += v[r] * x[i * nt + t];
        }
        for (uint32_t t = 0; t < nt; t++)
            memcpy(out + t * ldo + g, acc[t], sizeof(float) * (rows - g < 16 ? rows - g : 16));
    }
}

/* f16 or bf16 weights -> fp32. */
static void float_unpack(enum sg_pack kind, const uint8_t *w, size_t k, uint8_t *out)
{
    for (size_t i = 0; i < 16 * k; i++, w += sg_pack_block_bytes(kind) / 16, out += 4) {
        float v = float_at(kind, w);
        memcpy(out, &v, 4);
    }
}

/* One group of a quantised kind -> blocks of d, m and bytes (Q8F or Q8H). */
static void unpack_any(enum sg_pack kind, const uint8_t *w, size_t k, uint8_t *out)
{
    size_t run = sg_pack_scale_cols(kind);
    for (size_t at = 0; at < k; at += run, out += sg_unpacked_bytes(kind, run)) {
        uint8_t q[16][32];
        float dm[32];
        block_read(kind, w, at, q, dm, dm + 16);
        memcpy(out, dm, sizeof dm);
        for (int r = 0; r < 16; r++)
            for (int c = 0; c < (int)run; c++) out[128 + (c / 4) * 64 + r * 4 + c % 4] = q[r][c];
    }
}

/* Values of columns [from, from + 32) of a group in fp32, 0 after the last column. fmaf rounds once, as
 * the vector kernels do. */
static void bf16_values(enum sg_pack kind, const uint8_t *w, size_t k, size_t from, float v[16][32])
{
    uint32_t block = kind < SG_PACK_F32 ? sg_pack_scale_cols(kind) : 1;
    memset(v, 0, 16 * sizeof v[0]);
    /* float kinds advance by one column */
    for (size_t c = from; c < from + 32 && c < k; c += block) {
        const uint8_t *b = w + c * sg_pack_block_bytes(kind);
        uint8_t q[16][32];
        float d[16], m[16];
        if (kind < SG_PACK_F32) block_read(kind, w, c, q, d, m);
        for (int r = 0; r < 16; r++)
            for (uint32_t i = 0; i < block; i++)
                v[r][c - from + i] = kind < SG_PACK_F32 ? fmaf((float)q[r][i], d[r], m[r])
                                                        : float_at(kind, b + sg_pack_block_bytes(kind) / 16 * (size_t)r);
    }
}

/* One group -> bf16 terms, column pairs interleaved as tdpbf16ps reads them. */
static void bf16_unpack_any(enum sg_pack kind, const uint8_t *w, size_t k, uint32_t terms, uint16_t *out)
{
    float v[16][32];
    for (size_t from = 0; from < k; from += 32) {
        bf16_values(kind, w, k, from, v);
        for (uint32_t term = 0; term < terms; term++)
            for (int pair = 0; pair < 16; pair++)
                for (int r = 0; r < 16; r++, out += 2) {
                    out[0] = plain_bf16_term(v[r][2 * pair], term);
                    out[1] = plain_bf16_term(v[r][2 * pair + 1], term);
                }
    }
}

static void bf16_nop(void) {}

/* acc += one term of the weights times one term of the activations, over 32 columns. acc [row of x][row
 * of w]. */
static void bf16_products(const uint16_t *w, const uint16_t *x, float acc[16][16])
{
    for (int t = 0; t < 16; t++)
        for (int c = 0; c < 32; c++)
            for (int r = 0; r < 16; r++)
                acc[t][r] += sg_f32_of_bf16(x[t * 32 + c]) * sg_f32_of_bf16(w[c / 2 * 32 + r * 2 + c % 2]);
}

/* bf16 product. Order of the terms per 32 columns: first x first, second of w x first, first x second
 * of x. */
static void bf16_mm(const struct sg_bf16_shape *m, const uint16_t *w, const uint16_t *x, float *out, size_t ldo)
{
    size_t w_each = sg_bf16_size(m->k, m->w_terms), x_each = sg_bf16_size(m->k, m->x_terms),
           steps = sg_bf16_size(m->k, 1) / 512;
    for (uint32_t tile = 0; tile < m->tiles; tile++)
        for (uint32_t g = 0; g < m->groups; g++) {
            float acc[16][16] = {{0}};
            const uint16_t *ws = w + g * w_each, *xs = x + tile * x_each;
            for (size_t i = 0; i < steps; i++, ws += 512 * m->w_terms, xs += 512 * m->x_terms) {
                bf16_products(ws, xs, acc);
                if (m->w_terms > 1) bf16_products(ws + 512, xs, acc);
                if (m->x_terms > 1) bf16_products(ws, xs + 512, acc);
            }
            for (int t = 0; t < 16; t++)
                memcpy(out + (tile * 16 + (size_t)t) * ldo + g * 16, acc[t], sizeof acc[t]);
        }
}

/* One function per kind, so that `kind` is a constant in the inlined body. */
#define QUANT(name, kind)                                                                                  \
    static void name(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, \
                     float *out, size_t ldo)                                                               \
    {                                                                                                      \
        mm_quant(kind, w, k, rows, x, nt, fine, out, ldo);                                                 \
    }
#define TILE(name, kind)                                                                                   \
    static void name(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, \
                     float *out, size_t ldo)                                                               \
    {                                                                                                      \
        if (fine == SG_OUTLIER) mm_outlier(sg_pack_scale_cols(kind), w, k, rows, x, nt, out, ldo);                  \
        else mm_quant(kind, w, k, rows, x, nt, fine, out, ldo);                                            \
    }
#define FLOAT(name, kind)                                                                                  \
    static void name(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, \
                     float *out, size_t ldo)                                                               \
    {                                                                                                      \
        (void)fine;                                                                                        \
        mm_float(kind, w, k, rows, x, nt, out, ldo);                                                       \
    }
#define UNPACK(name, kind) \
    static void name(const uint8_t *w, size_t k, uint8_t *out) { unpack_any(kind, w, k, out); }
#define BF16(name, kind)                                                        \
    static void name(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out) \
    {                                                                           \
        bf16_unpack_any(kind, w, k, terms, out);                                  \
    }
QUANT(mm_q4, SG_PACK_Q4)
QUANT(mm_q4m, SG_PACK_Q4M)
QUANT(mm_q8, SG_PACK_Q8)
QUANT(mm_q4f, SG_PACK_Q4F)
QUANT(mm_q8f, SG_PACK_Q8F)
QUANT(mm_q8h, SG_PACK_Q8H)
QUANT(mm_q4k, SG_PACK_Q4K)
QUANT(mm_q6k, SG_PACK_Q6K)
TILE(tile_32, SG_PACK_Q8F)
TILE(tile_16, SG_PACK_Q8H)
FLOAT(mm_f32, SG_PACK_F32)
FLOAT(mm_f16, SG_PACK_F16)
FLOAT(mm_bf16, SG_PACK_BF16)
UNPACK(unpack_q4, SG_PACK_Q4)
UNPACK(unpack_q4m, SG_PACK_Q4M)
UNPACK(unpack_q8, SG_PACK_Q8)
UNPACK(unpack_q4f, SG_PACK_Q4F)
UNPACK(unpack_q4k, SG_PACK_Q4K)
UNPACK(unpack_q6k, SG_PACK_Q6K)
static void unpack_f16(const uint8_t *w, size_t k, uint8_t *out) { float_unpack(SG_PACK_F16, w, k, out); }
static void unpack_bf16(const uint8_t *w, size_t k, uint8_t *out) { float_unpack(SG_PACK_BF16, w, k, out); }
BF16(bf16_q4, SG_PACK_Q4)
BF16(bf16_q4m, SG_PACK_Q4M)
BF16(bf16_q8, SG_PACK_Q8)
BF16(bf16_q4f, SG_PACK_Q4F)
BF16(bf16_q8f, SG_PACK_Q8F)
BF16(bf16_q8h, SG_PACK_Q8H)
BF16(bf16_q4k, SG_PACK_Q4K)
BF16(bf16_q6k, SG_PACK_Q6K)
BF16(bf16_f32, SG_PACK_F32)
BF16(bf16_f16, SG_PACK_F16)
BF16(bf16_bf16, SG_PACK_BF16)

/* Sets every entry of the table. */
void sg_kernels_generic(struct sg_kernels *k)
{
    sg_mm_fn *const few[SG_PACK_N] = {mm_q4,  mm_q4m, mm_q8,  mm_q4f, mm_q8f, mm_q8h,
                                      mm_q4k, mm_q6k, mm_f32, mm_f16, mm_bf16};
    void (*const wide[SG_PACK_N])(const uint8_t *, size_t, uint32_t, uint16_t *) = {
        bf16_q4,  bf16_q4m, bf16_q8,  bf16_q4f, bf16_q8f, bf16_q8h,
        bf16_q4k, bf16_q6k, bf16_f32, bf16_f16, bf16_bf16};
    memset(k, 0, sizeof *k);
    k->isa = "generic";
    memcpy(k->few, few, sizeof few);
    k->tile[SG_UNPACKED_32] = k->tile[SG_UNPACKED_32_SYM] = tile_32;
    k->tile[SG_UNPACKED_16] = tile_16;
    k->open[SG_PACK_Q4] = unpack_q4;
    k->open[SG_PACK_Q4M] = unpack_q4m;
    k->open[SG_PACK_Q8] = unpack_q8;
    k->open[SG_PACK_Q4F] = unpack_q4f;
    k->open[SG_PACK_Q4K] = unpack_q4k;
    k->open[SG_PACK_Q6K] = unpack_q6k;
    k->open[SG_PACK_F16] = unpack_f16;
    k->open[SG_PACK_BF16] = unpack_bf16;
    memcpy(k->bf16_unpack, wide, sizeof wide);
    k->bf16_begin = k->bf16_end = bf16_nop;
    k->bf16_mm = bf16_mm;
    plain_kernels(k);
}
