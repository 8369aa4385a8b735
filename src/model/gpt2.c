/* gpt2.c: GPT-2: learned position embeddings, layer norms with biases, one matrix for q, k and v.
 * Hugging Face stores its matrices as [in, out] (Conv1D), GGUF and MLX as [out, in].
 * SPDX-License-Identifier: MIT */
#include "model/family.h"

/* A complete table: GPT-2's keys in config.json differ from llama's. */
static const struct sg_number_row numbers[] = {
    {SG_COUNT(layers), .hf = {"n_layer"}, .gguf = "block_count", .required = 1, .min = 1, .max = 4096},
    {SG_COUNT(width), .hf = {"n_embd"}, .gguf = "embedding_length", .required = 1, .min = 1, .max = 1 << 20},
    {SG_COUNT(ff), .hf = {"n_inner"}, .gguf = "feed_forward_length", .min = 1, .max = 1 << 22},
    {SG_COUNT(heads), .hf = {"n_head"}, .gguf = "attention.head_count", .required = 1, .min = 1, .max = 65536},
    {SG_COUNT(vocab), .hf = {"vocab_size"}, .min = 1, .max = 1 << 24},
    {SG_COUNT(context), .hf = {"n_positions", "n_ctx"}, .gguf = "context_length", .required = 1, .min = 1,
     .max = 1 << 24},
    {SG_REAL(eps), .hf = {"layer_norm_epsilon"}, .gguf = "attention.layer_norm_epsilon", .fallback = 1e-5,
     .max = 0.1},
    {SG_ACT(act), .hf = {"activation_function"}, .fallback = SG_ACT_GELU_TANH},
    {SG_FLAG(tied), .hf = {"tie_word_embeddings"}, .fallback = 2},
    /* Options of the Hugging Face class that change the computation and are not supported. */
    {SG_ONLY("scale_attn_by_inverse_layer_idx", 0)},
    {SG_ONLY("add_cross_attention", 0)},
    {0},
};

/* Norms and linear layers all have biases. */
static const struct sg_tensor_row tensors[] = {
    {SG_TENSOR(SG_EMBED, 0, "wte.weight", "token_embd.weight", "vocab", "width")},
    {SG_TENSOR(SG_POSITIONS, 0, "wpe.weight", "position_embd.weight", "context", "width")},
    {SG_TENSOR(SG_FINAL_NORM, 0, "ln_f.weight", "output_norm.weight", NULL, "width"), .bias = SG_BIAS_MUST},
    {SG_TENSOR(SG_HEAD, 0, "/lm_head.weight", "output.weight", "vocab", "width")},
    {SG_TENSOR(SG_ATTN_NORM, SG_LAYER_ANY, "h.%u.ln_1.weight", "blk.%u.attn_norm.weight", NULL, "width"),
     .bias = SG_BIAS_MUST},
    {SG_TENSOR(SG_QKV, SG_LAYER_ANY, "h.%u.attn.c_attn.weight", "blk.%u.attn_qkv.weight", "3*width", "width"),
     .fix = SG_FIX_CONV1D, .bias = SG_BIAS_MUST},
    {SG_TENSOR(SG_O, SG_LAYER_ANY, "h.%u.attn.c_proj.weight", "blk.%u.attn_output.weight", "width", "width"),
     .fix = SG_FIX_CONV1D, .bias = SG_BIAS_MUST},
    {SG_TENSOR(SG_FFN_NORM, SG_LAYER_ANY, "h.%u.ln_2.weight", "blk.%u.ffn_norm.weight", NULL, "width"),
     .bias = SG_BIAS_MUST},
    {SG_TENSOR(SG_UP, SG_LAYER_ANY, "h.%u.mlp.c_fc.weight", "blk.%u.ffn_up.weight", "ff", "width"),
     .fix = SG_FIX_CONV1D, .bias = SG_BIAS_MUST},
    {SG_TENSOR(SG_DOWN, SG_LAYER_ANY, "h.%u.mlp.c_proj.weight", "blk.%u.ffn_down.weight", "width", "ff"),
     .fix = SG_FIX_CONV1D, .bias = SG_BIAS_MUST},
    {.role = SG_ROLE_NONE},
};

/* The MLP is four times as wide as the model unless n_inner is given. */
static segue_status derive(struct sg_numbers *n, unsigned gguf, segue_error *err)
{
    (void)gguf, (void)err;
    if (!n->ff) n->ff = 4 * n->width;
    return SEGUE_OK;
}

/* One projection computes q, k and v; attention reads them as column ranges of its result. */
static int32_t layer(struct sg_layer *l, int32_t x)
{
    uint32_t width = l->n->width;
    int32_t qkv = sg_layer_linear(l, sg_layer_norm(l, x, SG_ATTN_NORM), SG_QKV);
    int32_t a = sg_layer_attend(l, sg_columns(l->b, qkv, 0, width), sg_columns(l->b, qkv, width, width),
                                sg_columns(l->b, qkv, 2 * width, width), sg_absent());
    x = sg_layer_linear_add(l, a, SG_O, x);
    int32_t up = sg_layer_linear(l, sg_layer_norm(l, x, SG_FFN_NORM), SG_UP);
    return sg_layer_linear_add(l, sg_activate(l->b, sg_whole(l->b, up), (enum sg_act)l->n->act), SG_DOWN, x);
}

const struct sg_family sg_family_gpt2 = {
    .name = "gpt2",
    .hf = (const char *const[]){"gpt2", "GPT2LMHeadModel", NULL},
    .gguf = (const char *const[]){"gpt2", NULL},
    .numbers = {numbers},
    .tensors = {tensors},
    .norm = SG_NORM_LAYER,
    .learned_positions = 1,
    .derive = derive,
    .layer = layer,
};
