/* npu_rules.c: the software NPU when values, surfaces or budgets break a rule, in both modes. Numbers are those of the
 * constraints in docs/ANE.md. The rules of texts and blob files are tested by rule_table.c.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "npu_rig.h"
#include "unit/ane/blob/blob.h"

#define INFO "[buildInfo = dict<string, string>({{\"a\", \"b\"}})]\n"
#define ONE(body) "program(1.3)\n" INFO "{\nfunc main<ios16>(" ABC " a) {\n" body "\n} -> (z);\n}\n"
static const char conv_text[] = ONE(T("32, 32, 1, 1") " w = const()[val = " T("32, 32, 1, 1") "(1)]; " ABC " z = " CONV("x = a, weight = w") ";");

/* NaN, infinity and signed zero under each profile. */
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
                if (isnan(want) ? !isnan(is) : !(is == want && !signbit(is) == !signbit(want)))
                    fail_msg("case %zu mode %d: %g, not %g", i, mode, is, want);
            }
            rig_close(&g);
        }
}

static const char two_inputs[] = "program(1.3)\n" INFO "{\nfunc main<ios16>(" T("1, 32, 1, 512") " a, " T("1, 32, 1, 512") " b) {\n" T("1, 32, 1, 512")
                                 " z = add(x = a, y = b);\n} -> (z);\n}\n";

/* A new surface of `bytes`, bound as input 0, is refused with this text. Afterwards the previous surface is bound again. */
static void refuses_surface(struct rig *g, struct sg_ane_device *from, uint64_t bytes, const char *word)
{
    struct sg_ane_surface *odd, *kept = g->in[0];
    segue_error err;
    assert_int_equal(sg_ane_ops_of(from)->surface_new(from, bytes, &odd, NULL), SEGUE_OK);
    g->in[0] = odd;
    assert_int_equal(rig_run(g, &err), SEGUE_EUNIT);
    if (!strstr(err.text, "0x1d") || !strstr(err.text, word)) fail_msg("%s", err.text);
    sg_ane_ops_of(from)->surface_free(odd);
    g->in[0] = kept;
    assert_int_equal(rig_run(g, &err), SEGUE_OK);
}

/* Constraints 1, 2, 43, where an engine reports 0x1d and so do both modes: a surface that is one unit too small, one of another
 * size than the other input's, one that is not a multiple of the unit. Locked surfaces are refused. */
static void surfaces(void **state)
{
    (void)state;
    for (int faithful = 0; faithful < 2; faithful++) {
        struct rig g, thin;
        segue_error err;
        void *p;
        struct sg_npu_opts o = options("strict", faithful), one_byte = o;
        one_byte.profile.surface_bytes = 1;
        rig_open(&g, &o);
        rig_open(&thin, &one_byte);
        if (rig_load(&g, two_inputs, NULL, 0, &err)) fail_msg("%s", err.text);
        const struct sg_ane_device_ops *ops = sg_ane_ops_of(g.d);
        assert_int_equal(g.ports[0].surface_bytes, 32 * 1024);
        assert_int_equal(rig_run(&g, &err), SEGUE_OK);
        refuses_surface(&g, g.d, 16 * 1024, "constraint 1:");
        refuses_surface(&g, thin.d, 32 * 1024 - 1, "constraint 1:");
        refuses_surface(&g, g.d, 48 * 1024, "constraint 2:");
        refuses_surface(&g, thin.d, 32 * 1024 + 64, "constraint 43:");
        ops->lock(g.in[0], 1, &p, NULL, NULL);
        assert_int_equal(rig_run(&g, &err), SEGUE_EARG);
        ops->unlock(g.in[0]);
        assert_int_equal(rig_run(&g, &err), SEGUE_OK);
        rig_close(&g);
        rig_close(&thin);
    }
    struct rig g; /* without constraint 2: sizes may differ; the minimum is 16 KiB */
    segue_error err;
    struct sg_npu_opts o = options("ieee", 0);
    rig_open(&g, &o);
    assert_int_equal(rig_load(&g, "program(1.3)\n" INFO "{\nfunc main<ios16>(" T("1, 1, 1, 32") " a, " T("1, 32, 1, 512") " b) {\n" T("1, 32, 1, 512")
                              " y = tile(x = b, reps = tensor<int32, [4]>([1, 1, 1, 1])); " T("1, 1, 1, 32") " z = relu(x = a);\n} -> (y, z);\n}\n",
                              NULL, 0, &err), SEGUE_OK);
    assert_int_equal(g.ports[0].surface_bytes, 16 * 1024);
    assert_int_equal(g.ports[1].surface_bytes, 32 * 1024);
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    rig_close(&g);
}

