/* mildiff.h: what differs between two programs, whatever their values are called and in whatever dialect they
 * are written. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILDIFF_H
#define SG_UNIT_ANE_MILDIFF_H

#include "base/buf.h"
#include "unit/ane/mil/mil.h"

/* Lines `- text` and `+ text` of statements that stand in one program only, names replaced by their order;
 * *lines says how many (0: the programs are equal). Renames the values of both programs. EMEMORY. */
segue_status sg_mil_diff(struct sg_mil_program *a, struct sg_mil_program *b, struct sg_buf *out,
                         uint64_t *lines, segue_error *err);

#endif
