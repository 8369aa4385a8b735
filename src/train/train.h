/* train.h: internal header of training: parameters, one pass over a micro-batch, the operations. The backward pass walks the
 * graph of inference in reverse; each op_*.c has the forward and the backward function of some operations.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TRAIN_TRAIN_H
#define SG_TRAIN_TRAIN_H

#include "segue_train.h"

#include "model/family.h"
#include "unit/unit.h"

/* A parameter: see segue_param_info. The four matrices are [rows, cols], in the order in which the graph multiplies. */
struct sg_param {
    segue_param_info info;
    const struct sg_tensor *tensor;
    const struct sg_tensor_row *row; /* of the family's table; NULL: unknown */
    uint32_t bias, minus_one, log;   /* each 1: it is the bias of `row`; Hugging Face stores w - 1; it stores log(-w) */
    size_t n;
    float *field[4];                 /* by segue_param_field, [n] */
};

/* How a tensor of the graph takes part. */
struct sg_train_tensor {
    int32_t param;                   /* trained: its parameter; -1: frozen */
    int32_t pair;                    /* parameter of A, followed by that of B; -1: no LoRA pair */
    float *frozen;                   /* small frozen tensors as fp32, on a resident unit all; NULL: large, or trained */
};

/* Linear operations of one layer with the same operand: one product of the device. */
struct sg_train_group { uint32_t ops[SG_TRAIN_PARTS], n; };

/* Memory blocks that are used again by the next operation or pass. */
struct sg_train_block {
    struct sg_train_block *next;
    float *data;
    size_t n;
};

struct segue_trainer {
    struct segue_model *model;
    struct sg_graph *graph;
    struct sg_train_math math;
    struct sg_train_device *device;  /* NULL, or computes the products of the layers with their weights; owned */
    struct sg_train_group *groups;   /* [groups_n] with a device */
    int32_t *group_of;               /* [ops_n] -1: in no group */
    uint32_t groups_n;
    segue_train_interval *intervals; /* [intervals_n] of the last micro-batch, with a device */
    uint32_t intervals_n, intervals_cap;
    uint64_t device_end_ns;          /* of the last interval of the device */
    uint64_t version;                /* of the values of all parameters */
    struct sg_train_resident *resident;  /* NULL: numbers are in host memory. Else every float * below, of params, blocks, angles
                                      * and passes is an address of the unit, for resident.c only */
    segue_trainer_info info;
    struct sg_param *params;         /* [info.params_n] */
    struct sg_train_tensor *tensors; /* [graph->tensors_n] */
    uint8_t *needs;                  /* [values_n] 1: a parameter is upstream, so the value has a gradient */
    uint32_t *last_segment;          /* [values_n] index of the last op of the last layer that reads the value */
    uint32_t rows_op;                /* index of the op `rows`; the ops after it are the head */
    int32_t logits;                  /* value */
    float **angles;                  /* [ropes_n] cosines, then sines, each [sequence_tokens, pairs] */
    struct sg_train_block *used_blocks, *free_blocks;
    size_t block_tokens;             /* size of the micro-batch that the blocks belong to */
    uint64_t live_bytes;             /* of values and gradients of values; the largest sum is info.activation_used */
    uint64_t labelled;               /* positions since the last update */
    struct sg_arena arena;
};

/* One micro-batch. rows[0]: all tokens; rows[1]: rows of the part of the head that is computed. */
struct sg_train_pass {
    struct segue_trainer *t;
    const struct sg_graph *g;
    const struct sg_train_math *m;
    const int32_t *tokens, *labels;
    size_t *from;                    /* [sequences + 1] first row of each sequence */
    uint32_t *position;              /* [rows[0]] in the sequence */
    uint32_t *labelled;              /* [labelled_n] rows with a label */
    uint32_t sequences, labelled_n, rows[2];
    size_t longest;
    float **values, **grads;         /* [values_n]; NULL: not computed, or freed */
    uint8_t *early;                  /* NULL, or [ops_n] 1: the product of the op is in its value, the rest is not added yet */
    struct sg_train_product product; /* of the backward pass, while the device computes it */
    uint32_t loss_only, check;       /* check 1: fail after the first op whose result is not finite */
    double loss, kl;
    uint64_t clipped;
    const segue_train_policy *policy;    /* NULL: cross entropy */
    float *logprobs;                 /* NULL, or [rows[0]] log p of the labels */
    uint32_t base;                   /* 1: LoRA pairs are left out */
    struct sg_resident_tokens on_unit;   /* the lists above, with a resident unit */
    segue_error *err;
};

struct sg_train_view { const float *data; size_t stride; uint32_t width; };
struct sg_train_grad { float *data; size_t stride; uint32_t width, fresh; }; /* fresh: as sg_resident_matrix */

