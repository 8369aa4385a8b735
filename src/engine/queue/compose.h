/* compose.h: what the next run of a queue has in it. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_COMPOSE_H
#define SG_ENGINE_COMPOSE_H

#include "engine/queue/shared_queue.h"

/* Fills q->chosen, q->run and q->masks from the waiting groups: answers, then prompts, each in order of arrival. Beside answers,
 * also beside those that are away with other threads, tokens of prompts are limited by time (pace.h); else by the chunk of the
 * first prompt. Marks the groups that have a share in it. The lock is held. */
void sg_run_compose(struct sg_shared_queue *q);

#endif
