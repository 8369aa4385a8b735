/* checkkernel.h: what the files about kernels share.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TESTS_CHECKKERNEL_H
#define SG_TESTS_CHECKKERNEL_H

#include "check.h"
#include "unit/cpu/kernels/kernels.h"

const char *check_pack_name(enum sg_pack kind);
/* Packed weights of random integers with scales that real files have, groups of 16 rows and k columns; the
 * arena's. */
uint8_t *check_pack_weights(struct check_rng *rng, struct sg_arena *arena, enum sg_pack kind, size_t k,
                            uint32_t groups);

/* Largest difference of one random chunk of attention from fp32, and its largest number; infinite where keys and values in
 * f16, or fewer queries and keys, have other bits. */
double check_narrow_distance(struct check_rng *rng, const struct sg_kernels *a, const struct sg_kernels *b, double *spread);

/* --bench: every kernel of `table` at the sizes of a model, beside generic and beside what the machine can
 * do. */
void check_bench_kernels(struct check *c, const struct sg_kernels *generic, const struct sg_kernels *table);

/* Peak of one core in an instruction set, measured: 1e9 operations (a multiplication and an addition are two)
 * per second of 8-bit products summed in 32 bits, or of fp32. 0: there is no loop for it here. */
double check_peak_int8(const char *isa);
double check_peak_fp32(const char *isa);

#endif
