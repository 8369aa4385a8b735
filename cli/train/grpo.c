/* grpo.c: see grpo.h. With one unit a step samples and then updates. With --rollout-unit the answers of the next step are sampled
 * there while this step updates, from weights of one step before; the clipped ratio corrects for that. Before and after a
 * checkpoint the two wait for each other, so that a continued run has the bits of a whole one. SPDX-License-Identifier: MIT */
#include "train/grpo.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "run/trace.h"
#include "term/interrupt.h"
#include "term/progress.h"
#include "train/sequences.h"
#include "train/reward.h"
#include "train/rollouts.h"

enum { GROUP = 8, ANSWER_TOKENS = 64, TIMEOUT_S = 10 };
static const double KL = 0.04, DEVIATION_MIN = 1e-4;

/* The policy of a micro-batch, [context] each. */
struct policy_numbers { float *advantages, *weights, *old, *reference, *logprobs; };

struct grpo {
    struct train_job *j;
    struct reward reward;
    struct sampler_engine sampler;
    segue_unit *other;           /* --rollout-unit; NULL: the training unit samples */
    size_t group, answer_tokens, passes;
    float clip, kl;
    struct pack pack;
    struct policy_numbers numbers;
    struct trace trace;
    struct placement rows;       /* units of the trace: training, rollouts */
    uint64_t overlap_ns;
};

/* --- sampling --- */

/* The answers of one step, sampled by a thread of their own if there are two units. */
struct sampling_job {
    struct grpo *g;
    const struct train_prompt **prompts;
    struct rollout_task task;
    struct rollouts result;
    segue_status status;
    segue_error err;
    pthread_t thread;
    bool running;
};

static void *sample(void *arg)
{
    struct sampling_job *s = arg;
    s->status = rollouts_sample(&s->g->sampler, &s->task, &s->result, &s->err);
    return NULL;
}

static segue_status sampling_start(struct grpo *g, struct sampling_job *s, uint64_t step, bool beside, segue_error *err)
{
    const struct train_job *j = g->j;
    *s = (struct sampling_job){.g = g, .prompts = out_alloc(j->batch * sizeof *s->prompts)};
    for (size_t i = 0; i < j->batch; i++)
        s->prompts[i] = &j->prompts.items[samples_order(j->seed, step * j->batch + i, j->prompts.n)];
    s->task = (struct rollout_task){.prompts = s->prompts, .prompts_n = j->batch, .group = g->group,
                                    .answer_tokens = g->answer_tokens, .seed = (j->seed << 32) + step};
    segue_status st = segue_trainer_adapter(&s->task.adapter, j->trainer, 1, err);
    if (st) return st;
    if (beside) s->running = pthread_create(&s->thread, NULL, sample, s) == 0;
    if (!s->running) sample(s);
    return SEGUE_OK;
}

/* Waits; result stays. */
static segue_status sampling_end(struct sampling_job *s, segue_error *err)
{
    if (s->running) pthread_join(s->thread, NULL);
    segue_adapter_close(s->task.adapter);
    free(s->prompts);
    if (s->status) *err = s->err;
    return s->status;
}

/* --- rewards --- */

static segue_status score(struct grpo *g, struct rollouts *r, struct train_step *step, segue_error *err)
{
    struct reward_item *items = out_alloc(r->n * sizeof *items);
    double sum = 0, squares = 0, tokens = 0;
    for (size_t i = 0; i < r->n; i++)
        items[i] = (struct reward_item){.prompt = r->items[i].prompt->text, .answer = r->items[i].text,
                                        .expected = r->items[i].prompt->expected, .tokens = r->items[i].answer_n};
    segue_status st = reward_score(&g->reward, items, r->n, err);
    for (size_t i = 0; i < r->n && !st; i++) {
        r->items[i].reward = items[i].score;
        sum += items[i].score, squares += items[i].score * items[i].score, tokens += (double)items[i].tokens;
    }
    free(items);
    double n = (double)r->n, mean = sum / n;
    step->reward = mean;
    step->reward_deviation = sqrt(fmax(0, squares / n - mean * mean));
    step->answer_tokens = tokens / n;
    return st;
}

