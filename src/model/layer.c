/* layer.c: the building blocks of layer.h, and the tables and the layer of llama-like families.
 * Only appends ops; reads no tensor data, and depends on the file only in which norms are stored as
 * w - 1.
 * SPDX-License-Identifier: MIT */
#include "model/layer.h"

#include <math.h>

#include "model/family.h"

const struct sg_tensor *sg_layer_tensor(const struct sg_layer *l, enum sg_role role)
{
    return sg_model_weight(l->m, l->i, role)->weight;
}

const struct sg_tensor *sg_layer_bias(const struct sg_layer *l, enum sg_role role)
{
    return sg_model_weight(l->m, l->i, role)->bias;
}

/* Weight and bias are absent operands if the model does not have them. */
static int32_t norm(struct sg_layer *l, struct sg_operand x, enum sg_role role, uint32_t groups)
{
    struct sg_norm p = {.kind = l->m->family->norm, .eps = (float)l->n->eps, .groups = groups};
    p.weight = sg_weight_of(l->b, sg_layer_tensor(l, role));
    p.bias = sg_weight_of(l->b, sg_layer_bias(l, role));
    p.plus_one = sg_model_weight(l->m, l->i, role)->plus_one;
    return sg_norm(l->b, x, p, sg_absent());
}

int32_t sg_layer_norm(struct sg_layer *l, int32_t x, enum sg_role role)
{
    return norm(l, sg_whole(l->b, x), role, 1);
}

struct sg_operand sg_layer_heads_norm(struct sg_layer *l, struct sg_operand x, enum sg_role role,
                                      uint32_t heads)
{
    return sg_layer_tensor(l, role) ? sg_whole(l->b, norm(l, x, role, heads)) : x;
}

/* The op with the role's weight and bias. */
static int32_t linear(struct sg_layer *l, int32_t x, enum sg_role role, struct sg_operand residual)
{
    return sg_linear(l->b, sg_whole(l->b, x), sg_weight_of(l->b, sg_layer_tensor(l, role)),
                     sg_weight_of(l->b, sg_layer_bias(l, role)), residual);
}

int32_t sg_layer_linear(struct sg_layer *l, int32_t x, enum sg_role role)
{
    return linear(l, x, role, sg_absent());
}

int32_t sg_layer_linear_add(struct sg_layer *l, int32_t x, enum sg_role role, int32_t residual)
{
    return linear(l, x, role, residual < 0 ? sg_absent() : sg_whole(l->b, residual));
}

struct sg_operand sg_layer_rope(struct sg_layer *l, struct sg_operand x, uint32_t heads)
{
    return sg_whole(l->b, sg_rope(l->b, x, heads, l->rope));
}

/* n->attention_scalar is positive: derive in numbers.c sets the default. */
int32_t sg_layer_attend(struct sg_layer *l, struct sg_operand q, struct sg_operand k, struct sg_operand v,
                        struct sg_operand gate)
{
    const struct sg_numbers *n = l->n;
    struct sg_attend p = {
        .heads = n->heads, .kv_heads = n->kv_heads, .d = n->head_width, .dv = n->value_width};
    p.scale = (float)(1.0 / sqrt(n->attention_scalar));
    p.softcap = (float)n->attention_softcap;
    p.window = l->kind == SG_LAYER_SLIDING ? n->window : 0;
    p.sinks = sg_weight_of(l->b, NULL);
    return sg_attend(l->b, q, k, v, p, gate);
}

/* Absent head norms leave q and k unchanged, so that llama and qwen3 share this function. */
int32_t sg_layer_attention(struct sg_layer *l, int32_t h, int32_t residual)
{
    const struct sg_numbers *n = l->n;
    struct sg_operand q = sg_whole(l->b, sg_layer_linear(l, h, SG_Q));
    struct sg_operand k = sg_whole(l->b, sg_layer_linear(l, h, SG_K));
    struct sg_operand v = sg_whole(l->b, sg_layer_linear(l, h, SG_V));
    q = sg_layer_rope(l, sg_layer_heads_norm(l, q, SG_Q_NORM, n->heads), n->heads);
    k = sg_layer_rope(l, sg_layer_heads_norm(l, k, SG_K_NORM, n->kv_heads), n->kv_heads);
    return sg_layer_linear_add(l, sg_layer_attend(l, q, k, v, sg_absent()), SG_O, residual);
}

int32_t sg_layer_mlp(struct sg_layer *l, int32_t h, int32_t residual)
{
    struct sg_operand gate = sg_whole(l->b, sg_layer_linear(l, h, SG_GATE));
    struct sg_operand up = sg_whole(l->b, sg_layer_linear(l, h, SG_UP));
    return sg_layer_linear_add(l, sg_glu(l->b, gate, up, (enum sg_act)l->n->act), SG_DOWN, residual);
}

/* Pre-norm: each block reads the normalised residual stream and adds to the original one. */
int32_t sg_layer_decoder(struct sg_layer *l, int32_t x)
{
    x = sg_layer_attention(l, sg_layer_norm(l, x, SG_ATTN_NORM), x);
    return sg_layer_mlp(l, sg_layer_norm(l, x, SG_FFN_NORM), x);
}

/* The keys of llama-like models. Fallbacks of 0 are replaced in numbers.c: head_width by width /
 * heads, value_width by head_width, kv_heads by heads. */
