/* npu_elements.c: handlers of elementwise operations: functions of one operand, broadcast operations,
 * casts, quantization. The work is divided by elements, so results do not depend on the number of
 * threads. See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milops.h"
#include "unit/ane/npu/npu_plan.h"

enum { CHUNK = 8192 };           /* elements of a work item */

/* --- one operand --- */

enum unary {
    U_SQUARE,
    U_SQRT,
    U_EXP,
    U_EXP2,
    U_ABS,
    U_SIGN,
    U_ERF,
    U_CEIL,
    U_FLOOR,
    U_ROUND,
    U_ATAN,
    U_RSQRT,
    U_LOG,
    U_INVERSE,
    U_CLIP,
    U_RELU,
    U_RELU6,
    U_SIGMOID,
    U_TANH,
    U_SILU,
    U_SOFTPLUS,
    U_SOFTSIGN,
    U_GELU,
    U_NOT,
    U_NONE
};
static const char *const unary_names[U_NONE] = {
    "square", "sqrt",    "exp",  "exp2",  "abs",      "sign",     "erf",  "ceil",
    "floor",  "round",   "atan", "rsqrt", "log",      "inverse",  "clip", "relu",
    "relu6",  "sigmoid", "tanh", "silu",  "softplus", "softsign", "gelu", "logical_not"};

struct unary_job {
    struct sg_npu_run *r;
    const float *x;
    float *out;
    uint64_t n;
    uint32_t value;
    enum unary code;
    float a, b;                  /* a: epsilon; clip: the bounds [a, b] */
    char form;                   /* of gelu, the first letter of its mode: E with erf, T with tanh, S with sigmoid */
};

/* Constants of gelu: sqrt(2 / pi), 1 / sqrt(2). */
static float gelu(float v, char form)
{
    if (form == 'S') return v / (1.0f + expf(-1.702f * v));
    return form == 'T' ? 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)))
                       : 0.5f * v * (1.0f + erff(v * 0.70710678f));
}

/* The table of a function. SG_NPU_FUNCTIONS: engines are not known to have one. log is computed from log2. */
static enum sg_npu_function table_of(const struct unary_job *j)
{
    switch (j->code) {
    case U_SIGMOID: return SG_NPU_SIGMOID;
    case U_TANH: return SG_NPU_TANH;
    case U_SILU: return SG_NPU_SILU;
    case U_GELU: return j->form == 'S' ? SG_NPU_GELU_SIGMOID : SG_NPU_GELU;
    case U_EXP2: return SG_NPU_EXP2;
    case U_LOG: return SG_NPU_LOG2;
    case U_SQRT: return SG_NPU_SQRT;
    case U_RSQRT: return SG_NPU_RSQRT;
    case U_INVERSE: return SG_NPU_INVERSE;
    default: return SG_NPU_FUNCTIONS;
    }
}

/* A function by its table, of x + epsilon. log(0) is that of the profile. */
static void by_table(const struct unary_job *j, enum sg_npu_function f, const float *x, float *out, size_t n)
{
    float zero = j->r->profile->log_zero, epsilon = j->code == U_LOG || j->code == U_RSQRT || j->code == U_INVERSE ? j->a : 0;
    for (size_t i = 0; i < n; i++) {
        float v = sg_npu_table_value(j->r->tables, f, x[i] + epsilon);
        out[i] = j->code != U_LOG ? v : zero < 0 && x[i] + epsilon == 0 ? zero : v * SG_NPU_LN2;
    }
}

/* Sigmoid, tanh, silu and gelu of n values. Sigmoid is 1 / (1 + e^-x), with exp_row. Tanh is 2
 * sigmoid(2x) - 1, but x - x^3/3 for |x| < 0.01, where that form cancels. Silu is 0 below -80, where
 * e^-x may be infinite. Blocks of 256 values fit the stack. */
