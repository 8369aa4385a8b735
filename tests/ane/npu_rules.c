/* npu_rules.c: each rule that can be held, with a program on either side of the limit; what the software engine does when values,
 * surfaces or budgets break one, in both modes.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "mil_samples.h"
#include "unit/ane/blob.h"
#include "unit/ane/milparse.h"
#include "unit/ane/npu.h"
#include "unit/ane/rules.h"

#define T(shape) "tensor<fp16, [" shape "]>"
#define ABC T("1, 32, 1, 32")
#define RELU(out, in) ABC " " out " = relu(x = " in ");"
#define CONV(args) "conv(strides = tensor<int32, [2]>([1, 1]), pad_type = string(\"valid\"), pad = tensor<int32, [4]>([0, 0, 0, 0]), " \
                   "dilations = tensor<int32, [2]>([1, 1]), groups = int32(1), " args ")"
#define HEAD " " ABC " z = slice_by_size(x = y, begin = tensor<int32, [4]>([0, 0, 0, 0]), size = tensor<int32, [4]>([1, 32, 1, 32]));"
#define AXIS(n) "axis = int32(" n ")"

/* A function's parameters, body and results; the dialect is the buffer one but where a rule is about another. */
struct side { const char *params, *body, *results; };
static const struct row {
    uint32_t constraint;
    const char *profile, *target;
    struct side good, bad;
} rows[] = {
    {1, "ieee", "ios18", {T("1, 32, 1, 32") " a", T("1, 32, 1, 32") " z = relu(x = a);", "z"},
     {T("1, 32, 1, 16") " a", T("1, 32, 1, 16") " z = relu(x = a);", "z"}},
    {1, "m5", "ios18", {T("1, 32, 1, 64") " a", T("1, 32, 1, 64") " z = relu(x = a);", "z"},
     {T("1, 32, 1, 32") " a", T("1, 32, 1, 32") " z = relu(x = a);", "z"}},
    {3, "strict", "ios18", {ABC " a, " ABC " b", ABC " z = add(x = a, y = b);", "z"}, {ABC " b, " ABC " a", ABC " z = add(x = a, y = b);", "z"}},
    {4, "m1", "ios16", {ABC " a, " T("1, 64, 1, 32") " b", RELU("y", "a") T("1, 64, 1, 32") " z = relu(x = b);", "z, y"},
     {T("1, 64, 1, 32") " a, " ABC " b", RELU("y", "b") T("1, 64, 1, 32") " z = relu(x = a);", "z, y"}},
    {9, "ieee", "ios18", {ABC " a", T("1, 64, 1, 32") " z = concat(values = (a, a), " AXIS("1") ", interleave = bool(false));", "z"},
     {ABC " a", T("1, 64, 1, 32") " z = concat(values = (a, a), " AXIS("-3") ", interleave = bool(false));", "z"}},
    {9, "ieee", "ios18", {ABC " a", T("1, 64, 1, 32") " z = concat(values = (a, a), " AXIS("1") ", interleave = bool(false));", "z"},
     {ABC " a", T("1, 64, 1, 32") " z = concat(values = (a, a), " AXIS("1") ");", "z"}},
    {9, "ieee", "ios18", {ABC " a", T("1, 64, 1, 32") " z = concat(values = (a, a), " AXIS("1") ", interleave = bool(false));", "z"},
     {ABC " a", ABC " z = concat(values = (a), " AXIS("1") ", interleave = bool(false));", "z"}},
    {10, "strict", "ios18", {ABC " a", ABC " z = tanh(x = a);", "z"}, {ABC " a", ABC " z = gelu(x = a, mode = string(\"EXACT\"));", "z"}},
    {10, "ieee", "ios18", {ABC " a", ABC " z = mul(x = a, y = fp16(-1.0));", "z"}, {ABC " a", ABC " z = neg(x = a);", "z"}},
    {11, "ieee", "ios18", {ABC " a", ABC " z = rsqrt(x = a, epsilon = fp16(0x1p-20));", "z"}, {ABC " a", ABC " z = rsqrt(x = a);", "z"}},
    {12, "ieee", "ios18", {ABC " a", T("32, 32, 1, 1") " w = const()[val = " T("32, 32, 1, 1") "(0x1p-5)]; " ABC " z = " CONV("x = a, weight = w") ";", "z"},
     {ABC " a", T("32, 32, 1, 1") " w = const()[val = " T("32, 32, 1, 1") "(0x1p-5)]; " T("32") " b = const()[val = " T("32") "(1)]; " ABC
      " z = " CONV("x = a, weight = w, bias = b") ";", "z"}},
    {14, "ieee", "ios18", {T("1, 2, 32, 32") " a", T("1, 2, 32, 32") " z = scaled_dot_product_attention(query = a, key = a, value = a);", "z"},
     {T("1, 2, 32, 32") " a", T("1, 2, 32, 32") " z = scaled_dot_product_attention(query = a, key = a, value = a, attn_mask = a);", "z"}},
    {17, "ieee", "ios18", {ABC " a", ABC " z = identity(x = a);", "z"}, {ABC " a", ABC " z = identity(x = a);", "a"}},
    {23, "strict", "ios18", {ABC " a", RELU("z", "a"), "z"}, {"tensor<fp32, [1, 32, 1, 32]> a", ABC " z = cast(x = a, dtype = string(\"fp16\"));", "z"}},
    {23, "ieee", "ios18", {"tensor<fp32, [1, 32, 1, 32]> a", ABC " z = cast(x = a, dtype = string(\"fp16\"));", "z"},
     {"tensor<bf16, [1, 32, 1, 32]> a", ABC " z = cast(x = a, dtype = string(\"fp16\"));", "z"}},
    {24, "ieee", "ios18", {T("1, 32, 1, 64") " a", "tensor<bool, [1, 32, 1, 64]> z = greater(x = a, y = a);", "z"},
     {"tensor<int32, [1, 32, 1, 32]> a", ABC " z = cast(x = a, dtype = string(\"fp16\"));", "z"}},
    {24, "m4", "ios18", {"tensor_buffer<int8, shape=[1, 32, 1, 64], strides=[2048, 64, 64, 1], interleave_factors=[1, 1, 1, 1]> a",
      "tensor<int8, [1, 32, 1, 64]> b = tensor_buffer_to_tensor<ios17>(input = a); " T("1, 32, 1, 64") " z = cast(x = b, dtype = string(\"fp16\"));", "z"},
     {T("1, 32, 1, 64") " a", "tensor<int8, [1, 32, 1, 64]> z = cast(x = a, dtype = string(\"int8\"));", "z"}},
    {25, "ieee", "ios18", {ABC " a", RELU("z", "a"), "z"}, {"tensor<int4, [1, 32, 1, 128]> a", T("1, 32, 1, 128") " z = cast(x = a, dtype = string(\"fp16\"));", "z"}},
    {26, "m1", "ios18", {ABC " a", RELU("z", "a"), "z"}, {T("1, 33, 1, 32") " a", T("1, 33, 1, 32") " z = relu(x = a);", "z"}},
    {27, "m1", "ios18", {T("1, 32, 1, 16384") " a", T("1, 32, 1, 16384") " z = relu(x = a);", "z"},
     {T("1, 32, 1, 16416") " a", T("1, 32, 1, 16416") " z = relu(x = a);", "z"}},
    {27, "m4", "ios18", {T("1, 32, 1, 65536") " a", T("1, 32, 1, 65536") " z = relu(x = a);", "z"},
     {T("1, 65537, 1, 32") " a", T("1, 65537, 1, 32") " z = relu(x = a);", "z"}},
    {27, "ieee", "ios18", {T("1, 1, 2, 2, 32") " a", T("1, 1, 2, 2, 32") " z = relu(x = a);", "z"},
     {T("1, 1, 1, 2, 2, 32") " a", T("1, 1, 1, 2, 2, 32") " z = relu(x = a);", "z"}},
    {28, "m1", "ios18", {T("1, 32, 1, 64") " a", T("32, 32, 1, 13") " w = const()[val = " T("32, 32, 1, 13") "(0)]; " T("1, 32, 1, 52") " y = " CONV("x = a, weight = w") ";" HEAD, "z"},
     {T("1, 32, 1, 64") " a", T("32, 32, 1, 15") " w = const()[val = " T("32, 32, 1, 15") "(0)]; " T("1, 32, 1, 50") " y = " CONV("x = a, weight = w") ";" HEAD, "z"}},
    {28, "m4", "ios18", {T("1, 32, 29, 32") " a", T("32, 32, 29, 1") " w = const()[val = " T("32, 32, 29, 1") "(0)]; " ABC " z = " CONV("x = a, weight = w") ";", "z"},
     {T("1, 32, 30, 32") " a", T("32, 32, 30, 1") " w = const()[val = " T("32, 32, 30, 1") "(0)]; " ABC " z = " CONV("x = a, weight = w") ";", "z"}},
    {28, "ieee", "ios18", {T("1, 32, 1, 2048") " a", T("1, 32, 1, 1") " b = reduce_max(x = a, axes = tensor<int32, [1]>([3]), keep_dims = bool(true));"
      " tensor<int32, [1, 32, 1, 1]> i = reduce_argmax(x = a, " AXIS("3") ", keep_dims = bool(true)); " T("1, 32, 1, 2048") " z = add(x = a, y = b);", "z"},
     {T("1, 32, 1, 4096") " a", "tensor<int32, [1, 32, 1, 1]> i = reduce_argmax(x = a, " AXIS("3") ", keep_dims = bool(true)); "
      T("1, 32, 1, 4096") " z = relu(x = a);", "z"}},
    {28, "ieee", "ios18", {ABC " a", T("1, 32, 1, 96") " z = tile(x = a, reps = tensor<int32, [4]>([1, 1, 1, 3]));", "z"},
     {ABC " a", T("1, 32, 1, 160") " z = tile(x = a, reps = tensor<int32, [4]>([1, 1, 1, 5]));", "z"}},
    {28, "ieee", "ios18", {ABC " a", T("1, 32, 1, 64") " z = pad(x = a, pad = tensor<int32, [2]>([0, 32]), mode = string(\"constant\"), constant_val = fp16(0));", "z"},
     {ABC " a", T("1, 64, 1, 32") " z = pad(x = a, pad = tensor<int32, [6]>([0, 32, 0, 0, 0, 0]), mode = string(\"constant\"), constant_val = fp16(0));", "z"}},
    {28, "m2", "ios18", {T("1, 16384, 1, 32") " a", T("16384, 1, 1, 32") " z = transpose(x = a, perm = tensor<int32, [4]>([1, 0, 2, 3]));", "z"},
     {T("1, 16416, 1, 32") " a", T("16416, 1, 1, 32") " z = transpose(x = a, perm = tensor<int32, [4]>([1, 0, 2, 3]));", "z"}},
    {31, "strict", "ios16", {ABC " a", RELU("x", "a") RELU("y", "a"), "x, y"}, {ABC " a", RELU("x", "a") RELU("y", "a") RELU("z", "a"), "x, y, z"}},
    {33, "strict", "ios18", {T("1, 32, 1, 256") " a", T("1, 32, 1, 256") " z = softmax(x = a, " AXIS("3") ");", "z"},
     {T("1, 32, 1, 288") " a", T("1, 32, 1, 288") " z = softmax(x = a, " AXIS("3") ");", "z"}},
    {35, "ieee", "ios18", {ABC " a, " ABC " v", T("32, 32, 1, 1") " w = reshape(x = v, shape = tensor<int32, [4]>([32, 32, 1, 1])); " ABC " z = " CONV("x = a, weight = w") ";", "z"},
     {T("2, 32, 1, 32") " a, " ABC " v", T("32, 32, 1, 1") " w = reshape(x = v, shape = tensor<int32, [4]>([32, 32, 1, 1])); " T("2, 32, 1, 32") " z = " CONV("x = a, weight = w") ";", "z"}},
    {36, "m1", "ios18", {T("1, 16384") " a", T("1, 16384") " z = relu(x = a);", "z"}, {T("1, 16416") " a", T("1, 16416") " z = relu(x = a);", "z"}},
    {42, "m1", "ios16", {ABC " a", T("1, 1, 1, 32") " m = reduce_mean(x = a, axes = tensor<int32, [1]>([1]), keep_dims = bool(true)); " ABC " z = sub(x = a, y = m);", "z"},
     {ABC " a", T("1, 1, 1, 32") " m = reduce_mean(x = a, axes = tensor<int32, [1]>([1]), keep_dims = bool(true)); " ABC " z = sub(x = a, y = m);", "z"}},
    {43, "m4", "ios18", {"tensor_buffer<fp16, shape=[1, 1, 32, 32], strides=[1024, 1024, 32, 1], interleave_factors=[1, 1, 1, 1]> a",
      T("1, 1, 32, 32") " b = tensor_buffer_to_tensor<ios17>(input = a); " T("1, 1, 32, 32") " z = relu(x = b);", "z"},
     {"tensor_buffer<fp16, shape=[1, 1, 32, 32], strides=[1056, 1056, 33, 1], interleave_factors=[1, 1, 1, 1]> a",
      T("1, 1, 32, 32") " b = tensor_buffer_to_tensor<ios17>(input = a); " T("1, 1, 32, 32") " z = relu(x = b);", "z"}},
    {0, "ieee", "ios18", {T("1, 32, 1, 32") " a", ABC " z = slice_update(x = a, update = a, begin = tensor<int32, [4]>([0, 0, 0, 0]), end = tensor<int32, [4]>([1, 32, 1, 32]));", "z"},
     {T("1, 32, 1, 32") " a", T("1, 32, 1, 33") " z = relu(x = a);", "z"}},
};

