/* upload.c: weights into GPU memory, each tensor once, rows and columns in the house's order, in the nearest
 * of the forms that kernels read (kparams.h). F32, F16, BF16, FP8, Q8_0, Q4_0, Q4_1, Q5, Q4_K, Q5_K, Q6_K and MLX
 * 4 and 8 bits keep their own numbers; every other storage, and blocks whose columns a permutation cuts,
 * become F32 here: exact, and rare. SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/cuda/cu.h"

/* Bytes sent at once, about; rows of a thread's piece of them; numbers from which on a tensor is worth threads. */
enum { BAND_BYTES = 4 << 20, ROWS_EACH = 16, SHARED = 1 << 20 };

/* --- which form --- */

static int permuted(const struct sg_perm *p) { return p->a != 0; }

/* Of a part, what it is a part of. */
static const struct sg_tensor *whole_of(const struct sg_tensor *t) { return t->part ? t->part->of : t; }

/* A row's columns, run by run: where they are in the whole, and behind how many others. */
struct columns {
    uint64_t at, n, to;
};

static uint32_t columns_of(const struct sg_tensor *t, struct columns out[SG_PART_RUNS])
{
    const struct sg_tensor_part *p = t->part;
    out[0] = (struct columns){.n = t->cols};
    for (uint32_t i = 0; p && i < p->cols_n; i++)
        out[i] = (struct columns){p->cols[i].at, p->cols[i].n, i ? out[i - 1].to + out[i - 1].n : 0};
    return p ? p->cols_n : 1;
}

static uint64_t stored_row(const struct sg_tensor *t, uint64_t row)
{
    uint64_t at = t->part ? sg_part_at(t->part->rows, t->part->rows_n, row) : row;
    return sg_perm_stored(&whole_of(t)->row_perm, at);
}

static uint32_t affine_kind(const struct sg_affine *a)
{
    if (a->bits == 4 && a->group % 32 == 0) return CK_G4;
    if (a->bits == 8 && a->group % 16 == 0) return CK_G8;
    return CK_F32;
}

