/* miltypes.c: helpers shared by the type rules; see miltypes.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/miltypes.h"

#include <string.h>

/* Attributes are searched too: the ios16 form of constexpr operations has its operands there. */
const struct sg_mil_type *sg_mil_infer_arg_type(struct sg_mil_infer_ctx *w, const char *name)
{
    const struct sg_mil_arg *a = sg_mil_arg_find(w->op, name);
    const struct sg_mil_literal *l = a ? NULL : sg_mil_attr_find(w->op, name);
    return l ? &l->type : sg_mil_arg_type(w->f, a);
}

/* An inline literal is not accepted: lists hold values only. */
uint32_t sg_mil_infer_list(struct sg_mil_infer_ctx *w, const char *name, const struct sg_mil_type **types,
                           uint32_t max)
{
    const struct sg_mil_arg *a = sg_mil_arg_find(w->op, name);
    uint32_t n = a && a->kind == SG_MIL_LIST ? a->n : a && a->kind == SG_MIL_REF ? 1 : 0;
    if (!n || n > max) {
        SG_MIL_TYPE_ERROR("%s must be a list of 1 to %u values", name, max);
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        types[i] = &w->f->values[a->kind == SG_MIL_REF ? a->v.ref : a->v.refs[i]].type;
    return n;
}

/* rank is that of the tensor that the axis counts in, which is not always x. */
uint32_t sg_mil_infer_axis(struct sg_mil_infer_ctx *w, const char *name, int64_t fallback, uint32_t rank)
{
    int64_t axis = sg_mil_const_int(w->f, w->op, name, fallback);
    if (axis < 0) axis += rank;
    if (axis >= 0 && axis < rank) return (uint32_t)axis;
    SG_MIL_TYPE_ERROR("%s is outside the rank of %u", name, rank);
    return SG_MIL_DIMS;
}

/* Only the element count matters; a vector may be written as [n], [1, n, 1, 1] and so on. */
segue_status sg_mil_infer_vector(struct sg_mil_infer_ctx *w, const char *name, uint64_t elements)
{
    const struct sg_mil_type *t = sg_mil_infer_arg_type(w, name);
    if (t && sg_mil_elements(t) != elements)
        return SG_MIL_TYPE_ERROR("%s has %llu numbers, %llu are needed", name,
                                 (unsigned long long)sg_mil_elements(t), (unsigned long long)elements);
    return SEGUE_OK;
}

/* Axis i is bit i of axes. The remaining axes keep their order. */
void sg_mil_reduced_shape(const struct sg_mil_type *x, uint32_t axes, int keep, struct sg_mil_type *out)
{
    struct sg_mil_type t = {.dtype = x->dtype};
    for (uint32_t i = 0; i < x->rank; i++) {
        if (!(axes >> i & 1))
            t.dim[t.rank++] = x->dim[i];
        else if (keep)
            t.dim[t.rank++] = 1;
    }
    *out = t;
}
