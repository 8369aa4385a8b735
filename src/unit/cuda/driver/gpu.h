/* gpu.h: struct sg_unit, the state of one open GPU, and the primitives over the driver: context, memory, copies, pinned host
 * memory, kernel table, SM partitions. The lowest layer of the unit; it knows no graph, program or state.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_GPU_H
#define SG_UNIT_CUDA_GPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "unit/cuda/driver/blas.h"
#include "unit/cuda/driver/driver.h"
#include "unit/cuda/kernels/include/params/kparams.h"
#include "unit/spec.h"
#include "unit/unit.h"

/* Limits. "Rows" of a pass are the tokens that it computes. Limits that kernels share are in kparams.h (CK_...). */
enum {
    CU_MODULES = 40,          /* max. kernel files (modules) */
    CU_DECODE_ROWS = 16,      /* max. rows of a pass on the decode lane */
    CU_GEMV_ROWS = 32,        /* up to this many rows, products use the decode kernels, 16 rows per launch */
    CU_PASS_ROWS = 2048,      /* max. rows of one pass; longer prompts are split */
    CU_PAD_ROWS_MAX = 512,    /* prompts up to this length are padded to ... */
    CU_PAD_ROWS = 64,         /* ... a multiple of this, so that one captured graph serves many lengths */
    CU_WANTED_ROWS = 256,     /* max. rows of one pass whose logits are computed */
    CU_LANES = 2,             /* concurrent runs of a program: one per lane */
    CU_LANE_DECODE = 0,       /* runs whose spans all have at most CU_DECODE_ROWS rows */
    CU_LANE_PREFILL = 1,      /* all other runs */
    CU_STAGING_BYTES = 4 << 20, /* bytes of one of the two pinned staging buffers */
    CU_STEPS_IN_FLIGHT = 4,   /* tokens that generation on the GPU issues before it waits for the first */
    CU_POOL_BLOCKS = 512,     /* max. freed state blocks kept for reuse, ... */
    CU_POOL_MB = 2048,        /* ... and their max. total size */
    CU_STREAM_SHARED_MAX = 200 << 10, /* max. bytes of weights that a block of k_stream.cu buffers in shared memory */
    /* Default SM partition, for a GPU of CU_PART_OF_SMS multiprocessors (H100/H200) and scaled to others: decode, prefill. */
    CU_PART_SMS = 64, CU_REST_SMS = 68, CU_PART_OF_SMS = 132,
    CU_PART_AUTO = 1 << 20,   /* part= was not given: use the default above */
    CU_WIDE_STATIC = 128,     /* bytes of static shared memory of k_wide.cu, */
    CU_SHARED_LEFT = 8192,    /* bytes of a block's shared memory that dynamic shared memory leaves to static */
    CU_PACKED_STATIC = 1024,  /* of k_packed.cu and k_packed_rows.cu */
    CU_DIGITS_STATIC = 256,   /* and of k_digits.cu; the rest is dynamic */
    CU_VOCAB_SHARED_MAX = CK_VOCAB_BYTES - 1024, /* max. dynamic shared memory of a block of k_vocab.cu */
    CU_CONV_STEP_TAPS = 8,    /* max. taps of a convolution that the decode kernels support */
    CU_CHOICE_BLOCKS = 2048   /* max. blocks that each report a best logit */
};

/* X(file, name): every kernel with a fixed name, and the k_<file>.cu that defines it. What each kernel computes, and its
 * arguments, is in kparams.h. */
