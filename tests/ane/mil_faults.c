/* mil_faults.c: fault injection: each allocation fails once while a program is parsed, checked, printed, loaded and run. The status
 * must report the failure and nothing may leak (checked by the address sanitizer). Needs a build with SEGUE_FAULTS.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifdef SEGUE_FAULTS

#include "mil_samples.h"
#include "base/buf.h"
#include "unit/ane/mil/milbuild.h"
#include "unit/ane/tools/mildiff.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/mil/milprint.h"
#include "unit/ane/blob/mlpackage.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/passes/pass.h"

enum { ATTEMPTS = 100000 };

static segue_status read_and_print(const char *text)
{
    struct sg_mil_program *p = NULL, *q = NULL;
    struct sg_buf out = {0}, lines = {0};
    uint64_t n;
    segue_status s = sg_mil_parse(&p, text, strlen(text), "t", NULL, NULL);
    if (!s) s = sg_mil_print(p, SG_MIL_VERBOSE, &out, NULL);
    if (!s) s = sg_mil_parse(&q, out.data, out.len, "t", NULL, NULL);
    if (!s) s = sg_mil_diff(p, q, &lines, &n, NULL);
    sg_mil_program_free(p);
    sg_mil_program_free(q);
    sg_buf_free(&out);
    sg_buf_free(&lines);
    return s;
}

static segue_status build(const char *unused)
{
    struct sg_mil_program *p = sg_mil_program_new(SG_MIL_VERBOSE);
    struct sg_mil_builder b;
    (void)unused;
    if (!p) return SEGUE_EMEMORY;
    sg_mil_build_begin(&b, p, "main", NULL);
    uint32_t a = sg_mil_build_input(&b, "a", SG_MIL_FP16, SG_MIL_SHAPE(1, 32, 1, 32));
    uint32_t z = sg_mil_build_softmax(&b, sg_mil_build_unary(&b, "relu", a), 3);
    segue_status s = sg_mil_build_end(&b, &z, 1, NULL);
    sg_mil_program_free(p);
    return s;
}

/* A program with work for every pass, then its Core ML model. */
static const char for_passes[] =
    "program(1.3)\n{\n    func main<ios18>(tensor<fp16, [1, 20, 1, 32]> a) {\n"
    "fp16 h = const()[val = fp16(0.5)]; fp16 g = const()[val = fp16(0.5)]; fp16 k = add(x = h, y = g);\n"
    "tensor<fp16, [1, 20, 1, 32]> u = mul(x = a, y = k); tensor<fp16, [1, 20, 1, 32]> v = mul(x = u, y = fp16(4));\n"
    "tensor<fp16, [1, 10, 1, 32]> s, tensor<fp16, [1, 10, 1, 32]> t = split(x = v, num_splits = int32(2), axis = int32(1));\n"
    "tensor<fp16, [1, 20, 1, 32]> c = concat(values = (t, s), axis = int32(-3), interleave = bool(false));\n"
    "tensor<fp16, [1, 20, 1, 32]> e = gelu(x = c, mode = string(\"TANH_APPROXIMATION\")); tensor<fp16, [1, 20, 1, 32]> w = silu(x = a);\n"
    "tensor<fp16, [1, 1, 1, 32]> m = reduce_mean(x = e, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));\n"
    "tensor<fp16, [1, 20, 1, 32]> z = sub(x = e, y = m);\n    } -> (z);\n}\n";

static segue_status pass(const char *text)
{
    struct sg_mil_program *p = NULL;
    struct sg_buf out = {0};
    segue_status s = sg_mil_parse(&p, text, strlen(text), "t", NULL, NULL);
    if (!s) s = sg_passes(p, 32, 32, NULL);
    if (!s) s = sg_mlmodel_write(p, 1, NULL, 0, &out, NULL);
    sg_mil_program_free(p);
    sg_buf_free(&out);
    return s;
}

static segue_status load_and_run(const char *text)
{
    struct sg_npu_opts o = {.threads = 1};
    struct sg_ane_source source = {.name = "t", .text = text, .text_bytes = strlen(text)};
    struct sg_ane_device *d = NULL;
    struct sg_ane_program *p = NULL;
    struct sg_ane_surface *in[2] = {NULL}, *out[1] = {NULL};
    sg_ane_profile_named(&o.profile, "ieee", NULL);
    segue_status s = sg_npu_open(&d, &o, NULL);
    if (s) return s;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    s = ops->load(d, &source, &p, NULL);
    for (int i = 0; i < 2 && !s; i++) s = ops->surface_new(d, 16384, &in[i], NULL);
    if (!s) s = ops->surface_new(d, 16384, &out[0], NULL);
    if (!s) s = ops->evaluate(p, 0, in, out, NULL);
    ops->unload(p);
    for (int i = 0; i < 2; i++) ops->surface_free(in[i]);
    ops->surface_free(out[0]);
    ops->close(d);
    return s;
}

static void every_allocation_may_fail(void **state)
{
    const struct { segue_status (*once)(const char *text); const char *text; } cases[] = {
        {read_and_print, sample_verbose}, {read_and_print, sample_buffer}, {read_and_print, sample_modern}, {build, NULL}, {pass, sample_verbose}, {pass, for_passes},
        {load_and_run, sample_buffer}, {load_and_run, sample_modern}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t n = 1;; n++) {
            assert_true(n < ATTEMPTS);
            sg_fault_alloc(n);
            segue_status s = cases[i].once(cases[i].text);
            sg_fault_alloc(0);
            if (s == SEGUE_OK) break;
            if (s != SEGUE_EMEMORY && s != SEGUE_EUNSUPPORTED) fail_msg("case %zu, allocation %d: status %d", i, (int)n, s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("SKIP mil_faults: this build has no fault hooks (SEGUE_FAULTS)");
    return 77;
}

#endif
