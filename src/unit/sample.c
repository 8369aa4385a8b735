/* sample.c: see sample.h; one function per step. The arithmetic is in sample_math.h: fp32 and double operations that are rounded
 * one by one, and sums of integers, so that other compilers and units reproduce a choice bit for bit.
 * SPDX-License-Identifier: MIT */
#include "unit/sample.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "unit/mask_gate.h"
#include "unit/sample_math.h"

#define REMOVED UINT64_MAX /* no weight: it is above all of them */

enum {
    HEAP_MAX = 1024,  /* top-k up to this k uses a heap, larger ones a full sort */
    BLOCK = 1024,     /* logits per step of the search for the maximum */
    SAVED = 64,       /* logits that sg_choose_kept saves and restores */
    DIGIT_BITS = 11,
    DIGITS = 1 << DIGIT_BITS
};

/* A candidate is 64 bits: the logit mapped so that ascending integers are descending logits, then the id, so that ties order by
 * id. */
struct sg_chooser {
    uint32_t vocab;
    uint32_t *counts;          /* [vocab] zero between calls */
    float *raw;                /* [vocab] the logits before any step, for log-probabilities */
    uint64_t *order, *spare;   /* [vocab] candidates, and the other buffer of the radix sort */
    uint32_t *ids;             /* [vocab] remaining tokens, best first, lowest id on ties ... */
    float *values;             /* [vocab] ... and their logits */
    uint64_t *weights;         /* [vocab] weights of the remaining tokens (sample_math.h); REMOVED: not kept */
    uint32_t match[SG_MATCH_MAX]; /* DRY: match length at each position of the reversed history */
    uint32_t tally[DIGITS];    /* radix sort: count, then offset, of each digit */
};

segue_status sg_chooser_new(struct sg_chooser **out, uint32_t vocab, segue_error *err)
{
    struct sg_chooser *c = sg_alloc(sizeof *c);
    if (!c) return sg_no_memory("chooser", sizeof *c, err);
    size_t n = vocab;
    c->vocab = vocab;
    c->counts = sg_alloc(n * sizeof *c->counts);
    c->raw = sg_alloc(n * sizeof *c->raw);
    c->order = sg_alloc(n * sizeof *c->order);
    c->spare = sg_alloc(n * sizeof *c->spare);
    c->ids = sg_alloc(n * sizeof *c->ids);
    c->values = sg_alloc(n * sizeof *c->values);
    c->weights = sg_alloc(n * sizeof *c->weights);
    if (!c->counts || !c->raw || !c->order || !c->spare || !c->ids || !c->values || !c->weights) {
        sg_chooser_free(c);
        return sg_no_memory("chooser", n * 40, err);
    }
    *out = c;
    return SEGUE_OK;
}

void sg_chooser_free(struct sg_chooser *c)
{
    if (!c) return;
    sg_free(c->counts);
    sg_free(c->raw);
    sg_free(c->order);
    sg_free(c->spare);
    sg_free(c->ids);
    sg_free(c->values);
    sg_free(c->weights);
    sg_free(c);
}

/* --- numbers --- */

void sg_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) { sg_philox_rounds(counter, key, out); }

float sg_uniform(uint64_t seed, uint64_t position) { return sg_uniform_of(seed, position); }

static uint64_t candidate(float logit, uint32_t id) { return (uint64_t)sg_order_of(logit) << 32 | id; }

static float logit_of(uint64_t c) { return sg_logit_of((uint32_t)(c >> 32)); }

/* --- steps that change logits --- */

/* Adds the bias of each listed token. */
static void step_bias(const struct sg_sampler *s, float *logits, uint32_t n)
{
    for (size_t i = 0; i < s->p.bias_n; i++) {
        const struct segue_bias *b = &s->p.bias[i];
        if (b->token >= 0 && (uint32_t)b->token < n)
            logits[b->token] = sg_below_infinity(logits[b->token] + b->bias);
    }
}

