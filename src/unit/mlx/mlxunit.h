/* mlxunit.h: internal header of the unit `mlx`, which computes graphs with MLX (Apple's GPU, or the CPU). mlx_unit.c: the table;
 * mlx_owner.c: the thread that makes all calls of MLX; mlx_weights.c, mlx_stack.c: weights; mlx_ops.c, mlx_mixers.c: the ops;
 * mlx_operands.c: their helpers; mlx_adapters.c: LoRA; mlx_pass.c: passes; mlx_segment.c, mlx_compiled.c: compiled ones;
 * mlx_list.c: a list of their arrays; mlx_range.c: results beyond fp16; mlx_run.c: runs; mlx_step.c: decode steps issued ahead;
 * mlx_state.c, mlx_transfer.c, mlx_memory.c: states; mxc.cpp, mxc_ops.cpp: the calls of MLX behind the C interface mxc.h.
 *
 * A pass over the graph only builds arrays; MLX computes them when the results are read.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_MLX_MLXUNIT_H
#define SG_UNIT_MLX_MLXUNIT_H

#include "unit/batch.h"
#include "unit/mlx/mxc.h"
#include "unit/state_core.h"

extern const struct sg_unit_ops sg_unit_mlx;

/* --- owner thread --- */

struct mlx_job {
    void (*run)(void *arg);
    void *arg;
    int done;
    struct mlx_job *next;
};
struct mlx_owner {
    pthread_t thread;
    pthread_mutex_t lock;            /* guards the members below */
    pthread_cond_t changed;
    struct mlx_job *first, **last;   /* the queue */
    int stop;
};
/* MLX's streams belong to the thread that created them. Runs `run` on that thread and waits for it. */
void mlx_call(struct sg_unit *u, void (*run)(void *arg), void *arg);
segue_status mlx_owner_start(struct mlx_owner *o, segue_error *err);
void mlx_owner_stop(struct mlx_owner *o);

/* The matrices of an adapter on the device. */
enum { MLX_ADAPTERS = 16 };
struct mlx_adapter {
    uint64_t id, used;               /* id of struct sg_lora; value of adapters_used at its last use, 0: free */
    enum mxc_type type;
    uint32_t pairs_n;
    struct mxc_held **matrices;      /* [2 * pairs_n] A and B of each pair; NULL: not used yet */
};
void mlx_adapter_clear(struct mlx_adapter *a);

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_desc desc;
    struct mlx_owner owner;
    struct mxc_device *device;       /* this and the tape: used on the owner thread */
    struct mxc_tape *tape;           /* empty between jobs */
    int gpu;
    enum mxc_type type;              /* of all values, unless `follows` */
    int follows;                     /* 1: values have the prevailing type of the model's weights, or `type` if there is none */
    struct mlx_adapter adapters[MLX_ADAPTERS];
    uint64_t adapters_used;
    struct sg_host_memory host;      /* memory of MLX for states of other units (mlx_memory.c) ... */
    struct mlx_memory *memory;       /* ... a list; host_lock guards it */
    pthread_mutex_t host_lock;
    uint64_t programs;               /* compiled so far */
    uint64_t steps_issued;           /* so far, dropped ones too */
    atomic_ullong states;            /* made so far */
};
/* The tape's failure as an error; SEGUE_OK when there is none. */
segue_status mlx_status(const struct sg_unit *u, const char *verb, segue_error *err);

/* --- weights --- */

/* What an op needs of a tensor: the matrix, the numbers of a vector, the numbers plus one (norms), or those of a convolution by
 * tap. Taps are numbers of the unit's type, held as fp32. The last two are fp32 with every type of the unit: what routers and the
 * delta rule compute with. */
