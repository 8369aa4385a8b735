/* gemma3.c: Gemma 3 (text): norms before and after attention and MLP, stored as w - 1 by Hugging
 * Face; most layers have a sliding window and another rotary base; embeddings are multiplied by the
 * square root of the width.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "model/family.h"

/* Published image-and-text files omit values that equal the default of their Hugging Face class,
 * hence the fallbacks. */
static const struct sg_number_row numbers[] = {
    {SG_COUNT(heads), .hf = {"num_attention_heads"}, .gguf = "attention.head_count", .fallback = 8,
     .min = 1, .max = 65536},
    {SG_COUNT(kv_heads), .hf = {"num_key_value_heads"}, .gguf = "attention.head_count_kv", .fallback = 4,
     .min = 1, .max = 65536},
    {SG_COUNT(vocab), .hf = {"vocab_size"}, .fallback = 262208, .min = 1, .max = 1 << 24},
    {SG_COUNT(context), .hf = {"max_position_embeddings"}, .gguf = "context_length", .fallback = 131072,
     .min = 1, .max = 1 << 30},
    {SG_COUNT(head_width), .hf = {"head_dim"}, .gguf = "attention.key_length", .fallback = 256, .min = 2,
     .max = 65536},
    {SG_COUNT(window), .hf = {"sliding_window"}, .gguf = "attention.sliding_window", .fallback = 4096,
     .max = 1 << 30},
    {SG_COUNT(window_every), .hf = {"sliding_window_pattern", "_sliding_window_pattern"},
     .gguf = "attention.sliding_window_pattern", .fallback = 6, .min = 1, .max = 4096},
    /* Config keys that Gemma 2 introduced; Gemma 3 files set the soft caps to null. */
    {SG_REAL(attention_scalar), .hf = {"query_pre_attn_scalar"}, .min = 1e-3, .max = 1e6},
    {SG_REAL(attention_softcap), .hf = {"attn_logit_softcapping"}, .gguf = "attn_logit_softcapping",
     .max = 1e6},
    {SG_REAL(final_softcap), .hf = {"final_logit_softcapping"}, .gguf = "final_logit_softcapping",
     .max = 1e6},
    /* The rotary base of sliding layers; that of full layers is rope_theta. */
    {SG_REAL(local_theta), .hf = {"rope_local_base_freq"}, .gguf = "rope.freq_base_swa", .fallback = 10000,
     .min = 1, .max = 1e12},
    {SG_ACT(act), .hf = {"hidden_activation", "hidden_act"}, .fallback = SG_ACT_GELU_TANH},
    /* Embedding models of the family attend in both directions, which is not supported. */
    {SG_ONLY("use_bidirectional_attention", 0)},
    {0},
};

/* The feed-forward norm is named differently from llama's, and post_attention_layernorm is a norm
 * after attention. */
static const struct sg_tensor_row tensors[] = {
    {SG_TENSOR(SG_FINAL_NORM, 0, "norm.weight", "output_norm.weight", NULL, "width"), .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_ATTN_NORM, SG_LAYER_ANY, "layers.%u.input_layernorm.weight", "blk.%u.attn_norm.weight",
               NULL, "width"),
     .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_Q_NORM, SG_LAYER_ANY, "layers.%u.self_attn.q_norm.weight", "blk.%u.attn_q_norm.weight",
               NULL, "head_width"),
     .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_K_NORM, SG_LAYER_ANY, "layers.%u.self_attn.k_norm.weight", "blk.%u.attn_k_norm.weight",
               NULL, "head_width"),
     .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_ATTN_POST_NORM, SG_LAYER_ANY, "layers.%u.post_attention_layernorm.weight",
               "blk.%u.post_attention_norm.weight", NULL, "width"),
     .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_FFN_NORM, SG_LAYER_ANY, "layers.%u.pre_feedforward_layernorm.weight",
               "blk.%u.ffn_norm.weight", NULL, "width"),
     .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_FFN_POST_NORM, SG_LAYER_ANY, "layers.%u.post_feedforward_layernorm.weight",
               "blk.%u.post_ffw_norm.weight", NULL, "width"),
     .fix = SG_FIX_MINUS_ONE},
    {.role = SG_ROLE_NONE},
};

/* The factor on embeddings is not in the files. GGUF has no query_pre_attn_scalar; of the published
 * models, only the 27B (62 layers) has a value other than the head width. */
static segue_status derive(struct sg_numbers *n, unsigned gguf, segue_error *err)
{
    (void)err;
    n->embed_scale = sqrt(n->width);
    if (gguf && n->layers == 62) n->attention_scalar = (double)n->width / n->heads;
    return SEGUE_OK;
}

/* The second norm is applied before the residual addition, so the addition is a separate op. */
static int32_t layer(struct sg_layer *l, int32_t x)
{
    int32_t a = sg_layer_attention(l, sg_layer_norm(l, x, SG_ATTN_NORM), -1);
    x = sg_add(l->b, sg_whole(l->b, x), sg_whole(l->b, sg_layer_norm(l, a, SG_ATTN_POST_NORM)));
    int32_t f = sg_layer_mlp(l, sg_layer_norm(l, x, SG_FFN_NORM), -1);
    return sg_add(l->b, sg_whole(l->b, x), sg_whole(l->b, sg_layer_norm(l, f, SG_FFN_POST_NORM)));
}

const struct sg_family sg_family_gemma3 = {
    .name = "gemma3",
    .hf = (const char *const[]){"gemma3_text", "gemma3", "Gemma3ForCausalLM",
                                "Gemma3ForConditionalGeneration", NULL},
    .gguf = (const char *const[]){"gemma3", NULL},
    .numbers = {sg_decoder_numbers, numbers},
    .tensors = {sg_decoder_tensors, tensors},
    .theta = 1e6,
    .derive = derive,
    .layer = layer,
};
