/* tensor.h: one tensor of a weight file. A tensor is a view: its bytes stay in the mapped file and
 * nothing is copied when a model is opened. The descriptor records how the file's layout differs
 * from the logical one (quantised blocks, transposed matrices, permuted rows or columns), and
 * sg_tensor_row converts while it reads. Rows are output features and columns are input features of
 * a linear layer.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_TENSOR_H
#define SG_TENSOR_TENSOR_H

#include "base/err.h"

struct sg_map;

/* How numbers are stored. The values are internal: they are not written to files. The names are
 * those of GGUF where it has the type. */
enum sg_storage {
    SG_F32, SG_F16, SG_BF16,
    SG_Q4_0, SG_Q4_1, SG_Q5_0, SG_Q5_1, SG_Q8_0,
    SG_Q2_K, SG_Q3_K, SG_Q4_K, SG_Q5_K, SG_Q6_K,
    SG_IQ4_NL, SG_MXFP4,
    SG_IQ2_XXS, SG_IQ2_XS, SG_IQ2_S, SG_IQ3_XXS, SG_IQ3_S, SG_IQ1_S, SG_IQ1_M, SG_IQ4_XS, /* iquant.c reads these */
    SG_TQ1_0, SG_TQ2_0, SG_Q8_K, SG_NVFP4,
    SG_AFFINE,               /* MLX: w = scale * q + bias per group, 2 to 8 bits, see struct sg_affine */
    SG_Q8_GROUP,             /* llama2.c v2: int8 values; the fp32 scales, one per group, are stored separately */
    SG_CODED,                /* codes, scales and zeros of the quantisers of PyTorch and MLX, see struct sg_coded */
    SG_FP8,                  /* e4m3 with one scale per row, converted on the fly from another tensor; in no file */
    /* Recognised in files, but sg_tensor_row does not read them: */
    SG_I8, SG_I16, SG_I32, SG_I64, SG_F64, SG_U8, SG_U16, SG_U32, SG_U64, SG_BOOL, SG_F8_E4M3, SG_F8_E5M2,
    SG_OTHER,                /* any other type; sg_tensor.stored_as has its name */
    SG_STORAGE_N
};

/* A permutation of row or column indices, from logical to stored order. Indices below `first` are
 * unchanged. The rest is divided into groups of a*b*w; within a group, logical index (x*b + y)*w +
 * z is stored at (y*a + x)*w + z: a transposition of an a x b matrix of blocks of w. a == 0: no
 * permutation. Used for the q and k rows of GGUF llama files (per head of D rows: a = 2, b = D/2, w
 * = 1), tiled value heads (a = Hk, b = Hv/Hk, w = D) and the interleaved query and gate of Qwen3.5
 * (a = 2, b = heads, w = D). */
struct sg_perm {
    uint32_t a, b, w, first;
};
/* The stored index of a logical one. */
uint64_t sg_perm_stored(const struct sg_perm *p, uint64_t logical);

/* MLX affine quantisation: value = scale * code + bias, with one scale and one bias per `group`
 * columns. The codes of a row are a bit stream, least significant bit first. */
struct sg_affine {
    const void *scales, *biases; /* [rows, cols / group] each, in the mapped file, unaligned */
    enum sg_storage storage;     /* of scales and biases: F32, F16 or BF16 */
    uint32_t bits, group;        /* bits per code: 2, 3, 4, 5, 6 or 8; columns per scale: 32, 64 or 128 */
};

/* SG_CODED: value = (code - zero) * scale, in fp32, then rounded to `round`. The scales and zeros are affine.scales (of type
 * affine.storage: F32, F16, BF16, F8_E4M3, or U8 for a power of two) and affine.biases; affine.bits is 2, 4 or 8;
 * affine.group is the number of columns per scale, of which the last group may have fewer. */
enum sg_code { SG_CODE_UINT, SG_CODE_INT8, SG_CODE_E2M1, SG_CODE_E4M3, SG_CODE_N };
/* ROWS: codes along each row, the lowest bits first; scales [rows / scale_rows, groups]. GPTQ: words of codes along the
 * columns, [cols * bits / 32, rows]; AWQ: along the rows in the order 0 2 4 6 1 3 5 7, [cols, rows * bits / 32]; both with
 * scales [groups, rows]. */
