/* fuzz_mil.c: hostile MIL text: read, check types and rules of every profile, print, read again; small
 * programs are run. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "unit/ane/tools/explain.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/mil/milprint.h"
#include "unit/ane/blob/mlpackage.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/passes/pass.h"
#include "unit/ane/rules/rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void run(const struct sg_ane_profile *profile, const char *text, size_t n)
{
    struct sg_npu_opts o = {.profile = *profile, .faithful = 1, .threads = 1};
    o.profile.row_bytes = 2; /* the rules of borders were held; here odd shapes are worth more */
    o.profile.channels = 1;
    const struct sg_ane_file blob = {"w", (const uint8_t *)text, n}; /* the text's own bytes: records where none are */
    struct sg_ane_source s = {.name = "fuzz", .text = text, .text_bytes = n, .files = &blob, .files_n = 1};
    struct sg_ane_surface *in[8] = {NULL}, *out[8] = {NULL};
    const struct sg_ane_port *in_ports, *out_ports;
    struct sg_ane_device *d;
    struct sg_ane_program *p;
    uint32_t in_n = 0, out_n = 0;
    if (sg_npu_open(&d, &o, NULL)) return;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    if (!ops->load(d, &s, &p, NULL)) {
        if (!ops->ports(p, 0, &in_ports, &in_n, &out_ports, &out_n, NULL) && in_n <= 8 && out_n <= 8) {
            int good = 1;
            for (uint32_t i = 0; i < in_n; i++)
                good &= !ops->surface_new(d, in_ports[i].surface_bytes, &in[i], NULL);
            for (uint32_t i = 0; i < out_n; i++)
                good &= !ops->surface_new(d, out_ports[i].surface_bytes, &out[i], NULL);
            if (good) ops->evaluate(p, 0, in, out, NULL);
            if (good && !ops->reload(p, &blob, 1, NULL)) ops->evaluate(p, 0, in, out, NULL);
        }
        for (int i = 0; i < 8; i++) {
            ops->surface_free(in[i]);
            ops->surface_free(out[i]);
        }
        ops->unload(p);
    }
    ops->close(d);
}

/* What a run would cost: every value small, and few operations. */
static int is_small(const struct sg_mil_program *p, const struct sg_ane_profile *profile)
{
    for (uint32_t i = 0; i < p->functions_n; i++) {
        struct sg_mil_cost c;
        uint64_t sum = 0, bytes;
        for (uint32_t v = 0; v < p->functions[i].values_n; v++) {
            if (sg_mil_type_size(&p->functions[i].values[v].type, NULL, &bytes, NULL)) return 0;
            sum += bytes;
        }
        if (sum > 1 << 20) return 0;
        sg_mil_cost_of(&c, &p->functions[i], profile);
        if (c.flops > 1 << 22) return 0;
    }
    return 1;
}

/* What passes make of a sound program is sound, and can be written for Core ML or is refused. */
static void pass(struct sg_mil_program *p)
{
    struct sg_mil_faults faults = {0};
    struct sg_buf model = {.limit = 1 << 24};
    uint64_t changes = 0;
    segue_status s = sg_passes(p, 32, 32, NULL);
    if (s) s = sg_pass_named(p, &changes, NULL); /* ports of other ranks have no layout */
    if (s) abort();
    sg_mil_check_types(p, &faults);
    if (faults.refusals) abort();
    sg_mil_faults_free(&faults);
    sg_mlmodel_write(p, 1, NULL, 0, &model, NULL);
    sg_buf_free(&model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"strict", "ieee", "m1", "m5"};
    struct sg_mil_program *p, *q;
    struct sg_mil_faults faults = {0};
    struct sg_ane_profile profile;
    if (sg_mil_parse(&p, (const char *)data, size, "fuzz", NULL, NULL)) return 0;
    sg_mil_check_types(p, &faults);
    int sound = !faults.refusals;
    for (int i = 0; sound && i < 4; i++) {
        sg_ane_profile_named(&profile, names[i], NULL);
        sg_ane_check_rules(p, &profile, &faults);
    }
    sg_mil_faults_free(&faults);
    for (int d = 0; d < 3; d++) {
        struct sg_buf text = {.limit = 1 << 24};
        if (!sg_mil_print(p, (enum sg_mil_dialect)d, &text, NULL)) {
            if (sg_mil_parse(&q, text.data, text.len, "again", NULL, NULL)) abort();
            sg_mil_program_free(q);
        }
        sg_buf_free(&text);
    }
    sg_ane_profile_named(&profile, "ieee", NULL);
    if (sound && is_small(p, &profile)) {
        run(&profile, (const char *)data, size);
        sg_ane_profile_named(&profile, "m1", NULL);
        run(&profile, (const char *)data, size);
        pass(p);
    }
    sg_mil_program_free(p);
    return 0;
}
