/* k_generic.c: every kernel in plain C: the specification that the other kernel files are tested against.
 * Always built.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/kernels/k_plain.h"

/* The run of columns that begins at `column` of a block of 256 columns. */
static void run_read(enum sg_pack kind, const uint8_t *b, uint32_t column, uint8_t q[16][32], float *d,
                     float *m)
{
    uint32_t part = column / 32, half = column / 16 % 2, q6 = kind == SG_PACK_Q6K;
    const uint8_t *s = b + 64 + 32 * part + 16 * (q6 ? half : 0), *v = b + 320 + part * (q6 ? 384u : 256u);
    for (uint32_t r = 0; r < 16; r++) {
        d[r] = sg_f32_of_f16(sg_le16(b + 2 * r)) * (q6 ? (float)(int8_t)s[r] : (float)s[r]);
        m[r] = q6 ? -32.0f * d[r] : -(sg_f32_of_f16(sg_le16(b + 32 + 2 * r)) * (float)s[16 + r]);
        for (uint32_t c = 0; c < sg_pack_run(kind); c++) {
            uint32_t chunk = c / 4 + 4 * (q6 ? half : 0), at = r * 4 + c % 4;
            q[r][c] = v[chunk % 4 * 64 + at] >> 4 * (chunk / 4) & 15;
            if (q6) q[r][c] |= (uint8_t)((v[256 + chunk % 2 * 64 + at] >> 2 * (chunk / 2) & 3) << 4);
        }
    }
}

/* The run of a group that begins at `column`, as 16 x 32 unsigned numbers q [row][column], d and m: the only
 * reader of packed layouts here. */
static void block_read(enum sg_pack kind, const uint8_t *b, size_t column, uint8_t q[16][32], float *d,
                       float *m)
{
    b += column / sg_pack_block(kind) * sg_pack_block_bytes(kind);
    if (sg_pack_block(kind) == 256) {
        run_read(kind, b, (uint32_t)(column % 256), q, d, m);
        return;
    }
    int half = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q8;
    for (int r = 0; r < 16; r++) {
        d[r] = half ? sg_f32_of_f16(sg_le16(b + 2 * r)) : sg_f32_of_bits(sg_le32(b + 4 * r));
        if (kind == SG_PACK_Q4) m[r] = -8.0f * d[r];
        else if (kind == SG_PACK_Q8) m[r] = -128.0f * d[r];
        else m[r] = half ? sg_f32_of_f16(sg_le16(b + 32 + 2 * r)) : sg_f32_of_bits(sg_le32(b + 64 + 4 * r));
    }
    const uint8_t *v = b + (half ? (kind == SG_PACK_Q4M ? 64 : 32) : 128);
    int nibbles = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q4F;
    uint32_t block = sg_pack_block(kind);
    for (int r = 0; r < 16; r++)
        for (uint32_t c = 0; c < block; c++) {
            uint32_t chunk = c / 4, at = (nibbles ? chunk % 4 : chunk) * 64 + (uint32_t)r * 4 + c % 4;
            q[r][c] = !nibbles ? v[at] : chunk < 4 ? v[at] & 15 : v[at] >> 4;
        }
}

static void mm_quant(enum sg_pack kind, const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x,
                     uint32_t nt, uint32_t fine, float *out, size_t ldo)
{
    uint32_t block = sg_pack_run(kind);
    size_t blocks = k / block, group = k / sg_pack_block(kind) * sg_pack_block_bytes(kind);
    for (uint32_t g = 0; g < rows; g += 16, w += group) {
        float acc[SG_TILE][16] = {{0}};
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
                    if (fine == SG_FINE) sum = sum * 256 + rests;
                    acc[t][r] = (float)sum * (d[r] * xd[t]) + acc[t][r];
                    acc[t][r] = m[r] * xs[t] + acc[t][r];
                }
        }
        for (uint32_t t = 0; t < nt; t++)
            memcpy(out + t * ldo + g, acc[t], sizeof(float) * (rows - g < 16 ? rows - g : 16));
    }
}

static int32_t four_products(const uint8_t *w, const uint8_t *x)
{
    int32_t sum = 0;
    for (int c = 0; c < 4; c++) sum += (int32_t)w[c] * (int8_t)x[c];
    return sum;
}

