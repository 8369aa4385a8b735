/* work.h: a snapshot of what a session has run: its work per unit and phase, and its recent losses of units.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_WORK_H
#define SEGUE_CLI_WORK_H

#include "segue.h"

enum { WORK_USES = 32, WORK_LOSSES = 4 };

struct session_work {
    segue_use uses[WORK_USES]; /* [uses_n] */
    size_t uses_n;
    segue_loss losses[WORK_LOSSES]; /* [losses_n] the last ones, oldest first */
    size_t losses_n;
    size_t losses_total; /* since the session was opened */
};

/* Reads the snapshot; empty if the session cannot be read. */
void work_get(struct session_work *w, const segue_session *session);
/* The entry of a part in a phase; zero if the session has not run it. */
segue_use work_find(const struct session_work *w, segue_phase phase, size_t unit, uint32_t from, uint32_t to);
/* Index of the first entry of now->losses that is not in `before`. */
size_t work_first_new_loss(const struct session_work *now, const struct session_work *before);

#endif