static void activate(const struct unary_job *j, const float *x, float *out, size_t n)
{
    if (j->code == U_GELU) {
        for (size_t i = 0; i < n; i++) out[i] = gelu(x[i], j->form);
        return;
    }
    float e[256];
    for (size_t at = 0; at < n; at += 256) {
        size_t m = n - at < 256 ? n - at : 256;
        float scale = j->code == U_TANH ? -2.0f : -1.0f;
        for (size_t i = 0; i < m; i++) e[i] = scale * x[at + i];
        j->r->k->exp_row(e, e, m);
        for (size_t i = 0; i < m; i++) {
            float v = x[at + i], s = 1.0f / (1.0f + e[i]);
            out[at + i] = j->code == U_SIGMOID ? s
                          : j->code == U_SILU  ? (v < -80 ? 0 : v * s)
                          : fabsf(v) < 0.01f   ? v - v * v * v / 3
                                               : 2 * s - 1;
        }
    }
}

/* One case of unary_row: out[i] = expr of v = x[i]. */
#define EACH(expr)                   \
    for (size_t i = 0; i < n; i++) { \
        float v = x[i];              \
        out[i] = (expr);             \
    }                                \
    break

/* One function of n values. log_zero and exp_limit are deviations of an engine that a profile has. NaN
 * stays NaN in relu and relu6. a and b are read into locals, so that the compiler need not assume that
 * `out` changes them. */
static void unary_row(const struct unary_job *j, const float *x, float *out, size_t n)
{
    const struct sg_ane_profile *p = j->r->profile;
    float a = j->a, b = j->b, overflow = p->tables ? INFINITY : NAN; /* softplus and softsign of it are 0 on engines */
    if (j->r->tables && table_of(j) != SG_NPU_FUNCTIONS) {
        by_table(j, table_of(j), x, out, n);
        return;
    }
    switch (j->code) {
    case U_SQUARE:
        EACH(v * v);
    case U_SQRT:
        EACH(sqrtf(v));
    case U_EXP:
        sg_npu_exp(j->r, x, out, n);
        for (size_t i = 0; p->exp_limit > 0 && i < n; i++)
            if (x[i] >= p->exp_limit) out[i] = INFINITY;
        break;
    case U_EXP2:
        EACH(exp2f(v));
    case U_ABS:
        EACH(fabsf(v));
    case U_SIGN:
        EACH((float)((v > 0) - (v < 0)));
    case U_ERF:
        EACH(erff(v));
    case U_CEIL:
        EACH(ceilf(v));
    case U_FLOOR:
        EACH(floorf(v));
    case U_ROUND:
        EACH(roundf(v)); /* halves go away from zero, as measured on a device */
    case U_ATAN:
        EACH(atanf(v));
    case U_RSQRT:
        EACH(1.0f / sqrtf(v + a));
    case U_LOG:
        EACH(p->log_zero < 0 && v + a == 0 ? p->log_zero : logf(v + a));
    case U_INVERSE:
        EACH(1.0f / (v + a));
    case U_CLIP:
        EACH(v < a ? a : v > b ? b : v);
    case U_RELU:
        EACH(v > 0 ? v : v != v ? v : 0.0f);
    case U_RELU6:
        EACH(v > 6 ? 6.0f : v > 0 ? v : v != v ? v : 0.0f);
    case U_SOFTPLUS:
        EACH(v == overflow ? 0.0f : v > 20 ? v : log1pf(expf(v)));
    case U_SOFTSIGN:
        EACH(v == overflow ? 0.0f : v / (1.0f + fabsf(v)));
    case U_NOT:
        EACH(v == 0 ? 1.0f : 0.0f);
    default:
        activate(j, x, out, n);
    }
}

/* One chunk. */
static void unary_part(void *arg, uint32_t item, uint32_t thread)
{
    struct unary_job *j = arg;
    uint64_t from = (uint64_t)item * CHUNK;
    size_t n = (size_t)(j->n - from < CHUNK ? j->n - from : CHUNK);
    (void)thread;
    unary_row(j, j->x + from, j->out + from, n);
    sg_npu_round_result(j->r, j->value, j->out + from, n);
}

/* Handler of all functions of one operand. An epsilon that is absent has the default of MIL, which
 * depends on the function. */