static uint32_t kind_of(const struct sg_tensor *t)
{
    if (t->storage == SG_F32) return CK_F32;
    if (t->storage == SG_BF16) return CK_BF16;
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

static void shape_of(const struct sg_tensor *t, struct ck_weight *w)
{
    static const uint32_t bits[] = {
        [CK_F32] = 32, [CK_F16] = 16, [CK_BF16] = 16, [CK_Q8] = 8, [CK_Q4] = 4, [CK_G8] = 8, [CK_G4] = 4, [CK_F8] = 8};
    w->kind = kind_of(t);
    w->rows = (uint32_t)t->rows;
    w->cols = (uint32_t)t->cols;
    w->pitch = round_up((t->cols * bits[w->kind] + 7) / 8, 16);
    w->group = t->storage == SG_Q6_K ? 16 : t->storage == SG_AFFINE ? t->affine.group : 32;
    w->scale_pitch = w->kind < CK_Q8 ? 0 : w->kind == CK_F8 ? 1 : (uint32_t)((t->cols + w->group - 1) / w->group);
}

static size_t scale_bytes(const struct ck_weight *w)
{
    return w->kind == CK_Q8 ? 2 : w->kind == CK_Q4 || w->kind == CK_F8 ? 4 : w->kind == CK_G8 || w->kind == CK_G4 ? 8 : 0;
}

/* --- blocks -> data and scales of one row --- */

static void put_pair(uint8_t *to, float scale, float offset)
{
    memcpy(to, &scale, 4);
    memcpy(to + 4, &offset, 4);
}

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

/* 256 numbers: eight groups of 32, in pairs that share bytes: low nibbles first. */
static void block_q4k(const uint8_t *b, uint8_t *data, uint8_t *scales)
{
    float d = sg_f32_of_f16(sg_le16(b)), m = sg_f32_of_f16(sg_le16(b + 2));
    for (int g = 0; g < 8; g++) {
        uint8_t s, n;
        const uint8_t *q = b + 16 + g / 2 * 32;
        int shift = g % 2 * 4;
        scale_q4k(b + 4, g, &s, &n);
        put_pair(scales + g * 8, d * s, -m * n);
        for (int j = 0; j < 16; j++)
            data[g * 16 + j] = (uint8_t)((q[j] >> shift & 15) | (q[j + 16] >> shift & 15) << 4);
    }
}

static void block_q5k(const uint8_t *b, uint8_t *data, uint8_t *scales)
{
    float d = sg_f32_of_f16(sg_le16(b)), m = sg_f32_of_f16(sg_le16(b + 2));
    for (int g = 0; g < 8; g++) {
        uint8_t s, n;
        const uint8_t *q = b + 48 + g / 2 * 32, *high = b + 16;
        int shift = g % 2 * 4;
        scale_q4k(b + 4, g, &s, &n);
        put_pair(scales + g * 8, d * s, -m * n);
        for (int j = 0; j < 32; j++)
            data[g * 32 + j] = (uint8_t)((q[j] >> shift & 15) | (high[j] >> g & 1) << 4);
    }
}

static void block_q6k(const uint8_t *b, uint8_t *data, uint8_t *scales)
{
    float d = sg_f32_of_f16(sg_le16(b + 208));
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

/* One stored block of 32 or 256 numbers, number `at` of its row. */
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

static float affine_number(const struct sg_affine *a, const void *from, size_t i)
{
    const uint8_t *p = (const uint8_t *)from + i * (a->storage == SG_F32 ? 4 : 2);
    if (a->storage == SG_F32) return sg_f32_of_bits(sg_le32(p));
    return a->storage == SG_F16 ? sg_f32_of_f16(sg_le16(p)) : sg_f32_of_bf16(sg_le16(p));
}

static void columns_affine(const struct sg_tensor *t, const struct ck_weight *w, const struct columns *c, uint64_t stored,
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

static void columns_blocks(const struct sg_tensor *t, const struct columns *c, uint64_t stored, uint8_t *data, uint8_t *scales)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    const uint8_t *row = t->data + stored * (t->cols / info->block * info->bytes);
    for (size_t i = 0; i < c->n; i += info->block) {
        size_t from = permuted(&t->col_perm) ? sg_perm_stored(&t->col_perm, c->at + i) : c->at + i;
        put_block(t, row + from / info->block * info->bytes, c->to + i, data, scales);
    }
}

/* As they lie in the file, or through fp32. */
static void row_plain(const struct sg_tensor *t, const struct ck_weight *w, uint64_t row, float *numbers,
                      uint8_t *data)
{
    uint32_t bytes = w->kind == CK_F32 ? 4 : 2;
    const struct sg_tensor *s = whole_of(t);
    struct columns c[SG_PART_RUNS];
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

/* Rows of a transposed tensor are read in bands: a stored row holds one number of each. */
static void rows_transposed(const struct sg_tensor *t, const struct ck_weight *w, uint64_t from, uint64_t to,
                            uint8_t *data)
{
    uint32_t bytes = w->kind == CK_F32 ? 4 : 2;
    const struct sg_tensor *s = whole_of(t);
    for (uint64_t c = 0; c < t->cols; c++) {
        uint64_t column = t->part ? sg_part_at(t->part->cols, t->part->cols_n, c) : c;
        for (uint64_t r = from; r < to; r++)
            memcpy(data + (r - from) * w->pitch + c * bytes, s->data + (column * s->rows + stored_row(t, r)) * bytes, bytes);
    }
}

static void row_quantised(const struct sg_tensor *t, const struct ck_weight *w, uint64_t row, uint8_t *data, uint8_t *scales)
{
    struct columns c[SG_PART_RUNS];
    uint64_t stored = stored_row(t, row);
    for (uint32_t i = 0, n = columns_of(t, c); i < n; i++) {
        if (t->storage == SG_AFFINE)
            columns_affine(whole_of(t), w, &c[i], stored, data, scales);
        else
            columns_blocks(whole_of(t), &c[i], stored, data, scales);
    }
}

/* The scale is the whole row's. numbers: room for a row of the whole, twice. */
static void row_fp8(const struct sg_tensor *t, uint64_t row, float *numbers, uint8_t *data, uint8_t *scales)
{
    const struct sg_tensor *s = whole_of(t);
    struct columns c[SG_PART_RUNS];
    uint8_t *codes = (uint8_t *)(numbers + s->cols);
    float scale = sg_tensor_fp8_row(s, t->part ? sg_part_at(t->part->rows, t->part->rows_n, row) : row, numbers, codes);
    for (uint32_t i = 0, n = columns_of(t, c); i < n; i++) memcpy(data + c[i].to, codes + c[i].at, c[i].n);
    memcpy(scales, &scale, sizeof scale);
}

static void put_rows(const struct sg_tensor *t, const struct ck_weight *w, uint64_t from, uint64_t to,
                     float *numbers, uint8_t *data, uint8_t *scales)
{
    size_t scale_row = w->scale_pitch * scale_bytes(w);
    const struct sg_tensor *s = whole_of(t);
    int straight = s->transposed && !permuted(&s->row_perm) && !permuted(&s->col_perm);
    if (straight) {
        rows_transposed(t, w, from, to, data);
        return;
    }
    for (uint64_t r = from; r < to; r++, data += w->pitch, scales += scale_row) {
        if (w->kind < CK_Q8)
            row_plain(t, w, r, numbers, data);
        else if (w->kind == CK_F8)
            row_fp8(t, r, numbers, data, scales);
        else
            row_quantised(t, w, r, data, scales);
    }
}

/* --- a tensor, all tensors --- */

static size_t data_bytes(const struct ck_weight *w) { return ((size_t)w->pitch * w->rows + 255) / 256 * 256; }

/* Numbers that a thread needs room for. */
static size_t room_of(const struct sg_tensor *t) { return 2 * whole_of(t)->cols; }

/* Rows [from, to) on their way. */
struct band {
    const struct sg_tensor *t;
    const struct ck_weight *w;
    uint64_t from, to;
    float *numbers; /* [threads][room_of] */
    uint8_t *data, *scales;
};

static void fill_piece(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    const struct band *b = arg;
    uint64_t at = (uint64_t)item * ROWS_EACH, left = b->to - b->from - at;
    (void)stage;
    put_rows(b->t, b->w, b->from + at, b->from + at + (left < ROWS_EACH ? left : ROWS_EACH), b->numbers + thread * room_of(b->t),
             b->data + at * b->w->pitch, b->scales + at * b->w->scale_pitch * scale_bytes(b->w));
}

static void fill_band(struct sg_pool *pool, struct band *b)
{
    uint32_t items = (uint32_t)((b->to - b->from + ROWS_EACH - 1) / ROWS_EACH);
    struct sg_job job = {.items = &items, .stages = 1, .work = fill_piece, .arg = b};
    if (pool) sg_pool_run(pool, &job);
    for (uint32_t i = 0; !pool && i < items; i++) fill_piece(b, 0, i, 0);
}

static uint64_t band_rows(const struct ck_weight *w)
{
    uint64_t rows = BAND_BYTES / (w->pitch + w->scale_pitch * scale_bytes(w) + 1) / ROWS_EACH * ROWS_EACH;
    return !rows ? ROWS_EACH : rows < w->rows ? rows : w->rows;
}

static segue_status send_rows(struct cu_weights *all, struct cu_tensor *t, float *numbers, uint8_t *data, segue_error *err)
{
    struct ck_weight *w = &t->w;
    struct sg_unit *u = all->unit;
    size_t scale_row = w->scale_pitch * scale_bytes(w);
    uint64_t many = band_rows(w);
    struct band b = {.t = t->source, .w = w, .numbers = numbers, .data = data, .scales = data + many * w->pitch};
    for (b.from = 0; b.from < w->rows; b.from = b.to) {
        b.to = b.from + many < w->rows ? b.from + many : w->rows;
        fill_band(all->pool, &b);
        SG_TRY(cu_send(u, t->memory + b.from * w->pitch, b.data, (size_t)(b.to - b.from) * w->pitch, err));
        if (scale_row)
            SG_TRY(cu_send(u, t->memory + data_bytes(w) + b.from * scale_row, b.scales, (size_t)(b.to - b.from) * scale_row,
                           err));
    }
    return SEGUE_OK;
}

static segue_status send_vector(struct sg_unit *u, struct cu_tensor *t, segue_error *err)
{
    size_t n = (size_t)t->source->rows * t->source->cols;
    float *numbers = sg_alloc(n * sizeof *numbers);
    if (!numbers) return sg_no_memory("a vector of weights", n * sizeof *numbers, err);
    sg_tensor_read(t->source, numbers);
    segue_status status = cu_room(u, n * sizeof *numbers, "weights", &t->vector, err);
    if (status == SEGUE_OK) status = cu_send(u, t->vector, numbers, n * sizeof *numbers, err);
    sg_free(numbers);
    return status;
}

static segue_status send_matrix(struct cu_weights *all, struct cu_tensor *t, segue_error *err)
{
    struct ck_weight *w = &t->w;
    struct sg_unit *u = all->unit;
    if (!all->pool && (uint64_t)w->rows * w->cols >= SHARED) SG_TRY(sg_pool_open(&all->pool, 0, err));
    uint32_t threads = all->pool ? sg_pool_threads(all->pool) : 1;
    t->bytes = data_bytes(w) + (size_t)w->scale_pitch * scale_bytes(w) * w->rows;
    if (!t->memory) SG_TRY(cu_room(u, t->bytes, t->source->name ? t->source->name : "weights", &t->memory, err));
    float *numbers = sg_alloc(threads * room_of(t->source) * sizeof *numbers);
    uint8_t *band = sg_alloc(band_rows(w) * (w->pitch + (size_t)w->scale_pitch * scale_bytes(w)));
    segue_status status = numbers && band ? send_rows(all, t, numbers, band, err)
                                          : sg_no_memory("rows of weights", w->pitch, err);
    sg_free(numbers);
    sg_free(band);
    w->data = (const void *)(uintptr_t)t->memory;
    w->scales = (const void *)(uintptr_t)(t->memory + data_bytes(w));
    return status;
}

/* How ops use a tensor: bit 0 as a matrix of rows, bit 1 as numbers in fp32. */
static uint32_t uses_of(const struct sg_graph *g, uint32_t tensor)
{
    uint32_t uses = 0;
    int32_t n = (int32_t)tensor;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        switch (op->code) {
        case SG_OP_EMBED:
            uses |= op->u.embed.table.tensor == n || op->u.embed.positions.tensor == n;
            break;
        case SG_OP_LINEAR:
            uses |= (op->u.linear.weight.tensor == n) | (op->u.linear.bias.tensor == n) << 1;
            break;
        case SG_OP_NORM:
            uses |= (uint32_t)(op->u.norm.weight.tensor == n || op->u.norm.bias.tensor == n) << 1;
            break;
        case SG_OP_ATTEND:
            uses |= (uint32_t)(op->u.attend.sinks.tensor == n) << 1;
            break;
        case SG_OP_CONV:
            uses |= (uint32_t)(op->u.conv.weight.tensor == n || op->u.conv.bias.tensor == n) << 1;
            break;
        case SG_OP_DELTA:
            uses |= (uint32_t)(op->u.delta.decay.tensor == n || op->u.delta.dt.tensor == n) << 1;
            break;
        case SG_OP_SCALE:
            uses |= (uint32_t)(op->u.scale.weight.tensor == n) << 1;
            break;
        case SG_OP_ROUTE:
            uses |= (uint32_t)(op->u.route.bias.tensor == n) << 1;
            break;
        case SG_OP_EXPERTS:
            uses |= op->u.experts.gate.tensor == n || op->u.experts.up.tensor == n ||
                    op->u.experts.down.tensor == n;
            break;
        default:
            break;
        }
    }
    return uses;
}

static struct cu_tensor *tensor_of(struct cu_weights *w, const struct sg_tensor *t)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->tensors[i].source == t) return &w->tensors[i];
    return NULL;
}

