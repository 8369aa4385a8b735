/* mxc.h: C interface to the parts of MLX that the unit uses; mxc.cpp implements it. No MLX type and no exception leaves mxc.cpp.
 *
 * A tape owns the arrays of one computation. Its functions append an array and return its index. The first failure is kept in
 * the tape: later calls do nothing and return MXC_NONE, and mxc_error has the text. Arrays are computed when mxc_eval or
 * mxc_read needs them. A held array outlives its tape.
 *
 * Threads: a device and its tapes are used on one thread, that of mxc_device_new. Held arrays may be shared and released on any.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_MLX_MXC_H
#define SG_UNIT_MLX_MXC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct mxc_device;                   /* a device and a stream on it */
struct mxc_tape;
struct mxc_held;
struct mxc_closure;                  /* a function of arrays that MLX has compiled */
typedef int32_t mxc_ref;             /* index of an array in a tape */

enum { MXC_NONE = -1, MXC_DIMS = 4, MXC_TEXT = 256 };
enum mxc_type { MXC_F32, MXC_F16, MXC_BF16, MXC_U32, MXC_I32, MXC_BOOL };
enum mxc_act { MXC_ACT_NONE, MXC_ACT_SILU, MXC_ACT_GELU, MXC_ACT_GELU_TANH, MXC_ACT_GELU_QUICK, MXC_ACT_RELU, MXC_ACT_RELU2,
               MXC_ACT_SIGMOID, MXC_ACT_TANH, MXC_ACT_SOFTPLUS, MXC_ACT_EXP };     /* the first are those of enum sg_act */

/* --- devices: text [MXC_TEXT] gets the reason of a failure --- */

int mxc_gpu_present(void);
const char *mxc_version(void);
/* Name and memory of a device; "" and 0 when MLX does not know them. */
void mxc_device_facts(int gpu, char *name, size_t cap, uint64_t *memory);
struct mxc_device *mxc_device_new(int gpu, char *text);
void mxc_device_free(struct mxc_device *d);

/* --- tapes and held arrays --- */

struct mxc_tape *mxc_tape_new(struct mxc_device *d);     /* NULL: no memory */
void mxc_tape_free(struct mxc_tape *t);
/* Removes all arrays and the failure. */
void mxc_tape_clear(struct mxc_tape *t);
const char *mxc_error(const struct mxc_tape *t);         /* NULL: none */
uint64_t mxc_count(const struct mxc_tape *t);            /* arrays on the tape */
struct mxc_held *mxc_keep(struct mxc_tape *t, mxc_ref x);    /* NULL: failure */
struct mxc_held *mxc_share(const struct mxc_held *h);    /* a second handle of the same array; NULL: no memory */
void mxc_release(struct mxc_held *h);                    /* NULL is allowed */
uint64_t mxc_held_bytes(const struct mxc_held *h);
mxc_ref mxc_use(struct mxc_tape *t, const struct mxc_held *h);
/* Removes the tape's own reference, so that an update of the array can reuse its memory. */
void mxc_forget(struct mxc_tape *t, mxc_ref x);

/* The arrays that MLX is to compute for x, operands first, without those that earlier calls listed. last: 1 for x itself. */
typedef void mxc_list_fn(void *context, const char *primitive, enum mxc_type type, int last);
void mxc_list(struct mxc_tape *t, mxc_ref x, mxc_list_fn *each, void *context);

/* --- data --- */

/* shape [dims]; the data are copied. */
mxc_ref mxc_from(struct mxc_tape *t, const void *data, enum mxc_type type, const uint32_t *shape, uint32_t dims);
/* [n, 1, 1] in a type of fewer bits; rounded here. */
mxc_ref mxc_column(struct mxc_tape *t, const float *numbers, enum mxc_type type, uint32_t n);
mxc_ref mxc_zeros(struct mxc_tape *t, enum mxc_type type, const uint32_t *shape, uint32_t dims);
enum mxc_type mxc_type_of(const struct mxc_tape *t, mxc_ref x);
uint32_t mxc_dim(const struct mxc_tape *t, mxc_ref x, uint32_t axis);
/* 1: success. Computes n arrays; MXC_NONE entries are skipped. */
int mxc_eval(struct mxc_tape *t, const mxc_ref *x, uint32_t n);
/* Begins to compute n arrays and returns; those issued before are computed first. MXC_NONE entries are skipped. */
int mxc_issue(struct mxc_tape *t, const mxc_ref *x, uint32_t n);
/* Waits until it is computed; any thread may use it afterwards. */
int mxc_wait(struct mxc_tape *t, const struct mxc_held *h);
/* Returns the memory that MLX keeps for later arrays to the system. */
void mxc_free_unused(void);
/* Computes x, or waits until it is computed; x has `bytes` bytes,. Copies its numbers in row order. */
int mxc_read(struct mxc_tape *t, mxc_ref x, void *out, size_t bytes);
/* The same for one number of type F32, F16 or BF16. */
int mxc_read_number(struct mxc_tape *t, mxc_ref x, float *out);

