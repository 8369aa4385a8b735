/* npu_facts.c: the arithmetic of the profiles against what was measured on engines or decoded from compiled programs: function
 * tables, sums of products, ties. The figures are those of docs/ANE.md, sources AG and H.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "npu_rig.h"
#include "unit/ane/npu/npu_kernels.h"
#include "unit/ane/npu/npu_knots.h"

#define INFO "[buildInfo = dict<string, string>({{\"a\", \"b\"}})]\n"
#define PROGRAM(params, body) "program(1.3)\n" INFO "{\nfunc main<ios18>(" params ") {\n" body "\n} -> (z);\n}\n"

static double sigmoid(double v) { return 1 / (1 + exp(-v)); }
static double silu(double v) { return v * sigmoid(v); }
static double gelu(double v) { return 0.5 * v * (1 + erf(v / sqrt(2))); }
static double rsqrt(double v) { return 1 / sqrt(v); }
static double inverse(double v) { return 1 / v; }

/* The largest errors of straight lines between the decoded knots. silu and gelu: the decoded knots next to 0 are not known, so
 * the error there may be smaller by half of the decoded value at 0. */
static const struct fact {
    const char *name;
    enum sg_npu_function f;
    double (*of)(double);
    double from, to, error, slack;
    int relative;
} facts[] = {
    {"sigmoid", SG_NPU_SIGMOID, sigmoid, -8, 8, 0.0031, 0, 0},  {"tanh", SG_NPU_TANH, tanh, -4, 3.999, 0.0014, 0, 0},
    {"gelu", SG_NPU_GELU, gelu, -4, 4, 0.0061, 0.0004, 0},      {"silu", SG_NPU_SILU, silu, -8, 8, 0.0148, 0.00085, 0},
    {"exp2", SG_NPU_EXP2, exp2, -14, 15.99, 4.0e-4, 0, 1},      {"log2", SG_NPU_LOG2, log2, 0.5, 1, 2.9e-4, 0, 0},
    {"sqrt", SG_NPU_SQRT, sqrt, 1e-4, 6e4, 4.9e-4, 0, 1},       {"rsqrt", SG_NPU_RSQRT, rsqrt, 1e-4, 6e4, 1.1e-3, 0, 1},
    {"inverse", SG_NPU_INVERSE, inverse, 1e-4, 6e4, 4.4e-4, 0, 1},
};

static void tables_have_the_decoded_errors(void **state)
{
    struct sg_npu_tables t;
    (void)state;
    sg_npu_tables_make(&t);
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        const struct fact *c = &facts[i];
        double worst = 0;
        int steps = 200000, is_log = c->relative && c->from > 0;
        for (int k = 0; k <= steps; k++) {
            double part = (double)k / steps, v = is_log ? c->from * pow(c->to / c->from, part) : c->from + part * (c->to - c->from);
            float x = (float)v;
            double want = c->of((double)x), e = fabs((double)sg_npu_table_value(&t, c->f, x) - want);
            worst = fmax(worst, c->relative ? e / fabs(want) : e);
        }
        /* The figures have two digits. */
        if (worst > c->error * 1.06 || worst < (c->error - c->slack) * 0.94)
            fail_msg("%s: largest error %.3g, decoded %.3g", c->name, worst, c->error);
    }
}

