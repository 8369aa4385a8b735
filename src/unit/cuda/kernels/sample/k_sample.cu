/* k_sample.cu: sampling of unit/sample.h for several rows, each with its own settings. All architectures.
 *
 * A job (the choice of one row, or its log-probabilities) has several blocks, each with a slice of the vocabulary. They meet
 * at barriers in global memory: blocks of a job are resident together, since the grid has no more blocks than fit.
 * Steps that keep a prefix of the sorted tokens are radix descents: every round counts the candidates, and adds their weights, in
 * 2,048 bins of an interval, and continues in the bin where the border is. As soon as few candidates are left (CK_SAMPLE_LIST),
 * they are listed, and the first block of the job sorts them and does the remaining steps as sample.c does. Sums are integers
 * (sample_math.h), so no order of additions matters, and the result is that of sample.c bit for bit.
 * SPDX-License-Identifier: MIT */
#include "k_sample_block.cuh"

/* Words of ck_sample_job.sums. The best candidate is stored inverted, so that 0 is "none". */
enum { BEST, WORST, SUM_A, SUM_B, SUM_C, SUM_D, SUM_E, SUMS };

/* A job as one block sees it. */
struct Job {
    const ck_sample *a;
    const ck_sampler *s;
    ck_sample_job *shared_memory;
    const float *x;            /* [vocab] raw logits, or those after the steps that change them */
    uint32_t row, rank, group; /* group: blocks of the job; rank: this block */
    uint32_t n, from, end;     /* tokens that may be chosen; this block's slice of the vocabulary */
    uint32_t turn, rounds;     /* barriers and rounds so far */
};

/* The tokens that are left after some steps: candidates up to `limit`; after a grid-wide typical step also of a distance below
 * `distance`, or of that distance and up to `tie_limit`. */
struct Set {
    uint64_t limit, tie_limit;
    double mean;
    float typical_top;
    uint32_t typical, distance;
};

/* All blocks of the job have arrived, and what they wrote before is visible. */
__device__ void meet(Job &j)
{
    __syncthreads();
    j.turn++;
    if (j.group > 1) {
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(&j.shared_memory->arrived, 1u);
            volatile uint32_t *arrived = &j.shared_memory->arrived;
            while (*arrived < j.turn * j.group) {}
            __threadfence();
        }
        __syncthreads();
    }
}

__device__ __forceinline__ uint64_t pack(const Job &j, float logit, uint32_t id)
{
    return (uint64_t)sg_order_of(logit) << j.a->id_bits | id;
}
__device__ __forceinline__ float logit_in(const Job &j, uint64_t c) { return sg_logit_of((uint32_t)(c >> j.a->id_bits)); }

__device__ __forceinline__ bool is_member(const Job &j, const Set &set, uint64_t c, float logit)
{
    if (c > set.limit || !(logit > -CUDART_INF_F)) return false;
    if (!set.typical) return true;
    uint32_t d = sg_distance_of(set.mean, SG_ADD(logit, -set.typical_top));
    return d < set.distance || (d == set.distance && c <= set.tie_limit);
}

/* Calls f(logit, candidate) for the slice's tokens that may be chosen; four loads are in flight. */
template <class F> __device__ __forceinline__ void for_slice(const Job &j, F f)
{
    uint32_t end = j.end < j.n ? j.end : j.n;
    for (uint32_t i = j.from + threadIdx.x; i < end; i += 4 * CK_SAMPLE_THREADS) {
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = i + k * CK_SAMPLE_THREADS < end ? __ldcg(j.x + i + k * CK_SAMPLE_THREADS) : -CUDART_INF_F;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k * CK_SAMPLE_THREADS < end) f(v[k], pack(j, v[k], i + k * CK_SAMPLE_THREADS));
    }
}

/* The border that a descent has found: candidates (keys) up to `high` are kept, `count` of them, where those of the bin may still
 * be too many if low < high. need: the count or mass that the border reaches; before: of the keys below `low`. */
