/* mildiff.h: differences between two programs, independent of value names and dialect.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILDIFF_H
#define SG_UNIT_ANE_MILDIFF_H

#include "base/buf.h"
#include "unit/ane/mil/mil.h"

/* Appends a line `- text` for each statement that only a has, and `+ text` for each that only b has, with
 * values named by their number. *lines: number of lines; 0: the programs are equal. Renames the values of
 * both programs. EMEMORY. */
segue_status sg_mil_diff(struct sg_mil_program *a, struct sg_mil_program *b, struct sg_buf *out,
                         uint64_t *lines, segue_error *err);

#endif
