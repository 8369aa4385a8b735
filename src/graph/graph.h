/* graph.h: the list of operations that turns token rows into logit rows, and what can be derived from it: the check, the
 * state description, the dump. Built once by a family, read-only afterwards; any thread.
 * SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_GRAPH_H
#define SG_GRAPH_GRAPH_H

#include "base/mem.h"
#include "graph/op.h"
#include "tensor/tensor.h"

enum sg_value_kind { SG_VALUE_TOKENS, SG_VALUE_ROWS };

struct sg_value {
    enum sg_value_kind kind;
    uint32_t width;              /* columns; 1 for tokens */
    uint32_t wanted;             /* 1: has R rows (defined behind `rows`), 0: T rows */
    int32_t op;                  /* that defines it; -1: an input */
};

/* A named input or output. Names: inputs "tokens" or "rows"; outputs "logits", "hidden.<i>" (input of layer i; the last
 * one is after the final norm), or what a layer range needs. */
struct sg_port {
    const char *name;
    int32_t value;
};

/* Inverse frequencies of one rotary table, scaling applied (linear, llama3, yarn, file's divisors). */
struct sg_rope_table {
    uint32_t pairs;              /* rotated columns / 2 */
    const float *inverse;        /* [pairs] radians per position; multiply in double for positions above 1e5 */
    float mscale;                /* cos and sin are multiplied by it; 1 = none */
};

/* What a model remembers in one slot; derived from the stateful ops. */
enum sg_slot_kind { SG_SLOT_K, SG_SLOT_V, SG_SLOT_CONV, SG_SLOT_DELTA };
struct sg_slot {
    enum sg_slot_kind kind;
    uint32_t layer;
    uint32_t heads, width;       /* K, V: kv_heads x width a row.  CONV: width channels, heads = rows (taps-1), oldest
                                  * first.  DELTA: heads value heads ... */
    uint32_t depth;              /* ... of [depth = key width][width = value width], fp32 */
    uint32_t window;             /* K, V: rows that can still be asked for; 0 = all */
};

struct sg_graph {
    struct sg_op *ops;               uint32_t ops_n;
    struct sg_value *values;         uint32_t values_n;
    const struct sg_tensor **tensors; uint32_t tensors_n;    /* weights; borrowed from the model */
    struct sg_rope_table *ropes;     uint32_t ropes_n;
    struct sg_slot *slots;           uint32_t slots_n;
    struct sg_port *inputs;          uint32_t inputs_n;
    struct sg_port *outputs;         uint32_t outputs_n;
    uint32_t layers, layer_from, layer_to;   /* of the model; the range that this graph holds */
    uint32_t vocab;                  /* width of "logits"; 0 when the graph ends before the head */
    struct sg_arena arena;           /* owns all of the above */
};
void sg_graph_free(struct sg_graph *g);

/* The output with this name: its index in g->outputs, or -1. */
int32_t sg_graph_output(const struct sg_graph *g, const char *name);

/* Every width, window, tensor shape, slot and order of definition. EINTERNAL/EFORMAT name op number, op and layer. */
segue_status sg_graph_check(const struct sg_graph *g, segue_error *err);
/* One op by itself: its operands, widths, tensors, numbers and slots. */
segue_status sg_op_check(const struct sg_graph *g, uint32_t index, segue_error *err);
/* One op a line: `%12 = linear %9[0:64] blk.0.attn_q.weight [576x576 q4_1] -> 576   # layer 0`. Memory into *out. */
struct sg_buf;
segue_status sg_graph_dump(const struct sg_graph *g, struct sg_buf *out);
const char *sg_op_name(enum sg_op_code code);    /* "linear" */
const char *sg_act_name(enum sg_act act);

/* Bytes of one row of K or V slot / of a whole CONV or DELTA slot in a storage (f32 f16 bf16 q8_0 for K and V; CONV and
 * DELTA are f32 always). q8_0 in a state: per position and head, blocks of 32 (a last block may be shorter). */
