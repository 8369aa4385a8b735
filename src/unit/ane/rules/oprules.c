/* oprules.c: see oprules.h. One function per group of constraints; the list at the end of the file runs for
 * every operation. A function returns without a finding when the operation is of another kind.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/rules/oprules.h"

#include <stdlib.h>
#include <string.h>

#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milops.h"

/* The operation under check. */
struct op_check {
    struct sg_ane_check *c;
    const struct sg_mil_op *op;
    const char *kind;
};

/* Adds an error at the operation, named after its first result. */
static void report(const struct op_check *s, uint32_t constraint, const char *text)
{
    struct sg_mil_loc at = {.line = s->op->line,
                              .column = s->op->column,
                              .constraint = constraint,
                              .op = s->c->f->values[s->op->first].name};
    sg_mil_fault_add(s->c->faults, &at, "%s", text);
}

static int is_kind(const struct op_check *s, const char *kind) { return !strcmp(s->kind, kind); }

/* Type of an argument; NULL: absent or a list. */
static const struct sg_mil_type *arg_type(const struct op_check *s, const char *arg)
{
    return sg_mil_arg_type(s->c->f, sg_mil_arg_find(s->op, arg));
}
/* Type of the first result. */
static const struct sg_mil_type *result_type(const struct op_check *s) { return &s->c->f->values[s->op->first].type; }

/* No constraint number: operations must exist in the operation set of the target (coremltools: quantize and
 * dequantize from ios17, slice_update and others from ios18). The target of the operation overrides that of
 * its function. */
static void check_target(const struct op_check *s)
{
    const char *name = s->op->target;
    int has = name && !strncmp(name, "ios", 3) ? atoi(name + 3) : s->c->target;
    /* One source compiles scaled_dot_product_attention for ios16. */
    int tolerated = is_kind(s, "scaled_dot_product_attention") && !s->c->profile->doubted_refused;
    if (s->op->info->since > has && !tolerated)
        report(s, 0,
               "the function's target does not have this operation; raise it to ios18 or use other operations");
    if (is_kind(s, "constexpr_lut_to_dense") && sg_mil_arg_find(s->op, "indices") && has < 18 &&
        !sg_mil_const_literal(s->c->f, s->op, "shape"))
        report(s, 0, "indices and lut as arguments need ios18; give them as attributes with shape");
}

/* Constraint 9. The compiler's validator requires a constant axis counted from the front and at least two
 * values; interleave has no default on the private interface. */
static void check_concat(const struct op_check *s)
{
    int64_t axis[2 * SG_MIL_DIMS];
    uint32_t n;
    const struct sg_mil_arg *values = sg_mil_arg_find(s->op, "values");
    if (!is_kind(s, "concat")) return;
    if (!sg_mil_const_ints(s->c->f, s->op, "axis", axis, &n) || axis[0] < 0)
        report(s, 9, "the axis is negative or not constant; count it from the front");
    if (!sg_mil_arg_find(s->op, "interleave"))
        report(s, 9, "interleave is missing; give it as a constant false");
    if (s->c->profile->doubted_refused && values && (values->kind != SG_MIL_LIST || values->n < 2))
        report(s, 9, "concat of a single value; use the value itself");
    if (s->c->profile->concat_refused) report(s, 9, "this profile refuses every concat; return the parts");
}

/* Constraint 10: types that cast supports, gather, and operations that the sources disagree about. split fails only in
 * functions that also have matmul and softmax. */
static void check_path(const struct op_check *s)
{
    const char *to = is_kind(s, "cast") ? sg_mil_const_text(s->c->f, s->op, "dtype") : NULL;
    static const char *const casts[] = {"fp16", "fp32", "bool", "int8", "uint8", "int16"};
    /* Types that engines can cast to; known stays 1 for operations other than cast. */
    int known = !to;
    for (size_t i = 0; to && i < sizeof casts / sizeof *casts; i++) known |= !strcmp(casts[i], to);
    if (!known)
        report(s, 10,
               "the engine cannot cast to this type; it supports fp16, fp32, bool, int8, uint8 and int16");
    if (is_kind(s, "gather") && s->c->profile->gather_refused) {
        report(s, 10, "gather is refused, also with constant indices; gather on the CPU or slice");
        return;
    }
    if (!(s->op->info->flags & SG_MIL_UNCERTAIN) || !s->c->profile->doubted_refused) return;
    /* Exceptions: combinations that are not known to fail. */
    uint32_t needed = SG_ANE_HAS_MATMUL | SG_ANE_HAS_SOFTMAX;
    if (is_kind(s, "split") && (s->c->has & needed) != needed) return;
    report(s, 10,
           is_kind(s, "gelu")    ? "gelu is refused by some compilers; compute it with tanh or erf"
          : is_kind(s, "split") ? "split in a function with matmul and softmax is refused by some compilers; use slice_by_size"
              : "the operation is refused by some compilers; express it with other operations");
}

