/* flow.h: a streamed hand-off, which overlaps with prefill. Rows of K and V are copied to the decode unit as soon as their layer
 * has been computed, while later layers still run; recurrent slots are copied once, during the last run. The rest is copied by
 * sg_flow_finish. Any failure closes the flow: the states are then moved in one piece after prefill (bridge.h).
 *
 * Threads: used by the session's thread only; sg_flow_send runs beside a run of the prefill unit. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_FLOW_H
#define SG_ENGINE_FLOW_H

#include "engine/placement/layout.h"

struct sg_flow; /* of one session; NULL: its layouts do not allow streaming */

/* from: layout of prefill; to: layout of decode; all: graph of the whole model. *out = NULL when state_transfer makes a copy
 * unnecessary. EMEMORY. */
segue_status sg_flow_new(struct sg_flow **out, struct sg_layout *from, struct sg_layout *to,
                         const struct sg_graph *all, segue_error *err);
void sg_flow_free(struct sg_flow *f);

/* Before a run: creates the states of `to` for `capacity` tokens if there are none. 0: that failed. */
int sg_flow_open(struct sg_flow *f, uint64_t capacity);
/* During a run of stage k of `from` that extends its states from `before` to `rows` tokens: copies what is complete. last: the
 * run is the last one of prefill. 0: a copy failed; close the flow after the run. state_get and state_put do not wait for the
 * unit's run. */
int sg_flow_send(struct sg_flow *f, uint32_t k, uint64_t before, uint64_t rows, int last);
/* Copies what is missing and validates the states of `to`, which then equal those of `from`. EUNSUPPORTED: the flow was
 * closed. On failure the flow is closed. */
segue_status sg_flow_finish(struct sg_flow *f, uint64_t rows, segue_error *err);
/* Drops the states of `to`. */
void sg_flow_close(struct sg_flow *f);

struct sg_flow_sums {
    uint64_t bytes, copied; /* as in struct sg_moved, since sg_flow_new */
    uint64_t ns;    /* CPU time of copies during runs */
};
void sg_flow_sums(const struct sg_flow *f, struct sg_flow_sums *out);

#endif