#define CU_KERNELS(X)                                                                                         \
    X(rows, embed) X(rows, norm_rows) X(rows, rope) X(rows, glu) X(rows, act) X(rows, add) X(rows, scale)     \
    X(rows, rows) X(rows, route) X(rows, experts_in) X(rows, experts_out) X(rows, lora_low) X(rows, lora_add) \
    X(rows, read_all) X(rows, sum_parts) X(rows, one_ulp)                                                     \
    X(delta, conv_step) X(delta, conv_many) X(delta, conv_store) X(delta, conv_tiles) X(delta, delta_4)        \
    X(delta, delta_8) X(delta, delta_prepare_4) X(delta, delta_prepare_8) X(delta, delta_tiles_4)                 \
    X(delta, delta_slabs)                                                                                     \
    X(chunk, chunk_local) X(chunk, chunk_factors) X(chunk, chunk_factors_halves)                              \
    X(chunk_state, chunk_state_16) X(chunk_state, chunk_state_32)                                                         \
    X(scan, chunk_scan) X(scan, chunk_scan_pairs)                                                             \
    X(attend, append) X(attend, prepare) X(attend, prepare_many) X(attend, split_join)                        \
    X(gemm, narrow) X(gemm, narrow_halves) X(gemm, widen) X(gemm, widen_pieces) X(gemm, gemm_f16)             \
    X(gemm, gemm_bf16)                                                                                        \
    X(unpack, unpack_rows) X(packed_gemm, packed_x) X(packed_parts, packed_parts) X(batch, split_x)           \
    X(join, join_few) X(join, join_many)                                                                      \
    X(choose, argmax_rows) X(choose, choose_best) X(sample, sample_rows)                                      \
    X(screen, screen_make_f32) X(screen, screen_make_f16) X(screen, screen_make_bf16) X(screen, screen_rows)  \
    X(screen, screen_best_f32) X(screen, screen_best_f16) X(screen, screen_best_bf16)

/* Kernel handles, looked up once when the unit is opened. The arrays hold template instances; NULL: this GPU or this shape has
 * none. */
struct cu_kernels {
#define X(file, name) cu_fn name;
    CU_KERNELS(X)
#undef X
    cu_fn gemv[CK_KINDS][5];   /* [weight kind][log2 rows]: 1, 2, 4, 8, 16 rows */
    cu_fn wide[CK_KINDS];      /* one row, large weights; one block per multiprocessor */
    cu_fn stream[CK_KINDS][4]; /* one row: 1, 2, 4, 8 16-byte pieces per thread */
    cu_fn vocab[CK_KINDS][3];  /* output head, one row: weight rows of up to 1024, 2048, 4096 bytes */
    cu_fn digits[CK_KINDS][3]; /* one row: up to 4096, 8192, 16384 columns */
    cu_fn packed_gemm[4][3];   /* many rows: Q4_0, Q4_K, Q5_K, Q6_K; tiles of 112, 224, 256 rows; Hopper only */
    cu_fn packed_rows[2];      /* packed weights, up to eight rows: up to 512, 1024 columns per warp */
    cu_fn packed[3];           /* packed weights, one row: up to 512, 1024, 2048 columns per warp */
    cu_fn packed_batch[2][2];  /* [16, 32 weight rows per warp][up to 8, 16 rows of x] */
    cu_fn packed_few[2][2];    /* the same, small products */
    cu_fn split_any[4], attend_many[4]; /* by K/V storage: f32, f16, bf16, q8 */
    cu_fn batch[4][2][2]; /* [f16, bf16, fp8, q8][16, 32 weight rows per block][up to 8, 16 rows of x] */
    /* The fourth type is packed weights: up to 1,024 columns, heads of 128 and 256. */
    cu_fn mlp[4][4];      /* [f16, bf16, Q8_0][up to 512, 1024, 2048, 4096 columns] */
    cu_fn linear[4][3];   /* [f16, bf16, Q8_0][up to 1024, up to 2048 columns; up to 4096 with two value heads per key head] */
    cu_fn heads[4][2][4]; /* [f16, bf16, Q8_0][K/V f16, bf16][head 64, 128, 256 with up to 1024 columns; 256 with up to 2048] */
    cu_fn tiles[2];       /* f16, bf16 */
    cu_fn packed_tiles[CK_PACKED_END - CK_PACKED]; /* by kind; Hopper only, NULL: k_packed_batch.cu has the kind */
    cu_fn glu_rows[2];    /* f16, bf16 */
    cu_fn single[2][3];   /* [K/V f16, bf16][head 64, 128, 256] */
    cu_fn split[3][3];    /* [K/V f16, bf16, q8][head 64, 128, 256] */
    cu_fn flash[2][3];    /* the same */
    cu_fn wgflash[2][3];  /* the same, with wgmma; Hopper only */
};

