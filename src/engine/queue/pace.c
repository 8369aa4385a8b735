/* pace.c: see pace.h. SPDX-License-Identifier: MIT */
#include "engine/queue/pace.h"

enum {
    FIRST_TOKENS = 32, /* of the first chunk beside answers, when nothing is known */
    SURE_RUNS = 3,     /* of a size, before its time is believed */
    OLD_RUNS = 200,    /* without a size, after which its time is not believed any more */
    TRY_AFTER = 4      /* runs of one size in turn, after which the next larger one is tried if its time is not believed */
};

static double smallest_of(uint32_t size) { return (double)((uint64_t)8 << size); }

static uint32_t size_of(size_t tokens)
{
    uint32_t k = 0;
    while (k + 1 < SG_PACE_SIZES && (double)tokens >= smallest_of(k + 1)) k++;
    return k;
}

static double lesser(double a, double b) { return a < b ? a : b; }

/* Time of a token, of each size; one that was not seen is like the next smaller one, since two chunks of that could take its
 * place, or like the first one seen. For the same reason a size is hardly slower than a smaller one. 0: none is known. */
static int fill_times(const struct sg_pace *p, double token_ns[SG_PACE_SIZES])
{
    double below = 0, sure = 0;
    for (uint32_t k = 0; k < SG_PACE_SIZES && below <= 0; k++) below = p->size[k].token_ns;
    for (uint32_t k = 0; k < SG_PACE_SIZES; k++) {
        const struct sg_pace_size *s = &p->size[k];
        if (s->runs) below = s->runs < SURE_RUNS ? lesser(s->token_ns, below) : s->token_ns;
        if (sure > 0) below = lesser(below, 1.25 * sure);
        if (s->runs >= SURE_RUNS) sure = below;
        token_ns[k] = below;
    }
    return below > 0;
}

/* What a chunk takes however short it is, from the shortest ones and the longest one beside answers; 0: unknown, or some size
 * takes at most left_ns, so that it does not matter. */
static double fixed_cost(const struct sg_pace *p, double left_ns)
{
    const struct sg_pace_size *low = &p->size[0], *high = low;
    for (uint32_t k = 0; k < SG_PACE_SIZES; k++) {
        const struct sg_pace_size *s = &p->size[k];
        if (s->tokens && s->token_ns * (double)s->tokens <= left_ns) return 0;
        if (s->tokens) high = s;
    }
    if (!low->tokens || high->tokens < 2 * low->tokens) return 0;
    double share = (double)low->tokens / (double)high->tokens, ns = (low->token_ns - high->token_ns) * (double)low->tokens;
    return ns > 0 ? ns / (1 - share) : 0;
}

static void learn_mean(double *mean, double value) { *mean = *mean > 0 ? *mean + (value - *mean) / 4 : value; }

/* Of the first runs the least, since first uses of kernels and shapes take longer; a time of more than double the least one
 * replaces it, since a first use would have been that slow before. Then weight 1/4 for the newest value; it adds at most half of
 * the old one, so that a change is followed within a few runs, and a single slow run matters little. */
static void learn_size(struct sg_pace_size *s, double ns)
{
    if (!s->runs) s->token_ns = ns;
    else if (s->runs < SURE_RUNS) s->token_ns = ns > 2 * s->token_ns ? ns : lesser(s->token_ns, ns);
    else s->token_ns += lesser((ns - s->token_ns) / 4, s->token_ns / 2);
    if (s->runs < SURE_RUNS) s->runs++;
    s->age = 0;
}

static void grow_old(struct sg_pace *p)
{
    for (uint32_t k = 0; k < SG_PACE_SIZES; k++)
        if (++p->size[k].age >= OLD_RUNS && p->size[k].runs == SURE_RUNS) p->size[k].runs--;
}

void sg_pace_learn(struct sg_pace *p, const struct sg_pace_run *r)
{
    if (!r->ns) return;
    if (!r->prompt_tokens) {
        learn_mean(&p->answers_ns, (double)r->ns);
        return;
    }
    uint32_t k = size_of(r->prompt_tokens);
    double ns = (double)r->ns - (r->answers ? p->answers_ns : 0), token_ns = (ns > 1 ? ns : 1) / (double)r->prompt_tokens;
    grow_old(p);
    learn_mean(&p->prompt_token_ns, token_ns);
    learn_size(&p->size[k], token_ns);
    if (!r->answers) return;
    p->size[k].tokens = r->prompt_tokens;
    p->same = k == p->last ? p->same + 1 : 1;
    p->last = k;
}

size_t sg_pace_budget(const struct sg_pace *p, uint64_t target_ns, size_t max)
{
    double token_ns[SG_PACE_SIZES], left = (double)target_ns - p->answers_ns;
    uint32_t best = 0;
    if (!fill_times(p, token_ns)) return FIRST_TOKENS < max ? FIRST_TOKENS : max;
    if (left < p->answers_ns / 2) left = p->answers_ns / 2;
    double fixed = fixed_cost(p, left);
    if (left < 2 * fixed) left = 2 * fixed;
    for (uint32_t k = 0; k < SG_PACE_SIZES; k++)
        if (token_ns[k] * smallest_of(k) <= left) best = k;
    double n = lesser(left / token_ns[best], smallest_of(best + 1) - 1);
    int try_next = p->last == best && p->same >= TRY_AFTER && best + 1 < SG_PACE_SIZES && p->size[best + 1].runs < SURE_RUNS;
    if (try_next) n = smallest_of(best + 1);
    return n >= (double)max ? max : n < smallest_of(0) ? (size_t)smallest_of(0) : (size_t)n;
}