static char *text_of(const struct row *row, const struct side *s, char out[4096], int bad)
{
    const char *target = row->constraint == 42 && bad ? "ios18" : row->target;
    snprintf(out, 4096, "program(1.3)\n{\nfunc main<%s>(%s) {\n%s\n} -> (%s);\n}\n", target, s->params, s->body, s->results);
    return out;
}

static void check_text(const char *text, const char *profile, struct sg_mil_faults *faults)
{
    struct sg_mil_program *p = NULL;
    struct sg_ane_profile limits;
    segue_error err;
    assert_int_equal(sg_ane_profile_named(&limits, profile, &err), SEGUE_OK);
    if (sg_mil_parse(&p, text, strlen(text), "t", NULL, &err)) fail_msg("%s\n%s", err.text, text);
    sg_ane_check(p, &limits, NULL, 0, faults);
    sg_mil_program_free(p);
}

static void each_rule_has_two_sides(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sg_mil_faults good = {0}, bad = {0};
        char text[4096];
        check_text(text_of(&rows[i], &rows[i].good, text, 0), rows[i].profile, &good);
        for (uint32_t k = 0; k < good.n; k++)
            if (!good.list[k].advice) fail_msg("row %zu (constraint %u): refused: %u %s\n%s", i, rows[i].constraint, good.list[k].constraint, good.list[k].text, text);
        check_text(text_of(&rows[i], &rows[i].bad, text, 1), rows[i].profile, &bad);
        uint32_t found = 0, others = 0;
        for (uint32_t k = 0; k < bad.n; k++)
            if (!bad.list[k].advice) bad.list[k].constraint == rows[i].constraint ? found++ : others++;
        if (!found || others) fail_msg("row %zu: constraint %u: found %u times, %u others\n%s", i, rows[i].constraint, found, others, text);
        assert_true(bad.list[0].line > 0 && bad.list[0].column > 0 && bad.list[0].op[0]);
        sg_mil_faults_free(&good);
        sg_mil_faults_free(&bad);
    }
}