/* X(name in this file, NVML's symbol, arguments) */
#define CU_NVML(X)                                                                             \
    X(init, "nvmlInit_v2", (void))                                                             \
    X(get, "nvmlDeviceGetHandleByUUID", (const char *uuid, void **device))                       \
    X(energy, "nvmlDeviceGetTotalEnergyConsumption", (void *device, unsigned long long *mj))     \
    X(stop, "nvmlShutdown", (void))
struct cu_nvml {
    void *library, *device; /* device NULL: not open */
#define X(name, symbol, args) int (*name) args;
    CU_NVML(X)
#undef X
};

/* Heap of pinned host memory that states of other units allocate from (pinned.c). A slab is allocated from its start to its end,
 * once. */
enum { CU_PINNED_SLABS = 64 };
struct cu_pinned {
    struct sg_host_memory memory; /* the allocator interface given to other units */
    pthread_mutex_t lock;         /* guards all below */
    struct cu_pinned_slab {
        unsigned char *memory;
        size_t bytes, used;
    } slabs[CU_PINNED_SLABS];
    uint32_t slabs_n;
    size_t bytes; /* of all slabs */
    void *free;   /* list of freed blocks, for reuse */
};

/* The multiprocessors split in two, so that decode and prefill can run at the same time (sm_partition.c). A run announces itself
 * with cu_partition_run_begin and asks with cu_partition_active before each pass whether a run of the other kind is in
 * progress. */
struct cu_partition {
    cu_green green[CU_LANES];       /* green context of each lane kind; NULL: the GPU is not partitioned */
    uint32_t sms[CU_LANES];         /* multiprocessors in each */
    atomic_uint_fast64_t decode_ns; /* time at which a decode run last began or ended; 0: never */
    atomic_uint prefills;           /* prefill runs in progress */
};

/* One GPU. Options of the unit's spec are named in quotes. Members without a lock are constant while the unit is open.
 *
 * Locks: copy_lock, pool_lock, pinned.lock, nvml_lock, blas.lock and logits_lock guard what is next to them. They are taken after
 * the lock of a lane. Under logits_lock copy_lock and pool_lock may be taken; no other two of them are held together. */
struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_desc desc;
    struct cu_driver d;
    struct cu_nvml nvml;
    pthread_mutex_t nvml_lock; /* guards nvml */
    struct cu_blas blas;       /* .handle NULL: cuBLASLt is not installed */
    cu_device device;
    cu_ctx ctx;                /* the GPU's primary context */
    cu_ctx peer_ctx;           /* context of the GPU with which peer access was enabled last; NULL: none. Without a lock: a stale
                                * value only enables the access again */
    cu_ptr peer_probe;         /* 64 KB buffer whose copy wakes the NVLink; 0: not allocated. Guarded by copy_lock */
    uint64_t peer_used_ns;     /* time of the last copy to a peer. Guarded by copy_lock */
    uint32_t sms, major;       /* multiprocessors; major compute capability */
    uint32_t shared_max;       /* bytes of dynamic shared memory that a block may request */
    struct cu_partition partition;
    pthread_mutex_t logits_lock; /* guards which lane holds which state's logits, and each lane's `stream` (kept_logits.c) */
    /* Options that select kernels; defaults are in open_one (cuda.c). */
    uint32_t pdl;              /* "pdl" 1: programmatic dependent launch */
    uint32_t waves;            /* "waves": blocks per multiprocessor of k_gemv.cu */
    uint32_t graphs;           /* "graphs" 1: passes are captured as CUDA graphs */
    uint32_t stream;           /* "stream": KB of weights that a block of k_stream.cu buffers; 0: the kernel is not used */
    uint32_t part_sms, rest_sms; /* "part", "rest": multiprocessors of decode and of prefill runs while both run. part 0: both use
                                  * all; rest 0: prefill uses what "part" leaves; CU_PART_AUTO: the default */
    uint32_t screen;           /* "screen" 1: greedy choices filter candidates first and read few rows of the output head */
    uint32_t prepare;          /* "prepare" 1: graphs of a large model's prompts are captured after its first; 2: of any model */
    uint32_t hopper;           /* "hopper" 0: kernels of compute capability 9 are not used, as on older GPUs (for tests) */
    uint32_t products;         /* "products": of training, enum ct_products: 0 fp32, 1 tf32 in three parts, 2 bf16 */
    /* "invariant" 1: one row uses the kernels of several, so results do not depend on the batch size */
    uint32_t invariant;
    struct sg_fault fault;     /* "fault": passes of programs that have this op are neither fused nor captured */
    /* "rank" 1: with one row, layers run as fusions over thread-block clusters; N > 1: at most N clusters */
    uint32_t cluster_fusion;
    uint32_t packed;           /* 1: quantised weights have the packed layout (k_packed.cuh) where they can; 2: k_packed_gemm.cu
                                * for any size */
    cu_mod modules[CU_MODULES];
    uint32_t modules_n;
    struct cu_kernels k;
    pthread_t blas_thread;     /* opens cuBLASLt, which takes 50 ms, beside the upload of weights */
    int blas_opening;          /* 1: that thread was started and is to be joined */
    const struct sg_progress *progress; /* of the next compilations; NULL: none */
    /* States: ids, and the pool of freed memory (memory.c). */
    atomic_uint_fast64_t state_ids; /* last id given to a state */
    pthread_mutex_t pool_lock;      /* guards pool, pool_n, pool_bytes */
    struct cu_pool_block {          /* memory of freed states, reused for blocks of exactly the same size */
        cu_ptr p;
        size_t bytes;
    } pool[CU_POOL_BLOCKS];
    uint32_t pool_n;
    size_t pool_bytes;
    /* Copies between host and GPU (copy.c). */
    cu_stream copies;          /* stream of all copies of weights and states */
    pthread_mutex_t copy_lock; /* guards the order of calls in `copies`, and staging, pending, copies_started */
    unsigned char *staging;    /* two pinned buffers of CU_STAGING_BYTES each */
    cu_event staging_events[2]; /* recorded after the copy that uses each */
    struct cu_pinned pinned;
    struct cu_pending_copy {   /* a copy that was requested but not issued yet: neighbours are merged into it */
        unsigned char *host;   /* contiguous */
        cu_ptr device;
        size_t n, pitch;       /* bytes per line, 0: no copy is pending; distance between lines on the GPU */
        uint32_t lines, out;   /* out 1: GPU to host */
    } pending;
    int copies_started;        /* 1: a deferred copy was issued since `copies` was last waited for */
    atomic_int copies_pending; /* 1: deferred copies from or to pinned memory may be unfinished */
    atomic_uint_fast64_t free_estimate; /* free bytes at the last query, less the states created since */
    atomic_uint_fast64_t graphs_reserved; /* bytes that graphs of open programs may still take, about (lane.h) */
};

/* --- context and GPU memory (memory.c) --- */

/* Make the GPU's context current on this thread, and restore the previous one. Calls nest; every driver call is between them. */
void cu_enter(struct sg_unit *u);
void cu_leave(struct sg_unit *u);
/* Allocates GPU memory (at least 16 bytes, uninitialised). EMEMORY names `what`. */
segue_status cu_mem_alloc(struct sg_unit *u, size_t bytes, const char *what, cu_ptr *out, segue_error *err);
/* Frees *p and sets it to 0; 0 is accepted. cuMemFree waits until the GPU no longer uses the memory. */
void cu_mem_free(struct sg_unit *u, cu_ptr *p);
/* Makes *p at least `want` bytes; *have is its size. The contents are lost when it grows. */
segue_status cu_mem_grow(struct sg_unit *u, cu_ptr *p, size_t *have, size_t want, const char *what, segue_error *err);
/* Memory of states, from a pool of freed blocks (cuMemAlloc and cuMemFree are slow). No kernel or copy may still use a block that
 * is returned. pool_empty frees all blocks. */
