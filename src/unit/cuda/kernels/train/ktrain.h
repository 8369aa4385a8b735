/* ktrain.h: arguments of the training kernels (k_train_*.cu), one plain struct by value for each kernel. Included by C, by CUDA and,
 * for tests without a GPU, by C++. All numbers are fp32. No kernel adds with atomics: every sum has one order that depends on
 * shapes alone.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KTRAIN_H
#define SG_UNIT_CUDA_KTRAIN_H

#include <stddef.h>
#include <stdint.h>

/* How matrices of fp32 are multiplied, see k_train_tile.cuh. CT_VALUES_BF16: values are bf16, see ktrain_bf16.h. */
enum ct_products { CT_FP32, CT_TF32, CT_BF16, CT_PRODUCTS, CT_VALUES_BF16 = CT_PRODUCTS };
enum {
    CT_THREADS = 256,
    CT_TILE = 64, CT_LARGE = 128, CT_DEEP = 16, /* tiles of a product: rows and columns; numbers of the sum per stage */
    CT_LANES = 8,              /* threads that share a column (or row) of the delta rule's matrix ... */
    CT_DELTA_MAX = 256,        /* ... which has at most this many numbers */
    CT_DELTA_BLOCK = 32,       /* columns or rows of a block */
    CT_PART_COLUMNS = 32       /* columns of a block that sums over rows; it has 8 rows of threads */
};

/* Columns of a value: `width` numbers, rows `stride` apart. */
struct ct_matrix { float *p; size_t stride; uint32_t width, pad; };

/* C [rows, cols] = (add ? C : 0) + scale * sum over `inner` of A B. A(i, k) is a[i lda + k], or with kind TN a[k lda + i]; B(k, j)
 * is b[k ldb + j], or with kind NT b[j ldb + k]. splits > 1: grid z has a part of the sum each, of `part` numbers, in
 * parts [splits, rows, cols]. */
enum ct_gemm_kind { CT_NT, CT_NN, CT_TN, CT_GEMM_KINDS };
struct ct_gemm {
    const float *a, *b;
    float *c, *parts;
    size_t lda, ldb, ldc;
    uint32_t rows, cols, inner, splits, part;
    float scale;
    uint32_t add, kind;
};
/* c (+)= scale * the sum of `splits` parts, ascending. */
struct ct_sum { const float *parts; float *c; size_t ldc; uint32_t rows, cols, splits, add; float scale; uint32_t pad; };

struct ct_embed { const float *table, *positions; const int32_t *ids; const uint32_t *position; float *out; float scale; uint32_t rows, width; };
/* gradient[index[t]] += scale dout[t], for equal indices in the order of t. */
struct ct_embed_back { float *gradient; const int32_t *index; const float *dout; float scale; uint32_t rows, width; };

struct ct_norm {
    struct ct_matrix x, gate, dx, dgate; /* p NULL: absent */
    const float *weight, *bias, *dout;
    float *out, *stats;                  /* stats [rows, groups] mean and 1 / std; of backward */
    float eps, plus;                     /* plus 1: the weight is w + 1 */
    uint32_t rows, groups, group, layer;
};

struct ct_rope { struct ct_matrix x; float *out; const float *cosine, *sine; const uint32_t *position;
                 uint32_t rows, heads, head_width, pairs, width; float sign; };

/* Elementwise: y = f(a, b), see k_train_small.cu. */
enum ct_small_kind { CT_GLU, CT_ACT, CT_ADD, CT_SCALE, CT_GLU_BACK, CT_ACT_BACK, CT_ADD_TO, CT_SCALE_BACK, CT_BIAS };
struct ct_small {
    struct ct_matrix x, y, dx, dy;
    const float *dout, *weight;
    float *out;                          /* [rows, width]; of CT_ADD_TO: rows `out_stride` apart */
    size_t out_stride;
    float value;
    uint32_t rows, width, act, kind, one; /* one 1: weight is a single number */
};

/* Rows: out[i] = x[list[i]], or x[list[i]] += dout[i]. */
struct ct_rows { struct ct_matrix x; const uint32_t *list; float *out; const float *dout; uint32_t n, pad; };

/* Sums over rows, in `chunks` of rows each: parts [chunks, columns]. */
enum ct_columns_kind { CT_OF_DOUT, CT_OF_NORM_WEIGHT, CT_OF_NORM_BIAS, CT_OF_PRODUCT, CT_OF_CONV };
struct ct_columns {
    const float *dout;                   /* [rows, width] */
    struct ct_matrix x, gate;
    const float *stats;
    const uint32_t *position;
    float *parts;
    uint32_t kind, rows, width, groups, columns, chunk, taps, pad; /* rows counts groups; columns of the result */
};

struct ct_conv { struct ct_matrix x, dx; const float *weight, *bias, *dout; float *out, *du; const uint32_t *position;
                 uint32_t rows, width, taps, act; };

/* rows: as sg_resident_tokens.policy, from the first row of the launch. */
struct ct_policy { const float *rows; float clip, kl; };
struct ct_loss {
    const float *logits;
    float *dlogits;
    const int32_t *labels;
    const uint32_t *rows;
    double *loss;
    struct ct_policy policy;
    uint32_t n, vocab;
};

struct ct_adamw { float *value, *gradient, *moment1, *moment2; size_t n; float scale, keep, step, beta1, beta2, root, eps; uint32_t pad; };
/* sums[block]: of the squares of CT_SQUARES numbers. */
enum { CT_SQUARES = 1 << 14 };
struct ct_squares { const float *x; double *sums; size_t n; };

/* --- attention ---
 * Item z of a launch is query head `heads_from + z % heads_n` of sequence z / heads_n; scores are [items, longest, longest]. */
struct ct_attend {
    struct ct_matrix q, k, v, gate, dq, dk, dv, dgate;
    const float *sinks, *dout;
    float *out;                          /* [rows, heads * dv] */
    float *scores, *dscores, *slopes;    /* slopes NULL: no soft cap */
    float *plain;                        /* [rows, heads * dv] output before the gate; of backward with a gate */
    float *sink_parts;                   /* [items, longest] */
    const uint32_t *from;
    uint32_t sequences, first, heads_from, heads_n, heads, kv_heads, d, dvw, longest, window, rows, pad;
    float scale, softcap;
};

/* --- delta rule --- */
struct ct_delta {
    struct ct_matrix q, k, v, a, b, to_q, to_k, to_v, to_a, to_b; /* operands, and where their gradients are added */
    const float *decay, *dt, *dout;
    float *out;                          /* [rows, v_heads, dv] */
    float *qn, *kn;                      /* [rows, k_heads, dk] normalised, qn also times dk^-1/2 */
    float *inverse;                      /* [rows, k_heads, 2] 1 / norm of q and k */
    float *gates;                        /* [rows, v_heads, 2] e^g, beta */
    float *rest, *y, *f;                 /* [rows, v_heads, dv] v - D^T k; output; gradient of v */
    float *gq, *gk, *gk2;                /* [rows, v_heads, dk] gradients of qn and, in two parts, kn */
    float *parts;                        /* [rows, v_heads, 2] gradient of a, of the decay */
    const uint32_t *from;
    float l2_eps;
    uint32_t rows, sequences, k_heads, v_heads, dk, dvw, is_log, store_rest;
};
/* Sum over rows of parts[row][head][which], added to gradient[head]. */
struct ct_heads_sum { const float *parts; float *gradient; uint32_t rows, heads, which, of; float sign; uint32_t pad; };

#endif
