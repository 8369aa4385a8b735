/* explain.c: see explain.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/tools/explain.h"

#include <string.h>

#include "unit/ane/mil/milinfer.h"
#include "unit/ane/rules/rules.h"

/* These operations are assumed to cost nothing. */
int sg_mil_is_view(const struct sg_mil_op *op)
{
    static const char *const kinds[] = {"reshape",
                                        "expand_dims",
                                        "squeeze",
                                        "identity",
                                        "tensor_buffer_to_tensor",
                                        "tensor_to_tensor_buffer"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(op->kind, kinds[i])) return 1;
    return 0;
}

int sg_mil_is_layout(const struct sg_mil_op *op)
{
    static const char *const kinds[] = {"reshape", "expand_dims", "squeeze", "transpose", "slice_by_size", "slice_by_index",
                                        "concat",  "split",       "stack",   "tile",      "pad",           "reverse"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(op->kind, kinds[i])) return 1;
    return 0;
}

uint64_t sg_mil_layout_ops(const struct sg_mil_function *f)
{
    uint64_t n = 0;
    for (uint32_t o = 0; o < f->ops_n; o++) n += !sg_mil_is_const_op(&f->ops[o]) && sg_mil_is_layout(&f->ops[o]);
    return n;
}

/* A product has two operations (multiply and add) per element of the contraction. */
uint64_t sg_mil_flops(const struct sg_mil_function *f, const struct sg_mil_op *op)
{
    const struct sg_mil_type *out = &f->values[op->first].type,
                             *x = sg_mil_arg_type(f, sg_mil_arg_find(op, "x"));
    const struct sg_mil_type *w = sg_mil_arg_type(f, sg_mil_arg_find(op, "weight"));
    uint64_t n = sg_mil_elements(out); /* elements of the first result */
    if (sg_mil_is_const_value(f, op->first) || sg_mil_is_view(op)) return 0;
    if (!strcmp(op->kind, "conv"))
        return 2 * n * (uint64_t)w->dim[1] * (uint64_t)w->dim[2] * (uint64_t)w->dim[3];
    if (!strcmp(op->kind, "linear")) return 2 * n * (uint64_t)w->dim[1];
    if (!strcmp(op->kind, "matmul"))
        return 2 * n * (uint64_t)x->dim[x->rank - (sg_mil_const_int(f, op, "transpose_x", 0) ? 2 : 1)];
    return n;
}

/* Packed size; 0 for an invalid type. */
static uint64_t bytes_of(const struct sg_mil_type *t)
{
    uint64_t bytes = 0;
    sg_mil_type_size(t, NULL, &bytes, NULL);
    return bytes;
}

/* Bytes of the operands and results of an operation. Literals in attributes are counted as weights instead. */
static uint64_t operand_bytes(const struct sg_mil_function *f, const struct sg_mil_op *op)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < op->args_n; i++)
        for (uint32_t r = 0;
             op->args[i].kind != SG_MIL_LITERAL && r < (op->args[i].kind == SG_MIL_LIST ? op->args[i].n : 1);
             r++)
            sum += bytes_of(
                &f->values[op->args[i].kind == SG_MIL_LIST ? op->args[i].v.refs[r] : op->args[i].v.ref].type);
    for (uint32_t i = 0; i < op->outputs; i++) sum += bytes_of(&f->values[op->first + i].type);
    return sum;
}

/* Surfaces are counted with the row padding and minimum size of the profile. */
void sg_mil_cost_of(struct sg_mil_cost *out, const struct sg_mil_function *f,
                    const struct sg_ane_profile *profile)
{
    struct sg_mil_cost c = {0};
    for (uint32_t o = 0; o < f->ops_n; o++) {
        const struct sg_mil_op *op = &f->ops[o];
        /* Numbers in attributes are constants and compressed constants. */
        for (uint32_t a = 0; a < op->attrs_n; a++)
            if (op->attrs[a].literal->kind != SG_MIL_TEXT)
                c.weight_bytes += bytes_of(&op->attrs[a].literal->type);
        if (sg_mil_is_const_value(f, op->first)) continue;
        uint64_t bytes = operand_bytes(f, op);
        if (bytes > c.working_set_bytes) c.working_set_bytes = bytes;
        c.ops += !sg_mil_is_view(op);
        c.transposes += !strcmp(op->kind, "transpose");
        c.flops += sg_mil_flops(f, op);
        if (sg_mil_is_int8_product(f, op)) c.int8_flops += sg_mil_flops(f, op);
    }
    /* All inputs, then all outputs. */
    for (uint32_t i = 0; i < f->params_n + f->returns_n; i++) {
        const struct sg_mil_type *t = &f->values[i < f->params_n ? i : f->returns[i - f->params_n]].type;
        uint64_t row, surface;
        sg_ane_port_sizes(t, profile, &row, &surface);
        c.border_bytes += surface;
        c.logical_bytes += bytes_of(t);
    }
    c.layout_ops = sg_mil_layout_ops(f);
    *out = c;
}

/* Roofline model: computation and memory traffic overlap, and the longer one counts, plus the dispatch.
 * Units: flops / (TFLOPS * 1e6) and bytes / (GB/s * 1e3) are microseconds. */
double sg_mil_expected_us(const struct sg_mil_cost *c, const struct sg_ane_profile *profile)
{
    double int8 = profile->int8_tflops > 0 ? profile->int8_tflops : profile->tflops;
    double compute = (double)(c->flops - c->int8_flops) / (profile->tflops * 1e6) + (double)c->int8_flops / (int8 * 1e6);
    double memory = (double)c->weight_bytes / (profile->weight_gb_s * 1e3) +
                    (double)c->border_bytes / (profile->activation_gb_s * 1e3);
    return profile->dispatch_us + (compute > memory ? compute : memory);
}
