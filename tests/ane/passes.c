/* passes.c: each pass alone: which operations it removes or replaces, that the results do not change, and that a second run makes
 * no change.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/num.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/mil/milprint.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/passes/pass.h"

#define T(shape) "tensor<fp16, [" shape "]>"
#define A T("1, 32, 1, 32")
#define I4(a) "tensor<int32, [4]>([" a "])"

typedef segue_status pass_fn(struct sg_mil_program *p, uint64_t *changes, segue_error *err);

static struct sg_mil_program *read(const char *params, const char *body, const char *results)
{
    struct sg_buf text = {0};
    struct sg_mil_program *p = NULL;
    segue_error err = {0};
    sg_buf_printf(&text, "program(1.3)\n{\n    func main<ios18>(%s) {\n%s\n    } -> (%s);\n}\n", params, body, results);
    if (sg_mil_parse(&p, text.data, text.len, "t.mil", NULL, &err)) fail_msg("%s", err.text);
    sg_buf_free(&text);
    return p;
}

static char *print(const struct sg_mil_program *p)
{
    struct sg_buf out = {0};
    assert_int_equal(sg_mil_print(p, SG_MIL_MODERN, &out, NULL), SEGUE_OK);
    return out.data;
}

static uint32_t count(const struct sg_mil_program *p, const char *kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->functions[0].ops_n; i++) n += !strcmp(p->functions[0].ops[i].kind, kind);
    return n;
}

static void sound(const struct sg_mil_program *p)
{
    struct sg_mil_faults faults = {0};
    sg_mil_check_types(p, &faults);
    if (faults.n) fail_msg("%s", faults.list[0].text);
    sg_mil_faults_free(&faults);
}

/* Runs a program under the profile ieee with bounded sine waves as inputs. out: [1024], the last result. */
static void run(const struct sg_mil_program *p, float *out)
{
    struct sg_npu_opts o = {.threads = 1};
    struct sg_ane_device *d;
    struct sg_ane_program *program;
    struct sg_ane_surface *in[4], *results[4];
    const struct sg_ane_port *ports[2];
    uint32_t n[2];
    segue_error err = {0};
    void *bytes;
    char *text = print(p);
    assert_int_equal(sg_ane_profile_named(&o.profile, "ieee", &err), SEGUE_OK);
    assert_int_equal(sg_npu_open(&d, &o, &err), SEGUE_OK);
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    struct sg_ane_source source = {.name = "t", .text = text, .text_bytes = strlen(text)};
    if (ops->load(d, &source, &program, &err)) fail_msg("%s\n%s", err.text, text);
    assert_int_equal(ops->ports(program, 0, &ports[0], &n[0], &ports[1], &n[1], &err), SEGUE_OK);
    for (uint32_t i = 0; i < n[0]; i++) {
        assert_int_equal(ops->surface_new(d, ports[0][i].surface_bytes, &in[i], &err), SEGUE_OK);
        assert_int_equal(ops->lock(in[i], 1, &bytes, NULL, &err), SEGUE_OK);
        for (uint64_t k = 0; k < ports[0][i].surface_bytes / 2; k++)
            ((uint16_t *)bytes)[k] = sg_f16_of_f32(3 * sinf((float)k * 0.7F + (float)i));
        ops->unlock(in[i]);
    }
    for (uint32_t i = 0; i < n[1]; i++)
        assert_int_equal(ops->surface_new(d, ports[1][i].surface_bytes, &results[i], &err), SEGUE_OK);
    if (ops->evaluate(program, 0, in, results, &err)) fail_msg("%s", err.text);
    assert_int_equal(ops->lock(results[n[1] - 1], 0, &bytes, NULL, &err), SEGUE_OK);
    for (int k = 0; k < 1024; k++) out[k] = sg_f32_of_f16(((uint16_t *)bytes)[k]);
    ops->unlock(results[n[1] - 1]);
    for (uint32_t i = 0; i < n[0]; i++) ops->surface_free(in[i]);
    for (uint32_t i = 0; i < n[1]; i++) ops->surface_free(results[i]);
    ops->unload(program);
    ops->close(d);
    sg_free(text);
}

