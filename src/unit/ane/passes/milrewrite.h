/* milrewrite.h: a function of a program made anew from itself, operation by operation: what every pass is made of. The
 * program keeps its address and its memory; on failure it is as before. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILREWRITE_H
#define SG_UNIT_ANE_MILREWRITE_H

#include "unit/ane/mil/milbuild.h"

struct sg_mil_rewrite {
    struct sg_mil_function f; /* as it was */
    struct sg_mil_builder b;  /* of what it becomes */
    uint32_t *map;             /* [f.values_n] the new number of an old value; SG_MIL_NONE: it is not there */
    uint8_t *is_result;        /* [f.values_n] 1: a result, which keeps its name */
    void *ctx;                /* the pass's */
    uint64_t changes;
};
/* What a pass does. Each may be NULL: as it was. step must set to[] of every value of op that is read later. */
struct sg_mil_pass {
    void (*params)(struct sg_mil_rewrite *r);
    void (*step)(struct sg_mil_rewrite *r, const struct sg_mil_op *op);
    void (*returns)(struct sg_mil_rewrite *r, uint32_t *values); /* [f.returns_n] new numbers, to be changed */
};
/* Types must have been checked. *changes grows. EMEMORY, EINTERNAL. */
segue_status sg_mil_rewrite(struct sg_mil_program *p, uint32_t function, const struct sg_mil_pass *pass, void *ctx,
                            uint64_t *changes, segue_error *err);

/* For steps: the operation as it was, on the new values; literals in arguments become constants. */
void sg_mil_rewrite_copy(struct sg_mil_rewrite *r, const struct sg_mil_op *op);
/* Its first value becomes an existing new one; a result is kept by name through an identity. One more change. */
void sg_mil_rewrite_replace(struct sg_mil_rewrite *r, const struct sg_mil_op *op, uint32_t value);
/* The name of its value goes to the next operation that is built, when it is one to keep. */
void sg_mil_rewrite_keep_name(struct sg_mil_rewrite *r, const struct sg_mil_op *op);
/* An argument on the new values; SG_MIL_NONE: not given. */
uint32_t sg_mil_rewrite_arg(struct sg_mil_rewrite *r, const struct sg_mil_op *op, const char *name);
/* The operation that makes a new value; NULL: a parameter. Valid until the next is built. */
const struct sg_mil_op *sg_mil_rewrite_def(const struct sg_mil_rewrite *r, uint32_t value, const char *kind);
/* The function as far as it is made. */
const struct sg_mil_function *sg_mil_rewrite_built(const struct sg_mil_rewrite *r);

#endif
