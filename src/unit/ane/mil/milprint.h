/* milprint.h: a program as MIL text, in the dialect asked for. The verbose dialect is the one that compiles
 * from M1 to M5; there and in the modern one every constant becomes a named const before its use, in the
 * buffer dialect short ones stand inline. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILPRINT_H
#define SG_UNIT_ANE_MILPRINT_H

#include "base/buf.h"
#include "unit/ane/mil/mil.h"

/* Appends. Parsing the text gives a program of the same operations and numbers. EMEMORY, ELIMIT (of the
 * buffer). */
segue_status sg_mil_print(const struct sg_mil_program *p, enum sg_mil_dialect dialect, struct sg_buf *out,
                          segue_error *err);
/* One number of a literal, exactly: "1.0", "0x1.8p-3", "inf", "true". */
void sg_mil_print_number(struct sg_buf *out, const struct sg_mil_literal *l, uint64_t i);

#endif
