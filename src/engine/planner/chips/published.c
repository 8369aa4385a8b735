/* published.c: see published.h. Every time is a sum of terms: weights over bandwidth, multiplications over speed, a cost per
 * layer or program, a cost per token on the host, and what a new process pays once.
 * SPDX-License-Identifier: MIT */
#include "engine/planner/chips/published.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* The chip with 76 GPU cores, to which the prefill constants of llama.cpp and the assumed power of a GPU refer. */
#define REFERENCE_TFLOPS 27.2
#define REFERENCE_CORES 76
#define REFERENCE_GB_S 800

enum { QUANT_ROWS = 32, FEW_ROWS = 12, NPU_ROWS = 32, NPU_PROGRAMS = 3, LLAMA_TOKENS = 512 };

/* Bytes over GB/s in ms. */
static double transfer_ms(double bytes, double gb_s) { return bytes / gb_s * 1e-6; }
/* Multiplications of `weights` with `rows` rows at TFLOPS, in ms. */
static double product_ms(double weights, double rows, double tflops) { return 2 * weights * rows / tflops * 1e-9; }

static double weights_of(const struct sg_published_task *t) { return t->shape->body + t->shape->head; }
static double constant(const struct sg_published_task *t, int i) { return t->chip->constant[i]; }
static double gpu_gb_s(const struct sg_published_task *t) { return t->chip->spec[SG_SPEC_GB_S] * constant(t, SG_CHIP_STREAM); }
static double mlx_tflops(const struct sg_published_task *t)
{
    return t->chip->spec[SG_SPEC_GPU_TFLOPS] * constant(t, SG_CHIP_MATMUL);
}

/* The delta matrices of a token, in fp32, are read and written. */
static double state_ms(const struct sg_published_task *t) { return transfer_ms(2 * 4 * t->shape->state, gpu_gb_s(t)); }

/* A decode step of MLX at depth `tokens`. widened: see the task. */
static double mlx_step(const struct sg_published_task *t, double tokens, int widened)
{
    double bytes = weights_of(t) * (widened ? t->shared[SG_MLX_CAST] : t->bytes);
    double own = t->pipeline == SG_PIPE_MLX_LM ? 0 : t->shared[SG_MLX_STEP];
    return t->shape->layers * t->shared[SG_MLX_LAYER] + own + transfer_ms(bytes + 2 * t->shape->kv * tokens, gpu_gb_s(t)) +
           state_ms(t);
}

/* Buffers for weights cast to fp32, allocated at first use. */
static double cast_buffers_ms(const struct sg_published_task *t)
{
    return transfer_ms(4 * weights_of(t), constant(t, SG_CHIP_ALLOC));
}

/* Quantised products work row by row below a dozen rows, and in tiles above. */
static double mlx_prefill(const struct sg_published_task *t)
{
    double n = t->prompt, base = mlx_step(t, n, t->widened), quantised = t->bytes < 2 && !t->widened;
    double buffers = t->widened ? cast_buffers_ms(t) : 0;
    if (quantised && n < FEW_ROWS)
        return base + (n - 1) * t->shared[SG_MLX_ROW] * transfer_ms(weights_of(t) * t->bytes, gpu_gb_s(t));
    double rows = quantised ? ceil(n / QUANT_ROWS) * QUANT_ROWS : n + t->shared[SG_MLX_TILE];
    double speed = t->widened ? t->shared[SG_MLX_F32] : quantised ? t->shared[SG_MLX_QUANT] : 1;
    return base + product_ms(t->shape->body, rows, mlx_tflops(t) * speed) + buffers;
}

/* What the first decode step costs more, spread over the steps after the first token. */
static double first_step_ms(const struct sg_published_task *t, double once) { return once / fmax(1, t->output - 1); }

static double npu_step(const struct sg_published_task *t)
{
    return t->shape->layers * constant(t, SG_CHIP_NPU_STEP) + transfer_ms(2 * weights_of(t), constant(t, SG_CHIP_NPU_STREAM));
}

/* Three programs per layer and block of 32 tokens; host work per token; the first read of all weights. */
static double npu_batch_prefill(const struct sg_published_task *t)
{
    double blocks = ceil(t->prompt / NPU_ROWS), layers = t->shape->layers;
    double block = NPU_PROGRAMS * layers * constant(t, SG_CHIP_NPU_PROGRAM) +
                   transfer_ms(2 * t->shape->body, constant(t, SG_CHIP_NPU_STREAM));
    return transfer_ms(2 * weights_of(t), constant(t, SG_CHIP_NPU_TOUCH)) + blocks * block +
           t->prompt * layers * constant(t, SG_CHIP_NPU_TOKEN);
}

