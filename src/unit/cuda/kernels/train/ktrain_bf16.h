/* ktrain_bf16.h: arguments of the kernels of training with bf16 values (k_train_bf16*.cu, k_train_flash*.cu). Values and their
 * gradients are bf16, kept as uint16_t; weights have a bf16 copy; everything else, and every sum, is fp32. Rows and columns of
 * values begin at 16 bytes, and widths are multiples of 8, unless a comment says otherwise.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KTRAIN_BF16_H
#define SG_UNIT_CUDA_KTRAIN_BF16_H

#include "ktrain.h"

/* Columns of a value. fresh 1: a gradient that is written, not added to. */
struct ct_half { uint16_t *p; size_t stride; uint32_t width, fresh; };

/* Between fp32 [rows, x.width] and a value, of any width and alignment: wide = x, or x (+)= wide. Columns from x.width to
 * `padded` get 0. */
struct ct_convert { struct ct_half x; float *wide; uint32_t rows, padded; };
/* to[i] = from[i]: a copy of weights. */
struct ct_cast { const float *from; uint16_t *to; size_t n; };

struct ct_half_embed {
    const float *table, *positions;
    const int32_t *ids;
    const uint32_t *position;
    uint16_t *out;
    size_t stride;
    float scale;
    uint32_t rows, width;
};
/* gradient[index[t]] += scale dout[t], for equal indices in the order of t. Positions: gradient[place] += scale * the rows at
 * that place of every sequence. */
struct ct_half_embed_back {
    float *gradient;
    const int32_t *index;
    const uint32_t *from;
    const uint16_t *dout;
    size_t stride;
    float scale;
    uint32_t rows, width, sequences;
};

/* A row here is one of `groups` groups of a row of the value. */
struct ct_half_norm {
    struct ct_half x, gate, dx, dgate;
    const float *weight, *bias;
    const uint16_t *dout;
    uint16_t *out;
    float *stats;                        /* [rows, 2] mean and 1 / std; written by backward */
    float *parts;                        /* [2, chunks, width] sums for the gradients of weight, of bias */
    float eps, plus;
    uint32_t rows, width, layer, groups; /* rows of all groups; out and dout have rows of `width` */
};

/* Elementwise, by enum ct_small_kind: GLU, ACT, ADD, SCALE, their backward ones, ADD_TO (dx (+)= dout). out, dout: [rows,
 * width]. */
struct ct_half_small {
    struct ct_half x, y, dx, dy;
    const uint16_t *dout;
    uint16_t *out;
    const float *weight;
    float value;
    uint32_t rows, width, act, kind, one;
};

struct ct_half_rope { struct ct_half x; uint16_t *out; const float *cosine, *sine; const uint32_t *position;
                      uint32_t rows, heads, head_width, pairs, width; float sign; };

/* Rows, of any width: out[i] = x[list[i]], or x[list[i]] += out[i]; rows of out are `stride` apart, and their padding gets 0. */
struct ct_half_rows { struct ct_half x; const uint32_t *list; uint16_t *out; size_t stride; };

/* parts[chunk, columns] = sums of dout over CT_CHUNK rows each. */
enum { CT_CHUNK = 128 };
struct ct_half_columns { const uint16_t *dout; size_t stride; float *parts; uint32_t rows, columns; };

struct ct_half_parts { const float *parts; float *gradient; size_t apart; uint32_t columns, chunks; };

/* Rows of logits are `stride` apart; padding of dlogits gets 0. */
struct ct_half_loss {
    const uint16_t *logits;
    uint16_t *dlogits;
    const int32_t *labels;
    const uint32_t *rows;
    double *loss;
    struct ct_policy policy;
    size_t stride;
    uint32_t n, vocab;
};

/* --- attention: heads of 64 or 128 numbers, causal. Blocks of CT_FLASH_ROWS queries, or keys --- */
enum { CT_FLASH_ROWS = 64, CT_FLASH_THREADS = 128 };
struct ct_flash {
    struct ct_half q, k, v, dq, dk, dv;
    const uint16_t *dout, *result;       /* [rows, heads * d]; result is what forward wrote to out */
    uint16_t *out;
    float *lse, *along;                  /* [heads, rows] log2 of the sum of exponentials; rowsum of dout . result */
    const uint32_t *from;
    uint32_t heads, kv_heads, window, rows;
    float scale, pad;
};

#endif
