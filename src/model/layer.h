/* layer.h: building blocks for the layers of a family. Each function takes the weights of a role in
 * the current layer and appends one op. If an optional weight is absent, a norm of heads is skipped
 * and a bias omitted, so that families which differ only in that share code.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_LAYER_H
#define SG_MODEL_LAYER_H

#include "graph/graph.h"

/* The purpose of a weight. A bias has the role of its weight. */
enum sg_role {
    SG_ROLE_NONE,
    /* outside of the layers: embedding table, learned position table, norm and matrix of the head */
    SG_EMBED,
    SG_POSITIONS,
    SG_FINAL_NORM,
    SG_HEAD,
    SG_DIVISORS,          /* divisors of rotary frequencies (GGUF's rope_freqs) */
    /* attention: norm before it, projections, norms per head, norm after it */
    SG_ATTN_NORM,
    SG_Q,
    SG_K,
    SG_V,
    SG_QKV,               /* q, k and v in one matrix */
    SG_O,
    SG_Q_NORM,
    SG_K_NORM,
    SG_ATTN_POST_NORM,
    /* MLP: norm before it, matrices, norm after it */
    SG_FFN_NORM,
    SG_GATE,
    SG_UP,
    SG_DOWN,
    SG_FFN_POST_NORM,
    /* gated delta rule: projections, convolution, decay and its offset, inner norm, output */
    SG_DELTA_QKV,
    SG_DELTA_Z,           /* gate of the inner norm */
    SG_DELTA_A,
    SG_DELTA_B,
    SG_DELTA_CONV,
    SG_DELTA_DECAY,
    SG_DELTA_DT,
    SG_DELTA_NORM,
    SG_DELTA_OUT,
    /* mixture of experts: router and stacked expert matrices */
    SG_ROUTER,
    SG_EXPERT_GATE,
    SG_EXPERT_UP,
    SG_EXPERT_DOWN,
    SG_ROLE_N
};

/* Kinds of layers, as bits, so that tables can name several. */
enum sg_layer_kind {
    SG_LAYER_FULL = 1,        /* attention to all positions */
    SG_LAYER_SLIDING = 2,     /* attention to a sliding window */
    SG_LAYER_LINEAR = 4,      /* gated delta rule */
    SG_LAYER_ATTENDS = 3,     /* FULL or SLIDING */
    SG_LAYER_ANY = 7
};

struct segue_model;
struct sg_numbers;

/* The layer that is being built. */
struct sg_layer {
    struct sg_builder *b;
    const struct segue_model *m;
    const struct sg_numbers *n;
    uint32_t i;                   /* index of the layer; n->layers: outside the layers */
    enum sg_layer_kind kind;
    int32_t rope;                 /* index of the rotary table for this kind of layer; -1 = none */
};

/* The weight or bias of a role in this layer, or of the whole model; NULL: absent. */
const struct sg_tensor *sg_layer_tensor(const struct sg_layer *l, enum sg_role role);
const struct sg_tensor *sg_layer_bias(const struct sg_layer *l, enum sg_role role);

/* Norm over the whole row, of the family's kind. */
int32_t sg_layer_norm(struct sg_layer *l, int32_t x, enum sg_role role);
/* Norm of each head separately; returns x if the model has no such norm. */
struct sg_operand sg_layer_heads_norm(struct sg_layer *l, struct sg_operand x, enum sg_role role,
                                      uint32_t heads);
/* x W^T (+ bias). */
int32_t sg_layer_linear(struct sg_layer *l, int32_t x, enum sg_role role);
/* The same plus residual, in one op; residual -1: none. */
int32_t sg_layer_linear_add(struct sg_layer *l, int32_t x, enum sg_role role, int32_t residual);
/* Rotary embedding of each head with the layer's table. */
struct sg_operand sg_layer_rope(struct sg_layer *l, struct sg_operand x, uint32_t heads);
/* Attention with scale, window and softcap of the model; gate may be absent. */
int32_t sg_layer_attend(struct sg_layer *l, struct sg_operand q, struct sg_operand k, struct sg_operand v,
                        struct sg_operand gate);

/* --- larger blocks shared by several families --- */

/* The attention block of llama: q, k, v projections, optional head norms, rotary embedding,
 * attention, output projection, plus residual unless it is -1. */
int32_t sg_layer_attention(struct sg_layer *l, int32_t h, int32_t residual);
/* The gated MLP: down(act(gate h) * up h), plus residual unless it is -1. */
int32_t sg_layer_mlp(struct sg_layer *l, int32_t h, int32_t residual);
/* The complete layer of llama, qwen2 and qwen3. */
int32_t sg_layer_decoder(struct sg_layer *l, int32_t x);

#endif
