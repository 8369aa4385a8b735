/* lower.c: see lower.h. Inputs and results of a program, and the dispatch to the files that lower single
 * operations.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lower.h"

#include <stdio.h>
#include <string.h>

#include "unit/ane/device.h"
#include "unit/ane/lower/lowercommon.h"
#include "unit/ane/passes/pass.h"

enum { TAPS_MAX = 13 }; /* widest kernel that all engines accept (constraint 28) */

enum sg_ane_role sg_ane_role_of(const char *port)
{
    size_t n = strlen(port);
    if (n > 5 && !strcmp(port + n - 5, "_info")) return SG_ANE_INFO;
    if (n > 5 && !strcmp(port + n - 5, "_lora")) return SG_ANE_LORA;
    return n > 6 && !strcmp(port + n - 6, "_state") ? SG_ANE_STATE : SG_ANE_X;
}

/* An input [1, channels, 1, columns]. sg_pass_layout later pads, sorts and renames all inputs and results. */
static uint32_t add_input(struct sg_lowering *l, const char *name, int64_t channels, int64_t columns)
{
    return sg_mil_build_input(&l->b, name, SG_MIL_FP16, 4, (int64_t[]){1, channels, 1, columns});
}

/* The first S columns of x: the surface of `info` has at least 32 columns, also when the program computes a
 * single row. */
static uint32_t first_columns(struct sg_lowering *l, uint32_t x)
{
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    if (l->b.status || t->dim[3] == l->s) return x;
    int64_t begin[4] = {0}, size[4] = {1, t->dim[1], 1, l->s};
    return sg_mil_build_slice(&l->b, x, 4, begin, size);
}

/* Channels of slot i of the part in the packed state. */
static int64_t slot_channels(const struct sg_lowering *l, uint32_t i)
{
    return (int64_t)sg_ane_slot_channels(&l->g->slots[l->part->slots[i]], l->shape->keys);
}

/* Creates the inputs, which must come before any operation, and slices x and the state into values and
 * slots. */
static void open_ports(struct sg_lowering *l)
{
    int64_t width = 0, channels = 0, at = 0;
    uint32_t state = SG_MIL_NONE;
    for (uint32_t i = 0; i < l->part->in_n; i++) width += l->g->values[l->part->in[i]].width;
    for (uint32_t i = 0; i < l->part->slots_n; i++) channels += slot_channels(l, i);
    uint32_t x = add_input(l, "in_x", width, l->s);
    if (l->info->channels) l->info_port = add_input(l, "in_info", l->info->channels, l->shape->columns);
    if (l->part->slots_n) state = add_input(l, "in_state", channels, l->shape->keys);
    int64_t lora = l->shape->rank ? (int64_t)sg_ane_lora_channels(l->g, l->part) : 0;
    if (lora) l->lora = add_input(l, "in_lora", lora, l->shape->rank);
    if (l->info->channels) l->info_rows = first_columns(l, l->info_port);
    for (uint32_t i = 0; i < l->part->in_n; i++) {
        width = l->g->values[l->part->in[i]].width;
        l->values[l->part->in[i]] = sg_ane_channels(l, x, at, width);
        at += width;
    }
    at = 0;
    for (uint32_t i = 0; i < l->part->slots_n; i++) {
        l->slot_in[l->part->slots[i]] = sg_ane_channels(l, state, at, slot_channels(l, i));
        at += slot_channels(l, i);
    }
}

/* Concatenates values along the channels. A single value passes through identity, so that the result has
 * the name. */
static uint32_t concat_named(struct sg_lowering *l, const uint32_t *list, uint32_t n, const char *name)
{
    sg_mil_build_name(&l->b, name);
    return n > 1 ? sg_mil_build_concat(&l->b, list, n, 1) : SG_ANE_UN("identity", list[0]);
}

/* Packs the values that leave and the new slots into the results. list: scratch for that many value
 * numbers. */
static segue_status close_ports(struct sg_lowering *l, uint32_t *list, segue_error *err)
{
    uint32_t n = 1, returns[2] = {0};
    for (uint32_t i = 0; i < l->part->out_n; i++) list[i] = l->values[l->part->out[i]];
    returns[0] = concat_named(l, list, l->part->out_n, "to_out");
    for (uint32_t i = 0; i < l->part->slots_n; i++) list[i] = l->slot_out[l->part->slots[i]];
    if (l->part->slots_n) returns[n++] = concat_named(l, list, l->part->slots_n, "to_state");
    return sg_mil_build_end(&l->b, returns, n, err);
}