struct Border {
    uint64_t low, high, need, before, count, total;
};

/* Finds the smallest key at which the cumulative count (by_count) or mass of the members reaches need_of(total). f(logit,
 * candidate, key, mass) returns membership. Ends early when no more than `few` keys are up to the end of the border's bin. */
template <class F, class N>
__device__ Border descend(Job &j, Bins &bins, uint64_t low, uint64_t high, int by_count, uint32_t few, F f, N need_of)
{
    Border b = {low, high, 0, 0, 0, 0};
    uint64_t count_before = 0;
    for (uint32_t round = 0;; round++) {
        uint64_t span = b.high - b.low;
        uint32_t shift = span < CK_SAMPLE_BINS ? 0 : 64 - __clzll((long long)span) - 11;
        uint64_t base = b.low, top = b.high;
        bins_clear(bins);
        for_slice(j, [&](float logit, uint64_t c) {
            uint64_t key, mass;
            if (f(logit, c, base, top, key, mass)) bins_add(bins, (uint32_t)(key - base >> shift), mass);
        });
        ck_sample_job *g = j.shared_memory;
        uint32_t use = j.rounds % 3, old = (j.rounds + 2) % 3;
        bins_flush(bins, g->count[use], g->mass[use]);
        meet(j);
        for (uint32_t i = j.rank * CK_SAMPLE_THREADS + threadIdx.x; i < CK_SAMPLE_BINS; i += j.group * CK_SAMPLE_THREADS) {
            g->count[old][i] = 0;
            g->mass[old][i] = 0;
        }
        j.rounds++;
        Crossing x = bins_load(bins, g->count[use], g->mass[use]);
        if (!round) {
            b.total = by_count ? x.count : x.mass;
            b.need = need_of(b.total);
        }
        x = bins_cross(bins, by_count, b.need - b.before, x);
        b.low = base + ((uint64_t)x.bin << shift);
        uint64_t last = b.low + ((1ull << shift) - 1);
        b.high = last < top ? last : top;
        b.count = count_before + x.count;
        count_before += x.count_before;
        b.before += by_count ? x.count_before : x.mass_before;
        if (b.count <= few || b.low == b.high) return b;
    }
}

/* --- steps that change logits: done by all blocks, with a barrier where one writes what others read --- */

/* Copies the slice to j.x with its biases, masked tokens and stop tokens. Sets `bad` for NaN and infinity. */
__device__ void edit_slice(const Job &j, float *x, int *bad)
{
    const ck_sampler *s = j.s;
    const float *raw = j.a->logits + (size_t)s->row * j.a->vocab;
    for (uint32_t i = j.from + threadIdx.x; i < j.end; i += CK_SAMPLE_THREADS) {
        float v = __ldcg(raw + i);
        *bad |= !(v < CUDART_INF_F);
        if (s->allowed && (i >= s->allowed_n || !(s->allowed[i / 32] >> i % 32 & 1))) v = -CUDART_INF_F;
        __stcg(x + i, v);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->bias_n; i += CK_SAMPLE_THREADS) {
        uint32_t id = (uint32_t)s->bias_tokens[i];
        if (id < j.from || id >= j.end || id >= j.n || (i && s->bias_tokens[i - 1] == (int32_t)id)) continue;
        float v = __ldcg(x + id);
        for (uint32_t k = i; k < s->bias_n && s->bias_tokens[k] == (int32_t)id; k++)
            v = sg_below_infinity(SG_ADD(v, s->biases[k]));
        __stcg(x + id, v);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->stops_n; i += CK_SAMPLE_THREADS) {
        uint32_t id = (uint32_t)s->stops[i];
        if (id >= j.from && id < j.end && id < j.n) __stcg(x + id, -CUDART_INF_F);
    }
}

/* Each block handles its share of the positions of the window: counts the tokens, and after the barrier the thread that takes
 * the count of a token changes its logit. */
