/* round.c: one round of a worker: claim requests, compute one run, publish the results. Chunks of prompts that share a run with
 * running answers are sized by time. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/scheduler/scheduler.h"
#include "engine/session/score.h"

enum { PREFIX_MIN = 32 /* common tokens for which a prompt waits until another one has computed them */ };

/* What a request did in a round. */
struct step {
    segue_status status; /* of segue_session_next */
    int32_t token;       /* chosen; -1: none */
    uint32_t shared;     /* 1: in a run with others */
    const segue_error *error;
};

/* --- claiming, with the lock held --- */

static int paused(const struct segue_scheduler *s, const struct segue_request *q)
{
    return s->opts.unread_tokens && q->out_n - q->read_n >= s->opts.unread_tokens;
}

/* The prefill worker takes one prompt at a time, the oldest; both workers take all requests that are to be ended. */
static uint32_t claim(struct segue_scheduler *s, uint32_t worker)
{
    uint32_t n = 0, live = 0;
    for (struct segue_request *q = s->running.first; q; q = q->next) {
        if (q->claimed || q->worker != worker) continue;
        if (!q->canceled && !s->closing && (paused(s, q) || (worker == SG_WORKER_PREFILL && live))) continue;
        live += !q->canceled && !s->closing;
        q->claimed = 1;
        s->round[worker][n++] = q;
    }
    return n;
}

/* --- results --- */

/* Appends a chosen token; the lock is held. EMEMORY. */
static segue_status keep_token(struct segue_request *q, int32_t token, segue_error *err)
{
    size_t k = q->logprobs_n, cap = q->out_cap ? q->out_cap * 2 : 64;
    if (q->out_n == q->out_cap) {
        int32_t *tokens = sg_realloc(q->tokens, cap * sizeof *tokens);
        if (!tokens) return sg_no_memory("tokens of a request", cap * sizeof *tokens, err);
        q->tokens = tokens;
        segue_logprob *logprobs = k ? sg_realloc(q->logprobs, cap * k * sizeof *logprobs) : NULL;
        if (k && !logprobs) return sg_no_memory("log-probabilities of a request", cap * k * sizeof *logprobs, err);
        q->logprobs = logprobs;
        q->out_cap = cap;
    }
    for (size_t i = 0; i < k; i++)
        q->logprobs[q->out_n * k + i] = i < q->session->logprobs_n ? q->session->logprobs[i] : (segue_logprob){.token = -1};
    q->tokens[q->out_n++] = token;
    q->info.tokens_out = q->out_n;
    return SEGUE_OK;
}

static segue_finish finish_of(const struct segue_request *q, const struct step *r)
{
    if (q->canceled || r->status == SEGUE_ECANCELED) return SEGUE_FINISH_CANCELED;
    if (r->status < 0) return SEGUE_FINISH_ERROR;
    if (q->opts.kind != SEGUE_GENERATE) return q->prompt_at == q->prompt_n ? SEGUE_FINISH_DONE : SEGUE_FINISH_NONE;
    if (r->status == SEGUE_END) return SEGUE_FINISH_STOP;
    int full = q->session->tokens_n >= q->session->context || (q->opts.max_tokens && q->out_n >= q->opts.max_tokens);
    return full ? SEGUE_FINISH_LENGTH : SEGUE_FINISH_NONE;
}

/* The worker of a session's next run. */
static uint32_t worker_of(const struct segue_session *s)
{
    return s->split && s->active == SG_PREFILL_LAYOUT ? SG_WORKER_PREFILL : SG_WORKER_SHARED;
}

/* Makes the result visible to readers and ends the claim. */
static void publish(struct segue_request *q, const struct step *r)
{
    struct segue_scheduler *s = q->scheduler;
    segue_error err = {0};
    segue_status status = r->status;
    pthread_mutex_lock(&s->lock);
    if (r->token >= 0 && r->status >= 0) {
        segue_status kept = keep_token(q, r->token, &err);
        if (kept != SEGUE_OK) status = kept;
        if (q->out_n == 1) q->info.first_token_ns = sg_now_ns();
        s->info.chosen_tokens++;
    } else if (r->status < 0 && r->error) {
        err = *r->error;
    }
    q->info.shared_runs += r->shared;
    segue_finish finish = finish_of(q, &(struct step){.status = status});
    struct segue_session *own = NULL;
    if (finish == SEGUE_FINISH_CANCELED && status >= 0)
        status = sg_fail(&err, SEGUE_ECANCELED, "request ended: canceled after %zu tokens; submit it again", q->out_n);
    err.status = status;
    if (finish != SEGUE_FINISH_NONE) {
        own = sg_request_finish(q, finish, status < 0 ? &err : NULL);
    } else {
        sg_request_snapshot(q);
        q->worker = worker_of(q->session);
        q->claimed = 0;
        if (r->token >= 0) sg_request_notify(q);
        else pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&s->lock);
    sg_request_close_session(q, own);
}

