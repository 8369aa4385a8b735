/* train_resident.h: what a unit with memory of its own implements to train: parameters, gradients, moments and activations are
 * resident there. src/train walks the graph, decides what lives when, and reads losses; the unit computes every operation forward
 * and backward, the loss and the update. A unit that computes in host memory offers unit/train_math.h instead.
 *
 * Values and their gradients have numbers of sg_train_resident_base.value_bytes: 4, fp32, or 2, bf16; their pointers are float *
 * in both cases. Everything else is fp32. With 2 bytes, rows are sg_resident_stride apart, and the padding is 0 at all times.
 * Pointers to numbers are addresses in the unit's memory, unless they are named host. Calls are executed in their order; only
 * those that return numbers to the host, and `write`, wait. Every sum has one order that depends on shapes alone.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_TRAIN_RESIDENT_H
#define SG_UNIT_TRAIN_RESIDENT_H

#include "base/err.h"
#include "graph/graph.h"

/* Columns of a value or of its gradient, one row per token. data NULL: absent, or a gradient that nothing needs. fresh 1: the
 * contents are undefined, so an op writes its part instead of adding it; with 2 bytes only. */
struct sg_resident_matrix { float *data; size_t stride; uint32_t width, fresh; };
/* Rows of a tensor. value NULL: absent; gradient NULL: frozen. */
struct sg_resident_weight { const float *value; float *gradient; uint32_t rows, cols; };

/* The tokens of a micro-batch: sequences one after the other. */
struct sg_resident_tokens {
    const int32_t *ids, *labels;     /* [rows]; a label of -1: none */
    const uint32_t *position;        /* [rows] in its sequence */
    const uint32_t *from;            /* [sequences + 1] first row of each */
    const uint32_t *labelled;        /* rows with a label, ascending */
    uint32_t rows, sequences, longest;
    /* [labelled rows][4]: advantage, weight, log-probability when sampled, that of the reference; NULL: cross entropy. The loss
     * is that of segue_train_policy; kl 0: no reference. */
    const float *policy;
    float clip, kl;
};

/* One op. Forward writes out [rows, width]; backward adds to `grad` and to the gradients of weights. The gradient of a
 * residual may be dout itself; then there is nothing to add. */
struct sg_resident_call {
    const struct sg_op *op;
    uint32_t back, rows;
    const struct sg_resident_tokens *tokens;
    struct sg_resident_matrix in[SG_OP_INPUTS], grad[SG_OP_INPUTS];
    /* embed: table, positions. norm, linear, conv: weight, bias. attend: sinks. delta: decay, dt. scale: weight. */
    struct sg_resident_weight weight[2];
    struct sg_resident_weight pair[2];   /* linear: A and B of a LoRA pair */
    float pair_scale;
    const float *angles;             /* rope: cosines [angle_rows, pairs], then sines */
    uint32_t angle_rows, pairs, width;   /* width of out */
    float *out;
    const float *dout;
    size_t stride;                   /* of rows of out and dout */
};

/* The update of AdamW of one parameter; the gradient becomes 0. */
struct sg_resident_adamw {
    float *value, *gradient, *moment1, *moment2;
    size_t n;
    float scale, keep, step, beta1, beta2, root, eps; /* as src/train/adamw.c uses them */
};

struct sg_train_resident;
struct sg_train_resident_ops {
    void (*close)(struct sg_train_resident *r);
    /* EUNSUPPORTED names the op, its layer and the reason. */
    segue_status (*can)(const struct sg_train_resident *r, const struct sg_graph *g, const struct sg_op *op, segue_error *why);
    segue_status (*alloc)(struct sg_train_resident *r, size_t n, float **out, segue_error *err); /* contents undefined */
    void (*free)(struct sg_train_resident *r, float *p);
    segue_status (*zero)(struct sg_train_resident *r, float *p, size_t n, segue_error *err);
    segue_status (*write)(struct sg_train_resident *r, void *to, const void *host, size_t bytes, segue_error *err);
    segue_status (*read)(struct sg_train_resident *r, void *host, const void *from, size_t bytes, segue_error *err);
    segue_status (*run)(struct sg_train_resident *r, const struct sg_resident_call *c, segue_error *err);
    /* out [n, x.width] = rows of x; back: dx rows += dout. rows are distinct. */
    segue_status (*select)(struct sg_train_resident *r, struct sg_resident_matrix x, const uint32_t *rows, uint32_t n, float *out,
                           segue_error *err);
    segue_status (*select_back)(struct sg_train_resident *r, struct sg_resident_matrix dx, const uint32_t *rows, uint32_t n,
                                const float *dout, segue_error *err);
    /* n rows of logits, the tokens labelled[at] and following: their cross entropies, and the gradient of the loss, which is that
     * of the policy where there is one. dlogits NULL: loss only. */
    segue_status (*loss)(struct sg_train_resident *r, const struct sg_resident_tokens *t, uint32_t at, uint32_t n, uint32_t vocab,
                         const float *logits, float *dlogits, segue_error *err);
    /* The cross entropies (host) of the first n labelled tokens of the micro-batch. */
    segue_status (*losses)(struct sg_train_resident *r, uint32_t n, double *out, segue_error *err);
    /* sums[i] (host): the sum of the squares of x[i], of n[i] numbers. */
    segue_status (*squares)(struct sg_train_resident *r, const float *const *x, const size_t *n, size_t count, double *sums,
                            segue_error *err);
    segue_status (*adamw)(struct sg_train_resident *r, const struct sg_resident_adamw *a, segue_error *err);
};
/* First member of each unit's struct. */
struct sg_train_resident_base { const struct sg_train_resident_ops *ops; uint32_t value_bytes; };

/* Numbers from one row of a value to the next. Rows of bf16 begin at 16 bytes; uneven ones have whole tiles. */
static inline size_t sg_resident_stride(uint32_t value_bytes, uint32_t width)
{
    return value_bytes == 4 || width % 8 == 0 ? width : ((size_t)width + 127) / 128 * 128;
}

static inline uint32_t sg_resident_value_bytes(const struct sg_train_resident *r)
{
    return ((const struct sg_train_resident_base *)(const void *)r)->value_bytes;
}

static inline const struct sg_train_resident_ops *sg_resident_ops(const struct sg_train_resident *r)
{
    return ((const struct sg_train_resident_base *)(const void *)r)->ops;
}

#endif
