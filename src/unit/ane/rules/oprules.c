/* oprules.c: see oprules.h. One function for each group of rules, each short; the list at the end is run for
 * every operation. SPDX-License-Identifier: MIT */
#include "unit/ane/rules/oprules.h"

#include <stdlib.h>
#include <string.h>

#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milops.h"

struct found {
    struct sg_ane_check *c;
    const struct sg_mil_op *op;
    const char *kind;
};

static void fault(const struct found *s, uint32_t constraint, const char *text)
{
    struct sg_mil_place at = {.line = s->op->line,
                              .column = s->op->column,
                              .constraint = constraint,
                              .op = s->c->f->values[s->op->first].name};
    sg_mil_fault_add(s->c->faults, &at, "%s", text);
}

static int is(const struct found *s, const char *kind) { return !strcmp(s->kind, kind); }
static const struct sg_mil_type *type(const struct found *s, const char *arg)
{
    return sg_mil_arg_type(s->c->f, sg_mil_arg_find(s->op, arg));
}
static const struct sg_mil_type *result(const struct found *s) { return &s->c->f->values[s->op->first].type; }

/* 0: targets; the operation sets of the function's own target. */
static void target(const struct found *s)
{
    const char *own = s->op->target;
    int has = own && !strncmp(own, "ios", 3) ? atoi(own + 3) : s->c->target;
    int seen = is(s, "scaled_dot_product_attention") && !s->c->profile->doubted_refused; /* MX compiles it for ios16 */
    if (s->op->info->since > has && !seen)
        fault(s, 0,
              "the operation is not in the function's target; raise it to ios18, or write it otherwise");
    if (is(s, "constexpr_lut_to_dense") && sg_mil_arg_find(s->op, "indices") && has < 18 &&
        !sg_mil_constant(s->c->f, s->op, "shape"))
        fault(s, 0, "indices and lut as arguments need ios18; give them as attributes with shape");
}

/* 9 */
static void concat(const struct found *s)
{
    int64_t axis[2 * SG_MIL_DIMS];
    uint32_t n;
    const struct sg_mil_arg *values = sg_mil_arg_find(s->op, "values");
    if (!is(s, "concat")) return;
    if (!sg_mil_wholes(s->c->f, s->op, "axis", axis, &n) || axis[0] < 0)
        fault(s, 9, "the axis is negative or not constant; count it from the front");
    if (!sg_mil_arg_find(s->op, "interleave"))
        fault(s, 9, "interleave is missing; give it as a constant false");
    if (values && (values->kind != SG_MIL_LIST || values->n < 2))
        fault(s, 9, "one value only; pass it on as it is");
    if (s->c->profile->concat_refused) fault(s, 9, "this profile refuses every concat; return the parts");
}

/* 10 */
static void path(const struct found *s)
{
    const char *to = is(s, "cast") ? sg_mil_word_of(s->c->f, s->op, "dtype") : NULL;
    static const char *const casts[] = {"fp16", "fp32", "bool", "int8", "uint8", "int16"};
    int known = !to;
    for (size_t i = 0; to && i < sizeof casts / sizeof *casts; i++) known |= !strcmp(casts[i], to);
    if (!known)
        fault(s, 10,
              "cast to this type has no path to the engine; fp16, fp32, bool, int8, uint8 and int16 have");
    if (!(s->op->info->flags & SG_MIL_DOUBTED) || !s->c->profile->doubted_refused) return;
    uint32_t both = SG_ANE_HAS_MATMUL | SG_ANE_HAS_SOFTMAX;
    if (is(s, "split") && (s->c->has & both) != both) return;
    if (is(s, "gather") && sg_mil_arg_literal(s->c->f, sg_mil_arg_find(s->op, "indices"))) return;
    fault(s, 10,
          is(s, "gelu")    ? "gelu is refused by some compilers; write it from tanh or erf"
          : is(s, "split") ? "split beside matmul and softmax is refused by some compilers; use slice_by_size"
          : is(s, "gather")
              ? "gather with computed indices is refused by some compilers; look rows up outside"
              : "the operation is refused by some compilers; write it from others");
}