/* Constraints 46 and 40, and injected failures. */
static void injected_failures(void **state)
{
    struct rig g;
    segue_error err;
    struct sg_npu_opts o = options("strict", 0);
    (void)state;
    o.fail_compile = 1;
    o.refusals = 2;
    o.fail_evaluate = 2;
    o.hang_evaluate = 3;
    rig_open(&g, &o);
    assert_int_equal(rig_load(&g, two_inputs, NULL, 0, &err), SEGUE_EUNIT);
    assert_int_equal(rig_load(&g, two_inputs, NULL, 0, &err), SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "constraint 40"));
    assert_int_equal(rig_load(&g, two_inputs, NULL, 0, &err), SEGUE_EUNIT);
    assert_int_equal(rig_load(&g, two_inputs, NULL, 0, &err), SEGUE_OK);
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    assert_int_equal(rig_run(&g, &err), SEGUE_EUNIT);
    assert_int_equal(rig_run(&g, &err), SEGUE_ELOST);
    assert_non_null(strstr(err.text, "constraint 46"));
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    rig_close(&g);
}

/* Constraints 5 and 6: budgets, and their reset by a restart. */
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
    s.cached = 1;                            /* a load from the cache costs no compile */
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

/* Constraints 8 and 15: a reload of changed blob files is refused (refuse), has no effect (faithful), or changes the weights
 * (delta). Blob files are validated. */
static void weights_are_frozen(void **state)
{
    const char *text = "program(1.3)\n" INFO "{\nfunc main<ios16>(" ABC " a) {\n" T("1, 32, 1, 1") " w = const()[val = " T("1, 32, 1, 1")
                       "(BLOBFILE(path = string(\"@model_path/w.bin\"), offset = uint64(64)))];\n" ABC " y = mul(x = a, y = w);\n" ABC
                       " z = add(x = y, y = fp16(1));\n} -> (z);\n}\n";
    segue_error err;
    (void)state;
    for (uint32_t mode = 0; mode < 3; mode++) { /* refuse, faithful, delta */
        struct sg_buf file = {0};
        uint16_t w[32];
        uint64_t at;
        struct rig g;
        struct sg_npu_opts o = options("ieee", mode == 1);
        o.delta = mode == 2;
        for (int i = 0; i < 32; i++) w[i] = 0x4000;  /* 2 */
        sg_blob_begin(&file, NULL);
        sg_blob_add(&file, SG_MIL_FP16, w, sizeof w, 0, &at, NULL);
        struct sg_ane_file f = {"w.bin", (uint8_t *)file.data, file.len};
        rig_open(&g, &o);
        if (rig_load(&g, text, &f, 1, &err)) fail_msg("%s", err.text);
        const struct sg_ane_device_ops *ops = sg_ane_ops_of(g.d);
        rig_fill(&g, 0, 5);
        for (int i = 0; i < 32; i++) w[i] = 0x4200;  /* 3 */
        assert_int_equal(ops->reload(g.p, &f, 1, &err), SEGUE_OK);
        memcpy(file.data + 128, w, sizeof w);
        assert_int_equal(rig_run(&g, &err), SEGUE_OK);
        assert_true(sg_f32_of_f16(bytes_of(&g, g.out[0])[3]) == 11);
        assert_int_equal(ops->reload(g.p, &f, 1, &err), mode ? SEGUE_OK : SEGUE_EUNSUPPORTED);
        if (!mode) assert_non_null(strstr(err.text, "constraint 8"));
        assert_int_equal(rig_run(&g, &err), SEGUE_OK);
        assert_true(sg_f32_of_f16(bytes_of(&g, g.out[0])[3]) == (mode == 2 ? 16 : 11));
        file.data[64] = 0;
        assert_int_equal(ops->reload(g.p, &f, 1, &err), SEGUE_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "constraint 15"));
        rig_unload(&g);
        if (mode != 1) {
            assert_int_equal(rig_load(&g, text, &f, 1, &err), SEGUE_EUNSUPPORTED);
            assert_non_null(strstr(err.text, "sentinel"));
        }
        assert_int_equal(rig_load(&g, text, NULL, 0, &err), mode == 1 ? SEGUE_EFORMAT : SEGUE_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "no such blob file"));
        rig_close(&g);
        sg_buf_free(&file);
    }
}

