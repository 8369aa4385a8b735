/* ruletrial.h: rules of docs/ANE.md tried on a device: for each one a program within the limit and one beyond it, and whether the
 * device does with them what a profile says. Programs that a chip was seen to hang or crash on are not among them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_RULETRIAL_H
#define SG_UNIT_ANE_RULETRIAL_H

#include "unit/ane/device.h"
#include "unit/ane/rules/profile.h"

/* What a device did with a program. */
enum sg_trial_outcome { SG_TRIAL_RUNS, SG_TRIAL_WRONG, SG_TRIAL_FAILS, SG_TRIAL_REFUSED };

struct sg_trial_side {
    enum sg_trial_outcome outcome;   /* of the device; WRONG: other numbers than by IEEE arithmetic */
    uint32_t rule;                   /* the rule by which the profile refuses the program; 0: it does not */
    char text[160];                  /* the message of the device; "": none */
};
struct sg_trial_answer {
    struct sg_trial_side within, beyond;
    uint32_t agrees;                 /* 1: the device ran, and rightly, exactly the programs that the profile accepts */
};
size_t sg_trial_count(void);
uint32_t sg_trial_rule(size_t i);
const char *sg_trial_what(size_t i);
const char *sg_trial_outcome_name(enum sg_trial_outcome outcome);
/* Runs trial i; whatever the device does with the programs is an answer. EARG: there is no trial i. EMEMORY. */
segue_status sg_trial_run(struct sg_ane_device *d, const struct sg_ane_profile *profile, size_t i, struct sg_trial_answer *out,
                          segue_error *err);

#endif
