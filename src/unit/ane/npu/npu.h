/* npu.h: the software engine: runs MIL programs under the rules of a profile, on any processor. In `refuse`
 * mode whatever a real engine would silently get wrong is an error that names the rule; in `faithful` mode it
 * shows the chip's symptom. Costs are simulated. Budgets belong to the device as they belong to a process:
 * open one for each. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_NPU_H
#define SG_UNIT_ANE_NPU_H

#include "unit/ane/device.h"
#include "unit/ane/rules/profile.h"

struct sg_npu_opts {
    struct sg_ane_profile profile;
    uint32_t faithful;        /* 1: show symptoms; 0: refuse */
    uint32_t delta;           /* 1: reload takes changed blobs; 0: weights stay as compiled */
    uint32_t compiles, loads; /* budgets; 0: the profile's */
    uint32_t threads;         /* 0: one for each processor */
    /* Trouble to order, each counted from 1, 0 = none: the n-th compile or evaluate fails, or the n-th
     * evaluate never returns (it is reported as lost at once). After a failed compile the service refuses
     * `rest` more. */
    uint32_t fail_compile, fail_evaluate, hang_evaluate, rest;
};

segue_status sg_npu_open(struct sg_ane_device **out, const struct sg_npu_opts *o, segue_error *err);
/* What a new process begins with: budgets as at the start. EARG while programs are loaded. Compiled programs
 * stay in the cache of the service, so sources marked cached load again without compiling. */
segue_status sg_npu_restart(struct sg_ane_device *d, segue_error *err);
/* Restarts so far. */
uint64_t sg_npu_restarts(const struct sg_ane_device *d);
/* The parsed program, for tools; lives as long as p. */
const struct sg_mil_program *sg_npu_program_of(const struct sg_ane_program *p);

#endif