/* ignore_stops: masks all stop tokens. */
static void step_stops(const struct sg_sampler *s, float *logits, uint32_t n)
{
    if (!s->p.ignore_stops) return;
    for (size_t i = 0; i < s->stops_n; i++)
        if (s->stops[i] >= 0 && (uint32_t)s->stops[i] < n) logits[s->stops[i]] = -INFINITY;
}

/* The bits of tokens [from, from + 32) in s->allowed; from is a multiple of 32. */
static uint32_t allowed_word(const struct sg_sampler *s, uint32_t from)
{
    if (from >= s->allowed_n) return 0;
    uint32_t left = s->allowed_n - from;
    return s->allowed[from / 32] & (left < 32 ? (UINT32_C(1) << left) - 1 : UINT32_MAX);
}

/* Masks all tokens whose bit in s->allowed is 0. */
static void step_allowed(const struct sg_sampler *s, float *logits, uint32_t n)
{
    if (!s->allowed) return;
    for (uint32_t from = 0; from < n; from += 32) {
        uint32_t word = allowed_word(s, from), end = n - from < 32 ? n : from + 32;
        if (word == UINT32_MAX) continue;
        for (uint32_t i = from; i < end; i++) logits[i] = word >> (i - from) & 1 ? logits[i] : -INFINITY;
    }
}

/* Penalties over the last repeat_last_n tokens of the history (0: 64, negative: all). The second loop handles each distinct
 * token once: it zeroes the count at the first occurrence, which also clears the table for the next call. */
static void step_penalties(struct sg_chooser *c, const struct sg_sampler *s, float *logits, uint32_t n)
{
    float repeat = s->p.repeat_penalty, frequency = s->p.frequency_penalty, presence = s->p.presence_penalty;
    if (!(repeat > 0 && repeat != 1) && frequency == 0 && presence == 0) return;
    size_t last_n = s->p.repeat_last_n == 0 ? 64 : (size_t)s->p.repeat_last_n;
    size_t from = s->p.repeat_last_n < 0 || last_n > s->history_n ? 0 : s->history_n - last_n;
    for (size_t i = from; i < s->history_n; i++)
        if (s->history[i] >= 0 && (uint32_t)s->history[i] < n) c->counts[s->history[i]]++;
    for (size_t i = from; i < s->history_n; i++) {
        if (s->history[i] < 0 || (uint32_t)s->history[i] >= n) continue;
        uint32_t id = (uint32_t)s->history[i], count = c->counts[id];
        if (!count) continue; /* not the first occurrence */
        c->counts[id] = 0;
        logits[id] = sg_penalized(logits[id], repeat, frequency, presence, count);
    }
}

/* 1: a DRY match does not extend across this token. */
static int is_breaker(const struct sg_sampler *s, int32_t token)
{
    return s->breakers && token >= 0 && (size_t)token < s->breakers_n && s->breakers[token];
}

/* Length of the longest common suffix (at most max_n tokens) of the history and of the history without its last `back`
 * tokens, for every `back`: the Z function of the reversed history. Since matches are at most SG_MATCH_MAX long, only
 * SG_MATCH_MAX values are stored. For each match of at least min_n tokens, counts[token that followed it] = its length, the
 * maximum over the matches. */
static void dry_matches(struct sg_chooser *c, const struct sg_sampler *s, uint32_t n, uint32_t min_n,
                        uint32_t max_n)
{
    const int32_t *end = s->history + s->history_n - 1; /* reversed[i] = end[-i] */
    size_t left = 0, right = 0;
    for (size_t back = 1; back < s->history_n; back++) {
        size_t k = 0;
        if (back < right) {
            k = c->match[back - left];
            if (k > right - back) k = right - back;
        }
        while (k < max_n && back + k < s->history_n && end[-(ptrdiff_t)k] == end[-(ptrdiff_t)(back + k)]) k++;
        if (back + k > right) {
            left = back;
            right = back + k;
        }
        if (back < SG_MATCH_MAX) c->match[back] = (uint32_t)k;
        int32_t next = end[1 - (ptrdiff_t)back];
        if (k >= min_n && next >= 0 && (uint32_t)next < n && c->counts[next] < k)
            c->counts[next] = (uint32_t)k;
    }
}

