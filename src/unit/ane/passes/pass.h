/* pass.h: the passes between a lowered program and its text, each for itself: what comes out is a program of the same
 * meaning. Types must have been checked. *changes grows by what was changed: 0 when there was nothing to do, and a pass
 * run again does nothing. EMEMORY; on failure the program is as before. (The cut of a graph into programs comes before
 * them: lowercut.h.) SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_PASS_H
#define SG_UNIT_ANE_PASS_H

#include "unit/ane/mil/mil.h"

/* Operations that engines refuse, or compute too coarsely (activations from tables), become ones that they take
 * (docs/ANE.md, constraints 9 to 14, 42). */
segue_status sg_pass_legal(struct sg_mil_program *p, uint64_t *changes, segue_error *err);
/* Literals in arguments become named constants, equal constants one, and what only constants go into is computed, up
 * to 65,536 numbers. */
segue_status sg_pass_const(struct sg_mil_program *p, uint64_t *changes, segue_error *err);
/* The first half of that alone: literals in arguments become named constants. */
segue_status sg_pass_named(struct sg_mil_program *p, uint64_t *changes, segue_error *err);
/* What is computed twice is computed once; chains that only move or scale numbers become one link; what changes nothing
 * goes. */
segue_status sg_pass_fuse(struct sg_mil_program *p, uint64_t *changes, segue_error *err);
/* What no result needs goes (constraint 17). */
segue_status sg_pass_dead(struct sg_mil_program *p, uint64_t *changes, segue_error *err);

/* Ports become surfaces that engines take (constraints 1, 4, 26): [1, C, 1, S] with C and S multiples of `pad`; inputs rise in
 * size and in name, results fall in size and rise in name: PREFIX_role becomes a_role, b_role, .. and .., y_role, z_role.
 * Padding is cut off from inputs and is zero in results. EUNSUPPORTED: a port of another rank, more than 8. */
segue_status sg_pass_layout(struct sg_mil_program *p, uint32_t pad, uint64_t *changes, segue_error *err);

/* The layout, then the others in this order, over and over until nothing changes. */
segue_status sg_passes(struct sg_mil_program *p, uint32_t pad, segue_error *err);

#endif
