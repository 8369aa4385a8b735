/* apple_sequence.c: the private interface against the test double: order of calls, arguments, lifetimes; each failure; ten
 * thousand loads.
 * SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "apple_double.h"
#include "base/mem.h"
#include "base/num.h"
#include "unit/ane/aneunit.h"
#include "unit/ane/blob/blob.h"
#include "unit/spec.h"

extern const struct sg_unit_ops sg_unit_ane;

#define T "tensor<fp16, [1, 32, 1, 32]>"
static const char one_text[] =
    "program(1.0)\n{\nfunc main<ios16>(" T " a) {\n" T " w = const()[val = " T
    "(BLOBFILE(path = string(\"@model_path/weights/w.bin\"), offset = uint64(64)))];\n" T
    " z = mul(x = a, y = w);\n} -> (z);\n}\n";
static const char two_text[] =
    "program(1.0)\n{\nfunc main<ios16>(" T " a_in, " T " b_in) {\n" T " y_out = relu(x = a_in);\n" T
    " z_out = relu(x = b_in);\n} -> (y_out, z_out);\n}\n";

struct apple_rig {
    struct sg_ane_device *d;
    struct sg_ane_program *p;
    struct sg_ane_surface *in[2], *out[2];
    const struct sg_ane_port *in_ports, *out_ports;
    uint32_t in_n, out_n;
};

static struct sg_ane_source source_of(const char *text, const struct sg_ane_file *f)
{
    return (struct sg_ane_source){
        .name = "t", .text = text, .text_bytes = strlen(text), .files = f, .files_n = f ? 1 : 0};
}

static const struct sg_ane_file *weights(void)
{
    static uint8_t bytes[128 + 2048];
    static const struct sg_ane_file f = {"weights/w.bin", bytes, sizeof bytes};
    struct sg_buf file = {0};
    uint16_t w[1024] = {0};
    uint64_t at;
    if (bytes[0]) return &f; /* written by the first call */
    sg_blob_begin(&file, NULL);
    sg_blob_add(&file, SG_MIL_FP16, w, sizeof w, 0, &at, NULL);
    memcpy(bytes, file.data, sizeof bytes);
    sg_buf_free(&file);
    return &f;
}

static segue_status rig_open(struct apple_rig *g, const struct double_opts *o, const char *text,
                             const struct sg_apple_opts *limits, segue_error *err)
{
    memset(g, 0, sizeof *g);
    segue_status s = sg_apple_open(&g->d, double_begin(o), limits, err);
    if (s) return s;
    struct sg_ane_source source = source_of(text, text == one_text ? weights() : NULL);
    source.cached = (uint32_t)o->cached;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(g->d);
    s = ops->load(g->d, &source, &g->p, err);
    if (s) return s;
    ops->ports(g->p, 0, &g->in_ports, &g->in_n, &g->out_ports, &g->out_n, NULL);
    for (uint32_t i = 0; i < g->in_n && !s; i++)
        s = ops->surface_new(g->d, g->in_ports[i].surface_bytes, &g->in[i], err);
    for (uint32_t i = 0; i < g->out_n && !s; i++)
        s = ops->surface_new(g->d, g->out_ports[i].surface_bytes, &g->out[i], err);
    return s;
}

static segue_status rig_run(struct apple_rig *g, segue_error *err)
{
    return sg_ane_ops_of(g->d)->evaluate(g->p, 0, g->in, g->out, err);
}

static void rig_close(struct apple_rig *g)
{
    if (!g->d) return;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(g->d);
    ops->unload(g->p);
    for (int i = 0; i < 2; i++) {
        ops->surface_free(g->in[i]);
        ops->surface_free(g->out[i]);
    }
    ops->close(g->d);
    g->d = NULL;
}

/* The double has seen no wrong call, and no object is left. */
static void all_gone(const char *when)
{
    struct double_counts c = double_counts();
    if (c.wrongs) fail_msg("%s: %d wrong uses: %s", when, c.wrongs, c.wrong);
    if (c.live_objects || c.live_surfaces || c.live_cf || c.open_pools)
        fail_msg("%s: left: %d objects, %d surfaces, %d of Core Foundation, %d pools", when, c.live_objects,
                 c.live_surfaces, c.live_cf, c.open_pools);
    if (double_folder_entries()) fail_msg("%s: the temporary folder is not empty", when);
    double_end();
}