/* Subtracts multiplier * base^(length - min_n) from every token that would extend a repetition of `length` tokens. Clears
 * counts again. */
static void step_dry(struct sg_chooser *c, const struct sg_sampler *s, float *logits, uint32_t n)
{
    double base = s->p.dry_base > 0 ? (double)s->p.dry_base : 1.75;
    if (!(s->p.dry_multiplier > 0) || base < 1) return;
    uint32_t min_n = s->p.dry_allowed_length > 0 ? (uint32_t)s->p.dry_allowed_length : 2, max_n = 0;
    while (max_n < SG_MATCH_MAX && max_n < s->history_n && !is_breaker(s, s->history[s->history_n - 1 - max_n])) max_n++;
    if (max_n < min_n || s->history_n <= min_n) return;
    dry_matches(c, s, n, min_n, max_n);
    for (size_t i = 0; i < s->history_n; i++) {
        if (s->history[i] < 0 || (uint32_t)s->history[i] >= n) continue;
        uint32_t id = (uint32_t)s->history[i], length = c->counts[id];
        c->counts[id] = 0;
        if (!length || is_breaker(s, s->history[i])) continue;
        logits[id] -= sg_dry_penalty(s->p.dry_multiplier, base, min_n, length);
    }
}

/* --- steps that choose --- */

segue_status sg_logits_check(const float *logits, uint32_t n, segue_error *err)
{
    int bad = 0;
    for (uint32_t i = 0; i < n; i++)
        bad |= !(logits[i] < INFINITY); /* no branch, so that the compiler vectorizes it */
    for (uint32_t i = 0; bad && i < n; i++)
        if (!(logits[i] < INFINITY))
            return sg_fail(err, SEGUE_EFORMAT,
                           "token not chosen: the logit of token %u is %s; the weights are damaged or the"
                           " unit failed",
                           i, logits[i] > 0 ? "infinite" : "not a number");
    return SEGUE_OK;
}

segue_status sg_choice_all_masked(segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT,
                   "token not chosen: biases, stop tokens and the mask of allowed tokens forbid every token; allow at least one");
}

/* Maximum of n floats, compared as integers in the same order, which compilers vectorize. */
static float largest(const float *x, uint32_t n)
{
    int32_t top = INT32_MIN;
    for (uint32_t i = 0; i < n; i++) {
        int32_t key = (int32_t)sg_bits_of_f32(x[i]);
        key ^= key >> 31 & 0x7fffffff;
        top = key > top ? key : top;
    }
    return sg_f32_of_bits((uint32_t)(top ^ (top >> 31 & 0x7fffffff)));
}

/* Index of the highest logit, lowest id on ties; -1: all are masked. Skips blocks without a new maximum. */
static int32_t highest(const float *logits, uint32_t n)
{
    int32_t best = -1;
    float top = -INFINITY;
    for (uint32_t from = 0; from < n; from += BLOCK) {
        uint32_t end = n - from < BLOCK ? n : from + BLOCK;
        if (end - from == BLOCK && !(largest(logits + from, BLOCK) > top)) continue;
        for (uint32_t i = from; i < end; i++)
            if (logits[i] > top) {
                top = logits[i];
                best = (int32_t)i;
            }
    }
    return best;
}

/* As highest, among the tokens of s->allowed, without changing other logits. Skips words without a new maximum. */
static int32_t highest_allowed(const struct sg_sampler *s, const float *logits, uint32_t n)
{
    int32_t best = -1;
    float top = -INFINITY;
    for (uint32_t from = 0; from < n; from += 32) {
        uint32_t word = allowed_word(s, from);
        if (!word || (n - from >= 32 && !(largest(logits + from, 32) > top))) continue;
        for (uint32_t i = from; word && i < n; i++, word >>= 1)
            if (word & 1 && logits[i] > top) {
                top = logits[i];
                best = (int32_t)i;
            }
    }
    return best;
}

