/* shared_run.h: runs that sessions share through the queue of their layer range (queue/shared_queue.h).
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SHARED_RUN_H
#define SG_ENGINE_SHARED_RUN_H

#include "engine/session/session.h"

/* The layer range on which the session's pending tokens can be computed together with others; NULL: it must run alone. masked:
 * also make its mask, and NULL where that fails; else the shared run makes it. */
const struct sg_layer_range *sg_shared_range(struct segue_session *s, int masked);
/* An offer of the next pending tokens, at most a chunk; the last `keep` stay pending. wish: after all others. */
void sg_share_init(struct sg_share *p, struct segue_session *s, size_t keep, enum sg_then wish);
/* 1: the unit has a lane for such long runs beside short ones, so that it need not be in the queue. */
int sg_share_has_own_lane(const struct sg_layer_range *range, const struct sg_share *p);
/* By the leader, after a run: fills the share of a group that stays with its next tokens, unless there are none, or it failed. */
void sg_share_again(struct sg_share *p, const struct sg_layer_range *range);
/* Leads the run for which sg_shared_queue_wait has returned LEAD. If it fails, each session tries alone, so that one session's
 * failure does not affect the others. */
void sg_shared_run(const struct sg_layer_range *range);
/* Waits until some shares of the group were in a run, and leads runs meanwhile. */
void sg_shared_run_group(const struct sg_layer_range *range, struct sg_run_group *g);

#endif
