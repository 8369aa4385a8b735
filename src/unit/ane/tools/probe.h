/* probe.h: small programs that settle by experiment what sources of the engine contradict each other about
 * (docs/ANE.md). Each goes through device.h, so that the software engine answers them too and a test can hold
 * the questions themselves. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_PROBE_H
#define SG_UNIT_ANE_PROBE_H

#include "unit/ane/device.h"

struct sg_probe_answer {
    char verdict[160];      /* one line */
    double value;           /* a figure, where there is one */
    const char *value_name; /* "dispatch_us"; NULL: none */
    uint32_t settled;       /* 1: the question has an answer; 0: the probe could not ask it */
};
size_t sg_probe_count(void); /* in safe order: what may hang or spend a budget comes last */
const char *sg_probe_name(size_t i);
const char *sg_probe_question(size_t i);
/* EMEMORY only; that a program is refused is an answer. */
segue_status sg_probe_run(struct sg_ane_device *d, size_t i, struct sg_probe_answer *out, segue_error *err);

#endif
