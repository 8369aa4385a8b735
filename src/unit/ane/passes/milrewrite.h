/* milrewrite.h: framework of the passes: rebuilds a function operation by operation. A pass supplies
 * callbacks; what it does not handle is copied. The program keeps its address and arena; on failure the
 * function is as before.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILREWRITE_H
#define SG_UNIT_ANE_MILREWRITE_H

#include "unit/ane/mil/milbuild.h"

/* State of one rebuild. `Old` values are those of f, `new` values those of the function under construction. */
struct sg_mil_rewrite {
    struct sg_mil_function f; /* the old function */
    struct sg_mil_builder b;  /* builds the new function */
    uint32_t *map;            /* [f.values_n] new number of an old value; SG_MIL_NONE: not built */
    uint8_t *is_result;       /* [f.values_n] 1: a result of the function; its name must not change */
    void *ctx;                /* owned by the pass */
    uint64_t changes;         /* counted by the pass */
};
/* Callbacks of a pass; NULL: copy. step is called for every old operation in order and must set map[] of
 * each of its values that is read later. returns may replace the new values of the results. */
struct sg_mil_pass {
    void (*params)(struct sg_mil_rewrite *r);
    void (*step)(struct sg_mil_rewrite *r, const struct sg_mil_op *op);
    void (*returns)(struct sg_mil_rewrite *r, uint32_t *values); /* [f.returns_n] new numbers */
};
/* Runs a pass over one function. *changes grows by what the pass counted. EMEMORY; EINTERNAL: the pass
 * built an invalid operation or dropped a value that is still read. */
segue_status sg_mil_rewrite(struct sg_mil_program *p, uint32_t function, const struct sg_mil_pass *pass, void *ctx,
                            uint64_t *changes, segue_error *err);

/* The following functions are for callbacks. Copies an operation onto the new values; literals in arguments
 * become named constants, and a const equal to an earlier one is merged with it. */
void sg_mil_rewrite_copy(struct sg_mil_rewrite *r, const struct sg_mil_op *op);
/* Maps the first value of op to an existing new value instead of copying op, and counts a change. A result
 * keeps its name through an identity. */
void sg_mil_rewrite_replace(struct sg_mil_rewrite *r, const struct sg_mil_op *op, uint32_t value);
/* Gives the name of op's first value to the next operation that is built, unless it is a generated name of
 * a value that is not a result. */
void sg_mil_rewrite_keep_name(struct sg_mil_rewrite *r, const struct sg_mil_op *op);
/* New value of an argument; builds a constant when it is a literal. SG_MIL_NONE: absent or a list. */
uint32_t sg_mil_rewrite_arg(struct sg_mil_rewrite *r, const struct sg_mil_op *op, const char *name);
/* The new operation of this kind that defines a new value; NULL: a parameter or another kind. Valid until
 * the next operation is built. */
const struct sg_mil_op *sg_mil_rewrite_def(const struct sg_mil_rewrite *r, uint32_t value, const char *kind);
/* The new function as built so far. */
const struct sg_mil_function *sg_mil_rewrite_built(const struct sg_mil_rewrite *r);

#endif
