/* mlx_weights.c: weights as MLX arrays. MLX's affine form and GGUF's Q4_0, Q4_1 and Q8_0, which are repacked into it with every
 * value equal, stay quantised; all other storages are converted to the unit's type, or to fp32 where a role asks for it.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "unit/mlx/mlxunit.h"

enum { GROUP = 32 };

/* --- repacking --- */

static uint16_t half_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

/* -factor * d, a power of two times d: exact unless it is too large. */
static int half_times(uint16_t d, float factor, uint16_t *out)
{
    float number, product;
    sg_dequant_row(SG_F16, &d, 1, &number);
    product = -factor * number;
    if (!(product >= -65504.0f && product <= 65504.0f)) return 0;
    return sg_quant_row(SG_F16, &product, NULL, 1, out, NULL) == SEGUE_OK;
}

/* Q4: byte j of a block has column j in its low half and column j + 16 in its high half; MLX has column c in bits 4c of words. */
static void repack4(const uint8_t *bytes, uint32_t *codes)
{
    for (uint32_t word = 0; word < 4; word++) {
        codes[word] = 0;
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t c = word * 8 + i, code = c < 16 ? bytes[c] & 15u : bytes[c - 16] >> 4;
            codes[word] |= code << (4 * i);
        }
    }
}

/* Q8_0 has signed codes: d * q = d * (q + 128) - 128 d. */
static void repack8(const uint8_t *bytes, uint32_t *codes)
{
    for (uint32_t word = 0; word < 8; word++) {
        codes[word] = 0;
        for (uint32_t i = 0; i < 4; i++) codes[word] |= (uint32_t)(uint8_t)(bytes[word * 4 + i] ^ 0x80u) << (8 * i);
    }
}

int mlx_repack_row(enum sg_storage storage, const void *row, uint64_t cols, uint32_t *codes, uint16_t *scales, uint16_t *biases)
{
    const uint8_t *p = row;
    for (uint64_t g = 0; g < cols / GROUP; g++) {
        scales[g] = half_at(p);
        if (storage == SG_Q4_1) {
            biases[g] = half_at(p + 2);
            repack4(p + 4, codes + g * 4);
        } else if (storage == SG_Q4_0) {
            if (!half_times(scales[g], 8, &biases[g])) return 0;
            repack4(p + 2, codes + g * 4);
        } else {
            if (!half_times(scales[g], 128, &biases[g])) return 0;
            repack8(p + 2, codes + g * 8);
        }
        p += sg_storage_info(storage)->bytes;
    }
    return 1;
}

/* --- one tensor --- */

static enum mxc_type type_of(enum sg_storage s) { return s == SG_F16 ? MXC_F16 : s == SG_BF16 ? MXC_BF16 : MXC_F32; }

static int is_matrix(const struct mlx_weight *w) { return w->role == MLX_MATRIX || w->role == MLX_MATRIX_FP32; }

static enum mxc_type type_for(const struct mlx_weights *list, enum mlx_role role)
{
    return role == MLX_MATRIX_FP32 || role == MLX_VECTOR_FP32 ? MXC_F32 : list->type;
}

/* 1: the matrix can stay quantised. Scales must be exact in the type in which MLX computes. */
static int stays_quantised(const struct sg_tensor *t, enum mxc_type type)
{
    int gguf = t->storage == SG_Q4_0 || t->storage == SG_Q4_1 || t->storage == SG_Q8_0;
    if ((!gguf && t->storage != SG_AFFINE) || t->part || t->transposed || t->col_perm.a) return 0;
    uint32_t group = gguf ? GROUP : t->affine.group;
    if (t->cols % group || (group != 32 && group != 64 && group != 128)) return 0;
    return type == MXC_F32 || type == type_of(gguf ? SG_F16 : t->affine.storage);
}

static struct mxc_held *keep_as(struct sg_unit *u, mxc_ref x, enum mxc_type type)
{
    if (mxc_type_of(u->tape, x) != type) x = mxc_cast(u->tape, x, type);
    (void)mxc_eval(u->tape, &x, 1);
    return mxc_keep(u->tape, x);
}

/* Buffers of a quantised matrix in logical row order. */
struct packed {
    uint8_t *codes, *scales, *biases;
    size_t code_row, scale_row;      /* bytes of one row */
};