/* (reward - mean) / deviation within each group; 0 where all are equal. */
static void set_advantages(const struct grpo *g, struct rollouts *r)
{
    for (size_t at = 0; at < r->n; at += g->group) {
        double mean = 0, squares = 0;
        for (size_t i = at; i < at + g->group; i++) mean += r->items[i].reward / (double)g->group;
        for (size_t i = at; i < at + g->group; i++) squares += pow(r->items[i].reward - mean, 2);
        double deviation = sqrt(squares / (double)g->group);
        for (size_t i = at; i < at + g->group; i++)
            r->items[i].advantage = (r->items[i].reward - mean) / (deviation + DEVIATION_MIN);
    }
}

/* --- micro-batches --- */

/* first, n: the rollouts of the pack. reference: compute their log-probabilities without the adapter; else a gradient. */
static segue_status run_pack(struct grpo *g, struct rollouts *r, size_t first, size_t n, bool reference, segue_train_result *sum,
                             segue_error *err)
{
    const struct policy_numbers *x = &g->numbers;
    const segue_train_policy policy = {.size = sizeof policy, .advantages = x->advantages, .weights = x->weights,
                                       .old_logprobs = x->old, .ref_logprobs = g->kl > 0 ? x->reference : NULL, .clip = g->clip,
                                       .kl = g->kl};
    segue_train_batch b = {.size = sizeof b, .tokens = g->pack.tokens, .labels = g->pack.labels, .lengths = g->pack.lengths,
                           .sequences_n = g->pack.n};
    segue_train_result result = {.size = sizeof result};
    if (reference) b.loss_only = b.base = 1, b.logprobs = x->logprobs;
    else b.policy = &policy;
    segue_status st = segue_trainer_run(g->j->trainer, &b, &result, err);
    job_sum(sum, &result);
    for (size_t i = first, at = 0; i < first + n && !st && reference; at += r->items[i++].n)
        memcpy(r->items[i].reference, x->logprobs + at, r->items[i].n * sizeof *x->logprobs);
    g->pack.n = g->pack.used = 0;
    return st;
}

static void add_rollout(struct grpo *g, const struct rollout *x, size_t all)
{
    size_t at = pack_add(&g->pack, x->tokens, x->labels, x->n);
    memcpy(g->numbers.old + at, x->old, x->n * sizeof *x->old);
    memcpy(g->numbers.reference + at, x->reference, x->n * sizeof *x->reference);
    for (size_t i = 0; i < x->n; i++) {
        g->numbers.advantages[at + i] = (float)x->advantage;
        g->numbers.weights[at + i] = (float)(1 / ((double)x->answer_n * (double)all));
    }
}

/* All rollouts in micro-batches of at most --context tokens. */
static segue_status run_all(struct grpo *g, struct rollouts *r, bool reference, segue_train_result *sum, segue_error *err)
{
    size_t context = job_context(g->j), first = 0;
    segue_status st = SEGUE_OK;
    *sum = (segue_train_result){.size = sizeof *sum};
    for (size_t i = 0; i < r->n && !st; i++) {
        if (g->pack.n && g->pack.used + r->items[i].n > context) {
            st = run_pack(g, r, first, i - first, reference, sum, err);
            first = i;
        }
        if (!st) add_rollout(g, &r->items[i], r->n);
    }
    return st || !g->pack.n ? st : run_pack(g, r, first, r->n - first, reference, sum, err);
}

/* --- steps --- */

static segue_status update(struct grpo *g, struct rollouts *r, struct train_step *step, segue_error *err)
{
    struct train_job *j = g->j;
    segue_train_result sum;
    segue_update_result u = {.size = sizeof u};
    const segue_adamw adamw = {.size = sizeof adamw, .learning_rate = job_rate(j, j->step),
                               .weight_decay = args_number(j->args, "weight-decay", 0),
                               .clip_norm = args_number(j->args, "clip", 1), .divisor = 1};
    segue_status st = g->kl > 0 ? run_all(g, r, true, &sum, err) : SEGUE_OK;
    for (size_t pass = 0; pass < g->passes && !st; pass++) {
        st = run_all(g, r, false, &sum, err);
        if (!st) st = segue_trainer_update(j->trainer, &adamw, &u, err);
    }
    if (st) return st;
    step->loss = sum.loss, step->rate = adamw.learning_rate, step->norm = u.gradient_norm, step->tokens = sum.tokens;
    step->kl = sum.kl / (double)sum.labelled, step->clipped = (double)sum.clipped / (double)sum.labelled;
    step->device = sum;
    return SEGUE_OK;
}

