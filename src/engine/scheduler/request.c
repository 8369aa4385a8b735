/* request.c: the public functions on requests. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/queue/deadline.h"
#include "engine/scheduler/scheduler.h"
#include "engine/session/score.h"
#include "engine/sized.h"

/* --- submit --- */

static segue_status check_opts(const struct segue_scheduler *s, const segue_request_opts *o, segue_error *err)
{
    if (o->tokens_n && !o->tokens)
        return sg_fail(err, SEGUE_EARG, "request refused: tokens_n is %zu and tokens is NULL; pass the list", o->tokens_n);
    if ((unsigned)o->kind > SEGUE_EMBED)
        return sg_fail(err, SEGUE_EARG, "request refused: kind %d: no such kind; use SEGUE_GENERATE, _SCORE or _EMBED",
                       (int)o->kind);
    if ((unsigned)o->pooling > SEGUE_POOL_CLS)
        return sg_fail(err, SEGUE_EARG, "request refused: pooling %d: no such pooling; use SEGUE_POOL_*", (int)o->pooling);
    if (o->session && o->session->engine != s->engine)
        return sg_fail(err, SEGUE_EARG, "request refused: the session belongs to another engine; open it on the scheduler's");
    if (o->kind == SEGUE_EMBED && o->session && o->session->tokens_n)
        return sg_fail(err, SEGUE_EARG, "request refused: SEGUE_EMBED: the session has %zu tokens; pass an empty one",
                       o->session->tokens_n);
    if (o->tokens_n || (o->session && o->session->tokens_n && o->kind == SEGUE_GENERATE)) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "request refused: it has no tokens; pass at least one");
}

/* The session of a request: the caller's, or a new one. */
static segue_status take_session(struct segue_request *q, const segue_request_opts *o, segue_error *err)
{
    const struct segue_scheduler *s = q->scheduler;
    segue_session_opts x = {.size = sizeof x,
                            .context = s->opts.context,
                            .plan = s->plan,
                            .sampling = o->sampling,
                            .adapters = o->adapters,
                            .adapters_n = o->adapters_n,
                            .checkpoint_bytes = s->opts.checkpoint_bytes,
                            .realm = s->opts.share ? NULL : o->realm,
                            .no_store = o->no_store || o->kind == SEGUE_EMBED};
    q->borrowed = o->session != NULL;
    q->session = o->session;
    if (q->borrowed && o->kind == SEGUE_GENERATE) sg_session_end_draft(q->session);
    if (q->borrowed) sg_session_begin_call(q->session);
    if (!q->borrowed) {
        SG_TRY(segue_session_open(&q->session, s->engine, &x, err));
        q->session->drops_logits = 1;
        return SEGUE_OK;
    }
    return o->sampling ? segue_session_sampling(q->session, o->sampling, err) : SEGUE_OK;
}

/* SEGUE_GENERATE: the tokens are appended. SEGUE_SCORE: they are appended chunk by chunk. */
static segue_status take_tokens(struct segue_request *q, const segue_request_opts *o, segue_error *err)
{
    struct segue_session *x = q->session;
    size_t n = o->tokens_n, width = x->engine->model->info.width;
    if (o->kind == SEGUE_EMBED) SG_TRY(sg_session_check_embed(x, err));
    if (o->kind == SEGUE_GENERATE) {
        SG_TRY(segue_session_append(x, o->tokens, n, err));
        SG_TRY(sg_session_check_choose(x, err));
        return SEGUE_OK;
    }
    if (n > x->context - x->tokens_n)
        return sg_fail(err, SEGUE_ELIMIT, "request refused: %zu tokens after %zu exceed the context of %zu; shorten the prompt",
                       n, x->tokens_n, x->context);
    for (size_t i = 0; i < n; i++)
        if (o->tokens[i] < 0 || (uint32_t)o->tokens[i] >= x->engine->model->info.vocab)
            return sg_fail(err, SEGUE_EARG,
                           "request refused: token %d at index %zu: the vocabulary has %u tokens; use one of them",
                           o->tokens[i], i, x->engine->model->info.vocab);
    q->prompt = sg_alloc(n * sizeof *q->prompt);
    q->values_n = o->kind == SEGUE_EMBED ? width : n;
    q->values = sg_alloc(q->values_n * sizeof *q->values);
    q->sum = o->kind == SEGUE_EMBED ? sg_alloc(width * sizeof *q->sum) : NULL;
    if (!q->prompt || !q->values || (o->kind == SEGUE_EMBED && !q->sum)) return sg_no_memory("request", (n + width) * 8, err);
    memcpy(q->prompt, o->tokens, n * sizeof *q->prompt);
    q->prompt_n = n;
    return SEGUE_OK;
}

