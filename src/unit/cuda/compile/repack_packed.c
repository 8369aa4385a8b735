/* repack_packed.c: rows of quantised tensors in the packed layout of k_packed.cuh: the codes of the file in the order of
 * tensor-core operands, and scales of 8 or 16 bits. Numbers stay exactly those of the file. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "unit/cuda/compile/repack.h"

enum { CHUNK = CK_PACKED_CHUNK, COLS_MAX = 16384 };

/* Bits of the two planes, bytes of scales and factors of a chunk, by kind - CK_PACKED. */
static const struct cu_packed_form {
    uint8_t low, high, scales, factors;
} forms[] = {
#define X(kind, low, high, scales, factors) {low, high, scales, factors},
    CK_PACKED_KINDS(X)
#undef X
};

/* CK_F32: the storage has no packed kind. */
static uint32_t packed_kind(const struct sg_tensor *t)
{
    static const uint32_t mlx[] =
        {[2] = CK_P_MLX2, [3] = CK_P_MLX3, [4] = CK_P_MLX4, [5] = CK_P_MLX5, [6] = CK_P_MLX6, [8] = CK_P_MLX8};
    switch (t->storage) {
    case SG_Q4_0:
        return CK_P_Q4_0;
    case SG_Q4_1:
        return CK_P_Q4_1;
    case SG_Q5_0:
        return CK_P_Q5_0;
    case SG_Q5_1:
        return CK_P_Q5_1;
    case SG_Q2_K:
        return CK_P_Q2_K;
    case SG_Q3_K:
        return CK_P_Q3_K;
    case SG_Q4_K:
        return CK_P_Q4_K;
    case SG_Q5_K:
        return CK_P_Q5_K;
    case SG_Q6_K:
        return CK_P_Q6_K;
    case SG_IQ4_NL:
        return CK_P_IQ4_NL;
    case SG_IQ4_XS:
        return CK_P_IQ4_XS;
    case SG_MXFP4:
        return CK_P_MXFP4;
    case SG_AFFINE:
        /* Wider groups and fp32 scales are rare. */
        return t->affine.storage == SG_F32 || t->affine.group > 64 || t->affine.bits > 8 ? CK_F32 : mlx[t->affine.bits];
    default:
        return CK_F32;
    }
}

/* Columns that are stored next to each other: runs of a part and permuted columns may be cut only between blocks. */
static int columns_whole(const struct sg_tensor *t, const struct sg_tensor *whole)
{
    uint32_t block = t->storage == SG_AFFINE ? t->affine.group : sg_storage_info(t->storage)->block;
    for (uint32_t i = 0; t->part && i < t->part->cols_n; i++)
        if (t->part->cols[i].at % block || t->part->cols[i].n % block) return 0;
    return !whole->col_perm.a ||
           (t->storage != SG_AFFINE && whole->col_perm.w % block == 0 && whole->col_perm.first % block == 0);
}

int cu_packed_shape(const struct sg_tensor *t, struct ck_weight *w)
{
    const struct sg_tensor *whole = t->part ? t->part->of : t;
    uint32_t kind = packed_kind(t);
    if (kind == CK_F32 || !kind || t->cols % CHUNK || t->cols > COLS_MAX || whole->rank > 2 || whole->transposed ||
        !columns_whole(t, whole))
        return 0;
    const struct cu_packed_form *f = &forms[kind - CK_PACKED];
    uint32_t chunks = (uint32_t)(t->cols / CHUNK), scales = cu_packed_scale_bytes(kind, t->affine.group);
    *w = (struct ck_weight){.kind = kind,
                            .rows = (uint32_t)t->rows,
                            .cols = (uint32_t)t->cols,
                            .pitch = chunks * (32u * (f->low + f->high) + scales + f->factors),
                            .group = t->storage != SG_AFFINE
                                         ? 32
                                         : t->affine.group | (t->affine.storage == SG_BF16 ? CK_GROUP_BF16 : 0)};
    return 1;
}

