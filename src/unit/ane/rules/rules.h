/* rules.h: the rules of engines, by their numbers in docs/ANE.md, held against a program before it is
 * compiled, and against its blob files. Rules that only values, surfaces or a process can break are held by
 * the software engine as it runs. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_RULES_H
#define SG_UNIT_ANE_RULES_H

#include "unit/ane/device.h"
#include "unit/ane/mil/milfault.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/rules/profile.h"

/* What an engine does when a rule is broken. */
enum sg_ane_symptom {
    SG_ANE_REFUSES,   /* compile says no */
    SG_ANE_FAILS,     /* evaluate says 0x1d */
    SG_ANE_INVALID,   /* evaluate says InvalidMILProgram */
    SG_ANE_ZEROS,     /* outputs are zeros */
    SG_ANE_PERMUTES,  /* surfaces are bound in another order */
    SG_ANE_LAST_ONLY, /* only the last output is right */
    SG_ANE_IGNORES_MASK,
    SG_ANE_DISTORTS, /* values are wrong without an error */
    SG_ANE_HANGS,   /* evaluate never returns */
    SG_ANE_CRASHES, /* the compiler's service ends and rests */
    SG_ANE_SLOW
};
struct sg_ane_rule {
    uint32_t number;
    enum sg_ane_symptom symptom;
    char where; /* t: text, b: blob files, s: surfaces, r: values as it runs, p: the process */
    const char *text;
};
size_t sg_ane_rule_count(void);
const struct sg_ane_rule *sg_ane_rule_at(size_t i);
const struct sg_ane_rule *sg_ane_rule_find(uint32_t number); /* NULL */

/* Types must have been found right (sg_mil_check_types). */
void sg_ane_check_rules(const struct sg_mil_program *p, const struct sg_ane_profile *profile,
                        struct sg_mil_faults *faults);
/* Every blob that the program names: there, whole, of the declared type and size. */
void sg_ane_check_blobs(const struct sg_mil_program *p, const struct sg_ane_file *files, uint32_t files_n,
                        struct sg_mil_faults *faults);
/* Types, then rules, then blobs when files are given (NULL: not looked at). */
void sg_ane_check(const struct sg_mil_program *p, const struct sg_ane_profile *profile,
                  const struct sg_ane_file *files, uint32_t files_n, struct sg_mil_faults *faults);
/* The file of a path as MIL writes it, with @model_path/; NULL: none. */
const struct sg_ane_file *sg_ane_file_of(const struct sg_ane_file *files, uint32_t files_n,
                                         const char *mil_path);
/* What a surface for this type needs: bytes of a padded row, and of the whole. */
void sg_ane_port_sizes(const struct sg_mil_type *t, const struct sg_ane_profile *profile, uint64_t *row_bytes,
                       uint64_t *surface_bytes);

#endif
