/* milprint.h: writes a program as MIL text in a given dialect. The verbose dialect is the one reported to
 * compile on M1 to M5. It and the modern dialect name every constant in a const before its use; the buffer
 * dialect writes short constants inline.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILPRINT_H
#define SG_UNIT_ANE_MILPRINT_H

#include "base/buf.h"
#include "unit/ane/mil/mil.h"

/* Appends the text to out. Parsing it gives a program with the same operations and numbers. EMEMORY;
 * ELIMIT: the buffer's limit was exceeded. */
segue_status sg_mil_print(const struct sg_mil_program *p, enum sg_mil_dialect dialect, struct sg_buf *out,
                          segue_error *err);
/* Appends element i of a numeric literal without loss: "1.0", "0x1.8p-3", "inf", "true". */
void sg_mil_print_number(struct sg_buf *out, const struct sg_mil_literal *l, uint64_t i);

#endif
