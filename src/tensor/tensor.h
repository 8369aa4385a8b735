/* tensor.h: what a file says about one block of numbers. A tensor is a view: its bytes stay in the mapped
 * file, and every difference between the file's layout and the house's (transposed matrices, permuted rows,
 * tiled heads) is described here and undone by whoever reads a row. Nothing is copied at load.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_TENSOR_H
#define SG_TENSOR_TENSOR_H

#include "base/err.h"

struct sg_map;

/* How numbers are stored. The order is ours and is part of no file. */
enum sg_storage {
    SG_F32, SG_F16, SG_BF16,
    SG_Q4_0, SG_Q4_1, SG_Q5_0, SG_Q5_1, SG_Q8_0,
    SG_Q2_K, SG_Q3_K, SG_Q4_K, SG_Q5_K, SG_Q6_K,
    SG_IQ4_NL, SG_MXFP4,
    SG_AFFINE,               /* MLX: w = scale * q + bias per group, 2 to 8 bits, see struct sg_affine */
    SG_Q8_GROUP,             /* llama2.c v2: int8 values, one fp32 scale per group, apart */
    SG_FP8,                  /* in no file: e4m3 and one scale per row, made of another tensor (sg_tensor_fp8) */
    /* named, not computed with: */
    SG_I8, SG_I16, SG_I32, SG_I64, SG_F64, SG_U8, SG_U16, SG_U32, SG_U64, SG_BOOL, SG_F8_E4M3, SG_F8_E5M2,
    SG_OTHER,                /* a type that no name above covers; sg_tensor.stored_as says which */
    SG_STORAGE_N
};

/* Logical order <-> stored order of rows (or columns): after the first `first` indices, within each group of
 * a*b*w, logical (x*b + y)*w + z is stored at (y*a + x)*w + z. a == 0: the same order. Covers GGUF's permuted
 * q and k rows (a = 2, b = D/2, w = 1 for each head), tiled value heads (a = Hk, b = Hv/Hk, w = D) and
 * Qwen3.5's query|gate per head (a = 2, b = heads, w = D). */
struct sg_perm {
    uint32_t a, b, w, first;
};
uint64_t sg_perm_stored(const struct sg_perm *p, uint64_t logical);

/* MLX affine groups: the row is an LSB-first bit stream of `bits`-bit values; scales and biases [rows,
 * cols/group]. */
struct sg_affine {
    const void *scales, *biases;
    enum sg_storage storage;     /* of scales and biases: F32, F16 or BF16 */
    uint32_t bits, group;
};

/* Rows and columns of another tensor, run by run: what a rank has of a weight (graph/share.h). No part of a part. */
enum { SG_PART_RUNS = 8 };
struct sg_tensor_part {
    const struct sg_tensor *of;
    uint32_t rows_n, cols_n;     /* runs, at least one each */
    struct sg_run_of { uint64_t at, n; } rows[SG_PART_RUNS], cols[SG_PART_RUNS];
};
/* Where row (or column) i of a part lies in the whole. */
static inline uint64_t sg_part_at(const struct sg_run_of *runs, uint32_t n, uint64_t i)
{
    uint32_t k = 0;
    while (k + 1 < n && i >= runs[k].n) i -= runs[k++].n;
    return runs[k].at + i;
}

struct sg_tensor {
    const char *name;            /* as in the file */
    const char *stored_as;       /* the type as its file names it ("q4_1", "BF16", "iq2_xxs") */
    enum sg_storage storage;
    uint32_t rank;
    uint64_t shape[4];           /* as Hugging Face writes it, the last one contiguous; of ranks above 4 the
                                  * leading dimensions are multiplied into shape[0], and rank is 4 */
    uint64_t rows, cols;         /* logical: cols = last dimension, rows = product of the others (1 for
                                  * vectors); already exchanged when `transposed` */
    const uint8_t *data;         /* in the map; may be unaligned */
    uint64_t bytes, offset;      /* offset: in its file */
    uint32_t file;               /* index of the file in its archive */
    uint32_t mapped;             /* 1: data (and affine) lie in a mapped file, whose pages may be given back */
    uint32_t transposed;         /* 1: stored [cols, rows] (GPT-2's Conv1D); plain storages only */
    struct sg_perm row_perm, col_perm;
    struct sg_affine affine;     /* SG_AFFINE; for SG_Q8_GROUP: scales (fp32) and group */
    const struct sg_tensor_part *part;  /* NULL, or where its numbers are: then there is no data, and nothing is permuted or
                                  * transposed here; whoever made it answers for the whole's being finite */
    const struct sg_map *maps;   /* [maps_n] the files that the pointers above point into; 0: plain memory */
    uint32_t maps_n;
    const struct sg_tensor *made_of;   /* SG_FP8: whose numbers are rounded when a row is read; else NULL */
};

