/* repack.c: rows of a tensor from the file format to the layout that kernels read (kparams.h). F32, F16, BF16, FP8, Q8_0,
 * Q4_0, Q4_1, Q5, Q4_K, Q5_K, Q6_K, MLX 4 and 8 bits and SG_CODED keep their numbers exactly. All other storages, and blocks
 * that a column permutation cuts, become F32, which is exact too, and rare. SPDX-License-Identifier: MIT */
#include "unit/cuda/compile/repack.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "tensor/coded.h"

/* 1: rows or columns are stored in another order. */
static int permuted(const struct sg_perm *p) { return p->a != 0; }

/* The tensor as it is in the file: a part refers to it. */
static const struct sg_tensor *whole_of(const struct sg_tensor *t) { return t->part ? t->part->of : t; }

/* Columns [to, to + n) of a row, which are columns [at, at + n) of the whole tensor. */
struct cu_col_run {
    uint64_t at, n, to;
};

/* The runs of columns of a tensor that is part of another one (tensor parallel, layer ranges); returns their number. Without a
 * part: one run. */
static uint32_t columns_of(const struct sg_tensor *t, struct cu_col_run out[SG_PART_RUNS])
{
    const struct sg_tensor_part *p = t->part;
    out[0] = (struct cu_col_run){.n = t->cols};
    for (uint32_t i = 0; p && i < p->cols_n; i++)
        out[i] = (struct cu_col_run){p->cols[i].at, p->cols[i].n, i ? out[i - 1].to + out[i - 1].n : 0};
    return p ? p->cols_n : 1;
}

/* The row of the file that contains row `row`, through part and permutation. */
static uint64_t stored_row(const struct sg_tensor *t, uint64_t row)
{
    uint64_t at = t->part ? sg_part_at(t->part->rows, t->part->rows_n, row) : row;
    return sg_perm_stored(&whole_of(t)->row_perm, at);
}

/* Kernels read scales in groups that divide their blocks of 16 or 32 weights. */
static uint32_t affine_kind(const struct sg_affine *a)
{
    if (a->bits == 4 && a->group % 32 == 0) return CK_G4;
    if (a->bits == 8 && a->group % 16 == 0) return CK_G8;
    return CK_F32;
}

/* As integers with scale and offset, or 16-bit numbers where their quantiser's decoder returns these. */
static uint32_t coded_kind(const struct sg_tensor *t)
{
    uint32_t uniform = permuted(&whole_of(t)->col_perm) ? 0 : sg_coded_uniform(whole_of(t));
    if (uniform) return t->coded.code == SG_CODE_UINT && t->affine.bits == 4 && uniform == 32 ? CK_G4 : CK_G8;
    return t->coded.round == SG_BF16 ? CK_BF16 : t->coded.round == SG_F16 ? CK_F16 : CK_F32;
}

/* The layout that keeps the numbers exactly. A column permutation that would cut blocks of 32 leaves only fp32, or fp16 for fp16.
 * Formats whose scales cover 256 weights do not allow a permutation at all. */
static uint32_t kind_of(const struct sg_tensor *t)
{
    if (t->storage == SG_F32) return CK_F32;
    if (t->storage == SG_BF16) return CK_BF16;
    if (t->storage == SG_CODED) return coded_kind(t);
    /* F16 is converted number by number under such a permutation, and so stays exact. */
    if (permuted(&whole_of(t)->col_perm) && (whole_of(t)->col_perm.w % 32 || whole_of(t)->col_perm.first % 32) &&
        t->storage != SG_F16)
        return CK_F32;
    switch (t->storage) {
    case SG_Q8_0:
        return CK_Q8;
    case SG_Q4_0:
    case SG_Q4_1:
        return CK_Q4;
    case SG_Q5_0:
    case SG_Q5_1:
    case SG_Q6_K:
        return permuted(&whole_of(t)->col_perm) && t->storage == SG_Q6_K ? CK_F32 : CK_G8;
    case SG_Q4_K:
        return permuted(&whole_of(t)->col_perm) ? CK_F32 : CK_G4;
    case SG_AFFINE:
        return permuted(&whole_of(t)->col_perm) ? CK_F32 : affine_kind(&t->affine);
    case SG_Q5_K:
        return permuted(&whole_of(t)->col_perm) ? CK_F32 : CK_G8;
    case SG_F16:
        return CK_F16;
    case SG_FP8:
        return CK_F8;
    default:
        return CK_F32;
    }
}