const struct cu_tensor *cu_weight_of(const struct cu_weights *w, const struct sg_tensor *t)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->tensors[i].source == t) return &w->tensors[i];
    return NULL;
}

static segue_status know(struct cu_weights *w, const struct sg_tensor *source, struct cu_tensor **out, segue_error *err)
{
    *out = tensor_of(w, source);
    if (*out) return SEGUE_OK;
    SG_TRY(sg_tensor_computable(source, err));
    if (source->rows > INT32_MAX || source->cols > INT32_MAX / 8)
        return sg_fail(err, SEGUE_ELIMIT, "load weights: unit cuda: %s is too large for it", source->name);
    *out = &w->tensors[w->n++];
    (*out)->source = source;
    shape_of(source, &(*out)->w);
    return SEGUE_OK;
}

/* May the rows of this linear's weight lie behind others, in 16 bits as they are? */
static int may_follow(const struct sg_graph *g, const struct sg_op *op, const struct cu_tensor *t)
{
    return op->code == SG_OP_LINEAR && !t->memory && (t->w.kind == CK_F16 || t->w.kind == CK_BF16) &&
           !op->u.linear.weight.at && op->u.linear.weight.rows == g->tensors[op->u.linear.weight.tensor]->rows &&
           op->u.linear.bias.tensor < 0 && op->in[1].value < 0;
}