/* Row r of an opened group times row t of one span. */
static float span_sum(const uint8_t *w, uint32_t block, const struct sg_span_at *a, uint32_t r, uint32_t t, uint32_t nt)
{
    const float *s = (const float *)(const void *)a->s;
    float d, m, sum = 0.0f, raised = 0.0f;
    for (uint32_t b = 0; b < a->blocks; b++) {
        const uint8_t *wb = w + b * sg_open_bytes(block == 16 ? SG_PACK_Q8H : SG_PACK_Q8F, block);
        int32_t n = 0;
        for (uint32_t c = 0; c < block / 4; c++)
            n += four_products(wb + 128 + 64 * c + 4 * r, a->q + ((b * block / 4 + c) * nt + t) * 4);
        memcpy(&d, wb + 4 * r, 4);
        memcpy(&m, wb + 64 + 4 * r, 4);
        sum = (float)(b % 2 ? -n : n) * d + sum;
        sum = m * s[b * nt + t] + sum;
    }
    for (uint32_t i = 0; i < a->chunks; i++) {
        const uint8_t *one = a->raised + 16 * (size_t)nt * i;
        memcpy(&d, w + sg_le32(one + 4 * (2 * nt + t)) + 4 * r, 4);
        raised = (float)four_products(w + sg_le32(one + 4 * (nt + t)) + 4 * r, one + 4 * t) * d + raised;
    }
    return 128.0f * raised + sum;
}

static void mm_raised(uint32_t block, const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt,
                      float *out, size_t ldo)
{
    const enum sg_pack kind = block == 16 ? SG_PACK_Q8H : SG_PACK_Q8F;
    const size_t group = sg_open_bytes(kind, k), span = sg_open_bytes(kind, SG_SPAN);
    for (uint32_t t = 0; t < nt; t++)
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *wr = w + r / 16 * group, *xs = x;
            float acc = 0.0f, d;
            for (size_t from = 0; from < k; from += SG_SPAN, wr += span) {
                const struct sg_span_at a = sg_span_of(xs, k - from, block, nt);
                memcpy(&d, a.d + 4 * t, 4);
                acc = d * span_sum(wr, block, &a, r % 16, t, nt) + acc;
                xs = a.raised + 16 * (size_t)nt * a.chunks;
            }
            out[t * ldo + r] = acc;
        }
}

static float float_at(enum sg_pack kind, const uint8_t *p)
{
    return kind == SG_PACK_F32   ? sg_f32_of_bits(sg_le32(p))
           : kind == SG_PACK_F16 ? sg_f32_of_f16(sg_le16(p))
                                 : sg_f32_of_bf16(sg_le16(p));
}

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

static void float_open(enum sg_pack kind, const uint8_t *w, size_t k, uint8_t *out)
{
    for (size_t i = 0; i < 16 * k; i++, w += sg_pack_block_bytes(kind) / 16, out += 4) {
        float v = float_at(kind, w);
        memcpy(out, &v, 4);
    }
}

static void open_any(enum sg_pack kind, const uint8_t *w, size_t k, uint8_t *out)
{
    size_t run = sg_pack_run(kind);
    for (size_t at = 0; at < k; at += run, out += sg_open_bytes(kind, run)) {
        uint8_t q[16][32];
        float dm[32];
        block_read(kind, w, at, q, dm, dm + 16);
        memcpy(out, dm, sizeof dm);
        for (int r = 0; r < 16; r++)
            for (int c = 0; c < (int)run; c++) out[128 + (c / 4) * 64 + r * 4 + c % 4] = q[r][c];
    }
}

/* fp32 values of columns [from, from + 32) of a group, 0 behind the last. */
static void wide_values(enum sg_pack kind, const uint8_t *w, size_t k, size_t from, float v[16][32])
{
    uint32_t block = kind < SG_PACK_F32 ? sg_pack_run(kind) : 1;
    memset(v, 0, 16 * sizeof v[0]);
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

static void wide_open_any(enum sg_pack kind, const uint8_t *w, size_t k, uint32_t terms, uint16_t *out)
{
    float v[16][32];
    for (size_t from = 0; from < k; from += 32) {
        wide_values(kind, w, k, from, v);
        for (uint32_t term = 0; term < terms; term++)
            for (int pair = 0; pair < 16; pair++)
                for (int r = 0; r < 16; r++, out += 2) {
                    out[0] = plain_term(v[r][2 * pair], term);
                    out[1] = plain_term(v[r][2 * pair + 1], term);
                }
    }
}

static void wide_nothing(void) {}

/* One term of the weights times one of the activations, 32 columns. */
static void wide_products(const uint16_t *w, const uint16_t *x, float acc[16][16])
{
    for (int t = 0; t < 16; t++)
        for (int c = 0; c < 32; c++)
            for (int r = 0; r < 16; r++)
                acc[t][r] += sg_f32_of_bf16(x[t * 32 + c]) * sg_f32_of_bf16(w[c / 2 * 32 + r * 2 + c % 2]);
}

static void wide_mm(const struct sg_wide *m, const uint16_t *w, const uint16_t *x, float *out, size_t ldo)
{
    size_t w_each = sg_wide_size(m->k, m->w_terms), x_each = sg_wide_size(m->k, m->x_terms),
           steps = sg_wide_size(m->k, 1) / 512;
    for (uint32_t tile = 0; tile < m->tiles; tile++)
        for (uint32_t g = 0; g < m->groups; g++) {
            float acc[16][16] = {{0}};
            const uint16_t *ws = w + g * w_each, *xs = x + tile * x_each;
            for (size_t i = 0; i < steps; i++, ws += 512 * m->w_terms, xs += 512 * m->x_terms) {
                wide_products(ws, xs, acc);
                if (m->w_terms > 1) wide_products(ws + 512, xs, acc);
                if (m->x_terms > 1) wide_products(ws, xs + 512, acc);
            }
            for (int t = 0; t < 16; t++)
                memcpy(out + (tile * 16 + (size_t)t) * ldo + g * 16, acc[t], sizeof acc[t]);
        }
}

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
        if (fine == SG_RAISED) mm_raised(sg_pack_run(kind), w, k, rows, x, nt, out, ldo);                  \
        else mm_quant(kind, w, k, rows, x, nt, fine, out, ldo);                                            \
    }
