/* op.h: the operations of a graph. Values are fp32 matrices of T rows x width columns, where T is
 * the number of tokens of the run (all spans of the batch, one after the other). After the op
 * `rows` they have R rows: the tokens whose outputs were requested. T and R belong to a run, not to
 * the graph. The unit `ref` (src/unit/ref) defines the exact result of each op; fusing ops is up to
 * each unit.
 * SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_OP_H
#define SG_GRAPH_OP_H

#include <stdint.h>

/* Columns [at, at + width) of a value. value < 0: absent. */
struct sg_operand {
    int32_t value;
    uint32_t at, width;
};

/* Rows [at, at + rows), all columns, of a tensor of the graph. Vectors are tensors of one row and
 * are used whole. tensor < 0: absent. */
struct sg_weight {
    int32_t tensor;
    uint32_t at, rows;
};

/* The codes. JOIN occurs only in tensor-parallel graphs. */
enum sg_op_code {
    SG_OP_EMBED, SG_OP_NORM, SG_OP_LINEAR, SG_OP_ROPE, SG_OP_ATTEND, SG_OP_CONV, SG_OP_DELTA, SG_OP_GLU, SG_OP_ACT,
    SG_OP_ADD, SG_OP_SCALE, SG_OP_ROUTE, SG_OP_EXPERTS, SG_OP_ROWS, SG_OP_JOIN,
    SG_OP_N
};

enum sg_act { SG_ACT_NONE, SG_ACT_SILU, SG_ACT_GELU, SG_ACT_GELU_TANH, SG_ACT_GELU_QUICK, SG_ACT_RELU, SG_ACT_RELU2,
              SG_ACT_SIGMOID, SG_ACT_TANH };

enum sg_norm_kind { SG_NORM_RMS, SG_NORM_LAYER };

/* Token ids -> width d: scale * table[id] (+ positions[position]). in[0]: the ids, a value of kind
 * TOKENS. table [vocab, d]; positions [P, d] or absent. A position >= P is an error of the run. */
struct sg_embed { struct sg_weight table, positions; float scale; };

/* x -> same width. RMS: y = x / rms(x) * w (+ bias), with 1 + w instead of w if plus_one. LAYER: (x
 * - mean) / std instead of x / rms. groups > 1: each of `groups` equal column groups (heads) is
 * normalised separately; weight and bias then have width / groups numbers, shared by all groups.
 * Weight absent: ones. in[1] gate, if present: the result times silu(gate). */
struct sg_norm { enum sg_norm_kind kind; struct sg_weight weight, bias; float eps; uint32_t groups; uint32_t plus_one; };

/* x [T, k] -> [T, n]: x W^T (+ bias) (+ residual, in[1]). W is rows of a tensor, [n, k], in any
 * storage. LoRA adapters of the run that name this tensor add (x A^T) B^T. */
struct sg_linear { struct sg_weight weight, bias; };

/* x -> same width. Rotary embedding on each of `heads` groups of head_width columns: columns j and
 * j + pairs, j < pairs, are rotated by the angle position * inverse[j], with cosine and sine times
 * mscale; columns from 2 * pairs on are copied. table: index in sg_graph.ropes. sign -1: the
 * inverse rotation. */
struct sg_rope { uint32_t heads, head_width; int32_t table; int32_t sign; };

/* Causal attention. in[0] q [heads*d], in[1] k [kv_heads*d], in[2] v [kv_heads*dv] -> [heads*dv].
 * Appends k and v to the slots, then attends to all positions up to its own, or, if window > 0, to
 * the last `window` of them. softcap > 0: scores s become softcap * tanh(s / softcap). sinks
 * [heads], optional: one extra logit per head in the softmax, without a value. in[3] gate,
 * optional: the result times sigmoid(gate). */
struct sg_attend { uint32_t heads, kv_heads, d, dv; float scale; uint32_t window; float softcap; struct sg_weight sinks;
                   int32_t slot_k, slot_v; };

/* x -> same width C. Depthwise causal convolution: y_t = act(sum_j w[c][j] * x_{t-taps+1+j} +
 * bias); the last tap multiplies the current token. weight has C * taps numbers, whatever its
 * dimensions in the file. Slot: the last taps - 1 inputs. */
struct sg_conv { struct sg_weight weight, bias; uint32_t taps; enum sg_act act; int32_t slot; };

/* Gated delta rule. in: q [k_heads*dk], k [k_heads*dk], v [v_heads*dv], a [v_heads], b [v_heads] ->
 * [v_heads*dv]. If l2_eps > 0, q and k are normalised per head: x / sqrt(sum x^2 + l2_eps); q is
 * multiplied by dk^-1/2. beta = sigmoid(b); g = A * softplus(a + dt), where A = -exp(decay) if
 * decay_is_log, else decay. Value head h uses key head h / (v_heads / k_heads). Per token: S <- e^g
 * S; d = beta (v - S^T k); S <- S + k d^T; out = S^T q. Slot: S [v_heads, dk, dv]. */
struct sg_delta { uint32_t k_heads, v_heads, dk, dv; struct sg_weight decay, dt; uint32_t decay_is_log; float l2_eps;
                  int32_t slot; };

/* Gated activation: in[0] gate, in[1] up -> act(gate) * up. */
struct sg_glu { enum sg_act act; };
/* x -> act(x). */
struct sg_actv { enum sg_act act; };

/* x -> x * value; if weight is present, x * weight instead (one row of width columns, or a single
 * number). */
struct sg_scale { float value; struct sg_weight weight; };

/* Expert selection. x: router logits [experts] -> [2*k]: k expert indices as fp32, then k weights.
 * Scores: softmax over all experts, or sigmoid. The k largest scores are chosen (ties: lowest
 * index); bias [experts], if present, is added for the choice only. renormalise: weights divided by
 * their sum. Then times scale. */
struct sg_route { uint32_t experts, k; uint32_t sigmoid, renormalise; float scale; struct sg_weight bias; };

/* Mixture of experts. in[0] x, in[1] routing [2*k] -> d: sum_i weight_i * down_e(act(gate_e x) *
 * up_e x). gate, up: [experts*ff, d], expert e has rows [e*ff, (e+1)*ff); down: [experts*d, ff]. A
 * shared expert consists of ordinary linear and glu ops. */
struct sg_experts { struct sg_weight gate, up, down; uint32_t experts, k, ff; enum sg_act act; };

/* Collective of a tensor-parallel graph (graph/tensor_parallel.h). sum 1: the sum of x over all
 * ranks; 0: the columns of all ranks concatenated. Always in rank order, so that every rank gets
 * bit-identical results. */
struct sg_join { uint32_t ranks, sum; };

enum { SG_OP_INPUTS = 5 };               /* maximum number of value operands */

/* One operation. Consists of 32-bit words only: graphwire.c sends it as memory. */
struct sg_op {
    enum sg_op_code code;
    int32_t layer;                       /* -1: in no layer (embedding, head) */
    struct sg_operand in[SG_OP_INPUTS];  /* unused ones have value -1 */
    int32_t out;                         /* the value that it computes */
    union {                              /* parameters, selected by code */
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