/* Rules of text stand in the table above, but for those that another test names: 13 (dialects), 20 (advice), 37 (is 27). */
static void no_rule_is_forgotten(void **state)
{
    (void)state;
    for (size_t i = 0; i < sg_ane_rule_count(); i++) {
        const struct sg_ane_rule *rule = sg_ane_rule_at(i);
        int found = rule->where != 't' || rule->number == 13 || rule->number == 20 || rule->number == 37;
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) found |= rows[k].constraint == rule->number;
        if (!found) fail_msg("constraint %u has no row", rule->number);
    }
}

/* 13: inline constants of some operations, outside the buffer dialect; 20 is advice. */
static void constants_are_named(void **state)
{
    const char *inline_text = "program(1.3)\n[buildInfo = dict<string, string>({{\"a\", \"b\"}})]\n{\nfunc main<ios18>(" ABC " a) {\n" ABC
                              " z = softmax(x = a, axis = int32(3));\n} -> (z);\n}\n";
    struct sg_mil_faults faults = {0};
    (void)state;
    check_text(inline_text, "ieee", &faults);
    assert_int_equal(faults.refusals, 1);
    assert_int_equal(faults.list[0].constraint, 13);
    sg_mil_faults_free(&faults);
    check_text(sample_modern, "ieee", &faults);
    assert_int_equal(faults.refusals, 0);
    sg_mil_faults_free(&faults);
    const char *large = "program(1.3)\n{\nfunc main<ios18>(" T("1, 4096, 1, 4096") " a) {\n" T("1, 4096, 1, 4096") " z = relu(x = a);\n} -> (z);\n}\n";
    check_text(large, "ieee", &faults);
    assert_int_equal(faults.refusals, 0);
    assert_int_equal(faults.n, 1);
    assert_int_equal(faults.list[0].constraint, 20);
    sg_mil_faults_free(&faults);
}