__device__ void penalize(Job &j, float *x, uint32_t *counts)
{
    const ck_sampler *s = j.s;
    bool any = (s->repeat > 0 && s->repeat != 1) || s->frequency != 0 || s->presence != 0;
    uint32_t have = s->history_n, from = s->last_n < have ? have - s->last_n : 0;
    for (uint32_t i = from + j.rank * CK_SAMPLE_THREADS + threadIdx.x; any && i < have; i += j.group * CK_SAMPLE_THREADS) {
        uint32_t id = (uint32_t)__ldcg(s->history + i);
        if (id < j.n) atomicAdd(counts + id, 1u);
    }
    meet(j); /* also: the slices are complete */
    if (!any) return;
    for (uint32_t i = from + j.rank * CK_SAMPLE_THREADS + threadIdx.x; i < have; i += j.group * CK_SAMPLE_THREADS) {
        uint32_t id = (uint32_t)__ldcg(s->history + i);
        uint32_t count = id < j.n ? atomicExch(counts + id, 0u) : 0;
        if (count) __stcg(x + id, sg_penalized(__ldcg(x + id), s->repeat, s->frequency, s->presence, count));
    }
    meet(j);
}

__device__ __forceinline__ bool is_breaker(const ck_sampler *s, uint32_t id)
{
    return s->breakers && id < s->breakers_n && s->breakers[id];
}

/* DRY: the length of the longest common suffix of the history and of the history without its last `back` tokens, for every
 * `back`; counts[token that followed] = the maximum. Then as in penalize. */
__device__ void penalize_repetitions(Job &j, float *x, uint32_t *counts)
{
    const ck_sampler *s = j.s;
    __shared__ uint32_t until_breaker;
    if (!(s->dry_multiplier > 0) || s->dry_base < 1) return;
    uint32_t n = s->history_n, max = n < SG_MATCH_MAX ? n : SG_MATCH_MAX, share = j.group * CK_SAMPLE_THREADS;
    const int32_t *last = s->history + n - 1;
    if (threadIdx.x == 0) until_breaker = max;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < max; i += CK_SAMPLE_THREADS)
        if (is_breaker(s, (uint32_t)__ldcg(last - i))) atomicMin(&until_breaker, i);
    __syncthreads();
    uint32_t max_n = until_breaker;
    if (max_n < s->dry_allowed || n <= s->dry_allowed) return;
    for (uint32_t back = 1 + j.rank * CK_SAMPLE_THREADS + threadIdx.x; back < n; back += share) {
        uint32_t k = 0, next = (uint32_t)__ldcg(last + 1 - back);
        while (k < max_n && back + k < n && __ldcg(last - k) == __ldcg(last - back - k)) k++;
        if (k >= s->dry_allowed && next < j.n) atomicMax(counts + next, k);
    }
    meet(j);
    for (uint32_t i = j.rank * CK_SAMPLE_THREADS + threadIdx.x; i < n; i += share) {
        uint32_t id = (uint32_t)__ldcg(s->history + i), length = id < j.n ? atomicExch(counts + id, 0u) : 0;
        if (length && !is_breaker(s, id))
            __stcg(x + id, SG_ADD(__ldcg(x + id), -sg_dry_penalty(s->dry_multiplier, s->dry_base, s->dry_allowed, length)));
    }
    meet(j);
}

/* --- steps that choose --- */

/* The best and the worst candidate of the set, over all blocks. Returns false if it is empty. */
__device__ bool extremes(Job &j, const Set &set, int slot, uint64_t *scratch, uint64_t &best, uint64_t &worst)
{
    uint64_t inverse = 0, last = 0;
    for_slice(j, [&](float logit, uint64_t c) {
        if (!is_member(j, set, c, logit)) return;
        inverse = inverse > ~c ? inverse : ~c;
        last = last > c ? last : c;
    });
    inverse = block_max(inverse, scratch);
    last = block_max(last, scratch);
    if (threadIdx.x == 0 && inverse) {
        atomicMax((unsigned long long *)&j.shared_memory->sums[slot], (unsigned long long)inverse);
        atomicMax((unsigned long long *)&j.shared_memory->sums[slot + 1], (unsigned long long)last);
    }
    meet(j);
    inverse = __ldcg(&j.shared_memory->sums[slot]);
    best = ~inverse;
    worst = __ldcg(&j.shared_memory->sums[slot + 1]);
    return inverse != 0;
}

