/* qwen35.c: Qwen3.5 (dense, text): repeats three layers of the gated delta rule and one of gated
 * attention. Hugging Face stores norms as w - 1 and A as its logarithm; GGUF stores norms as w,
 * -exp(A_log) and tiled value heads; MLX uses the names of Hugging Face with norms as w. The norm
 * inside the delta layer is stored as w everywhere.
 * SPDX-License-Identifier: MIT */
#include "model/family.h"

/* q, k and v pass through the convolution as one matrix. */
#define CHANNELS "2*key_heads*key_width+value_heads*delta_width"

/* ssm.* are the GGUF keys of the delta rule. */
static const struct sg_number_row numbers[] = {
    {SG_COUNT(head_width), .hf = {"head_dim"}, .gguf = "attention.key_length", .fallback = 256, .min = 2,
     .max = 65536},
    {SG_COUNT(full_every), .hf = {"full_attention_interval"}, .gguf = "full_attention_interval",
     .fallback = 4, .min = 1, .max = 4096},
    {SG_COUNT(predict_layers), .gguf = "nextn_predict_layers", .max = 64},
    /* The gated delta rule. Hugging Face has the width of a value head, GGUF that of all together. */
    {SG_COUNT(key_heads), .hf = {"linear_num_key_heads"}, .gguf = "ssm.group_count", .required = 1, .min = 1,
     .max = 65536},
    {SG_COUNT(value_heads), .hf = {"linear_num_value_heads"}, .gguf = "ssm.time_step_rank", .required = 1,
     .min = 1, .max = 65536},
    {SG_COUNT(key_width), .hf = {"linear_key_head_dim"}, .gguf = "ssm.state_size", .required = 1, .min = 1,
     .max = 65536},
    {SG_COUNT(delta_width), .hf = {"linear_value_head_dim"}, .min = 1, .max = 65536},
    {SG_COUNT(delta_inner), .gguf = "ssm.inner_size", .min = 1, .max = 1 << 24},
    {SG_COUNT(taps), .hf = {"linear_conv_kernel_dim"}, .gguf = "ssm.conv_kernel", .fallback = 4, .min = 2,
     .max = 64},
    {SG_REAL(rotated_share), .hf = {"partial_rotary_factor"}, .fallback = 0.25, .min = 1e-6, .max = 1},
    /* The gate is part of q_proj's shape. */
    {SG_ONLY("attn_output_gate", 1)},
    {0},
};

/* In GGUF, the value heads of each SG_FIX_TILED tensor are stored in tiled order; `skip` excludes
 * the q and k rows. */
static const struct sg_tensor_row tensors[] = {
    {SG_TENSOR(SG_FINAL_NORM, 0, "norm.weight", "output_norm.weight", NULL, "width"), .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_ATTN_NORM, SG_LAYER_ANY, "layers.%u.input_layernorm.weight", "blk.%u.attn_norm.weight",
               NULL, "width"),
     .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_FFN_NORM, SG_LAYER_ANY, "layers.%u.post_attention_layernorm.weight",
               "blk.%u.post_attention_norm.weight", NULL, "width"),
     .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_Q, SG_LAYER_FULL, "layers.%u.self_attn.q_proj.weight", "blk.%u.attn_q.weight",
               "2*heads*head_width", "width"),
     .fix = SG_FIX_QUERY_GATE, .bias = SG_BIAS_MAY, .bias_if = "attention_bias"},
    {SG_TENSOR(SG_Q_NORM, SG_LAYER_FULL, "layers.%u.self_attn.q_norm.weight", "blk.%u.attn_q_norm.weight",
               NULL, "head_width"),
     .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_K_NORM, SG_LAYER_FULL, "layers.%u.self_attn.k_norm.weight", "blk.%u.attn_k_norm.weight",
               NULL, "head_width"),
     .fix = SG_FIX_MINUS_ONE},
    {SG_TENSOR(SG_DELTA_QKV, SG_LAYER_LINEAR, "layers.%u.linear_attn.in_proj_qkv.weight",
               "blk.%u.attn_qkv.weight", CHANNELS, "width"),
     .fix = SG_FIX_TILED, .group = "delta_width", .skip = "2*key_heads*key_width"},
    {SG_TENSOR(SG_DELTA_Z, SG_LAYER_LINEAR, "layers.%u.linear_attn.in_proj_z.weight",
               "blk.%u.attn_gate.weight", "value_heads*delta_width", "width"),
     .fix = SG_FIX_TILED, .group = "delta_width"},
    {SG_TENSOR(SG_DELTA_A, SG_LAYER_LINEAR, "layers.%u.linear_attn.in_proj_a.weight",
               "blk.%u.ssm_alpha.weight", "value_heads", "width"),
     .fix = SG_FIX_TILED},
    {SG_TENSOR(SG_DELTA_B, SG_LAYER_LINEAR, "layers.%u.linear_attn.in_proj_b.weight",
               "blk.%u.ssm_beta.weight", "value_heads", "width"),
     .fix = SG_FIX_TILED},
    {SG_TENSOR(SG_DELTA_CONV, SG_LAYER_LINEAR, "layers.%u.linear_attn.conv1d.weight",
               "blk.%u.ssm_conv1d.weight", CHANNELS, "taps"),
     .fix = SG_FIX_TAPS | SG_FIX_TILED, .group = "delta_width", .skip = "2*key_heads*key_width"},
    {SG_TENSOR(SG_DELTA_DECAY, SG_LAYER_LINEAR, "layers.%u.linear_attn.A_log", "blk.%u.ssm_a", NULL,
               "value_heads"),
     .fix = SG_FIX_TILED},
    {SG_TENSOR(SG_DELTA_DT, SG_LAYER_LINEAR, "layers.%u.linear_attn.dt_bias", "blk.%u.ssm_dt.bias", NULL,
               "value_heads"),
     .fix = SG_FIX_TILED},
    {SG_TENSOR(SG_DELTA_NORM, SG_LAYER_LINEAR, "layers.%u.linear_attn.norm.weight", "blk.%u.ssm_norm.weight",
               NULL, "delta_width")},
    {SG_TENSOR(SG_DELTA_OUT, SG_LAYER_LINEAR, "layers.%u.linear_attn.out_proj.weight",
               "blk.%u.ssm_out.weight", "width", "value_heads*delta_width"),
     .fix = SG_FIX_TILED_COLUMNS, .group = "delta_width"},
    {.role = SG_ROLE_NONE},
};

