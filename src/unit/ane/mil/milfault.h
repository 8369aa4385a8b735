/* milfault.h: diagnostics for an MIL text. Each has a source position, the number of the broken constraint
 * (docs/ANE.md; 0: syntax or types) and the operation concerned. The list is bounded: diagnostics beyond the
 * limit are counted but not stored.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILFAULT_H
#define SG_UNIT_ANE_MILFAULT_H

#include "base/err.h"

/* One diagnostic. */
struct sg_mil_fault {
    uint32_t line, column; /* from 1; 0: the whole file */
    uint32_t constraint;   /* number in docs/ANE.md; 0: syntax or types */
    uint32_t advice;       /* 1: warning; the program still compiles */
    char op[64];           /* name of the value or operation concerned; "" when there is none */
    char text[256];
};
/* A list of diagnostics. Initialize with zeros; free with sg_mil_faults_free. */
struct sg_mil_faults {
    struct sg_mil_fault *list; /* [n] */
    uint32_t n, cap, dropped;  /* dropped: not stored, because of the limit or lack of memory */
    uint32_t refusals;         /* errors (diagnostics without advice), including dropped ones */
};
enum { SG_MIL_FAULTS_MAX = 1000 };

/* Position, constraint and severity of a diagnostic that is about to be added. */
struct sg_mil_loc {
    uint32_t line, column, constraint, advice;
    const char *op;
};
/* Appends a diagnostic; control characters in the text become `?`. faults may be NULL: nothing happens. */
void sg_mil_fault_add(struct sg_mil_faults *faults, const struct sg_mil_loc *at, const char *format, ...)
    SG_FORMAT(3, 4);
void sg_mil_faults_free(struct sg_mil_faults *faults);
/* Reports the first error as `MIL text: NAME:LINE:COL: constraint N (op OP): text`. EFORMAT for constraint
 * 0, otherwise EUNSUPPORTED. SEGUE_OK: there are only warnings or nothing. EMEMORY: no error could be
 * stored. */
segue_status sg_mil_faults_fail(const struct sg_mil_faults *faults, const char *name, segue_error *err);

#endif
