/* npu_knots.h: the function tables of engines: linear interpolation between at most 33 equidistant knots, each the value of the
 * function rounded to fp16. Ranges, the lines outside of them and the maximum errors are those that were decoded from compiled
 * programs of H13 to H18 (docs/ANE.md, source H); profiles with `tables` compute with them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_NPU_KNOTS_H
#define SG_UNIT_ANE_NPU_KNOTS_H

#include <stddef.h>

enum sg_npu_function {
    SG_NPU_SIGMOID,
    SG_NPU_TANH,
    SG_NPU_SILU,
    SG_NPU_GELU,                 /* the forms with erf and with tanh have one table */
    SG_NPU_GELU_SIGMOID,         /* x sigmoid(1.702 x) */
    SG_NPU_EXP2,                 /* 2^x; exp is 2^(x log2 e) */
    SG_NPU_LOG2,
    SG_NPU_SQRT,
    SG_NPU_RSQRT,
    SG_NPU_INVERSE,
    SG_NPU_FUNCTIONS
};

/* Ln 2 rounded to fp16: an engine computes log as log2 times this number. */
#define SG_NPU_LN2 0.693359375f

/* knot[i]: the function at low + i * step; the last one is repeated, so that knot[i + 1] exists. */
struct sg_npu_tables {
    float knot[SG_NPU_FUNCTIONS][34];
};

void sg_npu_tables_make(struct sg_npu_tables *t);
/* The function of one number. Forms that IEEE does not define give NaN; log2(0) is -65536, as an engine has it. */
float sg_npu_table_value(const struct sg_npu_tables *t, enum sg_npu_function f, float v);
/* The same for n numbers; the arrays may be the same. */
void sg_npu_table_row(const struct sg_npu_tables *t, enum sg_npu_function f, const float *x, float *out, size_t n);

#endif