/* --- running --- */

struct rig { struct sg_ane_device *d; struct sg_ane_program *p; struct sg_ane_surface *in[4], *out[4]; uint32_t in_n, out_n; };

static struct sg_npu_opts options(const char *profile, int faithful)
{
    struct sg_npu_opts o = {.faithful = (uint32_t)faithful, .threads = 2};
    assert_int_equal(sg_ane_profile_named(&o.profile, profile, NULL), SEGUE_OK);
    return o;
}

static void rig_open(struct rig *g, const struct sg_npu_opts *o)
{
    memset(g, 0, sizeof *g);
    assert_int_equal(sg_npu_open(&g->d, o, NULL), SEGUE_OK);
}

static segue_status rig_load(struct rig *g, const char *text, const struct sg_ane_file *files, uint32_t n, segue_error *err)
{
    struct sg_ane_source s = {.name = "t", .text = text, .text_bytes = strlen(text), .files = files, .files_n = n};
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(g->d);
    const struct sg_ane_port *in, *out;
    segue_status status = ops->load(g->d, &s, &g->p, err);
    if (status) return status;
    assert_int_equal(ops->ports(g->p, 0, &in, &g->in_n, &out, &g->out_n, NULL), SEGUE_OK);
    for (uint32_t i = 0; i < g->in_n; i++) assert_int_equal(ops->surface_new(g->d, in[i].surface_bytes, &g->in[i], NULL), SEGUE_OK);
    for (uint32_t i = 0; i < g->out_n; i++) assert_int_equal(ops->surface_new(g->d, out[i].surface_bytes, &g->out[i], NULL), SEGUE_OK);
    return SEGUE_OK;
}

