/* lower_faults.c: fault injection: each allocation fails once while a graph is partitioned, analysed, lowered and written, while
 * each pass runs alone, while programs are read from a folder and run, and while cache entries are stored and probes run. The
 * status must report the failure, nothing may leak (checked by the address sanitizer), and no partial file may remain. Needs a
 * build with SEGUE_FAULTS.
 * SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef SEGUE_FAULTS

#include "../api/tiny.h"
#include "mil_samples.h"
#include "model/model.h"
#include "unit/ane/anecache.h"
#include "unit/ane/blob/blob.h"
#include "unit/ane/tools/emit.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/tools/milrun.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/passes/pass.h"
#include "unit/ane/tools/probe.h"
#include "unit/ane/rules/rules.h"

enum { ATTEMPTS = 20000, POINTS = 400 };

static struct segue_model *models[TINY_MODELS];
static struct sg_graph *graphs[TINY_MODELS];
static char folder[64];

static int begin(void **state)
{
    (void)state;
    segue_error err;
    snprintf(folder, sizeof folder, "/tmp/segue_lower_XXXXXX");
    if (!mkdtemp(folder)) return -1;
    for (int i = 0; i < TINY_MODELS; i++) {
        char at[512];
        tiny_folder(at, sizeof at, "lower", tiny_models[i].name);
        if (!tiny_write(&tiny_models[i], at, 5u + (unsigned)i) || segue_model_open(&models[i], at, NULL, &err) ||
            sg_model_graph(models[i], &(struct sg_graph_request){.head = 1, .select_late = 1}, &graphs[i], &err))
            return -1;
    }
    return 0;
}

static int end(void **state)
{
    char line[128];
    (void)state;
    sg_fault_alloc(0);
    for (int i = 0; i < TINY_MODELS; i++) {
        sg_graph_free(graphs[i]);
        segue_model_close(models[i]);
    }
    tiny_remove("lower");
    snprintf(line, sizeof line, "rm -r %s", folder);
    return system(line);
}

static segue_status cut_and_bound(int m)
{
    struct sg_ane_partition cut = {0};
    struct sg_ane_range range = {0};
    segue_status s = sg_ane_partition_make(&cut, graphs[m], 0, 1, NULL);
    if (!s) s = sg_ane_range_make(&range, graphs[m], NULL);
    sg_ane_range_free(&range);
    sg_ane_partition_free(&cut);
    return s;
}

static segue_status lower(int m, uint32_t rows, int by_weights)
{
    struct sg_ane_emit e = {0};
    struct sg_ane_emit_opts o = {.rows = rows, .by_weights = by_weights, .layers = 2};
    segue_status s = sg_ane_emit_open(&e, graphs[m], &o, NULL);
    for (uint32_t i = 0; !s && i < e.cut.parts_n; i++) {
        struct sg_mil_program *p = NULL;
        struct sg_ane_blobs blobs = {0};
        s = sg_ane_emit_part(&e, i, &p, &blobs, NULL);
        sg_mil_program_free(p);
        sg_ane_blobs_free(&blobs);
    }
    sg_ane_emit_close(&e);
    return s;
}
static segue_status lower_one(int m) { return lower(m, 1, 0); }
static segue_status lower_many(int m) { return lower(m, 32, 1); }

static segue_status emit(int m, segue_status (*how)(struct sg_ane_emit *, const char *, segue_error *), const char *name)
{
    struct sg_ane_emit e = {0};
    struct sg_ane_emit_opts o = {.rows = 1, .layers = 3};
    char at[96];
    snprintf(at, sizeof at, "%s/%s%d", folder, name, m);
    segue_status s = sg_ane_emit_open(&e, graphs[m], &o, NULL);
    if (!s) s = how(&e, at, NULL);
    sg_ane_emit_close(&e);
    return s;
}
static segue_status emit_folder(int m) { return emit(m, sg_ane_emit_folder, "texts"); }
static segue_status emit_packages(int m) { return emit(m, sg_ane_emit_packages, "packages"); }

/* Reads, checks and runs a folder of programs. */
static segue_status run_folder(int m)
{
    struct sg_mil_folder f = {0};
    struct sg_mil_results r = {0};
    struct sg_mil_faults faults = {0};
    struct sg_npu_opts o = {.threads = 1};
    struct sg_ane_device *d = NULL;
    struct sg_archive in = {0};
    char at[96];
    (void)m;
    snprintf(at, sizeof at, "%s/constant", folder);
    sg_ane_profile_named(&o.profile, "ieee", NULL);
    segue_status s = sg_mil_folder_open(&f, at, 0, NULL);
    for (uint32_t i = 0; !s && i < f.n; i++) {
        s = sg_mil_text_status(&f.texts[i], NULL);
        if (!s) sg_mil_text_check(&f.texts[i], &o.profile, &faults);
        if (!s && faults.dropped) s = SEGUE_EMEMORY;
    }
    if (!s) s = sg_npu_open(&d, &o, NULL);
    if (!s) s = sg_mil_run_folder(d, &f, &in, &r, NULL);
    if (s == SEGUE_EARG) s = SEGUE_OK; /* expected: there is no tensor for the input */
    if (d) sg_ane_ops_of(d)->close(d);
    sg_mil_faults_free(&faults);
    sg_mil_results_free(&r);
    sg_mil_folder_close(&f);
    return s;
}