/* Max-heap of candidates, worst one at the root: moves heap[at] down to its position. */
static void sift_down(uint64_t *heap, uint32_t n, uint32_t at)
{
    uint64_t x = heap[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= x) break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

/* Writes the k best unmasked tokens to heap [k], best first, and returns their number. k <= HEAP_MAX. Fills the heap, replaces
 * the worst one by better ones, then sorts it in place. */
static uint32_t select_best(const float *logits, uint32_t n, uint32_t k, uint64_t *heap)
{
    uint32_t size = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!(logits[i] > -INFINITY) || (size == k && logits[i] < logit_of(heap[0]))) continue;
        uint64_t c = candidate(logits[i], i);
        if (size < k) {
            heap[size++] = c;
            if (size == k)
                for (uint32_t j = k / 2; j-- > 0;) sift_down(heap, k, j);
        } else if (c < heap[0]) {
            heap[0] = c;
            sift_down(heap, k, 0);
        }
    }
    if (size < k)
        for (uint32_t j = size / 2; j-- > 0;) sift_down(heap, size, j);
    for (uint32_t m = size; m > 1; m--) {
        uint64_t worst = heap[0];
        heap[0] = heap[m - 1];
        heap[m - 1] = worst;
        sift_down(heap, m - 1, 0);
    }
    return size;
}

/* Stable radix sort of c->order [n] by the upper 32 bits. */
static void sort_all(struct sg_chooser *c, uint32_t n)
{
    for (unsigned shift = 32; shift < 64; shift += DIGIT_BITS) {
        memset(c->tally, 0, sizeof c->tally);
        for (uint32_t i = 0; i < n; i++) c->tally[c->order[i] >> shift & (DIGITS - 1)]++;
        for (uint32_t d = 0, at = 0; d < DIGITS; d++) {
            uint32_t count = c->tally[d];
            c->tally[d] = at;
            at += count;
        }
        for (uint32_t i = 0; i < n; i++)
            c->spare[c->tally[c->order[i] >> shift & (DIGITS - 1)]++] = c->order[i];
        uint64_t *other = c->order;
        c->order = c->spare;
        c->spare = other;
    }
}

/* Fills ids and values with the top-k tokens in the order that all later steps rely on. Returns their number. */
static uint32_t step_top_k(struct sg_chooser *c, const struct sg_sampler *s, const float *logits, uint32_t n)
{
    uint32_t k = s->p.top_k > 0 && (uint32_t)s->p.top_k < n ? (uint32_t)s->p.top_k : n, left = 0;
    if (k <= HEAP_MAX) {
        left = select_best(logits, n, k, c->order);
    } else {
        for (uint32_t i = 0; i < n; i++)
            if (logits[i] > -INFINITY) c->order[left++] = candidate(logits[i], i);
        sort_all(c, left);
        if (left > k) left = k;
    }
    for (uint32_t i = 0; i < left; i++) {
        c->ids[i] = (uint32_t)c->order[i];
        c->values[i] = logits[c->ids[i]];
    }
    return left;
}

/* Relative to the highest logit. */
static float below_top(const struct sg_chooser *c, uint32_t i) { return c->values[i] - c->values[0]; }

/* Fills the weights of the n remaining tokens; returns their sum. */
static uint64_t fill_weights(struct sg_chooser *c, uint32_t n, float inverse)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        c->weights[i] = sg_weight_of(below_top(c, i), inverse);
        sum += c->weights[i];
    }
    return sum;
}

/* Locally typical sampling: keeps the tokens whose -log p is nearest to the entropy H until their mass reaches typical_p. With
 * depth = highest - logit the logarithm of the sum cancels: |-log p - H| = |depth - mean depth|. Distances are compared as fp32;
 * equal ones keep their order. */