segue_status sg_npu_unary(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    const struct sg_mil_function *f = r->plan->f;
    struct unary_job j = {.r = r, .value = op->first, .code = U_NONE};
    for (int i = 0; i < U_NONE; i++)
        if (!strcmp(unary_names[i], op->kind)) j.code = (enum unary)i;
    uint32_t x = sg_npu_operand(r, op, "x");
    j.x = sg_npu_data(r, x);
    j.out = sg_npu_data(r, op->first);
    j.n = r->plan->slots[x].n;
    /* clip calls its bounds alpha and beta. */
    const struct sg_mil_literal *a = sg_mil_const_literal(f, op, j.code == U_CLIP ? "alpha" : "epsilon"),
                                *b = sg_mil_const_literal(f, op, "beta");
    float default_epsilon = j.code == U_RSQRT ? 1e-12f : j.code == U_INVERSE ? 1e-4f : j.code == U_LOG ? 1e-45f : 0;
    j.a = a ? (float)sg_mil_literal_real(a, 0) : default_epsilon;
    j.b = b ? (float)sg_mil_literal_real(b, 0) : 0;
    const char *mode = sg_mil_const_text(f, op, "mode");
    j.form = mode ? *mode : 'E';
    sg_npu_parallel(r, (j.n + CHUNK - 1) / CHUNK, unary_part, &j);
    return SEGUE_OK;
}

/* --- two and three operands, broadcast --- */

enum binary {
    B_ADD,
    B_SUB,
    B_MUL,
    B_DIV,
    B_MAX,
    B_MIN,
    B_FLOOR_DIV,
    B_POW,
    B_GREATER,
    B_GREATER_EQUAL,
    B_LESS,
    B_LESS_EQUAL,
    B_EQUAL,
    B_NOT_EQUAL,
    B_SELECT,
    B_NONE
};
static const char *const binary_names[B_NONE] = {
    "add",     "sub",           "mul",  "real_div",   "maximum", "minimum",   "floor_div", "pow",
    "greater", "greater_equal", "less", "less_equal", "equal",   "not_equal", "select"};

/* A broadcast operation of two or three operands. A stride of 0 repeats an operand along a dimension.
 * Adjacent dimensions that are contiguous in all operands are merged. The last dimension that remains
 * is a row, the unit of the inner loops; a work item is rows_each rows. */
struct broadcast_job {
    struct sg_npu_run *r;
    const float *in[3];
    float *out;
    uint32_t value, operands, ndim;
    int64_t dim[SG_MIL_DIMS], stride[3][SG_MIL_DIMS];
    uint64_t rows, rows_each;
    enum binary code;
    int by_table;                /* 1: real_div or pow of an engine */
};

/* Strides of an operand in the `ndim` dimensions of the result, aligned at the last one; 0 for
 * dimensions that the operand lacks or that have size 1. */
static void broadcast_strides(const struct sg_mil_type *t, uint32_t ndim, int64_t *stride)
{
    int64_t step = 1;
    for (uint32_t i = 0; i < ndim; i++) {
        int32_t dim = i < t->rank ? t->dim[t->rank - 1 - i] : 1;
        stride[ndim - 1 - i] = dim == 1 ? 0 : step;
        step *= dim;
    }
}

/* Merges dimension i into i - 1 where stride[i - 1] is stride[i] * dim[i] in every operand; two strides
 * of 0 are such a case. */
static void merge_dims(struct broadcast_job *j)
{
    for (uint32_t i = j->ndim; i-- > 1;) {
        int alike = 1;
        for (uint32_t o = 0; o < j->operands; o++)
            alike &= j->stride[o][i - 1] == j->stride[o][i] * j->dim[i];
        if (!alike) continue;
        j->dim[i - 1] *= j->dim[i];
        for (uint32_t o = 0; o < j->operands; o++) j->stride[o][i - 1] = j->stride[o][i];
        for (uint32_t k = i; k + 1 < j->ndim; k++) {
            j->dim[k] = j->dim[k + 1];
            for (uint32_t o = 0; o < j->operands; o++) j->stride[o][k] = j->stride[o][k + 1];
        }
        j->ndim--;
    }
}

