/* qwen3.c: Qwen3 (dense): llama's layer with a norm of each query and key head before the rotary
 * embedding, and a head width that is independent of the model's width.
 * SPDX-License-Identifier: MIT */
#include "model/family.h"

/* 128 is the default of the Hugging Face class. */
static const struct sg_number_row numbers[] = {
    {SG_COUNT(head_width), .hf = {"head_dim"}, .gguf = "attention.key_length", .fallback = 128, .min = 2,
     .max = 65536},
    {0},
};

/* The head norms are required: without them the model would be another one. */
static const struct sg_tensor_row tensors[] = {
    {SG_TENSOR(SG_Q_NORM, SG_LAYER_ATTENDS, "layers.%u.self_attn.q_norm.weight", "blk.%u.attn_q_norm.weight",
               NULL, "head_width")},
    {SG_TENSOR(SG_K_NORM, SG_LAYER_ATTENDS, "layers.%u.self_attn.k_norm.weight", "blk.%u.attn_k_norm.weight",
               NULL, "head_width")},
    {.role = SG_ROLE_NONE},
};

const struct sg_family sg_family_qwen3 = {
    .name = "qwen3",
    .hf = (const char *const[]){"qwen3", "Qwen3ForCausalLM", NULL},
    .gguf = (const char *const[]){"qwen3", NULL},
    .numbers = {sg_decoder_numbers, sg_window_numbers, numbers},
    .tensors = {sg_decoder_tensors, tensors},
    .layer = sg_layer_decoder,
};