/* A body, and how often some operations occur in it after the pass; its first result z is [1, 32, 1, 32]. */
struct sample {
    const char *body;
    const char *kinds[4];
    uint32_t times[4];
    float off; /* largest accepted difference; below 0: the program cannot run before the pass */
};

static void passes(pass_fn *pass, const struct sample *s)
{
    struct sg_mil_program *p = read(A " a, " A " b", s->body, "z");
    float before[1024] = {0}, after[1024];
    uint64_t changes = 0;
    segue_error err = {0};
    if (s->off >= 0) run(p, before);
    if (pass(p, &changes, &err)) fail_msg("%s\n%s", s->body, err.text);
    sound(p);
    char *once = print(p);
    if (!changes) fail_msg("nothing changed: %s", s->body);
    for (int i = 0; i < 4 && s->kinds[i]; i++)
        if (count(p, s->kinds[i]) != s->times[i]) fail_msg("%u times %s:\n%s", count(p, s->kinds[i]), s->kinds[i], once);
    if (pass != sg_pass_fuse) { /* fuse leaves unread operations, which may equal others: a second run would merge them */
        changes = 0;
        assert_int_equal(pass(p, &changes, &err), SEGUE_OK);
        char *twice = print(p);
        assert_string_equal(once, twice);
        assert_int_equal(changes, 0);
        sg_free(twice);
    }
    run(p, after);
    for (int i = 0; s->off >= 0 && i < 1024; i++)
        if (!(fabsf(before[i] - after[i]) <= s->off))
            fail_msg("number %d: %g, then %g: %s", i, (double)before[i], (double)after[i], once);
    sg_free(once);
    sg_mil_program_free(p);
}

static void dead_code_goes(void **state)
{
    const struct sample s = {A " u = relu(x = a); " A " v = exp(x = u); " A " z = mul(x = b, y = fp16(2)); " A " w = add(x = z, y = v);",
                             {"relu", "exp", "add", "mul"}, {0, 0, 0, 1}, 0};
    (void)state;
    passes(sg_pass_dead, &s);
}