/* 11, 12, 14, 42 */
static void arguments(const struct found *s)
{
    if ((is(s, "rsqrt") || is(s, "log") || is(s, "inverse")) && !sg_mil_arg_find(s->op, "epsilon"))
        fault(s, 11, "epsilon is missing, and the compiler then fails in silence; give it, or use pow");
    if (is(s, "conv") && sg_mil_arg_find(s->op, "bias"))
        fault(s, 12, "a bias is refused on this path; add a [1, C, 1, 1] constant after it");
    if (is(s, "scaled_dot_product_attention") && sg_mil_arg_find(s->op, "attn_mask"))
        fault(s, 14, "the mask is ignored without an error; write attention from matmul, add and softmax");
    if (is(s, "reduce_mean") && s->c->profile->mean_refused && s->c->target >= 18)
        fault(s, 42,
              "reduce_mean fails in functions for ios18 on some engines; use reduce_sum and a product");
}

/* 13 */
static void named(const struct found *s)
{
    if ((s->op->info->flags & SG_MIL_NAMED) && s->c->p->dialect != SG_MIL_BUFFER)
        for (uint32_t i = 0; i < s->op->args_n; i++)
            if (s->op->args[i].kind == SG_MIL_LITERAL) {
                fault(s, 13, "a constant stands inline; name it by a const of its own");
                break;
            }
    const struct sg_mil_literal *val = is(s, "const") ? sg_mil_attr_find(s->op, "val") : NULL;
    uint8_t class = val ? sg_mil_dtype_info((enum sg_mil_dtype)val->type.dtype)->class : SG_MIL_REAL;
    if (val && val->kind == SG_MIL_BLOB && class != SG_MIL_REAL && sg_mil_elements(&val->type) <= SG_MIL_DIMS)
        fault(s, 13, "small whole numbers must stand in the text, not in a blob file");
}

/* 20 */
static void working_set(const struct found *s)
{
    uint64_t sum = 0, bytes;
    if (is(s, "const") || !strncmp(s->kind, "constexpr_", 10)) return;
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
    struct sg_mil_place at = {.line = s->op->line,
                              .column = s->op->column,
                              .constraint = 20,
                              .advice = 1,
                              .op = s->c->f->values[s->op->first].name};
    sg_mil_fault_add(s->c->faults, &at,
                     "reads and writes %llu bytes, more than the engine's %llu; it will be slower",
                     (unsigned long long)sum, (unsigned long long)s->c->profile->sram_bytes);
}

/* 28 */
static void conv_bounds(const struct found *s)
{
    const struct sg_mil_type *w = type(s, "weight");
    if (!is(s, "conv")) return;
    if ((uint32_t)w->dim[3] > s->c->profile->kernel_w)
        fault(s, 28, "the kernel is wider than the engine's; cut it");
    if ((uint32_t)w->dim[2] > s->c->profile->kernel_h)
        fault(s, 28, "the kernel is higher than the engine's; cut it");
}

static void shape_bounds(const struct found *s)
{
    int64_t v[2 * SG_MIL_DIMS];
    uint32_t n;
    const struct sg_mil_type *x = type(s, "x");
    if (is(s, "transpose"))
        for (uint32_t i = 0; i < x->rank; i++)
            if ((uint32_t)x->dim[i] > s->c->profile->transpose_dim)
                fault(s, 28, "a dimension is longer than the engine transposes; cut it");
    if (is(s, "reduce_argmax") || is(s, "reduce_argmin")) {
        int64_t axis = sg_mil_whole(s->c->f, s->op, "axis", -1);
        if ((uint32_t)x->dim[axis < 0 ? axis + x->rank : axis] > s->c->profile->arg_axis)
            fault(s, 28, "the axis is longer than the engine's; cut it");
    }
    if (is(s, "pad") && sg_mil_wholes(s->c->f, s->op, "pad", v, &n))
        for (uint32_t i = 0; i + 4 < n; i++)
            if (v[i]) {
                fault(s, 28, "padding outside height and width; use concat");
                break;
            }
    if (is(s, "tile") && sg_mil_wholes(s->c->f, s->op, "reps", v, &n))
        for (uint32_t i = 0; i < n; i++)
            if (v[i] != 1 && v[i] != 2 && v[i] != 3 && v[i] != 4 && v[i] != 8) {
                fault(s, 28, "a factor other than 1, 2, 3, 4 or 8; use several tiles");
                break;
            }
    if (is(s, "layer_norm")) {
        uint32_t axes = sg_mil_axes(s->c->f, s->op, x->rank);
        uint64_t all = 1;
        for (uint32_t i = 0; i < x->rank; i++)
            if (axes >> i & 1) all *= (uint64_t)x->dim[i];
        if (all >= 10240) fault(s, 28, "a norm over 10240 numbers or more fails; write it from reduce_sum");
    }
}

