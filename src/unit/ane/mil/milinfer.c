/* milinfer.c: see milinfer.h. Checks arguments against the table of operations, then calls the type rule of
 * the operation.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/milinfer.h"

#include <string.h>

#include "unit/ane/mil/milops.h"
#include "unit/ane/mil/miltypes.h"

/* One function per type rule; SG_MIL_T_NONE has none. */
static segue_status (*const rules[SG_MIL_T_NONE])(struct sg_mil_infer_ctx *) = {
    [SG_MIL_T_CONST] = sg_mil_infer_const,
    [SG_MIL_T_SAME] = sg_mil_infer_same,
    [SG_MIL_T_BROADCAST] = sg_mil_infer_broadcast,
    [SG_MIL_T_COMPARE] = sg_mil_infer_compare,
    [SG_MIL_T_SELECT] = sg_mil_infer_select,
    [SG_MIL_T_CONV] = sg_mil_infer_conv,
    [SG_MIL_T_MATMUL] = sg_mil_infer_matmul,
    [SG_MIL_T_LINEAR] = sg_mil_infer_linear,
    [SG_MIL_T_EINSUM] = sg_mil_infer_einsum,
    [SG_MIL_T_REDUCE] = sg_mil_infer_reduce,
    [SG_MIL_T_ARG] = sg_mil_infer_arg,
    [SG_MIL_T_RESHAPE] = sg_mil_infer_reshape,
    [SG_MIL_T_TRANSPOSE] = sg_mil_infer_transpose,
    [SG_MIL_T_EXPAND] = sg_mil_infer_expand,
    [SG_MIL_T_SQUEEZE] = sg_mil_infer_squeeze,
    [SG_MIL_T_SLICE_SIZE] = sg_mil_infer_slice_size,
    [SG_MIL_T_SLICE_INDEX] = sg_mil_infer_slice_index,
    [SG_MIL_T_SLICE_UPDATE] = sg_mil_infer_slice_update,
    [SG_MIL_T_CONCAT] = sg_mil_infer_concat,
    [SG_MIL_T_SPLIT] = sg_mil_infer_split,
    [SG_MIL_T_STACK] = sg_mil_infer_stack,
    [SG_MIL_T_TILE] = sg_mil_infer_tile,
    [SG_MIL_T_PAD] = sg_mil_infer_pad,
    [SG_MIL_T_BLOCKS] = sg_mil_infer_blocks,
    [SG_MIL_T_GATHER] = sg_mil_infer_gather,
    [SG_MIL_T_CAST] = sg_mil_infer_cast,
    [SG_MIL_T_QUANTIZE] = sg_mil_infer_quantize,
    [SG_MIL_T_DEQUANTIZE] = sg_mil_infer_dequantize,
    [SG_MIL_T_AFFINE] = sg_mil_infer_affine,
    [SG_MIL_T_PALETTE] = sg_mil_infer_palette,
    [SG_MIL_T_SPARSE] = sg_mil_infer_sparse,
    [SG_MIL_T_BLOCKWISE] = sg_mil_infer_blockwise,
    [SG_MIL_T_ATTENTION] = sg_mil_infer_attention,
    [SG_MIL_T_TOPK] = sg_mil_infer_topk,
    [SG_MIL_T_ARGSORT] = sg_mil_infer_argsort,
    [SG_MIL_T_UNBUFFER] = sg_mil_infer_unbuffer,
    [SG_MIL_T_BUFFER] = sg_mil_infer_buffer,
};

/* 1: integers or truth values in a blob file that shapes or the reading of other operands depend on. Type inference has no blob
 * files. Tensors of quantised constants are not parameters. */
static int is_parameter(const struct sg_mil_op_info *info, const char *name, const struct sg_mil_literal *l)
{
    if (l->kind != SG_MIL_BLOB || sg_mil_dtype_info(l->type.dtype)->class == SG_MIL_REAL) return 0;
    if (!strncmp(info->kind, "constexpr_", 10)) return strstr(name, "axis") || !strcmp(name, "shape");
    return strcmp(name, "zero_point") != 0;
}

/* Checks that every argument exists in the table, is a list only where a list is allowed, is constant where
 * it must be, and that no required argument is missing. EFORMAT otherwise. */
static segue_status check_args(struct sg_mil_infer_ctx *w)
{
    const struct sg_mil_op_info *info = w->op->info;
    int constant, list, optional;
    size_t n;
    char name[32], marker; /* argument names of the table are shorter than 32 bytes */
    const char *arg;
    for (uint32_t i = 0; i < w->op->args_n; i++) {
        const struct sg_mil_arg *a = &w->op->args[i];
        if (!sg_mil_op_takes(info, a->name, &constant, &list, &optional))
            return SG_MIL_TYPE_ERROR("%s has no argument %.40s", info->kind, a->name);
        if (a->kind == SG_MIL_LIST && !list)
            return SG_MIL_TYPE_ERROR("argument %s is a list; give one value", a->name);
        const struct sg_mil_literal *l = sg_mil_arg_literal(w->f, a);
        if (constant && !l) return SG_MIL_TYPE_ERROR("argument %s must be constant", a->name);
        if (constant && is_parameter(info, a->name, l))
            return SG_MIL_TYPE_ERROR("argument %s is stored in a blob file; write its value in the text", a->name);
    }
    /* Operands of constexpr operations for ios16 are attributes. */
    for (uint32_t i = 0; i < w->op->attrs_n && !strncmp(info->kind, "constexpr_", 10); i++)
        if (is_parameter(info, w->op->attrs[i].name, w->op->attrs[i].literal))
            return SG_MIL_TYPE_ERROR("attribute %s is stored in a blob file; write its value in the text", w->op->attrs[i].name);
    /* The reverse direction: required arguments that are missing. */
    for (uint32_t i = 0; (arg = sg_mil_op_arg(info, i, &n, &marker)); i++) {
        memcpy(name, arg, n);
        name[n] = 0;
        sg_mil_op_takes(info, name, &constant, &list, &optional);
        if (!optional && !sg_mil_arg_find(w->op, name))
            return SG_MIL_TYPE_ERROR("%s needs the argument %s", info->kind, name);
    }
    return SEGUE_OK;
}