static void rig_unload(struct rig *g)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(g->d);
    ops->unload(g->p);
    for (int i = 0; i < 4; i++) {
        ops->surface_free(g->in[i]);
        ops->surface_free(g->out[i]);
        g->in[i] = g->out[i] = NULL;
    }
    g->p = NULL;
}

static void rig_close(struct rig *g)
{
    rig_unload(g);
    sg_ane_ops_of(g->d)->close(g->d);
}

static uint16_t *bytes_of(struct rig *g, struct sg_ane_surface *s)
{
    void *p;
    uint64_t n;
    assert_int_equal(sg_ane_ops_of(g->d)->lock(s, 1, &p, &n, NULL), SEGUE_OK);
    sg_ane_ops_of(g->d)->unlock(s);
    return p;
}

static segue_status rig_run(struct rig *g, segue_error *err) { return sg_ane_ops_of(g->d)->evaluate(g->p, 0, g->in, g->out, err); }

static void rig_fill(struct rig *g, uint32_t i, float v)
{
    uint16_t *p = bytes_of(g, g->in[i]);
    for (int k = 0; k < 1024; k++) p[k] = sg_f16_of_f32(v);
}

#define ONE(body) "program(1.3)\n{\nfunc main<ios16>(" ABC " a) {\n" body "\n} -> (z);\n}\n"
static const char slice_text[] = ONE(T("1, 32, 1, 16") " s = slice_by_size(x = a, begin = tensor<int32, [4]>([0, 0, 0, 16]), size = tensor<int32, [4]>([1, 32, 1, 16])); "
                                     T("1, 32, 1, 32") " z = tile(x = s, reps = tensor<int32, [4]>([1, 1, 1, 2]));");
static const char conv_text[] = ONE(T("32, 32, 1, 1") " w = const()[val = " T("32, 32, 1, 1") "(1)]; " ABC " z = " CONV("x = a, weight = w") ";");

/* 29 and 30: the value itself is on either side. */
static void values_meet_limits(void **state)
{
    const struct { const char *text; float good, bad, good_is; uint32_t constraint; } cases[] = {
        {slice_text, 4092, 4096, 4092, 29}, {conv_text, 1023.5f, 1024, 32752, 30}};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (int faithful = 0; faithful < 2; faithful++) {
            struct rig g;
            struct sg_npu_opts o = options("m1", faithful);
            segue_error err;
            char word[32];
            rig_open(&g, &o);
            if (rig_load(&g, cases[i].text, NULL, 0, &err)) fail_msg("%s", err.text);
            rig_fill(&g, 0, cases[i].good);
            if (rig_run(&g, &err)) fail_msg("%s", err.text);
            assert_true(sg_f32_of_f16(bytes_of(&g, g.out[0])[5]) == cases[i].good_is);
            rig_fill(&g, 0, cases[i].bad);
            segue_status s = rig_run(&g, &err);
            snprintf(word, sizeof word, "constraint %u", cases[i].constraint);
            if (faithful) {
                assert_int_equal(s, SEGUE_OK);
                assert_true(isinf(sg_f32_of_f16(bytes_of(&g, g.out[0])[5])));
            } else {
                assert_int_equal(s, SEGUE_EUNSUPPORTED);
                assert_non_null(strstr(err.text, word));
            }
            rig_close(&g);
        }
}