static bool is_due(const struct train_job *j, uint64_t step)
{
    return step % (uint64_t)args_number(j->args, "checkpoint", 50) == 0 || step == j->steps;
}

/* s: the answers of this step, and then those of the next one, if they were sampled meanwhile. */
static segue_status one_step(struct grpo *g, struct sampling_job *s, bool *sampled, struct train_step *step, segue_error *err)
{
    struct train_job *j = g->j;
    uint64_t start = out_now_ns();
    struct sampling_job next = {0};
    segue_status st = SEGUE_OK;
    if (!*sampled) {
        st = sampling_start(g, s, j->step, false, err);
        segue_status ended = sampling_end(s, err);
        if (!st) st = ended;
    }
    struct rollouts r = s->result;
    s->result = (struct rollouts){0};
    bool ahead = g->other && !is_due(j, j->step + 1) && !st;
    uint64_t begin = out_now_ns();
    if (ahead) st = sampling_start(g, &next, j->step + 1, true, err);
    if (!st) st = score(g, &r, step, err);
    if (!st) set_advantages(g, &r);
    trace_add(&g->trace, "rewards", begin, out_now_ns(), 0, (size_t)j->step);
    uint64_t updating = out_now_ns();
    if (!st) st = update(g, &r, step, err);
    uint64_t end = out_now_ns();
    trace_add(&g->trace, "update", updating, end, 0, (size_t)j->step);
    trace_add(&g->trace, "rollouts", r.begin_ns, r.end_ns, g->other != NULL, (size_t)j->step);
    rollouts_free(&r);
    segue_error why;
    segue_status other = ahead && next.prompts ? sampling_end(&next, &why) : SEGUE_OK;
    if (!st && other) st = other, *err = why;
    if (ahead && !other && next.result.n) {
        uint64_t from = next.result.begin_ns > begin ? next.result.begin_ns : begin;
        uint64_t to = next.result.end_ns < end ? next.result.end_ns : end;
        g->overlap_ns += to > from ? to - from : 0;
    }
    s->result = next.result;
    *sampled = ahead;
    if (st) return st;
    step->step = ++j->step;
    step->ms = (double)(out_now_ns() - start) / 1e6;
    return SEGUE_OK;
}

static segue_status train(struct grpo *g, uint64_t *kept, segue_error *err)
{
    struct train_job *j = g->j;
    struct progress progress;
    struct sampling_job s = {0};
    bool sampled = false;
    segue_status st = SEGUE_OK;
    progress_begin(&progress, "train: steps", args_has(j->args, "json"));
    while (j->step < j->steps && !st && !interrupt_pending()) {
        struct train_step step = {.held_out = NAN, .joules = NAN};
        progress_step(&progress, j->step, j->steps, false);
        st = one_step(g, &s, &sampled, &step, err);
        if (st == SEGUE_ECANCELED && interrupt_pending()) { /* the step has not begun to change anything */
            st = g->other || !j->step ? SEGUE_OK : job_keep(j, err);
            if (!st && !g->other) *kept = j->step;
            break;
        }
        if (!st) st = train_log_add(&j->log, &step, err);
        /* With two units ^C keeps nothing between checkpoints: answers of the next step exist already. */
        if (!st && (is_due(j, j->step) || (interrupt_pending() && !g->other))) {
            st = job_keep(j, err);
            if (!st) *kept = j->step;
        }
        if (st) break;
        if (!isfinite(j->first)) j->first = step.reward;
        j->last = step.reward, j->loss = step.loss;
        progress_detail(&progress, "reward %.3f", step.reward);
    }
    progress_end(&progress);
    rollouts_free(&s.result);
    return st;
}

