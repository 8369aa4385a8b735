/* ane_cost.h: the simulated time of a token on an engine that is not here. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ANE_COST_H
#define SEGUE_CLI_ANE_COST_H

#include "segue.h"

/* One dispatch through all layers of a model, and one row through its output head, by the cost model of docs/ANE.md. */
struct ane_cost {
    double layers_ms, head_ms;
    uint64_t layers_bytes, head_bytes;     /* weights */
    unsigned dispatches;                   /* of the layers; the head is one more */
    unsigned rule;                         /* the first rule of the chip that refuses a program (docs/ANE.md); 0: none */
};
/* profile: of a chip, such as m4. rows: of a dispatch. keys: positions that a token can attend to, a power of two from 32 to
 * 4096. No weights are read. */
segue_status ane_cost_of(const segue_model *model, const char *profile, unsigned rows, unsigned keys, struct ane_cost *out,
                         segue_error *err);

#endif