/* Lists the members with a key up to `high` (at most CK_SAMPLE_LIST); returns their number in the first block, 0 in the others,
 * which are done. */
template <class F> __device__ uint32_t list_few(Job &j, ListMemory &m, F f)
{
    if (threadIdx.x == 0) m.n = 0;
    __syncthreads();
    for_slice(j, [&](float logit, uint64_t c) {
        if (f(logit, c)) m.a[atomicAdd(&m.n, 1u)] = c;
    });
    __syncthreads();
    uint32_t n = m.n;
    if (threadIdx.x == 0 && n) m.at = atomicAdd(&j.shared_memory->listed, n);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += CK_SAMPLE_THREADS) __stcg(&j.shared_memory->list[m.at + i], m.a[i]);
    meet(j);
    if (j.rank) return 0;
    n = __ldcg(&j.shared_memory->listed);
    for (uint32_t i = threadIdx.x; i < n; i += CK_SAMPLE_THREADS) m.a[i] = __ldcg(&j.shared_memory->list[i]);
    __syncthreads();
    return n;
}

/* What the first block does with the listed candidates: steps from `step` on. need, mean and top belong to the first of them,
 * which began with more candidates than the listed ones. */
enum { STEP_TOP_K, STEP_TYPICAL, STEP_TOP_P, STEP_MIN_P, STEP_DRAW };
struct Rest {
    int step;
    uint64_t need;
    double mean;
    float top;
};

/* Weight of listed candidate i relative to `top`. */
__device__ __forceinline__ uint64_t listed_weight(const Job &j, const ListMemory &m, uint32_t i, float top, float inverse)
{
    return sg_weight_of(SG_ADD(logit_in(j, m.a[i]), -top), inverse);
}

/* Keeps the tokens of the shortest distances; see sample.c. The list is sorted. */
__device__ uint32_t list_typical(const Job &j, ListMemory &m, uint32_t n, const Rest &r)
{
    float top = r.top;
    double mean = r.mean;
    uint64_t need = r.need;
    if (r.step != STEP_TYPICAL) {
        uint64_t sum = 0, depths = 0;
        top = logit_in(j, m.a[0]);
        for (uint32_t i = threadIdx.x; i < n; i += CK_SAMPLE_THREADS) {
            uint64_t w = listed_weight(j, m, i, top, 1.0f);
            sum += w;
            depths += sg_weighted_depth(w, SG_ADD(logit_in(j, m.a[i]), -top));
        }
        sum = block_sum_64(sum, m.scratch);
        depths = block_sum_64(depths, m.scratch);
        mean = (double)depths / (double)sum;
        need = sg_part_of(j.s->typical_p, sum);
    }
    for (uint32_t i = threadIdx.x; i < n; i += CK_SAMPLE_THREADS)
        m.b[i] = (uint64_t)sg_distance_of(mean, SG_ADD(logit_in(j, m.a[i]), -top)) << 32 | i;
    __syncthreads();
    sort_list(m.b, n);
    uint32_t taken = list_cross(m, n, need, [&](uint32_t i) { return listed_weight(j, m, (uint32_t)m.b[i], top, 1.0f); });
    taken = taken < n ? taken + 1 : n;
    /* Those that are kept, in their order: the others become the largest key, and a sort moves them to the end. */
    for (uint32_t i = taken + threadIdx.x; i < n; i += CK_SAMPLE_THREADS) m.a[(uint32_t)m.b[i]] = ~0ull;
    __syncthreads();
    sort_list(m.a, n);
    return taken;
}