/* 4.2: what an engine makes of numbers that are none. */
static void numerics_by_profile(void **state)
{
    struct rig g;
    segue_error err;
    const struct { const char *text; float in, strict, ieee; } cases[] = {      /* strict = NAN: refused there */
        {ONE(ABC " z = sqrt(x = a);"), -1, 0, NAN}, {ONE(ABC " z = mul(x = a, y = fp16(-0.0));"), 1, 0, -0.0f},
        {ONE(ABC " z = log(x = a, epsilon = fp16(0));"), 0, -45440, -INFINITY}, {ONE(ABC " z = exp(x = a);"), 11.09375f, INFINITY, 65536},
        {ONE(ABC " z = maximum(x = a, y = fp16(2));"), NAN, INFINITY, NAN}, {ONE(ABC " z = sub(x = a, y = a);"), INFINITY, 0, NAN},
        {ONE(ABC " z = add(x = a, y = fp16(100));"), 65504, INFINITY, INFINITY}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int mode = 0; mode < 3; mode++) {       /* m1 faithful, m1 refuse, ieee */
            struct sg_npu_opts o = options(mode < 2 ? "m1" : "ieee", mode == 0);
            rig_open(&g, &o);
            if (rig_load(&g, cases[i].text, NULL, 0, &err)) fail_msg("%s", err.text);
            rig_fill(&g, 0, cases[i].in);
            segue_status s = rig_run(&g, &err);
            float is = sg_f32_of_f16(bytes_of(&g, g.out[0])[7]), want = mode == 0 ? cases[i].strict : cases[i].ieee;
            if (want == 65536) want = INFINITY;      /* e^11.09375 is above 65519 */
            if (mode == 1 && (i == 1 || i == 2)) {   /* finite: nothing to refuse */
                assert_int_equal(s, SEGUE_OK);
            } else if (mode == 1) {
                assert_int_equal(s, SEGUE_EUNSUPPORTED);
                assert_non_null(strstr(err.text, "4.2"));
            } else {
                assert_int_equal(s, SEGUE_OK);
                if (isnan(want) ? !isnan(is) : !(is == want && !signbit(is) == !signbit(want))) fail_msg("case %zu mode %d: %g, not %g", i, mode, is, want);
            }
            rig_close(&g);
        }
}

/* 1, 2, 43: surfaces. 46, 40 and injected failures. */
static void surfaces_and_failures(void **state)
{
    struct rig g;
    segue_error err;
    struct sg_npu_opts o = options("strict", 0);
    struct sg_ane_surface *small, *kept;
    const char *two = "program(1.3)\n{\nfunc main<ios16>(" T("1, 32, 1, 512") " a, " T("1, 32, 1, 512") " b) {\n" T("1, 32, 1, 512")
                      " z = add(x = a, y = b);\n} -> (z);\n}\n";
    void *p;
    (void)state;
    rig_open(&g, &o);
    if (rig_load(&g, two, NULL, 0, &err)) fail_msg("%s", err.text);
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(g.d);
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    ops->surface_new(g.d, 1, &small, NULL);
    kept = g.in[0];
    g.in[0] = small;
    assert_int_equal(rig_run(&g, &err), SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "0x1d"));
    assert_non_null(strstr(err.text, "constraint 1"));
    ops->surface_free(small);
    ops->surface_new(g.d, 65536, &small, NULL);
    g.in[0] = small;
    assert_int_equal(rig_run(&g, &err), SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "constraint 2"));
    ops->surface_free(small);
    g.in[0] = kept;
    ops->lock(kept, 1, &p, NULL, NULL);
    assert_int_equal(rig_run(&g, &err), SEGUE_EARG);
    ops->unlock(kept);
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    rig_close(&g);

    o.fail_compile = 1;
    o.rest = 2;
    o.fail_evaluate = 2;
    o.hang_evaluate = 3;
    rig_open(&g, &o);
    assert_int_equal(rig_load(&g, two, NULL, 0, &err), SEGUE_EUNIT);
    assert_int_equal(rig_load(&g, two, NULL, 0, &err), SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "constraint 40"));
    assert_int_equal(rig_load(&g, two, NULL, 0, &err), SEGUE_EUNIT);
    assert_int_equal(rig_load(&g, two, NULL, 0, &err), SEGUE_OK);
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    assert_int_equal(rig_run(&g, &err), SEGUE_EUNIT);
    assert_int_equal(rig_run(&g, &err), SEGUE_ELOST);
    assert_non_null(strstr(err.text, "constraint 46"));
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    rig_close(&g);
}

