/* store_query.c: continuing a session from the longest prefix of its tokens in the engine's prefix store.
 * SPDX-License-Identifier: MIT */
#include "engine/session/session.h"
#include "engine/store/prefixstore.h"

static segue_status cut_to(struct segue_session *s, size_t pos)
{
    if (s->computed == pos) return SEGUE_OK;
    s->logits_known = 0;
    SG_TRY(sg_layout_cut(&s->layouts[s->active], pos, NULL));
    s->computed = pos;
    return SEGUE_OK;
}

/* States from a file are already in the prefill layout; they replace those of the session. */
static void use_states(struct segue_session *s, const struct sg_store_hit *hit)
{
    sg_layout_drop_states(&s->layouts[s->active]);
    s->layouts[SG_PREFILL_LAYOUT] = hit->states;
    s->active = SG_PREFILL_LAYOUT;
    s->computed = hit->states_n;
    s->logits_known = (uint32_t)hit->logits_known;
}

/* reuse_reason is "all" unless the store has a reason, or the stored texts continue with other tokens. */
static void report(struct segue_session *s, const struct sg_store_hit *hit)
{
    int whole = s->computed + 1 >= s->tokens_n || !hit->diverges;
    s->stats.tokens_reused = s->computed;
    s->stats.reuse_reason = hit->reason ? hit->reason : whole ? "all" : "edited";
}

static struct sg_store_query query_of(struct segue_session *s, struct sg_state_origin *origin)
{
    sg_session_store_origin(s, origin);
    return (struct sg_store_query){.origin = origin,
                                   .tokens = s->tokens,
                                   .tokens_n = s->tokens_n,
                                   .computed = s->computed,
                                   .layout = &s->layouts[SG_PREFILL_LAYOUT],
                                   .logits = s->logits};
}

int sg_session_reads_disk(struct segue_session *s)
{
    struct sg_state_origin origin;
    if (!s->uses_store || s->store_queried || !sg_session_pending(s)) return 0;
    struct sg_store_query q = query_of(s, &origin);
    return sg_store_reads_disk(s->engine->store, &q);
}

void sg_session_query_store(struct segue_session *s)
{
    struct sg_state_origin origin;
    struct sg_store_hit hit;
    segue_status status = SEGUE_END;
    struct sg_store_query q = query_of(s, &origin);
    sg_store_find(s->engine->store, &q, &hit);
    s->store_matched = hit.matched_n;
    if (hit.read_disk) s->logits_known = 0; /* the buffer was overwritten */
    if (hit.checkpoint) {
        status = sg_session_restore(s, hit.checkpoint);
        sg_checkpoint_release(hit.checkpoint);
    } else if (hit.states_n) {
        use_states(s, &hit);
        status = SEGUE_OK;
    }
    if (status == SEGUE_OK) status = cut_to(s, hit.tokens_n);
    if (status == SEGUE_OK) {
        sg_recovery_reset(s);
        report(s, &hit);
    } else if (!s->computed && hit.reason) {
        s->stats.reuse_reason = hit.reason;
    }
}
