/* graph.h: the compute graph: a list of operations that turns tokens into logits, in order of
 * execution. Also what is derived from it: validation, the layout of the model's state, a text
 * dump. A model family builds it once; afterwards it is immutable and may be read by any thread.
 * SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_GRAPH_H
#define SG_GRAPH_GRAPH_H

#include "base/mem.h"
#include "graph/op.h"
#include "tensor/tensor.h"

/* TOKENS: int32 token ids. ROWS: an fp32 matrix. */
enum sg_value_kind { SG_VALUE_TOKENS, SG_VALUE_ROWS };

/* A value: the result of an op or an input. It is a matrix with one row per token of the run (T
 * rows), or, after the op `rows`, one row per token whose output was requested (R rows). */
struct sg_value {
    enum sg_value_kind kind;
    uint32_t width;              /* columns; 1 for tokens */
    uint32_t wanted;             /* 1: R rows (computed from a `rows` op); 0: T rows */
    int32_t op;                  /* index of the op that computes it; -1: an input */
};

/* A named input or output. Input names: "tokens" or "rows". Output names: "logits"; "hidden.<i>",
 * the input of layer i (the last one is the output of the final norm); others for graphs of a layer
 * range. */
struct sg_port {
    const char *name;            /* owned by the graph's arena, or static */
    int32_t value;               /* index in sg_graph.values */
};

/* Inverse frequencies of one rotary embedding, after scaling (linear, llama3, yarn, or divisors
 * from the file). */
struct sg_rope_table {
    uint32_t pairs;              /* rotated columns / 2 */
    const float *inverse;        /* [pairs] radians per position; multiply in double for positions above 1e5 */
    float mscale;                /* cosine and sine are multiplied by it; 1 = none */
};

/* A slot is one buffer of a model's state, for example the K cache of a layer. The list of slots
 * follows from the ops that keep state. */
enum sg_slot_kind {
    SG_SLOT_K, SG_SLOT_V, SG_SLOT_CONV, SG_SLOT_DELTA,
    SG_SLOT_VALUE, SG_SLOT_MOMENT1, SG_SLOT_MOMENT2 /* of a trainer's state, no slots of a graph: a parameter and its moments */
};
struct sg_slot {
    enum sg_slot_kind kind;
    uint32_t layer;
    /* K, V: each position has a row of heads (KV heads) x width numbers. CONV: heads = taps - 1
     * rows of width channels, the oldest first. DELTA: heads (value heads) matrices [depth][width].
     * VALUE, MOMENT1, MOMENT2: [heads][width], the rows and columns of a parameter. */
    uint32_t heads, width;
    uint32_t depth;              /* DELTA: key width of a head; a parameter: its index; else 0 */
    uint32_t window;             /* K, V: sliding window in positions; 0 = all positions are attended */
};

/* The graph. All indices in it are 0-based; -1 means absent where that is allowed. */
struct sg_graph {
    struct sg_op *ops;               uint32_t ops_n;
    struct sg_value *values;         uint32_t values_n;
    const struct sg_tensor **tensors; uint32_t tensors_n;    /* weights; owned by the model, which outlives the graph */
    struct sg_rope_table *ropes;     uint32_t ropes_n;
    struct sg_slot *slots;           uint32_t slots_n;
    struct sg_port *inputs;          uint32_t inputs_n;
    struct sg_port *outputs;         uint32_t outputs_n;
    uint32_t layers;                 /* layers of the model */
    uint32_t layer_from, layer_to;   /* the range [layer_from, layer_to) that this graph computes */
    uint32_t vocab;                  /* width of "logits"; 0 when the graph has no such output */
    struct sg_arena arena;           /* owns the lists above */
};
/* NULL is allowed. */
void sg_graph_free(struct sg_graph *g);

/* Index in g->outputs of the output with this name; -1 when there is none. */
int32_t sg_graph_output(const struct sg_graph *g, const char *name);

/* Validate the whole graph: indices, widths, tensor shapes, slots, order of definition. A graph
 * that passes can be executed without further checks. EFORMAT: a tensor of the file does not fit.
 * EINTERNAL: the graph was built wrongly. The message names op number, op and layer. */
segue_status sg_graph_check(const struct sg_graph *g, segue_error *err);
/* Validate one op: operands, widths, tensors, parameters and slots. */
segue_status sg_op_check(const struct sg_graph *g, uint32_t index, segue_error *err);
/* Append the graph as text, one op per line: `%12 = linear %9[0:64] blk.0.attn_q.weight [576x576
 * q4_1] -> 576   # layer 0`. Returns out->failed. */
