/* npu_plan.h: a function of a program made ready to run: constants decoded, a place in memory for every
 * value, a handler for every operation. Inside the software engine only. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_NPU_PLAN_H
#define SG_UNIT_ANE_NPU_PLAN_H

#include <stdatomic.h>

#include "unit/ane/anecache.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/npu/npu_kernels.h"
#include "unit/pool.h"

struct sg_npu_run;
struct sg_npu_weight_cache;
typedef segue_status sg_npu_handler(struct sg_npu_run *r, const struct sg_mil_op *op);

/* Where a value lies. Numbers are fp32, rounded to their type; fp16 constants of products stay as they are in
 * `half`. */
struct sg_npu_slot {
    const float *data;    /* [n] of a decoded constant; NULL: computed */
    const uint16_t *packed;          /* [blocks][k][mr] of a convolution's weight, as products read it */
    const uint16_t *half; /* [n] of an fp16 constant that only products read */
    uint64_t at, n;       /* place in the run's memory in floats, elements */
    uint32_t root;        /* value whose memory it shares (reshape and the like) */
    uint32_t last;        /* operation that reads it last */
    uint8_t wanted;       /* WANT_* */
};
enum { SG_NPU_WANT_FLOAT = 1, SG_NPU_WANT_HALF = 2, SG_NPU_WANT_PACKED = 4 };

struct sg_npu_plan {
    struct sg_mil_function *f;
    struct sg_npu_slot *slots;                      /* [f->values_n] */
    sg_npu_handler **handlers;                      /* [f->ops_n]; NULL: nothing to do */
    struct sg_ane_port *inputs, *outputs;           /* in the order of their names */
    uint32_t *input_values, *output_values;         /* [params_n], [returns_n] */
    uint64_t memory;                                /* floats */
    uint64_t weight_bytes, flops, activation_bytes; /* of one dispatch */
    uint32_t garbage;                               /* 1: an offset that names no record reads what lies there (15) */
    struct sg_npu_symptoms {                        /* of this function in faithful mode */
        uint32_t zeros, last_only, hangs;
        const char *fails;                          /* evaluate fails with this; NULL */
    } shows;
    struct sg_arena arena;                          /* constants and lists */
    struct sg_npu_weight_cache *shelf;                     /* where packed came from */
    struct sg_npu_packed *packed;                   /* constants shared with other plans; NULL: none */
};

/* The handler of an operation; NULL with *nothing = 1: no work at all; NULL with 0: none. */
sg_npu_handler *sg_npu_handler_of(const struct sg_mil_op *op, int *nothing);
/* f must be checked; files hold its blobs, or, with garbage, anything. The function's inline operands become values of their
 * own. */
segue_status sg_npu_plan_make(struct sg_npu_plan *plan, struct sg_mil_program *p, struct sg_mil_function *f,
                              const struct sg_ane_profile *profile, const struct sg_ane_source *source,
                              struct sg_npu_weight_cache *shelf, int garbage, segue_error *err);
void sg_npu_plan_free(struct sg_npu_plan *plan);
/* The name of the first constant that differs between two plans of one function; NULL: none. */
const char *sg_npu_plan_differs(const struct sg_npu_plan *a, const struct sg_npu_plan *b);
/* A constant's numbers, into arena memory: as fp32, or its fp16 bits. */
segue_status sg_npu_decode(struct sg_npu_plan *plan, const struct sg_mil_literal *l,
                           const struct sg_ane_file *files, uint32_t files_n, int as_half, const void **out,
                           segue_error *err);
/* The numbers of a constexpr operation as fp32. */
segue_status sg_npu_expand(struct sg_npu_plan *plan, const struct sg_mil_op *op,
                           const struct sg_ane_file *files, uint32_t files_n, float **out, segue_error *err);

/* Constants of blob files in the form in which products read them. Programs that read the same ones share a copy, for
 * which source->weights must tell the files apart; the shelf is the device's. */
struct sg_npu_packed {
    struct sg_npu_packed *next;
    struct sg_hash key;
    uint64_t bytes;
    uint32_t users, filled;
    const uint8_t *data;    /* own, or that of kept */
    uint8_t *own;           /* filled by the first plan; NULL: they came from the cache folder */
    struct sg_ane_cache_entry kept;
};
struct sg_npu_weight_cache {
    struct sg_npu_packed *first;
    uint64_t bytes;         /* of all */
};
/* Slots of those that are there point to them. EMEMORY. */
segue_status sg_npu_packed_acquire(struct sg_npu_plan *plan, struct sg_npu_weight_cache *shelf,
                                   const struct sg_ane_source *source, segue_error *err);
