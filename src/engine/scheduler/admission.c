/* admission.c: which waiting request starts next. SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "engine/scheduler/scheduler.h"

/* The waiting request of highest priority, the oldest among equals. */
static struct segue_request *next_waiting(const struct segue_scheduler *s)
{
    struct segue_request *best = s->waiting.first;
    for (struct segue_request *q = best; q; q = q->next)
        if (q->opts.priority > best->opts.priority) best = q;
    return best;
}

void sg_scheduler_admit(struct segue_scheduler *s)
{
    struct segue_request *q;
    while (!s->closing && s->running.n < s->opts.running && (q = next_waiting(s))) {
        sg_request_list_remove(&s->waiting, q);
        sg_request_list_add(&s->running, q);
        q->state = SG_REQUEST_RUNNING;
        q->lane = q->session->split && q->session->active == SG_PREFILL_LAYOUT ? SG_LANE_PREFILL : SG_LANE_SHARED;
        q->info.start_ns = sg_now_ns();
    }
}