static void constants_become_one(void **state)
{
    const struct sample list[] = {
        {A " u = mul(x = a, y = fp16(0.5)); fp16 h = const()[val = fp16(0.5)]; fp16 g = const()[val = fp16(0.5)]; " A
         " v = mul(x = b, y = h); " A " w = mul(x = v, y = g); " A " z = add(x = u, y = w);", {"const", "mul"}, {1, 3}, 0},
        {"fp16 h = const()[val = fp16(3)]; fp16 g = const()[val = fp16(0.25)]; fp16 k = add(x = h, y = g); fp16 m = exp(x = k); " A
         " z = mul(x = a, y = m);", {"add", "exp", "mul"}, {0, 0, 1}, 0},
        {T("1, 32, 1, 1") " h = const()[val = " T("1, 32, 1, 1") "(2)]; " T("1, 1, 1, 32") " g = const()[val = " T("1, 1, 1, 32") "(0.5)]; " A
         " k = sub(x = h, y = g); " A " z = add(x = a, y = k);", {"sub", "add"}, {0, 1}, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) passes(sg_pass_const, &list[i]);
}

static void chains_shrink(void **state)
{
    const struct sample list[] = {
        {A " u = exp(x = a); " A " v = exp(x = a); " A " z = sub(x = u, y = v);", {"exp"}, {1}, 0},
        {A " u = mul(x = a, y = fp16(0x1p-4)); " A " v = mul(x = u, y = fp16(6)); " A " z = add(x = v, y = b);", {"add"}, {1}, 0.01F},
        {A " u = mul(x = a, y = fp16(1)); " A " v = add(x = u, y = fp16(0)); " A " w = identity(x = v); " A " z = relu(x = w);",
         {"mul", "add", "identity"}, {0, 0, 0}, 0},
        {T("32, 32") " u = reshape(x = a, shape = tensor<int32, [2]>([32, 32])); " T("1, 32, 32, 1") " v = reshape(x = u, shape = "
         I4("1, 32, 32, 1") "); " A " w = reshape(x = v, shape = " I4("1, 32, 1, 32") "); " A " z = relu(x = w);", {"relu"}, {1}, 0},
        {T("1, 32, 32, 1") " u = transpose(x = a, perm = " I4("0, 3, 1, 2") "); " A " v = transpose(x = u, perm = " I4("0, 2, 3, 1") "); " A
         " z = relu(x = v);", {"relu"}, {1}, 0},
        {T("1, 64, 1, 32") " u = concat(values = (a, b), axis = int32(1), interleave = bool(false)); " A " z = slice_by_size(x = u, begin = "
         I4("0, 32, 0, 0") ", size = " I4("1, 32, 1, 32") ");", {"slice_by_size", "identity"}, {0, 1}, 0},
        {T("1, 16, 1, 32") " u = slice_by_size(x = a, begin = " I4("0, 8, 0, 0") ", size = " I4("1, 16, 1, 32") "); " T("1, 1, 1, 32")
         " v = slice_by_size(x = u, begin = " I4("0, 4, 0, 0") ", size = " I4("1, 1, 1, 32") "); " A " z = add(x = b, y = v);",
         {"slice_by_size"}, {2}, 0},
        {T("1, 64, 1, 32") " u = concat(values = (a, b), axis = int32(1), interleave = bool(false)); " T("1, 96, 1, 32") " v = concat(values = "
         "(u, a), axis = int32(1), interleave = bool(false)); " A " z = slice_by_size(x = v, begin = " I4("0, 64, 0, 0") ", size = "
         I4("1, 32, 1, 32") ");", {"slice_by_size"}, {0}, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) passes(sg_pass_fuse, &list[i]);
}

/* Cases that must not be fused: different arguments, a slice that spans two parts or interleaved ones, a product
 * of scales that is not exact. */
static void what_differs_stays(void **state)
{
    const char *const bodies[] = {
        A " u = mul(x = a, y = b); " A " v = mul(x = a, y = a); " A " z = add(x = u, y = v);",
        T("1, 64, 1, 32") " u = concat(values = (a, b), axis = int32(1), interleave = bool(false)); " A " z = slice_by_size(x = u, begin = "
        I4("0, 16, 0, 0") ", size = " I4("1, 32, 1, 32") ");",
        T("1, 64, 1, 32") " u = concat(values = (a, b), axis = int32(1), interleave = bool(true)); " A " z = slice_by_size(x = u, begin = "
        I4("0, 0, 0, 0") ", size = " I4("1, 32, 1, 32") ");",
        A " u = mul(x = a, y = fp16(0x1.004p0)); " A " z = mul(x = u, y = fp16(0x1.004p0));"};
    uint64_t changes = 0;
    segue_error err = {0};
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct sg_mil_program *p = read(A " a, " A " b", bodies[i], "z");
        assert_int_equal(sg_pass_fuse(p, &changes, &err), SEGUE_OK);
        assert_int_equal(changes, 0);
        sg_mil_program_free(p);
    }
}

static void refused_operations_are_written_otherwise(void **state)
{
    const struct sample list[] = {
        {A " z = silu(x = a);", {"silu", "exp"}, {0, 1}, 4e-3F},
        {A " z = sigmoid(x = a);", {"sigmoid", "exp"}, {0, 1}, 1e-3F},
        {A " z = tanh(x = a);", {"tanh", "exp"}, {0, 1}, 2e-3F},
        {A " z = gelu(x = a, mode = string(\"EXACT\"));", {"gelu", "erf"}, {0, 1}, 4e-3F},
        {A " z = gelu(x = a, mode = string(\"TANH_APPROXIMATION\"));", {"gelu", "exp"}, {0, 1}, 4e-3F},
        {A " u = exp(x = a); " A " z = rsqrt(x = u);", {"rsqrt", "pow"}, {0, 1}, -1},
        {A " u = exp(x = a); " A " z = inverse(x = u);", {"inverse", "real_div"}, {0, 1}, -1},
        {A " z = neg(x = a);", {"neg", "mul"}, {0, 1}, -1},
        {T("1, 1, 1, 32") " u = reduce_mean(x = a, axes = tensor<int32, [1]>([1]), keep_dims = bool(true)); " A " z = sub(x = a, y = u);",
         {"reduce_mean", "reduce_sum"}, {0, 1}, 8e-3F},
        {T("1, 16, 1, 32") " u, " T("1, 16, 1, 32") " v = split(x = a, num_splits = int32(2), axis = int32(1)); " A
         " z = concat(values = (v, u), axis = int32(-3), interleave = bool(false));", {"split", "slice_by_size", "concat"}, {0, 2, 1}, -1},
        {T("32, 32, 1, 1") " w = const()[val = " T("32, 32, 1, 1") "(0x1p-5)]; " T("32") " k = const()[val = " T("32") "(1.5)]; " A
         " z = conv(x = a, weight = w, bias = k, strides = tensor<int32, [2]>([1, 1]), pad_type = string(\"valid\"), pad = " I4("0, 0, 0, 0")
         ", dilations = tensor<int32, [2]>([1, 1]), groups = int32(1));", {"conv", "add"}, {1, 1}, -1},
        {T("1, 2, 16, 32") " u = reshape(x = a, shape = " I4("1, 2, 16, 32") "); " T("1, 2, 16, 32") " v = reshape(x = b, shape = "
         I4("1, 2, 16, 32") "); " T("1, 2, 16, 32") " w = scaled_dot_product_attention(query = u, key = v, value = v); " A
         " z = reshape(x = w, shape = " I4("1, 32, 1, 32") ");", {"scaled_dot_product_attention", "matmul", "softmax"}, {0, 2, 1}, 1e-2F}};
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) passes(sg_pass_legal, &list[i]);
}