/* Constraints 11, 12, 14 and 42: arguments that must be present or absent. */
static void check_args(const struct op_check *s)
{
    if ((is_kind(s, "rsqrt") || is_kind(s, "log") || is_kind(s, "inverse")) && !sg_mil_arg_find(s->op, "epsilon"))
        report(s, 11, "epsilon is missing, and the compiler then fails without a message; give it or use pow");
    const struct sg_mil_arg *bias = is_kind(s, "conv") ? sg_mil_arg_find(s->op, "bias") : NULL;
    const struct sg_mil_literal *numbers = bias ? sg_mil_arg_literal(s->c->f, bias) : NULL;
    if (bias && (s->c->profile->bias_refused || !numbers || numbers->kind != SG_MIL_BLOB))
        report(s, 12, "a bias that is not in a blob file is refused; add a [1, C, 1, 1] constant to the result");
    for (int i = 0; is_kind(s, "clip") && i < 2; i++)
        if (arg_type(s, i ? "beta" : "alpha")->dtype != arg_type(s, "x")->dtype)
            report(s, 53, "a bound of another type than the operand is refused; write it in the type of the operand");
    if (!strncmp(s->kind, "constexpr_", 10) && s->c->profile->constexpr_refused)
        report(s, 52, "compressed constants fail in a text for the private interface; write a package, or use fp16");
    if (is_kind(s, "scaled_dot_product_attention") && sg_mil_arg_find(s->op, "attn_mask"))
        report(s, 14, "the mask is ignored without an error; compute attention with matmul, add and softmax");
    if (is_kind(s, "reduce_mean") && s->c->profile->mean_refused && s->c->target >= 18)
        report(s, 42,
               "reduce_mean fails in functions for ios18 on some engines; use reduce_sum and a product");
}

/* Constraint 13: some operations accept only named constants outside the buffer dialect, and small integer
 * tensors (axes, shapes) must be written in the text instead of a blob. */
static void check_named_consts(const struct op_check *s)
{
    if ((s->op->info->flags & SG_MIL_NAMED_CONSTS) && s->c->p->dialect != SG_MIL_BUFFER)
        for (uint32_t i = 0; i < s->op->args_n; i++)
            if (s->op->args[i].kind == SG_MIL_LITERAL &&
                (s->c->profile->inline_refused || strcmp(s->op->args[i].name, "keep_dims") != 0)) {
                report(s, 13, "a constant is written inline; define it as a named const");
                break;
            }
    const struct sg_mil_literal *val = is_kind(s, "const") ? sg_mil_attr_find(s->op, "val") : NULL;
    uint8_t class = val ? sg_mil_dtype_info((enum sg_mil_dtype)val->type.dtype)->class : SG_MIL_REAL;
    /* Lists of up to SG_MIL_DIMS integers are axes, shapes and the like. */
    if (val && val->kind == SG_MIL_BLOB && class != SG_MIL_REAL && sg_mil_elements(&val->type) <= SG_MIL_DIMS)
        report(s, 13, "small integer constants must be in the text, not in a blob file");
}

/* Constraint 20, advice: the bytes of all operands and results. Inline literals are small and not counted. */
static void check_working_set(const struct op_check *s)
{
    uint64_t sum = 0, bytes;
    if (sg_mil_is_const_value(s->c->f, s->op->first)) return;
    /* One value per argument, or all values of a list. */
    for (uint32_t i = 0; i < s->op->args_n; i++) {
        const struct sg_mil_arg *a = &s->op->args[i];
        for (uint32_t r = 0; a->kind != SG_MIL_LITERAL && r < (a->kind == SG_MIL_LIST ? a->n : 1); r++)
            if (!sg_mil_type_size(&s->c->f->values[a->kind == SG_MIL_LIST ? a->v.refs[r] : a->v.ref].type,
                                  NULL, &bytes, NULL))
                sum += bytes;
    }
    for (uint32_t i = 0; i < s->op->outputs; i++)
        if (!sg_mil_type_size(&s->c->f->values[s->op->first + i].type, NULL, &bytes, NULL)) sum += bytes;
    if (sum <= s->c->profile->sram_bytes) return;
    struct sg_mil_loc at = {.line = s->op->line,
                              .column = s->op->column,
                              .constraint = 20,
                              .advice = 1,
                              .op = s->c->f->values[s->op->first].name};
    sg_mil_fault_add(s->c->faults, &at,
                     "operands and results have %llu bytes, the engine's memory %llu; the operation will be slower",
                     (unsigned long long)sum, (unsigned long long)s->c->profile->sram_bytes);
}