/* One case of binary_row: out[i] = expr of a and b. Dense operands have a separate loop, which the
 * compiler vectorizes. */
#define PAIR(expr)                              \
    if (sx == 1 && sy == 1)                     \
        for (int64_t i = 0; i < n; i++) {       \
            float a = x[i], b = y[i];           \
            out[i] = (expr);                    \
        }                                       \
    else                                        \
        for (int64_t i = 0; i < n; i++) {       \
            float a = x[i * sx], b = y[i * sy]; \
            out[i] = (expr);                    \
        }                                       \
    break

/* One row of a binary operation. maximum and minimum give NaN when an operand is NaN. The exponents
 * -0.5 and 2 of pow, which norms use, are computed as 1 / sqrt(a) and a * a. */
static void binary_row(enum binary code, const float *x, int64_t sx, const float *y, int64_t sy, float *out,
                     int64_t n)
{
    switch (code) {
    case B_ADD:
        PAIR(a + b);
    case B_SUB:
        PAIR(a - b);
    case B_MUL:
        PAIR(a * b);
    case B_DIV:
        PAIR(a / b);
    case B_MAX:
        PAIR(a != a || a > b ? a : b);
    case B_MIN:
        PAIR(a != a || a < b ? a : b);
    case B_FLOOR_DIV:
        PAIR(floorf(a / b));
    case B_GREATER:
        PAIR(a > b ? 1.0f : 0.0f);
    case B_GREATER_EQUAL:
        PAIR(a >= b ? 1.0f : 0.0f);
    case B_LESS:
        PAIR(a < b ? 1.0f : 0.0f);
    case B_LESS_EQUAL:
        PAIR(a <= b ? 1.0f : 0.0f);
    case B_EQUAL:
        PAIR(a == b ? 1.0f : 0.0f);
    case B_NOT_EQUAL:
        PAIR(a != b ? 1.0f : 0.0f);
    default:
        PAIR(b == -0.5f ? 1.0f / sqrtf(a) : b == 2.0f ? a * a : powf(a, b));
    }
}

/* A number between two tasks of an engine, which is fp16. */
static float between_tasks(const struct sg_npu_run *r, float v) { return r->wide ? v : sg_f32_of_f16(sg_f16_of_f32(v)); }

/* real_div is two tasks, an inverse and a product; pow is three, log2, a product and 2^x. The square and powers of numbers that
 * are not positive are computed exactly, because nothing is known of them. */
static void table_row(const struct broadcast_job *j, const float *x, int64_t sx, const float *y, int64_t sy, float *out,
                      int64_t n)
{
    const struct sg_npu_tables *t = j->r->tables;
    for (int64_t i = 0; i < n; i++) {
        float a = x[i * sx], b = y[i * sy];
        if (j->code == B_DIV)
            out[i] = a * between_tasks(j->r, sg_npu_table_value(t, SG_NPU_INVERSE, b));
        else if (!(a > 0) || b == 2.0f)
            out[i] = b == 2.0f ? a * a : powf(a, b);
        else {
            float log2_a = between_tasks(j->r, sg_npu_table_value(t, SG_NPU_LOG2, a));
            out[i] = sg_npu_table_value(t, SG_NPU_EXP2, between_tasks(j->r, b * log2_a));
        }
    }
}

/* Sums that are halfway between two fp16 numbers, one step of fp32 further from 0, so that rounding goes away from 0. Two fp16
 * numbers that add up to such a number do so exactly in fp32; sums below 2^-14 are fp16 numbers. */
static void nudge_ties(float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = sg_bits_of_f32(p[i]);
        if ((u & 0x1fff) == 0x1000 && fabsf(p[i]) >= 0x1p-14f) p[i] = sg_f32_of_bits(u + 1);
    }
}