enum mlx_role { MLX_MATRIX, MLX_VECTOR, MLX_PLUS_ONE, MLX_TAPS, MLX_MATRIX_FP32, MLX_VECTOR_FP32, MLX_ROLES };
struct mlx_weight {
    const struct sg_tensor *tensor;
    enum mlx_role role;
    struct mxc_held *numbers;        /* dense in the type of its role, or the codes of MLX's affine form ... */
    struct mxc_held *scales, *biases;    /* ... with these, [rows, cols / group]; else NULL */
    uint32_t group, bits;            /* bits 0: dense */
    uint32_t taps;                   /* MLX_TAPS: taps of the convolution; else 0 */
    struct mxc_held **each;          /* MLX_TAPS: one vector per tap, [taps] of [1, channels]; else NULL */
};
/* Matrices that are multiplied with one value, as one: a single row takes one product instead of several. The arrays of the
 * matrices are parts of it. */
enum { MLX_STACK_OPS = 8 };
struct mlx_stack {
    const struct sg_tensor *tensors[MLX_STACK_OPS];  /* [n] */
    uint32_t n;
    struct mlx_weight all;           /* tensor NULL */
    struct mxc_held *bias;           /* [rows of all], dense only; NULL: none */
};
/* The weights of all graphs of one compilation, shared by its programs. */
struct mlx_weights {
    atomic_uint refs;
    struct mlx_weight *list;         /* [n] */
    uint32_t n, cap;
    struct mlx_stack *stacks;        /* [stacks_n] */
    uint32_t stacks_n;
    enum mxc_type type;              /* of all values */
    uint64_t bytes;                  /* of all arrays */
};
/* 1: the value is fp32 with every type of the unit: router logits, whose rounding would select other experts, and routings. */
int mlx_is_fp32(const struct sg_graph *g, int32_t value);
/* The type in which most numbers of the weights are stored: F32, BF16, or F16, which stands for the others (the scales of GGUF's
 * quantised blocks are fp16). */
enum mxc_type mlx_prevailing_type(const struct sg_graph *const *graphs, uint32_t n, enum mxc_type otherwise);
/* On the owner thread. Adds the weights of a graph that are not there yet. */
segue_status mlx_weights_add(struct mlx_weights *w, struct sg_unit *u, const struct sg_graph *g, segue_error *err);
void mlx_weights_release(struct mlx_weights *w);
/* On the owner thread, after the weights of all graphs were added. Stacks those of a graph. */
segue_status mlx_stacks_add(struct mlx_weights *w, struct sg_unit *u, const struct sg_graph *g, segue_error *err);
/* of, at [ops_n]: the stack of an op, -1: none, and its first row there. */
segue_status mlx_stacks_find(const struct mlx_weights *w, const struct sg_graph *g, int32_t *of, uint32_t *at, segue_error *err);
/* Repacks one row of Q4_0, Q4_1 or Q8_0 into MLX's affine form with groups of 32: codes[cols * bits / 32], and fp16 scales and
 * biases [cols / 32]. Returns 0 when a bias is not a finite fp16. */
int mlx_repack_row(enum sg_storage storage, const void *row, uint64_t cols, uint32_t *codes, uint16_t *scales, uint16_t *biases);

/* A part of a graph that is compiled: the ops between two attentions. */
struct mlx_segment {
    uint32_t from, to;               /* ops [from, to); op `to`, if there is one, attends */
    int32_t gated;                   /* op that attends before `from` and whose gate is applied here; -1: none */
    int32_t *in, *out;               /* [in_n], [out_n] values that come from before, and that are used later */
    uint32_t in_n, out_n;
    uint32_t *slots;                 /* [slots_n] recurrent slots of its ops */
    uint32_t slots_n;
};
/* free may be called after a failed new. */
segue_status mlx_segments_new(const struct sg_graph *g, struct mlx_segment **out, uint32_t *n, segue_error *err);
void mlx_segments_free(struct mlx_segment *list, uint32_t n);