/* The remaining steps over the listed candidates, by the first block. Returns the token. */
__device__ uint32_t choose_listed(const Job &j, ListMemory &m, uint32_t n, const Rest &r, float uniform)
{
    const ck_sampler *s = j.s;
    const uint32_t id_mask = (1u << j.a->id_bits) - 1;
    sort_list(m.a, n);
    if (r.step == STEP_TOP_K && s->top_k && s->top_k < n) n = s->top_k;
    if (r.step <= STEP_TYPICAL && s->typical_p > 0 && s->typical_p < 1) n = list_typical(j, m, n, r);
    float top = r.step == STEP_TOP_P || r.step == STEP_DRAW ? r.top : logit_in(j, m.a[0]);
    if (r.step <= STEP_TOP_P && s->top_p > 0 && s->top_p < 1) {
        auto weight = [&](uint32_t i) { return listed_weight(j, m, i, top, 1.0f); };
        uint64_t need = r.need;
        if (r.step != STEP_TOP_P) need = sg_part_of(s->top_p, list_sum(m, n, weight));
        uint32_t last = list_cross(m, n, need, weight);
        if (last < n) n = last + 1;
    }
    if (r.step <= STEP_MIN_P && s->min_p > 0) {
        uint64_t least = sg_min_weight(s->min_p);
        uint32_t kept = n;
        for (uint32_t i = threadIdx.x; i < n; i += CK_SAMPLE_THREADS)
            if (i && listed_weight(j, m, i, top, 1.0f) < least && i < kept) kept = i;
        n = ~(uint32_t)block_max(~kept, m.scratch);
    }
    float inverse = sg_inverse_of(s->temperature);
    auto weight = [&](uint32_t i) { return listed_weight(j, m, i, top, inverse); };
    uint64_t need = r.need;
    if (r.step != STEP_DRAW) need = sg_draw_at(uniform, list_sum(m, n, weight)) + 1;
    uint32_t i = list_cross(m, n, need, weight);
    return (uint32_t)m.a[i < n ? i : n - 1] & id_mask;
}

/* Ends the job in this block. The last block leaves the job's memory zero for the next launch. */
__device__ void leave(Job &j)
{
    __shared__ int last;
    ck_sample_job *g = j.shared_memory;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&g->left, 1u) == j.group - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last) return;
    uint32_t dirty = (j.rounds + 2) % 3;
    for (uint32_t i = threadIdx.x; i < CK_SAMPLE_BINS; i += CK_SAMPLE_THREADS) {
        g->count[dirty][i] = 0;
        g->mass[dirty][i] = 0;
    }
    if (threadIdx.x < SUMS) g->sums[threadIdx.x] = 0;
    if (threadIdx.x == 0) g->arrived = g->left = g->bad = g->listed = 0;
}

/* Reports the outcome of the row: to the host, to choose_best, and to the history of the next step. */
__device__ void report(const Job &j, uint32_t status, uint32_t token)
{
    if (threadIdx.x || j.rank) return;
    const ck_sample *a = j.a;
    ck_sampler *s = a->samplers + j.row;
    ck_sampled *out = a->out + j.row;
    out->status = status;
    out->token = status ? -1 : (int32_t)token;
    if (!status) out->logit = __ldcg(a->logits + (size_t)s->row * a->vocab + token);
    a->best_value[j.row] = 0;
    a->best_index[j.row] = status ? 0xfffffffeu : token;
    if (s->history && s->history_n < s->history_cap && !status) s->history[s->history_n] = (int32_t)token;
    s->history_n++;
}

union Memory {
    Bins bins;
    ListMemory list;
};

/* Grid-wide typical step, for more candidates than a list holds: the border of the distances, and among tokens of that distance
 * the border in their order. Returns true when the few nearest are to be listed; else `set` is reduced. */