/* --- values.c --- */
struct sg_train_view sg_train_in(const struct sg_train_pass *p, const struct sg_operand *x);
/* The gradient of an operand, zeroed when it is new. data NULL and OK: not needed. */
segue_status sg_train_grad_of(struct sg_train_pass *p, const struct sg_operand *x, struct sg_train_grad *out);
/* The gradients of all operands of an op on a resident unit. New ones that the op covers without overlap are fresh, not 0. */
segue_status sg_train_grads_of(struct sg_train_pass *p, const struct sg_op *op, struct sg_train_grad *out);
const float *sg_train_vector(const struct sg_train_pass *p, const struct sg_weight *w);  /* NULL: absent */
float *sg_train_vector_grad(const struct sg_train_pass *p, const struct sg_weight *w);   /* NULL: absent or frozen */
/* n numbers, contents undefined; give them back with put. NULL: EMEMORY is in p->err. */
float *sg_train_take(struct sg_train_pass *p, size_t n);
/* Memory of a value or of its gradient, which counts in live_bytes; put_live also sets *data to NULL. */
size_t sg_train_numbers(const struct sg_train_pass *p, int32_t value); /* rows * width; words of sg_train_words on a unit */
float *sg_train_take_live(struct sg_train_pass *p, int32_t value);
void sg_train_put_live(struct sg_train_pass *p, float **data, int32_t value);
void sg_train_put(struct sg_train_pass *p, float *data);
/* Words of 4 bytes that `rows` rows of a value take, and the numbers from one row to the next. */
size_t sg_train_words(const struct segue_trainer *t, size_t rows, uint32_t width);
size_t sg_train_stride(const struct segue_trainer *t, uint32_t width);
void sg_train_put_all(struct segue_trainer *t);
void sg_train_free_blocks(struct segue_trainer *t);
static inline uint32_t sg_train_rows(const struct sg_train_pass *p, const struct sg_op *op)
{
    return p->rows[p->g->values[op->out].wanted];
}
/* Calls work for each item on the unit's threads. */
static inline void sg_train_each(const struct sg_train_pass *p, uint32_t items, void (*work)(void *, uint32_t, uint32_t),
        void *arg)
{
    if (items) p->m->each(p->m, items, work, arg);
}

/* --- gemm.c: products on all threads; a number of C does not depend on them --- */
segue_status sg_train_gemm(struct sg_train_pass *p, const struct sg_gemm *g);
/* B: rows of a frozen matrix from `at` on, all its columns; g->b and g->ldb are not read. NT or NN. more: NULL, or another
 * product of the same kind and size, with factors of its own, that is added while C is written. */
segue_status sg_train_gemm_frozen(struct sg_train_pass *p, const struct sg_gemm *g, const struct sg_tensor *t, uint64_t at,
                                  const struct sg_gemm *more);
/* Outside a pass: with memory of the caller, sg_train_gemm_n numbers; NULL: 0 of them. */
size_t sg_train_gemm_n(const struct sg_train_math *m, const struct sg_gemm *g);
void sg_train_gemm_with(const struct sg_train_math *m, const struct sg_gemm *g, float *packed);

/* --- op_product.c: products on the device --- */
segue_status sg_train_groups(struct segue_trainer *t, segue_error *err);
/* NULL: the op is computed without the device. */
const struct sg_train_group *sg_train_group_of(const struct sg_train_pass *p, const struct sg_op *op);
/* The product of a linear op in its value. The first op of a group computes those of all. */
segue_status sg_train_device_forward(struct sg_train_pass *p, const struct sg_op *op);
/* Starts dx += the products of the gradients of all ops of a group; wait ends it. */
segue_status sg_train_device_back(struct sg_train_pass *p, const struct sg_train_group *group, struct sg_train_grad dx);
segue_status sg_train_device_wait(struct sg_train_pass *p);
/* Adds to the intervals of the micro-batch; more than there is place for are left out. */
void sg_train_interval(struct segue_trainer *t, segue_train_work work, int32_t layer, uint64_t begin_ns, uint64_t end_ns);
/* 1: the backward pass of op i is that of the first op of its group, and the gradient of its result stays until then. */
int sg_train_deferred(const struct sg_train_pass *p, uint32_t i);
/* 1: op i is the first of its group, and one of them has a gradient. */
int sg_train_due(const struct sg_train_pass *p, uint32_t i);
/* Operations per second of the device in the largest product of the layers, whose program it compiles. */
segue_status sg_train_device_rate(struct segue_trainer *t, double *flops_per_s, segue_error *err);

/* --- train_memory.c: numbers in host memory or on the resident unit --- */
segue_status sg_train_new(struct segue_trainer *t, size_t n, const char *what, float **out, segue_error *err);
void sg_train_delete(struct segue_trainer *t, float *p);
segue_status sg_train_zero(struct segue_trainer *t, float *p, size_t n, segue_error *err);
segue_status sg_train_write(struct segue_trainer *t, float *to, const float *host, size_t n, segue_error *err);
segue_status sg_train_read(const struct segue_trainer *t, float *host, const float *from, size_t n, segue_error *err);
/* values.c: rows of a value, or of its gradient, in the numbers that it is kept in; host has fp32 without padding. */
segue_status sg_train_write_value(struct segue_trainer *t, float *to, const float *host, size_t rows, uint32_t width,
                                  segue_error *err);
segue_status sg_train_read_value(const struct segue_trainer *t, float *host, const float *from, size_t rows, uint32_t width,
                                 segue_error *err);