#define FLOAT(name, kind)                                                                                  \
    static void name(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, \
                     float *out, size_t ldo)                                                               \
    {                                                                                                      \
        (void)fine;                                                                                        \
        mm_float(kind, w, k, rows, x, nt, out, ldo);                                                       \
    }
#define OPEN(name, kind) \
    static void name(const uint8_t *w, size_t k, uint8_t *out) { open_any(kind, w, k, out); }
#define WIDE(name, kind)                                                        \
    static void name(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out) \
    {                                                                           \
        wide_open_any(kind, w, k, terms, out);                                  \
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
OPEN(open_q4, SG_PACK_Q4)
OPEN(open_q4m, SG_PACK_Q4M)
OPEN(open_q8, SG_PACK_Q8)
OPEN(open_q4f, SG_PACK_Q4F)
OPEN(open_q4k, SG_PACK_Q4K)
OPEN(open_q6k, SG_PACK_Q6K)
static void open_f16(const uint8_t *w, size_t k, uint8_t *out) { float_open(SG_PACK_F16, w, k, out); }
static void open_bf16(const uint8_t *w, size_t k, uint8_t *out) { float_open(SG_PACK_BF16, w, k, out); }
WIDE(wide_q4, SG_PACK_Q4)
WIDE(wide_q4m, SG_PACK_Q4M)
WIDE(wide_q8, SG_PACK_Q8)
WIDE(wide_q4f, SG_PACK_Q4F)
WIDE(wide_q8f, SG_PACK_Q8F)
WIDE(wide_q8h, SG_PACK_Q8H)
WIDE(wide_q4k, SG_PACK_Q4K)
WIDE(wide_q6k, SG_PACK_Q6K)
WIDE(wide_f32, SG_PACK_F32)
WIDE(wide_f16, SG_PACK_F16)
WIDE(wide_bf16, SG_PACK_BF16)

void sg_kernels_generic(struct sg_kernels *k)
{
    sg_mm_fn *const few[SG_PACK_N] = {mm_q4,  mm_q4m, mm_q8,  mm_q4f, mm_q8f, mm_q8h,
                                      mm_q4k, mm_q6k, mm_f32, mm_f16, mm_bf16};
    void (*const wide[SG_PACK_N])(const uint8_t *, size_t, uint32_t, uint16_t *) = {
        wide_q4,  wide_q4m, wide_q8,  wide_q4f, wide_q8f, wide_q8h,
        wide_q4k, wide_q6k, wide_f32, wide_f16, wide_bf16};
    memset(k, 0, sizeof *k);
    k->isa = "generic";
    memcpy(k->few, few, sizeof few);
    k->tile[SG_OPEN_32] = k->tile[SG_OPEN_32_EVEN] = tile_32;
    k->tile[SG_OPEN_16] = tile_16;
    k->open[SG_PACK_Q4] = open_q4;
    k->open[SG_PACK_Q4M] = open_q4m;
    k->open[SG_PACK_Q8] = open_q8;
    k->open[SG_PACK_Q4F] = open_q4f;
    k->open[SG_PACK_Q4K] = open_q4k;
    k->open[SG_PACK_Q6K] = open_q6k;
    k->open[SG_PACK_F16] = open_f16;
    k->open[SG_PACK_BF16] = open_bf16;
    memcpy(k->wide_open, wide, sizeof wide);
    k->wide_begin = k->wide_end = wide_nothing;
    k->wide_mm = wide_mm;
    plain_rows(k);
}