/* --- before a run --- */

static int is_answer(const struct segue_session *s) { return sg_session_pending(s) == 1 && s->computed; }

/* States, a prefix from the store, a checkpoint that is due. */
static segue_status prepare(struct segue_request *q, segue_error *err)
{
    if (q->opts.kind != SEGUE_GENERATE) return SEGUE_OK;
    SG_TRY(sg_session_check_cancel(q->session, err));
    if (q->prepared) {
        sg_session_checkpoint_due(q->session);
        return SEGUE_OK;
    }
    q->prepared = 1;
    SG_TRY(sg_session_check_choose(q->session, err));
    return sg_session_prepare(q->session, err);
}

/* 1: a prompt that is being read begins with the same tokens, of the same realm: its states will be in the store. */
static int awaits_prefix(struct segue_request *const *list, uint32_t n, const struct segue_session *x)
{
    for (uint32_t i = 0; i < n && x->uses_store; i++) {
        const struct segue_session *y = list[i]->session;
        size_t same = 0, max = x->tokens_n < y->tokens_n ? x->tokens_n : y->tokens_n;
        int realms = x->realm_id && y->realm_id ? !strcmp(x->realm_id, y->realm_id) : x->realm_id == y->realm_id;
        if (!y->uses_store || !realms || list[i]->opts.kind != SEGUE_GENERATE || is_answer(y)) continue;
        while (same < max && x->tokens[same] == y->tokens[same]) same++;
        if (same >= PREFIX_MIN) return 1;
    }
    return 0;
}

/* Ends the claim of a request, whose next round is of this worker. */
static void pass_to(struct segue_request *q, uint32_t worker)
{
    struct segue_scheduler *s = q->scheduler;
    pthread_mutex_lock(&s->lock);
    q->worker = worker;
    q->claimed = 0;
    pthread_cond_broadcast(&q->changed);
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

/* Ends canceled requests and those that cannot be prepared; returns how many remain in the list. A prompt is not started
 * while other prompts have enough pending tokens for a run, or while another one computes its first tokens. The worker `prefill`
 * prepares requests whose states are in files, so that running answers do not wait for them. */
static uint32_t prepare_all(struct segue_request **list, uint32_t n, uint32_t worker)
{
    uint32_t kept = 0;
    size_t pending = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct segue_request *q = list[i];
        struct segue_scheduler *s = q->scheduler;
        segue_error err = {0};
        pthread_mutex_lock(&s->lock);
        int canceled = q->canceled || s->closing, later = !canceled && !q->prepared && q->opts.kind == SEGUE_GENERATE;
        later = later && (pending >= sg_session_chunk(q->session) || awaits_prefix(list, kept, q->session));
        if (later) q->claimed = 0;
        if (later) pthread_cond_broadcast(&q->changed);
        pthread_mutex_unlock(&s->lock);
        if (later) continue;
        if (worker == SG_WORKER_SHARED && !canceled && !q->prepared && q->opts.kind == SEGUE_GENERATE &&
            sg_session_reads_disk(q->session)) {
            pass_to(q, SG_WORKER_PREFILL);
            continue;
        }
        segue_status status = canceled ? sg_fail(&err, SEGUE_ECANCELED,
                                                 "request ended: canceled after %zu tokens; submit it again", q->out_n)
                                       : prepare(q, &err);
        if (status == SEGUE_OK && q->opts.kind == SEGUE_GENERATE && !is_answer(q->session))
            pending += sg_session_pending(q->session);
        if (status == SEGUE_OK) list[kept++] = q;
        else sg_request_end(q, status == SEGUE_ECANCELED ? SEGUE_FINISH_CANCELED : SEGUE_FINISH_ERROR, &err);
    }
    return kept;
}

/* --- requests that run alone --- */

static segue_status score_part(struct segue_request *q, size_t chunk, segue_error *err)
{
    size_t left = q->prompt_n - q->prompt_at, n = left < chunk ? left : chunk;
    SG_TRY(segue_session_score(q->session, q->prompt + q->prompt_at, n, q->values + q->prompt_at, NULL, err));
    q->prompt_at += n;
    return SEGUE_OK;
}

static segue_status embed_part(struct segue_request *q, size_t chunk, segue_error *err)
{
    size_t left = q->prompt_n - q->prompt_at, n = left < chunk ? left : chunk;
    SG_TRY(segue_session_append(q->session, q->prompt + q->prompt_at, n, err));
    SG_TRY(sg_session_embed_part(q->session, n, q->opts.pooling, q->sum, err));
    q->prompt_at += n;
    if (q->prompt_at == q->prompt_n) sg_session_embed_end(q->session, q->opts.pooling, q->opts.normalize != 0, q->sum, q->values);
    return SEGUE_OK;
}