enum sg_code_layout { SG_CODES_ROWS, SG_CODES_GPTQ, SG_CODES_AWQ, SG_CODES_N };
/* FIXED: `zero`. PACKED: codes in words along the rows, in the order of the scales, to which `zero` is added; the sum has
 * `bits` bits. INT8: one signed byte per scale. */
enum sg_code_zeros { SG_ZEROS_FIXED, SG_ZEROS_PACKED, SG_ZEROS_INT8, SG_ZEROS_N };
struct sg_coded {
    uint32_t code, layout, zeros; /* enum sg_code, sg_code_layout, sg_code_zeros */
    uint32_t scale_rows;          /* rows that share a scale, at least 1 */
    int32_t zero;
    uint32_t round;               /* SG_F32, SG_F16 or SG_BF16: what the quantiser's own decoder returns */
    float divisor;                /* of all scales */
    const void *order;            /* [cols] int32: the group of each column; NULL: consecutive columns */
};

/* A selection of rows and columns of another tensor, as runs of consecutive indices: the part of a
 * weight that one rank of a tensor-parallel group computes with (graph/tensor_parallel.h). A part
 * of a part is not allowed. */
enum { SG_PART_RUNS = 8 };
struct sg_tensor_part {
    const struct sg_tensor *of;  /* the whole tensor; outlives the part */
    uint32_t rows_n, cols_n;     /* number of runs, at least one each */
    struct sg_index_run {
        uint64_t at, n;          /* indices [at, at + n) of the whole tensor */
    } rows[SG_PART_RUNS], cols[SG_PART_RUNS];
};
/* The index in the whole tensor of row (or column) i of a part. i must be below the sum of all run
 * lengths. */
static inline uint64_t sg_part_at(const struct sg_index_run *runs, uint32_t n, uint64_t i)
{
    uint32_t k = 0;
    while (k + 1 < n && i >= runs[k].n) i -= runs[k++].n;
    return runs[k].at + i;
}

/* A tensor. All pointers are owned by the archive, or by the code that made the tensor, and outlive it. */
struct sg_tensor {
    const char *name;            /* as in the file */
    const char *stored_as;       /* the type as its file names it ("q4_1", "BF16", "q1_0") */
    enum sg_storage storage;
    uint32_t rank;               /* number of dimensions, 0 to 4 */
    /* The dimensions in the order of PyTorch: the last one is contiguous. If the file has more than
     * 4, the leading ones are multiplied into shape[0]. */
    uint64_t shape[4];
    /* The logical matrix: cols = last dimension, rows = product of the others (1 for vectors).
     * Already exchanged when `transposed` is set. */
    uint64_t rows, cols;
    const uint8_t *data;         /* [bytes] in a mapped file or in memory; unaligned; NULL for parts */
    uint64_t bytes, offset;      /* size of data; its offset in its file */
    uint32_t file;               /* index of the file in its archive */
    uint32_t mapped;             /* 1: data and affine point into a mapped file, whose pages may be released */
    uint32_t transposed;         /* 1: stored as [cols, rows] (GPT-2's Conv1D); F32, F16 and BF16 only */
    struct sg_perm row_perm, col_perm;   /* logical to stored order */
    struct sg_affine affine;     /* SG_AFFINE; SG_Q8_GROUP uses scales (fp32) and group */
    struct sg_coded coded;       /* SG_CODED, with affine */
    /* Not NULL: this tensor is a part of another one, has no data, and is neither permuted nor
     * transposed itself. Checks for finite numbers skip it: the whole tensor is checked instead. */
    const struct sg_tensor_part *part;
    const struct sg_map *maps;   /* [maps_n] all mapped files of the archive */
    uint32_t maps_n;             /* 0: plain memory */
    const struct sg_tensor *fp8_source;   /* SG_FP8: the tensor that is converted when a row is read; else NULL */
};

/* Properties of a storage type. */
struct sg_storage_info {
    const char *name;            /* "q4_1" */
    uint32_t block, bytes;       /* weights per block, bytes per block */
    int ggml;                    /* id in GGUF files; -1 = none */
    int computable;              /* 1: sg_tensor_row reads it */
};
/* Never NULL: invalid values give the entry of SG_OTHER. */
const struct sg_storage_info *sg_storage_info(enum sg_storage s);
/* Look up a GGUF type id. SG_STORAGE_N when it is not readable. *name (may be NULL as argument)
 * gets the type's name, also for types that are known but not readable ("q8_1"); NULL for
 * unknown ids. */