segue_status sg_ane_can_lower(const struct sg_graph *g, const struct sg_op *op, segue_error *why)
{
    const char *reason = NULL;
    if (op->code == SG_OP_ROUTE || op->code == SG_OP_EXPERTS)
        reason = "the experts are selected by data, but the weights of a program are fixed";
    else if (op->code == SG_OP_ATTEND && op->u.attend.sinks.tensor >= 0)
        reason = "attention sinks are not implemented";
    else if (op->code == SG_OP_CONV && op->u.conv.taps > TAPS_MAX)
        reason = "the kernel is wider than the engine supports";
    (void)g;
    if (!reason) return SEGUE_OK;
    return sg_fail(why, SEGUE_EUNSUPPORTED, "compile: ane: %s of layer %d: %s; use another unit", sg_op_name(op->code),
                   op->layer, reason);
}

static uint32_t lower_op(struct sg_lowering *l, const struct sg_op *op)
{
    switch (op->code) {
    case SG_OP_ATTEND: return sg_ane_lower_attend(l, op);
    case SG_OP_CONV: return sg_ane_lower_conv(l, op);
    case SG_OP_DELTA: return sg_ane_lower_delta(l, op);
    default: return sg_ane_lower_stateless(l, op);
    }
}

/* The function has no parameters or results of this name. */
static void name_fault(struct sg_lowering *l, uint32_t value)
{
    l->b.program->functions[l->b.function].values[value].name = SG_ANE_FAULT;
}

/* The passes may have fused the operation into another one. */
static segue_status check_fault(const struct sg_mil_program *p, const struct sg_graph *g, const struct sg_ane_part *part,
                                segue_error *err)
{
    const struct sg_mil_function *f = &p->functions[0];
    for (uint32_t v = 0; part->fault && v < f->values_n; v++)
        if (!strcmp(f->values[v].name, SG_ANE_FAULT)) return SEGUE_OK;
    if (!part->fault) return SEGUE_OK;
    const struct sg_op *op = &g->ops[part->fault - 1];
    return sg_fail(err, SEGUE_EUNSUPPORTED, "compile: ane: fault=%d.%s: the operation is part of another one; name another",
                   op->layer, sg_op_name(op->code));
}

/* The operations of a graph are in execution order, so every operand has been lowered before it is used. */
static segue_status lower_part(struct sg_lowering *l, uint32_t *list, segue_error *err)
{
    open_ports(l);
    for (uint32_t i = 0; i < l->part->ops_n && !l->b.status; i++) {
        const struct sg_op *op = &l->g->ops[l->part->ops[i]];
        if (!l->b.status) l->b.status = sg_ane_can_lower(l->g, op, &l->b.err);
        l->values[op->out] = lower_op(l, op);
        if (!l->b.status && l->part->fault == 1 + l->part->ops[i]) name_fault(l, l->values[op->out]);
    }
    return close_ports(l, list, err);
}

/* All index lists are in one allocation: values, fused outputs, slots in, slots out, and scratch for
 * close_ports. */
segue_status sg_ane_lower(struct sg_mil_program **out, const struct sg_graph *g, const struct sg_ane_part *part,
                          const struct sg_ane_info *info, const struct sg_ane_shape *shape,
                          struct sg_ane_blobs *blobs, segue_error *err)
{
    struct sg_lowering l = {.g = g, .part = part, .info = info, .shape = shape, .blobs = blobs,
                             .s = shape->rows == 1 ? 1 : shape->columns};
    struct sg_mil_program *p = sg_mil_program_new(SG_MIL_VERBOSE);
    uint32_t *lists = sg_alloc((2 * (size_t)g->values_n + 3 * (size_t)g->slots_n + (size_t)g->ops_n + 4) * sizeof *lists);
    if (!p || !lists) {
        sg_mil_program_free(p);
        sg_free(lists);
        return sg_no_memory("a program", 0, err);
    }
    for (int i = 0; i < SG_ANE_KINDS_MAX; i++) l.scatter[i] = SG_MIL_NONE;
    l.values = lists;
    l.fused_out = lists + g->values_n;
    for (uint32_t i = 0; i < g->ops_n; i++) l.fused_out[i] = SG_MIL_NONE;
    l.slot_in = l.fused_out + g->ops_n;
    l.slot_out = l.slot_in + g->slots_n;
    blobs->programs++;
    sg_mil_build_begin(&l.b, p, "main", blobs->storage ? "ios18" : NULL); /* compressed constants need it */
    segue_status status = lower_part(&l, l.slot_out + g->slots_n, err);
    /* Ports of one row have one column until here; others have whole rows already. */
    if (status == SEGUE_OK) status = sg_passes(p, SG_ANE_PAD, shape->rows == 1 ? shape->columns : SG_ANE_PAD, err);
    sg_free(lists);
    if (status == SEGUE_OK) status = check_fault(p, g, part, err);
    if (status == SEGUE_OK)
        *out = p;
    else
        sg_mil_program_free(p);
    return status;
}