/* Cache entries: failing to store one is not an error, but a stored entry must be complete. */
static segue_status keep(int m)
{
    struct sg_ane_cache *k = NULL;
    struct sg_ane_cache_entry e;
    const struct sg_hash key = {7, (uint64_t)m};
    segue_status s = sg_ane_cache_open(&k, folder, 1 << 20, NULL);
    if (s) return s;
    sg_ane_cache_write(k, key, "program", &(struct sg_ane_piece){"12345678", 8}, 1);
    if (sg_ane_cache_find(k, key, "program", &e)) {
        assert_int_equal(e.bytes, 8);
        assert_memory_equal(e.data, "12345678", 8);
    } else
        s = SEGUE_EMEMORY;
    sg_ane_cache_entry_close(&e);
    sg_ane_cache_close(k);
    return s;
}

static segue_status probe(int m)
{
    struct sg_npu_opts o = {.threads = 1, .faithful = 1, .delta = (uint32_t)m};
    struct sg_ane_device *d = NULL;
    struct sg_probe_answer a;
    sg_ane_profile_named(&o.profile, "ieee", NULL);
    segue_status s = sg_npu_open(&d, &o, NULL);
    for (size_t i = 0; !s && i < sg_probe_count(); i++) {
        if (strcmp(sg_probe_name(i), "reload") && strcmp(sg_probe_name(i), "order")) continue;
        s = sg_probe_run(d, i, &a, NULL);
        if (!s && !a.settled) s = SEGUE_EMEMORY; /* the probe could not run */
        if (!s && strcmp(a.verdict, "reload fails") == 0) s = SEGUE_EMEMORY;
    }
    if (d) {
        struct sg_ane_counters c;
        sg_ane_ops_of(d)->count(d, &c);
        assert_int_equal(c.loaded, 0);
        sg_ane_ops_of(d)->close(d);
    }
    return s;
}

static const char for_passes[] =
    "program(1.3)\n{\n    func main<ios18>(tensor<fp16, [1, 20, 1, 32]> a) {\n"
    "fp16 h = const()[val = fp16(0.5)]; fp16 g = const()[val = fp16(0.5)]; fp16 k = add(x = h, y = g);\n"
    "tensor<fp16, [1, 20, 1, 32]> u = mul(x = a, y = k); tensor<fp16, [1, 20, 1, 32]> v = mul(x = u, y = fp16(4)); tensor<fp16, [1, 20, 1, 32]> d = exp(x = v); tensor<fp16, [1, 20, 1, 32]> f = exp(x = v);\n"
    "tensor<fp16, [1, 10, 1, 32]> s, tensor<fp16, [1, 10, 1, 32]> t = split(x = v, num_splits = int32(2), axis = int32(1));\n"
    "tensor<fp16, [1, 20, 1, 32]> c = concat(values = (t, s), axis = int32(-3), interleave = bool(false));\n"
    "tensor<fp16, [1, 20, 1, 32]> e = gelu(x = c, mode = string(\"TANH_APPROXIMATION\")); tensor<fp16, [1, 20, 1, 32]> w = silu(x = a);\n"
    "tensor<fp16, [1, 1, 1, 32]> m = reduce_mean(x = e, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));\n"
    "tensor<fp16, [1, 20, 1, 32]> z = sub(x = e, y = m);\n    } -> (z);\n}\n";

