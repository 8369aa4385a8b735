/* stats.c: reads what a session has recorded: counters, work per part, losses, intervals, and the log-probabilities of the last
 * chosen token. SPDX-License-Identifier: MIT */
#include <string.h>

#include "engine/session/session.h"
#include "engine/sized.h"

/* Number of intervals that can be read; they are the last entries of the list. */
static size_t intervals_kept(const struct segue_session *s)
{
    return s->intervals_n < s->intervals_cap ? s->intervals_n : s->intervals_cap;
}

segue_status segue_session_stats_get(const segue_session *session, segue_stats *out, segue_error *err)
{
    SG_TRY(sg_session_check(session, "statistics not read", err));
    segue_stats stats = session->stats;
    stats.compiles = sg_engine_compiles(session->engine);
    stats.intervals_n = intervals_kept(session);
    stats.state_bytes = sg_layout_bytes(&session->layouts[0]) + sg_layout_bytes(&session->layouts[1]) +
                        sg_session_checkpoint_bytes(session) + sg_hostcopy_bytes(&session->recovery.copy);
    const struct sg_layout *decode = &session->layouts[SG_DECODE_LAYOUT];
    const struct sg_program *program = decode->n ? decode->stages[0].layer_range->program : NULL;
    if (program && sg_ops_of(program)->kept) stats.packed = sg_ops_of(program)->kept(program, &stats.packed_why);
    return sg_sized_out(out, &stats, sizeof stats, "statistics", err);
}

segue_status segue_session_use_get(const segue_session *session, size_t i, segue_use *out, segue_error *err)
{
    SG_TRY(sg_session_check(session, "use not read", err));
    if (i >= session->stats.uses_n) return SEGUE_END;
    return sg_sized_out(out, &session->uses[i], sizeof *out, "use", err);
}

segue_status segue_session_loss_get(const segue_session *session, size_t i, segue_loss *out, segue_error *err)
{
    SG_TRY(sg_session_check(session, "loss not read", err));
    size_t all = session->stats.losses_n, first = all > SG_LOSSES_MAX ? all - SG_LOSSES_MAX : 0;
    if (i >= all - first) return SEGUE_END;
    return sg_sized_out(out, &session->losses[(first + i) % SG_LOSSES_MAX], sizeof *out, "loss", err);
}

segue_status segue_session_interval_get(const segue_session *session, size_t i, segue_interval *out, segue_error *err)
{
    SG_TRY(sg_session_check(session, "interval not read", err));
    size_t kept = intervals_kept(session);
    if (i >= kept) return SEGUE_END;
    return sg_sized_out(out, &session->intervals[session->intervals_n - kept + i], sizeof *out, "interval", err);
}

segue_status segue_session_logprobs(const segue_session *session, segue_logprob *out, size_t cap, size_t *n, segue_error *err)
{
    SG_TRY(sg_session_check(session, "log-probabilities not read", err));
    if (!n || (cap && !out))
        return sg_fail(err, SEGUE_EARG, "log-probabilities not read: out or n is NULL; pass both");
    *n = session->logprobs_n;
    if (cap < session->logprobs_n)
        return sg_fail(err, SEGUE_ELIMIT, "log-probabilities not read: out has %zu entries, %zu are needed; enlarge it", cap,
                       session->logprobs_n);
    if (session->logprobs_n) memcpy(out, session->logprobs, session->logprobs_n * sizeof *out);
    return SEGUE_OK;
}