__device__ bool typical_wide(Job &j, Memory &m, Set &set, uint64_t &best, uint64_t &worst, Rest &r)
{
    const float top = logit_in(j, best);
    uint64_t sum = 0, depths = 0;
    for_slice(j, [&](float logit, uint64_t c) {
        if (!is_member(j, set, c, logit)) return;
        uint64_t w = sg_weight_of(SG_ADD(logit, -top), 1.0f);
        sum += w;
        depths += sg_weighted_depth(w, SG_ADD(logit, -top));
    });
    sum = block_sum_64(sum, m.bins.scratch);
    depths = block_sum_64(depths, m.bins.scratch);
    if (threadIdx.x == 0) {
        atomicAdd((unsigned long long *)&j.shared_memory->sums[SUM_A], (unsigned long long)sum);
        atomicAdd((unsigned long long *)&j.shared_memory->sums[SUM_B], (unsigned long long)depths);
    }
    meet(j);
    double mean = (double)__ldcg(&j.shared_memory->sums[SUM_B]) / (double)__ldcg(&j.shared_memory->sums[SUM_A]);
    uint64_t need = sg_part_of(j.s->typical_p, __ldcg(&j.shared_memory->sums[SUM_A]));
    auto nearest = [&](float logit, uint64_t c, uint64_t low, uint64_t high, uint64_t &key, uint64_t &mass) {
        if (!is_member(j, set, c, logit)) return false;
        key = sg_distance_of(mean, SG_ADD(logit, -top));
        if (key < low || key > high) return false;
        mass = sg_weight_of(SG_ADD(logit, -top), 1.0f);
        return true;
    };
    Border b = descend(j, m.bins, 0, 0x7fffffffull, 0, CK_SAMPLE_LIST, nearest, [&](uint64_t) { return need; });
    r = {STEP_TYPICAL, need, mean, top};
    if (b.count <= CK_SAMPLE_LIST) {
        set = {set.limit, ~0ull, mean, top, 1, (uint32_t)b.high};
        return true;
    }
    const uint32_t border = (uint32_t)b.high;
    const uint64_t rest = need - b.before;
    auto ties = [&](float logit, uint64_t c, uint64_t low, uint64_t high, uint64_t &key, uint64_t &mass) {
        if (c < low || c > high || !is_member(j, set, c, logit)) return false;
        if (sg_distance_of(mean, SG_ADD(logit, -top)) != border) return false;
        key = c;
        mass = sg_weight_of(SG_ADD(logit, -top), 1.0f);
        return true;
    };
    Border t = descend(j, m.bins, best, worst, 0, 0, ties, [&](uint64_t) { return rest; });
    set = {set.limit, t.high, mean, top, 1, border};
    extremes(j, set, SUM_C, m.bins.scratch, best, worst);
    return false;
}

/* The filters and the draw over more candidates than a list holds. Returns true when few are left, which the first block of the
 * job then handles (`set`, `r`); else *token is the choice. */