/* 0: a scale does not allow it. */
static int pack_rows(const struct sg_tensor *t, struct packed *b)
{
    size_t stored = (size_t)(t->bytes / t->rows);
    for (uint64_t r = 0; r < t->rows; r++) {
        uint64_t at = sg_perm_stored(&t->row_perm, r);
        uint8_t *codes = b->codes + r * b->code_row, *scales = b->scales + r * b->scale_row;
        uint8_t *biases = b->biases + r * b->scale_row;
        if (t->storage == SG_AFFINE) {
            memcpy(codes, t->data + at * b->code_row, b->code_row);
            memcpy(scales, (const uint8_t *)t->affine.scales + at * b->scale_row, b->scale_row);
            memcpy(biases, (const uint8_t *)t->affine.biases + at * b->scale_row, b->scale_row);
        } else if (!mlx_repack_row(t->storage, t->data + at * stored, t->cols, (uint32_t *)(void *)codes,
                                   (uint16_t *)(void *)scales, (uint16_t *)(void *)biases)) {
            return 0;
        }
    }
    return 1;
}

/* *done = 0: the tensor is to be converted instead. */
static segue_status load_quantised(struct sg_unit *u, struct mlx_weight *w, enum mxc_type type, int *done, segue_error *err)
{
    const struct sg_tensor *t = w->tensor;
    int affine = t->storage == SG_AFFINE;
    uint32_t group = affine ? t->affine.group : GROUP, bits = affine ? t->affine.bits : t->storage == SG_Q8_0 ? 8 : 4;
    enum sg_storage scale = affine ? t->affine.storage : SG_F16;
    struct packed b = {.code_row = (size_t)t->cols * bits / 8,
                       .scale_row = (size_t)(t->cols / group) * (scale == SG_F32 ? 4 : 2)};
    uint32_t codes[2] = {(uint32_t)t->rows, (uint32_t)(t->cols * bits / 32)};
    uint32_t scales[2] = {(uint32_t)t->rows, (uint32_t)(t->cols / group)};
    b.codes = sg_alloc(t->rows * b.code_row);
    b.scales = sg_alloc(t->rows * b.scale_row);
    b.biases = sg_alloc(t->rows * b.scale_row);
    segue_status status = SEGUE_OK;
    if (!b.codes || !b.scales || !b.biases) {
        status = sg_no_memory("weights of mlx", t->rows * b.code_row, err);
    } else if ((*done = pack_rows(t, &b))) {
        struct mxc_tape *tape = u->tape;
        w->numbers = mxc_keep(tape, mxc_from(tape, b.codes, MXC_U32, codes, 2));
        w->scales = keep_as(u, mxc_from(tape, b.scales, type_of(scale), scales, 2), type);
        w->biases = keep_as(u, mxc_from(tape, b.biases, type_of(scale), scales, 2), type);
        w->group = group;
        w->bits = bits;
    }
    sg_free(b.codes);
    sg_free(b.scales);
    sg_free(b.biases);
    return status;
}

/* A number that becomes infinite in fp16 is refused. */
static segue_status check_range(const struct sg_tensor *t, const float *numbers, size_t n, segue_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (numbers[i] >= 65520.0f || numbers[i] <= -65520.0f)
            return sg_fail(err, SEGUE_EUNSUPPORTED, "compile: mlx: %s: number %zu, %g, exceeds fp16; use type=bf16 or type=f32",
                           t->name, i, (double)numbers[i]);
    return SEGUE_OK;
}

static segue_status load_dense(struct sg_unit *u, struct mlx_weight *w, enum mxc_type type, segue_error *err)
{
    const struct sg_tensor *t = w->tensor;
    size_t n = (size_t)(t->rows * t->cols);
    uint32_t matrix[2] = {(uint32_t)t->rows, (uint32_t)t->cols}, vector = (uint32_t)n;
    float *numbers = sg_alloc(n * sizeof *numbers);
    if (!numbers) return sg_no_memory("weights of mlx", n * sizeof *numbers, err);
    sg_tensor_read(t, numbers);
    for (size_t i = 0; w->role == MLX_PLUS_ONE && i < n; i++) numbers[i] += 1.0f;
    segue_status status = type == MXC_F16 ? check_range(t, numbers, n, err) : SEGUE_OK;
    if (status == SEGUE_OK)
        w->numbers = keep_as(u, mxc_from(u->tape, numbers, MXC_F32, is_matrix(w) ? matrix : &vector, is_matrix(w) ? 2 : 1), type);
    sg_free(numbers);
    return status;
}

