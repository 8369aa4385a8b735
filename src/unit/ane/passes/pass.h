/* pass.h: the passes between a lowered program and its text. Each pass can run alone and gives a program
 * with the same meaning, up to rounding where it replaces an operation. Precondition: sg_mil_check_types
 * found no error, except for operations that sg_pass_legal replaces. *changes grows by the number of
 * changes; a second run of a pass makes none. EMEMORY: out of memory; the program is then unchanged.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_PASS_H
#define SG_UNIT_ANE_PASS_H

#include "unit/ane/mil/mil.h"

/* Replaces operations that engines refuse (docs/ANE.md, constraints 9 to 14 and 42) or compute too coarsely
 * (activations by table) with supported ones. */
segue_status sg_pass_legal(struct sg_mil_program *p, uint64_t *changes, segue_error *err);
/* Constants: names the literals in arguments, merges equal constants, and evaluates fp16 operations on
 * constants whose result has at most 65536 elements. */
segue_status sg_pass_const(struct sg_mil_program *p, uint64_t *changes, segue_error *err);
/* Only names the literals in arguments (constraint 13). */
segue_status sg_pass_named(struct sg_mil_program *p, uint64_t *changes, segue_error *err);
/* Common subexpression elimination; merges chains of reshapes, transposes, slices, concats and scalings;
 * removes operations without effect. */
segue_status sg_pass_fuse(struct sg_mil_program *p, uint64_t *changes, segue_error *err);
/* Removes operations that no result depends on (constraint 17). */
segue_status sg_pass_dead(struct sg_mil_program *p, uint64_t *changes, segue_error *err);

/* Brings inputs and results into a form that engines accept (constraints 1, 3, 4, 26): [1, C, 1, S] with C
 * and S padded to multiples of `channels` and `columns`; inputs ascending in size, results descending, both in alphabetical
 * order: PREFIX_role becomes a_role, b_role, .. for inputs and .., y_role, z_role for results. Padding of
 * inputs is sliced off, padding of results is 0. EUNSUPPORTED: a port that is not fp16 [1, C, 1, S], or more
 * than 8 inputs or results. */
segue_status sg_pass_layout(struct sg_mil_program *p, uint32_t channels, uint32_t columns, uint64_t *changes,
                            segue_error *err);

/* Runs the layout once, then legal, const, fuse and dead repeatedly until nothing changes. */
segue_status sg_passes(struct sg_mil_program *p, uint32_t channels, uint32_t columns, segue_error *err);

#endif