__device__ bool choose_wide(Job &j, Memory &m, Set &set, uint64_t best, uint64_t worst, Rest &r, float uniform, uint32_t *token)
{
    const ck_sampler *s = j.s;
    const float inverse = sg_inverse_of(s->temperature);
    float top = logit_in(j, best), scale = 1.0f;
    auto weighed = [&](float logit, uint64_t c, uint64_t low, uint64_t high, uint64_t &key, uint64_t &mass) {
        if (c < low || c > high || !is_member(j, set, c, logit)) return false;
        key = c;
        mass = sg_weight_of(SG_ADD(logit, -top), scale);
        return true;
    };
    auto counted = [&](float logit, uint64_t c, uint64_t low, uint64_t high, uint64_t &key, uint64_t &mass) {
        key = c;
        mass = 0;
        return c >= low && c <= high && is_member(j, set, c, logit);
    };
    Border b;
    if (s->top_k) {
        uint64_t k = s->top_k;
        b = descend(j, m.bins, best, worst, 1, CK_SAMPLE_LIST, counted, [&](uint64_t all) { return k < all ? k : all; });
        r = {STEP_TOP_K, 0, 0, top};
        set.limit = worst = b.high;
        if (b.count <= CK_SAMPLE_LIST) return true;
    }
    if (s->typical_p > 0 && s->typical_p < 1) {
        if (typical_wide(j, m, set, best, worst, r)) return true;
        top = logit_in(j, best);
    }
    if (s->top_p > 0 && s->top_p < 1) {
        float p = s->top_p;
        b = descend(j, m.bins, best, worst, 0, CK_SAMPLE_LIST, weighed, [&](uint64_t sum) { return sg_part_of(p, sum); });
        r = {STEP_TOP_P, b.need, 0, top};
        set.limit = worst = b.high;
        if (b.count <= CK_SAMPLE_LIST) return true;
    }
    if (s->min_p > 0) {
        uint64_t least = sg_min_weight(s->min_p), first = 0;
        for_slice(j, [&](float logit, uint64_t c) {
            if (c != best && is_member(j, set, c, logit) && sg_weight_of(SG_ADD(logit, -top), 1.0f) < least)
                first = first > ~c ? first : ~c;
        });
        first = block_max(first, m.bins.scratch);
        if (threadIdx.x == 0 && first) atomicMax((unsigned long long *)&j.shared_memory->sums[SUM_E], (unsigned long long)first);
        meet(j);
        first = __ldcg(&j.shared_memory->sums[SUM_E]);
        if (first) set.limit = worst = ~first - 1;
    }
    scale = inverse;
    b = descend(j, m.bins, best, worst, 0, CK_SAMPLE_LIST, weighed, [&](uint64_t sum) { return sg_draw_at(uniform, sum) + 1; });
    r = {STEP_DRAW, b.need, 0, top};
    set.limit = b.high;
    *token = (uint32_t)b.high & ((1u << j.a->id_bits) - 1);
    return b.count <= CK_SAMPLE_LIST;
}

/* The choice of one row. */
__device__ void choose_row(Job &j, Memory &m)
{
    const ck_sampler *s = j.s;
    const ck_sample *a = j.a;
    int bad = 0;
    const uint64_t position = (uint64_t)a->pass.place[a->pass.wanted[s->row]] + 1;
    j.n = s->limit < a->vocab ? s->limit : a->vocab;
    if (s->changed) {
        float *x = a->work + (size_t)j.row * a->vocab;
        uint32_t *counts = a->counts + (size_t)j.row * a->vocab;
        edit_slice(j, x, &bad);
        penalize(j, x, counts);
        penalize_repetitions(j, x, counts);
        j.x = x;
    } else {
        j.x = a->logits + (size_t)s->row * a->vocab;
        for (uint32_t i = j.from + threadIdx.x; i < j.end; i += CK_SAMPLE_THREADS) bad |= !(__ldcg(j.x + i) < CUDART_INF_F);
    }
    if (__syncthreads_or(bad) && threadIdx.x == 0) atomicOr(&j.shared_memory->bad, 1u);
    Set set = {~0ull, 0, 0, 0, 0, 0};
    uint64_t best, worst;
    uint32_t token = 0;
    bool any = extremes(j, set, BEST, m.bins.scratch, best, worst);
    if (__ldcg(&j.shared_memory->bad) || !any) return report(j, any || __ldcg(&j.shared_memory->bad) ? 1 : 2, 0);
    if (!(s->temperature > 0)) return report(j, 0, (uint32_t)best & ((1u << a->id_bits) - 1));
    Rest r;
    const float uniform = sg_uniform_of(s->seed, position);
    if (choose_wide(j, m, set, best, worst, r, uniform, &token)) {
        uint32_t n = list_few(j, m.list, [&](float logit, uint64_t c) { return is_member(j, set, c, logit); });
        if (j.rank) return;
        token = choose_listed(j, m.list, n, r, uniform);
    }
    report(j, 0, token);
}

