/* bench_two_tokens.c: the two-token step of `segue bench --claim`: a draft of the next token is computed in the same run as the
 * token before it, and kept only when it is the token that the model chooses, so the text is exactly the one without drafts. The
 * draft is the token that followed the last time. SPDX-License-Identifier: MIT */
#include "bench/bench_two_tokens.h"

#include <stdlib.h>
#include <string.h>

/* Tokens so far, and for every token the one that followed it last; -1: none. */
struct text {
    int32_t *tokens, *after;
    size_t n;
};

static void text_add(struct text *t, int32_t token)
{
    if (t->n) t->after[t->tokens[t->n - 1]] = token;
    t->tokens[t->n++] = token;
}

static int32_t best_of(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

static segue_status open_session(const struct probe *p, segue_session **s, size_t context, segue_error *err)
{
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    greedy.ignore_stops = 1;
    opts.sampling = &greedy;
    opts.context = context;
    opts.no_store = 1;
    return segue_session_open(s, p->engine, &opts, err);
}

/* The token after the last one of t, and one more if the draft holds. */
static segue_status step(segue_session *s, uint32_t vocab, struct text *t, float *logits, size_t *accepted, segue_error *err)
{
    int32_t last = t->tokens[t->n - 1], pair[2] = {last, t->after[last] < 0 ? last : t->after[last]};
    SG_TRY(segue_session_score(s, pair, 2, NULL, logits, err));
    int32_t chosen = best_of(logits, vocab);
    text_add(t, chosen);
    if (chosen != pair[1]) return segue_session_rewind(s, segue_session_tokens(s, &(const int32_t *){NULL}) - 1, err);
    text_add(t, best_of(logits + vocab, vocab));
    ++*accepted;
    return SEGUE_OK;
}

/* All steps after the prompt; its last logits choose the first token. */
static segue_status run_steps(const struct probe *p, segue_session *s, size_t prompt, size_t tokens, struct text *t,
                              struct two_tokens *out, segue_error *err)
{
    float *logits = out_alloc((prompt > 2 ? prompt : 2) * p->vocab * sizeof *logits);
    int32_t *ids = out_alloc(prompt * sizeof *ids);
    for (size_t i = 0; i < prompt; i++) text_add(t, ids[i] = (int32_t)(i * 2654435761u % p->vocab));
    segue_status st = segue_session_score(s, ids, prompt, NULL, logits, err);
    if (!st) text_add(t, best_of(logits + (prompt - 1) * p->vocab, p->vocab));
    uint64_t start = out_now_ns();
    for (; !st && t->n < prompt + tokens + 1; out->steps++) st = step(s, p->vocab, t, logits, &out->accepted, err);
    out->step_ms = out->steps ? (double)(out_now_ns() - start) * 1e-6 / (double)out->steps : 0;
    free(ids);
    free(logits);
    return st;
}

/* The text by single steps is the same. */
static segue_status compare(segue_session *s, size_t prompt, const struct text *t, struct two_tokens *out,
                            segue_error *err)
{
    int32_t token;
    out->equal = true;
    SG_TRY(segue_session_append(s, t->tokens, prompt, err));
    for (size_t i = prompt; i < t->n; i++) {
        SG_TRY(segue_session_next(s, &token, err));
        out->equal &= token == t->tokens[i];
    }
    return SEGUE_OK;
}

segue_status bench_two_tokens(const struct probe *p, size_t prompt, size_t tokens, struct two_tokens *out, segue_error *err)
{
    segue_session *s = NULL, *plain = NULL;
    struct text t = {.tokens = out_alloc((prompt + tokens + 2) * sizeof(int32_t)),
                     .after = out_alloc(p->vocab * sizeof(int32_t))};
    memset(t.after, 0xff, p->vocab * sizeof(int32_t));
    *out = (struct two_tokens){.steps = 0};
    segue_status st = open_session(p, &s, prompt + tokens + 3, err);
    if (!st) st = run_steps(p, s, prompt, tokens, &t, out, err);
    if (!st) st = open_session(p, &plain, prompt + tokens + 3, err);
    if (!st) st = compare(plain, prompt, &t, out, err);
    if (!st) out->tokens = t.n - prompt - 1;
    segue_session_close(plain);
    segue_session_close(s);
    free(t.after);
    free(t.tokens);
    return st;
}