static uint32_t round_up(uint64_t n, uint32_t to) { return (uint32_t)((n + to - 1) / to * to); }

/* group: weights per scale. scale_pitch: entries of `scales` per row; FP8 has one, unquantised weights none. */
void cu_weight_shape(const struct sg_tensor *t, int packed, struct ck_weight *w)
{
    if (packed && cu_packed_shape(t, w)) return;
    static const uint32_t bits[] =
        {[CK_F32] = 32, [CK_F16] = 16, [CK_BF16] = 16, [CK_Q8] = 8, [CK_Q4] = 4, [CK_G8] = 8, [CK_G4] = 4, [CK_F8] = 8};
    w->kind = kind_of(t);
    w->rows = (uint32_t)t->rows;
    w->cols = (uint32_t)t->cols;
    w->pitch = round_up((t->cols * bits[w->kind] + 7) / 8, 16);
    w->group = t->storage == SG_Q6_K || (t->storage == SG_CODED && sg_coded_uniform(whole_of(t)) == 16) ? 16
               : t->storage == SG_AFFINE                                                               ? t->affine.group
                                                                                                        : 32;
    w->scale_pitch = w->kind < CK_Q8 ? 0 : w->kind == CK_F8 ? 1 : (uint32_t)((t->cols + w->group - 1) / w->group);
}

size_t cu_scale_entry_bytes(const struct ck_weight *w)
{
    return w->kind == CK_Q8 ? 2 : w->kind == CK_Q4 || w->kind == CK_F8 ? 4 : w->kind == CK_G8 || w->kind == CK_G4 ? 8 : 0;
}

/* An entry of scales for CK_G8 and CK_G4: value = scale * q + offset. */
static void put_pair(uint8_t *to, float scale, float offset)
{
    memcpy(to, &scale, 4);
    memcpy(to + 4, &offset, 4);
}

/* Q5_0 and Q5_1, 32 numbers: the fifth bits are in a 32-bit word. As uint8 with scale d and offset m; Q5_0 has the fixed offset
 * -16 * d. */
static void block_q5(const uint8_t *b, int with_min, uint8_t *data, uint8_t *scale)
{
    float d = sg_f32_of_f16(sg_le16(b)), m = with_min ? sg_f32_of_f16(sg_le16(b + 2)) : -16 * d;
    const uint8_t *high = b + (with_min ? 4 : 2), *low = high + 4;
    uint32_t bits = sg_le32(high);
    for (int j = 0; j < 16; j++) {
        data[j] = (uint8_t)((low[j] & 15) | (bits >> j & 1) << 4);
        data[j + 16] = (uint8_t)(low[j] >> 4 | (bits >> (j + 16) & 1) << 4);
    }
    put_pair(scale, d, m);
}

/* Scale and minimum number j of a Q4_K block: 6 bits each, packed in 12 bytes. */
static void scale_q4k(const uint8_t *s, int j, uint8_t *scale, uint8_t *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
        return;
    }
    *scale = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    *min = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
}

/* 256 numbers: eight groups of 32. Two groups share 32 bytes: the even one has the low nibbles. Reordered as CK_Q4. */
static void block_q4k(const uint8_t *b, uint8_t *data, uint8_t *scales)
{
    float d = sg_f32_of_f16(sg_le16(b)), m = sg_f32_of_f16(sg_le16(b + 2));
    for (int g = 0; g < 8; g++) {
        uint8_t s, n;
        const uint8_t *q = b + 16 + g / 2 * 32;
        int shift = g % 2 * 4;
        scale_q4k(b + 4, g, &s, &n);
        put_pair(scales + g * 8, d * s, -m * n);
        for (int j = 0; j < 16; j++) data[g * 16 + j] = (uint8_t)((q[j] >> shift & 15) | (q[j + 16] >> shift & 15) << 4);
    }
}