/* fp32 scalar: NaN if x has a number that is not finite, or if `before` (MXC_NONE: none), another flag, is; else 0. */
mxc_ref mxc_flag(struct mxc_tape *t, mxc_ref x, mxc_ref before);
/* Computes x; how many numbers are not finite. */
uint64_t mxc_count_infinite(struct mxc_tape *t, mxc_ref x);

/* --- shapes --- */

mxc_ref mxc_cast(struct mxc_tape *t, mxc_ref x, enum mxc_type type);
mxc_ref mxc_reshape(struct mxc_tape *t, mxc_ref x, const uint32_t *shape, uint32_t dims);
mxc_ref mxc_transpose(struct mxc_tape *t, mxc_ref x, const int *axes, uint32_t dims);
mxc_ref mxc_slice(struct mxc_tape *t, mxc_ref x, uint32_t axis, uint32_t from, uint32_t to);
mxc_ref mxc_copy(struct mxc_tape *t, mxc_ref x);                     /* in memory of its own */
mxc_ref mxc_concat(struct mxc_tape *t, const mxc_ref *x, uint32_t n, uint32_t axis);
mxc_ref mxc_take(struct mxc_tape *t, mxc_ref x, mxc_ref indices, uint32_t axis);
/* x with positions [from, from + length of update) of the axis replaced. */
mxc_ref mxc_put(struct mxc_tape *t, mxc_ref x, mxc_ref update, uint32_t axis, uint32_t from);

/* x, fp32, rounded to what q8_0 has: blocks of 32 of the last axis, of which the last may be shorter. */
mxc_ref mxc_round_q8(struct mxc_tape *t, mxc_ref x);

/* --- memory that the host and arrays share --- */

struct mxc_memory;
/* 1: the host reads and writes the memory of arrays. */
int mxc_unified(const struct mxc_device *d);
/* Any thread. `bytes` from *address on, a multiple of 64; NULL: no memory. */
struct mxc_memory *mxc_memory_new(size_t bytes, void **address);
void mxc_memory_free(struct mxc_memory *m);              /* arrays of it keep their memory */
/* Numbers of it from `offset` bytes on, a multiple of 4; nothing is copied. */
mxc_ref mxc_of_memory(struct mxc_tape *t, const struct mxc_memory *m, size_t offset, enum mxc_type type, const uint32_t *shape,
                      uint32_t dims);

/* --- arithmetic --- */

mxc_ref mxc_add(struct mxc_tape *t, mxc_ref x, mxc_ref y);
mxc_ref mxc_multiply(struct mxc_tape *t, mxc_ref x, mxc_ref y);
mxc_ref mxc_scale(struct mxc_tape *t, mxc_ref x, double value);      /* the type of x remains */
mxc_ref mxc_divide(struct mxc_tape *t, mxc_ref x, mxc_ref y);
mxc_ref mxc_activate(struct mxc_tape *t, mxc_ref x, enum mxc_act act);
mxc_ref mxc_softmax(struct mxc_tape *t, mxc_ref x);                  /* over the last axis */
mxc_ref mxc_total(struct mxc_tape *t, mxc_ref x);                    /* scalar: over all axes */
mxc_ref mxc_sum(struct mxc_tape *t, mxc_ref x);                      /* over the last axis, which remains with length 1 */
mxc_ref mxc_clip(struct mxc_tape *t, mxc_ref x, int32_t lowest, int32_t highest);    /* of int32 */
mxc_ref mxc_argmax(struct mxc_tape *t, mxc_ref x);                   /* uint32, over the last axis, which is removed */
mxc_ref mxc_order(struct mxc_tape *t, mxc_ref x);                    /* indices that sort the last axis, ascending, stable */
mxc_ref mxc_take_along(struct mxc_tape *t, mxc_ref x, mxc_ref indices);  /* on the last axis */
mxc_ref mxc_linear(struct mxc_tape *t, mxc_ref x, mxc_ref w, mxc_ref bias);  /* x W^T, plus bias unless MXC_NONE */