/* Weights of linears that read the same x, from op `i` on, get one piece of memory, so that one product of many rows can take
 * them all (issue_product.c). */
static segue_status join_weights(struct cu_weights *w, const struct sg_graph *g, uint32_t i, segue_error *err)
{
    const struct sg_op *first = &g->ops[i];
    struct cu_tensor *parts[CK_SEGMENTS];
    uint32_t n = 0;
    size_t all = 0;
    for (uint32_t k = i; k < g->ops_n && n < CK_SEGMENTS; k++) {
        const struct sg_op *op = &g->ops[k];
        struct cu_tensor *t;
        int again = 0;
        if (op->code != SG_OP_LINEAR || memcmp(&op->in[0], &first->in[0], sizeof op->in[0])) continue;
        SG_TRY(know(w, g->tensors[op->u.linear.weight.tensor], &t, err));
        for (uint32_t m = 0; m < n; m++) again |= parts[m] == t;
        if (again || !may_follow(g, op, t) || (n && (t->w.kind != parts[0]->w.kind || t->w.pitch != parts[0]->w.pitch))) {
            if (!n) return SEGUE_OK;
            continue;
        }
        parts[n++] = t;
        all += (size_t)t->w.pitch * t->w.rows;
    }
    if (n < 2) return SEGUE_OK;
    SG_TRY(cu_room(w->unit, all + 256, "weights", &parts[0]->memory, err));
    for (uint32_t k = 1; k < n; k++) {
        parts[k]->memory = parts[k - 1]->memory + (size_t)parts[k - 1]->w.pitch * parts[k - 1]->w.rows;
        parts[k]->joined = 1;
    }
    return SEGUE_OK;
}

