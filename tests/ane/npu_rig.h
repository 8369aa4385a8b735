/* npu_rig.h: shared by tests of the software NPU: pieces of MIL text, and a device with one program and its surfaces.
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_ANE_NPU_RIG_H
#define TESTS_ANE_NPU_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/rules/rules.h"

#define T(shape) "tensor<fp16, [" shape "]>"
#define ABC T("1, 32, 1, 32")
#define RELU(out, in) ABC " " out " = relu(x = " in ");"
#define CONV(args) "conv(strides = tensor<int32, [2]>([1, 1]), pad_type = string(\"valid\"), pad = tensor<int32, [4]>([0, 0, 0, 0]), " \
                   "dilations = tensor<int32, [2]>([1, 1]), groups = int32(1), " args ")"
#define HEAD " " ABC " z = slice_by_size(x = y, begin = tensor<int32, [4]>([0, 0, 0, 0]), size = tensor<int32, [4]>([1, 32, 1, 32]));"
#define AXIS(n) "axis = int32(" n ")"

struct rig {
    struct sg_ane_device *d;
    struct sg_ane_program *p;
    struct sg_ane_surface *in[4], *out[4];
    uint32_t in_n, out_n;
    const struct sg_ane_port *ports; /* of the inputs */
};

static inline struct sg_npu_opts options(const char *profile, int faithful)
{
    struct sg_npu_opts o = {.faithful = (uint32_t)faithful, .threads = 2};
    assert_int_equal(sg_ane_profile_named(&o.profile, profile, NULL), SEGUE_OK);
    return o;
}

static inline void rig_open(struct rig *g, const struct sg_npu_opts *o)
{
    memset(g, 0, sizeof *g);
    assert_int_equal(sg_npu_open(&g->d, o, NULL), SEGUE_OK);
}

static inline segue_status rig_load(struct rig *g, const char *text, const struct sg_ane_file *files, uint32_t n,
                                    segue_error *err)
{
    struct sg_ane_source s = {.name = "t", .text = text, .text_bytes = strlen(text), .files = files, .files_n = n};
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(g->d);
    const struct sg_ane_port *out;
    segue_status status = ops->load(g->d, &s, &g->p, err);
    if (status) return status;
    assert_int_equal(ops->ports(g->p, 0, &g->ports, &g->in_n, &out, &g->out_n, NULL), SEGUE_OK);
    for (uint32_t i = 0; i < g->in_n; i++)
        assert_int_equal(ops->surface_new(g->d, g->ports[i].surface_bytes, &g->in[i], NULL), SEGUE_OK);
    for (uint32_t i = 0; i < g->out_n; i++)
        assert_int_equal(ops->surface_new(g->d, out[i].surface_bytes, &g->out[i], NULL), SEGUE_OK);
    return SEGUE_OK;
}

static inline void rig_unload(struct rig *g)
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

static inline void rig_close(struct rig *g)
{
    rig_unload(g);
    sg_ane_ops_of(g->d)->close(g->d);
}

static inline uint16_t *bytes_of(struct rig *g, struct sg_ane_surface *s)
{
    void *p;
    uint64_t n;
    assert_int_equal(sg_ane_ops_of(g->d)->lock(s, 1, &p, &n, NULL), SEGUE_OK);
    sg_ane_ops_of(g->d)->unlock(s);
    return p;
}

static inline segue_status rig_run(struct rig *g, segue_error *err)
{
    return sg_ane_ops_of(g->d)->evaluate(g->p, 0, g->in, g->out, err);
}

/* Fills input i with v, in the type of the port. */
static inline void rig_fill(struct rig *g, uint32_t i, float v)
{
    uint8_t *p = (uint8_t *)bytes_of(g, g->in[i]);
    const struct sg_mil_type *t = &g->ports[i].type;
    uint16_t half = sg_f16_of_f32(v);
    for (uint64_t k = 0; k < g->ports[i].surface_bytes; k++)
        p[k] = t->dtype == SG_MIL_FP32 ? (uint8_t)(sg_bits_of_f32(v) >> k % 4 * 8)
               : t->dtype == SG_MIL_FP16 ? (uint8_t)(half >> k % 2 * 8)
                                         : (uint8_t)(int)v;
}

#endif
