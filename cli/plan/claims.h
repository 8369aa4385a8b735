/* claims.h: published claims, judged by the cost model. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CLAIMS_H
#define SEGUE_CLI_CLAIMS_H

#include "engine/planner/chips/chip.h"
#include "term/out.h"

/* [{claim, published, predicted, verdict (holds, refuted, unknown), reason}] as a new reference. */
json_t *claims_json(const struct sg_chips *chips);
/* The same as text. */
void claims_text(struct out_text *text, const json_t *claims);

#endif
