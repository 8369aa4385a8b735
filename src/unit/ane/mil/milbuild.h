/* milbuild.h: builds a program by calls. Each call appends one operation, infers its types and returns the
 * number of its first value. The first failure is stored and later calls do nothing, so a caller tests only
 * the result of sg_mil_build_end. Equal constants are stored once. Values without a name are called v0, v1,
 * ..., constants k0, k1, ...
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILBUILD_H
#define SG_UNIT_ANE_MILBUILD_H

#include "unit/ane/mil/mil.h"

/* State of one function under construction; between sg_mil_build_begin and sg_mil_build_end. */
struct sg_mil_builder {
    struct sg_mil_program *program;
    uint32_t function;   /* index in program; a pointer would not survive sg_mil_function_add */
    segue_status status; /* first failure, with its text in err */
    segue_error err;
    const char *next_name;            /* name of the next operation's value; NULL: generate one */
    uint32_t values, consts;          /* generated names so far: next v number, next k number */
    struct sg_mil_interned *interned; /* [interned_cap] hash table of constants */
    uint32_t interned_n, interned_cap;
};

/* Starts a new function in p. Add all inputs before the first operation. target: such as "ios16"; NULL: the
 * usual one of the program's dialect. */
void sg_mil_build_begin(struct sg_mil_builder *b, struct sg_mil_program *p, const char *function,
                        const char *target);
/* Sets the results of the function, frees the builder's memory and reports the first failure. The caller
 * owns the program in either case. */
segue_status sg_mil_build_end(struct sg_mil_builder *b, const uint32_t *returns, uint32_t n,
                              segue_error *err);

/* The two arguments (rank, dims) from a list of sizes. */
#define SG_MIL_SHAPE(...) \
    sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]) { __VA_ARGS__ }

/* A parameter of the function. */
uint32_t sg_mil_build_input(struct sg_mil_builder *b, const char *name, enum sg_mil_dtype d, uint32_t rank,
                            const int64_t *dim);
/* Constants with n numbers: one per element of the shape, or 1 when all are equal. The numbers are copied. */
uint32_t sg_mil_build_real_tensor(struct sg_mil_builder *b, enum sg_mil_dtype d, uint32_t rank, const int64_t *dim,
                                  const double *v, uint64_t n);
uint32_t sg_mil_build_int_tensor(struct sg_mil_builder *b, enum sg_mil_dtype d, uint32_t rank, const int64_t *dim,
                                 const int64_t *v, uint64_t n);
uint32_t sg_mil_build_real(struct sg_mil_builder *b, double v);                     /* an fp16 scalar */
uint32_t sg_mil_build_ints(struct sg_mil_builder *b, const int64_t *v, uint32_t n); /* int32 [n] */
uint32_t sg_mil_build_int(struct sg_mil_builder *b, int64_t v);
uint32_t sg_mil_build_bool(struct sg_mil_builder *b, int v);
uint32_t sg_mil_build_text(struct sg_mil_builder *b, const char *v);
/* A weight constant in a blob file. path: below @model_path/, such as "weights/w.bin"; offset: of its
 * metadata record. */
uint32_t sg_mil_build_blob(struct sg_mil_builder *b, const char *name, enum sg_mil_dtype d, uint32_t rank,
                           const int64_t *dim, const char *path, uint64_t offset);

/* A const with any literal; an equal one is reused. name: NULL: generate one. */
uint32_t sg_mil_build_literal(struct sg_mil_builder *b, const char *name, const struct sg_mil_literal *literal);

/* A named argument: one value, or a list of n values when list is not NULL. */
struct sg_mil_operand {
    const char *name;
    uint32_t value;
    const uint32_t *list;
    uint32_t n;
};
/* Appends any operation of the table and returns its first value. outputs > 1 only for split and topk. */
uint32_t sg_mil_build_op(struct sg_mil_builder *b, const char *kind, const struct sg_mil_operand *operands,
                         uint32_t n, uint32_t outputs);
/* Appends a copy of an operation and infers its types. Everything that it points to must live as long as
 * the program. */
uint32_t sg_mil_build_append(struct sg_mil_builder *b, const struct sg_mil_op *op);
/* Sets the name of the next operation's value; the string must live until that call. */
void sg_mil_build_name(struct sg_mil_builder *b, const char *name);

/* Common operations, with all arguments given explicitly: the engine's compiler is only known to accept
 * that. */
uint32_t sg_mil_build_unary(struct sg_mil_builder *b, const char *kind, uint32_t x);
uint32_t sg_mil_build_binary(struct sg_mil_builder *b, const char *kind, uint32_t x, uint32_t y);
uint32_t sg_mil_build_conv(struct sg_mil_builder *b, uint32_t x, uint32_t weight,
                           int64_t groups); /* no padding, stride 1 */
uint32_t sg_mil_build_matmul(struct sg_mil_builder *b, uint32_t x, uint32_t y, int transpose_x,
                             int transpose_y);
uint32_t sg_mil_build_reshape(struct sg_mil_builder *b, uint32_t x, uint32_t rank, const int64_t *shape);
uint32_t sg_mil_build_transpose(struct sg_mil_builder *b, uint32_t x, uint32_t rank, const int64_t *perm);
/* size -1: up to the end of the axis. */
uint32_t sg_mil_build_slice(struct sg_mil_builder *b, uint32_t x, uint32_t rank, const int64_t *begin,
                            const int64_t *size);
uint32_t sg_mil_build_concat(struct sg_mil_builder *b, const uint32_t *values, uint32_t n, int64_t axis);
uint32_t sg_mil_build_softmax(struct sg_mil_builder *b, uint32_t x, int64_t axis);
uint32_t sg_mil_build_reduce(struct sg_mil_builder *b, const char *kind, uint32_t x,
                             int64_t axis); /* keep_dims = true */
/* Type of a value; an fp16 scalar after a failure, so that callers need not test. */
const struct sg_mil_type *sg_mil_build_type(const struct sg_mil_builder *b, uint32_t value);

#endif
