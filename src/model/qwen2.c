/* qwen2.c: Qwen2 and Qwen2.5: llama's layer with biases on q, k and v.
 * SPDX-License-Identifier: MIT */
#include "model/family.h"

/* The biases of q, k and v are required; config.json does not mention them. */
static const struct sg_number_row numbers[] = {
    {SG_FLAG(attention_bias), .fallback = 1},
    {SG_FLAG(output_bias), .fallback = 0},
    {0},
};

const struct sg_family sg_family_qwen2 = {
    .name = "qwen2",
    .hf = (const char *const[]){"qwen2", "Qwen2ForCausalLM", NULL},
    .gguf = (const char *const[]){"qwen2", NULL},
    .numbers = {sg_decoder_numbers, sg_window_numbers, numbers},
    .tensors = {sg_decoder_tensors},
    .layer = sg_layer_decoder,
};