int sg_slot_same(const struct sg_slot *a, const struct sg_slot *b); /* in all that a state's memory depends on, and the layer */
size_t sg_slot_row_bytes(const struct sg_slot *s, enum sg_storage storage);
size_t sg_slot_fixed_bytes(const struct sg_slot *s);     /* 0 for K and V */
/* The first row of K or V that the row at position `rows` may ask for: its window's. */
uint64_t sg_slot_first_needed(const struct sg_slot *s, uint64_t rows);
/* One K or V row [heads][width], fp32 <-> storage (F32 F16 BF16 Q8_0), in the canonical layout. */
void sg_slot_encode(const struct sg_slot *s, enum sg_storage storage, const float *row, void *out);
void sg_slot_decode(const struct sg_slot *s, enum sg_storage storage, const void *in, float *row);

/* --- building: each call appends one op and returns its value. Failure (memory, impossible widths) is remembered in
 * the builder: later calls return -1, sg_builder_end reports it. Widths are taken from values and tensors. --- */
struct sg_builder {
    struct sg_graph *graph;
    int32_t layer;               /* given to ops; -1 outside layers */
    uint32_t ops_cap, values_cap, tensors_cap, ropes_cap, slots_cap, ports_cap;
    segue_error error;           /* first failure */
};
segue_status sg_builder_begin(struct sg_builder *b, segue_error *err);
/* Checks the graph and hands it out; on failure frees it. */
segue_status sg_builder_end(struct sg_builder *b, struct sg_graph **out, segue_error *err);

int32_t sg_input_tokens(struct sg_builder *b);                   /* input "tokens" */
int32_t sg_input_rows(struct sg_builder *b, uint32_t width);     /* input "rows" */
void sg_output(struct sg_builder *b, int32_t value, const char *format, ...) SG_FORMAT(3, 4);

/* Weights: a whole tensor (NULL = absent), or a row window. */
struct sg_weight sg_weight_of(struct sg_builder *b, const struct sg_tensor *t);
struct sg_weight sg_weight_rows(struct sg_builder *b, const struct sg_tensor *t, uint32_t at, uint32_t rows);
/* Operands: a whole value, or columns of it. */
struct sg_operand sg_whole(const struct sg_builder *b, int32_t value);
struct sg_operand sg_columns(const struct sg_builder *b, int32_t value, uint32_t at, uint32_t width);
struct sg_operand sg_absent(void);

int32_t sg_rope_table_add(struct sg_builder *b, uint32_t pairs, const float *inverse, float mscale);   /* copied */

int32_t sg_embed(struct sg_builder *b, int32_t tokens, const struct sg_tensor *table, const struct sg_tensor *positions,
                 float scale);
int32_t sg_norm(struct sg_builder *b, struct sg_operand x, struct sg_norm p, struct sg_operand gate);
int32_t sg_linear(struct sg_builder *b, struct sg_operand x, struct sg_weight w, struct sg_weight bias,
                  struct sg_operand residual);
int32_t sg_rope(struct sg_builder *b, struct sg_operand x, uint32_t heads, int32_t table);
/* Adds the K and V slots of the current layer; p.slot_k and p.slot_v are filled in. */
int32_t sg_attend(struct sg_builder *b, struct sg_operand q, struct sg_operand k, struct sg_operand v, struct sg_attend p,
                  struct sg_operand gate);
int32_t sg_conv(struct sg_builder *b, struct sg_operand x, struct sg_conv p);
int32_t sg_delta(struct sg_builder *b, const struct sg_operand qkvab[5], struct sg_delta p);
int32_t sg_glu(struct sg_builder *b, struct sg_operand gate, struct sg_operand up, enum sg_act act);
int32_t sg_activate(struct sg_builder *b, struct sg_operand x, enum sg_act act);
int32_t sg_add(struct sg_builder *b, struct sg_operand x, struct sg_operand y);
int32_t sg_scale(struct sg_builder *b, struct sg_operand x, float value, struct sg_weight w);
int32_t sg_route(struct sg_builder *b, struct sg_operand logits, struct sg_route p);
int32_t sg_experts(struct sg_builder *b, struct sg_operand x, struct sg_operand routing, struct sg_experts p);
int32_t sg_rows(struct sg_builder *b, struct sg_operand x);
int32_t sg_join(struct sg_builder *b, struct sg_operand x, struct sg_join p);
/* Of a graph that is complete: `rows` goes behind the last op that writes state, where it can. */
void sg_rows_early(struct sg_builder *b);

#endif
