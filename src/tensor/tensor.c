/* tensor.c: reads rows of a tensor as fp32, whatever their layout in the file: quantised in blocks
 * or groups, permuted, transposed, a part of another tensor, or an fp8 view. Also checks for NaN
 * and infinity. Knows no file format.
 * SPDX-License-Identifier: MIT */
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "tensor/coded.h"
#include "tensor/fp8.h"

/* Splits the index into the digits (x, y, z) and recombines them with x and y exchanged; see struct
 * sg_perm. */
uint64_t sg_perm_stored(const struct sg_perm *p, uint64_t logical)
{
    if (!p->a || logical < p->first) return logical;
    uint64_t group = (uint64_t)p->a * p->b * p->w, at = logical - p->first, base = at - at % group;
    uint64_t in = at - base, z = in % p->w, y = in / p->w % p->b, x = in / p->w / p->b;
    return p->first + base + (y * p->a + x) * p->w + z;
}

/* Bytes per number; 0 for storages with blocks or groups. */
static uint32_t plain_size(enum sg_storage s)
{
    return s == SG_F32 ? 4 : s == SG_F16 || s == SG_BF16 ? 2 : 0;
}

/* --- storages with separate scales --- */

/* Unpack 32 codes of `bits` bits each, least significant bit first, from exactly 4 * bits bytes.
 * The common widths 4 and 8 have their own loops. The copy has spare bytes because a code of other
 * widths is read as a 16-bit word. */
static void unpack32(const uint8_t *p, uint32_t bits, float *out)
{
    uint8_t bytes[32 + 4] = {0};
    if (bits == 4) {
        for (int i = 0; i < 16; i++) {
            out[2 * i] = (float)(p[i] & 15);
            out[2 * i + 1] = (float)(p[i] >> 4);
        }
        return;
    }
    if (bits == 8) {
        for (int i = 0; i < 32; i++) out[i] = (float)p[i];
        return;
    }
    memcpy(bytes, p, 4 * (size_t)bits);
    for (uint32_t i = 0; i < 32; i++) {
        /* A code of up to 8 bits spans at most two bytes. */
        uint32_t at = i * bits, word = (uint32_t)bytes[at / 8] | (uint32_t)bytes[at / 8 + 1] << 8;
        out[i] = (float)(word >> at % 8 & ((1u << bits) - 1));
    }
}

/* Number i of an unaligned array of F32, F16 or BF16. */
static float scale_at(enum sg_storage s, const void *list, uint64_t i)
{
    const uint8_t *p = (const uint8_t *)list + i * plain_size(s);
    return s == SG_F32   ? sg_f32_of_bits(sg_le32(p))
           : s == SG_F16 ? sg_f32_of_f16(sg_le16(p))
                         : sg_f32_of_bf16(sg_le16(p));
}

/* Columns [from, from + n), multiples of 32. A group has a multiple of 32 columns, so 32 codes share one scale and fill
 * whole bytes. Product and sum are separate statements, because MLX rounds both: a fused multiply-add would differ. */
static void read_affine(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    const struct sg_affine *f = &t->affine;
    uint64_t groups = t->cols / f->group, row_bytes = t->cols / 32 * 4 * f->bits;
    const uint8_t *q = t->data + row * row_bytes + from / 32 * 4 * f->bits;
    for (uint64_t i = 0; i < n; i += 32, q += 4 * f->bits, out += 32) {
        uint64_t at = row * groups + (from + i) / f->group;
        float scale = scale_at(f->storage, f->scales, at), bias = scale_at(f->storage, f->biases, at);
        unpack32(q, f->bits, out);
        for (int k = 0; k < 32; k++) {
            float v = scale * out[k];
            out[k] = v + bias;
        }
    }
}

/* llama2.c numbers the groups over the whole tensor, so a group may cover the end of one row
 * and the start of the next. */
static void read_q8_group(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    const int8_t *q = (const int8_t *)t->data;
    uint64_t at = row * t->cols + from, end = at + n, group = t->affine.group;
    while (at < end) {
        /* The end of the current group, or of the range. */
        uint64_t stop = (at / group + 1) * group;
        float scale = sg_f32_of_bits(sg_le32((const uint8_t *)t->affine.scales + at / group * 4));
        for (stop = stop < end ? stop : end; at < stop; at++) *out++ = scale * (float)q[at];
    }
}

/* --- stored rows, without permutation --- */

/* Any column range: whole blocks are converted directly to out, a block that is cut by the range's
 * start or end goes through a buffer. */