/* Where the plan is to write those of a value; NULL: nowhere, it has its own. */
uint16_t *sg_npu_packed_dest(const struct sg_npu_plan *plan, uint32_t value);
/* All are written: others may read them, and they are kept for the next start. */
void sg_npu_packed_publish(const struct sg_npu_plan *plan, const struct sg_ane_source *source);
void sg_npu_packed_release(struct sg_npu_plan *plan);

/* --- while it runs --- */

enum { SG_NPU_MADE_NAN = 1, SG_NPU_MADE_INFINITY = 2, SG_NPU_MAC_LIMIT = 4, SG_NPU_SLICE_LIMIT = 8 };
struct sg_npu_run {
    const struct sg_mil_program *program;
    const struct sg_npu_plan *plan;
    const struct sg_ane_profile *profile;
    const struct sg_npu_kernels *k;
    struct sg_pool *pool;
    float *memory; /* [plan->memory] */
    float **work;  /* grown by handlers: sg_npu_work */
    size_t *work_floats;
    int faithful, tidy; /* tidy: the profile has an engine's arithmetic */
    atomic_uint flags;  /* SG_NPU_*: met by the operation at work */
    segue_error *err;
};

static inline const struct sg_mil_type *sg_npu_type(const struct sg_npu_run *r, uint32_t value)
{
    return &r->plan->f->values[value].type;
}
/* The numbers of a value; constants must have been wanted as floats. */
static inline float *sg_npu_data(const struct sg_npu_run *r, uint32_t value)
{
    const struct sg_npu_slot *s = &r->plan->slots[value];
    return s->data ? (float *)(uintptr_t)s->data : r->memory + r->plan->slots[s->root].at;
}
/* Operand by name: the value's number, SG_MIL_NONE when it is not given. */
uint32_t sg_npu_operand(const struct sg_npu_run *r, const struct sg_mil_op *op, const char *name);
/* Working memory of at least n floats, aligned to 64 bytes; contents of the call before are lost. NULL: none.
 */
float *sg_npu_work(struct sg_npu_run *r, size_t n);
/* part(arg, item, thread) for item 0 .. items - 1 over the threads; each item is done once. */
void sg_npu_each(struct sg_npu_run *r, uint64_t items,
                 void (*part)(void *arg, uint32_t item, uint32_t thread), void *arg);
/* Round n results of `value` to its type and apply the profile's arithmetic; notes what it met. Any thread.
 */
void sg_npu_settle(struct sg_npu_run *r, uint32_t value, float *p, size_t n);

sg_npu_handler sg_npu_unary, sg_npu_binary, sg_npu_compare, sg_npu_select, sg_npu_cast, sg_npu_quantize,
    sg_npu_dequantize;
sg_npu_handler sg_npu_conv, sg_npu_matmul, sg_npu_linear, sg_npu_einsum, sg_npu_attention;
sg_npu_handler sg_npu_reduce, sg_npu_arg, sg_npu_softmax, sg_npu_layer_norm, sg_npu_channel_norm,
    sg_npu_sorted;
sg_npu_handler sg_npu_transpose, sg_npu_slice, sg_npu_slice_update, sg_npu_concat, sg_npu_split, sg_npu_stack,
    sg_npu_tile, sg_npu_pad, sg_npu_reverse, sg_npu_blocks, sg_npu_gather, sg_npu_same;

/* A copy between strided places: out[...] = in[...] over dim[rank]; strides in floats, may be 0 or negative.
 */
struct sg_npu_copy {
    uint32_t rank;
    int64_t dim[SG_MIL_DIMS + 4], to[SG_MIL_DIMS + 4], from[SG_MIL_DIMS + 4];
};
void sg_npu_copy(struct sg_npu_run *r, const struct sg_npu_copy *c, float *out, const float *in);
/* Row-major strides of a shape in elements. */
void sg_npu_strides(const struct sg_mil_type *t, int64_t stride[SG_MIL_DIMS]);

#endif
