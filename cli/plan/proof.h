/* proof.h: what a plan expected beside what was measured, as a line and as JSON. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PROOF_H
#define SEGUE_CLI_PROOF_H

#include <jansson.h>
#include "plan/follow.h"

/* One line; nothing where nothing was compared. learns: the run is long enough to refine the calibration. */
void proof_say(const struct follow *f, bool learns);
/* The JSON object `plan`: what was chosen, why, and what became of it; a new reference. */
json_t *proof_json(const struct follow *f);

#endif