/* Constraint 28: kernel size of a convolution, weight [O, I, h, w]. */
static void check_conv(const struct op_check *s)
{
    const struct sg_mil_type *w = arg_type(s, "weight");
    if (!is_kind(s, "conv")) return;
    if ((uint32_t)w->dim[3] > s->c->profile->kernel_w)
        report(s, 28, "the kernel is wider than the engine supports; split it");
    if ((uint32_t)w->dim[2] > s->c->profile->kernel_h)
        report(s, 28, "the kernel is higher than the engine supports; split it");
}

/* Constraint 28: extents of transpose, argmax and argmin, pad, tile and layer_norm. */
static void check_shapes(const struct op_check *s)
{
    int64_t v[2 * SG_MIL_DIMS];
    uint32_t n;
    const struct sg_mil_type *x = arg_type(s, "x");
    if (is_kind(s, "transpose"))
        for (uint32_t i = 0; i < x->rank; i++)
            if ((uint32_t)x->dim[i] > s->c->profile->transpose_dim)
                report(s, 28, "a dimension is longer than the engine can transpose; split it");
    /* The axis was checked by type inference, so it is in range after the correction of negative ones. */
    if (is_kind(s, "reduce_argmax") || is_kind(s, "reduce_argmin")) {
        int64_t axis = sg_mil_const_int(s->c->f, s->op, "axis", -1);
        if ((uint32_t)x->dim[axis < 0 ? axis + x->rank : axis] > s->c->profile->arg_axis)
            report(s, 28, "the axis is longer than the engine supports; split it");
    }
    if (is_kind(s, "pad") && sg_mil_const_ints(s->c->f, s->op, "pad", v, &n))
        for (uint32_t i = 0; i + 4 < n; i++) /* the last four numbers are (before, after) of H and W */
            if (v[i]) {
                report(s, 28, "padding of an axis other than height and width; use concat");
                break;
            }
    if (is_kind(s, "tile") && s->c->profile->doubted_refused && sg_mil_const_ints(s->c->f, s->op, "reps", v, &n))
        for (uint32_t i = 0; i < n; i++)
            if (v[i] != 1 && v[i] != 2 && v[i] != 3 && v[i] != 4 && v[i] != 8) {
                report(s, 28, "a factor other than 1, 2, 3, 4 or 8; use several tile operations");
                break;
            }
    /* One source reports failures from 10240 elements on. */
    if (is_kind(s, "layer_norm")) {
        uint32_t axes = sg_mil_const_axes(s->c->f, s->op, x->rank);
        uint64_t all = 1;
        for (uint32_t i = 0; i < x->rank; i++)
            if (axes >> i & 1) all *= (uint64_t)x->dim[i];
        if (all >= 10240) report(s, 28, "a norm over 10240 or more elements fails; compute it with reduce_sum");
    }
}

/* Constraint 29, advice: whether the engine distorts the slice depends on the values, which are not known
 * here. */
static void check_last_slice(const struct op_check *s)
{
    const struct sg_mil_type *x = arg_type(s, "x");
    int64_t v[2 * SG_MIL_DIMS];
    uint32_t n;
    if (!s->c->profile->slice_limit || (!is_kind(s, "slice_by_size") && !is_kind(s, "slice_by_index"))) return;
    if (!sg_mil_const_ints(s->c->f, s->op, "begin", v, &n) || n != x->rank || !n || !v[n - 1]) return;
    struct sg_mil_loc at = {.line = s->op->line,
                              .column = s->op->column,
                              .constraint = 29,
                              .advice = 1,
                              .op = s->c->f->values[s->op->first].name};
    sg_mil_fault_add(s->c->faults, &at,
                     "values above %u become infinite in this slice; slice along the channels or scale first",
                     s->c->profile->slice_limit);
}

/* Constraint 28: the depth axis (axis 2 of 5) must be 1, and a row of the fp16 result must fit the kernel
 * memory. */
