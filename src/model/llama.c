/* llama.c: Llama 1 to 3.x, SmolLM2, Stories, and Mistral, which adds a sliding window. GGUF files
 * of this family store q and k rows for rotation of adjacent pairs, and Llama 3's frequency scaling
 * as a tensor of divisors.
 * SPDX-License-Identifier: MIT */
#include "model/family.h"

/* A window applies to all layers. Files with experts (Mixtral) have other layers and are refused by
 * the limit of 0. */
static const struct sg_number_row numbers[] = {
    {SG_COUNT(window), .hf = {"sliding_window"}, .gguf = "attention.sliding_window", .max = 1 << 30},
    {SG_NUMBER("expert_count", SG_NUMBER_COUNT, only), .hf = {"num_local_experts"}, .gguf = "expert_count"},
    {0},
};

/* Only GGUF files have the divisors. */
static const struct sg_tensor_row tensors[] = {
    {SG_TENSOR(SG_DIVISORS, 0, NULL, "rope_freqs.weight", NULL, "head_width/2"), .need = SG_NEED_MAY},
    {.role = SG_ROLE_NONE},
};

const struct sg_family sg_family_llama = {
    .name = "llama",
    .hf = (const char *const[]){"llama", "LlamaForCausalLM", "mistral", "MistralForCausalLM", NULL},
    .gguf = (const char *const[]){"llama", NULL},
    .numbers = {sg_decoder_numbers, numbers},
    .tensors = {sg_decoder_tensors, tensors},
    .interleaved = 1,
    .layer = sg_layer_decoder,
};