/* 256 numbers as Q4_K, with the fifth bit of group g in bit g of 32 bytes. */
static void block_q5k(const uint8_t *b, uint8_t *data, uint8_t *scales)
{
    float d = sg_f32_of_f16(sg_le16(b)), m = sg_f32_of_f16(sg_le16(b + 2));
    for (int g = 0; g < 8; g++) {
        uint8_t s, n;
        const uint8_t *q = b + 48 + g / 2 * 32, *high = b + 16;
        int shift = g % 2 * 4;
        scale_q4k(b + 4, g, &s, &n);
        put_pair(scales + g * 8, d * s, -m * n);
        for (int j = 0; j < 32; j++) data[g * 32 + j] = (uint8_t)((q[j] >> shift & 15) | (high[j] >> g & 1) << 4);
    }
}

/* 256 numbers: low 4 bits in 128 bytes, high 2 bits in 64 bytes, 16 int8 scales, one fp16 scale. Stored as uint8 with an offset
 * of -32 * scale. */
static void block_q6k(const uint8_t *b, uint8_t *data, uint8_t *scales)
{
    float d = sg_f32_of_f16(sg_le16(b + 208));
    /* A half of 128 numbers has four runs of 32: two share the low nibbles' bytes, all four the bytes of high bits. */
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
            uint8_t *to = data + half * 128 + l;
            to[0] = (uint8_t)((low[l] & 15) | (high[l] & 3) << 4);
            to[32] = (uint8_t)((low[l + 32] & 15) | (high[l] >> 2 & 3) << 4);
            to[64] = (uint8_t)(low[l] >> 4 | (high[l] >> 4 & 3) << 4);
            to[96] = (uint8_t)(low[l + 32] >> 4 | (high[l] >> 6 & 3) << 4);
        }
    for (int g = 0; g < 16; g++) {
        float s = d * (float)(int8_t)b[192 + g];
        put_pair(scales + g * 8, s, -32 * s);
    }
}

/* Converts one block b of the file, 32 or 256 numbers from column `at` on. data and scales begin with the row. Q4_0 has the fixed
 * offset -8 * scale, rounded to fp16, which is exact. */
static void put_block(const struct sg_tensor *t, const uint8_t *b, size_t at, uint8_t *data, uint8_t *scales)
{
    switch (t->storage) {
    case SG_Q8_0:
        memcpy(data + at, b + 2, 32);
        memcpy(scales + at / 32 * 2, b, 2);
        break;
    case SG_Q4_0: {
        uint16_t offset = sg_f16_of_f32(-8 * sg_f32_of_f16(sg_le16(b)));
        memcpy(data + at / 2, b + 2, 16);
        memcpy(scales + at / 32 * 4, b, 2);
        memcpy(scales + at / 32 * 4 + 2, &offset, 2);
        break;
    }
    case SG_Q4_1:
        memcpy(data + at / 2, b + 4, 16);
        memcpy(scales + at / 32 * 4, b, 4);
        break;
    case SG_Q5_0:
        block_q5(b, 0, data + at, scales + at / 32 * 8);
        break;
    case SG_Q5_1:
        block_q5(b, 1, data + at, scales + at / 32 * 8);
        break;
    case SG_Q4_K:
        block_q4k(b, data + at / 2, scales + at / 32 * 8);
        break;
    case SG_Q5_K:
        block_q5k(b, data + at, scales + at / 32 * 8);
        break;
    default:
        block_q6k(b, data + at, scales + at / 16 * 8);
        break;
    }
}

/* Entry i of MLX's scales or biases as fp32. */
static float affine_number(const struct sg_affine *a, const void *from, size_t i)
{
    const uint8_t *p = (const uint8_t *)from + i * (a->storage == SG_F32 ? 4 : 2);
    if (a->storage == SG_F32) return sg_f32_of_bits(sg_le32(p));
    return a->storage == SG_F16 ? sg_f32_of_f16(sg_le16(p)) : sg_f32_of_bf16(sg_le16(p));
}

