/* milfault.c: the bounded list of diagnostics; see milfault.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/milfault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Space for one more entry; NULL: the limit is reached or out of memory. */
static struct sg_mil_fault *next_entry(struct sg_mil_faults *faults)
{
    if (faults->n >= SG_MIL_FAULTS_MAX) return NULL;
    if (faults->n == faults->cap) {
        uint32_t cap = faults->cap ? faults->cap * 2 : 8;
        void *more = sg_realloc(faults->list, cap * sizeof *faults->list);
        if (!more) return NULL;
        faults->list = more;
        faults->cap = cap;
    }
    return &faults->list[faults->n++];
}

/* Errors are counted before space is looked for: a full list must not turn an invalid program into a valid
 * one. */
void sg_mil_fault_add(struct sg_mil_faults *faults, const struct sg_mil_loc *at, const char *format, ...)
{
    if (!faults) return;
    if (!at->advice) faults->refusals++;
    struct sg_mil_fault *f = next_entry(faults);
    if (!f) {
        faults->dropped++;
        return;
    }
    *f = (struct sg_mil_fault){
        .line = at->line, .column = at->column, .constraint = at->constraint, .advice = at->advice};
    snprintf(f->op, sizeof f->op, "%s", at->op ? at->op : "");
    /* A longer text is truncated. */
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    /* The text may quote hostile input; control characters could change a terminal's state. */
    for (unsigned char *c = (unsigned char *)f->text; *c; c++)
        if (*c < 0x20 || *c == 0x7f) *c = '?';
}

/* The list can be used again afterwards. */
void sg_mil_faults_free(struct sg_mil_faults *faults)
{
    sg_free(faults->list);
    *faults = (struct sg_mil_faults){0};
}

/* Reached the end without an entry: every error was dropped for lack of memory. */
segue_status sg_mil_faults_fail(const struct sg_mil_faults *faults, const char *name, segue_error *err)
{
    if (!faults->refusals) return SEGUE_OK;
    for (uint32_t i = 0; i < faults->n; i++) {
        const struct sg_mil_fault *f = &faults->list[i];
        if (f->advice) continue;
        return sg_fail(err, f->constraint ? SEGUE_EUNSUPPORTED : SEGUE_EFORMAT,
                       "MIL text: %.80s:%u:%u: constraint %u (op %s): %s", name, f->line, f->column,
                       f->constraint, f->op[0] ? f->op : "-", f->text);
    }
    return sg_fail(err, SEGUE_EMEMORY,
                   "MIL text: %.80s: out of memory while its errors were listed; free some memory", name);
}