/* Constraint 3: ports are sorted by name, in any order of declaration, so that binding by name is correct. */
static void ports_by_name(void **state)
{
    struct rig g;
    segue_error err;
    (void)state;
    struct sg_npu_opts o = options("ieee", 1);
    const struct sg_ane_port *in, *out;
    uint32_t in_n, out_n;
    rig_open(&g, &o);
    assert_int_equal(rig_load(&g,
                              "program(1.3)\n" INFO "{\nfunc main<ios16>(" ABC " b, " ABC " a) {\n" ABC
                              " z = sub(x = a, y = b);\n} -> (z);\n}\n",
                              NULL, 0, &err),
                     SEGUE_OK);
    sg_ane_ops_of(g.d)->ports(g.p, 0, &in, &in_n, &out, &out_n, NULL);
    assert_string_equal(in[0].name, "a");
    assert_string_equal(in[1].name, "b");
    rig_fill(&g, 0, 7);
    rig_fill(&g, 1, 5);
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    assert_true(sg_f32_of_f16(bytes_of(&g, g.out[0])[9]) == 2);
    rig_close(&g);
}

/* Constraint 21 and the times of a profile: a dispatch, the larger of compute and memory time; compiles, loads. */
static void simulated_time(void **state)
{
    static const char slow[] = "ane_dispatch_us 100 us\nane_tflops 0.001 TFLOPS\nane_weight_gb_s 1000 GB/s\nane_activation_gb_s 1000 GB/s\n"
                               "ane_compile_ms 3 ms\nane_load_ms 2 ms\n";
    static const char narrow[] = "ane_dispatch_us 100 us\nane_tflops 1000 TFLOPS\nane_weight_gb_s 0.001 GB/s\nane_activation_gb_s 0.016384 GB/s\n"
                                 "ane_compile_ms 3 ms\nane_load_ms 2 ms\n";
    const struct { const char *chip; uint64_t dispatch_ns; } cases[] = {
        {slow, 100000 + 65536},                                      /* 2 x 32 x 32 x 32 operations, 1 per ns */
        {narrow, 100000 + 2048 * 1000 + 2 * 1000 * 1000}};           /* 2,048 bytes of weights; two surfaces of 16,384 */
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct rig g;
        segue_error err;
        struct sg_ane_counters loaded, ran;
        struct sg_npu_opts o = options("ieee", 0);
        assert_int_equal(sg_ane_profile_read(&o.profile, cases[i].chip, strlen(cases[i].chip), "t.chip", &err), SEGUE_OK);
        rig_open(&g, &o);
        assert_int_equal(rig_load(&g, conv_text, NULL, 0, &err), SEGUE_OK);
        sg_ane_ops_of(g.d)->count(g.d, &loaded);
        assert_int_equal(loaded.simulated_ns, 5000000);
        for (int k = 0; k < 3; k++) assert_int_equal(rig_run(&g, &err), SEGUE_OK);
        sg_ane_ops_of(g.d)->count(g.d, &ran);
        assert_int_equal(ran.dispatches, 3);
        assert_int_equal(ran.flops, 3 * 65536);
        assert_int_equal(ran.weight_bytes, 3 * 2048);
        assert_int_equal(ran.input_bytes, 3 * 16384);
        assert_int_equal(ran.output_bytes, 3 * 16384);
        assert_int_equal((ran.simulated_ns - loaded.simulated_ns) / 3, cases[i].dispatch_ns);
        rig_close(&g);
    }
}

static void profiles_and_chip_files(void **state)
{
    struct sg_ane_profile p, q;
    segue_error err;
    const char *good = "name M9 # spec\nane_row_bytes 128 bytes # probe\nane_exp_limit 11.5 1 # probe\n  ane_dispatch_us 0x1p7 us\n";
    const struct { const char *text, *word; } bad[] = {
        {"ane_rows 1", "unknown key"}, {"x 1\nane_row_bytes many", "line 2"}, {"ane_row_bytes -4", "whole number"}, {"ane_tflops nan", "from"},
        {"ane_compiles 1e300", "from"}, {"ane_loads 0", "from"}, {"ane_dispatch_us -1", "from"}, {"ane_tflops = 3", "number"}, {"\x01\x7f\x45LF", "0x01"},
        {"name x\nane_sram_bytes 0x", "line 2"}, {"# \x1b[2J", "0x1b"}, {"ane_ 3", "unknown key"}, {"ane_outputs 1.5", "whole"}, {"ane_channels", "number"}};
    (void)state;
    assert_int_equal(sg_ane_profile_named(&p, "h16", NULL), SEGUE_OK);
    assert_string_equal(p.name, "m4");
    assert_int_equal(sg_ane_profile_named(&p, "m9", &err), SEGUE_EARG);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(numerics_by_profile), cmocka_unit_test(surfaces),
                                       cmocka_unit_test(injected_failures),   cmocka_unit_test(budgets_and_restart),
                                       cmocka_unit_test(weights_are_frozen),  cmocka_unit_test(ports_by_name),
                                       cmocka_unit_test(simulated_time),      cmocka_unit_test(profiles_and_chip_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
