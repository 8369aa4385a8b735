/* state_session.h: checking a state file by computing its tokens again. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_STATE_SESSION_H
#define SG_ENGINE_STATE_SESSION_H

#include "engine/statefile/statefile.h"

struct sg_verdict {
    double worst, bound; /* relative error of a slot: rms of the difference over rms of the recomputed values */
    char name[32];       /* of the worst slot, such as "k.3" */
    uint32_t bad, slots; /* slots beyond the bound, of how many */
};
/* Computes the tokens of the file again with the options' plan and adapters, and compares every slot. EFORMAT: the file
 * was made with another model or other adapters. */
segue_status sg_statefile_verify(const struct sg_statefile *f, struct segue_engine *e,
                                 const segue_session_opts *opts, struct sg_verdict *out, segue_error *err);

#endif