static uint32_t step_typical(struct sg_chooser *c, const struct sg_sampler *s, uint32_t n)
{
    if (!(s->p.typical_p > 0 && s->p.typical_p < 1)) return n;
    uint64_t sum = fill_weights(c, n, 1.0f), depths = 0, mass = 0, part = sg_part_of(s->p.typical_p, sum);
    for (uint32_t i = 0; i < n; i++) depths += sg_weighted_depth(c->weights[i], below_top(c, i));
    double mean = (double)depths / (double)sum;
    for (uint32_t i = 0; i < n; i++) c->order[i] = (uint64_t)sg_distance_of(mean, below_top(c, i)) << 32 | i;
    sort_all(c, n);
    uint32_t taken = 0, left = 0;
    while (taken < n && mass < part) mass += c->weights[(uint32_t)c->order[taken++]];
    for (; taken < n; taken++) c->weights[(uint32_t)c->order[taken]] = REMOVED;
    for (uint32_t i = 0; i < n; i++) {
        if (c->weights[i] == REMOVED) continue;
        c->ids[left] = c->ids[i];
        c->values[left++] = c->values[i];
    }
    return left;
}

/* Nucleus sampling: keeps the shortest prefix whose mass reaches top_p. */
static uint32_t step_top_p(struct sg_chooser *c, const struct sg_sampler *s, uint32_t n)
{
    if (!(s->p.top_p > 0 && s->p.top_p < 1)) return n;
    uint64_t part = sg_part_of(s->p.top_p, fill_weights(c, n, 1.0f)), mass = 0;
    for (uint32_t i = 0; i < n; i++) {
        mass += c->weights[i];
        if (mass >= part) return i + 1;
    }
    return n;
}

/* Keeps tokens with at least min_p times the probability of the best one; weights are relative to it, so no sum is needed. */
static uint32_t step_min_p(struct sg_chooser *c, const struct sg_sampler *s, uint32_t n)
{
    if (!(s->p.min_p > 0)) return n;
    uint64_t least = sg_min_weight(s->p.min_p);
    uint32_t left = 1;
    while (left < n && sg_weight_of(below_top(c, left), 1.0f) >= least) left++;
    return left;
}

/* Inverse CDF. */
static int32_t draw(struct sg_chooser *c, const struct sg_sampler *s, uint32_t n, uint64_t position)
{
    uint64_t sum = fill_weights(c, n, sg_inverse_of(s->p.temperature)), mass = 0,
             at = sg_draw_at(sg_uniform(s->p.seed, position), sum);
    uint32_t i = 0;
    while ((mass += c->weights[i]) <= at) i++;
    return (int32_t)c->ids[i];
}

/* All steps in order; -1: all tokens are masked. */
static int32_t choose(struct sg_chooser *c, const struct sg_sampler *s, float *logits, uint32_t n,
                      uint64_t position)
{
    step_bias(s, logits, n);
    step_stops(s, logits, n);
    step_penalties(c, s, logits, n);
    step_dry(c, s, logits, n);
    if (!(s->p.temperature > 0)) return s->allowed ? highest_allowed(s, logits, n) : highest(logits, n);
    step_allowed(s, logits, n); /* after the penalties, which it does not change: a greedy choice only looks */
    uint32_t left = step_top_k(c, s, logits, n);
    if (!left) return -1;
    left = step_typical(c, s, left);
    left = step_top_p(c, s, left);
    left = step_min_p(c, s, left);
    return draw(c, s, left, position);
}

/* --- log-probabilities: they influence no choice, so libm is allowed --- */

float sg_logprob_of(float logit, float top, uint64_t sum)
{
    return (float)((double)logit - ((double)top + log((double)sum / (double)SG_WEIGHT_ONE)));
}