static segue_status layout(struct sg_mil_program *p, uint64_t *changes, segue_error *err)
{
    return sg_pass_layout(p, 32, 32, changes, err);
}
static segue_status (*const passes[])(struct sg_mil_program *, uint64_t *, segue_error *) = {
    sg_pass_legal, sg_pass_named, sg_pass_const, sg_pass_fuse, sg_pass_dead, layout};

/* After a failed pass the program can be freed; after a successful one it is valid. */
static segue_status one_pass(int m)
{
    struct sg_mil_program *p = NULL;
    struct sg_mil_faults faults = {0};
    uint64_t changes = 0;
    segue_status s = sg_mil_parse(&p, for_passes, sizeof for_passes - 1, "t", NULL, NULL);
    if (s) return s;
    s = passes[m](p, &changes, NULL);
    if (!s) sg_mil_check_types(p, &faults);
    if (!s) assert_true(changes > 0);
    assert_int_equal(faults.refusals, 0);
    sg_mil_faults_free(&faults);
    sg_mil_program_free(p);
    return s;
}

static segue_status compress(int m)
{
    enum { N = 4096 };
    static float w[N];
    uint16_t table[64];
    uint8_t packed[N];
    struct sg_buf file = {0};
    uint64_t at;
    for (int i = 0; i < N; i++) w[i] = (float)(i * 37 % 1001 - 500) / 500;
    segue_status s = sg_compress_palette(w, N, m ? 6 : 4, table, packed, NULL);
    if (!s) s = sg_blob_begin(&file, NULL);
    if (!s) s = sg_blob_add(&file, m ? SG_MIL_UINT6 : SG_MIL_UINT4, packed, N / 2, 0, &at, NULL);
    sg_buf_free(&file);
    return s;
}

static uint64_t allocations(segue_status (*once)(int), int arg)
{
    uint64_t left = 0;
    void *p;
    sg_fault_alloc(ATTEMPTS);
    segue_status s = once(arg);
    for (; left < ATTEMPTS && (p = sg_alloc(1)); left++) sg_free(p);
    sg_fault_alloc(0);
    assert_int_equal(s, SEGUE_OK);
    assert_true(left > 0);
    return ATTEMPTS - left;
}

static void every_allocation_may_fail(void **state)
{
    const struct { const char *name; segue_status (*once)(int); int args; } cases[] = {
        {"cut and bounds", cut_and_bound, TINY_MODELS}, {"lower, one row", lower_one, TINY_MODELS}, {"lower, by weights", lower_many, TINY_MODELS},
        {"texts", emit_folder, 1}, {"packages", emit_packages, 1}, {"folder", run_folder, 1}, {"keep", keep, 2}, {"probe", probe, 2},
        {"pass", one_pass, sizeof passes / sizeof *passes}, {"compress", compress, 2}};
    char at[96], path[128];
    (void)state;
    snprintf(at, sizeof at, "%s/constant", folder);
    assert_int_equal(sg_make_folders(at, NULL), SEGUE_OK);
    snprintf(path, sizeof path, "%s/p00.mil", at);
    FILE *f = fopen(path, "w");
    fputs(sample_buffer, f);
    fclose(f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int a = 0; a < cases[i].args; a++) {
            uint64_t all = allocations(cases[i].once, a), stride = (all + POINTS - 1) / POINTS, failed = 0;
            for (uint64_t n = 1; n <= all; n += stride) {
                sg_fault_alloc(n);
                segue_status s = cases[i].once(a);
                sg_fault_alloc(0);
                failed += s == SEGUE_EMEMORY;
                if (s != SEGUE_EMEMORY && s != SEGUE_OK && s != SEGUE_EUNSUPPORTED && s != SEGUE_EINTERNAL)
                    fail_msg("%s %d, allocation %d: status %d", cases[i].name, a, (int)n, s);
            }
            print_message("%s %d: %d allocations, every %d. tried, %d failed\n", cases[i].name, a, (int)all, (int)stride,
                          (int)failed);
            assert_true(failed > 0);
            assert_int_equal(cases[i].once(a), SEGUE_OK);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, begin, end);
}

#else

int main(void)
{
    puts("SKIP lower_faults: this build has no fault hooks (SEGUE_FAULTS)");
    return 77;
}

#endif