const struct sg_number_row sg_decoder_numbers[] = {
    {SG_COUNT(layers), .hf = {"num_hidden_layers"}, .gguf = "block_count", .required = 1, .min = 1,
     .max = 4096},
    {SG_COUNT(width), .hf = {"hidden_size"}, .gguf = "embedding_length", .required = 1, .min = 1,
     .max = 1 << 20},
    {SG_COUNT(ff), .hf = {"intermediate_size"}, .gguf = "feed_forward_length", .required = 1, .min = 1,
     .max = 1 << 22},
    {SG_COUNT(heads), .hf = {"num_attention_heads"}, .gguf = "attention.head_count", .required = 1, .min = 1,
     .max = 65536},
    {SG_COUNT(kv_heads), .hf = {"num_key_value_heads"}, .gguf = "attention.head_count_kv", .min = 1,
     .max = 65536},
    /* Widths of one head; values have the width of keys unless GGUF says otherwise. */
    {SG_COUNT(head_width), .hf = {"head_dim"}, .gguf = "attention.key_length", .min = 2, .max = 65536},
    {SG_COUNT(value_width), .gguf = "attention.value_length", .min = 1, .max = 65536},
    {SG_COUNT(vocab), .hf = {"vocab_size"}, .min = 1, .max = 1 << 24},
    {SG_COUNT(context), .hf = {"max_position_embeddings"}, .gguf = "context_length", .required = 1, .min = 1,
     .max = 1 << 30},
    {SG_REAL(eps), .hf = {"rms_norm_eps"}, .gguf = "attention.layer_norm_rms_epsilon", .fallback = 1e-6,
     .max = 0.1},
    {SG_REAL(rotated_share), .hf = {"partial_rotary_factor"}, .fallback = 1, .min = 1e-6, .max = 1},
    {SG_ACT(act), .hf = {"hidden_act", "hidden_activation"}, .fallback = SG_ACT_SILU},
    /* 2: not specified; weights.c then uses the embedding if the file has no separate head. */
    {SG_FLAG(tied), .hf = {"tie_word_embeddings"}, .fallback = 2},
    /* config.json has one key for the biases of q, k, v and of the output projection. */
    {SG_FLAG(attention_bias), .hf = {"attention_bias"}},
    {SG_FLAG(output_bias), .hf = {"attention_bias"}},
    {SG_FLAG(mlp_bias), .hf = {"mlp_bias"}},
    {0},
};

/* Qwen files contain a window that use_sliding_window disables. */
const struct sg_number_row sg_window_numbers[] = {
    {SG_FLAG(use_window), .hf = {"use_sliding_window"}},
    {SG_COUNT(window), .hf = {"sliding_window"}, .max = 1 << 30},
    {SG_COUNT(window_from), .hf = {"max_window_layers"}, .max = 1 << 20},
    {0},
};

/* SG_FIX_INTERLEAVED on q and k takes effect for families with `interleaved` only. */
const struct sg_tensor_row sg_decoder_tensors[] = {
    {SG_TENSOR(SG_EMBED, 0, "embed_tokens.weight", "token_embd.weight", "vocab", "width")},
    {SG_TENSOR(SG_FINAL_NORM, 0, "norm.weight", "output_norm.weight", NULL, "width")},
    {SG_TENSOR(SG_HEAD, 0, "/lm_head.weight", "output.weight", "vocab", "width")},
    {SG_TENSOR(SG_ATTN_NORM, SG_LAYER_ANY, "layers.%u.input_layernorm.weight", "blk.%u.attn_norm.weight",
               NULL, "width")},
    {SG_TENSOR(SG_Q, SG_LAYER_ATTENDS, "layers.%u.self_attn.q_proj.weight", "blk.%u.attn_q.weight",
               "heads*head_width", "width"),
     .fix = SG_FIX_INTERLEAVED, .bias = SG_BIAS_MAY, .bias_if = "attention_bias"},
    {SG_TENSOR(SG_K, SG_LAYER_ATTENDS, "layers.%u.self_attn.k_proj.weight", "blk.%u.attn_k.weight",
               "kv_heads*head_width", "width"),
     .fix = SG_FIX_INTERLEAVED, .bias = SG_BIAS_MAY, .bias_if = "attention_bias"},
    {SG_TENSOR(SG_V, SG_LAYER_ATTENDS, "layers.%u.self_attn.v_proj.weight", "blk.%u.attn_v.weight",
               "kv_heads*value_width", "width"),
     .bias = SG_BIAS_MAY, .bias_if = "attention_bias"},
    {SG_TENSOR(SG_O, SG_LAYER_ATTENDS, "layers.%u.self_attn.o_proj.weight", "blk.%u.attn_output.weight",
               "width", "heads*value_width"),
     .bias = SG_BIAS_MAY, .bias_if = "output_bias"},
    {SG_TENSOR(SG_FFN_NORM, SG_LAYER_ANY, "layers.%u.post_attention_layernorm.weight",
               "blk.%u.ffn_norm.weight", NULL, "width")},
    {SG_TENSOR(SG_GATE, SG_LAYER_ANY, "layers.%u.mlp.gate_proj.weight", "blk.%u.ffn_gate.weight", "ff",
               "width"),
     .bias = SG_BIAS_MAY, .bias_if = "mlp_bias"},
    {SG_TENSOR(SG_UP, SG_LAYER_ANY, "layers.%u.mlp.up_proj.weight", "blk.%u.ffn_up.weight", "ff", "width"),
     .bias = SG_BIAS_MAY, .bias_if = "mlp_bias"},
    {SG_TENSOR(SG_DOWN, SG_LAYER_ANY, "layers.%u.mlp.down_proj.weight", "blk.%u.ffn_down.weight", "width",
               "ff"),
     .bias = SG_BIAS_MAY, .bias_if = "mlp_bias"},
    {.role = SG_ROLE_NONE},
};