/* A matrix in MLX's affine form: value = scale * code + bias per group of columns. */
struct mxc_affine { mxc_ref codes, scales, biases; uint32_t group, bits; };
mxc_ref mxc_linear_affine(struct mxc_tape *t, mxc_ref x, const struct mxc_affine *w);
mxc_ref mxc_decode(struct mxc_tape *t, const struct mxc_affine *w);
/* x [T, 1, k], w of all experts [experts, n, k], which [T, e] -> [T, e, n]; x may be [T, e, k]. */
mxc_ref mxc_linear_experts(struct mxc_tape *t, mxc_ref x, mxc_ref w, mxc_ref which);
mxc_ref mxc_affine_experts(struct mxc_tape *t, mxc_ref x, const struct mxc_affine *w, mxc_ref which);

/* --- fused operations; weight and bias may be MXC_NONE --- */

mxc_ref mxc_rms_norm(struct mxc_tape *t, mxc_ref x, mxc_ref weight, float eps);
mxc_ref mxc_layer_norm(struct mxc_tape *t, mxc_ref x, mxc_ref weight, mxc_ref bias, float eps);
/* x [1, heads, T, width]; periods [pairs] = 1 / frequency; columns from 2 * pairs on are copied. rope_at: x [N, heads, 1, width],
 * positions int32 [N]. */
mxc_ref mxc_rope(struct mxc_tape *t, mxc_ref x, mxc_ref periods, uint32_t pairs, uint32_t offset);
mxc_ref mxc_rope_at(struct mxc_tape *t, mxc_ref x, mxc_ref periods, uint32_t pairs, mxc_ref positions);
/* q [1, heads, T, d], k [1, kv_heads, S, d], v [1, kv_heads, S, dv]. Row i attends to keys up to S - T + i, with window > 0 to
 * the last `window` of them. */
struct mxc_attention { mxc_ref q, k, v, sinks; float scale, softcap; uint32_t window; };
mxc_ref mxc_attend(struct mxc_tape *t, const struct mxc_attention *a);
/* x [1, T + taps - 1, C], weight [C, taps, 1] -> [1, T, C] */
mxc_ref mxc_convolve(struct mxc_tape *t, mxc_ref x, mxc_ref weight);
/* q, k [1, T, k_heads, dk] or of one row [1, k_heads, 1, dk], v [T, v_heads * dv], decay, beta [T, v_heads], state [1, v_heads,
 * dv, dk] -> [T, v_heads * dv]; *next: the new state in that or another shape. All fp32: MLX computes in the type of q. */
mxc_ref mxc_delta(struct mxc_tape *t, const mxc_ref qkv[3], mxc_ref decay, mxc_ref beta, mxc_ref state, mxc_ref *next);

/* --- closures --- */

/* Builds out [out_n] from in [in_n] on a separate tape, which is freed afterwards. 0: failure. */
typedef int mxc_build_fn(void *context, struct mxc_tape *t, const mxc_ref *in, uint32_t in_n, mxc_ref *out, uint32_t out_n);
/* build is called again for inputs of other shapes or types. Without a GPU nothing is fused: for the CPU MLX would start a C++
 * compiler. Where there is a GPU, closures for the CPU are not compiled. */
struct mxc_closure *mxc_closure_new(struct mxc_device *d, mxc_build_fn *build, void *context, uint32_t out_n);
/* New closures are fused as for a GPU: they can be listed, not computed. */
void mxc_fuse(struct mxc_device *d);
void mxc_closure_free(struct mxc_closure *c);        /* on the thread of the device */
/* Appends the outputs. 0: failure. */
int mxc_closure_call(struct mxc_tape *t, struct mxc_closure *c, const mxc_ref *in, uint32_t in_n, mxc_ref *out, uint32_t out_n);

#ifdef __cplusplus
}
#endif
#endif