/* A work item: rows_each rows. The results of comparisons, 0 and 1, need no rounding. */
static void broadcast_part(void *arg, uint32_t item, uint32_t thread)
{
    struct broadcast_job *j = arg;
    int64_t n = j->dim[j->ndim - 1];
    uint64_t to = ((uint64_t)item + 1) * j->rows_each;
    (void)thread;
    for (uint64_t row = (uint64_t)item * j->rows_each; row < to && row < j->rows; row++) {
        /* Index of the row in the other dimensions, the last one fastest. */
        const float *in[3] = {j->in[0], j->in[1], j->in[2]};
        uint64_t rest = row;
        for (uint32_t d = j->ndim - 1; d-- > 0; rest /= (uint64_t)j->dim[d])
            for (uint32_t o = 0; o < j->operands; o++)
                in[o] += (int64_t)(rest % (uint64_t)j->dim[d]) * j->stride[o][d];
        float *out = j->out + row * (uint64_t)n;
        const int64_t *s[3] = {&j->stride[0][j->ndim - 1], &j->stride[1][j->ndim - 1],
                               &j->stride[2][j->ndim - 1]};
        if (j->code == B_SELECT)
            for (int64_t i = 0; i < n; i++)
                out[i] = in[0][i * *s[0]] != 0 ? in[1][i * *s[1]] : in[2][i * *s[2]];
        else if (j->by_table)
            table_row(j, in[0], *s[0], in[1], *s[1], out, n);
        else
            binary_row(j->code, in[0], *s[0], in[1], *s[1], out, n);
        if (j->r->profile->ties_away && (j->code == B_ADD || j->code == B_SUB)) nudge_ties(out, n);
        if (j->code < B_GREATER || j->code == B_SELECT) sg_npu_round_result(j->r, j->value, out, (size_t)n);
    }
}

/* Handler of all broadcast operations; names: of the operands. A single long row is cut into equal parts, so that all
 * threads have work. */
static segue_status run_broadcast(struct sg_npu_run *r, const struct sg_mil_op *op, const char *const *names,
                             uint32_t operands)
{
    const struct sg_mil_type *t = sg_npu_type(r, op->first);
    struct broadcast_job j = {.r = r,
                         .out = sg_npu_data(r, op->first),
                         .value = op->first,
                         .operands = operands,
                         .ndim = t->rank,
                         .code = B_NONE};
    for (int i = 0; i < B_NONE; i++)
        if (!strcmp(binary_names[i], op->kind)) j.code = (enum binary)i;
    j.by_table = r->tables && (j.code == B_DIV || j.code == B_POW) && t->dtype == SG_MIL_FP16;
    for (uint32_t i = 0; i < t->rank; i++) j.dim[i] = t->dim[i];
    for (uint32_t o = 0; o < operands; o++) {
        uint32_t v = sg_npu_operand(r, op, names[o]);
        j.in[o] = sg_npu_data(r, v);
        broadcast_strides(sg_npu_type(r, v), t->rank, j.stride[o]);
    }
    /* A scalar is one row of one element. */
    if (!j.ndim) j.dim[j.ndim++] = 1;
    merge_dims(&j);
    int64_t row = j.dim[j.ndim - 1];
    j.rows = 1;
    for (uint32_t i = 0; i + 1 < j.ndim; i++) j.rows *= (uint64_t)j.dim[i];
    if (j.rows == 1 && row > 2 * CHUNK && row % 64 == 0) {
        int64_t parts = row / (row / 64 > 64 ? 4096 : 64);
        while (row % parts) parts--;
        for (uint32_t o = 0; o < operands; o++) {
            int64_t step = j.stride[o][j.ndim - 1];      /* read first: it may be one of the two below */
            j.stride[o][1] = step;
            j.stride[o][0] = step * (row / parts);
        }
        j.dim[0] = parts;
        j.dim[1] = row / parts;
        j.ndim = 2;
        j.rows = (uint64_t)parts;
        row /= parts;
    }
    j.rows_each = (uint64_t)row >= CHUNK ? 1 : CHUNK / (uint64_t)row;
    sg_npu_parallel(r, (j.rows + j.rows_each - 1) / j.rows_each, broadcast_part, &j);
    return SEGUE_OK;
}