static void request_free(struct segue_request *q)
{
    struct segue_scheduler *s = q->scheduler;
    if (!q->borrowed) segue_session_close(q->session);
    sg_free(q->tokens);
    sg_free(q->logprobs);
    sg_free(q->prompt);
    sg_free(q->values);
    sg_free(q->sum);
    pthread_cond_destroy(&q->changed);
    sg_free(q);
    sg_scheduler_release(s);
}

/* ELIMIT: the whole request, or, when it has no token limit, its prompt, can never fit the budget. */
static segue_status check_memory(struct segue_request *q, const segue_request_opts *o, segue_error *err)
{
    uint64_t limit = q->scheduler->opts.memory_bytes;
    size_t n = q->info.prompt_tokens + (o->kind == SEGUE_GENERATE ? o->max_tokens : 0);
    q->bytes = sg_request_bytes(q);
    uint64_t need = sg_request_bytes_of(q, n);
    if (!limit || need <= limit) return SEGUE_OK;
    return sg_fail(err, SEGUE_ELIMIT,
                   "request refused: memory: the states of %zu tokens need %llu bytes, the scheduler has %llu; shorten it or "
                   "raise memory_bytes",
                   n, (unsigned long long)need, (unsigned long long)limit);
}

/* Puts a complete request into the queue. */
static segue_status enqueue(struct segue_scheduler *s, struct segue_request *q, segue_error *err)
{
    segue_status status = SEGUE_OK;
    pthread_mutex_lock(&s->lock);
    if (s->closing) {
        status = sg_fail(err, SEGUE_ECANCELED, "request refused: the scheduler is closing; submit it to another one");
    } else if (s->waiting.n >= s->opts.waiting) {
        s->info.refused++;
        status = sg_fail(err, SEGUE_ELIMIT, "request refused: %zu requests are waiting, which is the limit; try again later",
                         s->waiting.n);
    } else {
        q->number = s->submitted++;
        q->info.submit_ns = sg_now_ns();
        if (!q->borrowed && s->opts.verify_tokens && q->opts.kind == SEGUE_GENERATE && q->number % s->opts.verify_every == 0)
            q->session->verify_tokens = s->opts.verify_tokens;
        sg_request_list_add(&s->waiting, q);
        pthread_cond_broadcast(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

segue_status segue_request_submit(segue_request **out, segue_scheduler *scheduler, const segue_request_opts *opts,
                                  segue_error *err)
{
    segue_request_opts o;
    if (!out || !scheduler || !opts) return sg_fail(err, SEGUE_EARG, "request refused: out, scheduler or opts is NULL; pass all");
    SG_TRY(sg_sized_in(&o, sizeof o, opts, "request options", err));
    SG_TRY(check_opts(scheduler, &o, err));
    struct segue_request *q = sg_alloc(sizeof *q);
    if (!q) return sg_no_memory("request", sizeof *q, err);
    atomic_fetch_add(&scheduler->references, 1);
    q->scheduler = scheduler;
    sg_cond_init(&q->changed);
    q->info = (segue_request_info){.size = sizeof q->info, .reuse_reason = "first-use"};
    q->opts = (segue_request_opts){.kind = o.kind, .max_tokens = o.max_tokens, .priority = o.priority, .pooling = o.pooling,
                                   .normalize = o.normalize};
    segue_status status = take_session(q, &o, err);
    if (status == SEGUE_OK) status = take_tokens(q, &o, err);
    if (status == SEGUE_OK) {
        q->first_token = q->session->tokens_n;
        q->info.prompt_tokens = q->session->tokens_n + q->prompt_n;
        q->logprobs_n = q->session->sampling.logprobs;
        status = check_memory(q, &o, err);
        if (status == SEGUE_OK) status = enqueue(scheduler, q, err);
    }
    if (status != SEGUE_OK) {
        request_free(q);
        return status;
    }
    *out = q;
    return SEGUE_OK;
}

/* --- read --- */

/* Copies unread tokens to the caller; the lock is held. */
static size_t take_out(struct segue_request *q, int32_t *tokens, segue_logprob *logprobs, size_t cap)
{
    size_t k = q->logprobs_n, n = q->out_n - q->read_n;
    if (n > cap) n = cap;
    if (n) memcpy(tokens, q->tokens + q->read_n, n * sizeof *tokens);
    if (n && k && logprobs) memcpy(logprobs, q->logprobs + q->read_n * k, n * k * sizeof *logprobs);
    q->read_n += n;
    return n;
}

segue_status segue_request_read(segue_request *q, int32_t *tokens, segue_logprob *logprobs, size_t cap, size_t *n,
                                uint64_t timeout_ns, segue_error *err)
{
    struct timespec until;
    if (!q || !n || (cap && !tokens))
        return sg_fail(err, SEGUE_EARG, "tokens not read: the request, tokens or n is NULL; pass all");
    struct segue_scheduler *s = q->scheduler;
    segue_status status = SEGUE_OK;
    sg_deadline(&until, timeout_ns);
    pthread_mutex_lock(&s->lock);
    int expired = !timeout_ns;
    while (q->read_n == q->out_n && q->state != SG_REQUEST_ENDED && !expired)
        expired = sg_cond_wait(&q->changed, &s->lock, &until);
    *n = take_out(q, tokens, logprobs, cap);
    if (*n && s->opts.unread_tokens) pthread_cond_broadcast(&s->work); /* a paused request continues */
    if (!*n && q->read_n == q->out_n && q->state == SG_REQUEST_ENDED)
        status = q->error.status < 0 ? sg_fail(err, q->error.status, "%s", q->error.text) : SEGUE_END;
    pthread_mutex_unlock(&s->lock);
    return status;
}

segue_status segue_request_values(const segue_request *request, float *out, size_t cap, size_t *n, segue_error *err)
{
    struct segue_request *q = (struct segue_request *)(uintptr_t)request; /* for the lock */
    if (!q || !n || (cap && !out)) return sg_fail(err, SEGUE_EARG, "values not read: the request, out or n is NULL; pass all");
    pthread_mutex_lock(&q->scheduler->lock);
    int done = q->info.finish == SEGUE_FINISH_DONE;
    pthread_mutex_unlock(&q->scheduler->lock);
    if (!done)
        return sg_fail(err, SEGUE_EARG,
                       "values not read: the request has none, or has not ended well; read it to its end");
    *n = q->values_n;
    if (cap < q->values_n)
        return sg_fail(err, SEGUE_ELIMIT, "values not read: out has %zu entries, %zu are needed; enlarge it", cap, q->values_n);
    memcpy(out, q->values, q->values_n * sizeof *out);
    return SEGUE_OK;
}

/* The lock is held. */
static const char *waits_for(const struct segue_request *q)
{
    const struct segue_scheduler *s = q->scheduler;
    if (q->state == SG_REQUEST_WAITING) return q->blocked ? "memory" : "turn";
    int reader = q->state == SG_REQUEST_RUNNING && s->opts.unread_tokens && q->out_n - q->read_n >= s->opts.unread_tokens;
    return reader ? "reader" : NULL;
}

segue_status segue_request_info_get(const segue_request *request, segue_request_info *out, segue_error *err)
{
    struct segue_request *q = (struct segue_request *)(uintptr_t)request; /* for the lock */
    if (!q) return sg_fail(err, SEGUE_EARG, "request info not read: the request is NULL; submit one");
    pthread_mutex_lock(&q->scheduler->lock);
    segue_request_info i = q->info;
    i.tokens_unread = q->out_n - q->read_n;
    i.waits_for = waits_for(q);
    pthread_mutex_unlock(&q->scheduler->lock);
    return sg_sized_out(out, &i, sizeof i, "request info", err);
}

/* --- end --- */

/* A request that no round has claimed is ended here; else the round ends it. */
void segue_request_cancel(segue_request *q)
{
    segue_error err;
    if (!q) return;
    struct segue_scheduler *s = q->scheduler;
    pthread_mutex_lock(&s->lock);
    int here = q->state != SG_REQUEST_ENDED && !q->claimed;
    if (q->state != SG_REQUEST_ENDED) {
        q->canceled = 1;
        segue_session_cancel(q->session);
    }
    q->claimed |= (uint32_t)here;
    sg_fail(&err, SEGUE_ECANCELED, "request ended: canceled after %zu tokens; submit it again", q->out_n);
    pthread_mutex_unlock(&s->lock);
    if (here) sg_request_end(q, SEGUE_FINISH_CANCELED, &err);
}

void segue_request_close(segue_request *q)
{
    if (!q) return;
    segue_request_cancel(q);
    pthread_mutex_lock(&q->scheduler->lock);
    while (q->state != SG_REQUEST_ENDED || q->claimed) pthread_cond_wait(&q->changed, &q->scheduler->lock);
    pthread_mutex_unlock(&q->scheduler->lock);
    request_free(q);
}