/* 29: only values decide; the place is worth a word where an engine distorts them. */
static void last_slice(const struct found *s)
{
    const struct sg_mil_type *x = type(s, "x");
    int64_t v[2 * SG_MIL_DIMS];
    uint32_t n;
    if (!s->c->profile->slice_limit || (!is(s, "slice_by_size") && !is(s, "slice_by_index"))) return;
    if (!sg_mil_wholes(s->c->f, s->op, "begin", v, &n) || n != x->rank || !n || !v[n - 1]) return;
    struct sg_mil_place at = {.line = s->op->line,
                              .column = s->op->column,
                              .constraint = 29,
                              .advice = 1,
                              .op = s->c->f->values[s->op->first].name};
    sg_mil_fault_add(s->c->faults, &at,
                     "values above %u become infinite in this slice; slice the channels, or scale before",
                     s->c->profile->slice_limit);
}

/* 28: a matmul reads matrices that are not deep (axis 2 of 5), and a row of its result fits the kernel memory. */
static void product_bounds(const struct found *s)
{
    const struct sg_mil_type *out = result(s), *y = type(s, "y"), *x = type(s, "x");
    if (!is(s, "matmul")) return;
    if ((x->rank == 5 && x->dim[2] > 1) || (y->rank == 5 && y->dim[2] > 1))
        fault(s, 28, "the matrices lie along depth (axis 2 of 5); put them along channels");
    if ((uint64_t)out->dim[out->rank - 1] * 2 > s->c->profile->matmul_bytes)
        fault(s, 28, "a row of the result is longer than the kernel memory; cut it");
}

/* 33, 35, 36 */
static void others(const struct found *s)
{
    const struct sg_mil_type *x = type(s, "x");
    if (is(s, "softmax") && s->c->profile->softmax_power) {
        int64_t axis = sg_mil_whole(s->c->f, s->op, "axis", -1);
        int32_t dim = x->dim[axis < 0 ? axis + x->rank : axis];
        if (dim & (dim - 1))
            fault(s, 33,
                  "the axis is no power of two, which some engines refuse as they run; pad it and mask");
    }
    const struct sg_mil_arg *w = sg_mil_arg_find(s->op, "weight");
    if (is(s, "conv") && w->kind == SG_MIL_REF && !sg_ane_is_weight(s->c->f, w->v.ref)) {
        if (x->dim[0] > 1)
            fault(s, 35, "computed weights with a batch above 1 crash the compiler's service; use matmul");
        if (sg_mil_whole(s->c->f, s->op, "groups", 1) > 1) fault(s, 28, "groups need constant weights");
    }
    const struct sg_mil_type *out = result(s);
    if (s->c->profile->flat_dim && (s->op->info->flags & SG_MIL_ELEMENTWISE) && out->rank <= 2 && out->rank &&
        (out->rank == 1 || out->dim[0] == 1) && (uint32_t)out->dim[out->rank - 1] > s->c->profile->flat_dim)
        fault(s, 36,
              "a flat elementwise operation of this length hangs some engines; shape it as [1, C, 1, S]");
}

static void (*const groups[])(const struct found *) = {
    target, concat, path, arguments, named, working_set, conv_bounds, shape_bounds, product_bounds, last_slice, others};

void sg_ane_check_op(struct sg_ane_check *c, const struct sg_mil_op *op)
{
    struct found s = {c, op, op->kind};
    if (!op->info || op->info->rule == SG_MIL_T_NONE) return; /* the types' check named it */
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) groups[i](&s);
}