/* A convolution's numbers, [taps, channels], and each tap, which a decode step then need not cut out. */
static segue_status load_taps(struct sg_unit *u, struct mlx_weight *w, enum mxc_type type, segue_error *err)
{
    const struct sg_tensor *t = w->tensor;
    uint32_t taps = w->taps, channels = (uint32_t)(t->rows * t->cols / taps), shape[2] = {taps, channels};
    float *numbers = sg_alloc(2 * (size_t)channels * taps * sizeof *numbers);
    w->each = sg_alloc(taps * sizeof *w->each);
    if (!numbers || !w->each) {
        sg_free(numbers);
        return sg_no_memory("weights of mlx", 2 * (size_t)channels * taps * sizeof *numbers, err);
    }
    float *by_tap = numbers + (size_t)channels * taps;
    sg_tensor_read(t, numbers);
    for (size_t i = 0; i < (size_t)channels * taps; i++) by_tap[i % taps * channels + i / taps] = numbers[i];
    mxc_ref x = mxc_from(u->tape, by_tap, MXC_F32, shape, 2);
    w->numbers = keep_as(u, type == MXC_F32 ? x : mxc_cast(u->tape, x, type), MXC_F32);
    for (uint32_t k = 0; k < taps && w->numbers; k++)
        w->each[k] = keep_as(u, mxc_slice(u->tape, mxc_use(u->tape, w->numbers), 0, k, k + 1), MXC_F32);
    sg_free(numbers);
    return SEGUE_OK;
}

static segue_status load(struct mlx_weights *list, struct sg_unit *u, struct mlx_weight *w, segue_error *err)
{
    enum mxc_type type = type_for(list, w->role);
    int done = 0;
    if (w->tensor->rows > INT32_MAX || w->tensor->cols > INT32_MAX)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "compile: mlx: %s has more than 2^31 rows or columns", w->tensor->name);
    if (is_matrix(w) && stays_quantised(w->tensor, type)) SG_TRY(load_quantised(u, w, type, &done, err));
    if (w->role == MLX_TAPS) SG_TRY(load_taps(u, w, type, err));
    else if (!done) SG_TRY(load_dense(u, w, type, err));
    list->bytes += mxc_held_bytes(w->numbers) + mxc_held_bytes(w->scales) + mxc_held_bytes(w->biases);
    segue_status status = mlx_status(u, "compile", err);
    mxc_tape_clear(u->tape);
    return status;
}

/* --- all tensors --- */

enum mxc_type mlx_prevailing_type(const struct sg_graph *const *graphs, uint32_t n, enum mxc_type otherwise)
{
    uint64_t numbers[3] = {0};       /* by type */
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < graphs[i]->tensors_n; k++) {
            const struct sg_tensor *t = graphs[i]->tensors[k];
            enum sg_storage s = t->storage == SG_AFFINE ? t->affine.storage : t->storage;
            if (s == SG_F32 || s == SG_BF16) numbers[type_of(s)] += t->rows * t->cols;
            else numbers[MXC_F16] += t->rows * t->cols;
        }
    enum mxc_type max = otherwise;
    for (int type = MXC_F32; type <= MXC_BF16; type++)
        if (numbers[type] > numbers[max]) max = (enum mxc_type)type;
    return max;
}

/* Also where `rows` selects rows of it. */
int mlx_is_fp32(const struct sg_graph *g, int32_t value)
{
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        if (op->code == SG_OP_ROWS && op->in[0].value == value && mlx_is_fp32(g, op->out)) return 1;
        if (op->code == SG_OP_ROUTE && (op->in[0].value == value || op->out == value)) return 1;
        if (op->code == SG_OP_EXPERTS && op->in[1].value == value) return 1;
    }
    return 0;
}