/* 5 and 6: budgets, and what a restart gives back. */
static void budgets_and_restart(void **state)
{
    struct sg_npu_opts o = options("ieee", 0);
    struct sg_ane_device *d;
    struct sg_ane_program *p[130], *q;
    struct sg_ane_counters c;
    segue_error err;
    struct sg_ane_source s = {.name = "t", .text = conv_text, .text_bytes = sizeof conv_text - 1};
    (void)state;
    assert_int_equal(o.profile.compiles, 119);
    assert_int_equal(o.profile.loads, 128);
    assert_int_equal(sg_npu_open(&d, &o, NULL), SEGUE_OK);
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    for (int i = 0; i < 119; i++) assert_int_equal(ops->load(d, &s, &p[i], &err), SEGUE_OK);
    assert_int_equal(ops->load(d, &s, &q, &err), SEGUE_ELIMIT);
    assert_non_null(strstr(err.text, "constraint 5"));
    s.cached = 1;                            /* loads from the cache cost no compile */
    for (int i = 119; i < 128; i++) assert_int_equal(ops->load(d, &s, &p[i], &err), SEGUE_OK);
    assert_int_equal(ops->load(d, &s, &q, &err), SEGUE_ELIMIT);
    assert_non_null(strstr(err.text, "constraint 6"));
    assert_int_equal(sg_npu_restart(d, &err), SEGUE_EARG);
    for (int i = 0; i < 128; i++) ops->unload(p[i]);
    ops->count(d, &c);
    assert_int_equal(c.compiles, 119);
    assert_int_equal(c.loads, 128);
    assert_int_equal(c.loaded, 0);
    assert_true(c.simulated_ns >= 119 * 20 * 1000000ull);
    assert_int_equal(sg_npu_restart(d, &err), SEGUE_OK);
    assert_int_equal(sg_npu_restarts(d), 1);
    s.cached = 0;
    assert_int_equal(ops->load(d, &s, &q, &err), SEGUE_OK);
    ops->unload(q);
    ops->close(d);
}

/* 8 and 15: weights are those of the compile; blobs are looked at. */
static void weights_are_frozen(void **state)
{
    const char *text = "program(1.0)\n{\nfunc main<ios16>(" ABC " a) {\n" T("1, 32, 1, 1") " w = const()[val = " T("1, 32, 1, 1")
                       "(BLOBFILE(path = string(\"@model_path/w.bin\"), offset = uint64(64)))];\n" ABC " z = mul(x = a, y = w);\n} -> (z);\n}\n";
    segue_error err;
    (void)state;
    for (uint32_t delta = 0; delta < 2; delta++) {
        struct sg_buf file = {0};
        uint16_t w[32];
        uint64_t at;
        struct rig g;
        struct sg_npu_opts o = options("ieee", 0);
        o.delta = delta;
        for (int i = 0; i < 32; i++) w[i] = 0x4000;  /* 2 */
        sg_blob_begin(&file, NULL);
        sg_blob_add(&file, SG_MIL_FP16, w, sizeof w, 0, &at, NULL);
        struct sg_ane_file f = {"w.bin", (uint8_t *)file.data, file.len};
        rig_open(&g, &o);
        if (rig_load(&g, text, &f, 1, &err)) fail_msg("%s", err.text);
        for (int i = 0; i < 32; i++) w[i] = 0x4200;  /* 3 */
        memcpy(file.data + 128, w, sizeof w);
        rig_fill(&g, 0, 5);
        assert_int_equal(rig_run(&g, &err), SEGUE_OK);
        assert_true(sg_f32_of_f16(bytes_of(&g, g.out[0])[3]) == 10);
        assert_int_equal(sg_ane_ops_of(g.d)->reload(g.p, &f, 1, &err), SEGUE_OK);
        assert_int_equal(rig_run(&g, &err), SEGUE_OK);
        assert_true(sg_f32_of_f16(bytes_of(&g, g.out[0])[3]) == (delta ? 15 : 10));
        file.data[64] = 0;
        assert_int_equal(sg_ane_ops_of(g.d)->reload(g.p, &f, 1, &err), SEGUE_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "constraint 15"));
        rig_unload(&g);
        assert_int_equal(rig_load(&g, text, &f, 1, &err), SEGUE_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "sentinel"));
        assert_int_equal(rig_load(&g, text, NULL, 0, &err), SEGUE_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "no such blob file"));
        rig_close(&g);
        sg_buf_free(&file);
    }
}

