/* layer.h: the words in which a family writes down a layer: each takes the tensor of a role in the current
 * layer and appends one operation. An absent optional tensor makes its word do nothing (a norm) or leave
 * something out (a bias), so that families that differ only there share one description.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_LAYER_H
#define SG_MODEL_LAYER_H

#include "graph/graph.h"

/* What a tensor is for. Biases have the role of their weight. */
enum sg_role {
    SG_ROLE_NONE,
    SG_EMBED,
    SG_POSITIONS,
    SG_FINAL_NORM,
    SG_HEAD,
    SG_DIVISORS,
    SG_ATTN_NORM,
    SG_Q,
    SG_K,
    SG_V,
    SG_QKV,
    SG_O,
    SG_Q_NORM,
    SG_K_NORM,
    SG_ATTN_POST_NORM,
    SG_FFN_NORM,
    SG_GATE,
    SG_UP,
    SG_DOWN,
    SG_FFN_POST_NORM,
    SG_DELTA_QKV,
    SG_DELTA_Z,
    SG_DELTA_A,
    SG_DELTA_B,
    SG_DELTA_CONV,
    SG_DELTA_DECAY,
    SG_DELTA_DT,
    SG_DELTA_NORM,
    SG_DELTA_OUT,
    SG_ROUTER,
    SG_EXPERT_GATE,
    SG_EXPERT_UP,
    SG_EXPERT_DOWN,
    SG_ROLE_N
};

enum sg_layer_kind {
    SG_LAYER_FULL = 1,
    SG_LAYER_SLIDING = 2,
    SG_LAYER_LINEAR = 4,
    SG_LAYER_ATTENDS = 3,
    SG_LAYER_ANY = 7
};

struct segue_model;
struct sg_numbers;

struct sg_layer {
    struct sg_builder *b;
    const struct segue_model *m;
    const struct sg_numbers *n;
    uint32_t i; /* layer */
    enum sg_layer_kind kind;
    int32_t rope; /* rotary table of this kind of layer; -1 = none */
};

/* The tensor of a role in this layer, or of the whole model; NULL: absent. */
const struct sg_tensor *sg_layer_tensor(const struct sg_layer *l, enum sg_role role);
const struct sg_tensor *sg_layer_bias(const struct sg_layer *l, enum sg_role role);

int32_t sg_layer_norm(struct sg_layer *l, int32_t x, enum sg_role role);
/* Each head by itself; heads of x. */
struct sg_operand sg_layer_heads_norm(struct sg_layer *l, struct sg_operand x, enum sg_role role,
                                      uint32_t heads);
int32_t sg_layer_linear(struct sg_layer *l, int32_t x, enum sg_role role);
/* + residual in the same operation. */
int32_t sg_layer_linear_add(struct sg_layer *l, int32_t x, enum sg_role role, int32_t residual);
struct sg_operand sg_layer_rope(struct sg_layer *l, struct sg_operand x, uint32_t heads);
/* Scale, window, softcap as the numbers say; gate may be absent. */
int32_t sg_layer_attend(struct sg_layer *l, struct sg_operand q, struct sg_operand k, struct sg_operand v,
                        struct sg_operand gate);

/* --- longer phrases that several families share --- */

/* projections, norms of heads, rotation, attention, output projection of the llama kind; residual -1: none is
 * added. */
int32_t sg_layer_attention(struct sg_layer *l, int32_t h, int32_t residual);
/* down(act(gate h) * up h), likewise. */
int32_t sg_layer_mlp(struct sg_layer *l, int32_t h, int32_t residual);
/* The whole layer of llama, qwen2, qwen3. */
int32_t sg_layer_decoder(struct sg_layer *l, int32_t x);

#endif