static void check_matmul(const struct op_check *s)
{
    const struct sg_mil_type *out = result_type(s), *y = arg_type(s, "y"), *x = arg_type(s, "x");
    if (!is_kind(s, "matmul")) return;
    if ((x->rank == 5 && x->dim[2] > 1) || (y->rank == 5 && y->dim[2] > 1))
        report(s, 28, "the depth axis (axis 2 of 5) is not 1; move it to the channels");
    if ((uint64_t)out->dim[out->rank - 1] * 2 > s->c->profile->matmul_bytes)
        report(s, 28, "a row of the result exceeds the kernel memory; split it");
    /* Refused on H13 and H14 with 128 rows; 32 and 256 rows pass. */
    const struct sg_mil_arg *arg = sg_mil_arg_find(s->op, "y");
    int64_t k = (int64_t)x->dim[x->rank - (sg_mil_const_int(s->c->f, s->op, "transpose_x", 0) ? 2 : 1)];
    if (s->c->profile->product_refused && sg_mil_arg_literal(s->c->f, arg) && out->dim[out->rank - 2] == 128 && k == 8192)
        report(s, 49, "a product of 128 rows with a constant of 8192 rows is refused; use 64 or 256 rows");
}

/* Constraint 54, and 56, advice: how far the result is off depends on the values. */
static void check_known_faults(const struct op_check *s)
{
    struct sg_mil_loc at = {.line = s->op->line, .column = s->op->column, .constraint = 56, .advice = 1,
                            .op = s->c->f->values[s->op->first].name};
    if (is_kind(s, "tile") && s->c->profile->tile_breaks)
        report(s, 54, "after a tile has run, every later evaluate of the process fails with 0x1d; use concat");
    if (is_kind(s, "atan") && s->c->profile->tables)
        sg_mil_fault_add(s->c->faults, &at, "errors reach 0.04 to 0.12 where the argument is reduced; use another formula");
}

/* Constraint 33 (softmax axis), 35, 55 and 28 (convolution with weights computed at run time), 36 (long flat
 * elementwise operations). */
static void check_misc(const struct op_check *s)
{
    const struct sg_mil_type *x = arg_type(s, "x");
    if (is_kind(s, "softmax") && s->c->profile->softmax_power) {
        int64_t axis = sg_mil_const_int(s->c->f, s->op, "axis", -1);
        int32_t dim = x->dim[axis < 0 ? axis + x->rank : axis];
        if (dim & (dim - 1)) /* more than one bit: no power of two */
            report(s, 33,
                   "the axis is not a power of two, which some engines refuse at run time; pad and mask it");
    }
    /* A weight that is neither inline nor the result of a const operation is computed at run time. */
    const struct sg_mil_arg *w = sg_mil_arg_find(s->op, "weight");
    if (is_kind(s, "conv") && w->kind == SG_MIL_REF && !sg_mil_is_const_value(s->c->f, w->v.ref)) {
        if (x->dim[0] > 1)
            report(s, 35, "computed weights with a batch above 1 crash the compiler service; use matmul");
        if (s->c->profile->weights_ignored) report(s, 55, "the engine does not read computed weights; use matmul");
        if (sg_mil_const_int(s->c->f, s->op, "groups", 1) > 1) report(s, 28, "groups need constant weights");
    }
    /* Flat: rank 1, or [1, N]. */
    const struct sg_mil_type *out = result_type(s);
    if (s->c->profile->flat_dim && (s->op->info->flags & SG_MIL_ELEMENTWISE) && out->rank <= 2 && out->rank &&
        (out->rank == 1 || out->dim[0] == 1) && (uint32_t)out->dim[out->rank - 1] > s->c->profile->flat_dim)
        report(s, 36,
               "a flat elementwise operation of this length hangs some engines; shape it as [1, C, 1, S]");
}

/* All checks, in the order in which their findings are reported for an operation. */
static void (*const checks[])(const struct op_check *) = {
    check_target, check_concat, check_path,   check_args,       check_named_consts, check_working_set,
    check_conv,   check_shapes, check_matmul, check_last_slice, check_misc,         check_known_faults};

void sg_ane_check_op(struct sg_ane_check *c, const struct sg_mil_op *op)
{
    struct op_check s = {c, op, op->kind};
    if (!op->info || op->info->rule == SG_MIL_T_NONE) return; /* reported by sg_mil_check_types */
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) checks[i](&s);
}