uint32_t cu_packed_code_bytes(uint32_t kind) { return 32u * (forms[kind - CK_PACKED].low + forms[kind - CK_PACKED].high); }
uint32_t cu_packed_scale_bytes(uint32_t kind, uint32_t group)
{
    return kind >= CK_P_MLX2 ? 4 * CHUNK / (group % CK_GROUP_BF16) : forms[kind - CK_PACKED].scales;
}
uint32_t cu_packed_factor_bytes(uint32_t kind) { return forms[kind - CK_PACKED].factors; }

static void put_le32(uint8_t *to, uint32_t v)
{
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(v >> 8 * i);
}

/* Code books: the lower half of a word of eight nibbles has four codes, the upper half the next four. */
static uint32_t nibble_word(const uint32_t r[2], int book)
{
    uint32_t v = 0;
    if (!book) return (r[0] & 0x0f0f0f0fu) | (r[1] & 0x0f0f0f0fu) << 4;
    for (int i = 0; i < 8; i++) v |= (r[i / 4] >> 8 * (i % 4) & 15) << 4 * i;
    return v;
}

/* Writes the planes of 256 codes of row `row` of a block (k_packed.cuh). */
static void put_codes(uint32_t kind, const uint8_t q[CHUNK], uint32_t row, uint8_t *to)
{
    const struct cu_packed_form *f = &forms[kind - CK_PACKED];
    int book = kind == CK_P_IQ4_NL || kind == CK_P_IQ4_XS || kind == CK_P_MXFP4;
    uint8_t *high = to + 256 * f->low;
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t r[16], words[16] = {0};
        for (uint32_t k = 0; k < 16; k++)
            r[k] = sg_le32(q + 32 * (t / 2 * 4 + k / 4) + 16 * (k / 2 % 2) + 8 * (t % 2) + 4 * (k % 2));
        for (uint32_t k = 0; k < 16; k++) {
            if (f->low == 8) words[k] = r[k];
            if (f->low == 4 && k % 2 == 0) words[k / 2] = nibble_word(r + k, book);
            if (f->low == 2) words[k / 4] |= (r[k] & 0x03030303u) << 2 * (k % 4);
        }
        for (uint32_t k = 0; k < 2u * f->low; k++) put_le32(to + k / 4 * 512 + row * 64 + t * 16 + k % 4 * 4, words[k]);
        memset(words, 0, sizeof words);
        for (uint32_t k = 0; k < 16; k++) {
            if (f->high == 1) words[k / 8] |= (r[k] >> f->low & 0x01010101u) << k % 8;
            if (f->high == 2) words[k / 4] |= (r[k] >> f->low & 0x03030303u) << 2 * (k % 4);
        }
        for (uint32_t k = 0; k < 2u * f->high; k++) put_le32(high + (row * 4 + t) * 8 * f->high + k * 4, words[k]);
    }
}

/* --- blocks of the file: codes of a block, and its scales at their place in the chunk --- */

/* Blocks of 32. k: number of the block in the chunk. Two's complement codes for symmetric formats. */
static void read_block(enum sg_storage storage, const uint8_t *b, uint32_t k, uint8_t *q, uint8_t *scales, uint8_t *factors)
{
    int min = storage == SG_Q4_1 || storage == SG_Q5_1, five = storage == SG_Q5_0 || storage == SG_Q5_1;
    uint32_t flip = storage == SG_Q4_0 ? 8 : storage == SG_Q5_0 ? 16 : 0, head = storage == SG_MXFP4 ? 1 : min ? 4 : 2;
    uint32_t bits = five ? sg_le32(b + head) : 0;
    const uint8_t *low = b + head + (five ? 4 : 0);
    for (uint32_t j = 0; j < 16; j++) {
        q[j] = (uint8_t)(((low[j] & 15u) | (bits >> j & 1) << 4) ^ flip);
        q[j + 16] = (uint8_t)((low[j] >> 4 | (bits >> (j + 16) & 1) << 4) ^ flip);
    }
    if (storage == SG_MXFP4)
        factors[k] = b[0];
    else
        memcpy(scales + 2 * k, b, 2);
    if (min) memcpy(scales + 16 + 2 * k, b + 2, 2);
}