/* Ports of odd sizes are padded and sorted, the padding of results is 0, and the values equal those before the pass. */
static void ports_become_surfaces(void **state)
{
    static const char *const bad[] = {"tensor<fp16, [32, 32]> a", "tensor<fp16, [1, 32, 2, 32]> a",
                                      "tensor<fp32, [1, 32, 1, 32]> a"};
    struct sg_mil_program *p = read(T("1, 64, 1, 32") " in_big, " T("1, 20, 1, 32") " in_x", T("1, 20, 1, 32") " s = slice_by_size(x = in_big, begin = "
        I4("0, 8, 0, 0") ", size = " I4("1, 20, 1, 32") "); " T("1, 20, 1, 32") " to_sum = add(x = s, y = in_x); " T("1, 64, 1, 32")
        " to_wide = mul(x = in_big, y = fp16(0.5));", "to_sum, to_wide");
    uint64_t changes = 0;
    segue_error err = {0};
    float got[1024];
    (void)state;
    assert_int_equal(sg_pass_layout(p, 32, 32, &changes, &err), SEGUE_OK);
    sound(p);
    const struct sg_mil_function *f = &p->functions[0];
    assert_string_equal(f->values[0].name, "a_x");
    assert_string_equal(f->values[1].name, "b_big");
    assert_int_equal(f->values[0].type.dim[1], 32);
    assert_string_equal(f->values[f->returns[0]].name, "y_wide");
    assert_string_equal(f->values[f->returns[1]].name, "z_sum");
    run(p, got);
    for (int c = 0; c < 32; c++)
        for (int s = 0; s < 32; s++) {
            float a = sg_f32_of_f16(sg_f16_of_f32(3 * sinf((float)(c * 32 + s) * 0.7F))),
                  b = sg_f32_of_f16(sg_f16_of_f32(3 * sinf((float)((c + 8) * 32 + s) * 0.7F + 1)));
            if (fabsf(got[c * 32 + s] - (c < 20 ? a + b : 0)) > 4e-3F)
                fail_msg("channel %d, column %d: %g", c, s, (double)got[c * 32 + s]);
        }
    changes = 0;
    assert_int_equal(sg_pass_layout(p, 32, 32, &changes, &err), SEGUE_OK);
    assert_int_equal(changes, 0);
    sg_mil_program_free(p);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p = read(bad[i], A " k = const()[val = " A "(1)]; " A " z = relu(x = k);", "z");
        assert_int_equal(sg_pass_layout(p, 32, 32, &changes, &err), SEGUE_EUNSUPPORTED);
        assert_int_equal(p->functions[0].params_n, 1);
        sg_mil_program_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(dead_code_goes),
                                       cmocka_unit_test(constants_become_one),
                                       cmocka_unit_test(chains_shrink),
                                       cmocka_unit_test(what_differs_stays),
                                       cmocka_unit_test(ports_become_surfaces),
                                       cmocka_unit_test(refused_operations_are_written_otherwise)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