static void put(struct apple_rig *g, struct sg_ane_surface *s, float v)
{
    void *bytes;
    uint64_t n;
    uint16_t half = sg_f16_of_f32(v);
    assert_int_equal(sg_ane_ops_of(g->d)->lock(s, 1, &bytes, &n, NULL), SEGUE_OK);
    assert_int_equal(n % 16384, 0);
    memcpy(bytes, &half, 2);
    sg_ane_ops_of(g->d)->unlock(s);
}

static float get(struct apple_rig *g, struct sg_ane_surface *s)
{
    void *bytes;
    assert_int_equal(sg_ane_ops_of(g->d)->lock(s, 0, &bytes, NULL, NULL), SEGUE_OK);
    float v = sg_f32_of_f16(sg_le16(bytes));
    sg_ane_ops_of(g->d)->unlock(s);
    return v;
}

static void whole_sequence(void **state)
{
    struct apple_rig g;
    segue_error err = {0};
    (void)state;
    if (rig_open(&g, &(struct double_opts){0}, one_text, NULL, &err)) fail_msg("%s", err.text);
    assert_int_equal(double_folder_entries(), 1);
    put(&g, g.in[0], 5);
    for (int i = 0; i < 3; i++)
        if (rig_run(&g, &err)) fail_msg("%s", err.text);
    assert_true(get(&g, g.out[0]) == 105);
    void *bytes;
    sg_ane_ops_of(g.d)->lock(g.in[0], 1, &bytes, NULL, NULL);
    assert_int_equal(rig_run(&g, &err), SEGUE_EARG);
    assert_int_equal(sg_ane_ops_of(g.d)->lock(g.in[0], 1, &bytes, NULL, NULL), SEGUE_EARG);
    sg_ane_ops_of(g.d)->unlock(g.in[0]);
    assert_int_equal(sg_ane_ops_of(g.d)->reload(g.p, weights(), 1, &err), SEGUE_OK);
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    struct sg_ane_counters n;
    sg_ane_ops_of(g.d)->count(g.d, &n);
    assert_int_equal(n.dispatches, 4);
    assert_int_equal(n.compiles, 1);
    rig_close(&g);
    struct double_counts c = double_counts();
    assert_int_equal(c.compiles, 1);
    assert_int_equal(c.loads, 2);
    assert_int_equal(c.unloads, 2);
    assert_int_equal(c.evaluates, 4);
    all_gone("the whole sequence");
}

/* Keys of compiles and loads, and evaluates by the client; a refusal of any is an error, not another call. */
static void options_of_the_unit(void **state)
{
    static const char *const calls[] = {"compileWithQoS:options:error:", "loadWithQoS:options:error:",
                                        "evaluateRealTimeWithModel:options:request:error:"};
    struct sg_apple_opts o = {.retain = 1, .wired = 1, .real_time = 1};
    struct apple_rig g;
    segue_error err = {0};
    (void)state;
    if (rig_open(&g, &(struct double_opts){.retain = 1, .wired = 1, .real_time = 1}, one_text, &o, &err)) fail_msg("%s", err.text);
    put(&g, g.in[0], 5);
    if (rig_run(&g, &err)) fail_msg("%s", err.text);
    assert_true(get(&g, g.out[0]) == 105);
    assert_int_equal(sg_ane_ops_of(g.d)->reload(g.p, weights(), 1, &err), SEGUE_OK);
    rig_close(&g);
    assert_int_equal(double_counts().real_time, 1);
    assert_int_equal(double_counts().evaluates, 0);
    all_gone("options of the unit");
    o.tries = 1;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct double_opts w = {.retain = 1, .wired = 1, .real_time = 1, .refuses = calls[i], .error_text = "no entitlement"};
        segue_status s = rig_open(&g, &w, one_text, &o, &err);
        if (!s) s = rig_run(&g, &err);
        assert_int_equal(s, SEGUE_EUNIT);
        assert_non_null(strstr(err.text, "no entitlement"));
        rig_close(&g);
        all_gone(calls[i]);
    }
    /* A system without the call is refused when it is asked for, and used otherwise. */
    struct double_opts lacks = {.wrong_encoding = "evaluateRealTimeWithModel:options:request:error:"};
    assert_int_equal(rig_open(&g, &lacks, one_text, &o, &err), SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "evaluateRealTimeWithModel"));
    all_gone("without the call");
    if (rig_open(&g, &lacks, one_text, NULL, &err) || rig_run(&g, &err)) fail_msg("%s", err.text);
    rig_close(&g);
    all_gone("not asked for");
}