static double mlx_load(const struct sg_published_task *t)
{
    return 1e3 * (t->shared[SG_MLX_START] + t->shared[SG_MLX_LOAD] * weights_of(t) * 2e-9);
}

static double npu_load(const struct sg_published_task *t)
{
    return 1e3 * (t->shared[SG_NPU_START] + constant(t, SG_CHIP_NPU_LOAD) * weights_of(t) * 2e-9);
}

/* The smallest of the fixed lengths; 0: the prompt is longer than all. */
static double fixed_length(double prompt) { return prompt <= 64 ? 64 : prompt <= 256 ? 256 : prompt <= 512 ? 512 : 0; }

static void gpu_power(const struct sg_published_task *t, struct sg_published_cost *c)
{
    double base = constant(t, SG_CHIP_GPU_W), j = constant(t, SG_CHIP_GPU_J), cores = t->chip->spec[SG_SPEC_GPU_CORES];
    /* What is assumed of a waiting GPU is that of the reference. */
    if (t->chip->source[SG_CHIP_GPU_W] == SG_SOURCE_PRIOR && cores > 0) base *= cores / REFERENCE_CORES;
    c->cpu_w = constant(t, SG_CHIP_CPU_W);
    c->step_gpu_w = base + j * weights_of(t) * 1e-9 / (c->step_ms * 1e-3);
    c->prefill_gpu_w = t->prompt > 0 ? base + j * t->shape->body * 1e-9 * t->prompt / (c->prefill_ms * 1e-3) : 0;
}

static void llama(const struct sg_published_task *t, struct sg_published_cost *c)
{
    double gb_s = t->chip->spec[SG_SPEC_GB_S], tflops = t->chip->spec[SG_SPEC_GPU_TFLOPS], scale = REFERENCE_TFLOPS / tflops;
    double n = t->prompt > 0 ? t->prompt : LLAMA_TOKENS, millions = t->shape->state * 1e-6;
    double around = t->shape->layers * t->shared[SG_LLAMA_LAYER_PRE] + millions * t->shared[SG_LLAMA_STATE_PRE];
    c->step_ms = t->shape->layers * t->shared[SG_LLAMA_LAYER] + transfer_ms(weights_of(t) * t->bytes, gpu_gb_s(t)) + state_ms(t) +
                 millions * t->shared[SG_LLAMA_STATE] * REFERENCE_GB_S / gb_s;
    c->prefill_ms = product_ms(t->shape->body, n, mlx_tflops(t) * t->shared[SG_LLAMA_MATMUL]) + around * scale * n / LLAMA_TOKENS;
    if (t->unpacked)
        c->prefill_ms += t->shared[SG_LLAMA_UNPACK] * weights_of(t) * t->bytes * 1e-9 * scale * ceil(n / LLAMA_TOKENS);
    gpu_power(t, c);
}

static const char *coreml(const struct sg_published_task *t, struct sg_published_cost *c)
{
    double s = fixed_length(t->prompt);
    if (!s) return "the fixed-length pipeline takes at most 512 tokens";
    c->prefill_ms = t->shared[SG_COREML_FIXED] + product_ms(t->shape->body, s, t->shared[SG_COREML_TFLOPS]) +
                    t->shared[SG_COREML_SQUARE] * 1e-3 * s * s;
    c->step_ms = mlx_step(t, 0, t->widened);
    return NULL;
}

static void cold(const struct sg_published_task *t, struct sg_published_cost *c)
{
    c->prefill_ms = mlx_prefill(t) + t->shared[SG_MLX_COLD];
    c->step_ms = mlx_step(t, t->prompt, t->widened) + first_step_ms(t, t->shared[SG_MLX_FIRST] * (t->widened ? 2 : 1));
    c->load_ms = mlx_load(t);
}

/* The state of the file is fp32, so a 16-bit decoder widens every weight, and the process has not used its GPU before. */
static void batch_gpu(const struct sg_published_task *t, struct sg_published_cost *c)
{
    c->prefill_ms = npu_batch_prefill(t);
    c->step_ms = mlx_step(t, t->prompt, 1) + first_step_ms(t, t->shared[SG_MLX_COLD_FIRST] + cast_buffers_ms(t));
    c->handoff_ms = t->shared[SG_FILE_HANDOFF];
    c->load_ms = mlx_load(t) + npu_load(t);
}