/* The sum of weights of the row's raw logits, and its best tokens. */
__device__ void report_logprobs(Job &j, Memory &m)
{
    const ck_sample *a = j.a;
    const ck_sampler *s = j.s;
    uint32_t wanted = s->logprobs ? s->logprobs - 1 : 0;
    if (wanted > CK_SAMPLE_LOGPROBS) wanted = CK_SAMPLE_LOGPROBS;
    ck_sampled *out = a->out + j.row;
    Set all = {~0ull, 0, 0, 0, 0, 0};
    uint64_t best, worst, top_best;
    j.x = a->logits + (size_t)s->row * a->vocab;
    j.n = a->vocab;
    if (!extremes(j, all, BEST, m.bins.scratch, top_best, worst)) return;
    const float top = logit_in(j, top_best);
    uint64_t sum = 0;
    for_slice(j, [&](float logit, uint64_t) { sum += sg_weight_of(SG_ADD(logit, -top), 1.0f); });
    sum = block_sum_64(sum, m.bins.scratch);
    if (threadIdx.x == 0) atomicAdd((unsigned long long *)&j.shared_memory->sums[SUM_A], (unsigned long long)sum);
    j.n = s->limit < a->vocab ? s->limit : a->vocab;
    bool any = extremes(j, all, SUM_C, m.bins.scratch, best, worst);
    uint32_t n = 0;
    if (any && wanted) {
        auto counted = [&](float logit, uint64_t c, uint64_t low, uint64_t high, uint64_t &key, uint64_t &mass) {
            key = c;
            mass = 0;
            return c >= low && c <= high && logit > -CUDART_INF_F;
        };
        Border b = descend(j, m.bins, best, worst, 1, CK_SAMPLE_LIST, counted,
                           [&](uint64_t have) { return wanted < have ? wanted : have; });
        n = list_few(j, m.list, [&](float logit, uint64_t c) { return c <= b.high && logit > -CUDART_INF_F; });
        if (j.rank) return;
        sort_list(m.list.a, n);
        if (n > wanted) n = wanted;
    }
    if (j.rank) return;
    if (threadIdx.x < n) {
        out->best[threadIdx.x] = (int32_t)((uint32_t)m.list.a[threadIdx.x] & ((1u << a->id_bits) - 1));
        out->best_logits[threadIdx.x] = logit_in(j, m.list.a[threadIdx.x]);
    }
    if (threadIdx.x == 0) {
        out->top = top;
        out->sum = __ldcg(&j.shared_memory->sums[SUM_A]);
        out->best_n = n;
    }
}

/* First block of job `number`. */
__device__ __forceinline__ uint32_t first_block(const ck_sample_plan *p, uint32_t number)
{
    uint64_t others = gridDim.x - p->jobs;
    return number + (uint32_t)(others * p->weights[number] / p->weights[p->jobs]);
}

/* Grid: at least as many blocks as jobs; if more, all of them are resident at once: at most CK_SAMPLE_BLOCKS per multiprocessor. */
extern "C" __global__ void __launch_bounds__(CK_SAMPLE_THREADS, CK_SAMPLE_BLOCKS) sample_rows(const __grid_constant__ ck_sample a)
{
    __shared__ Memory m;
    launch_dependents();
    wait_for_inputs();
    if (a.series && a.pass.head->stopped) return;
    uint32_t number = 0;
    while (first_block(a.plan, number + 1) <= blockIdx.x) number++;
    uint32_t row = a.plan->row[number], first = first_block(a.plan, number), group = first_block(a.plan, number + 1) - first;
    uint32_t slice = (a.vocab + group - 1) / group, rank = blockIdx.x - first;
    Job j = {&a, a.samplers + row, a.jobs + number, nullptr, row, rank, group, 0, rank * slice, (rank + 1) * slice, 0, 0};
    if (j.from > a.vocab) j.from = a.vocab;
    if (j.end > a.vocab) j.end = a.vocab;
    if (a.plan->logprobs[number])
        report_logprobs(j, m);
    else
        choose_row(j, m);
    leave(j);
}
