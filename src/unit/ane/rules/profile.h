/* profile.h: a profile describes one engine, or one interpretation of the sources: limits (by constraint
 * number of docs/ANE.md), arithmetic, and the figures for simulated time. `strict` combines all limits;
 * `ieee` has IEEE arithmetic and only the limits of the most capable chip; m1 to m5 (aliases h13 to h17) are chips as
 * measured.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_PROFILE_H
#define SG_UNIT_ANE_PROFILE_H

#include "base/hash.h"

/* A flag of 1 means that the engine has the restriction or the behaviour. */
struct sg_ane_profile {
    char name[16];
    /* Limits; the number before the colon is the constraint. */
    uint32_t row_bytes;          /* 1: rows of surfaces are multiples of this */
    uint32_t surface_bytes;      /* 1, 43: a surface has at least this many bytes, and a multiple of it */
    uint32_t equal_sizes;        /* 2: all inputs, and all outputs, have one surface size */
    uint32_t sorted_names;       /* 3: declared order must be the alphabetical one */
    uint32_t size_order;         /* 4: inputs ascending, outputs descending in size, equal sizes by name */
    uint32_t compiles, loads;    /* 5, 6: maximum per process */
    uint32_t concat_refused;     /* 9: concat does not compile */
    uint32_t doubted_refused;    /* 10: refuse operations about which the sources disagree */
    uint32_t fp32_refused;       /* 23: fp32 inputs and outputs do not compile */
    uint32_t buffers;            /* 24: tensor_buffer is supported */
    uint32_t channels;           /* 26: a multiple of this */
    uint32_t dim_c, dim_w;       /* 27: maximum of N and C; of H and W */
    uint32_t kernel_w, kernel_h; /* 28: maximum kernel of conv */
    uint32_t transpose_dim, arg_axis; /* 28: maximum dimension of transpose; of the axis of argmax and argmin */
    uint32_t matmul_bytes;            /* 28: maximum bytes of a row of a matmul result */
    uint32_t slice_limit;             /* 29: larger values become infinite in such slices; 0 = no limit */
    uint32_t mac_limit;               /* 30: products of this magnitude become infinite; 0 = no limit */
    uint32_t outputs;                 /* 31: maximum number of outputs; 0 = no limit */
    uint32_t softmax_power;           /* 33: the axis must be a power of two */
    uint32_t flat_dim;                /* 36: maximum N of elementwise operations on [1, N]; 0 = no limit */
    uint32_t head_rows;               /* 37: maximum dimension of an output; 0 = no limit */
    uint32_t mean_refused;            /* 42: no reduce_mean in functions for ios18 */
    uint32_t short_rows_refused;      /* 1: rows of inputs and outputs are whole row_bytes; 0: advice, because rows are padded */
    uint32_t bias_refused;            /* 12: no bias of conv; 0: from a blob file only */
    uint32_t inline_refused;          /* 13: also keep_dims must be named */
    uint32_t blobs_unchecked;         /* 15: size and place in a record are not read; the data follow the record */
    uint32_t gather_refused;          /* 10: also with constant indices */
    uint32_t info_needed;             /* 51: a text without tensor_buffer has buildInfo */
    uint32_t product_refused;         /* 49: no product of 128 rows with a constant of 8192 rows */
    uint32_t state_refused;           /* 50: no input is named state */
    uint32_t constexpr_refused;       /* 52: no compressed constants in texts; packages may have them */
    uint32_t tile_breaks;             /* 54: after a program with tile has run, every later evaluate of the process fails */
    uint32_t weights_ignored;         /* 55: convolutions do not read weights that are computed at run time */
    uint64_t sram_bytes;              /* 20: working set of an operation before it spills; advice only */
    /* Arithmetic of the software NPU. */
    uint32_t nan_to_infinity;   /* NaN at an input is read as +infinity */
    uint32_t undefined_to_zero; /* inf - inf, 0 * inf and sqrt(-1) give +0 */
    uint32_t unsigned_zero;     /* results of -0 become +0 */
    uint32_t flush_products;    /* subnormal operands of products are read as 0 */
    uint32_t tables;            /* activations, exp, log, roots, inverse, real_div and pow by tables: npu/npu_knots.h */
    uint32_t fp16_tiles;        /* sums of four products are rounded to fp16 before the wide accumulation */
    uint32_t product_step;      /* each product is rounded to a multiple of 2^-N before the wide sum; 0: it is exact */
    uint32_t ties_away;         /* add and sub round halves away from zero; 0: to even */
    float exp_limit;            /* exp gives infinity from this argument on; 0 = no limit */
    float log_zero;             /* log(0); 0 = -infinity */
    /* Simulated time: per dispatch; throughput of products, weights and activations; per compile and load. */
    double int8_tflops;         /* of products of 8-bit numbers (storage=w8a8); 0: the engine has none */
    double dispatch_us, tflops, weight_gb_s, activation_gb_s, compile_ms, load_ms;
};

/* Copies a built-in profile by its name or alias. EARG: unknown name; the text lists the known ones. */
segue_status sg_ane_profile_named(struct sg_ane_profile *out, const char *name, segue_error *err);
/* Changes a profile by a chip file: lines `key value unit # source`. Keys begin with ane_; lines with other
 * keys are for other readers and ignored. EFORMAT with the line number: unknown ane_ key, not a number, out
 * of range; the profile is then unchanged. */
segue_status sg_ane_profile_read(struct sg_ane_profile *p, const char *text, size_t n, const char *name,
                                 segue_error *err);

/* fp16 columns of a port in whole rows; 1: rows may be shorter (constraint 1). */
uint32_t sg_ane_row_columns(const struct sg_ane_profile *p);

/* How the engine binds inputs and outputs of a request that gives no names. */
const char *sg_ane_port_order(const struct sg_ane_profile *p);

/* Hash over the name and every figure. Profiles with equal hashes accept the same programs and compute the
 * same. */
struct sg_hash sg_ane_profile_hash(const struct sg_ane_profile *p);

#endif