struct sg_buf;
segue_status sg_graph_dump(const struct sg_graph *g, struct sg_buf *out);
const char *sg_op_name(enum sg_op_code code);    /* "linear" */
const char *sg_act_name(enum sg_act act);

/* 1 when both describe the same buffer of the same layer. */
int sg_slot_equal(const struct sg_slot *a, const struct sg_slot *b);
/* Bytes of one position of a K or V slot stored as F32, F16, BF16 or Q8_0; 0 for other slots. Q8_0
 * uses blocks of 32 within each head (the last one may be shorter), so that a head can be read
 * alone. */
size_t sg_slot_row_bytes(const struct sg_slot *s, enum sg_storage storage);
/* Bytes of a whole CONV or DELTA slot, always fp32; 0 for K and V. */
size_t sg_slot_fixed_bytes(const struct sg_slot *s);
/* The first position of a K or V slot that the token at position `rows` can attend to: 0 without a
 * window. */
uint64_t sg_slot_first_needed(const struct sg_slot *s, uint64_t rows);
/* Convert one position of a K or V slot, [heads][width] fp32, to a storage and back, in the layout
 * that units exchange. */
void sg_slot_encode(const struct sg_slot *s, enum sg_storage storage, const float *row, void *out);
void sg_slot_decode(const struct sg_slot *s, enum sg_storage storage, const void *in, float *row);
/* One position from storage a to storage b, through fp32 in `row` ([heads * width]) unless they are equal. */
void sg_slot_convert(const struct sg_slot *s, enum sg_storage a, const void *from, enum sg_storage b, void *to, float *row);

/* Builder of a graph: each function below appends one op and returns its result value. The first
 * failure (memory, invalid shapes) is kept in the builder: later calls do nothing and return -1,
 * and sg_builder_end reports it. Widths are taken from operands and tensors. */
struct sg_builder {
    struct sg_graph *graph;      /* owned until sg_builder_end */
    int32_t layer;               /* set by the caller: the layer of the next ops; -1 outside layers */
    uint32_t ops_cap, values_cap, tensors_cap, ropes_cap, slots_cap, ports_cap;   /* allocated entries of the lists */
    segue_error error;           /* first failure; status SEGUE_OK: none */
};
segue_status sg_builder_begin(struct sg_builder *b, segue_error *err);
/* Validate the graph and pass it to the caller; on failure it is freed and err has the first
 * failure. */
segue_status sg_builder_end(struct sg_builder *b, struct sg_graph **out, segue_error *err);

int32_t sg_input_tokens(struct sg_builder *b);                   /* the input "tokens" */
int32_t sg_input_rows(struct sg_builder *b, uint32_t width);     /* the input "rows": hidden states of `width` columns */
/* Add an output with a printf-formatted name of at most 63 characters. */
void sg_output(struct sg_builder *b, int32_t value, const char *format, ...) SG_FORMAT(3, 4);

/* A weight operand: the whole tensor (NULL: absent), or its rows [at, at + rows). */
struct sg_weight sg_weight_of(struct sg_builder *b, const struct sg_tensor *t);
struct sg_weight sg_weight_rows(struct sg_builder *b, const struct sg_tensor *t, uint32_t at, uint32_t rows);
/* A value operand: all columns, or columns [at, at + width). sg_absent: an optional operand that is
 * not used. */
struct sg_operand sg_whole(const struct sg_builder *b, int32_t value);
struct sg_operand sg_columns(const struct sg_builder *b, int32_t value, uint32_t at, uint32_t width);
struct sg_operand sg_absent(void);

/* Add a rotary table with a copy of inverse[pairs]; returns its index. */
int32_t sg_rope_table_add(struct sg_builder *b, uint32_t pairs, const float *inverse, float mscale);

/* The ops; op.h defines what each computes. */
int32_t sg_embed(struct sg_builder *b, int32_t tokens, const struct sg_tensor *table, const struct sg_tensor *positions,
                 float scale);
int32_t sg_norm(struct sg_builder *b, struct sg_operand x, struct sg_norm p, struct sg_operand gate);
int32_t sg_linear(struct sg_builder *b, struct sg_operand x, struct sg_weight w, struct sg_weight bias,
                  struct sg_operand residual);
int32_t sg_rope(struct sg_builder *b, struct sg_operand x, uint32_t heads, int32_t table);
/* Also adds the K and V slots of the current layer; p.slot_k and p.slot_v are set here. sg_conv and
 * sg_delta add their slot likewise. */
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
/* Move the op `rows` of a complete graph to directly after the last op that writes state, if
 * possible; see early.c. */
void sg_hoist_rows(struct sg_builder *b);

#endif