enum sg_storage sg_storage_of_ggml(uint32_t id, const char **name);

/* EUNSUPPORTED, with the tensor's name and type, when sg_tensor_row cannot read this storage. */
segue_status sg_tensor_computable(const struct sg_tensor *t, segue_error *err);

/* Bytes of one stored row of `cols` numbers. EFORMAT: cols is not a multiple of the block size, the
 * type has no fixed size, or the product overflows. */
segue_status sg_storage_row_bytes(enum sg_storage s, uint64_t cols, uint64_t *bytes, segue_error *err);

/* Convert columns [from, from + n) of logical row `row` to fp32 in out[n], with all permutations
 * and transpositions undone. from and n must be multiples of 32 unless they cover the whole row.
 * Thread-safe. Slow for transposed tensors and permuted columns. Unreadable storages give NaN. */
void sg_tensor_row(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out);
/* Convert the whole tensor to out[rows * cols]; meant for small tensors. */
void sg_tensor_read(const struct sg_tensor *t, float *out);

/* Convert n stored numbers of one row to fp32, without permutations. n must be a multiple of the
 * block size. Not for SG_AFFINE, SG_Q8_GROUP, SG_CODED and SG_FP8, whose scales are stored elsewhere: use
 * sg_tensor_row. */
void sg_dequant_row(enum sg_storage s, const void *src, uint64_t n, float *out);
/* One block of a type of iquant.c as codes and one scale per 16 numbers, number = scale[i / 16] * q[i]. NVFP4 sets 64 codes and 4
 * scales. Returns 0 for other types. */
int sg_iquant_block(enum sg_storage s, const uint8_t *block, int8_t q[256], float scale[16]);
/* As sg_dequant_row, for these types; returns 0 for others. */
int sg_dequant_iquant(enum sg_storage s, const uint8_t *src, uint64_t n, float *out);
/* Convert n fp32 numbers to one stored row in `out`. Writes F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0,
 * Q5_1 (byte-identical to the Python package gguf), and Q2_K to Q6_K. importance: [n] weights of the squared errors, not
 * negative, or NULL; without effect on F32, F16, BF16 and Q8_0. EUNSUPPORTED for other types; EARG when n is not a multiple of
 * the block. */
segue_status sg_quant_row(enum sg_storage s, const float *src, const float *importance, uint64_t n, void *out,
                          segue_error *err);
/* A view of `from` as SG_FP8: e4m3 codes with one scale per row, the least power of two (at least
 * 2^-117) with which no number of the row exceeds 448. Every decoded number is exact in bf16.
 * Nothing is converted until a row is read. `from` must outlive the view. */
struct sg_tensor sg_tensor_fp8(const struct sg_tensor *from);
/* Convert one logical row of such a view: writes codes[cols] and returns the scale; NaN, with NaN
 * codes, when the row has a number that is not finite. buffer: [cols] fp32 scratch. */
float sg_tensor_fp8_row(const struct sg_tensor *t, uint64_t row, float *buffer, uint8_t *codes);
/* 1 when all numbers are finite. For F32, F16 and BF16 the numbers are checked, for quantised types
 * the scales, which is sufficient because codes are integers. Otherwise *bad_row (may be NULL) is
 * the first stored row at fault. Reads all data. */
int sg_tensor_finite(const struct sg_tensor *t, uint64_t *bad_row);
/* The same for stored rows [from, to) only; to <= sg_tensor_stored_rows. */
int sg_tensor_finite_rows(const struct sg_tensor *t, uint64_t from, uint64_t to, uint64_t *bad_row);
uint64_t sg_tensor_stored_rows(const struct sg_tensor *t);   /* 0 for empty tensors */
/* The memory regions that hold a tensor's numbers: codes, then scales and biases if they are stored
 * separately, then the order of SG_CODED. For a part, those of the whole tensor. Returns their number, at least 1. */
enum { SG_REGIONS = 4 };
struct sg_region {
    const uint8_t *data;
    uint64_t bytes;
};
uint32_t sg_tensor_regions(const struct sg_tensor *t, struct sg_region out[SG_REGIONS]);
/* Fails with EFORMAT: a number or scale in stored row `row` is not finite. */
segue_status sg_tensor_fail_not_finite(const struct sg_tensor *t, uint64_t row, segue_error *err);

#endif