enum { MLX_VARIANTS = 16 };
struct sg_program {
    struct sg_program_base base;
    struct mlx_weights *weights;
    const struct mlx_weight **by_tensor; /* [tensors_n * MLX_ROLES] */
    struct mxc_held **periods;       /* [ropes_n] */
    uint8_t *fp32;                   /* [values_n] mlx_is_fp32 */
    int32_t *stack_of;               /* [ops_n] index into weights->stacks, -1: none ... */
    uint32_t *stack_at;              /* ... and the first row of the op's matrix in it */
    enum mxc_type type;              /* of all values */
    int step_fits;                   /* mlx_step_fits */
    int selects;                     /* 1: some ops have a row for each wanted one */
    struct mlx_segment *segments;    /* [segments_n] */
    uint32_t segments_n;
    struct mlx_variant *variants[MLX_VARIANTS];  /* NULL: free */
    uint64_t variants_used;
    uint64_t number;                 /* among the programs of the unit */
    uint64_t read_per_token, scratch;
    char converted[160];             /* matrices that do not stay quantised; "": none */
};
static inline const struct mlx_weight *mlx_weight_of(const struct sg_program *p, int32_t tensor, enum mlx_role role)
{
    return p->by_tensor[(uint32_t)tensor * MLX_ROLES + role];
}

/* --- a pass --- */

/* T = tokens of all spans, R = wanted ones; index 0 is T, 1 is R. */
struct mlx_pass {
    struct sg_program *program;
    const struct sg_graph *graph;
    struct sg_unit *unit;
    struct mxc_tape *t;
    const struct sg_span *spans;
    uint32_t spans_n;
    uint32_t rows_n[2];
    uint32_t *from[2];               /* [spans_n + 1] first row of each span */
    mxc_ref *values;                 /* [values_n] [T or R, width] */
    mxc_ref *pieces;                 /* [spans_n] scratch of an op */
    mxc_ref *products;               /* [stacks_n] with stacked matrices; MXC_NONE: not built yet */
    enum mxc_type type;              /* of the program */
    const struct mxc_held *token;    /* uint32 [spans_n], instead of those of the spans; NULL: none */
    struct mxc_held *const *fixed;   /* [spans_n, slots_n] recurrent slots before a compiled pass, NULL: of the states ... */
    struct mxc_held **fixed_next;    /* ... and after it, NULL: mlx_state_set_next */
    /* While a segment is built: */
    const struct mlx_segment *segment;   /* NULL: a pass over the spans */
    mxc_ref positions;               /* int32 [spans_n] */
    const mxc_ref *before;           /* [slots_n of the segment, spans_n] contents of the slots, as in struct mlx_slot ... */
    mxc_ref *after;                  /* ... and after the pass */
    const mxc_ref *adapters;         /* the next matrices of adapters, in the order of mlx_pairs */
    mxc_ref *states;                 /* [states_n] new arrays of slots, and up to two more, computed with the results */
    uint32_t states_n;
    uint64_t weight_bytes, state_bytes, arrays, overflows;
};
/* close may be called after a failed open. */
segue_status mlx_pass_open(struct mlx_pass *p, struct sg_program *program, const struct sg_span *spans, uint32_t spans_n,
                           segue_error *err);
void mlx_pass_close(struct mlx_pass *p);
void mlx_pass_layout(struct mlx_pass *p);
/* On the owner thread: layout and inputs, then each op that is not left out because no row is wanted. */
segue_status mlx_pass_begin(struct mlx_pass *p, segue_error *err);
int mlx_pass_skips(const struct mlx_pass *p, const struct sg_op *op);
segue_status mlx_pass_op(struct mlx_pass *p, const struct sg_op *op, segue_error *err);
/* What is read of a pass that chooses greedily. */
struct mlx_best {
    mxc_ref logits, token;           /* [R, vocab]; uint32 [R] the best token of each row */
    mxc_ref flag;                    /* scalar: finite if all numbers are (fp16: also those of mlx_range_flag) */
};
struct mlx_best mlx_best_of(struct mlx_pass *p);

/* 1: the spans can be computed by mlx_pass_compiled. */
int mlx_compiles(const struct sg_program *p, const struct sg_span *spans, uint32_t n);
/* On the owner thread, after mlx_pass_begin: all ops, with compiled segments. */
segue_status mlx_pass_compiled(struct mlx_pass *p, segue_error *err);
void mlx_variant_free(struct mlx_variant *v);

/* Lists the arrays that MLX computes in a pass, without computing them, op by op; value: 1 for the result of the op. Compiled:
 * those of a decode step, without op (NULL) and value. The states, and with MLX_LIST_FUSED programs that were not used before,
 * are afterwards only fit to be freed. */