/* One run of columns of an MLX row. 8 bits are copied; 4 bits are reordered from neighbours in a byte to weights j and j + 16,
 * the order of CK_Q4. Runs begin and end at groups. */
static void columns_affine(const struct sg_tensor *t, const struct ck_weight *w, const struct cu_col_run *c, uint64_t stored,
                           uint8_t *data, uint8_t *scales)
{
    const struct sg_affine *a = &t->affine;
    const uint8_t *from = t->data + stored * (t->cols * a->bits / 8);
    size_t groups = t->cols / a->group, first = c->at / a->group, before = c->to / a->group;
    for (size_t g = 0; g < c->n / a->group; g++)
        put_pair(scales + (before + g) * 8, affine_number(a, a->scales, stored * groups + first + g),
                 affine_number(a, a->biases, stored * groups + first + g));
    if (w->kind == CK_G8) {
        memcpy(data + c->to, from + c->at, c->n);
        return;
    }
    for (size_t i = 0; i < c->n; i += 32)
        for (size_t j = 0; j < 16; j++) {
            size_t k = c->at + i + j;
            uint8_t x = from[k / 2] >> (j % 2 * 4) & 15, y = from[(k + 16) / 2] >> (j % 2 * 4) & 15;
            data[(c->to + i) / 2 + j] = (uint8_t)(x | y << 4);
        }
}

/* One run of columns of SG_CODED, 32 at a time; the pairs are repeated for wider groups. */
static void columns_coded(const struct sg_tensor *t, const struct ck_weight *w, const struct cu_col_run *c, uint64_t stored,
                          uint8_t *data, uint8_t *scales)
{
    for (size_t i = 0; i < c->n; i += 32) {
        uint8_t q[32];
        float d[2], m[2];
        size_t to = c->to + i;
        sg_coded_block(t, stored, c->at + i, q, d, m);
        for (size_t h = 0; h < 32 / w->group; h++) put_pair(scales + (to / w->group + h) * 8, d[h], m[h]);
        if (w->kind == CK_G8) memcpy(data + to, q, 32);
        for (size_t j = 0; j < 16 && w->kind == CK_G4; j++) data[to / 2 + j] = (uint8_t)(q[j] | q[j + 16] << 4);
    }
}

/* One run of columns of a row of GGUF blocks. */
static void columns_blocks(const struct sg_tensor *t, const struct cu_col_run *c, uint64_t stored, uint8_t *data, uint8_t *scales)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    const uint8_t *row = t->data + stored * (t->cols / info->block * info->bytes);
    for (size_t i = 0; i < c->n; i += info->block) {
        size_t from = permuted(&t->col_perm) ? sg_perm_stored(&t->col_perm, c->at + i) : c->at + i;
        put_block(t, row + from / info->block * info->bytes, c->to + i, data, scales);
    }
}

/* An unquantised row: copied when the file has it contiguously in the same type, else converted through fp32. */
static void row_unquantised(const struct sg_tensor *t, const struct ck_weight *w, uint64_t row, float *numbers, uint8_t *data)
{
    uint32_t bytes = w->kind == CK_F32 ? 4 : 2;
    const struct sg_tensor *s = whole_of(t);
    struct cu_col_run c[SG_PART_RUNS];
    /* F32, F16 and BF16 have the same bytes in the file and on the GPU. */
    int same = (s->storage == SG_F32 || s->storage == SG_F16 || s->storage == SG_BF16) && !s->transposed &&
               !permuted(&s->col_perm);
    if (same) {
        const uint8_t *from = s->data + stored_row(t, row) * s->cols * bytes;
        for (uint32_t i = 0, n = columns_of(t, c); i < n; i++)
            memcpy(data + c[i].to * bytes, from + c[i].at * bytes, c[i].n * bytes);
        return;
    }
    sg_tensor_row(t, row, 0, t->cols, numbers);
    for (size_t k = 0; k < t->cols; k++) {
        uint16_t half = w->kind == CK_BF16 ? sg_bf16_of_f32(numbers[k]) : sg_f16_of_f32(numbers[k]);
        if (w->kind == CK_F32)
            memcpy(data + 4 * k, &numbers[k], 4);
        else
            memcpy(data + 2 * k, &half, 2);
    }
}

