/* lowercommon.c: see lowercommon.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lowercommon.h"

#include <math.h>
#include <stdio.h>

#include "unit/ane/analysis/value_range.h"

enum { FLAT_MAX = 65536 };       /* maximum channels of an intermediate reshape (constraint 27) */
#define MAX_ABS_MIN 0.000244140625 /* 2^-12: its inverse, 4096, is exact and far from overflow */
#define SQUARE_MIN 6.103515625e-5  /* 2^-14, the smallest normal fp16 number */

uint32_t sg_ane_channels(struct sg_lowering *l, uint32_t x, int64_t at, int64_t n)
{
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    if (l->b.status || (!at && n == t->dim[1])) return x;
    int64_t begin[4] = {0, at, 0, 0}, size[4] = {t->dim[0], n, t->dim[2], t->dim[3]};
    return sg_mil_build_slice(&l->b, x, 4, begin, size);
}

int sg_ane_value_shift(const struct sg_lowering *l, int32_t value) { return l->part->range ? l->part->range->value[value] : 0; }

uint32_t sg_ane_rescale(struct sg_lowering *l, uint32_t x, int from, int to)
{
    return from == to ? x : SG_ANE_BIN("mul", x, SG_ANE_NUM(ldexp(1, from - to)));
}

uint32_t sg_ane_operand_stored(struct sg_lowering *l, const struct sg_operand *x)
{
    return sg_ane_channels(l, l->values[x->value], x->at, x->width);
}

uint32_t sg_ane_operand_scaled(struct sg_lowering *l, const struct sg_operand *x, int shift)
{
    return sg_ane_rescale(l, sg_ane_operand_stored(l, x), sg_ane_value_shift(l, x->value), shift);
}

uint32_t sg_ane_operand(struct sg_lowering *l, const struct sg_operand *x) { return sg_ane_operand_scaled(l, x, 0); }

uint32_t sg_ane_zeros(struct sg_lowering *l, int64_t channels, int64_t rows, int64_t columns)
{
    static const double zero;
    return sg_mil_build_real_tensor(&l->b, SG_MIL_FP16, 4, (int64_t[]){1, channels, rows, columns}, &zero, 1);
}

uint32_t sg_ane_weight(struct sg_lowering *l, const struct sg_weight *w, enum sg_ane_form form, uint32_t rank,
                       const int64_t *dim)
{
    return sg_ane_weights(l, w, 1, form, rank, dim);
}

/* A blob that several operations of the program read becomes one constant. `program` tells whether the
 * value number that the blob remembers is of this program or of an earlier one. */
uint32_t sg_ane_weights(struct sg_lowering *l, const struct sg_weight *w, uint32_t n, enum sg_ane_form form, uint32_t rank,
                        const int64_t *dim)
{
    struct sg_ane_weight_blob *s;
    char name[32];
    if (l->b.status) return 0;
    l->b.status = sg_ane_blob_of(l->blobs, l->g, w, n, form, &s, &l->b.err);
    if (l->b.status) return 0;
    if (s->program != l->blobs->programs) {
        snprintf(name, sizeof name, "w%u", (unsigned)(s - l->blobs->list));
        if (s->quant.storage)
            s->value = sg_ane_quant_decode(&l->b, &s->quant, name, l->blobs->path, s->record, s->aux);
        else
            s->value = sg_mil_build_blob(&l->b, name, SG_MIL_FP16, rank, dim, l->blobs->path, s->record);
        s->program = l->blobs->programs;
    }
    return s->value;
}

uint32_t sg_ane_pattern_matrix(struct sg_lowering *l, int64_t n, int (*entry)(int64_t i, int64_t j, int64_t arg), int64_t arg)
{
    double *v = l->b.status ? NULL : sg_alloc((size_t)(n * n) * sizeof *v);
    if (!v) {
        if (!l->b.status) l->b.status = sg_no_memory("a constant", (size_t)(n * n) * sizeof *v, &l->b.err);
        return 0;
    }
    for (int64_t i = 0; i < n * n; i++) v[i] = entry(i / n, i % n, arg);
    uint32_t c = sg_mil_build_real_tensor(&l->b, SG_MIL_FP16, 4, (int64_t[]){1, 1, n, n}, v, (uint64_t)(n * n));
    sg_free(v);
    return c;
}

static int is_one(int64_t i, int64_t j, int64_t arg) { return (void)arg, i == j; }
uint32_t sg_ane_identity(struct sg_lowering *l, int64_t n) { return sg_ane_pattern_matrix(l, n, is_one, 0); }

/* Largest power of two that divides both `keys`, a power of two, and `last`. Reshaped to this width, the
 * channels of the state and the rows of the tensor have common boundaries, so the padding can be sliced off
 * by whole channels. */
static int64_t common_width(int64_t keys, int64_t last)
{
    int64_t g = 1;
    while (g < keys && last % (2 * g) == 0) g *= 2;
    return g;
}

