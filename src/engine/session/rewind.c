/* rewind.c: shortening a session: truncate its states in place where the units can, else restore the last checkpoint,
 * else start from the first token. SPDX-License-Identifier: MIT */
#include "engine/session/session.h"

/* Empties the states: the next run computes from the first token. */
static void start_over(struct segue_session *s)
{
    s->computed = 0;
    if (!sg_layout_holds(&s->layouts[s->active])) return;
    if (sg_layout_cut(&s->layouts[s->active], 0, NULL) != SEGUE_OK) sg_layout_drop_states(&s->layouts[s->active]);
}

void sg_session_cut(struct segue_session *s, uint64_t rows)
{
    struct sg_layout *l = &s->layouts[s->active];
    if (rows >= s->computed) return;
    sg_flow_close(s->flow);
    s->logits_known = 0;
    if (sg_layout_holds(l) && sg_layout_cut(l, rows, NULL) == SEGUE_OK) {
        sg_session_forget_checkpoints(s, rows);
        s->computed = rows;
    } else if (!sg_session_to_checkpoint(s, rows)) {
        start_over(s);
    }
    sg_recovery_cut(s, s->computed);
}

/* Why no more than `computed` of the first `length` tokens are kept. */
static const char *rewind_reason(const struct segue_session *s, size_t length)
{
    if (s->computed >= length) return "edited";
    int dropped = s->evicted_from && s->evicted_from <= length && s->evicted_to > s->computed;
    return dropped ? "evicted" : "no-checkpoint";
}

segue_status segue_session_rewind(segue_session *session, size_t length, segue_error *err)
{
    SG_TRY(sg_session_check(session, "session not rewound", err));
    if (length > session->tokens_n)
        return sg_fail(err, SEGUE_EARG, "session not rewound: to %zu tokens: it has %zu; pass a smaller number",
                       length, session->tokens_n);
    if (length == session->tokens_n) return SEGUE_OK; /* reuse_reason keeps what append set */
    size_t before = session->computed;
    sg_session_cut(session, length);
    session->tokens_n = length;
    session->store_queried = 0;
    if (session->input_n > length) session->input_n = length;
    session->rewound = 1;
    session->stats.tokens_reused = session->computed;
    if (before) session->stats.reuse_reason = rewind_reason(session, length);
    return SEGUE_OK;
}