/* GGUF gives the width of all value heads together (delta_inner), Hugging Face that of one head. */
static segue_status derive(struct sg_numbers *n, unsigned gguf, segue_error *err)
{
    (void)gguf;
    if (!n->delta_width) n->delta_width = n->delta_inner / n->value_heads;
    n->delta_inner = n->delta_width * n->value_heads;
    if (n->delta_width && n->value_heads % n->key_heads == 0) return SEGUE_OK;
    return sg_fail(
        err, SEGUE_EFORMAT,
        "open model: linear layers: %u value heads of width %u with %u key heads are invalid; correct or replace the file",
        n->value_heads, n->delta_width, n->key_heads);
}

/* Gated attention: SG_Q computes a query and a gate per head. Their rows are reordered when read
 * (SG_FIX_QUERY_GATE), so that the gates of all heads follow the queries of all heads. */
static int32_t attention(struct sg_layer *l, int32_t h, int32_t residual)
{
    const struct sg_numbers *n = l->n;
    uint32_t width = n->heads * n->head_width;
    int32_t query_gate = sg_layer_linear(l, h, SG_Q);
    struct sg_operand q = sg_columns(l->b, query_gate, 0, width), gate = sg_columns(l->b, query_gate, width, width);
    struct sg_operand k = sg_whole(l->b, sg_layer_linear(l, h, SG_K));
    struct sg_operand v = sg_whole(l->b, sg_layer_linear(l, h, SG_V));
    q = sg_layer_rope(l, sg_layer_heads_norm(l, q, SG_Q_NORM, n->heads), n->heads);
    k = sg_layer_rope(l, sg_layer_heads_norm(l, k, SG_K_NORM, n->kv_heads), n->kv_heads);
    return sg_layer_linear_add(l, sg_layer_attend(l, q, k, v, gate), SG_O, residual);
}

/* The gated delta rule: projection, convolution with SiLU, recurrence, norm per value head gated by
 * silu(z), projection. z is not convolved. */
static int32_t delta(struct sg_layer *l, int32_t h, int32_t residual)
{
    const struct sg_numbers *n = l->n;
    struct sg_builder *b = l->b;
    /* keys, values: columns of q or k, and of v, in the result of the convolution. */
    uint32_t keys = n->key_heads * n->key_width, values = n->value_heads * n->delta_width;
    struct sg_operand z = sg_whole(b, sg_layer_linear(l, h, SG_DELTA_Z));
    struct sg_conv taps = {.weight = sg_weight_of(b, sg_layer_tensor(l, SG_DELTA_CONV)),
                           .bias = sg_weight_of(b, NULL),
                           .taps = n->taps,
                           .act = SG_ACT_SILU};
    int32_t c = sg_conv(b, sg_whole(b, sg_layer_linear(l, h, SG_DELTA_QKV)), taps);
    struct sg_delta rule = {.k_heads = n->key_heads,
                            .v_heads = n->value_heads,
                            .dk = n->key_width,
                            .dv = n->delta_width,
                            .decay = sg_weight_of(b, sg_layer_tensor(l, SG_DELTA_DECAY)),
                            .dt = sg_weight_of(b, sg_layer_tensor(l, SG_DELTA_DT)),
                            .decay_is_log = !l->m->convention.gguf,
                            .l2_eps = 1e-6f};
    struct sg_operand in[5] = {
        sg_columns(b, c, 0, keys), sg_columns(b, c, keys, keys), sg_columns(b, c, 2 * keys, values),
        sg_whole(b, sg_layer_linear(l, h, SG_DELTA_A)), sg_whole(b, sg_layer_linear(l, h, SG_DELTA_B))};
    struct sg_norm inner = {.kind = SG_NORM_RMS,
                            .weight = sg_weight_of(b, sg_layer_tensor(l, SG_DELTA_NORM)),
                            .bias = sg_weight_of(b, NULL),
                            .eps = (float)n->eps,
                            .groups = n->value_heads};
    return sg_layer_linear_add(l, sg_norm(b, sg_whole(b, sg_delta(b, in, rule)), inner, z), SG_DELTA_OUT,
                               residual);
}

/* Both kinds of layers end with the same MLP. */
static int32_t layer(struct sg_layer *l, int32_t x)
{
    int32_t h = sg_layer_norm(l, x, SG_ATTN_NORM);
    x = l->kind == SG_LAYER_LINEAR ? delta(l, h, x) : attention(l, h, x);
    return sg_layer_mlp(l, sg_layer_norm(l, x, SG_FFN_NORM), x);
}

const struct sg_family sg_family_qwen35 = {
    .name = "qwen3_5",
    .hf = (const char *const[]){"qwen3_5", "qwen3_5_text", "Qwen3_5ForConditionalGeneration",
                                "Qwen3_5ForCausalLM", NULL},
    .gguf = (const char *const[]){"qwen35", NULL},
    .numbers = {sg_decoder_numbers, numbers},
    .tensors = {sg_decoder_tensors, tensors},
    .sections = 1,
    .derive = derive,
    .layer = layer,
};
