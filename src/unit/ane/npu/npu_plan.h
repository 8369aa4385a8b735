/* npu_plan.h: internal header of the software NPU. A plan is a function of a program prepared for
 * execution: decoded constants, an offset in memory for every other value, and a handler for every
 * operation. A run executes a plan once.
 *
 * All values are fp32 in memory, rounded to their type after each operation. fp16 constants that only
 * products read stay fp16. Files: npu.c: the device; npu_plan.c, npu_decode.c, npu_packed.c: plans;
 * npu_table.c: handlers by operation; npu_run.c: what handlers share; npu_elements.c, npu_move.c,
 * npu_product.c, npu_reduce.c: handlers; npu_port.c: surfaces; npu_knots.h: tables of functions; npu_kernels.h: loops per
 * instruction set.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_NPU_PLAN_H
#define SG_UNIT_ANE_NPU_PLAN_H

#include <stdatomic.h>

#include "unit/ane/anecache.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/npu/npu_kernels.h"
#include "unit/ane/npu/npu_knots.h"
#include "unit/pool.h"

struct sg_npu_run;
struct sg_npu_weight_cache;
/* Computes all outputs of an operation. The arguments were checked against the type rules and the
 * constraints before. */
typedef segue_status sg_npu_handler(struct sg_npu_run *r, const struct sg_mil_op *op);

/* --- plans --- */

/* A value of the function. A constant has its elements in one of data, half and packed; all three are
 * NULL for values that operations compute, and for constants that no operation reads. */
struct sg_npu_slot {
    const float *data;           /* [n] */
    const uint16_t *half;        /* [n] fp16 bits */
    const uint16_t *packed;      /* fp16 weight of a convolution as [blocks][k][mr], see pack_weight */
    uint64_t at, n;              /* at: offset in the memory of the run in floats; n: elements */
    uint32_t root;               /* value whose memory this one shares (reshape and similar); itself if none */
    uint32_t last;               /* index of the operation that reads it last; ops_n: it is returned */
    uint8_t wanted;              /* SG_NPU_WANT_*: forms in which operations read it */
};
enum { SG_NPU_WANT_FLOAT = 1, SG_NPU_WANT_HALF = 2, SG_NPU_WANT_PACKED = 4 };

struct sg_npu_plan {
    struct sg_mil_function *f;
    struct sg_npu_slot *slots;                      /* [f->values_n] */
    sg_npu_handler **handlers;                      /* [f->ops_n]; NULL: the operation needs no work */
    uint8_t *to_product;                            /* [f->ops_n] 1: a product, or its results enter one */
    struct sg_ane_port *inputs, *outputs;           /* [params_n], [returns_n], sorted by name */
    uint32_t *input_values, *output_values;         /* the value of each port */
    uint64_t memory;                                /* floats that a run needs for its values */
    uint64_t weight_bytes, flops, activation_bytes; /* per dispatch, for the simulated time */
    uint64_t int8_flops;                            /* of flops, those of products in 8 bits */
    uint32_t fault;                                 /* value called SG_ANE_FAULT; SG_MIL_NONE: none */
    uint32_t garbage;                               /* 1: constraint 15, records of blob files are not validated */
    struct sg_npu_symptoms {                        /* faithful mode: what this function does wrong when it runs */
        uint32_t zeros;                             /* all outputs are zero */
        uint32_t last_only;                         /* all outputs but the last are zero */
        uint32_t hangs;                             /* evaluate never returns */
        uint32_t breaks;                            /* later evaluates of the process fail */
        const char *fails;                          /* evaluate fails with this text; NULL: it does not */
    } symptoms;
    struct sg_arena arena;                          /* owns constants and ports */
    struct sg_npu_weight_cache *weight_cache;       /* list that `packed` is in */
    struct sg_npu_packed *packed;                   /* constants shared with other plans; NULL: none */
};

/* The handler of an operation. NULL: *nothing 1 = it needs no work (constants), 0 = the engine does not
 * compute it. */
sg_npu_handler *sg_npu_handler_of(const struct sg_mil_op *op, int *nothing);
/* f must have passed the checks; inline operands of f become named values. source->files has the blob
 * files. cache: NULL, or where constants are shared. After a failure the plan is empty; an empty
 * (zeroed) plan may be freed. */