/* --- before and after --- */

static segue_status open_units(struct grpo *g, segue_error *err)
{
    struct train_job *j = g->j;
    const char *spec = args_text(j->args, "rollout-unit");
    segue_status st = SEGUE_OK;
    if (spec) st = placement_open_unit(&g->other, spec, (unsigned)args_number(j->args, "threads", 0), err);
    segue_unit *units[2] = {j->unit, g->other};
    g->rows.units_n = spec ? 2 : 1;
    for (size_t i = 0; i < g->rows.units_n && !st; i++) {
        g->rows.unit_info[i] = SEGUE_INIT(segue_unit_info);
        st = segue_unit_info_get(units[i], &g->rows.unit_info[i], err);
    }
    return st ? st : sampler_engine_open(&g->sampler, j->placement.model, j->placement.info.has_tokenizer,
                                         g->other ? g->other : j->unit, job_context(j), j->batch * g->group, err);
}

static void numbers_begin(struct policy_numbers *x, size_t n)
{
    float **const all[] = {&x->advantages, &x->weights, &x->old, &x->reference, &x->logprobs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] = out_alloc(n * sizeof **all[i]);
}

static void numbers_free(struct policy_numbers *x)
{
    free(x->advantages);
    free(x->weights);
    free(x->old);
    free(x->reference);
    free(x->logprobs);
}

segue_status grpo_train(struct train_job *j, uint64_t *kept, segue_error *err)
{
    struct grpo g = {.j = j, .group = (size_t)args_number(j->args, "group", GROUP),
                     .answer_tokens = (size_t)args_number(j->args, "answer-tokens", ANSWER_TOKENS),
                     .passes = (size_t)args_number(j->args, "passes", 1),
                     .clip = (float)args_number(j->args, "clip-ratio", 0.2), .kl = (float)args_number(j->args, "kl", KL)};
    trace_begin(&g.trace, j->args);
    pack_begin(&g.pack, job_context(j));
    numbers_begin(&g.numbers, job_context(j));
    segue_status st = reward_open(&g.reward, args_text(j->args, "reward"), (int)args_number(j->args, "reward-timeout", TIMEOUT_S),
                                  err);
    if (!st) st = open_units(&g, err);
    if (!st) st = train(&g, kept, err);
    segue_error why;
    segue_status traced = trace_end(&g.trace, &g.rows, &why);
    if (!st && traced) st = traced, *err = why;
    j->log.overlap_ns = g.overlap_ns;
    sampler_engine_close(&g.sampler);
    segue_unit_close(g.other);
    reward_close(&g.reward);
    pack_free(&g.pack);
    numbers_free(&g.numbers);
    return st;
}

size_t grpo_prompt_tokens(const struct train_job *j)
{
    return job_context(j) - (size_t)args_number(j->args, "answer-tokens", ANSWER_TOKENS);
}

segue_status grpo_check(const struct args *args, segue_error *err)
{
    static const char *const only[] = {"reward", "group", "answer-tokens", "clip-ratio", "kl", "passes", "rollout-unit",
                                       "reward-timeout"};
    static const char *const never[] = {"full", "no-pack", "held-out", "meter"};
    bool grpo = args_has(args, "grpo");
    for (size_t i = 0; i < sizeof only / sizeof *only && !grpo; i++)
        if (args_has(args, only[i])) return out_fail(err, SEGUE_EARG, "train: --%s needs --grpo", only[i]);
    for (size_t i = 0; i < sizeof never / sizeof *never && grpo; i++)
        if (args_has(args, never[i])) return out_fail(err, SEGUE_EARG, "train: --%s and --grpo: leave one out", never[i]);
    if (grpo && !args_has(args, "reward"))
        return out_fail(err, SEGUE_EARG, "train: --reward missing; give pattern:RE, length:N, exact or program:COMMAND");
    if (grpo && args_number(args, "answer-tokens", ANSWER_TOKENS) >= args_number(args, "context", TRAIN_CONTEXT))
        return out_fail(err, SEGUE_EARG, "train: --answer-tokens leaves no place for a prompt; raise --context");
    return SEGUE_OK;
}
