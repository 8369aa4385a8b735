/* milparse.h: MIL text to a program: the grammar of docs/ANE.md, all three dialects. Checks syntax, names and
 * numbers (unique, defined above, in range), not types or rules: milinfer.h and rules.h do. Hostile text is
 * everyday text: time and memory are linear in its length. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILPARSE_H
#define SG_UNIT_ANE_MILPARSE_H

#include "unit/ane/mil/mil.h"
#include "unit/ane/mil/milfault.h"

enum {
    SG_MIL_TEXT_MAX = 1 << 29, /* bytes */
    SG_MIL_OPS_MAX = 1 << 22,  /* operations of a program */
    SG_MIL_ARGS_MAX = 64,
    SG_MIL_LIST_MAX = 4096,
    SG_MIL_ATTRS_MAX = 32,
    SG_MIL_NAME_MAX = 255
};

/* The text is not kept. EFORMAT: *fault says where and why, err the same with `name`; ELIMIT: too long;
 * EMEMORY. */
segue_status sg_mil_parse(struct sg_mil_program **out, const char *text, size_t n, const char *name,
                          struct sg_mil_fault *fault, segue_error *err);

#endif
