/* flow.h: a hand-off that runs beside the reading: rows of K and V leave as soon as a layer has them, while
 * the layers above still run, and recurrent memory once, during the last run. What has not left by the end is
 * sent then. Any failure closes the flow; the states are then moved at once, when all is read.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_FLOW_H
#define SG_ENGINE_FLOW_H

#include "engine/placement/layout.h"

struct sg_flow; /* of one session; NULL: nothing can flow */

/* From where a session reads to where it writes; *out = NULL where the states are passed on instead. */
segue_status sg_flow_new(struct sg_flow **out, struct sg_layout *from, struct sg_layout *to,
                         const struct sg_graph *all, segue_error *err);
void sg_flow_free(struct sg_flow *f);

/* Before a run: the new states exist, and expect `room` rows. 0: they could not be made. */
int sg_flow_open(struct sg_flow *f, uint64_t room);
/* Beside a run of stage k of `from` that makes its states, `before` long, `rows` long. last: nothing is read behind it. 0: it
 * failed; close the flow when the run is over. No unit is entered here: the run may hold it. */
int sg_flow_send(struct sg_flow *f, uint32_t k, uint64_t before, uint64_t rows, int last);
/* Send what is missing and seal; then the states are in `to` as well. EUNSUPPORTED: the flow is closed. */
segue_status sg_flow_finish(struct sg_flow *f, uint64_t rows, segue_error *err);
/* Forget what was sent. */
void sg_flow_close(struct sg_flow *f);

struct sg_flow_sums {
    uint64_t bytes, ns; /* moved since new; processor time of moving beside runs */
};
void sg_flow_sums(const struct sg_flow *f, struct sg_flow_sums *out);

#endif