static void read_blocks(const struct sg_tensor *t, const uint8_t *row, uint64_t from, uint64_t n, float *out)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    float part[256];
    while (n) {
        /* skip: columns before `from` in its block; whole: columns in complete blocks. */
        uint64_t skip = from % info->block, whole = n - n % info->block;
        const uint8_t *p = row + from / info->block * info->bytes;
        uint64_t take = whole;
        if (skip || !whole) {
            take = info->block - skip < n ? info->block - skip : n;
            sg_dequant_row(t->storage, p, info->block, part);
            memcpy(out, part + skip, take * sizeof *out);
        } else {
            sg_dequant_row(t->storage, p, whole, out);
        }
        from += take;
        n -= take;
        out += take;
    }
}

/* Dispatch on the storage. `row` and the columns are stored indices. */
static void read_stored(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    if (t->storage == SG_AFFINE) read_affine(t, row, from, n, out);
    else if (t->storage == SG_Q8_GROUP) read_q8_group(t, row, from, n, out);
    else if (t->storage == SG_CODED) sg_coded_row(t, row, from, n, out);
    else read_blocks(t, t->data + row * (t->cols / info->block * info->bytes), from, n, out);
}

/* --- logical rows --- */

/* A logical row is a stored column: gather one number from each stored row. */
static void read_transposed(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t col = t->col_perm.a ? sg_perm_stored(&t->col_perm, from + i) : from + i;
        out[i] = scale_at(t->storage, t->data, col * t->rows + row);
    }
}

/* Number of columns from `col` on whose stored positions are consecutive. */
static uint64_t run_length(const struct sg_perm *p, uint64_t col)
{
    return col < p->first ? p->first - col : p->w - (col - p->first) % p->w;
}

/* Permuted columns, one run of consecutive stored columns at a time. Plain storages are read
 * directly. Blocks need ranges aligned to 32: runs that start at a multiple of 32 are read directly
 * as far as they contain whole 32s, the others through a buffer with the surrounding 32 columns,
 * which is reused while consecutive runs fall into it. */
static void read_permuted(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    int straight = sg_storage_info(t->storage)->block == 1;
    float part[32];
    uint64_t have = UINT64_MAX;
    for (uint64_t run; n; from += run, n -= run, out += run) {
        uint64_t at = sg_perm_stored(&t->col_perm, from), base = at - at % 32;
        run = run_length(&t->col_perm, from);
        if (run > n) run = n;
        if (straight || (at % 32 == 0 && run >= 32)) {
            if (!straight) run -= run % 32;
            read_stored(t, row, at, run, out);
            continue;
        }
        if (run > base + 32 - at) run = base + 32 - at;
        if (base != have) read_stored(t, row, base, 32, part);
        have = base;
        memcpy(out, part + at % 32, run * sizeof *out);
    }
}

/* A part: map the row to the whole tensor, then read the requested range of each column run. Ranges
 * inside a run keep the alignment of 32 because run boundaries are multiples of the block size. */
static void read_part(const struct sg_tensor_part *p, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    uint64_t whole = sg_part_at(p->rows, p->rows_n, row);
    for (uint32_t k = 0; k < p->cols_n && n; k++) {
        const struct sg_index_run *run = &p->cols[k];
        if (from >= run->n) {
            from -= run->n;
            continue;
        }
        uint64_t take = run->n - from < n ? run->n - from : n;
        sg_tensor_row(p->of, whole, run->at + from, take, out);
        out += take;
        n -= take;
        from = 0;
    }
}

/* Columns [from, from + n) of an fp8 view, rounded to e4m3. The scale depends on the maximum of the
 * whole row, so for a partial range the row is read once more, in blocks of 256 columns. */
static void read_fp8(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    const struct sg_tensor *source = t->fp8_source;
    uint32_t max = 0;
    float block[256];
    const uint64_t width = sizeof block / sizeof *block;
    for (uint64_t c = 0; n < t->cols && c < t->cols; c += width) {
        uint64_t count = t->cols - c < width ? t->cols - c : width;
        sg_tensor_row(source, row, c, count, block);
        uint32_t block_max = sg_fp8_max_bits(block, count);
        max = block_max > max ? block_max : max;
    }
    sg_tensor_row(source, row, from, n, out);
    if (n == t->cols) max = sg_fp8_max_bits(out, n);
    sg_fp8_round(out, n, sg_fp8_scale_of(max));
}

