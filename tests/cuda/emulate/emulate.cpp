/* emulate.cpp: executes the training kernels on the host, one block at a time, each thread of it a context with a stack. Barriers
 * and exchanges between the threads of a warp switch contexts. A missing barrier, or a read of what another block writes, is not
 * found here; wrong indices, bounds and sums are. The stub driver calls it for launches.
 * SPDX-License-Identifier: MIT */
#include "cuda_shim.h"

#include <stdlib.h>
#include <ucontext.h>

#include "unit/cuda/kernels/train/ktrain_bf16.h"

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
    X(train_delta_decay, ct_delta) X(train_delta_keys, ct_delta) X(train_heads_sum, ct_heads_sum)                        \
    X(train_bf16_widen, ct_convert) X(train_bf16_narrow, ct_convert) X(train_bf16_cast, ct_cast)                         \
    X(train_bf16_embed, ct_half_embed) X(train_bf16_embed_back, ct_half_embed_back)                                      \
    X(train_bf16_places_back, ct_half_embed_back) X(train_bf16_norm, ct_half_norm) X(train_bf16_norm_back, ct_half_norm) \
    X(train_bf16_norm_columns, ct_half_norm) X(train_bf16_columns, ct_half_columns) X(train_bf16_parts, ct_half_parts) X(train_bf16_rope, ct_half_rope)     \
    X(train_bf16_rope_back, ct_half_rope) X(train_bf16_small, ct_half_small) X(train_bf16_select, ct_half_rows)          \
    X(train_bf16_select_back, ct_half_rows) X(train_bf16_loss, ct_half_loss) X(train_flash_64, ct_flash)                 \
    X(train_flash_128, ct_flash) X(train_flash_queries_64, ct_flash) X(train_flash_queries_128, ct_flash)                \
    X(train_flash_keys_64, ct_flash) X(train_flash_keys_128, ct_flash)

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
    unsigned char exchanged[2][THREADS_MAX][24];
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

/* What all lanes of the warp gave, 24 bytes each. */
static const unsigned char (*gathered(const void *mine, unsigned bytes))[24]
{
    unsigned me = block.now, turn = block.turn[me]++ % 2;
    memcpy(block.exchanged[turn][me], mine, bytes);
    yield_as(AT_WARP);
    return &block.exchanged[turn][me / 32 * 32];
}

void emulated_exchange(const void *mine, void *theirs, unsigned bytes, unsigned from_lane)
{
    memcpy(theirs, gathered(mine, bytes)[from_lane], bytes);
}

/* --- tensor cores --- */

struct fragments { uint32_t a[4], b[2]; };

static float number(uint32_t pair, unsigned high)
{
    uint32_t bits = high ? pair & 0xffff0000u : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Lane (g, t) has rows g, g + 8 and columns 2t, 2t + 1 of C; element (i, k) of A is with lane (i % 8, k % 8 / 2). */
void emulated_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    fragments mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}}, all[32];
    const unsigned char(*from)[24] = gathered(&mine, sizeof mine);
    for (int l = 0; l < 32; l++) memcpy(&all[l], from[l], sizeof mine);
    unsigned lane = block.now % 32;
    for (unsigned e = 0; e < 4; e++) {
        unsigned i = lane / 4 + e / 2 * 8, j = lane % 4 * 2 + e % 2;
        for (unsigned k = 0; k < 16; k++)
            c[e] += number(all[i % 8 * 4 + k % 8 / 2].a[i / 8 + k / 8 * 2], k % 2) * number(all[j * 4 + k % 8 / 2].b[k / 8], k % 2);
    }
}

void emulated_matrices(uint32_t (&r)[4], const uint16_t *row, bool turned)
{
    const uint16_t *rows[32];
    const unsigned char(*from)[24] = gathered(&row, sizeof row);
    for (int l = 0; l < 32; l++) memcpy(&rows[l], from[l], sizeof row);
    unsigned g = block.now % 32 / 4, t = block.now % 4 * 2;
    for (unsigned m = 0; m < 4; m++)
        r[m] = turned ? rows[8 * m + t][g] | (uint32_t)rows[8 * m + t + 1][g] << 16
                      : rows[8 * m + g][t] | (uint32_t)rows[8 * m + g][t + 1] << 16;
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