/* Surfaces are bound by the names of symbols, in any order that the system reports. An output surface is used as an input
 * without a copy. */
static void bound_by_name(void **state)
{
    (void)state;
    for (int reversed = 0; reversed < 2; reversed++) {
        struct apple_rig g;
        segue_error err = {0};
        if (rig_open(&g, &(struct double_opts){.reversed = reversed}, two_text, NULL, &err))
            fail_msg("%s", err.text);
        put(&g, g.in[0], 1);
        put(&g, g.in[1], 2);
        if (rig_run(&g, &err)) fail_msg("%s", err.text);
        assert_true(get(&g, g.out[0]) == 101 && get(&g, g.out[1]) == 102);
        struct sg_ane_surface *t = g.in[0];
        g.in[0] = g.out[0];
        g.out[0] = t;
        if (rig_run(&g, &err)) fail_msg("%s", err.text);
        assert_true(get(&g, g.out[0]) == 201);
        rig_close(&g);
        all_gone("bound by name");
    }
    struct apple_rig g;
    segue_error err = {0};
    assert_int_equal(rig_open(&g, &(struct double_opts){.no_attributes = 1}, two_text, NULL, &err),
                     SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "pack them"));
    rig_close(&g);
    all_gone("no attributes, two ports");
    if (rig_open(&g, &(struct double_opts){.no_attributes = 1}, one_text, NULL, &err))
        fail_msg("%s", err.text);
    assert_int_equal(rig_run(&g, &err), SEGUE_OK);
    rig_close(&g);
    all_gone("no attributes, one port each");
    assert_int_equal(rig_open(&g, &(struct double_opts){.row_stride = 128}, one_text, NULL, &err),
                     SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "128"));
    rig_close(&g);
    all_gone("another stride");
}

static const struct {
    struct double_opts o;
    segue_status status;
    const char *word;
    int when;
} failure_cases[] = {
    /* when: 0 open or load, 1 evaluate */
    {{.missing_class = "_ANERequest"}, SEGUE_EUNIT, "_ANERequest", 0},
    {{.missing_class = "_ANEInMemoryModelDescriptor"}, SEGUE_EUNIT, "not on this system", 0},
    {{.wrong_encoding = "compileWithQoS:options:error:"}, SEGUE_EUNIT, "B36@0:8Q16", 0},
    {{.nil_from = "modelWithMILText:weights:optionsPlist:"}, SEGUE_EUNIT, "describing", 0},
    {{.nil_from = "inMemoryModelWithDescriptor:"}, SEGUE_EUNIT, "making", 0},
    {{.nil_from = "hexStringIdentifier"}, SEGUE_EUNIT, "identifier", 0},
    {{.nil_from = "objectWithIOSurface:"}, SEGUE_EMEMORY, "surface", 0},
    {{.nil_from = "IOSurfaceCreate"}, SEGUE_EMEMORY, "surface", 0},
    {{.nil_from =
          "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:"},
     SEGUE_EUNIT,
     "request",
     1},
    {{.refuses = "compileWithQoS:options:error:", .error_text = "_ANECompiler : ANECCompile() FAILED: err=()"},
     SEGUE_EUNIT,
     "mil check",
     0},
    {{.refuses = "compileWithQoS:options:error:"}, SEGUE_EUNIT, "budget", 0},
    {{.refuses = "compileWithQoS:options:error:", .refuses_times = 3, .error_text = "busy"}, SEGUE_OK, "", 0},
    {{.refuses = "loadWithQoS:options:error:", .error_text = "GetANEFModel: must re-compile"},
     SEGUE_EUNIT,
     "unload some",
     0},
    {{.refuses = "loadWithQoS:options:error:", .refuses_times = 1, .error_text = "stale"}, SEGUE_OK, "", 0},
    {{.refuses = "loadWithQoS:options:error:", .refuses_times = 1, .cached = 1}, SEGUE_OK, "", 0},
    {{.cached = 1}, SEGUE_OK, "", 0},
    {{.refuses = "evaluateWithQoS:options:request:error:",
      .error_text = "Failed with status=0x1d : statusType=0x9: Program Inference error"},
     SEGUE_EUNIT,
     "size, count or order",
     1},
    {{.refuses = "evaluateWithQoS:options:request:error:"}, SEGUE_EUNIT, "no reason", 1},
};