uint32_t sg_ane_unpack(struct sg_lowering *l, int32_t slot, uint32_t rank, const int64_t *dim)
{
    int64_t keys = l->shape->keys, n = 1, g = common_width(keys, dim[rank - 1]);
    for (uint32_t i = 0; i < rank; i++) n *= dim[i];
    int64_t channels = (n + keys - 1) / keys, flat = channels * keys / g;
    if (flat > FLAT_MAX && !l->b.status)
        l->b.status = sg_fail(&l->b.err, SEGUE_EUNSUPPORTED,
                              "lower: layer %u: its state of %lld elements does not fit %d channels; use another unit",
                              l->g->slots[slot].layer, (long long)n, FLAT_MAX);
    uint32_t x = sg_mil_build_reshape(&l->b, l->slot_in[slot], 4, (int64_t[]){1, flat, 1, g});
    x = sg_ane_channels(l, x, 0, n / g);
    return sg_mil_build_reshape(&l->b, x, rank, dim);
}

/* The last channel of the slot is filled up with zeros. */
void sg_ane_pack(struct sg_lowering *l, int32_t slot, uint32_t x, int64_t last)
{
    int64_t keys = l->shape->keys, g = common_width(keys, last), n = 1;
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    for (uint32_t i = 0; i < t->rank; i++) n *= t->dim[i];
    int64_t channels = (n + keys - 1) / keys, flat = channels * keys / g;
    x = sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, n / g, 1, g});
    if (flat > n / g) {
        uint32_t parts[2] = {x, sg_ane_zeros(l, flat - n / g, 1, g)};
        x = sg_mil_build_concat(&l->b, parts, 2, 1);
    }
    l->slot_out[slot] = sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, channels, 1, keys});
}

/* Emits the activation by its MIL name; sg_pass_legal replaces it with operations that engines compute
 * accurately. */
uint32_t sg_ane_act(struct sg_lowering *l, enum sg_act act, uint32_t x)
{
    static const char *const modes[] = {[SG_ACT_GELU] = "EXACT", [SG_ACT_GELU_TANH] = "TANH_APPROXIMATION",
                                        [SG_ACT_GELU_QUICK] = "SIGMOID_APPROXIMATION"};
    struct sg_mil_operand gelu[2] = {{.name = "x", .value = x}, {.name = "mode"}};
    uint32_t y;
    switch (act) {
    case SG_ACT_SILU: return SG_ANE_UN("silu", x);
    case SG_ACT_GELU:
    case SG_ACT_GELU_TANH:
    case SG_ACT_GELU_QUICK:
        gelu[1].value = sg_mil_build_text(&l->b, modes[act]);
        return sg_mil_build_op(&l->b, "gelu", gelu, 2, 1);
    case SG_ACT_RELU: return SG_ANE_UN("relu", x);
    case SG_ACT_RELU2:
        y = SG_ANE_UN("relu", x);
        return SG_ANE_BIN("mul", y, y);
    case SG_ACT_SIGMOID: return SG_ANE_UN("sigmoid", x);
    case SG_ACT_TANH: return SG_ANE_UN("tanh", x);
    default: return x;
    }
}

/* x is divided by its largest magnitude m first, so that squares are in [0, 1] and cannot overflow fp16
 * however large the residual stream is. eps is divided by m^2 to match; the scale cancels in the quotient.
 * The lower bounds keep the inverse finite for x = 0. */
uint32_t sg_ane_normalize(struct sg_lowering *l, uint32_t x, int64_t axis, double mean_scale, double eps, int centered)
{
    uint32_t max = sg_mil_build_reduce(&l->b, "reduce_max", SG_ANE_UN("abs", x), axis);
    uint32_t inverse = SG_ANE_BIN("real_div", SG_ANE_NUM(1), SG_ANE_BIN("maximum", max, SG_ANE_NUM(MAX_ABS_MIN)));
    uint32_t y = SG_ANE_BIN("mul", x, inverse);
    if (centered) {
        uint32_t sum = sg_mil_build_reduce(&l->b, "reduce_sum", y, axis);
        y = SG_ANE_BIN("sub", y, SG_ANE_BIN("mul", sum, SG_ANE_NUM(mean_scale)));
    }
    uint32_t squares = sg_mil_build_reduce(&l->b, "reduce_sum", SG_ANE_BIN("mul", y, y), axis);
    uint32_t e = SG_ANE_BIN("mul", inverse, SG_ANE_NUM(sqrt(eps)));
    uint32_t sum = SG_ANE_BIN("add", SG_ANE_BIN("mul", squares, SG_ANE_NUM(mean_scale)), SG_ANE_BIN("mul", e, e));
    sum = SG_ANE_BIN("maximum", sum, SG_ANE_NUM(SQUARE_MIN));
    return SG_ANE_BIN("mul", y, SG_ANE_BIN("pow", sum, SG_ANE_NUM(-0.5)));
}