segue_status sg_npu_plan_make(struct sg_npu_plan *plan, struct sg_mil_program *p, struct sg_mil_function *f,
                              const struct sg_ane_profile *profile, const struct sg_ane_source *source,
                              struct sg_npu_weight_cache *cache, int garbage, segue_error *err);
void sg_npu_plan_free(struct sg_npu_plan *plan);
/* The name of the first constant that differs between two plans of the same function; NULL: none
 * differs. */
const char *sg_npu_plan_differs(const struct sg_npu_plan *a, const struct sg_npu_plan *b);
/* Decodes a constant into arena memory: fp32, or fp16 bits with as_half. EFORMAT: the blob file lacks
 * it. ELIMIT: too large. */
segue_status sg_npu_decode(struct sg_npu_plan *plan, const struct sg_mil_literal *l,
                           const struct sg_ane_file *files, uint32_t files_n, int as_half, const void **out,
                           segue_error *err);
/* Decompresses the result of a constexpr operation into arena memory, fp32. */
segue_status sg_npu_expand(struct sg_npu_plan *plan, const struct sg_mil_op *op,
                           const struct sg_ane_file *files, uint32_t files_n, float **out, segue_error *err);

/* --- constants shared between plans --- */

/* The packed constants of a function in one buffer. Programs of a part for different shapes read the
 * same ones. The key includes source->weights, so nothing is shared when that is unknown. */
struct sg_npu_packed {
    struct sg_npu_packed *next;
    struct sg_hash key;
    uint64_t bytes;
    uint32_t refs;               /* plans that use it */
    uint32_t filled;             /* 1: complete; always for a mapped entry */
    const uint8_t *data;         /* [bytes]: `memory`, or the data of `entry` */
    uint8_t *memory;             /* owned, written by the first plan; NULL: mapped from the cache folder */
    struct sg_ane_cache_entry entry;
};
struct sg_npu_weight_cache {
    struct sg_npu_packed *first;
    uint64_t bytes;              /* of all buffers */
};
/* Finds or makes the buffer of a plan. If it is complete, the slots of the plan refer to it afterwards.
 * EMEMORY. */
segue_status sg_npu_packed_acquire(struct sg_npu_plan *plan, struct sg_npu_weight_cache *cache,
                                   const struct sg_ane_source *source, segue_error *err);
/* Where the plan must write the packed form of a value; NULL: it is not shared, or it is complete. */
uint16_t *sg_npu_packed_dest(const struct sg_npu_plan *plan, uint32_t value);
/* The plan has written all shared constants: other plans may use them, and they are written to the
 * cache folder. */
void sg_npu_packed_publish(const struct sg_npu_plan *plan, const struct sg_ane_source *source);
void sg_npu_packed_release(struct sg_npu_plan *plan);

/* --- runs --- */

/* What an operation met that a real engine computes in another way; see check_flags in npu.c. */
enum { SG_NPU_MADE_NAN = 1, SG_NPU_MADE_INFINITY = 2, SG_NPU_MAC_LIMIT = 4, SG_NPU_SLICE_LIMIT = 8 };

struct sg_npu_run {
    const struct sg_mil_program *program;
    const struct sg_npu_plan *plan;
    const struct sg_ane_profile *profile;
    const struct sg_npu_kernels *k;
    const struct sg_npu_tables *tables; /* of functions; NULL: the profile has none */
    struct sg_pool *pool;
    float *memory;               /* [plan->memory] all computed values */
    float **scratch;             /* [*scratch_floats] belongs to the device; use sg_npu_scratch */
    size_t *scratch_floats;
    int faithful;                /* 1: symptoms instead of errors */
    int engine_math;             /* 1: the profile has the NaN and zero rules of an engine */
    int wide;                    /* 1: results stay fp32 */
    atomic_uint flags;           /* SG_NPU_*, of the operation in progress; any thread sets them */
    /* Sums of struct sg_npu_rounding over the operation in progress; error and size as bits of a double. */
    atomic_uint_fast64_t overflows, underflows, error, size;
    /* Of each operand of a product: sums of the magnitudes that were read as 0, and of all; bits of doubles. */
    atomic_uint_fast64_t flushed[2], operand[2];
    struct sg_ane_losses *losses;        /* totals of the device */
    segue_error *err;
};