/* Rows [from, to) of a transposed tensor: its stored rows are columns here, so a band of rows is read column by column. */
static void rows_transposed(const struct sg_tensor *t, const struct ck_weight *w, uint64_t from, uint64_t to, uint8_t *data)
{
    uint32_t bytes = w->kind == CK_F32 ? 4 : 2;
    const struct sg_tensor *s = whole_of(t);
    for (uint64_t c = 0; c < t->cols; c++) {
        uint64_t column = t->part ? sg_part_at(t->part->cols, t->part->cols_n, c) : c;
        for (uint64_t r = from; r < to; r++)
            memcpy(data + (r - from) * w->pitch + c * bytes, s->data + (column * s->rows + stored_row(t, r)) * bytes, bytes);
    }
}

/* A row in blocks or groups, run by run. */
static void row_quantised(const struct sg_tensor *t, const struct ck_weight *w, uint64_t row, uint8_t *data, uint8_t *scales)
{
    struct cu_col_run c[SG_PART_RUNS];
    uint64_t stored = stored_row(t, row);
    for (uint32_t i = 0, n = columns_of(t, c); i < n; i++) {
        if (t->storage == SG_AFFINE)
            columns_affine(whole_of(t), w, &c[i], stored, data, scales);
        else if (t->storage == SG_CODED)
            columns_coded(whole_of(t), w, &c[i], stored, data, scales);
        else
            columns_blocks(whole_of(t), &c[i], stored, data, scales);
    }
}

/* The scale is that of the whole row, also for a part. numbers: scratch for a row of the whole tensor in fp32, then its codes. */
static void row_fp8(const struct sg_tensor *t, uint64_t row, float *numbers, uint8_t *data, uint8_t *scales)
{
    const struct sg_tensor *s = whole_of(t);
    struct cu_col_run c[SG_PART_RUNS];
    uint8_t *codes = (uint8_t *)(numbers + s->cols);
    float scale = sg_tensor_fp8_row(s, t->part ? sg_part_at(t->part->rows, t->part->rows_n, row) : row, numbers, codes);
    for (uint32_t i = 0, n = columns_of(t, c); i < n; i++) memcpy(data + c[i].to, codes + c[i].at, c[i].n);
    memcpy(scales, &scale, sizeof scale);
}

/* A transposed tensor with a permutation is read row by row through sg_tensor_row, which is slow and rare. */
void cu_repack_rows(const struct sg_tensor *t, const struct ck_weight *w, uint64_t from, uint64_t to, float *numbers,
                    uint8_t *data, uint8_t *scales)
{
    size_t scale_row = w->scale_pitch * cu_scale_entry_bytes(w);
    const struct sg_tensor *s = whole_of(t);
    int straight = s->transposed && !permuted(&s->row_perm) && !permuted(&s->col_perm);
    if (straight) {
        rows_transposed(t, w, from, to, data);
        return;
    }
    for (uint64_t r = from; r < to; r++, data += w->pitch, scales += scale_row) {
        if (w->kind < CK_Q8)
            row_unquantised(t, w, r, numbers, data);
        else if (w->kind == CK_F8)
            row_fp8(t, r, numbers, data, scales);
        else if (w->kind >= CK_PACKED)
            cu_packed_row(t, w, stored_row(t, r), (uint32_t)(r % 8), data - r % 8 * w->pitch);
        else
            row_quantised(t, w, r, data, scales);
    }
}

/* A row in fp32, and its FP8 codes. */
size_t cu_repack_scratch(const struct sg_tensor *t) { return 2 * whole_of(t)->cols; }
