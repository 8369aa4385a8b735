/* milinfer.c: see milinfer.h. The table names the rule of each kind of operation.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/milinfer.h"

#include <string.h>

#include "unit/ane/mil/milops.h"
#include "unit/ane/mil/miltypes.h"

static segue_status (*const rules[SG_MIL_T_NONE])(struct sg_mil_work *) = {
    [SG_MIL_T_CONST] = sg_mil_rule_const,
    [SG_MIL_T_SAME] = sg_mil_rule_same,
    [SG_MIL_T_BROADCAST] = sg_mil_rule_broadcast,
    [SG_MIL_T_COMPARE] = sg_mil_rule_compare,
    [SG_MIL_T_SELECT] = sg_mil_rule_select,
    [SG_MIL_T_CONV] = sg_mil_rule_conv,
    [SG_MIL_T_MATMUL] = sg_mil_rule_matmul,
    [SG_MIL_T_LINEAR] = sg_mil_rule_linear,
    [SG_MIL_T_EINSUM] = sg_mil_rule_einsum,
    [SG_MIL_T_REDUCE] = sg_mil_rule_reduce,
    [SG_MIL_T_ARG] = sg_mil_rule_arg,
    [SG_MIL_T_RESHAPE] = sg_mil_rule_reshape,
    [SG_MIL_T_TRANSPOSE] = sg_mil_rule_transpose,
    [SG_MIL_T_EXPAND] = sg_mil_rule_expand,
    [SG_MIL_T_SQUEEZE] = sg_mil_rule_squeeze,
    [SG_MIL_T_SLICE_SIZE] = sg_mil_rule_slice_size,
    [SG_MIL_T_SLICE_INDEX] = sg_mil_rule_slice_index,
    [SG_MIL_T_SLICE_UPDATE] = sg_mil_rule_slice_update,
    [SG_MIL_T_CONCAT] = sg_mil_rule_concat,
    [SG_MIL_T_SPLIT] = sg_mil_rule_split,
    [SG_MIL_T_STACK] = sg_mil_rule_stack,
    [SG_MIL_T_TILE] = sg_mil_rule_tile,
    [SG_MIL_T_PAD] = sg_mil_rule_pad,
    [SG_MIL_T_BLOCKS] = sg_mil_rule_blocks,
    [SG_MIL_T_GATHER] = sg_mil_rule_gather,
    [SG_MIL_T_CAST] = sg_mil_rule_cast,
    [SG_MIL_T_QUANTIZE] = sg_mil_rule_quantize,
    [SG_MIL_T_DEQUANTIZE] = sg_mil_rule_dequantize,
    [SG_MIL_T_AFFINE] = sg_mil_rule_affine,
    [SG_MIL_T_PALETTE] = sg_mil_rule_palette,
    [SG_MIL_T_SPARSE] = sg_mil_rule_sparse,
    [SG_MIL_T_BLOCKWISE] = sg_mil_rule_blockwise,
    [SG_MIL_T_ATTENTION] = sg_mil_rule_attention,
    [SG_MIL_T_TOPK] = sg_mil_rule_topk,
    [SG_MIL_T_ARGSORT] = sg_mil_rule_argsort,
    [SG_MIL_T_UNBUFFER] = sg_mil_rule_unbuffer,
    [SG_MIL_T_BUFFER] = sg_mil_rule_buffer,
};

/* Every argument is known and of its kind; every needed one is there, as argument or attribute. */
static segue_status complete(struct sg_mil_work *w)
{
    const struct sg_mil_op_info *info = w->op->info;
    int constant, list, optional;
    size_t n;
    char name[32], mark_of;
    const char *arg;
    for (uint32_t i = 0; i < w->op->args_n; i++) {
        const struct sg_mil_arg *a = &w->op->args[i];
        if (!sg_mil_op_takes(info, a->name, &constant, &list, &optional))
            return SG_MIL_WRONG("%s has no argument %.40s", info->kind, a->name);
        if (a->kind == SG_MIL_LIST && !list)
            return SG_MIL_WRONG("argument %s is a list; one value belongs there", a->name);
        if (constant && !sg_mil_arg_literal(w->f, a))
            return SG_MIL_WRONG("argument %s must be constant", a->name);
    }
    for (uint32_t i = 0; (arg = sg_mil_op_arg(info, i, &n, &mark_of)); i++) {
        memcpy(name, arg, n);
        name[n] = 0;
        sg_mil_op_takes(info, name, &constant, &list, &optional);
        if (!optional && !sg_mil_arg_find(w->op, name))
            return SG_MIL_WRONG("%s needs the argument %s", info->kind, name);
    }
    return SEGUE_OK;
}