/* --- resident.c: the calls of a resident unit (t->resident is not NULL) --- */
segue_status sg_resident_run(struct sg_train_pass *p, const struct sg_op *op, float *out, const float *dout);
segue_status sg_resident_select(struct sg_train_pass *p, struct sg_train_view x, const uint32_t *rows, uint32_t n, float *out);
segue_status sg_resident_select_back(struct sg_train_pass *p, struct sg_train_grad dx, const uint32_t *rows, uint32_t n,
                                     const float *dout);
segue_status sg_resident_tokens_put(struct sg_train_pass *p);    /* fills p->on_unit */
segue_status sg_resident_squares(struct segue_trainer *t, double *sums, segue_error *err); /* of each parameter's gradient */

/* --- operations: forward writes out [rows, width]; backward adds to the gradients of operands and parameters --- */
typedef segue_status sg_train_forward(struct sg_train_pass *p, const struct sg_op *op, float *out);
typedef segue_status sg_train_backward(struct sg_train_pass *p, const struct sg_op *op, const float *dout);
sg_train_forward sg_train_embed, sg_train_norm, sg_train_linear, sg_train_rope, sg_train_attend, sg_train_conv, sg_train_delta,
    sg_train_glu, sg_train_act, sg_train_add, sg_train_scale, sg_train_route, sg_train_experts;
sg_train_backward sg_train_embed_back, sg_train_norm_back, sg_train_linear_back, sg_train_rope_back, sg_train_attend_back,
    sg_train_conv_back, sg_train_delta_back, sg_train_glu_back, sg_train_act_back, sg_train_add_back, sg_train_scale_back,
    sg_train_route_back, sg_train_experts_back;
/* --- act.c --- */
float sg_train_act_of(enum sg_act act, float x);
float sg_train_act_slope(enum sg_act act, float x);
float sg_train_sigmoid(float x);
void sg_train_act_row(enum sg_act act, const float *x, size_t n, float *y, float *slope); /* slope NULL: not wanted */
void sg_train_exp_all(const float *x, size_t n, float max, float *y);    /* y = e^(x - max), x <= max */
/* --- rows.c --- */
double sg_train_exp_row(const float *x, size_t n, float max, float *y);  /* the same; returns their sum */
float sg_train_max_row(const float *x, size_t n);                        /* n > 0 */
double sg_train_sum_row(const float *x, size_t n);
double sg_train_squares_row(const float *x, size_t n, double mean);      /* of x - mean */
double sg_train_dot_row(const float *x, const float *y, size_t n);       /* of products in fp32 */

/* --- head.c: the ops after `rows` on some labelled rows at a time, with the loss --- */
segue_status sg_train_head(struct sg_train_pass *p);
uint32_t sg_train_head_rows(const struct segue_trainer *t);
/* --- ops.c --- */
segue_status sg_train_op(struct sg_train_pass *p, uint32_t i);       /* one op forward */
segue_status sg_train_op_back(struct sg_train_pass *p, uint32_t i);  /* backward; frees value and gradient of its result */
void sg_train_free_value(struct sg_train_pass *p, int32_t value);

/* --- train_pass.c --- */
segue_status sg_train_run(struct segue_trainer *t, const segue_train_batch *b, segue_train_result *out, segue_error *err);

/* --- trainer.c, train_params.c, adamw.c, figures.c, roof.c --- */
/* host NULL, or the unit that computes what `unit` cannot. */
segue_status sg_train_open(struct segue_trainer **out, struct segue_model *model, struct sg_unit *unit, struct sg_unit *host,
                           const char *spec, const segue_trainer_opts *o, segue_error *err);
void sg_train_close(struct segue_trainer *t);
segue_status sg_train_scratch(struct segue_trainer *t, segue_error *err); /* of products, in t->math */
void sg_train_free_numbers(struct segue_trainer *t);  /* parameters, frozen tensors, blocks, and the resident unit */
segue_status sg_train_angles(struct segue_trainer *t, segue_error *err);  /* of the graph's rotary tables, in the arena */
segue_status sg_train_params(struct segue_trainer *t, const segue_trainer_opts *o, segue_error *err);
segue_status sg_train_get(const struct segue_trainer *t, size_t i, segue_param_field field, segue_param_order order, float *out,
                          segue_error *err);
segue_status sg_train_put_field(struct segue_trainer *t, size_t i, segue_param_field field, segue_param_order order,
                                const float *in, segue_error *err);
segue_status sg_train_random(struct segue_trainer *t, uint64_t seed, float deviation, segue_error *err);
segue_status sg_train_update(struct segue_trainer *t, const segue_adamw *o, segue_update_result *out, segue_error *err);
void sg_train_drop(struct segue_trainer *t);
segue_status sg_train_adapter(struct segue_adapter **out, const struct segue_trainer *t, float scale, segue_error *err);
void sg_train_figures(struct segue_trainer *t);
segue_status sg_train_roof(struct segue_trainer *t, double *flops_per_s, segue_error *err);
double sg_train_uniform(uint64_t *state);                            /* in [0, 1), splitmix64 */

#endif