static void run_alone(struct segue_request *q, size_t chunk)
{
    segue_error err = {0};
    struct step r = {.token = -1, .error = &err};
    size_t max = sg_session_chunk(q->session);
    if (!chunk || chunk > max) chunk = max;
    if (q->opts.kind == SEGUE_SCORE) r.status = score_part(q, chunk, &err);
    else if (q->opts.kind == SEGUE_EMBED) r.status = embed_part(q, chunk, &err);
    else r.status = sg_session_next_part(q->session, chunk, &r.token, &err);
    publish(q, &r);
}

/* --- runs that are shared --- */

static const struct sg_layer_range *shared_range(const struct segue_scheduler *s, struct segue_session *x)
{
    return sg_shared_range(x, !s->masks);
}

/* What a run had in it, as its queue learned it. */
static void count_run(struct segue_scheduler *s, const struct sg_layer_range *range, const struct sg_run_group *g)
{
    if (!g->run.ns) return;
    pthread_mutex_lock(&s->lock);
    s->info.runs++;
    s->info.shared_runs += g->spans > 1;
    s->queue = range->queue;
    s->pace = g->pace;
    pthread_mutex_unlock(&s->lock);
}

/* Offers the requests of the list that can run on the range, and moves them to its front; returns how many. */
static uint32_t offer(struct segue_scheduler *s, struct segue_request **list, uint32_t n, const struct sg_layer_range *range)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct segue_request *q = list[i];
        if (q->opts.kind != SEGUE_GENERATE || shared_range(s, q->session) != range) continue;
        sg_share_init(&s->shares[k], q->session, 0, SG_THEN_CHOOSE);
        list[i] = list[k];
        list[k++] = q;
    }
    return k;
}

/* Ends the claim of a request that did not fit into the run. */
static void unclaim(struct segue_request *q)
{
    pthread_mutex_lock(&q->scheduler->lock);
    q->claimed = 0;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->scheduler->lock);
}

/* One run on a range, of as many requests of the list as fit; returns how many of other ranges remain in the list. */
static uint32_t run_range(struct segue_scheduler *s, struct segue_request **list, uint32_t n, const struct sg_layer_range *range)
{
    struct sg_run_group g = {.shares = s->shares, .target_ns = s->opts.target_ns, .masks = s->masks};
    g.shares_n = offer(s, list, n, range);
    sg_shared_run_group(range, &g);
    count_run(s, range, &g);
    for (uint32_t i = 0; i < g.shares_n; i++) {
        const struct sg_share *p = &g.shares[i];
        if (p->tokens_n) publish(list[i], &(struct step){.status = p->error.status, .token = p->token, .error = &p->error,
                                                         .shared = g.spans > 1 && !p->alone});
        else unclaim(list[i]);
    }
    n -= g.shares_n;
    memmove(list, list + g.shares_n, n * sizeof(struct segue_request *));
    return n;
}

/* Tokens of a request that runs alone beside `answers` others of this scheduler; 0: a chunk. */
static size_t chunk_beside(const struct segue_scheduler *s, uint32_t answers)
{
    return answers ? sg_pace_budget(&s->pace, s->opts.target_ns, SIZE_MAX) : 0;
}

/* Every request of the list runs once, alone or with others, or waits for the next round. */
static void run_all(struct segue_scheduler *s, struct segue_request **list, uint32_t n)
{
    while (n) {
        struct segue_request *q = list[0];
        const struct sg_layer_range *range = q->opts.kind == SEGUE_GENERATE ? shared_range(s, q->session) : NULL;
        if (range) {
            n = run_range(s, list, n, range);
            continue;
        }
        memmove(list, list + 1, --n * sizeof(struct segue_request *));
        /* The edges of recorded runs do not depend on other requests. */
        run_alone(q, q->session->hashes ? 0 : chunk_beside(s, n));
    }
}

/* The request of a round of the worker `prefill`: a chunk of its prompt, unless only its states had to be read. */
static void run_prefill(struct segue_request *q)
{
    if (worker_of(q->session) == SG_WORKER_PREFILL) run_alone(q, 0);
    else pass_to(q, SG_WORKER_SHARED);
}

int sg_scheduler_round(struct segue_scheduler *s, uint32_t worker)
{
    if (s->busy[worker]) return 0;
    s->busy[worker] = 1;
    sg_scheduler_reclaim(s);
    sg_scheduler_admit(s);
    uint32_t n = claim(s, worker);
    if (!n) {
        s->busy[worker] = 0;
        return 0;
    }
    pthread_mutex_unlock(&s->lock);
    n = prepare_all(s->round[worker], n, worker);
    if (worker == SG_WORKER_SHARED) run_all(s, s->round[worker], n);
    else if (n) run_prefill(s->round[worker][0]);
    pthread_mutex_lock(&s->lock);
    s->busy[worker] = 0;
    pthread_cond_broadcast(&s->work);
    return 1;
}
