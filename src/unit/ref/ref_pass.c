/* ref_pass.c: helpers of the ops: operands, scratch, small tensors, activations, the dot product, threads.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <pthread.h>

#include "unit/ref/ref.h"

enum { LANES = 16, THREADS_MAX = 64 };

struct ref_view ref_view_of(const struct ref_pass *p, const struct sg_operand *x)
{
    if (x->value < 0) return (struct ref_view){0};
    uint32_t width = p->graph->values[x->value].width;
    return (struct ref_view){.data = p->values[x->value].data + x->at, .stride = width, .width = x->width};
}

void *ref_scratch(struct ref_pass *p, size_t n, size_t entry)
{
    void *memory = n <= SIZE_MAX / 2 / entry ? sg_arena_alloc(&p->scratch, n * entry) : NULL;
    if (!memory) sg_no_memory("scratch of an op", n * entry, p->err);
    return memory;
}

segue_status ref_vector(struct ref_pass *p, const struct sg_weight *w, const float **out)
{
    *out = NULL;
    if (w->tensor < 0) return SEGUE_OK;
    const struct sg_tensor *t = p->graph->tensors[w->tensor];
    float *numbers = ref_scratch(p, (size_t)t->rows * t->cols, sizeof *numbers);
    if (!numbers) return SEGUE_EMEMORY;
    sg_tensor_read(t, numbers);
    *out = numbers;
    return SEGUE_OK;
}

/* With ranks, the caller's cancel is read by sg_rank_sync_should_stop, so that all ranks stop after the same op. */
int ref_stopped(const struct ref_pass *p)
{
    return p->stop || (p->cancel && !p->rank_sync && atomic_load(p->cancel));
}

/* For large negative x, expf overflows to infinity and the result is 0. */
float ref_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* relu keeps NaN, so that damaged inputs stay visible. */
float ref_act(enum sg_act act, float x)
{
    switch (act) {
    case SG_ACT_SILU: return x * ref_sigmoid(x);
    case SG_ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case SG_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case SG_ACT_GELU_QUICK: return x * ref_sigmoid(1.702f * x);
    case SG_ACT_RELU: return x > 0 || isnan(x) ? x : 0;
    case SG_ACT_RELU2: return x > 0 || isnan(x) ? x * x : 0;
    case SG_ACT_SIGMOID: return ref_sigmoid(x);
    case SG_ACT_TANH: return tanhf(x);
    default: return x;
    }
}

/* The inner loop over LANES is what compilers vectorize; the order of additions is fixed in ref.h. */
float ref_dot(const float *a, const float *b, size_t n)
{
    float sums[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) sums[j] += a[i + j] * b[i + j];
    for (size_t j = 0; i + j < n; j++) sums[j] += a[i + j] * b[i + j];
    for (size_t half = LANES / 2; half; half /= 2)
        for (size_t j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

/* The range of an op that one thread computes. */
struct range_work {
    ref_range_fn run;
    void *work;
    uint32_t from, to;
};

static void *range_main(void *arg)
{
    struct range_work *p = arg;
    p->run(p->work, p->from, p->to);
    return NULL;
}

void ref_parallel(uint32_t threads, uint32_t n, ref_range_fn run, void *work)
{
    struct range_work ranges[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    if (threads > n) threads = n;
    if (threads < 2) {
        run(work, 0, n);
        return;
    }
    uint32_t started = 0;
    for (uint32_t i = 0; i < threads; i++)
        ranges[i] = (struct range_work){run, work, (uint32_t)((uint64_t)n * i / threads),
                                   (uint32_t)((uint64_t)n * (i + 1) / threads)};
    /* Ranges whose thread cannot be started are computed here. */
    while (started + 1 < threads && !pthread_create(&ids[started], NULL, range_main, &ranges[started]))
        started++;
    for (uint32_t i = started; i < threads; i++) range_main(&ranges[i]);
    for (uint32_t i = 0; i < started; i++) pthread_join(ids[i], NULL);
}