/* Resolves, in this order: fp8 views, parts, row permutation, then the layout of the columns. */
void sg_tensor_row(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    if (t->fp8_source) {
        read_fp8(t, row, from, n, out);
        return;
    }
    if (t->part) {
        read_part(t->part, row, from, n, out);
        return;
    }
    uint64_t stored = sg_perm_stored(&t->row_perm, row);
    if (!sg_storage_info(t->storage)->computable) {
        for (uint64_t i = 0; i < n; i++) out[i] = NAN;
    } else if (t->transposed) {
        read_transposed(t, stored, from, n, out);
    } else if (t->col_perm.a) {
        read_permuted(t, stored, from, n, out);
    } else {
        read_stored(t, stored, from, n, out);
    }
}

void sg_tensor_read(const struct sg_tensor *t, float *out)
{
    for (uint64_t row = 0; t->cols && row < t->rows; row++)
        sg_tensor_row(t, row, 0, t->cols, out + row * t->cols);
}

/* --- fp8 views --- */

/* The view has the shape of `from`, but no permutation or transposition: these are undone when
 * `from` is read. */
struct sg_tensor sg_tensor_fp8(const struct sg_tensor *from)
{
    struct sg_tensor t = *from;
    t.storage = SG_FP8;
    t.stored_as = sg_storage_info(SG_FP8)->name;
    t.bytes = t.rows * (t.cols + sizeof(float));
    t.transposed = 0;
    t.row_perm = t.col_perm = (struct sg_perm){0};
    t.fp8_source = from;
    return t;
}

float sg_tensor_fp8_row(const struct sg_tensor *t, uint64_t row, float *buffer, uint8_t *codes)
{
    sg_tensor_row(t->fp8_source, row, 0, t->cols, buffer);
    struct sg_fp8_scale s = sg_fp8_scale_of(sg_fp8_max_bits(buffer, t->cols));
    if (!isfinite(s.scale)) memset(codes, 0x7f, t->cols); /* NaN in e4m3 */
    else sg_fp8_encode(buffer, t->cols, s.inverse, codes);
    return s.scale;
}

/* --- checks for NaN and infinity --- */

/* A number is infinite or NaN when all its exponent bits are set. Tests 8 bytes (2 or 4 lanes) at a
 * time, because this reads whole models: the XOR turns a full exponent into a zero lane, and
 * (lanes - ones) & ~lanes has the top bit of some lane set if and only if a lane is zero. */
static int plain_finite(enum sg_storage s, const uint8_t *p, uint64_t n)
{
    const uint64_t full = s == SG_F32   ? 0x7f8000007f800000u
                          : s == SG_F16 ? 0x7c007c007c007c00u
                                        : 0x7f807f807f807f80u;
    const uint64_t ones = s == SG_F32 ? 0x0000000100000001u : 0x0001000100010001u;
    const uint64_t tops = ones << (s == SG_F32 ? 31 : 15);
    uint64_t bytes = n * plain_size(s), bad = 0, lanes, i = 0;
    for (; i + 8 <= bytes; i += 8) {
        memcpy(&lanes, p + i, 8);
        lanes = (lanes & full) ^ full;
        bad |= (lanes - ones) & ~lanes & tops;
    }
    for (; i < bytes; i += plain_size(s)) {
        uint32_t x = s == SG_F32 ? sg_le32(p + i) : sg_le16(p + i),
                 mask = s == SG_F32 ? (uint32_t)(full >> 32) : (uint32_t)(full >> 48);
        bad |= (x & mask) == mask;
    }
    return !bad;
}

/* Byte offsets of the fp16 scale and of the fp16 minimum within a block; -1: the block has none. */
static void scale_offsets(enum sg_storage s, int at[2])
{
    at[0] = s == SG_Q2_K ? 80 : s == SG_Q3_K ? 108 : s == SG_Q6_K ? 208 : s == SG_TQ1_0 ? 52 : s == SG_TQ2_0 ? 64 : 0;
    at[1] = s == SG_Q2_K ? 82 : s == SG_Q4_1 || s == SG_Q5_1 || s == SG_Q4_K || s == SG_Q5_K ? 2 : -1;
}

