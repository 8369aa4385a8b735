/* joined.c: segue_session_next and segue_session_prefill. Where the session can share runs, they are in the queue of its layer
 * range, beside other threads and schedulers; a run without others is that of a session alone. SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "engine/session/shared_run.h"

/* What a call wants of its session. */
struct goal {
    size_t keep;       /* tokens that stay pending */
    enum sg_then then; /* CHOOSE: with keep 0 */
};

/* At most `rows` tokens; 0: a chunk. */
static segue_status part_alone(struct segue_session *s, const struct goal *w, size_t rows, int32_t *token, segue_error *err)
{
    if (w->then == SG_THEN_CHOOSE) return sg_session_next_part(s, rows, token, err);
    size_t left = sg_session_pending(s) - w->keep, chunk = rows ? rows : sg_session_chunk(s);
    return sg_session_run_chunk(s, left < chunk ? left : chunk, left <= chunk, NULL, NULL, err);
}

/* Leads a run that may have this session alone in it: then it is that of part_alone, which can be canceled. */
static void lead(const struct sg_layer_range *range, const struct goal *w, struct sg_share *p)
{
    struct sg_shared_queue *q = range->queue;
    if (q->chosen_n > 1 || q->chosen[0] != p) {
        sg_shared_run(range);
        return;
    }
    uint64_t start_ns = sg_now_ns();
    int is_cut = p->tokens_n < p->rows;
    if (is_cut) sg_session_checkpoint_due(p->session);
    p->error.status = part_alone(p->session, w, is_cut ? p->tokens_n : 0, &p->token, &p->error);
    uint64_t ns = p->error.status < 0 ? 0 : sg_now_ns() - start_ns;
    sg_share_again(p, range);
    sg_shared_queue_leave(q, ns);
}

/* Some runs on the way to what is wanted, mostly all. *token = -1: none was chosen. */
static segue_status parts(struct segue_session *s, const struct goal *w, int32_t *token, segue_error *err)
{
    const struct sg_layer_range *range = sg_shared_range(s, w->then == SG_THEN_CHOOSE);
    enum sg_turn turn = SG_TURN_LEAD;
    struct sg_share p;
    if (!range) return part_alone(s, w, 0, token, err);
    SG_TRY(sg_session_check_cancel(s, err));
    sg_share_init(&p, s, w->keep, w->then);
    if (sg_share_has_own_lane(range, &p)) return part_alone(s, w, 0, token, err);
    struct sg_run_group g = {.shares = &p, .shares_n = 1, .stays = 1};
    while (turn == SG_TURN_LEAD) {
        turn = sg_shared_queue_wait(range->queue, &g, &s->cancel);
        if (turn == SG_TURN_LEAD) lead(range, w, &p);
    }
    if (turn == SG_TURN_CANCELED) return sg_session_check_cancel(s, err);
    *token = p.token; /* also if a cancel came after the choice */
    if (p.error.status < 0 && err) *err = p.error;
    return p.error.status;
}

static segue_status choose(struct segue_session *s, int32_t *token, segue_error *err)
{
    const struct goal w = {0, SG_THEN_CHOOSE};
    int32_t chosen = -1;
    segue_status status;
    SG_TRY(sg_session_check_choose(s, err));
    SG_TRY(sg_session_check_cancel(s, err));
    SG_TRY(sg_session_prepare(s, err));
    do status = parts(s, &w, &chosen, err);
    while (status == SEGUE_OK && chosen < 0);
    if (status >= 0) *token = chosen;
    return status;
}

segue_status segue_session_next(segue_session *session, int32_t *token, segue_error *err)
{
    SG_TRY(sg_session_check(session, "no token chosen", err));
    if (!token) return sg_fail(err, SEGUE_EARG, "no token chosen: token is NULL; pass it");
    sg_session_end_draft(session);
    sg_session_begin_call(session);
    return choose(session, token, err);
}

segue_status segue_session_prefill(segue_session *session, size_t max_tokens, size_t *n_done, segue_error *err)
{
    SG_TRY(sg_session_check(session, "tokens not computed", err));
    sg_session_begin_call(session);
    size_t before = session->computed, all = sg_session_pending(session);
    const struct goal w = {max_tokens && max_tokens < all ? all - max_tokens : 0, SG_THEN_LOGITS};
    int32_t none;
    if (n_done) *n_done = 0;
    if (!all) return SEGUE_OK;
    SG_TRY(sg_session_prepare(session, err));
    segue_status status = SEGUE_OK;
    while (status == SEGUE_OK && sg_session_pending(session) > w.keep) status = parts(session, &w, &none, err);
    if (n_done && session->computed > before) *n_done = session->computed - before;
    return status;
}