/* The chosen token, then the best ones, from c->raw. */
static void report(struct sg_chooser *c, const struct sg_sampler *s, uint32_t n, int32_t token,
                   segue_logprob *out, size_t *out_n)
{
    uint64_t sum = 0;
    float top = -INFINITY;
    for (uint32_t i = 0; i < c->vocab; i++) /* no fmax: gcc 12 for AArch64 crashes on it in this loop */
        if (c->raw[i] > top) top = c->raw[i];
    for (uint32_t i = 0; i < c->vocab; i++) sum += sg_weight_of(c->raw[i] - top, 1.0f);
    uint32_t wanted = s->p.logprobs - 1 < 20 ? s->p.logprobs - 1 : 20;
    out[0] = (segue_logprob){token, sg_logprob_of(c->raw[token], top, sum)};
    uint32_t best_n = wanted ? select_best(c->raw, n, wanted, c->order) : 0;
    for (uint32_t i = 0; i < best_n; i++) {
        uint32_t id = (uint32_t)c->order[i];
        out[1 + i] = (segue_logprob){(int32_t)id, sg_logprob_of(c->raw[id], top, sum)};
    }
    *out_n = 1 + best_n;
}

segue_status sg_choose(struct sg_chooser *c, const struct sg_sampler *s, float *logits, uint64_t position,
                       int32_t *token, segue_logprob *logprobs, size_t *logprobs_n, segue_error *err)
{
    uint32_t n = s->limit && s->limit < c->vocab ? s->limit : c->vocab;
    int reported = logprobs && logprobs_n && s->p.logprobs;
    SG_TRY(sg_logits_check(logits, c->vocab, err));
    sg_sampler_wait(s);
    if (reported) memcpy(c->raw, logits, c->vocab * sizeof *c->raw);
    int32_t chosen = choose(c, s, logits, n, position);
    if (chosen < 0) return sg_choice_all_masked(err);
    if (reported)
        report(c, s, n, chosen, logprobs, logprobs_n);
    else if (logprobs_n)
        *logprobs_n = 0;
    *token = chosen;
    return SEGUE_OK;
}

/* 1: a greedy choice that changes at most SAVED logits, so that they can be restored one by one. */
static int changes_few(const struct sg_sampler *s)
{
    const segue_sampling *p = &s->p;
    int penalties = (p->repeat_penalty > 0 && p->repeat_penalty != 1) || p->frequency_penalty != 0 ||
                    p->presence_penalty != 0 || p->dry_multiplier > 0;
    return !(p->temperature > 0) && !penalties && !p->logprobs &&
           p->bias_n + (p->ignore_stops ? s->stops_n : 0) <= SAVED;
}

/* Read or write the logit of a token; ids outside of the vocabulary are ignored. */
static float logit_get(const float *logits, uint32_t n, int32_t token)
{
    return token >= 0 && (uint32_t)token < n ? logits[token] : 0.0f;
}

static void logit_set(float *logits, uint32_t n, int32_t token, float was)
{
    if (token >= 0 && (uint32_t)token < n) logits[token] = was;
}

segue_status sg_choose_kept(struct sg_chooser *c, const struct sg_sampler *s, float *logits, float *scratch,
                            uint64_t position, int32_t *token, segue_logprob *logprobs, size_t *logprobs_n,
                            segue_error *err)
{
    float was[SAVED];
    if (!changes_few(s)) {
        memcpy(scratch, logits, c->vocab * sizeof *scratch);
        return sg_choose(c, s, scratch, position, token, logprobs, logprobs_n, err);
    }
    size_t biases = s->p.bias_n, stops = s->p.ignore_stops ? s->stops_n : 0;
    for (size_t i = 0; i < biases + stops; i++)
        was[i] = logit_get(logits, c->vocab, i < biases ? s->p.bias[i].token : s->stops[i - biases]);
    segue_status status = sg_choose(c, s, logits, position, token, logprobs, logprobs_n, err);
    for (size_t i = 0; i < biases + stops; i++)
        logit_set(logits, c->vocab, i < biases ? s->p.bias[i].token : s->stops[i - biases], was[i]);
    return status;
}