static void tables_end_as_decoded(void **state)
{
    struct sg_npu_tables t;
    const struct { enum sg_npu_function f; float in, out, within; } points[] = {
        {SG_NPU_SIGMOID, -9.94f, 0, 0},        {SG_NPU_SIGMOID, 8.32f, 1, 0},      {SG_NPU_SIGMOID, -9, 0.00016f, 2e-5f},
        {SG_NPU_TANH, 4, 1, 0},                {SG_NPU_TANH, -60000, -1, 0},       {SG_NPU_TANH, 0, 0, 0},
        {SG_NPU_GELU, 0, -0.00075f, 1e-6f},    {SG_NPU_GELU, 4.5f, 4.5f, 0},       {SG_NPU_GELU, -4.4f, 0, 0},
        {SG_NPU_SILU, 0, -0.0017f, 1e-6f},     {SG_NPU_SILU, 20, 19.9961f, 1e-4f}, {SG_NPU_SILU, -10.2f, 0, 0},
        {SG_NPU_EXP2, 16, INFINITY, 0},        {SG_NPU_EXP2, -25.01f, 0, 0},       {SG_NPU_EXP2, -3, 0.125f, 0},
        {SG_NPU_LOG2, 0, -65536, 0},           {SG_NPU_LOG2, 8, 3, 0},             {SG_NPU_LOG2, 0.25f, -2, 0},
        {SG_NPU_SQRT, 0, 0, 0},                {SG_NPU_SQRT, 16, 4, 0},            {SG_NPU_RSQRT, 0.0625f, 4, 0},
        {SG_NPU_INVERSE, 0, INFINITY, 0},      {SG_NPU_INVERSE, -4, -0.25f, 0},    {SG_NPU_INVERSE, INFINITY, 0, 0},
    };
    (void)state;
    sg_npu_tables_make(&t);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        float is = sg_npu_table_value(&t, points[i].f, points[i].in);
        if (!(is == points[i].out || fabsf(is - points[i].out) <= points[i].within))
            fail_msg("function %d of %g: %g, not %g", points[i].f, (double)points[i].in, (double)is, (double)points[i].out);
    }
    assert_true(isnan(sg_npu_table_value(&t, SG_NPU_LOG2, -1)) && isnan(sg_npu_table_value(&t, SG_NPU_RSQRT, -1)));
}

/* The loops of the instruction set give what the function of one number gives, at every number of fp16. */
static void loops_equal_the_table(void **state)
{
    struct sg_npu_tables t;
    (void)state;
    sg_npu_tables_make(&t);
    for (uint32_t from = 0; from < 65536; from += 61) {   /* tails of every length */
        float x[61], y[61];
        uint32_t n = from + 61 > 65536 ? 65536 - from : 61;
        for (uint32_t i = 0; i < n; i++) x[i] = sg_f32_of_f16((uint16_t)(from + i));
        sg_npu_kernels_here()->exp2_knots(t.knot[SG_NPU_EXP2], 1, x, y, n);
        for (uint32_t i = 0; i < n; i++) {
            float want = sg_npu_table_value(&t, SG_NPU_EXP2, x[i]);
            if (!(y[i] == want || fabsf(y[i] - want) <= 2e-7f * want || (isnan(want) && isnan(y[i]))))
                fail_msg("2^%g: %g, not %g", (double)x[i], (double)y[i], (double)want);
        }
    }
}

/* The result of a program whose inputs hold one number each. */
static float result_at(const char *profile, uint32_t step, const char *text, float a, float b)
{
    struct sg_npu_opts o = options(profile, 1);
    o.profile.product_step = step;
    struct rig g;
    segue_error err;
    o.profile.short_rows_refused = 0;            /* m5 wants rows of 128 bytes */
    rig_open(&g, &o);
    if (rig_load(&g, text, NULL, 0, &err)) fail_msg("%s: %s\n%s", profile, err.text, text);
    rig_fill(&g, 0, a);
    if (g.in_n > 1) rig_fill(&g, 1, b);
    if (rig_run(&g, &err)) fail_msg("%s: %s", profile, err.text);
    float is = sg_f32_of_f16(bytes_of(&g, g.out[0])[9]);
    rig_close(&g);
    return is;
}

static float result_of(const char *profile, const char *text, float a, float b) { return result_at(profile, 0, text, a, b); }

