/* warm.c: see warm.h. Each round submits all requests at once, so that the runs have the shapes of a burst of clients: prompts
 * alone, prompts beside few answers, all answers. The first use of a shape loads its kernels, the second captures it; greedy and
 * sampled choices are different passes. SPDX-License-Identifier: MIT */
#include "engine/scheduler/warm.h"

#include "base/mem.h"
#include "engine/placement/plan.h"

enum { REQUESTS_MAX = 16, PROMPT_MAX = 512, ANSWER = 5, ROUNDS = 4 };

static int is_slow_at_first(const struct segue_scheduler *s)
{
    for (size_t i = 0; i < s->plan->info.parts_n; i++)
        if (s->engine->placements[s->plan->parts[i].unit].unit->desc.first_runs_slow) return 1;
    return 0;
}

/* Request i has other tokens than the others, so that nothing is shared. */
static segue_request *submit(struct segue_scheduler *s, int32_t *tokens, size_t n, uint32_t i, int greedy)
{
    segue_sampling sampling = {.size = sizeof sampling, .temperature = greedy ? 0 : 0.8f, .top_k = 40, .top_p = 0.95f,
                               .min_p = 0.05f, .seed = i, .ignore_stops = 1};
    segue_request *q = NULL;
    for (size_t k = 0; k < n; k++) tokens[k] = (int32_t)((k + i) % s->engine->model->info.vocab);
    const segue_request_opts o = {.size = sizeof o, .tokens = tokens, .tokens_n = n, .max_tokens = ANSWER, .sampling = &sampling,
                                  .no_store = 1};
    return segue_request_submit(&q, s, &o, NULL) == SEGUE_OK ? q : NULL;
}

static void run_round(struct segue_scheduler *s, int32_t *tokens, size_t n, int greedy)
{
    segue_request *q[REQUESTS_MAX];
    int32_t got[ANSWER];
    size_t got_n, requests = s->opts.running < REQUESTS_MAX ? s->opts.running : REQUESTS_MAX;
    for (uint32_t i = 0; i < requests; i++) q[i] = submit(s, tokens, n, i, greedy);
    for (uint32_t i = 0; i < requests; i++) {
        while (q[i] && segue_request_read(q[i], got, NULL, ANSWER, &got_n, UINT64_MAX, NULL) == SEGUE_OK) {}
        segue_request_close(q[i]);
    }
}

void sg_scheduler_warm(struct segue_scheduler *s)
{
    size_t n = s->opts.context && s->opts.context < PROMPT_MAX + ANSWER ? s->opts.context - ANSWER : PROMPT_MAX;
    if (!is_slow_at_first(s) || (s->opts.context && s->opts.context <= ANSWER)) return;
    int32_t *tokens = sg_alloc(n * sizeof *tokens);
    for (int round = 0; tokens && round < ROUNDS; round++) run_round(s, tokens, n, round >= ROUNDS / 2);
    sg_free(tokens);
    pthread_mutex_lock(&s->lock);
    s->info = (segue_scheduler_info){0};
    s->pace = (struct sg_pace){0};
    s->submitted = 0;
    struct sg_shared_queue *q = s->queue;
    pthread_mutex_unlock(&s->lock);
    if (q) sg_shared_queue_forget(q);
}
