/* record.c: what a session really ran: sums for each part, and the last spans of work where they were asked
 * for. Room is made when the session is opened. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/session/session.h"

enum { USES = sizeof(((segue_stats *)0)->uses) / sizeof(segue_use), SPANS_MOST = 1 << 20, HELPER = 2 };

segue_status sg_record_alloc(struct segue_session *s, size_t spans, segue_error *err)
{
    if (!spans) return SEGUE_OK;
    if (spans > SPANS_MOST)
        return sg_fail(err, SEGUE_EARG, "session not opened: %zu spans: at most %d are kept; ask for fewer",
                       spans, SPANS_MOST);
    s->intervals = sg_alloc(2 * spans * sizeof *s->intervals);
    if (!s->intervals) return sg_no_memory("record of a session", 2 * spans * sizeof *s->intervals, err);
    s->intervals_cap = spans;
    return SEGUE_OK;
}

/* Twice the room, so that the oldest half goes at once and the list stays in one piece. */
static void add_span(struct segue_session *s, const segue_interval *span)
{
    if (!s->intervals_cap) return;
    if (s->intervals_n == 2 * s->intervals_cap) {
        memmove(s->intervals, s->intervals + s->intervals_cap, s->intervals_cap * sizeof *s->intervals);
        s->intervals_n = s->intervals_cap;
    }
    s->intervals[s->intervals_n++] = *span;
    s->intervals_total++;
}

/* The entry of a part in a phase; NULL: there is no room for one more. */
static segue_use *use_of(struct segue_session *s, const struct sg_layout_stage *stage, uint32_t phase)
{
    const struct sg_layer_range *t = stage->layer_range;
    segue_use *u = s->stats.uses;
    size_t i = 0;
    while (i < s->stats.uses_n &&
           (u[i].unit != stage->placement || u[i].phase != phase || u[i].from != t->from || u[i].to != t->to))
        i++;
    if (i == USES) return NULL;
    if (i == s->stats.uses_n)
        u[s->stats.uses_n++] = (segue_use){.unit = stage->placement, .phase = phase, .from = t->from, .to = t->to};
    return &u[i];
}

void sg_record_run(struct segue_session *s, const struct sg_layout_stage *stage, uint32_t phase, uint64_t begun,
                   uint32_t rows, const struct sg_result *r)
{
    const struct sg_layer_range *t = stage->layer_range;
    uint64_t now = sg_now_ns();
    segue_use *own = use_of(s, stage, phase), *helper = r->helper_ns ? use_of(s, stage, HELPER) : NULL;
    if (own) {
        own->runs++;
        own->rows += rows;
        own->dispatches += r->dispatches;
        own->ns += now - begun;
        own->host_bytes += r->host_bytes;
        own->columns += r->columns;
        if (r->unseen > own->tokens_truncated) own->tokens_truncated = r->unseen;
    }
    if (helper) {
        helper->runs++;
        helper->rows += rows;
        helper->ns += r->helper_ns;
    }
    add_span(s, &(segue_interval){.begin_ns = begun,
                              .end_ns = now,
                              .what = phase,
                              .unit = stage->placement,
                              .to_unit = stage->placement,
                              .from = t->from,
                              .to = t->to,
                              .first = s->computed,
                              .rows = rows});
}

void sg_record_handoff(struct segue_session *s, const struct sg_layout *from, const struct sg_layout *to,
                       uint64_t begun, uint64_t rows)
{
    add_span(s, &(segue_interval){.begin_ns = begun,
                              .end_ns = sg_now_ns(),
                              .what = SEGUE_INTERVAL_HANDOFF,
                              .unit = from->stages[0].placement,
                              .to_unit = to->stages[0].placement,
                              .to = s->engine->graph->layers,
                              .rows = rows});
}

void sg_record_get(const struct segue_session *s, segue_stats *out)
{
    out->spans_n = s->intervals_n < s->intervals_cap ? s->intervals_n : s->intervals_cap;
    out->spans = s->intervals + (s->intervals_n - out->spans_n);
    out->intervals_total = s->intervals_total;
}