segue_status sg_mil_infer(const struct sg_mil_function *f, const struct sg_mil_op *op,
                          struct sg_mil_type *out, segue_error *err)
{
    struct sg_mil_work work = {f, op, out, NULL, err}, *w = &work;
    if (!op->info || op->info->rule >= SG_MIL_T_NONE)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "operation %.40s has no path to the engine", op->kind);
    SG_TRY(complete(w));
    w->x = sg_mil_work_type(w, "x");
    if (!w->x) w->x = sg_mil_work_type(w, "input");
    if (!w->x) w->x = sg_mil_work_type(w, "query");
    int many = op->info->rule == SG_MIL_T_SPLIT || op->info->rule == SG_MIL_T_TOPK;
    if (!op->outputs || op->outputs > SG_MIL_OUTPUTS_MAX || (!many && op->outputs != 1))
        return SG_MIL_WRONG("%u results; %s gives one", op->outputs, op->kind);
    SG_TRY(rules[op->info->rule](w));
    for (uint32_t i = 0; i < op->outputs; i++) SG_TRY(sg_mil_type_size(&out[i], NULL, NULL, err));
    return SEGUE_OK;
}

/* The rule that a failed inference broke, where it has a number: groups of a convolution, what concat demands. */
static uint32_t constraint_of(const struct sg_mil_function *f, const struct sg_mil_op *op)
{
    if (op->info->rule == SG_MIL_T_CONCAT) return 9;
    if (op->info->rule != SG_MIL_T_CONV) return 0;
    const struct sg_mil_type *x = sg_mil_arg_type(f, sg_mil_arg_find(op, "x"));
    const struct sg_mil_type *w = sg_mil_arg_type(f, sg_mil_arg_find(op, "weight"));
    int64_t groups = sg_mil_whole(f, op, "groups", 1);
    int known = x && w && x->rank == 4 && w->rank == 4 && groups > 0;
    return known && (x->dim[1] % groups || w->dim[0] % groups) ? 28 : 0;
}

static void check_op(const struct sg_mil_function *f, const struct sg_mil_op *op,
                     struct sg_mil_faults *faults)
{
    struct sg_mil_type out[SG_MIL_OUTPUTS_MAX];
    segue_error err;
    char said[96], is[96];
    const struct sg_mil_value *v = &f->values[op->first];
    struct sg_mil_place at = {.line = op->line, .column = op->column, .op = v->name};
    if (!op->info || op->info->rule == SG_MIL_T_NONE) {
        at.constraint = 10;
        sg_mil_fault_add(faults, &at, "operation %.40s %s", op->kind,
                         op->info ? "has no path to the engine; rewrite it from others"
                                  : "is not known; see docs/ANE.md for those that are");
        return;
    }
    if (sg_mil_infer(f, op, out, &err)) {
        at.constraint = constraint_of(f, op);
        sg_mil_fault_add(faults, &at, "%s", err.text);
        return;
    }
    for (uint32_t i = 0; i < op->outputs; i++)
        if (!sg_mil_type_equal(&out[i], &v[i].type) || (op->info->rule != SG_MIL_T_BUFFER && out[i].buffer)) {
            at.op = v[i].name;
            sg_mil_fault_add(faults, &at, "declared as %s, but %s gives %s",
                             sg_mil_type_text(&v[i].type, said), op->kind, sg_mil_type_text(&out[i], is));
        }
}

void sg_mil_check_types(const struct sg_mil_program *p, struct sg_mil_faults *faults)
{
    segue_error err;
    for (uint32_t i = 0; i < p->functions_n; i++) {
        const struct sg_mil_function *f = &p->functions[i];
        uint32_t before = faults->refusals;
        for (uint32_t v = 0; v < f->values_n; v++)
            if (sg_mil_type_size(&f->values[v].type, NULL, NULL, &err)) {
                struct sg_mil_place at = {
                    .line = f->values[v].line, .column = f->values[v].column, .op = f->values[v].name};
                sg_mil_fault_add(faults, &at, "%s", err.text);
            }
        if (faults->refusals != before) continue; /* the rules below multiply dimensions */
        for (uint32_t o = 0; o < f->ops_n; o++) check_op(f, &f->ops[o], faults);
    }
}