static void each_failure(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof failure_cases / sizeof *failure_cases; i++) {
        struct apple_rig g;
        segue_error err = {0};
        char when[64];
        segue_status s = rig_open(&g, &failure_cases[i].o, one_text, NULL, &err);
        if (!s) s = rig_run(&g, &err);
        if (s != failure_cases[i].status || !strstr(err.text, failure_cases[i].word))
            fail_msg("case %zu: %d: %s", i, s, err.text);
        rig_close(&g);
        struct double_counts c = double_counts();
        if (failure_cases[i].o.cached && !failure_cases[i].o.refuses) assert_int_equal(c.compiles, 0);
        if (failure_cases[i].o.cached && failure_cases[i].o.refuses) assert_int_equal(c.purges, 1);
        if (failure_cases[i].o.refuses_times == 3) assert_int_equal(c.compiles, 4);
        if (failure_cases[i].o.refuses && !failure_cases[i].o.refuses_times && failure_cases[i].o.refuses[0] == 'c')
            assert_int_equal(c.compiles, 5);
        snprintf(when, sizeof when, "case %zu", i);
        all_gone(when);
    }
}

/* A path that leaves the program's folder is refused before anything is written. */
static void paths_stay_inside(void **state)
{
    const struct sg_ane_file bad[] = {{"../w.bin", (const uint8_t *)"x", 1},
                                      {"/etc/w.bin", (const uint8_t *)"x", 1},
                                      {"a//b", (const uint8_t *)"x", 1}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct apple_rig g = {0};
        segue_error err = {0};
        assert_int_equal(sg_apple_open(&g.d, double_begin(&(struct double_opts){0}), NULL, &err), SEGUE_OK);
        struct sg_ane_source s = source_of(two_text, &bad[i]);
        assert_int_equal(sg_ane_ops_of(g.d)->load(g.d, &s, &g.p, &err), SEGUE_EARG);
        assert_non_null(strstr(err.text, "plain names"));
        rig_close(&g);
        all_gone("a bad path");
    }
}

/* After a call that does not return the device is lost: later calls fail at once. Nothing else is affected. */
static void hang_is_bounded(void **state)
{
    static struct apple_rig g; /* static: the lost call still uses it */
    segue_error err = {0};
    (void)state;
    if (rig_open(&g, &(struct double_opts){.hangs = "evaluateWithQoS:options:request:error:"}, one_text,
                 &(struct sg_apple_opts){.evaluate_ns = 20000000}, &err))
        fail_msg("%s", err.text);
    assert_int_equal(rig_run(&g, &err), SEGUE_ELOST);
    assert_non_null(strstr(err.text, "lost"));
    assert_int_equal(rig_run(&g, &err), SEGUE_ELOST);
    static struct sg_ane_device *lost;
    lost = g.d;
    rig_close(&g);
    double_release_hang(); /* the call returns after the device was closed */
    for (long turn = 0; turn < 100000000 && double_counts().open_pools; turn++) sched_yield();
    assert_int_equal(double_counts().open_pools, 0);
    assert_non_null(lost);
    double_end(); /* frees what the lost call used */
}

static int descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static void ten_thousand_loads(void **state)
{
    struct sg_ane_device *d;
    segue_error err = {0};
    int before = descriptors();
    (void)state;
    assert_int_equal(sg_apple_open(&d, double_begin(&(struct double_opts){.cached = 1}), NULL, &err),
                     SEGUE_OK);
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    struct sg_ane_source s = source_of(two_text, NULL);
    s.cached = 1;
    for (int i = 0; i < 10000; i++) {
        struct sg_ane_program *p;
        struct sg_ane_surface *surface;
        if (ops->load(d, &s, &p, &err)) fail_msg("%d: %s", i, err.text);
        assert_int_equal(ops->surface_new(d, 1, &surface, &err), SEGUE_OK);
        ops->surface_free(surface);
        ops->unload(p);
    }
    ops->close(d);
    assert_int_equal(double_counts().loads, 10000);
    assert_int_equal(descriptors(), before);
    all_gone("ten thousand loads");
}

static void *no_method(void *class, void *selector)
{
    (void)class;
    (void)selector;
    return NULL;
}