struct sg_storage_info {
    const char *name;            /* "q4_1" */
    uint32_t block, bytes;       /* weights per block, bytes per block */
    int ggml;                    /* id in GGUF files; -1 = none */
    int computable;              /* 1: sg_tensor_row reads it */
};
const struct sg_storage_info *sg_storage_info(enum sg_storage s);
/* By GGUF id; SG_STORAGE_N when unknown. *name gets the field's name even for ids that are not read
 * ("iq2_xxs"), NULL for ids that nobody knows. */
enum sg_storage sg_storage_of_ggml(uint32_t id, const char **name);

/* EUNSUPPORTED, naming the tensor and its type, when sg_tensor_row cannot read it. */
segue_status sg_tensor_computable(const struct sg_tensor *t, segue_error *err);

/* Bytes of one stored row of cols numbers. EFORMAT: cols is no multiple of the block, or overflow. */
segue_status sg_storage_row_bytes(enum sg_storage s, uint64_t cols, uint64_t *bytes, segue_error *err);

/* Logical row `row`, columns [from, from+n), as fp32: every permutation and transposition undone. from and n
 * must be multiples of 32 unless they span the whole row. Any thread. Plain and slow for permuted columns and
 * transposed tensors, fast otherwise. */
void sg_tensor_row(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out);
/* All of a small tensor as fp32, [rows*cols]. */
void sg_tensor_read(const struct sg_tensor *t, float *out);

/* One stored row of n numbers -> fp32, without permutations; n multiple of the block. For AFFINE use
 * sg_tensor_row. */
void sg_dequant_row(enum sg_storage s, const void *src, uint64_t n, float *out);
/* fp32 -> stored row; F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 (byte-equal to the Python package gguf).
 * EUNSUPPORTED else. */
segue_status sg_quant_row(enum sg_storage s, const float *src, uint64_t n, void *out, segue_error *err);
/* The view of `from`, which outlives it, as e4m3 with a scale per row: the least power of two with which no number of the row
 * passes 448 (2^-117 at least), so that each number is a bf16 too. Nothing is computed here. */
struct sg_tensor sg_tensor_fp8(const struct sg_tensor *from);
/* One logical row of it: codes [cols] and the scale, which is not finite where a number is not; room: [cols]. */
float sg_tensor_fp8_row(const struct sg_tensor *t, uint64_t row, float *room, uint8_t *codes);
/* 1 when no scale or value of the tensor is NaN or infinite; looks at the numbers only on F32/F16/BF16 and at
 * scales elsewhere. Reads all of it. */
int sg_tensor_finite(const struct sg_tensor *t, uint64_t *bad_row);
/* The same for stored rows [from, to), to <= sg_tensor_stored_rows. */
int sg_tensor_finite_rows(const struct sg_tensor *t, uint64_t from, uint64_t to, uint64_t *bad_row);
uint64_t sg_tensor_stored_rows(const struct sg_tensor *t);   /* 0 for empty tensors */
/* The pieces of memory that a tensor's numbers lie in: codes, then scales and biases that lie apart. Returns how many. */
struct sg_region {
    const uint8_t *data;
    uint64_t bytes;
};
uint32_t sg_tensor_regions(const struct sg_tensor *t, struct sg_region out[3]);
/* EFORMAT names the tensor and row when a number or scale of it is not finite. */
segue_status sg_tensor_not_finite(const struct sg_tensor *t, uint64_t row, segue_error *err);

#endif