/* Operations that engines compute by tables: chips do, ieee does not. The numbers are between two knots. */
static void chips_use_tables(void **state)
{
    static const char *const chips[] = {"m1", "m2", "m4", "m5"};
    const struct { const char *body; float in, exact, far; } ops[] = {
        {ABC " z = sigmoid(x = a);", 1.25f, 0.77730f, 1e-3f},  {ABC " z = tanh(x = a);", 0.6875f, 0.59640f, 1e-3f},
        {ABC " z = silu(x = a);", 0, 0, 1e-3f},                 {ABC " z = gelu(x = a, mode = string(\"EXACT\"));", 0, 0, 5e-4f},
        {ABC " z = gelu(x = a, mode = string(\"TANH_APPROXIMATION\"));", 0, 0, 5e-4f},
        {ABC " z = gelu(x = a, mode = string(\"SIGMOID_APPROXIMATION\"));", 0.125f, 0.06913f, 1e-3f},
        {ABC " z = rsqrt(x = a, epsilon = fp16(0));", 0.53125f, 1.37199f, 1e-3f},
        {ABC " z = inverse(x = a, epsilon = fp16(0));", 0.5078125f, 1.96923f, 4e-4f},
        {ABC " z = real_div(x = fp16(1), y = a);", 0.5078125f, 1.96923f, 4e-4f},
        {ABC " z = pow(x = a, y = fp16(-0.5));", 0.001f, 31.623f, 1e-2f},
        {ABC " z = exp(x = a);", 0.0108f, 1.01086f, 0},         {ABC " z = sqrt(x = a);", 0.53125f, 0.72887f, 0},
        {ABC " z = log(x = a, epsilon = fp16(0));", 0.5078125f, -0.67764f, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        char text[1024];
        snprintf(text, sizeof text, PROGRAM(ABC " a", "%s"), ops[i].body);
        if (!strstr(ops[i].body, "gelu"))   /* ieee has gelu too, but refuse is not the question here */
            assert_true(fabsf(result_of("ieee", text, ops[i].in, 0) - ops[i].exact) <= 6e-4f * fabsf(ops[i].exact) + 1e-4f * (ops[i].exact == 0));
        for (size_t k = 0; k < sizeof chips / sizeof *chips; k++) {
            float is = result_of(chips[k], text, ops[i].in, 0), off = fabsf(is - ops[i].exact);
            if (off < ops[i].far || off > 0.016f + 2e-3f * fabsf(ops[i].exact))
                fail_msg("%s: %s of %g: %g, exact %g", chips[k], ops[i].body, (double)ops[i].in, (double)is, (double)ops[i].exact);
        }
    }
}

/* Matrix product of [32, K] and [K, 32] in rows of random numbers. */
#define MATMUL(k) PROGRAM(T("1, 32, 32, " k) " a, " T("1, 32, " k ", 32") " b", "bool n = const()[val = bool(false)]; " \
    T("1, 32, 32, 32") " z = matmul(x = a, y = b, transpose_x = n, transpose_y = n);")

static uint32_t seed = 1;
static float uniform(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) * 0x1p-24f;
}

/* Relative L2 error of products of K terms against sums in double. probabilities 1: rows of a that are positive and sum to 1. */
static double product_error(const char *profile, const char *text, int n, int probabilities, uint32_t step)
{
    struct sg_npu_opts o = options(profile, 1);
    o.profile.product_step = step;
    struct rig g;
    segue_error err;
    double error = 0, size = 0;
    o.profile.short_rows_refused = 0;
    rig_open(&g, &o);
    if (rig_load(&g, text, NULL, 0, &err)) fail_msg("%s", err.text);
    uint16_t *a = bytes_of(&g, g.in[0]), *b = bytes_of(&g, g.in[1]), *z = bytes_of(&g, g.out[0]);
    int ra = (int)(g.ports[0].row_bytes / 2), rb = (int)(g.ports[1].row_bytes / 2);    /* elements of a padded row; z: rb */
    seed = 1;
    for (int i = 0; i < 32 * 32; i++) {
        float row[512], sum = 0;
        for (int k = 0; k < n; k++) sum += row[k] = probabilities ? expf(4 * uniform()) : 2 * uniform() - 1;
        for (int k = 0; k < n; k++) a[i * ra + k] = sg_f16_of_f32(probabilities ? row[k] / sum : row[k]);
    }
    for (int i = 0; i < 32 * n; i++)
        for (int k = 0; k < 32; k++) b[i * rb + k] = sg_f16_of_f32(2 * uniform() - 1);
    if (rig_run(&g, &err)) fail_msg("%s", err.text);
    for (int h = 0; h < 32; h++)
        for (int i = 0; i < 32; i++)
            for (int j = 0; j < 32; j++) {
                double sum = 0;
                for (int k = 0; k < n; k++)
                    sum += (double)sg_f32_of_f16(a[(h * 32 + i) * ra + k]) * (double)sg_f32_of_f16(b[(h * n + k) * rb + j]);
                double e = (double)sg_f32_of_f16(z[(h * 32 + i) * rb + j]) - sum;
                error += e * e;
                size += sum * sum;
            }
    rig_close(&g);
    return sqrt(error / size);
}

