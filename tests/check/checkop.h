/* checkop.h: the cases of level op: checkopmake.c builds their graphs, checkop.c runs and compares them.
 * SPDX-License-Identifier: MIT */
#ifndef CHECKOP_H
#define CHECKOP_H

#include "check.h"

/* A case being made. */
struct check_maker {
    struct check_world *w;
    struct check_rng rng;
    struct sg_builder b;
    uint32_t index, columns;         /* of the case; reserved so far */
    enum sg_storage storage;
    enum check_data data;
    int32_t x;                       /* the input, or its wanted rows */
    double block_tolerance;          /* on other units than ref, when weights are in blocks; 0 = as ref */
    double floor;                    /* the least size that y is taken to have */
    int gradient;                    /* for checkgradient.c: no op `rows`, no adapters, smooth and small */
};

/* A kind of case. make builds the graph and returns the value of y. */
struct check_op_kind {
    const char *name;
    int32_t (*make)(struct check_maker *m);
    int by_storage, cases, quick;    /* 1: `cases` per storage; cases in all and with --quick */
    uint32_t data;                   /* kinds of data (enum check_data) that occur */
    enum { CHECK_PLAN_MIXED, CHECK_PLAN_PROMPTS, CHECK_PLAN_DEEP, CHECK_PLAN_LONG } plan; /* lengths of the runs, see checkop.c */
};
enum { CHECK_OP_KINDS = 21 };
extern const struct check_op_kind check_op_kinds[CHECK_OP_KINDS];

static inline uint32_t check_maker_between(struct check_maker *m, uint32_t a, uint32_t b) { return check_between(&m->rng, a, b); }
static inline int check_maker_sometimes(struct check_maker *m) { return check_below(&m->rng, 2) == 0; }

#endif
