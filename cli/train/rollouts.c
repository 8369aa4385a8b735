/* rollouts.c: see rollouts.h. SPDX-License-Identifier: MIT */
#include "train/rollouts.h"

#include <stdlib.h>
#include <string.h>

void rollouts_free(struct rollouts *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->items[i].tokens);
        free(r->items[i].old);
        free(r->items[i].text);
    }
    free(r->items);
    *r = (struct rollouts){0};
}

segue_status sampler_engine_open(struct sampler_engine *e, segue_model *model, bool has_tokenizer, segue_unit *unit,
                                 size_t context, size_t running, segue_error *err)
{
    const segue_scheduler_opts o = {.size = sizeof o, .running = running < 64 ? running : 64, .waiting = running,
                                    .context = context};
    *e = (struct sampler_engine){.model = model, .has_tokenizer = has_tokenizer};
    segue_status st = segue_engine_open(&e->engine, model, &unit, 1, NULL, err);
    return st ? st : segue_scheduler_open(&e->scheduler, e->engine, &o, err);
}

void sampler_engine_close(struct sampler_engine *e)
{
    segue_scheduler_close(e->scheduler);
    segue_engine_close(e->engine);
    *e = (struct sampler_engine){0};
}

/* The stop token at the end is no text. */
static segue_status set_text(const struct sampler_engine *e, struct rollout *r, bool stopped, segue_error *err)
{
    const int32_t *ids = r->tokens + r->prompt->n;
    size_t n = r->answer_n - stopped;
    struct out_text text = {0};
    segue_status st = SEGUE_OK;
    if (e->has_tokenizer)
        OUT_GROW(text, st, segue_detokenize(e->model, ids, n, SEGUE_TEXT_NO_SPECIAL, text.data, text.cap, &text.len, err));
    for (size_t i = 0; i < n && !e->has_tokenizer; i++) out_addf(&text, i ? " %d" : "%d", (int)ids[i]);
    r->text = st || !text.data ? out_strdup("") : out_printf("%.*s", (int)text.len, text.data);
    free(text.data);
    return st;
}

/* Reads all tokens of a request. */
static segue_status read_answer(const struct sampler_engine *e, segue_request *request, const struct train_prompt *prompt,
                                size_t answer_tokens, struct rollout *r, segue_error *err)
{
    size_t cap = prompt->n + answer_tokens;
    segue_logprob *logprobs = out_alloc((answer_tokens + 1) * sizeof *logprobs);
    *r = (struct rollout){.prompt = prompt, .tokens = out_alloc(2 * cap * sizeof *r->tokens), .n = prompt->n};
    r->labels = r->tokens + cap;
    r->old = out_alloc(2 * cap * sizeof *r->old);
    r->reference = r->old + cap;
    memcpy(r->tokens, prompt->tokens, prompt->n * sizeof *r->tokens);
    for (size_t i = 0; i < cap; i++) r->labels[i] = -1;
    segue_status st = SEGUE_OK;
    while (!st) {
        size_t got = 0;
        st = segue_request_read(request, r->tokens + r->n, logprobs, cap - r->n, &got, UINT64_MAX, err);
        for (size_t i = 0; i < got; i++, r->n++) {
            r->labels[r->n - 1] = r->tokens[r->n];
            r->old[r->n - 1] = logprobs[i].logprob;
        }
        if (!st && r->n == cap) break;
    }
    free(logprobs);
    if (st < 0) return st;
    segue_request_info info = SEGUE_INIT(segue_request_info);
    st = segue_request_info_get(request, &info, err);
    r->answer_n = r->n - prompt->n;
    return st ? st : set_text(e, r, info.finish == SEGUE_FINISH_STOP && r->answer_n, err);
}

segue_status rollouts_sample(struct sampler_engine *e, const struct rollout_task *task, struct rollouts *out, segue_error *err)
{
    size_t n = task->prompts_n * task->group, submitted = 0;
    segue_request **requests = out_alloc((n + 1) * sizeof *requests);
    segue_status st = SEGUE_OK;
    *out = (struct rollouts){.items = out_alloc((n + 1) * sizeof *out->items), .begin_ns = out_now_ns()};
    for (; submitted < n && !st; submitted++) {
        const struct train_prompt *prompt = task->prompts[submitted / task->group];
        /* Seeds of neighbours differ in all bits after the sampler's own mixing. */
        const segue_sampling sampling = {.size = sizeof sampling, .temperature = 1, .logprobs = 1,
                                         .seed = task->seed * 0x9e3779b97f4a7c15u + submitted};
        const segue_request_opts o = {.size = sizeof o, .tokens = prompt->tokens, .tokens_n = prompt->n,
                                      .max_tokens = task->answer_tokens, .sampling = &sampling, .adapters = &task->adapter,
                                      .adapters_n = task->adapter != NULL, .no_store = 1};
        st = segue_request_submit(&requests[submitted], e->scheduler, &o, err);
        if (st) break;
    }
    for (size_t i = 0; i < submitted && !st; i++) {
        st = read_answer(e, requests[i], task->prompts[i / task->group], task->answer_tokens, &out->items[i], err);
        out->n = i + 1;
    }
    for (size_t i = 0; i < submitted; i++) segue_request_close(requests[i]);
    free(requests);
    out->end_ns = out_now_ns();
    return st;
}

segue_status rollouts_show(struct sampler_engine *e, const struct train_prompt *prompt, const segue_trainer *trainer,
                           uint64_t seed, size_t tokens, char **text, segue_error *err)
{
    struct rollouts r = {0};
    struct rollout_task task = {.prompts = &prompt, .prompts_n = 1, .group = 1, .answer_tokens = tokens, .seed = seed};
    segue_status st = trainer ? segue_trainer_adapter(&task.adapter, trainer, 1, err) : SEGUE_OK;
    if (!st) st = rollouts_sample(e, &task, &r, err);
    if (!st) *text = out_strdup(r.items[0].text);
    rollouts_free(&r);
    segue_adapter_close(task.adapter);
    return st;
}