segue_status cu_pool_alloc(struct sg_unit *u, size_t bytes, cu_ptr *out, segue_error *err);
void cu_pool_free(struct sg_unit *u, cu_ptr *p, size_t bytes);
void cu_pool_empty(struct sg_unit *u);

/* --- copies (copy.c) ---
 * All are issued in the stream `copies`, so they are executed in the order of the calls. */

/* Through the staging buffers; return when the copy is complete. */
segue_status cu_copy_to_gpu(struct sg_unit *u, cu_ptr to, const void *from, size_t n, segue_error *err);
segue_status cu_copy_to_host(struct sg_unit *u, void *to, cu_ptr from, size_t n, segue_error *err);
/* Rows and memory of states. Pinned host memory: deferred, merged with neighbours, complete after cu_copies_wait; the host memory
 * must stay unchanged until then. Other host memory: as the two above. */
segue_status cu_copy_in(struct sg_unit *u, cu_ptr to, const void *from, size_t n, segue_error *err);
segue_status cu_copy_out(struct sg_unit *u, void *to, cu_ptr from, size_t n, segue_error *err);
segue_status cu_copies_wait(struct sg_unit *u, segue_error *err);  /* all deferred copies are complete */
segue_status cu_copies_flush(struct sg_unit *u, segue_error *err); /* issues the pending copy: nothing more will be merged */
/* Issues the pending copy. copy_lock is held and the context current: call it before anything else is put into `copies`. */
cu_result cu_pending_copy_start(struct sg_unit *u);

/* --- cuBLASLt (blas_open.c): u->blas may be used after finish --- */

void cu_blas_begin(struct sg_unit *u);  /* opens it on a thread; the context is current */
void cu_blas_finish(struct sg_unit *u); /* waits for that; may be called again */

/* --- pinned host memory (pinned.c) --- */

void cu_pinned_open(struct sg_unit *u);
void cu_pinned_close(struct sg_unit *u); /* the context is current */
const struct sg_host_memory *cu_host_memory(struct sg_unit *u);

/* --- kernels (kernel_table.c) --- */

/* Loads all modules and looks up every kernel of struct cu_kernels. */
segue_status cu_kernels_load(struct sg_unit *u, segue_error *err);
/* Looks up kernel `name` of module k_<file>; `dynamic` also allows launches with up to `bytes` of dynamic shared memory. */
segue_status cu_kernel(struct sg_unit *u, const char *file, const char *name, cu_fn *out, segue_error *err);
segue_status cu_kernel_dynamic(struct sg_unit *u, const char *file, const char *name, int bytes, cu_fn *out, segue_error *err);

/* --- SM partitions (sm_partition.c) --- */

void cu_partition_open(struct sg_unit *u);  /* splits the GPU where the driver can */
void cu_partition_close(struct sg_unit *u); /* after the last stream of a partition is destroyed */
void cu_partition_note_absent(struct sg_unit_desc *d); /* adds to the features that the GPU is not partitioned */
/* A stream in the partition of a lane kind. *out NULL: there is no partition. */
cu_result cu_partition_stream(struct sg_unit *u, uint32_t kind, cu_stream *out, int priority);
void cu_partition_run_begin(struct sg_unit *u, uint32_t kind); /* around each run, by the kind of its lane */
void cu_partition_run_end(struct sg_unit *u, uint32_t kind);
int cu_partition_active(struct sg_unit *u, uint32_t kind); /* 1: the other kind runs now, so use the partition */

/* --- helpers --- */

/* Weights in 16 bytes of a matrix of kind `kind` (enum ck_kind). */
static inline uint32_t cu_weights_per_piece(uint32_t kind)
{
    static const uint8_t weights[CK_KINDS] = {4, 8, 8, 16, 32, 16, 32, 16};
    return weights[kind];
}
/* n / size, rounded up. */
static inline uint32_t cu_pieces(uint32_t n, uint32_t size) { return (n + size - 1) / size; }
static inline int cu_aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

#endif