const char *sg_published_cost(const struct sg_published_task *t, struct sg_published_cost *out)
{
    struct sg_published_cost c = {0};
    const char *why = NULL;
    if (t->chip->spec[SG_SPEC_GB_S] <= 0 || t->chip->spec[SG_SPEC_GPU_TFLOPS] <= 0)
        return "the chip file states no memory_gb_s or no gpu_tflops";
    switch (t->pipeline) {
    case SG_PIPE_GPU:
    case SG_PIPE_MLX_LM:
        c.step_ms = mlx_step(t, t->prompt, t->widened);
        if (t->prompt > 0) c.prefill_ms = mlx_prefill(t);
        gpu_power(t, &c);
        break;
    case SG_PIPE_GPU_COLD:
        cold(t, &c);
        break;
    case SG_PIPE_FIXED:
        why = coreml(t, &c);
        break;
    case SG_PIPE_NPU_SEQ:
        c.step_ms = npu_step(t);
        c.prefill_ms = t->prompt * c.step_ms;
        break;
    case SG_PIPE_SEQ_GPU:
        c.step_ms = mlx_step(t, t->prompt, t->widened);
        c.prefill_ms = t->prompt * npu_step(t);
        c.handoff_ms = t->shared[SG_FILE_HANDOFF];
        break;
    case SG_PIPE_NPU_BATCH:
        c.step_ms = npu_step(t) * t->shared[SG_NPU_FORK];
        c.prefill_ms = npu_batch_prefill(t);
        c.load_ms = npu_load(t);
        break;
    case SG_PIPE_BATCH_GPU:
        batch_gpu(t, &c);
        break;
    case SG_PIPE_LLAMA:
        llama(t, &c);
        break;
    default:
        return "the pipeline is not known";
    }
    *out = c;
    return why;
}

enum sg_pipeline sg_pipeline_find(const char *label)
{
    static const char *const labels[SG_PIPE_N] = {
        [SG_PIPE_GPU] = "P1",     [SG_PIPE_GPU_COLD] = "P1c", [SG_PIPE_MLX_LM] = "P1 (mlx_lm)",
        [SG_PIPE_FIXED] = "P2",   [SG_PIPE_NPU_SEQ] = "P3",   [SG_PIPE_NPU_BATCH] = "P3B",
        [SG_PIPE_SEQ_GPU] = "P4", [SG_PIPE_BATCH_GPU] = "P5", [SG_PIPE_LLAMA] = "llama.cpp Metal",
    };
    int i = 0;
    while (i < SG_PIPE_N && strcasecmp(labels[i], label) != 0) i++;
    return (enum sg_pipeline)i;
}

const char *sg_published_metric(const struct sg_published_task *t, const char *metric, double *out)
{
    struct sg_published_cost c;
    const char *why = sg_published_cost(t, &c);
    if (why) return why;
    int llama_rate = t->pipeline == SG_PIPE_LLAMA, prompt = t->prompt > 0 && c.prefill_ms > 0;
    double steps = c.step_ms * t->output, all = c.prefill_ms + steps;
    if (!strcmp(metric, "decode_tok_s")) return *out = 1e3 / c.step_ms, NULL;
    if (!strcmp(metric, "ms_per_token")) return *out = c.step_ms, NULL;
    if (!prompt && !llama_rate) return "the cell states no prompt length";
    if (!strcmp(metric, "ttft_ms") || !strcmp(metric, "prefill_ms")) return *out = c.prefill_ms, NULL;
    if (!strcmp(metric, "prefill_tok_s")) return *out = (prompt ? t->prompt : LLAMA_TOKENS) / c.prefill_ms * 1e3, NULL;
    if (!strcmp(metric, "handoff_ms")) return *out = c.handoff_ms, c.handoff_ms > 0 ? NULL : "the pipeline has no hand-off";
    if (!strcmp(metric, "total_ms"))
        return *out = c.load_ms + c.handoff_ms + all, t->output > 0 ? NULL : "no number of new tokens";
    if (!strncmp(metric, "avg_", 4) && c.step_gpu_w <= 0) return "no power was published for this pipeline";
    double gpu_w = (c.prefill_gpu_w * c.prefill_ms + c.step_gpu_w * steps) / all;
    if (!strcmp(metric, "avg_gpu_w")) return *out = gpu_w, NULL;
    if (!strcmp(metric, "avg_total_w")) return *out = gpu_w + c.cpu_w, NULL;
    return "the metric is not known";
}
