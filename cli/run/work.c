/* work.c: see work.h. SPDX-License-Identifier: MIT */
#include "run/work.h"

void work_get(struct session_work *w, const segue_session *session)
{
    segue_stats stats = SEGUE_INIT(segue_stats);
    segue_error ignored;
    *w = (struct session_work){0};
    if (segue_session_stats_get(session, &stats, &ignored)) return;
    w->losses_total = stats.losses_n;
    for (; w->uses_n < WORK_USES; w->uses_n++) {
        w->uses[w->uses_n].size = sizeof *w->uses;
        if (segue_session_use_get(session, w->uses_n, &w->uses[w->uses_n], &ignored)) break;
    }
    for (; w->losses_n < WORK_LOSSES; w->losses_n++) {
        w->losses[w->losses_n].size = sizeof *w->losses;
        if (segue_session_loss_get(session, w->losses_n, &w->losses[w->losses_n], &ignored)) break;
    }
}

segue_use work_find(const struct session_work *w, segue_phase phase, size_t unit, uint32_t from, uint32_t to)
{
    for (size_t i = 0; i < w->uses_n; i++)
        if (w->uses[i].unit == unit && w->uses[i].phase == phase && w->uses[i].from == from && w->uses[i].to == to)
            return w->uses[i];
    return (segue_use){0};
}

/* The losses of `now` have the numbers losses_total - losses_n and up, counted from the opening of the session. */
size_t work_first_new_loss(const struct session_work *now, const struct session_work *before)
{
    size_t first = now->losses_total - now->losses_n;
    return before->losses_total > first ? before->losses_total - first : 0;
}
