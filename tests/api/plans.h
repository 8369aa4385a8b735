/* plans.h: plans for tests. The caller closes them. SPDX-License-Identifier: MIT */
#ifndef SG_TESTS_PLANS_H
#define SG_TESTS_PLANS_H

#include <stdlib.h>

#include "segue.h"

/* All layers of prefill on one unit, all layers of decode on another, or on the same one. */
static inline segue_plan *two_phase_plan(uint32_t prefill, uint32_t decode, uint32_t layers)
{
    segue_plan *plan = NULL;
    const segue_part parts[2] = {
        {.size = sizeof *parts, .unit = prefill, .phase = SEGUE_PREFILL, .to = layers, .expect_j = -1},
        {.size = sizeof *parts, .unit = decode, .phase = SEGUE_DECODE, .to = layers, .expect_j = -1}};
    if (segue_plan_new(&plan, parts, 2, NULL, NULL) != SEGUE_OK) abort();
    return plan;
}

/* The entry of a phase that a session has run first; zero if it has run none. */
static inline segue_use first_use(const segue_session *session, segue_phase phase)
{
    segue_use use = SEGUE_INIT(segue_use);
    for (size_t i = 0; segue_session_use_get(session, i, &use, NULL) == SEGUE_OK; i++)
        if (use.phase == phase) return use;
    return (segue_use){0};
}

#endif