static void described(void **state)
{
    char architecture[32];
    uint32_t engines, cores;
    struct sg_apple_api here;
    segue_error err = {0};
    (void)state;
    sg_apple_describe(double_begin(&(struct double_opts){0}), architecture, &engines, &cores);
    assert_string_equal(architecture, "h16g");
    assert_int_equal(engines, 1);
    assert_int_equal(cores, 0);
    all_gone("described");
#ifndef __APPLE__
    assert_int_equal(sg_apple_api_here(&here, &err), SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "not on this machine"));
#else
    (void)here;
    (void)err;
#endif
}

/* The unit uses the engine of the machine, and the software NPU where there is none or the spec says soft. */
static void unit_on_an_engine(void **state)
{
    static const struct {
        const char *spec;
        int world, simulated;
        const char *error_text;
    } cases[] = {{"ane", 1, 0, "limits of m4"},
                 {"ane:profile=m1", 1, 0, "limits of m1"},
                 {"ane:soft", 1, 1, "software NPU, profile strict"},
                 {"ane", 0, 1, "software NPU, profile strict"},
                 {"ane:retain=1,wired=1,evaluate=realtime", 1, 0, "limits of m4"},
                 {"ane:evaluate=usual", 1, 0, "limits of m4"},
                 {"ane:compiles=3", 1, 0, NULL},
                 {"ane:on_violation=faithful", 1, 0, NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct sg_apple_api *w = double_begin(&(struct double_opts){0});
        struct sg_unit_spec spec;
        struct sg_unit_desc desc;
        struct sg_unit *u = NULL;
        segue_error err = {0};
        assert_int_equal(sg_spec_parse(&spec, cases[i].spec, &err), SEGUE_OK);
        segue_status s = ane_open_on(&u, &spec, cases[i].world ? w : NULL, &err);
        if (cases[i].error_text) {
            if (s != SEGUE_OK) fail_msg("%s: %s", cases[i].spec, err.text);
            sg_unit_ane.describe(u, &desc);
            assert_int_equal(desc.info.simulated, cases[i].simulated);
            assert_int_equal(desc.named_only, 1);
            assert_non_null(strstr(desc.info.features, cases[i].error_text));
            sg_unit_ane.close(u);
        } else {
            assert_int_equal(s, SEGUE_EARG);
            assert_non_null(strstr(err.text, "use ane:soft"));
        }
        all_gone(cases[i].spec);
    }
    const struct sg_apple_api *w = double_begin(&(struct double_opts){0});
    struct sg_apple_api lacking = *w;
    struct sg_unit_spec spec;
    struct sg_unit *u = NULL;
    segue_error err = {0};
    lacking.class_method = no_method; /* a changed system is refused; the software NPU does not replace it */
    assert_int_equal(sg_spec_parse(&spec, "ane", &err), SEGUE_OK);
    assert_int_equal(ane_open_on(&u, &spec, &lacking, &err), SEGUE_EUNIT);
    assert_null(u);
    all_gone("a changed system");
}

/* Each allocation from opening the interface to a dispatch fails once: the call reports it, and what was made is released in
 * order. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
#ifdef SEGUE_FAULTS
    uint64_t failed = 0;
    weights();
    for (uint64_t n = 1;; n++) {
        struct apple_rig g;
        segue_error err = {0};
        char when[48];
        assert_true(n < 10000);
        sg_fault_alloc(n);
        segue_status s = rig_open(&g, &(struct double_opts){0}, one_text, NULL, &err);
        if (!s) s = rig_run(&g, &err);
        sg_fault_alloc(0);
        rig_close(&g);
        snprintf(when, sizeof when, "allocation %d", (int)n);
        all_gone(when);
        if (s == SEGUE_OK) break;
        if (s != SEGUE_EMEMORY) fail_msg("%s: %d: %s", when, s, err.text);
        failed++;
    }
    print_message("%d allocations failed\n", (int)failed);
    assert_true(failed > 10);
#else
    print_message("no fault hooks in this build\n");
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_sequence), cmocka_unit_test(options_of_the_unit), cmocka_unit_test(bound_by_name),
                                       cmocka_unit_test(each_failure),   cmocka_unit_test(paths_stay_inside),
                                       cmocka_unit_test(described),      cmocka_unit_test(ten_thousand_loads),
                                       cmocka_unit_test(every_allocation_may_fail), cmocka_unit_test(hang_is_bounded),
                                       cmocka_unit_test(unit_on_an_engine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
