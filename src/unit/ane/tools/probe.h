/* probe.h: small programs that answer by experiment questions on which the sources about the engine
 * disagree (docs/ANE.md). They use device.h only, so the software NPU can run them as well, and tests
 * can check the probes themselves.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_PROBE_H
#define SG_UNIT_ANE_PROBE_H

#include "unit/ane/device.h"

struct sg_probe_answer {
    char verdict[160];      /* one line of text */
    double value;           /* measured number, if value_name is set */
    const char *value_name; /* such as "dispatch_us"; NULL: no number */
    uint32_t settled;       /* 1: the question is answered; 0: the probe could not run */
};
/* Probes are in safe order: those that may hang or use up a budget are last. */
size_t sg_probe_count(void);
const char *sg_probe_name(size_t i);
const char *sg_probe_question(size_t i);
/* Runs probe i. A refused program is an answer, not an error. EARG: there is no probe i. */
segue_status sg_probe_run(struct sg_ane_device *d, size_t i, struct sg_probe_answer *out, segue_error *err);

#endif