/* 3, 4, 26, 31, 33, 36: what goes wrong in silence goes wrong in faithful mode, and is refused otherwise. */
static void silent_symptoms_show(void **state)
{
    struct rig g;
    segue_error err;
    const struct { uint32_t constraint; const char *profile, *text; segue_status faithful; int zeros; } cases[] = {
        {26, "m1", "program(1.3)\n{\nfunc main<ios16>(" T("1, 33, 1, 32") " a) {\n" T("1, 33, 1, 32") " z = relu(x = a);\n} -> (z);\n}\n", SEGUE_OK, 1},
        {31, "strict", "program(1.3)\n{\nfunc main<ios16>(" ABC " a) {\n" RELU("x", "a") RELU("y", "a") RELU("z", "a") "} -> (x, y, z);\n}\n", SEGUE_OK, 1},
        {33, "strict", "program(1.3)\n{\nfunc main<ios16>(" T("1, 32, 1, 96") " a) {\n" T("1, 32, 1, 96") " z = softmax(x = a, axis = int32(3));\n} -> (z);\n}\n", SEGUE_EUNIT, 0},
        {36, "m1", "program(1.3)\n{\nfunc main<ios16>(" T("1, 16416") " a) {\n" T("1, 16416") " z = relu(x = a);\n} -> (z);\n}\n", SEGUE_EUNIT, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char word[32];
        struct sg_npu_opts o = options(cases[i].profile, 0);
        snprintf(word, sizeof word, "constraint %u", cases[i].constraint);
        rig_open(&g, &o);
        assert_int_equal(rig_load(&g, cases[i].text, NULL, 0, &err), SEGUE_EUNSUPPORTED);
        if (!strstr(err.text, word)) fail_msg("%s", err.text);
        rig_close(&g);
        o.faithful = 1;
        rig_open(&g, &o);
        if (rig_load(&g, cases[i].text, NULL, 0, &err)) fail_msg("%s", err.text);
        for (uint32_t k = 0; k < g.in_n; k++) rig_fill(&g, k, 3);
        assert_int_equal(rig_run(&g, &err), cases[i].faithful);
        if (cases[i].zeros) assert_int_equal(bytes_of(&g, g.out[0])[9], 0);
        if (cases[i].constraint == 31) assert_true(sg_f32_of_f16(bytes_of(&g, g.out[2])[9]) == 3);
        rig_close(&g);
    }
    /* 3: ports come in the order of their names, whatever the declaration says. */
    struct sg_npu_opts o = options("ieee", 1);
    const struct sg_ane_port *in, *out;
    uint32_t in_n, out_n;
    rig_open(&g, &o);
    assert_int_equal(rig_load(&g, "program(1.3)\n{\nfunc main<ios16>(" ABC " b, " ABC " a) {\n" ABC " z = sub(x = a, y = b);\n} -> (z);\n}\n", NULL, 0, &err), SEGUE_OK);
    sg_ane_ops_of(g.d)->ports(g.p, 0, &in, &in_n, &out, &out_n, NULL);
    assert_string_equal(in[0].name, "a");
    assert_string_equal(in[1].name, "b");
    rig_fill(&g, 0, 7);
    rig_fill(&g, 1, 5);
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    assert_true(sg_f32_of_f16(bytes_of(&g, g.out[0])[9]) == 2);
    rig_close(&g);
}

static void profiles_and_chip_files(void **state)
{
    struct sg_ane_profile p, q;
    segue_error err;
    const char *good = "name M9 # spec\nane_row_bytes 128 bytes # probe\nane_exp_limit 11.5 1 # probe\n  ane_dispatch_us 0x1p7 us\n";
    const struct { const char *text, *word; } bad[] = {
        {"ane_rows 1", "not known"}, {"x 1\nane_row_bytes many", "line 2"}, {"ane_row_bytes -4", "whole number"}, {"ane_tflops nan", "from"},
        {"ane_compiles 1e300", "from"}, {"ane_outputs 1.5", "whole"}, {"ane_channels", "number"}};
    (void)state;
    assert_int_equal(sg_ane_profile_named(&p, "h16", NULL), SEGUE_OK);
    assert_string_equal(p.name, "m4");
    assert_int_equal(sg_ane_profile_named(&p, "m3", &err), SEGUE_EARG);
    assert_int_equal(sg_ane_profile_read(&p, good, strlen(good), "m9.chip", &err), SEGUE_OK);
    assert_int_equal(p.row_bytes, 128);
    assert_true(p.exp_limit == 11.5f && p.dispatch_us == 128);
    q = p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(sg_ane_profile_read(&p, bad[i].text, strlen(bad[i].text), "bad.chip", &err), SEGUE_EFORMAT);
        if (!strstr(err.text, bad[i].word)) fail_msg("%s", err.text);
        assert_memory_equal(&p, &q, sizeof p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_has_two_sides), cmocka_unit_test(no_rule_is_forgotten), cmocka_unit_test(constants_are_named),
        cmocka_unit_test(values_meet_limits), cmocka_unit_test(numerics_by_profile), cmocka_unit_test(surfaces_and_failures),
        cmocka_unit_test(budgets_and_restart), cmocka_unit_test(weights_are_frozen), cmocka_unit_test(silent_symptoms_show),
        cmocka_unit_test(profiles_and_chip_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
