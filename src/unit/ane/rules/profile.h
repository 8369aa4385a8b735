/* profile.h: what one engine, or one reading of the sources, allows and does: limits by the numbers of
 * docs/ANE.md, arithmetic, and the figures of simulated time. `strict` is the union of all limits; `ieee` has
 * none beyond the format's; m1 m2 m4 m5 (h13 h14 h16 h17) are the chips as measured. SPDX-License-Identifier:
 * MIT */
#ifndef SG_UNIT_ANE_PROFILE_H
#define SG_UNIT_ANE_PROFILE_H

#include "base/hash.h"

struct sg_ane_profile {
    char name[16];
    /* rules; the number is the constraint's */
    uint32_t row_bytes;          /* 1: rows of surfaces are multiples of this */
    uint32_t surface_bytes;      /* 1, 43: a surface has at least this many bytes, and a multiple of it */
    uint32_t equal_sizes;        /* 2 */
    uint32_t sorted_names;       /* 3: declared order must be the alphabetical one */
    uint32_t size_order;         /* 4: inputs rising, outputs falling in size */
    uint32_t compiles, loads;    /* 5, 6: per process */
    uint32_t concat_refused;     /* 9 */
    uint32_t doubted_refused;    /* 10: operations that some compilers refuse */
    uint32_t fp32_refused;       /* 23: fp32 inputs and outputs through casts */
    uint32_t buffers;            /* 24: tensor_buffer is known */
    uint32_t channels;           /* 26: a multiple of this */
    uint32_t dim_c, dim_w;       /* 27: N and C; H and W */
    uint32_t kernel_w, kernel_h; /* 28 */
    uint32_t transpose_dim, arg_axis; /* 28 */
    uint32_t matmul_bytes;            /* 28: a row of a product's result */
    uint32_t slice_limit;             /* 29: last-axis slices with begin > 0 lose values above; 0 = none */
    uint32_t mac_limit;               /* 30: products at or above become infinite; 0 = none */
    uint32_t outputs;                 /* 31: at most; 0 = no bound */
    uint32_t softmax_power;           /* 33: the axis must be a power of two */
    uint32_t flat_dim;                /* 36: longest [1, N] of elementwise operations; 0 = no bound */
    uint32_t head_rows;               /* 37: any dimension of an output; 0 = no bound */
    uint32_t mean_refused;            /* 42: reduce_mean in functions from ios18 */
    uint64_t sram_bytes;              /* 20: working set of an operation before it spills; advice */
    /* arithmetic */
    uint32_t nan_to_infinity;   /* NaN at an input counts as +infinity */
    uint32_t undefined_to_zero; /* inf - inf, 0 * inf, sqrt(-1) give +0 */
    uint32_t unsigned_zero;     /* -0 comes out as +0 */
    uint32_t flush_products;    /* subnormal operands of products count as 0 */
    uint32_t tables;            /* sigmoid, tanh, silu, gelu by 33 knots */
    uint32_t fp16_tiles;        /* products are added four by four, each four rounded to fp16 */
    float exp_limit;            /* exp gives infinity from here; 0 = no limit */
    float log_zero;             /* log(0); 0 = -infinity */
    /* simulated time */
    double dispatch_us, tflops, weight_gb_s, activation_gb_s, compile_ms, load_ms;
};

/* "strict", "ieee", "m1", "m2", "m4", "m5" or their aliases. EARG names those there are. */
segue_status sg_ane_profile_named(struct sg_ane_profile *out, const char *name, segue_error *err);
/* Change a profile by lines `key value unit # source`, keys ane_*; other keys are left to other readers.
 * EFORMAT with the line: unknown ane_ key, no number, out of range. On failure the profile is unchanged. */
segue_status sg_ane_profile_read(struct sg_ane_profile *p, const char *text, size_t n, const char *name,
                                 segue_error *err);

/* Of the name and every figure: two profiles with equal hashes judge and compute alike. */
struct sg_hash sg_ane_profile_hash(const struct sg_ane_profile *p);

#endif