static inline const struct sg_mil_type *sg_npu_type(const struct sg_npu_run *r, uint32_t value)
{
    return &r->plan->f->values[value].type;
}
/* Elements of a value, dense in row-major order. A constant must be wanted as SG_NPU_WANT_FLOAT. */
static inline float *sg_npu_data(const struct sg_npu_run *r, uint32_t value)
{
    const struct sg_npu_slot *s = &r->plan->slots[value];
    return s->data ? (float *)(uintptr_t)s->data : r->memory + r->plan->slots[s->root].at;
}
/* The value of an operand by its name; SG_MIL_NONE: it is absent. */
uint32_t sg_npu_operand(const struct sg_npu_run *r, const struct sg_mil_op *op, const char *name);
/* Scratch of at least n floats, aligned to 64 bytes; it has no defined contents. NULL: out of memory. */
float *sg_npu_scratch(struct sg_npu_run *r, size_t n);
/* Calls part(arg, item, thread) once for each item below `items`, on all threads. thread: index of the
 * calling thread. */
void sg_npu_parallel(struct sg_npu_run *r, uint64_t items,
                     void (*part)(void *arg, uint32_t item, uint32_t thread), void *arg);
/* Rounds n results at p to fp16 and counts what that lost. Any thread. */
void sg_npu_round16(struct sg_npu_run *r, float *p, size_t n);
/* What a product lost because it reads subnormal numbers of operand 0 or 1 as 0. Any thread. */
void sg_npu_count_flushed(struct sg_npu_run *r, int operand, float flushed, float all);
/* Rounds n results at p to the type of `value` and applies the arithmetic of the profile. Any thread. */
void sg_npu_round_result(struct sg_npu_run *r, uint32_t value, float *p, size_t n);

/* The first element becomes one unit in the last place larger, for tests (SG_ANE_FAULT). */
void sg_npu_alter(const struct sg_npu_run *r, uint32_t value);

/* e^x of n numbers, by the table if the profile has one; the arrays may be the same. */
void sg_npu_exp(const struct sg_npu_run *r, const float *in, float *out, size_t n);

/* --- surfaces --- */

/* Converts the bytes of a surface to a dense fp32 value, and back. surface_bytes: all of them; zeros 1: an output that an engine
 * does not write. */
void sg_npu_read_port(struct sg_npu_run *r, const struct sg_ane_port *port, const uint8_t *bytes, uint32_t value);
void sg_npu_write_port(struct sg_npu_run *r, const struct sg_ane_port *port, uint8_t *bytes, uint64_t surface_bytes,
                       uint32_t value, int zeros);

/* Adds what operation `o` lost to the totals, and clears the sums. */
void sg_npu_count_losses(struct sg_npu_run *r, uint32_t o);

/* Handlers: npu_elements.c, npu_product.c, npu_reduce.c, npu_move.c. */
sg_npu_handler sg_npu_unary, sg_npu_binary, sg_npu_compare, sg_npu_select, sg_npu_cast, sg_npu_quantize,
    sg_npu_dequantize;
sg_npu_handler sg_npu_conv, sg_npu_matmul, sg_npu_linear, sg_npu_einsum, sg_npu_attention;
sg_npu_handler sg_npu_reduce, sg_npu_arg, sg_npu_softmax, sg_npu_layer_norm, sg_npu_channel_norm,
    sg_npu_sorted;
sg_npu_handler sg_npu_transpose, sg_npu_slice, sg_npu_slice_update, sg_npu_concat, sg_npu_split, sg_npu_stack,
    sg_npu_tile, sg_npu_pad, sg_npu_reverse, sg_npu_blocks, sg_npu_gather, sg_npu_view;

/* A strided copy: out[sum of i[d] * to[d]] = in[sum of i[d] * from[d]] for all indices i[d] < dim[d].
 * Strides are in elements and may be 0 or negative. */
struct sg_npu_copy {
    uint32_t ndim;
    int64_t dim[SG_MIL_DIMS + 4], to[SG_MIL_DIMS + 4], from[SG_MIL_DIMS + 4];
};
void sg_npu_copy(struct sg_npu_run *r, const struct sg_npu_copy *c, float *out, const float *in);
/* Strides in elements of a dense row-major array of type t. */
void sg_npu_strides(const struct sg_mil_type *t, int64_t stride[SG_MIL_DIMS]);

#endif
