/* ane_swaps.c: see ane_swaps.h. SPDX-License-Identifier: MIT */
#include "ane/ane_swaps.h"

#include <stdlib.h>

#include "term/out.h"
#include "unit/ane/blob/blob.h"
#include "unit/ane/mil/milbuild.h"
#include "unit/ane/mil/milprint.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/passes/pass.h"

static const char BLOB[] = "weights/w.bin";

/* A program and its blob file. */
struct swap_program {
    struct sg_buf text, blob;
    struct sg_ane_program *loaded;
};

/* out [outer, tokens] = W x, with W in the blob at `record`. */
static segue_status build(const struct ane_swap_matrix *m, unsigned tokens, uint64_t record, struct sg_buf *text,
                          segue_error *err)
{
    struct sg_mil_program *p = sg_mil_program_new(SG_MIL_VERBOSE);
    struct sg_mil_builder b = {0};
    if (!p) return out_fail(err, SEGUE_EMEMORY, "bench: no memory for a program");
    sg_mil_build_begin(&b, p, "main", NULL);
    uint32_t x = sg_mil_build_input(&b, "a_in", SG_MIL_FP16, SG_MIL_SHAPE(1, m->inner, 1, tokens));
    uint32_t w = sg_mil_build_blob(&b, "w", SG_MIL_FP16, SG_MIL_SHAPE(m->outer, m->inner, 1, 1), BLOB, record);
    sg_mil_build_name(&b, "z_out");
    uint32_t y = sg_mil_build_conv(&b, x, w, 1);
    segue_status st = sg_mil_build_end(&b, &y, 1, err);
    if (!st) st = sg_passes(p, 32, 32, err);
    if (!st) st = sg_mil_print(p, SG_MIL_VERBOSE, text, err);
    sg_mil_program_free(p);
    return st;
}

/* A blob file of equal weights; another `value` makes another file. */
static segue_status fill_blob(const struct ane_swap_matrix *m, uint16_t value, struct sg_buf *file, uint64_t *record,
                              segue_error *err)
{
    size_t n = (size_t)m->inner * m->outer;
    uint16_t *data = out_alloc(n * sizeof *data);
    for (size_t i = 0; i < n; i++) data[i] = value;
    file->len = 0;
    segue_status st = sg_blob_begin(file, err);
    if (!st) st = sg_blob_add(file, SG_MIL_FP16, data, n * sizeof *data, 0, record, err);
    free(data);
    return st;
}

static struct sg_ane_file file_of(const struct swap_program *p)
{
    return (struct sg_ane_file){BLOB, (const uint8_t *)p->blob.data, p->blob.len};
}

static segue_status load(struct sg_ane_device *d, struct swap_program *p, segue_error *err)
{
    const struct sg_ane_file file = file_of(p);
    const struct sg_ane_source source = {.name = "bench.mil", .text = p->text.data, .text_bytes = p->text.len, .files = &file,
                                         .files_n = 1};
    return sg_ane_ops_of(d)->load(d, &source, &p->loaded, err);
}

static void unload(struct swap_program *p)
{
    if (p->loaded) sg_ane_ops_of(p->loaded)->unload(p->loaded);
    p->loaded = NULL;
}

/* Every program with other weights: compiled again, or reloaded. Files are made before the clock starts. */
static segue_status change(struct sg_ane_device *d, struct swap_program *list, unsigned n, bool reload, struct ane_swap *out,
                           segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    struct sg_ane_counters before, after;
    segue_status st = SEGUE_OK;
    uint64_t start = out_now_ns();
    ops->count(d, &before);
    for (unsigned i = 0; i < n && !st; i++) {
        const struct sg_ane_file file = file_of(&list[i]);
        if (!reload) unload(&list[i]);
        st = reload ? ops->reload(list[i].loaded, &file, 1, err) : load(d, &list[i], err);
        out->bytes += list[i].blob.len;
    }
    ops->count(d, &after);
    out->ms = (double)(out_now_ns() - start) / 1e6;
    out->compiles = after.compiles - before.compiles;
    out->loads = after.loads - before.loads;
    out->simulated_ms = (double)(after.simulated_ns - before.simulated_ns) / 1e6;
    return st;
}

static segue_status run(const struct ane_swap_matrix *list, unsigned n, unsigned tokens, const char *profile, bool reload,
                        struct ane_swap *out, segue_error *err)
{
    enum { ONE = 0x3c00, HALF = 0x3800 }; /* fp16 */
    struct sg_npu_opts o = {.delta = reload};
    struct sg_ane_device *d = NULL;
    struct swap_program *programs = out_alloc(n * sizeof *programs);
    uint64_t record;
    *out = (struct ane_swap){0};
    for (unsigned i = 0; i < n; i++) programs[i] = (struct swap_program){0};
    segue_status st = sg_ane_profile_named(&o.profile, profile, err);
    if (!st) st = sg_npu_open(&d, &o, err);
    for (unsigned i = 0; i < n && !st; i++) {
        st = fill_blob(&list[i], ONE, &programs[i].blob, &record, err);
        if (!st) st = build(&list[i], tokens, record, &programs[i].text, err);
        if (!st) st = load(d, &programs[i], err);
        if (!st) st = fill_blob(&list[i], HALF, &programs[i].blob, &record, err);
    }
    if (!st) st = change(d, programs, n, reload, out, err);
    for (unsigned i = 0; i < n; i++) {
        unload(&programs[i]);
        sg_buf_free(&programs[i].text);
        sg_buf_free(&programs[i].blob);
    }
    if (d) sg_ane_ops_of(d)->close(d);
    free(programs);
    return st;
}

segue_status ane_swap_recompile(const struct ane_swap_matrix *list, unsigned n, unsigned tokens, const char *profile,
                               struct ane_swap *out, segue_error *err)
{
    return run(list, n, tokens, profile, false, out, err);
}

segue_status ane_swap_reload(const struct ane_swap_matrix *list, unsigned n, unsigned tokens, const char *profile,
                            struct ane_swap *out, segue_error *err)
{
    return run(list, n, tokens, profile, true, out, err);
}

segue_status ane_swap_inputs(const char *profile, struct ane_swap *out, segue_error *err)
{
    struct sg_ane_profile chip;
    segue_status st = sg_ane_profile_named(&chip, profile, err);
    if (!st) out->simulated_ms = (double)out->bytes / chip.activation_gb_s / 1e6;
    return st;
}
