/* npu.h: the software NPU: a device (unit/ane/device.h) that runs MIL programs on any processor
 * under the rules of a profile. In refuse mode whatever a real engine would get wrong without an error
 * is refused, and the constraint is named. In faithful mode the program runs and shows the same symptom
 * as the chip. Results have the rounding of fp16 and the arithmetic of the profile; times are
 * estimates.
 *
 * Budgets (compiles, loaded programs) of a real engine are per process; here each device represents one
 * process.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_NPU_H
#define SG_UNIT_ANE_NPU_H

#include "unit/ane/device.h"
#include "unit/ane/rules/profile.h"

struct sg_npu_opts {
    struct sg_ane_profile profile;
    uint32_t faithful;           /* 1: show symptoms; 0: refuse */
    uint32_t delta;              /* 1: reload uses changed blob files; 0: weights stay as compiled */
    uint32_t compiles, loads;    /* budgets; 0: those of the profile */
    uint32_t threads;            /* 0: one per processor */
    uint32_t wide;               /* 1: results are not rounded; only constants and surfaces are fp16 */
    /* Fault injection, for tests. The calls are counted from 1; 0: no fault. hang_evaluate: that
     * evaluate is reported as lost at once instead of hanging. refusals: compiles that are refused
     * after a failed one, as while the service restarts. */
    uint32_t fail_compile, fail_evaluate, hang_evaluate, refusals;
};

/* The options are copied. EMEMORY. */
segue_status sg_npu_open(struct sg_ane_device **out, const struct sg_npu_opts *o, segue_error *err);
/* What a new process would start with: full budgets. Compiled programs stay known to the simulated
 * service, so sources marked as cached load without a compile. EARG: programs are loaded. */
segue_status sg_npu_restart(struct sg_ane_device *d, segue_error *err);
/* Number of restarts. */
uint64_t sg_npu_restarts(const struct sg_ane_device *d);
/* The parsed program, for tools. It belongs to p. */
const struct sg_mil_program *sg_npu_program_of(const struct sg_ane_program *p);

#endif