/* Scale and minimum number j of Q4_K and Q5_K, 6 bits each in 12 bytes. */
static void scale_k4(const uint8_t *s, uint32_t j, uint8_t *scale, uint8_t *min)
{
    *scale = j < 4 ? s[j] & 63 : (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    *min = j < 4 ? s[j + 4] & 63 : (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
}

/* Q4_K and Q5_K. Two groups of 32 share 32 bytes; bit g of byte j of the fifth bits belongs to group g. */
static void read_q45k(const uint8_t *b, int five, uint8_t *q, uint8_t *scales, uint8_t *factors)
{
    const uint8_t *high = b + 16, *low = b + (five ? 48 : 16);
    memcpy(factors, b, 4);
    for (uint32_t g = 0; g < 8; g++) {
        scale_k4(b + 4, g, scales + g, scales + 8 + g);
        for (uint32_t j = 0; j < 32; j++)
            q[g * 32 + j] = (uint8_t)((low[g / 2 * 32 + j] >> g % 2 * 4 & 15) | (five ? (high[j] >> g & 1) << 4 : 0));
    }
}

/* The factor is fp32. */
static void put_factor(uint8_t *to, const uint8_t *half)
{
    float d = sg_f32_of_f16(sg_le16(half));
    memcpy(to, &d, 4);
}

static void read_q6k(const uint8_t *b, uint8_t *q, uint8_t *scales, uint8_t *factors)
{
    put_factor(factors, b + 208);
    memcpy(scales, b + 192, 16);
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t l = 0; l < 32; l++) {
            const uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
            uint8_t *to = q + half * 128 + l;
            to[0] = (uint8_t)(((low[l] & 15) | (high[l] & 3) << 4) ^ 32);
            to[32] = (uint8_t)(((low[l + 32] & 15) | (high[l] >> 2 & 3) << 4) ^ 32);
            to[64] = (uint8_t)((low[l] >> 4 | (high[l] >> 4 & 3) << 4) ^ 32);
            to[96] = (uint8_t)((low[l + 32] >> 4 | (high[l] >> 6 & 3) << 4) ^ 32);
        }
}

static void read_q2k(const uint8_t *b, uint8_t *q, uint8_t *scales, uint8_t *factors)
{
    memcpy(scales, b, 16);
    memcpy(factors, b + 80, 4);
    for (uint32_t k = 0; k < 16; k++)
        for (uint32_t i = 0; i < 16; i++) q[16 * k + i] = b[16 + 32 * (k / 8) + 16 * (k & 1) + i] >> k % 8 / 2 * 2 & 3;
}

/* 6-bit scales minus 32; the third bit of a code is kept inverted, which is two's complement. The factor keeps its 2 bytes:
 * with 4 the memory would be 1.055 times the file's. */
static void read_q3k(const uint8_t *b, uint8_t *q, uint8_t *scales, uint8_t *factors)
{
    const uint8_t *s = b + 96;
    memcpy(factors, b + 108, 2);
    for (uint32_t k = 0; k < 16; k++) {
        uint32_t low = k < 8 ? s[k] & 15 : s[k - 8] >> 4, high = s[8 + k % 4] >> (2 * (k / 4)) & 3;
        scales[k] = (uint8_t)((low | high << 4) - 32);
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t set = b[16 * (k & 1) + i] >> k / 2 & 1;
            q[16 * k + i] = (uint8_t)((b[32 + 32 * (k / 8) + 16 * (k & 1) + i] >> k % 8 / 2 * 2 & 3) | (set ^ 1) << 2);
        }
    }
}

