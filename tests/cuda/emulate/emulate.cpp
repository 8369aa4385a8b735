/* emulate.cpp: executes the training kernels on the host, one block at a time, each thread of it a context with a stack. Barriers
 * and exchanges between the threads of a warp switch contexts. A missing barrier, or a read of what another block writes, is not
 * found here; wrong indices, bounds and sums are. The stub driver calls it for launches.
 * SPDX-License-Identifier: MIT */
#include "cuda_shim.h"

#include <stdlib.h>
#include <ucontext.h>

#include "unit/cuda/kernels/train/ktrain.h"

emulated_index threadIdx, blockIdx, blockDim, gridDim;

/* X(kernel, arguments) */
#define KERNELS(X)                                                                                                       \
    X(train_gemm_nt_64_0, ct_gemm) X(train_gemm_nn_64_0, ct_gemm) X(train_gemm_tn_64_0, ct_gemm)                         \
    X(train_gemm_nt_128_0, ct_gemm) X(train_gemm_nn_128_0, ct_gemm) X(train_gemm_tn_128_0, ct_gemm) X(train_sum, ct_sum) \
    X(train_embed, ct_embed) X(train_embed_back, ct_embed_back) X(train_norm, ct_norm) X(train_norm_back, ct_norm)       \
    X(train_rope, ct_rope) X(train_rope_back, ct_rope) X(train_small, ct_small) X(train_select, ct_rows)                 \
    X(train_select_back, ct_rows) X(train_columns, ct_columns) X(train_conv, ct_conv) X(train_conv_back, ct_conv)        \
    X(train_loss, ct_loss) X(train_adamw, ct_adamw) X(train_squares, ct_squares) X(train_scores_0, ct_attend)            \
    X(train_softmax, ct_attend) X(train_attend_out_0, ct_attend) X(train_gate_back, ct_attend)                           \
    X(train_dscores_0, ct_attend) X(train_softmax_back, ct_attend) X(train_dq_0, ct_attend) X(train_dk_0, ct_attend)     \
    X(train_dv_0, ct_attend) X(train_sinks, ct_attend) X(train_delta_prepare, ct_delta)                                  \
    X(train_delta_columns_128, ct_delta) X(train_delta_columns_256, ct_delta) X(train_delta_columns_back_128, ct_delta)  \
    X(train_delta_columns_back_256, ct_delta) X(train_delta_rows_128, ct_delta) X(train_delta_rows_256, ct_delta)        \
    X(train_delta_rows_back_128, ct_delta) X(train_delta_rows_back_256, ct_delta) X(train_delta_values, ct_delta)        \
    X(train_delta_decay, ct_delta) X(train_delta_keys, ct_delta) X(train_heads_sum, ct_heads_sum)

#define X(name, type) extern "C" void name(const type);
KERNELS(X)
#undef X

static const struct { const char *name; void (*run)(const void *args); } kernels[] = {
#define X(name, type) {#name, [](const void *args) { name(*static_cast<const type *>(args)); }},
    KERNELS(X)
#undef X
};

/* --- threads of a block --- */

enum { THREADS_MAX = 256, STACK = 1 << 16 };
enum wait { RUNS, AT_WARP, AT_BLOCK, DONE };

static struct {
    ucontext_t scheduler, context[THREADS_MAX];
    enum wait wait[THREADS_MAX];
    unsigned char exchanged[2][THREADS_MAX][8];
    unsigned turn[THREADS_MAX], now, threads;
    void (*run)(const void *args);
    const void *args;
    char *stacks;
} block;

static void yield_as(enum wait why)
{
    unsigned me = block.now;
    block.wait[me] = why;
    swapcontext(&block.context[me], &block.scheduler);
}

void __syncthreads() { yield_as(AT_BLOCK); }

void emulated_exchange(const void *mine, void *theirs, unsigned bytes, unsigned from_lane)
{
    unsigned me = block.now, turn = block.turn[me]++ % 2;
    memcpy(block.exchanged[turn][me], mine, bytes);
    yield_as(AT_WARP);
    memcpy(theirs, block.exchanged[turn][me / 32 * 32 + from_lane], bytes);
}

static void thread_main()
{
    unsigned me = block.now;
    block.run(block.args);
    block.wait[me] = DONE;
    setcontext(&block.scheduler);
}

/* Releases the threads [from, to) when all that are not done wait as `why`. */
static void release(unsigned from, unsigned to, enum wait why)
{
    for (unsigned i = from; i < to; i++)
        if (block.wait[i] != why && block.wait[i] != DONE) return;
    for (unsigned i = from; i < to; i++)
        if (block.wait[i] == why) block.wait[i] = RUNS;
}

static int step()
{
    int left = 0, ran = 0;
    for (unsigned i = 0; i < block.threads; i++) {
        if (block.wait[i] == RUNS) {
            block.now = i;
            ran = 1;
            threadIdx.x = i;
            swapcontext(&block.scheduler, &block.context[i]);
        }
        left |= block.wait[i] != DONE;
    }
    for (unsigned w = 0; w < block.threads; w += 32) release(w, w + 32 < block.threads ? w + 32 : block.threads, AT_WARP);
    release(0, block.threads, AT_BLOCK);
    if (left && !ran) abort(); /* threads wait for each other at different barriers */
    return left;
}

static void run_block()
{
    for (unsigned i = 0; i < block.threads; i++) {
        getcontext(&block.context[i]);
        block.context[i].uc_stack.ss_sp = block.stacks + (size_t)i * STACK;
        block.context[i].uc_stack.ss_size = STACK;
        makecontext(&block.context[i], thread_main, 0);
        block.wait[i] = RUNS;
        block.turn[i] = 0;
    }
    while (step()) continue;
}

/* Equal names, but for the last digit: how tensor cores multiply cannot be executed here. */
static bool is_kernel(const char *listed, const char *name)
{
    size_t n = strlen(listed);
    return !strcmp(listed, name) || (strlen(name) == n && name[n - 2] == '_' && !strncmp(listed, name, n - 1));
}

/* launch: blocks and threads in three dimensions. Kernels that are not listed do nothing. */
extern "C" void stub_emulate(const char *name, const unsigned *launch, const void *args)
{
    block.run = nullptr;
    for (const auto &k : kernels)
        if (is_kernel(k.name, name)) block.run = k.run;
    if (!block.run) return;
    if (launch[3] > THREADS_MAX || launch[4] != 1 || launch[5] != 1) abort();
    if (!block.stacks) block.stacks = static_cast<char *>(malloc((size_t)THREADS_MAX * STACK));
    if (!block.stacks) abort();
    block.args = args;
    block.threads = launch[3];
    gridDim = {launch[0], launch[1], launch[2]};
    blockDim = {launch[3], 1, 1};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) run_block();
}
