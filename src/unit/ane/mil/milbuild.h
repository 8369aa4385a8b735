/* milbuild.h: making a program by calls: one call appends one operation and gives its value. Types are
 * inferred as it is made; the first failure is kept and everything after it does nothing, so a caller asks
 * once, at the end. Constants that are equal are made once, named k0, k1, ...; values without a name are v0,
 * v1, ... SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILBUILD_H
#define SG_UNIT_ANE_MILBUILD_H

#include "unit/ane/mil/mil.h"

struct sg_mil_builder {
    struct sg_mil_program *program;
    uint32_t function;   /* index in program */
    segue_status status; /* the first failure */
    segue_error err;
    const char *next_name;        /* of the next operation; NULL: v0, v1, ... */
    uint32_t values, consts;      /* names given so far */
    struct sg_mil_interned *interned; /* [shared_cap] constants by hash */
    uint32_t interned_n, interned_cap;
};

/* A new function in p; inputs come first, then operations, then the return. target: "ios16"; NULL: the
 * dialect's. */
void sg_mil_build_begin(struct sg_mil_builder *b, struct sg_mil_program *p, const char *function,
                        const char *target);
/* Sets the results, frees what the builder holds, and gives the first failure. The program stays the
 * caller's. */
segue_status sg_mil_build_end(struct sg_mil_builder *b, const uint32_t *returns, uint32_t n,
                              segue_error *err);

#define SG_MIL_SHAPE(...) \
    sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]) { __VA_ARGS__ }

uint32_t sg_mil_build_input(struct sg_mil_builder *b, const char *name, enum sg_mil_dtype d, uint32_t rank,
                            const int64_t *dim);
/* Constants. n: 1 for all alike, or as many as the shape has. */
uint32_t sg_mil_build_real_tensor(struct sg_mil_builder *b, enum sg_mil_dtype d, uint32_t rank, const int64_t *dim,
                            const double *v, uint64_t n);
uint32_t sg_mil_build_int_tensor(struct sg_mil_builder *b, enum sg_mil_dtype d, uint32_t rank, const int64_t *dim,
                             const int64_t *v, uint64_t n);
uint32_t sg_mil_build_real(struct sg_mil_builder *b, double v);                     /* an fp16 scalar */
uint32_t sg_mil_build_ints(struct sg_mil_builder *b, const int64_t *v, uint32_t n); /* int32 [n] */
uint32_t sg_mil_build_int(struct sg_mil_builder *b, int64_t v);
uint32_t sg_mil_build_bool(struct sg_mil_builder *b, int v);
uint32_t sg_mil_build_text(struct sg_mil_builder *b, const char *v);
/* A weight: path below @model_path/, such as "weights/w.bin"; offset: of the blob's record. */
uint32_t sg_mil_build_blob(struct sg_mil_builder *b, const char *name, enum sg_mil_dtype d, uint32_t rank,
                           const int64_t *dim, const char *path, uint64_t offset);

/* Any literal as a const; equal ones are made once. name: NULL for k0, k1, .. */
uint32_t sg_mil_build_literal(struct sg_mil_builder *b, const char *name, const struct sg_mil_literal *literal);

struct sg_mil_operand {
    const char *name;
    uint32_t value; /* or a list: */
    const uint32_t *list;
    uint32_t n;
};
/* Any operation of the table; the first of its values. outputs > 1 only for split and topk. */
uint32_t sg_mil_build_op(struct sg_mil_builder *b, const char *kind, const struct sg_mil_operand *operands,
                         uint32_t n, uint32_t outputs);
/* An operation as it stands; what it points to must live as long as the program, its types are inferred. */
uint32_t sg_mil_build_append(struct sg_mil_builder *b, const struct sg_mil_op *op);
/* The name of the next operation's value. */
void sg_mil_build_name(struct sg_mil_builder *b, const char *name);

/* Common ones, arguments complete as the engine's compiler wants them. */
uint32_t sg_mil_build_unary(struct sg_mil_builder *b, const char *kind, uint32_t x);
uint32_t sg_mil_build_binary(struct sg_mil_builder *b, const char *kind, uint32_t x, uint32_t y);
uint32_t sg_mil_build_conv(struct sg_mil_builder *b, uint32_t x, uint32_t weight,
                           int64_t groups); /* valid, stride 1 */
uint32_t sg_mil_build_matmul(struct sg_mil_builder *b, uint32_t x, uint32_t y, int transpose_x,
                             int transpose_y);
uint32_t sg_mil_build_reshape(struct sg_mil_builder *b, uint32_t x, uint32_t rank, const int64_t *shape);
uint32_t sg_mil_build_transpose(struct sg_mil_builder *b, uint32_t x, uint32_t rank, const int64_t *perm);
/* size -1: to the end. */
uint32_t sg_mil_build_slice(struct sg_mil_builder *b, uint32_t x, uint32_t rank, const int64_t *begin,
                            const int64_t *size);
uint32_t sg_mil_build_concat(struct sg_mil_builder *b, const uint32_t *values, uint32_t n, int64_t axis);
uint32_t sg_mil_build_softmax(struct sg_mil_builder *b, uint32_t x, int64_t axis);
uint32_t sg_mil_build_reduce(struct sg_mil_builder *b, const char *kind, uint32_t x,
                             int64_t axis); /* keeps the axis as 1 */
const struct sg_mil_type *sg_mil_build_type(const struct sg_mil_builder *b,
                                            uint32_t value); /* an fp16 scalar after a failure */

#endif
