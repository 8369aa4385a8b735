/* milparse.h: parser from MIL text to a program, for all three dialects (grammar in docs/ANE.md). Checks
 * syntax, names and number ranges; types and engine rules are checked by milinfer.h and rules.h. The text
 * may be hostile: time and memory are linear in its length, and every nesting is bounded. Grammar:
 * program(VERSION) [buildInfo = dict(...)] { func NAME<TARGET>(TYPE NAME, ...) { TYPE NAME, ... =
 * OP<TARGET>(ARG = VALUE, ...)[ATTR = LITERAL, ...]; ... } -> (NAME, ...); ... }, where VALUE is a name, a
 * literal or a list of names in parentheses.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILPARSE_H
#define SG_UNIT_ANE_MILPARSE_H

#include "unit/ane/mil/mil.h"
#include "unit/ane/mil/milfault.h"

/* Limits of the parser. */
enum {
    SG_MIL_TEXT_MAX = 1 << 29, /* bytes of text */
    SG_MIL_OPS_MAX = 1 << 22,  /* operations in a program */
    SG_MIL_ARGS_MAX = 64,      /* arguments of an operation */
    SG_MIL_LIST_MAX = 4096,    /* values in a list, results of a function */
    SG_MIL_ATTRS_MAX = 32,     /* attributes of an operation */
    SG_MIL_NAME_MAX = 255      /* bytes of a name */
};

/* Parses n bytes; the text need not outlive the call. On success *out is a new program that the caller
 * frees. EFORMAT: the text is wrong; *fault (may be NULL) has position and reason, err repeats them prefixed
 * with `name`. ELIMIT: the text is too long. EMEMORY: out of memory. */
segue_status sg_mil_parse(struct sg_mil_program **out, const char *text, size_t n, const char *name,
                          struct sg_mil_fault *fault, segue_error *err);

#endif
