/* rules.h: the constraints of engines, numbered as in docs/ANE.md, checked on a program and its blob files
 * before it is compiled. Constraints that depend on values, surfaces or the process are enforced by the
 * software NPU at run time.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_RULES_H
#define SG_UNIT_ANE_RULES_H

#include "unit/ane/device.h"
#include "unit/ane/mil/milfault.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/rules/profile.h"

/* What an engine does when a constraint is broken. */
enum sg_ane_symptom {
    SG_ANE_REFUSES,      /* compile or load returns an error */
    SG_ANE_FAILS,        /* evaluate returns status 0x1d */
    SG_ANE_INVALID,      /* evaluate returns InvalidMILProgram */
    SG_ANE_ZEROS,        /* outputs are zeros, without an error */
    SG_ANE_PERMUTES,     /* surfaces are bound in a different order, without an error */
    SG_ANE_LAST_ONLY,    /* only the last output is correct */
    SG_ANE_IGNORES_MASK, /* the attention mask has no effect */
    SG_ANE_IGNORES_WEIGHTS, /* a convolution does not read its weights */
    SG_ANE_DISTORTS,     /* values are wrong, without an error */
    SG_ANE_HANGS,        /* evaluate does not return */
    SG_ANE_BREAKS,       /* evaluate works once; then every evaluate of the process returns status 0x1d */
    SG_ANE_CRASHES,      /* the compiler service crashes; later compiles fail until it has restarted */
    SG_ANE_SLOW          /* correct but slower */
};
/* One row of the table of constraints. */
struct sg_ane_rule {
    uint32_t number; /* constraint number in docs/ANE.md */
    enum sg_ane_symptom symptom;
    char where;       /* checked on: t text, b blob files, s surfaces, r values at run time, p the process */
    const char *text; /* the condition that a program must meet */
    uint32_t chips;   /* SG_ANE_H*: generations that it was seen on or is known for; 0: reports that others contradict */
    const char *sources; /* abbreviations of docs/ANE.md */
};
/* Generations of the engine: M1, M2, M3, M4, M5. */
enum { SG_ANE_H13 = 1, SG_ANE_H14 = 2, SG_ANE_H15 = 4, SG_ANE_H16 = 8, SG_ANE_H17 = 16, SG_ANE_ALL = 31 };
/* The generation of bit i, from 0 to 4: "H13" and so on. */
const char *sg_ane_chip_name(uint32_t i);
const char *sg_ane_symptom_text(enum sg_ane_symptom symptom);
size_t sg_ane_rule_count(void);
const struct sg_ane_rule *sg_ane_rule_at(size_t i);
/* NULL: no constraint with this number is in the table. */
const struct sg_ane_rule *sg_ane_rule_find(uint32_t number);

/* Checks the constraints of the text; findings are added to faults. Precondition: sg_mil_check_types found
 * no error. */
void sg_ane_check_rules(const struct sg_mil_program *p, const struct sg_ane_profile *profile,
                        struct sg_mil_faults *faults);
/* Checks that every blob referenced by the program exists, is complete and has the declared type and size
 * (constraint 15). */
void sg_ane_check_blobs(const struct sg_mil_program *p, const struct sg_ane_profile *profile, const struct sg_ane_file *files,
                        uint32_t files_n, struct sg_mil_faults *faults);
/* All checks: types, then constraints, then blobs unless files is NULL. Stops after type errors. */
void sg_ane_check(const struct sg_mil_program *p, const struct sg_ane_profile *profile,
                  const struct sg_ane_file *files, uint32_t files_n, struct sg_mil_faults *faults);
/* The file with a path as written in MIL, with or without @model_path/; NULL: none. */
const struct sg_ane_file *sg_ane_file_of(const struct sg_ane_file *files, uint32_t files_n,
                                         const char *mil_path);
/* Size of the surface for an input or output: bytes of a padded row, and of all rows, rounded up to the
 * profile's granularity (constraints 1 and 43). */
void sg_ane_port_sizes(const struct sg_mil_type *t, const struct sg_ane_profile *profile, uint64_t *row_bytes,
                       uint64_t *surface_bytes);

#endif