static segue_status bring(struct cu_weights *w, const struct sg_tensor *source, uint32_t uses,
                          segue_error *err)
{
    struct cu_tensor *t;
    SG_TRY(know(w, source, &t, err));
    if ((uses & 1) && !t->w.data) SG_TRY(send_matrix(w, t, err));
    if ((uses & 2) && !t->vector) {
        SG_TRY(send_vector(w->unit, t, err));
        t->bytes += (size_t)source->rows * source->cols * sizeof(float);
    }
    return SEGUE_OK;
}

static segue_status bring_all(struct cu_weights *w, const struct sg_graph *const *graphs, uint32_t graphs_n,
                              segue_error *err)
{
    for (uint32_t i = 0; i < graphs_n; i++)
        for (uint32_t k = 0; k < graphs[i]->ops_n; k++)
            if (graphs[i]->ops[k].code == SG_OP_LINEAR) SG_TRY(join_weights(w, graphs[i], k, err));
    for (uint32_t i = 0; i < graphs_n; i++)
        for (uint32_t k = 0; k < graphs[i]->tensors_n; k++)
            SG_TRY(bring(w, graphs[i]->tensors[k], uses_of(graphs[i], k), err));
    for (uint32_t i = 0; i < w->n; i++) w->bytes += w->tensors[i].bytes;
    return SEGUE_OK;
}

void cu_weights_free(struct cu_weights *w)
{
    if (!w || --w->references) return;
    for (uint32_t i = 0; i < w->n; i++) {
        if (!w->tensors[i].joined) cu_room_free(w->unit, &w->tensors[i].memory);
        cu_room_free(w->unit, &w->tensors[i].vector);
    }
    sg_free(w->tensors);
    sg_free(w);
}

segue_status cu_weights_new(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t graphs_n,
                            struct cu_weights **out, segue_error *err)
{
    struct cu_weights *w = sg_alloc(sizeof *w);
    size_t n = 0;
    for (uint32_t i = 0; i < graphs_n; i++) n += graphs[i]->tensors_n;
    struct cu_tensor *tensors = sg_alloc(n * sizeof *tensors);
    if (!w || !tensors) {
        sg_free(w);
        sg_free(tensors);
        return sg_no_memory("weights", n * sizeof *tensors, err);
    }
    *w = (struct cu_weights){.unit = u, .references = 1, .tensors = tensors};
    segue_status status = bring_all(w, graphs, graphs_n, err);
    sg_pool_close(w->pool);
    w->pool = NULL;
    if (status != SEGUE_OK) {
        cu_weights_free(w);
        return status;
    }
    *out = w;
    return SEGUE_OK;
}
