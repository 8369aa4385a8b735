/* milfault.h: what is wrong with a MIL text: a list of findings, each with its place, the number of the rule
 * (docs/ANE.md; 0 is syntax or types) and the operation. Bounded: beyond the limit findings are counted, not
 * kept. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILFAULT_H
#define SG_UNIT_ANE_MILFAULT_H

#include "base/err.h"

struct sg_mil_fault {
    uint32_t line, column; /* from 1; 0: the whole file */
    uint32_t constraint;
    uint32_t advice; /* 1: slower or doubtful, not refused */
    char op[64];     /* the operation's name, or the value's; "" where there is none */
    char text[256];
};
/* Zero-initialise. */
struct sg_mil_faults {
    struct sg_mil_fault *list; /* [n] */
    uint32_t n, cap, dropped;  /* dropped: beyond SG_MIL_FAULTS_MAX, or out of memory */
    uint32_t refusals;         /* findings that are no advice, dropped ones too */
};
enum { SG_MIL_FAULTS_MAX = 1000 };

struct sg_mil_place {
    uint32_t line, column, constraint, advice;
    const char *op;
};
void sg_mil_fault_add(struct sg_mil_faults *faults, const struct sg_mil_place *at, const char *format, ...)
    SG_FORMAT(3, 4);
void sg_mil_faults_free(struct sg_mil_faults *faults);
/* The first refusal as an error: `MIL text: NAME:LINE:COL: constraint N (op OP): text`. EFORMAT for
 * constraint 0, else EUNSUPPORTED; SEGUE_OK when there is none. */
segue_status sg_mil_faults_fail(const struct sg_mil_faults *faults, const char *name, segue_error *err);

#endif
