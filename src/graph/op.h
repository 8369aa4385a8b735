/* op.h: the operations. Each is as coarse as one pass over its weights or its state; every value is a matrix of
 * T rows x width columns of fp32, where T is the number of rows of the run (the tokens of all its spans, one span after
 * the other) or, after `rows`, R: the rows that the batch wants outputs of. T and R are data of a run, never part of a
 * graph. What an op computes is defined by the unit `ref` (src/unit/ref); what is fused is each unit's own business.
 * SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_OP_H
#define SG_GRAPH_OP_H

#include <stdint.h>

/* A column window of a value: columns [at, at + width). value < 0: absent. */
struct sg_operand {
    int32_t value;
    uint32_t at, width;
};

/* A row window of a tensor of the graph: rows [at, at + rows), all columns. Vectors are tensors of one row and are used
 * whole. tensor < 0: absent. */
struct sg_weight {
    int32_t tensor;
    uint32_t at, rows;
};

enum sg_op_code {
    SG_OP_EMBED, SG_OP_NORM, SG_OP_LINEAR, SG_OP_ROPE, SG_OP_ATTEND, SG_OP_CONV, SG_OP_DELTA, SG_OP_GLU, SG_OP_ACT,
    SG_OP_ADD, SG_OP_SCALE, SG_OP_ROUTE, SG_OP_EXPERTS, SG_OP_ROWS, SG_OP_JOIN,
    SG_OP_N
};

enum sg_act { SG_ACT_NONE, SG_ACT_SILU, SG_ACT_GELU, SG_ACT_GELU_TANH, SG_ACT_GELU_QUICK, SG_ACT_RELU, SG_ACT_RELU2,
              SG_ACT_SIGMOID, SG_ACT_TANH };

enum sg_norm_kind { SG_NORM_RMS, SG_NORM_LAYER };

/* token ids -> width d: scale * table[id] (+ positions[position]).  ids: in[0], a value of kind tokens.
 * table [vocab, d]; positions [P, d] or absent (a position >= P is an error of the run). */
struct sg_embed { struct sg_weight table, positions; float scale; };

/* x -> same width. groups > 1: each of `groups` equal column groups (heads) by itself; weight and bias then have
 * width/groups entries, shared by all groups. y = x / rms * (w or 1 + w) (+ bias); layer: (x - mean) / std.
 * gate (in[1]) present: y * silu(gate), after the weight. Weight absent: all ones. */
struct sg_norm { enum sg_norm_kind kind; struct sg_weight weight, bias; float eps; uint32_t groups; uint32_t plus_one; };

/* x [T, k] -> [T, n]: x W^T (+ bias) (+ residual, in[1]); W is a row window [n, k] of a tensor, any storage.
 * Adapters of the run that name this tensor add scale * (x A^T) B^T. scale 0 = 1. */
struct sg_linear { struct sg_weight weight, bias; };

/* x -> same. Each of `heads` groups of head_width columns: the first 2*pairs columns are rotated as halves:
 * (j, j + pairs) by the angle position * inverse frequency j, times `mscale`; the rest passes. table: index of a
 * graph table (struct sg_rope_table). sign -1 undoes (gradients). */
struct sg_rope { uint32_t heads, head_width; int32_t table; int32_t sign; };

/* q [heads*d], k [kv_heads*d], v [kv_heads*dv] -> heads*dv. in[0..2]; in[3] gate or absent: result * sigmoid(gate),
 * columns as the result. Appends k and v to the slots, then attends causally to all held rows (the last `window`
 * rows including its own when window > 0). softcap > 0: scores s -> softcap * tanh(s / softcap). sinks [heads]: one
 * extra logit per head that takes part in the softmax and carries no value. */
struct sg_attend { uint32_t heads, kv_heads, d, dv; float scale; uint32_t window; float softcap; struct sg_weight sinks;
                   int32_t slot_k, slot_v; };

/* x -> same: depthwise causal convolution: y_t = act(sum_j w[c][j] * x_{t-taps+1+j}) (+ bias before act); the last tap
 * multiplies the current row. weight [C, taps] whatever rank the file gives it. Slot: the last taps-1 inputs. */
struct sg_conv { struct sg_weight weight, bias; uint32_t taps; enum sg_act act; int32_t slot; };

/* Gated delta rule. in: q [k_heads*dk], k [k_heads*dk], v [v_heads*dv], a [v_heads], b [v_heads]
 * -> v_heads*dv. q and k l2-normalised per head (x / sqrt(sum x^2 + l2_eps)) when l2_eps > 0, q times dk^-1/2.
 * beta = sigmoid(b); g = A * softplus(a + dt), A = decay_is_log ? -exp(decay) : decay. Value head h uses key head
 * h / (v_heads / k_heads). S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; out = S^T q. Slot: S [v_heads, dk, dv]. */
struct sg_delta { uint32_t k_heads, v_heads, dk, dv; struct sg_weight decay, dt; uint32_t decay_is_log; float l2_eps;
                  int32_t slot; };

/* gate (in[0]), up (in[1]) -> act(gate) * up. */
struct sg_glu { enum sg_act act; };
struct sg_actv { enum sg_act act; };

/* x -> x * value, or * weight (one row of width columns, or one number) when present. */
struct sg_scale { float value; struct sg_weight weight; };

/* x = router logits [experts] -> [2*k]: k indices (exact small integers in fp32), then k weights. Scores: softmax over
 * all (0) or sigmoid (1); the k largest (lowest index on ties), of score + bias when bias [experts] is present (choice
 * only); renormalise: weights divided by their sum; then times scale. */
struct sg_route { uint32_t experts, k; uint32_t sigmoid, renormalise; float scale; struct sg_weight bias; };

/* x (in[0]), routing (in[1], [2k]) -> d: sum_i weight_i * down_e(act(gate_e x) * up_e x). gate, up: [experts*ff, d] tensors,
 * expert e = rows [e*ff, (e+1)*ff); down: [experts*d, ff]. A shared expert is ordinary linear/glu ops beside it. */
struct sg_experts { struct sg_weight gate, up, down; uint32_t experts, k, ff; enum sg_act act; };

/* Of a graph that is one of `ranks` shares (graph/share.h): x -> the sum of all ranks' x (sum), or all of them side by side in
 * the order of the ranks. The same bits on every rank: what is added is added in that order. */
struct sg_join { uint32_t ranks, sum; };

enum { SG_OP_INPUTS = 5 };

struct sg_op {
    enum sg_op_code code;
    int32_t layer;                       /* -1: belongs to no layer (embedding, head) */
    struct sg_operand in[SG_OP_INPUTS];  /* absent ones have value -1 */
    int32_t out;                         /* the value that it defines */
    union {
        struct sg_embed embed;
        struct sg_norm norm;
        struct sg_linear linear;
        struct sg_rope rope;
        struct sg_attend attend;
        struct sg_conv conv;
        struct sg_delta delta;
        struct sg_glu glu;
        struct sg_actv act;
        struct sg_scale scale;
        struct sg_route route;
        struct sg_experts experts;
        struct sg_join join;
    } u;
};

#endif