/* Checks the scales of consecutive blocks. */
static int blocks_finite(enum sg_storage s, const uint8_t *p, uint64_t blocks)
{
    uint32_t size = sg_storage_info(s)->bytes;
    int at[2];
    scale_offsets(s, at);
    for (uint64_t b = 0; b < blocks; b++, p += size) {
        if (s == SG_MXFP4) {
            if (p[0] == 255) return 0; /* NaN in E8M0 */
            continue;
        }
        if (s == SG_NVFP4) return 1; /* every E4M3 code is a finite scale */
        if (s == SG_Q8_K) { /* the only fp32 scale of a block */
            if (!plain_finite(SG_F32, p, 1)) return 0;
            continue;
        }
        if (s == SG_IQ1_M) { /* the exponent of d is in the upper bits of two words */
            if ((p[55] >> 4 & 7) == 7 && p[53] >> 6 == 3) return 0;
            continue;
        }
        for (int k = 0; k < 2; k++)
            if (at[k] >= 0 && !plain_finite(SG_F16, p + at[k], 1)) return 0;
    }
    return 1;
}

/* Checks stored row `row` of a matrix with `rows` stored rows of `cols` numbers. */
static int row_finite(const struct sg_tensor *t, uint64_t row, uint64_t rows, uint64_t cols)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    if (t->storage == SG_AFFINE) {
        uint64_t groups = cols / t->affine.group, at = row * groups * plain_size(t->affine.storage);
        return plain_finite(t->affine.storage, (const uint8_t *)t->affine.scales + at, groups) &&
               plain_finite(t->affine.storage, (const uint8_t *)t->affine.biases + at, groups);
    }
    if (t->storage == SG_Q8_GROUP) { /* each group is checked in the row where it starts */
        uint64_t group = t->affine.group, first = (row * cols + group - 1) / group;
        uint64_t end = row + 1 == rows ? rows * cols / group : ((row + 1) * cols + group - 1) / group;
        return end <= first ||
               plain_finite(SG_F32, (const uint8_t *)t->affine.scales + first * 4, end - first);
    }
    if (t->storage == SG_CODED) return sg_coded_finite(t, row);
    const uint8_t *p = t->data + row * (cols / info->block * info->bytes);
    return info->block == 1 ? plain_finite(t->storage, p, cols)
                            : blocks_finite(t->storage, p, cols / info->block);
}

/* An fp8 view has the stored rows of its source. */
uint64_t sg_tensor_stored_rows(const struct sg_tensor *t)
{
    if (t->fp8_source) t = t->fp8_source;
    uint64_t rows = t->transposed ? t->cols : t->rows, cols = t->transposed ? t->rows : t->cols;
    return cols ? rows : 0; /* the header of an empty tensor may declare any number of rows */
}

/* Parts and unreadable storages count as finite, see struct sg_tensor. */
int sg_tensor_finite_rows(const struct sg_tensor *t, uint64_t from, uint64_t to, uint64_t *bad_row)
{
    if (t->fp8_source) t = t->fp8_source;
    uint64_t rows = sg_tensor_stored_rows(t), cols = t->transposed ? t->rows : t->cols;
    if (!sg_storage_info(t->storage)->computable || t->part) return 1;
    for (uint64_t row = from; row < to; row++) {
        if (row_finite(t, row, rows, cols)) continue;
        if (bad_row) *bad_row = row;
        return 0;
    }
    return 1;
}

int sg_tensor_finite(const struct sg_tensor *t, uint64_t *bad_row)
{
    return sg_tensor_finite_rows(t, 0, sg_tensor_stored_rows(t), bad_row);
}

segue_status sg_tensor_fail_not_finite(const struct sg_tensor *t, uint64_t row, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT,
                   "open engine: %s: row %llu has a weight or scale that is not finite; the file is damaged, "
                   "download it again",
                   t->name, (unsigned long long)row);
}

/* Sizes are computed from the shape, because t->bytes covers the codes only. */
uint32_t sg_tensor_regions(const struct sg_tensor *t, struct sg_region out[SG_REGIONS])
{
    if (t->fp8_source) t = t->fp8_source;
    int affine = t->storage == SG_AFFINE, grouped = t->storage == SG_Q8_GROUP;
    uint64_t groups = t->affine.group ? t->rows * t->cols / t->affine.group : 0;
    uint64_t bytes = groups * (affine ? plain_size(t->affine.storage) : sizeof(float));
    uint32_t n = 1;
    if (t->part) return sg_tensor_regions(t->part->of, out);
    if (t->storage == SG_CODED) return sg_coded_regions(t, out);
    out[0] = (struct sg_region){t->data, t->bytes};
    if ((affine || grouped) && t->affine.scales) out[n++] = (struct sg_region){t->affine.scales, bytes};
    if (affine && t->affine.biases) out[n++] = (struct sg_region){t->affine.biases, bytes};
    return n;
}