/* K = 128 has the error of one final rounding on an M2 Max, 2.08e-4; an M1 adds in groups of four. */
static void sums_of_products(void **state)
{
    const struct { const char *profile; double low, high; } plain[] = {
        {"ieee", 2.0e-4, 2.15e-4}, {"m2", 2.0e-4, 2.2e-4}, {"m4", 2.0e-4, 2.15e-4}, {"m5", 2.0e-4, 2.15e-4}, {"m1", 2.5e-4, 3.2e-4}};
    (void)state;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        double e = product_error(plain[i].profile, MATMUL("128"), 128, 0, 0);
        print_message("%s: K = 128: %.3g\n", plain[i].profile, e);
        if (e < plain[i].low || e > plain[i].high) fail_msg("%s: %g", plain[i].profile, e);
    }
    double m4 = product_error("m4", MATMUL("375"), 375, 1, 0);
    print_message("probabilities times V: m4 %.3g\n", m4);
    assert_true(m4 < 3.2e-4);
    /* Products kept to 2^-16: nothing changes at K = 128, probabilities lose as much as on an M2 Max (1.5e-3). */
    double wide = product_error("m2", MATMUL("128"), 128, 0, 16), small = product_error("m2", MATMUL("375"), 375, 1, 16);
    print_message("products kept to 2^-16: %.3g, %.3g\n", wide, small);
    assert_true(wide < 2.3e-4 && small > 1e-3 && small < 3e-3);
}

/* 375 products of 2^-14 - 2^-24 and 1; a single product below 2^-17; 4096 and 1024 ones; a sum between two numbers. */
static void counter_examples(void **state)
{
    (void)state;
    assert_true(result_of("m4", MATMUL("375"), 0x1p-14f - 0x1p-24f, 1) == 0.022872925f);
    assert_true(result_of("m1", MATMUL("128"), 0x1p-14f - 0x1p-24f, 1) == 0);          /* subnormal numbers count as 0 */
    assert_true(result_of("m4", MATMUL("1"), 0x1p-18f, 1) == 0x1p-18f);
    /* As measured on an M2 Max, which products kept to 2^-16 explain. */
    assert_true(fabsf(result_at("m2", 16, MATMUL("375"), 0x1p-14f - 0x1p-24f, 1) - 0.0228882f) < 1e-7f);
    assert_true(result_at("m2", 16, MATMUL("1"), 0x1p-18f, 1) == 0);
    assert_true(result_at("m2", 16, MATMUL("1"), 100.0625f, 1) == result_of("m2", MATMUL("1"), 100.0625f, 1));
    const char *add = PROGRAM(ABC " a, " ABC " b", ABC " z = add(x = a, y = b);"), *sub = PROGRAM(ABC " a, " ABC " b", ABC " z = sub(x = a, y = b);");
    assert_true(result_of("m2", add, 2048, 1) == 2050);
    assert_true(result_of("m2", add, -2048, -1) == -2050);
    assert_true(result_of("m2", sub, 2048, -1) == 2050);
    assert_true(result_of("m2", add, 2048, 0.998f) == 2048);
    assert_true(result_of("m4", add, 2048, 1) == 2048);
    assert_true(result_of("m2", add, 0x1p-24f, 0x1p-24f) == 0x1p-23f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables_have_the_decoded_errors), cmocka_unit_test(tables_end_as_decoded),
                                       cmocka_unit_test(loops_equal_the_table),          cmocka_unit_test(chips_use_tables),
                                       cmocka_unit_test(sums_of_products),               cmocka_unit_test(counter_examples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