/* taps: of MLX_TAPS, else 0. */
static segue_status add_with(struct mlx_weights *list, struct sg_unit *u, const struct sg_graph *g, const struct sg_weight *w,
                             enum mlx_role role, uint32_t taps, segue_error *err)
{
    if (w->tensor < 0) return SEGUE_OK;
    const struct sg_tensor *t = g->tensors[w->tensor];
    for (uint32_t i = 0; i < list->n; i++)
        if (list->list[i].tensor == t && list->list[i].role == role) return SEGUE_OK;
    if (list->n == list->cap) {
        uint32_t cap = list->cap ? 2 * list->cap : 64;
        struct mlx_weight *more = sg_alloc(cap * sizeof *more);
        if (!more) return sg_no_memory("weights of mlx", cap * sizeof *more, err);
        if (list->n) memcpy(more, list->list, list->n * sizeof *more);
        sg_free(list->list);
        list->list = more;
        list->cap = cap;
    }
    struct mlx_weight *new = &list->list[list->n++];
    *new = (struct mlx_weight){.tensor = t, .role = role, .taps = taps};
    return load(list, u, new, err);
}

static segue_status add(struct mlx_weights *list, struct sg_unit *u, const struct sg_graph *g, const struct sg_weight *w,
                        enum mlx_role role, segue_error *err)
{
    return add_with(list, u, g, w, role, 0, err);
}

static segue_status add_op(struct mlx_weights *w, struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op,
                           segue_error *err)
{
    switch (op->code) {
    case SG_OP_EMBED:
        SG_TRY(add(w, u, g, &op->u.embed.table, MLX_MATRIX, err));
        return add(w, u, g, &op->u.embed.positions, MLX_MATRIX, err);
    case SG_OP_NORM:
        SG_TRY(add(w, u, g, &op->u.norm.weight, op->u.norm.plus_one ? MLX_PLUS_ONE : MLX_VECTOR, err));
        return add(w, u, g, &op->u.norm.bias, MLX_VECTOR, err);
    case SG_OP_LINEAR: {
        int fp32 = mlx_is_fp32(g, op->out);
        SG_TRY(add(w, u, g, &op->u.linear.weight, fp32 ? MLX_MATRIX_FP32 : MLX_MATRIX, err));
        return add(w, u, g, &op->u.linear.bias, fp32 ? MLX_VECTOR_FP32 : MLX_VECTOR, err);
    }
    case SG_OP_ATTEND: return add(w, u, g, &op->u.attend.sinks, MLX_VECTOR, err);
    case SG_OP_CONV:
        SG_TRY(add(w, u, g, &op->u.conv.weight, MLX_VECTOR, err));
        SG_TRY(add_with(w, u, g, &op->u.conv.weight, MLX_TAPS, op->u.conv.taps, err));
        return add(w, u, g, &op->u.conv.bias, MLX_VECTOR, err);
    case SG_OP_DELTA:
        SG_TRY(add(w, u, g, &op->u.delta.decay, MLX_VECTOR_FP32, err));
        return add(w, u, g, &op->u.delta.dt, MLX_VECTOR_FP32, err);
    case SG_OP_SCALE: return add(w, u, g, &op->u.scale.weight, MLX_VECTOR, err);
    case SG_OP_ROUTE: return add(w, u, g, &op->u.route.bias, MLX_VECTOR_FP32, err);
    case SG_OP_EXPERTS:
        SG_TRY(add(w, u, g, &op->u.experts.gate, MLX_MATRIX, err));
        SG_TRY(add(w, u, g, &op->u.experts.up, MLX_MATRIX, err));
        return add(w, u, g, &op->u.experts.down, MLX_MATRIX, err);
    default: return SEGUE_OK;
    }
}

segue_status mlx_weights_add(struct mlx_weights *w, struct sg_unit *u, const struct sg_graph *g, segue_error *err)
{
    for (uint32_t i = 0; i < g->ops_n; i++) SG_TRY(add_op(w, u, g, &g->ops[i], err));
    return SEGUE_OK;
}

static void release(struct mlx_weight *w)
{
    mxc_release(w->numbers);
    mxc_release(w->scales);
    mxc_release(w->biases);
    for (uint32_t k = 0; w->each && k < w->taps; k++) mxc_release(w->each[k]);
    sg_free(w->each);
}

void mlx_weights_release(struct mlx_weights *w)
{
    if (!w || atomic_fetch_sub(&w->refs, 1u) != 1) return;
    for (uint32_t i = 0; i < w->n; i++) release(&w->list[i]);
    for (uint32_t i = 0; i < w->stacks_n; i++) {
        release(&w->stacks[i].all);
        mxc_release(w->stacks[i].bias);
    }
    sg_free(w->stacks);
    sg_free(w->list);
    sg_free(w);
}