enum mlx_listed { MLX_LIST_OPS, MLX_LIST_COMPILED, MLX_LIST_FUSED };    /* FUSED: what a GPU fuses is one array */
typedef void mlx_list_fn(void *context, const struct sg_op *op, const char *primitive, enum mxc_type type, int value);
segue_status mlx_list_arrays(struct sg_program *program, const struct sg_span *spans, uint32_t spans_n, enum mlx_listed how,
                             mlx_list_fn *each, void *context, segue_error *err);

mxc_ref mlx_cast(struct mlx_pass *p, mxc_ref x, enum mxc_type type);    /* x itself where it has the type */
/* An operand in the unit's type, or in fp32; MXC_NONE: absent. */
mxc_ref mlx_operand(struct mlx_pass *p, const struct sg_operand *x);
mxc_ref mlx_operand_fp32(struct mlx_pass *p, const struct sg_operand *x);
mxc_ref mlx_vector(struct mlx_pass *p, const struct sg_weight *w, enum mlx_role role);  /* [n], MXC_NONE: absent */
mxc_ref mlx_rows_of(struct mlx_pass *p, mxc_ref x, uint32_t from, uint32_t to);
mxc_ref mlx_join_pieces(struct mlx_pass *p);     /* the pieces of all spans, one after the other */
/* Builds the result of an op. Failures are in the tape. */
mxc_ref mlx_op(struct mlx_pass *p, const struct sg_op *op);
mxc_ref mlx_op_rope(struct mlx_pass *p, const struct sg_op *op);
mxc_ref mlx_op_attend(struct mlx_pass *p, const struct sg_op *op);  /* without the gate */
mxc_ref mlx_op_gate(struct mlx_pass *p, const struct sg_op *op, mxc_ref attended);
mxc_ref mlx_op_conv(struct mlx_pass *p, const struct sg_op *op);
mxc_ref mlx_op_delta(struct mlx_pass *p, const struct sg_op *op);

/* y, the result of a linear op for x, plus the products of the adapters of each span. */
mxc_ref mlx_add_adapters(struct mlx_pass *p, const struct sg_op *op, mxc_ref x, mxc_ref y);
/* The products that adapters add, in the order in which they are built: op, span, number among its adapters, rank. */
enum { MLX_PAIR_NUMBERS = 4 };
segue_status mlx_pairs(struct mlx_pass *p, uint32_t **list, uint32_t *n, segue_error *err);
/* Their matrices for the ops of a segment, two each; returns how many. */
uint32_t mlx_pair_inputs(struct mlx_pass *p, const struct mlx_segment *s, mxc_ref *in);
/* A number for the span's list of adapters; 0: none. */
uint64_t mlx_adapters_of(const struct sg_span *span);

/* The last op that stores rows of all tokens, NULL: none; after it there are only the wanted rows. */
const struct sg_op *mlx_last_mixer(const struct sg_graph *g);
/* fp16 only. An array that is NaN if a result of the pass is not finite, else 0: infinite results reach the outputs or the rows
 * that the last mixer stores. MXC_NONE: the unit's type has the range of fp32. */
mxc_ref mlx_range_flag(struct mlx_pass *p);
/* Names the first op of the computed pass with results that are not finite, and counts them. EUNSUPPORTED. */
segue_status mlx_range_fail(struct mlx_pass *p, segue_error *err);

/* --- states --- */

enum { MLX_BLOCK_TOKENS = 256 };     /* K and V grow by this */
struct mlx_slot {
    struct sg_core_slot core;
    struct mxc_held *array;          /* K, V: [1, heads, cap, width]; CONV: [rows, channels], fp32 or the type of a program;
                                      * DELTA: [1, heads, width, depth]; NULL: K, V: nothing is held; else zeros */
    struct mxc_held *next;           /* CONV, DELTA: contents after the pass in progress */
};
/* What a sequence of an issued step must be when it is used. */
struct mlx_expected {
    int32_t input;                   /* token ... */
    uint64_t first;                  /* ... at this position */
    uint64_t state, version;         /* number and version of its state */
    uint64_t adapters;               /* mlx_adapters_of */
};
/* A decode step of some sequences that was issued; it belongs to the state of the first. Its rows of K and V are in the slots,
 * beyond the ends of the sequences. */