/* 6-bit scales minus 32. The second half of the factor is not used. */
static void read_iq4xs(const uint8_t *b, uint8_t *q, uint8_t *scales, uint8_t *factors)
{
    memcpy(factors, b, 2);
    memset(factors + 2, 0, 2);
    for (uint32_t g = 0; g < 8; g++) {
        scales[g] = (uint8_t)(((b[4 + g / 2] >> 4 * (g % 2) & 15) | (sg_le16(b + 2) >> 2 * g & 3) << 4) - 32);
        for (uint32_t j = 0; j < 16; j++) q[32 * g + j] = b[8 + 16 * g + j] & 15, q[32 * g + 16 + j] = b[8 + 16 * g + j] >> 4;
    }
}

static void read_super(enum sg_storage storage, const uint8_t *b, uint8_t *q, uint8_t *scales, uint8_t *factors)
{
    if (storage == SG_Q2_K) read_q2k(b, q, scales, factors);
    if (storage == SG_Q3_K) read_q3k(b, q, scales, factors);
    if (storage == SG_Q4_K || storage == SG_Q5_K) read_q45k(b, storage == SG_Q5_K, q, scales, factors);
    if (storage == SG_Q6_K) read_q6k(b, q, scales, factors);
    if (storage == SG_IQ4_XS) read_iq4xs(b, q, scales, factors);
}

/* A group of MLX from column `from` of the stored row on; codes are a stream of bits, the lowest first. */
static void read_group(const struct sg_tensor *t, uint64_t row, uint64_t from, uint32_t at, uint8_t *q, uint8_t *scales)
{
    const struct sg_affine *a = &t->affine;
    const uint8_t *codes = t->data + row * (t->cols * a->bits / 8) + from * a->bits / 8;
    size_t entry = (row * t->cols + from) / a->group;
    for (uint32_t i = 0, bit = 0; i < a->group; i++, bit += a->bits) {
        uint32_t v = codes[bit / 8] >> bit % 8;
        if (bit % 8 + a->bits > 8) v |= (uint32_t)codes[bit / 8 + 1] << (8 - bit % 8);
        q[i] = (uint8_t)(v & ((1u << a->bits) - 1));
    }
    memcpy(scales + at / a->group * 2, (const uint8_t *)a->scales + 2 * entry, 2);
    memcpy(scales + 2 * (CHUNK / a->group) + at / a->group * 2, (const uint8_t *)a->biases + 2 * entry, 2);
}

/* Column of the file where column `col` of the tensor is. */
static uint64_t stored_column(const struct sg_tensor *t, const struct sg_tensor *whole, uint64_t col)
{
    uint64_t c = t->part ? sg_part_at(t->part->cols, t->part->cols_n, col) : col;
    return whole->col_perm.a ? sg_perm_stored(&whole->col_perm, c) : c;
}

void cu_packed_row(const struct sg_tensor *t, const struct ck_weight *w, uint64_t stored, uint32_t row, uint8_t *data)
{
    const struct sg_tensor *whole = t->part ? t->part->of : t;
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    uint32_t code_bytes = cu_packed_code_bytes(w->kind), scale_bytes = cu_packed_scale_bytes(w->kind, w->group),
             factor_bytes = cu_packed_factor_bytes(w->kind), step = t->storage == SG_AFFINE ? t->affine.group : info->block;
    const uint8_t *from_row = t->storage == SG_AFFINE ? NULL : whole->data + stored * (whole->cols / info->block * info->bytes);
    uint8_t q[CHUNK];
    for (uint64_t c = 0; c < w->cols; c += CHUNK, data += 8 * (code_bytes + scale_bytes + factor_bytes)) {
        uint8_t *scales = data + 8 * code_bytes + row * scale_bytes,
                *factors = data + 8 * (code_bytes + scale_bytes) + row * factor_bytes;
        for (uint32_t i = 0; i < CHUNK; i += step) {
            uint64_t from = stored_column(t, whole, c + i);
            const uint8_t *b = from_row ? from_row + from / info->block * info->bytes : NULL;
            if (t->storage == SG_AFFINE)
                read_group(whole, stored, from, i, q + i, scales);
            else if (step == CHUNK)
                read_super(t->storage, b, q, scales, factors);
            else
                read_block(t->storage, b, i / 32, q + i, scales, factors);
        }
        put_codes(w->kind, q, row, data);
    }
}