static const char *const xy[] = {"x", "y"}, *const cond_ab[] = {"cond", "a", "b"};
segue_status sg_npu_binary(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    return run_broadcast(r, op, xy, 2);
}
segue_status sg_npu_compare(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    return run_broadcast(r, op, xy, 2);
}
segue_status sg_npu_select(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    return run_broadcast(r, op, cond_ab, 3);
}

/* --- casts and quantization --- */

/* v limited to [low, high]; 0 for NaN. */
static float clamp(float v, float low, float high)
{
    return v != v ? 0 : v < low ? low : v > high ? high : v;
}

/* v as a value of type d: integers are truncated towards 0 and saturated, bool is 0 or 1.
 * Floating-point types are rounded by sg_npu_round_result. */
static float convert_to(enum sg_mil_dtype d, float v)
{
    const struct sg_mil_dtype_info *info = sg_mil_dtype_info(d);
    if (info->class == SG_MIL_REAL) return v;
    if (info->class == SG_MIL_BOOLEAN) return v != 0 ? 1.0f : 0.0f;
    float high = ldexpf(1, info->class == SG_MIL_SIGNED ? info->bits - 1 : info->bits) - 1;
    return clamp(truncf(v), info->class == SG_MIL_SIGNED ? -high - 1 : 0, high);
}

/* One thread: casts are rare and small. */
segue_status sg_npu_cast(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x");
    const float *in = sg_npu_data(r, x);
    float *out = sg_npu_data(r, op->first);
    uint64_t n = r->plan->slots[x].n;
    enum sg_mil_dtype d = (enum sg_mil_dtype)sg_npu_type(r, op->first)->dtype;
    for (uint64_t i = 0; i < n; i++) out[i] = convert_to(d, in[i]);
    sg_npu_round_result(r, op->first, out, (size_t)n);
    return SEGUE_OK;
}

/* quantize: round(x / scale) + zero point, saturated to int8 or uint8. dequantize (back 1): (x - zero
 * point) * scale. One scale and zero point for the tensor, or one per index of the axis. inner:
 * elements after the axis. */
static segue_status quantize(struct sg_npu_run *r, const struct sg_mil_op *op, int back)
{
    uint32_t x = sg_npu_operand(r, op, "input"), vs = sg_npu_operand(r, op, "scale"),
             vz = sg_npu_operand(r, op, "zero_point");
    const struct sg_mil_type *t = sg_npu_type(r, x);
    const float *in = sg_npu_data(r, x), *scale = sg_npu_data(r, vs),
                *zero = vz == SG_MIL_NONE ? NULL : sg_npu_data(r, vz);
    float *out = sg_npu_data(r, op->first);
    int64_t axis = sg_mil_const_int(r->plan->f, op, "axis", 0);
    uint64_t inner = 1, n = r->plan->slots[x].n;
    if (axis < 0) axis += t->rank;
    for (uint32_t i = (uint32_t)axis + 1; i < t->rank; i++) inner *= (uint64_t)t->dim[i];
    uint64_t places = t->rank ? (uint64_t)t->dim[axis] : 1;
    int is_signed = sg_npu_type(r, back ? x : op->first)->dtype == SG_MIL_INT8;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = i / inner % places;
        float s = scale[r->plan->slots[vs].n == 1 ? 0 : at],
              z = zero ? zero[r->plan->slots[vz].n == 1 ? 0 : at] : 0;
        out[i] = back ? (in[i] - z) * s
                      : clamp(nearbyintf(in[i] / s) + z, is_signed ? -128 : 0, is_signed ? 127 : 255);
    }
    sg_npu_round_result(r, op->first, out, (size_t)n);
    return SEGUE_OK;
}

segue_status sg_npu_quantize(struct sg_npu_run *r, const struct sg_mil_op *op) { return quantize(r, op, 0); }
segue_status sg_npu_dequantize(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    return quantize(r, op, 1);
}
