/* trainmil.c: programs of training. See anetrain.h.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "unit/ane/mil/milbuild.h"
#include "unit/ane/mil/milprint.h"
#include "unit/ane/passes/pass.h"
#include "unit/ane/train/anetrain.h"

/* out [outer, tokens] = W^T x of the two parts of the input: W [inner, outer], x [inner, tokens]. */
static segue_status build(struct sg_mil_program *p, int64_t inner, int64_t outer, int64_t tokens, uint32_t columns,
                          segue_error *err)
{
    struct sg_mil_builder b = {0};
    sg_mil_build_begin(&b, p, "main", NULL);
    uint32_t in = sg_mil_build_input(&b, "a_in", SG_MIL_FP16, SG_MIL_SHAPE(1, inner, 1, tokens + outer));
    uint32_t x = sg_mil_build_slice(&b, in, 4, (int64_t[]){0, 0, 0, 0}, (int64_t[]){1, inner, 1, tokens});
    uint32_t w = sg_mil_build_slice(&b, in, 4, (int64_t[]){0, 0, 0, tokens}, (int64_t[]){1, inner, 1, outer});
    x = sg_mil_build_reshape(&b, x, SG_MIL_SHAPE(1, 1, inner, tokens));
    w = sg_mil_build_reshape(&b, w, SG_MIL_SHAPE(1, 1, inner, outer));
    uint32_t y = sg_mil_build_matmul(&b, w, x, 1, 0);
    sg_mil_build_name(&b, "z_out");
    y = sg_mil_build_reshape(&b, y, SG_MIL_SHAPE(1, outer, 1, tokens));
    SG_TRY(sg_mil_build_end(&b, &y, 1, err));
    return sg_passes(p, SG_ANE_PAD, columns, err);
}

static segue_status load(struct sg_train_device *d, struct ane_train_program *t, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d->unit->device);
    const struct sg_ane_port *in, *out;
    struct sg_mil_program *mil = sg_mil_program_new(SG_MIL_VERBOSE);
    struct sg_buf text = {0};
    char name[48];
    uint32_t in_n, out_n;
    if (!mil) return sg_no_memory("a program", 0, err);
    snprintf(name, sizeof name, "train%ux%u.mil", t->inner, t->outer);
    segue_status status = build(mil, t->inner, t->outer, d->tokens, d->unit->columns, err);
    if (status == SEGUE_OK) status = sg_mil_print(mil, SG_MIL_VERBOSE, &text, err);
    if (status == SEGUE_OK)
        status = ops->load(d->unit->device, &(struct sg_ane_source){.name = name, .text = text.data, .text_bytes = text.len},
                           &t->program, err);
    if (status == SEGUE_OK) status = ops->ports(t->program, 0, &in, &in_n, &out, &out_n, err);
    if (status == SEGUE_OK) {
        t->in_row = in[0].row_bytes, t->in_bytes = in[0].surface_bytes;
        t->out_row = out[0].row_bytes, t->out_bytes = out[0].surface_bytes;
    }
    sg_buf_free(&text);
    sg_mil_program_free(mil);
    return status;
}

static void program_free(struct ane_train_program *t)
{
    if (t->program) sg_ane_ops_of(t->program)->unload(t->program);
    sg_free(t);
}

segue_status ane_train_program_of(struct sg_train_device *d, uint32_t inner, uint32_t outer, struct ane_train_program **out,
                                  segue_error *err)
{
    struct sg_ane_counters before, after;
    for (*out = d->programs; *out; *out = (*out)->next)
        if ((*out)->inner == inner && (*out)->outer == outer) return SEGUE_OK;
    struct ane_train_program *t = sg_alloc(sizeof *t);
    if (!t) return sg_no_memory("a program", sizeof *t, err);
    t->inner = inner, t->outer = outer;
    sg_ane_ops_of(d->unit->device)->count(d->unit->device, &before);
    segue_status status = load(d, t, err);
    sg_ane_ops_of(d->unit->device)->count(d->unit->device, &after);
    d->counts.compiles += after.compiles - before.compiles;
    if (status != SEGUE_OK) {
        program_free(t);
        return status;
    }
    t->next = d->programs;
    *out = d->programs = t;
    return SEGUE_OK;
}

void ane_train_programs_free(struct sg_train_device *d)
{
    while (d->programs) {
        struct ane_train_program *next = d->programs->next;
        program_free(d->programs);
        d->programs = next;
    }
}