/* The main operand is found once here, because most rules start from its type. Only split and topk have
 * more than one result. The sizes are checked last, so that no caller sees a type with an unknown or huge
 * dimension. */
segue_status sg_mil_infer(const struct sg_mil_function *f, const struct sg_mil_op *op,
                          struct sg_mil_type *out, segue_error *err)
{
    struct sg_mil_infer_ctx work = {f, op, out, NULL, err}, *w = &work;
    if (!op->info || op->info->rule >= SG_MIL_T_NONE)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "operation %.40s is not supported by the engine", op->kind);
    SG_TRY(check_args(w));
    /* Name of the main operand, which differs between operations. */
    w->x = sg_mil_infer_arg_type(w, "x");
    if (!w->x) w->x = sg_mil_infer_arg_type(w, "input");
    if (!w->x) w->x = sg_mil_infer_arg_type(w, "query");
    int multi_output = op->info->rule == SG_MIL_T_SPLIT || op->info->rule == SG_MIL_T_TOPK;
    if (!op->outputs || op->outputs > SG_MIL_OUTPUTS_MAX || (!multi_output && op->outputs != 1))
        return SG_MIL_TYPE_ERROR("%u results; %s gives one", op->outputs, op->kind);
    SG_TRY(rules[op->info->rule](w));
    for (uint32_t i = 0; i < op->outputs; i++) SG_TRY(sg_mil_type_size(&out[i], NULL, NULL, err));
    return SEGUE_OK;
}

/* Number of the constraint (docs/ANE.md) that a failed inference broke: 9 for concat, 28 for groups that do
 * not divide the channels of a convolution; 0: a plain type error. */
static uint32_t constraint_of(const struct sg_mil_function *f, const struct sg_mil_op *op)
{
    if (op->info->rule == SG_MIL_T_CONCAT) return 9;
    if (op->info->rule != SG_MIL_T_CONV) return 0;
    /* Only when the shapes are usable: otherwise the failure is a plain type error. */
    const struct sg_mil_type *x = sg_mil_arg_type(f, sg_mil_arg_find(op, "x"));
    const struct sg_mil_type *w = sg_mil_arg_type(f, sg_mil_arg_find(op, "weight"));
    int64_t groups = sg_mil_const_int(f, op, "groups", 1);
    int known = x && w && x->rank == 4 && w->rank == 4 && groups > 0;
    return known && (x->dim[1] % groups || w->dim[0] % groups) ? 28 : 0;
}

/* Infers the result types of one operation and compares them with the declared ones. Adds a diagnostic for
 * an unknown operation (constraint 10), a failed rule, or each result that differs. */
static void check_op(const struct sg_mil_function *f, const struct sg_mil_op *op,
                     struct sg_mil_faults *faults)
{
    struct sg_mil_type out[SG_MIL_OUTPUTS_MAX];
    segue_error err; /* its text becomes that of the diagnostic */
    char declared[96], inferred[96];
    const struct sg_mil_value *v = &f->values[op->first];
    struct sg_mil_loc at = {.line = op->line, .column = op->column, .op = v->name};
    if (!op->info || op->info->rule == SG_MIL_T_NONE) {
        at.constraint = 10;
        sg_mil_fault_add(faults, &at, "operation %.40s %s", op->kind,
                         op->info ? "is not supported by the engine; express it with other operations"
                                  : "is not known; docs/ANE.md lists the known ones");
        return;
    }
    if (sg_mil_infer(f, op, out, &err)) {
        at.constraint = constraint_of(f, op);
        sg_mil_fault_add(faults, &at, "%s", err.text);
        return;
    }
    /* Only tensor_to_tensor_buffer may have a tensor_buffer as result. */
    for (uint32_t i = 0; i < op->outputs; i++)
        if (!sg_mil_type_equal(&out[i], &v[i].type) || (op->info->rule != SG_MIL_T_BUFFER && out[i].buffer)) {
            at.op = v[i].name;
            sg_mil_fault_add(faults, &at, "declared as %s, but %s gives %s",
                             sg_mil_type_text(&v[i].type, declared), op->kind, sg_mil_type_text(&out[i], inferred));
        }
}

/* Declared types are checked first. A function with an invalid one is not checked further. */
void sg_mil_check_types(const struct sg_mil_program *p, struct sg_mil_faults *faults)
{
    segue_error err;
    for (uint32_t i = 0; i < p->functions_n; i++) {
        const struct sg_mil_function *f = &p->functions[i];
        uint32_t before = faults->refusals;
        for (uint32_t v = 0; v < f->values_n; v++)
            if (sg_mil_type_size(&f->values[v].type, NULL, NULL, &err)) {
                struct sg_mil_loc at = {
                    .line = f->values[v].line, .column = f->values[v].column, .op = f->values[v].name};
                sg_mil_fault_add(faults, &at, "%s", err.text);
            }
        if (faults->refusals != before) continue; /* type rules multiply dimensions: they need valid types */
        for (uint32_t o = 0; o < f->ops_n; o++) check_op(f, &f->ops[o], faults);
    }
}
