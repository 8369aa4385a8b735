/* published.h: the cost of the pipelines that others published: MLX, llama.cpp, Core ML and the Neural Engine on Apple chips.
 * A pure function of the constants of chip.h and the sizes of a model.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_PUBLISHED_H
#define SG_ENGINE_PUBLISHED_H

#include "engine/planner/chips/chip.h"
#include "engine/planner/chips/shape.h"

enum sg_pipeline {
    SG_PIPE_GPU,       /* P1: MLX, warm */
    SG_PIPE_GPU_COLD,  /* P1c: MLX, new process */
    SG_PIPE_MLX_LM,    /* P1 (mlx_lm): decode without the benchmark's loop */
    SG_PIPE_FIXED,     /* P2: Core ML prefill of 64, 256 or 512 tokens, GPU decode */
    SG_PIPE_NPU_SEQ,   /* P3: NPU, one token per program */
    SG_PIPE_NPU_BATCH, /* P3B: NPU, 32 tokens per program, NPU decode */
    SG_PIPE_SEQ_GPU,   /* P4: P3 prefill, GPU decode */
    SG_PIPE_BATCH_GPU, /* P5: P3B prefill, state file, GPU decode */
    SG_PIPE_LLAMA,     /* llama.cpp Metal */
    SG_PIPE_N
};

struct sg_published_task {
    const double *shared; /* SG_SHARED_N */
    const struct sg_chip *chip;
    const struct sg_shape *shape;
    double bytes; /* per weight */
    int unpacked; /* k-quants */
    int widened;  /* fp32 activations meet 16-bit weights, which the framework casts on every step */
    enum sg_pipeline pipeline;
    double prompt, output; /* tokens */
};

/* All times in ms, all powers in W. 0: not known for the pipeline. */
struct sg_published_cost {
    double prefill_ms;          /* as the source reports it: without the hand-off and the load */
    double step_ms;             /* mean of the generated tokens, with what only the first one costs */
    double handoff_ms, load_ms; /* load: process start and models; new processes only */
    double prefill_gpu_w, step_gpu_w, cpu_w;
};

/* 0: out is valid. Else why the cost is not known, a static text. */
const char *sg_published_cost(const struct sg_published_task *task, struct sg_published_cost *out);
/* SG_PIPE_N: not known. Labels as in the publications: "P1", "P1 (mlx_lm)", "llama.cpp Metal". */
enum sg_pipeline sg_pipeline_find(const char *label);
/* Value of a metric: ttft_ms, prefill_ms, prefill_tok_s, decode_tok_s, ms_per_token, total_ms, handoff_ms, avg_gpu_w,
 * avg_total_w. Returns NULL, or why it is not known. */
const char *sg_published_metric(const struct sg_published_task *task, const char *metric, double *out);

#endif