struct mlx_issued {
    struct mxc_held *logits, *token, *flag;  /* as in struct mlx_best; NULL: no step */
    struct mxc_held **fixed;         /* [spans_n, slots_n] recurrent slots after it */
    struct mlx_expected *expected;   /* [spans_n] */
    uint32_t spans_n, spans_cap;
    uint64_t program;                /* its number */
};
struct sg_state {
    struct sg_state_core core;
    struct mxc_held **undo;          /* [marks_cap * slots_n] recurrent slots of the marks */
    uint64_t number;                 /* among the states of the unit */
    uint64_t version;                /* rises when a slot changes otherwise than by issued steps */
    struct mlx_issued issued[2];     /* the step of the current run, and the one after it */
};
static inline struct mlx_slot *mlx_slot_at(const struct sg_state *s, uint32_t i)
{
    return (struct mlx_slot *)(void *)sg_core_slot_at(&s->core, i);
}
enum mxc_type mlx_type_of(enum sg_storage s);    /* of K and V; fp32 for q8_0 */
/* [rows, heads * width] as [1, heads, rows, width]. */
mxc_ref mlx_by_head(struct mxc_tape *t, mxc_ref x, uint32_t rows, uint32_t heads, uint32_t width);
/* On the owner thread. K or V with `rows`, [n, heads * width], written at position `at`; [1, heads, cap, width]. */
mxc_ref mlx_state_append(struct sg_unit *u, struct sg_state *s, uint32_t slot, mxc_ref rows, uint64_t at, uint32_t n);
/* K or V with the capacity for positions before `end`. */
mxc_ref mlx_state_grown(struct sg_unit *u, struct mlx_slot *s, enum sg_storage storage, uint64_t end);
/* The contents of a recurrent slot before the pass. */
mxc_ref mlx_state_fixed(struct sg_unit *u, struct mlx_slot *s);
/* New contents in the shape of its array. */
mxc_ref mlx_state_shaped(struct sg_unit *u, const struct mlx_slot *s, mxc_ref x);
void mlx_state_set_next(struct sg_unit *u, struct sg_state *s, uint32_t slot, mxc_ref x);
void mlx_state_commit(struct sg_state *s, uint32_t tokens);
void mlx_state_discard(struct sg_state *s);
void mlx_issued_clear(struct sg_state *s, struct mlx_issued *i);
void mlx_issued_free(struct mlx_issued *i);  /* after clear */

segue_status mlx_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n, const struct sg_state_opts *o,
                           struct sg_state **out, segue_error *err);
void mlx_state_free(struct sg_state *s);
segue_status mlx_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err);
uint64_t mlx_state_bytes(const struct sg_state *s);
segue_status mlx_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage, void *out,
                           segue_error *err);

/* Memory that states of other units take, so that their recurrent slots can be taken over. */
void mlx_memory_open(struct sg_unit *u);
void mlx_memory_close(struct sg_unit *u);
const struct sg_host_memory *mlx_memory_host(struct sg_unit *u);     /* NULL: host and unit do not share memory */
segue_status mlx_state_attach(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                              const void *at, segue_error *err);

/* --- decode steps, the next one issued before the result of this one is used --- */

enum { MLX_STEP_SPANS = 32 };        /* more sequences are computed op by op */
/* 1: the graph can be computed so: from tokens to logits. */
int mlx_step_fits(const struct sg_graph *g);
/* On the owner thread. One row of each span of the pass. tokens [spans_n]: the best ones; *finite 0: some number is not finite.
 * Leaves the slots for mlx_state_commit, and issued[0] of the first state with the logits, which the caller clears. ahead 1:
 * issues the step after it, for the best tokens. */
segue_status mlx_step_run(struct mlx_pass *p, int ahead, int32_t *tokens, int *finite, segue_error *err);
mxc_ref mlx_step_logits(const struct mlx_pass *p);

/* --- runs --- */

segue_status mlx_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                       segue_error *err);

#endif
