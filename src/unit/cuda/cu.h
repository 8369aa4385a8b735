/* cu.h: what the files of the unit `cuda` share. cuda.c has the table, driver.c the driver, upload.c weights,
 * fuse.c turns a graph into steps, issue.c issues one pass of steps, cuda_run.c runs batches, cuda_state.c
 * remembers, blas.c is the door to cuBLASLt. Everything belongs to a unit, program, state or run; two units
 * never share a byte. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_CU_H
#define SG_UNIT_CUDA_CU_H

#include <pthread.h>
#include <stdatomic.h>

#include "unit/cuda/driver/blas.h"
#include "unit/cuda/driver/driver.h"
#include "unit/cuda/kernels/include/kparams.h"
#include "unit/pool.h"
#include "unit/unit.h"

enum {
    CU_MODULES = 32, /* files of kernels at most */
    CU_FEW = 16,     /* rows of a pass that the decode kernels take */
    CU_EXACT = 32,   /* rows up to which products are made by them, 16 at a time */
    CU_MANY = 2048,  /* rows of a pass at most */
    CU_PADDED = 512, /* rows of a pass up to which it is filled up to whole ... */
    CU_PAD = 64,     /* ... of these, and captured */
    CU_LOGITS = 256, /* wanted rows of a pass at most */
    CU_LANES = 2, CU_LANE_FEW = 0, CU_LANE_MANY = 1, /* runs at once: of few rows, and one with more */
    CU_MARKS = 8,
    CU_STAGE = 4 << 20, /* bytes of a pinned staging half */
    CU_AHEAD = 4,       /* steps in flight */
    CU_POOL = 512,      /* pieces kept ... */
    CU_POOL_MB = 2048,  /* ... and their sum */
    CU_STREAM_ROOM = 200 << 10, /* bytes of a block's weights in shared memory at most */
    /* multiprocessors of runs of few rows, and of long ones beside them, of so many */
    CU_PART = 64, CU_REST = 68, CU_PARTED = 132,
    CU_UNSAID = 1 << 20,
    CU_WIDE_STATIC = 128,   /* bytes of shared memory that k_wide.cu has beside x, */
    CU_DIGITS_STATIC = 256, /* and k_digits.cu */
    CU_VOCAB_ROOM = CK_VOCAB_BYTES - 1024, /* that a block of k_vocab.cu may ask for */
    CU_STEP_TAPS = 8,   /* taps of a convolution that decode kernels take */
};

/* X(file, name): every kernel that is looked up by one name, and the k_FILE.cu that it is in. */
#define CU_KERNELS(X)                                                                                         \
    X(rows, embed) X(rows, norm_rows) X(rows, rope) X(rows, glu) X(rows, act) X(rows, add) X(rows, scale)     \
    X(rows, rows) X(rows, route) X(rows, experts_in) X(rows, experts_out) X(rows, lora_low) X(rows, lora_add) \
    X(rows, read_all) X(rows, sum_parts)                                                                      \
    X(delta, conv_step) X(delta, conv_many) X(delta, conv_keep) X(delta, conv_tiles) X(delta, delta_4)        \
    X(delta, delta_8) X(delta, delta_ready_4) X(delta, delta_ready_8) X(delta, delta_tiles_4)                 \
    X(delta, delta_slabs)                                                                                     \
    X(chunk, chunk_local) X(chunk, chunk_factors) X(chunk, chunk_factors_halves)                              \
    X(carry, chunk_carry_16) X(carry, chunk_carry_32)                                                         \
    X(scan, chunk_scan) X(scan, chunk_scan_pairs)                                                             \
    X(attend, append) X(attend, prepare) X(attend, prepare_many) X(attend, attend_join)                       \
    X(gemm, narrow) X(gemm, narrow_halves) X(gemm, widen) X(gemm, widen_pieces) X(gemm, gemm_f16)             \
    X(gemm, gemm_bf16)                                                                                        \
    X(join, join_few) X(join, join_many)                                                                      \
    X(choose, argmax_rows) X(choose, choose_best)                                                             \
    X(screen, screen_make_f32) X(screen, screen_make_f16) X(screen, screen_make_bf16) X(screen, screen_rows)  \
    X(screen, screen_best_f32) X(screen, screen_best_f16) X(screen, screen_best_bf16)

struct cu_kernels {
#define X(file, name) cu_fn name;
    CU_KERNELS(X)
#undef X
    cu_fn gemv[CK_KINDS][5];   /* for 1, 2, 4, 8, 16 rows */
    cu_fn wide[CK_KINDS];      /* one row, large weights; NULL: none */
    cu_fn stream[CK_KINDS][4]; /* for 1, 2, 4, 8 pieces a lane; NULL: none */
    cu_fn vocab[CK_KINDS][3];  /* the head with one row: rows of up to 1,024, 2,048, 4,096 bytes; NULL: none */
    cu_fn digits[CK_KINDS][3]; /* one row of up to 4,096, 8,192, 16,384 numbers; NULL: none */
    cu_fn attend_part[4], attend_many[4];
    cu_fn batch[3][2][2]; /* fp16, bf16, fp8; 16, 32 rows of weights a block; 8, 16 rows of x */
    cu_fn mlp[3][4];      /* fp16, bf16, Q8_0; rows of up to 512, 1024, 2048, 4096; NULL: none */
    cu_fn linear[3][3];   /* fp16, bf16, Q8_0; rows of up to 1024, 2048; up to 4096, two value heads a key head */
    /* fp16, bf16, Q8_0 (two forms); K and V fp16, bf16; rows of up to 1024, heads of 64, 128, 256; of up to 2048, of 256 */
    cu_fn heads[3][2][4];
    cu_fn tiles[2];       /* fp16, bf16; NULL: none */
    cu_fn glu_rows[2];    /* the same */
    cu_fn single[2][3]; /* fp16, bf16; heads of 64, 128, 256 */
    cu_fn flash[2][3]; /* fp16, bf16; heads of 64, 128, 256 */
    cu_fn wgflash[2][3]; /* the same on Hopper; NULL elsewhere */
};

/* X(name in this file, NVML's symbol, arguments) */
#define CU_NVML(X)                                                                             \
    X(init, "nvmlInit_v2", (void))                                                             \
    X(get, "nvmlDeviceGetHandleByUUID", (const char *uuid, void **card))                       \
    X(energy, "nvmlDeviceGetTotalEnergyConsumption", (void *card, unsigned long long *mj))     \
    X(stop, "nvmlShutdown", (void))
struct cu_nvml {
    void *library, *card; /* card NULL: not open */
#define X(name, symbol, args) int (*name) args;
    CU_NVML(X)
#undef X
};

/* Pinned memory that other units' states take (pinned.c). */
enum { CU_HOST_SLABS = 64 };
struct cu_host {
    struct sg_host_memory memory;
    pthread_mutex_t lock; /* of all below */
    struct cu_host_slab {
        unsigned char *memory;
        size_t bytes, used;
    } slabs[CU_HOST_SLABS];
    uint32_t slabs_n;
    size_t bytes;
    void *free; /* pieces that were given back */
};

/* The multiprocessors in two parts, for runs of few rows and long ones at once (sm_partition.c). */
struct cu_share {
    cu_green green[CU_LANES];      /* NULL: the card is not parted */
    uint32_t sms[CU_LANES];        /* that each has */
    atomic_uint_fast64_t wrote_ns; /* when a run of few rows was last at work */
    atomic_uint reading;           /* long runs at work */
};

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_desc desc;
    struct cu_driver d;
    struct cu_nvml nvml;
    pthread_mutex_t metering; /* guards nvml */
    struct cu_blas blas; /* .handle NULL: not installed */
    cu_card card;
    cu_ctx ctx, reaches; /* reaches: of the GPU that states were last passed to directly */
    cu_ptr porch; uint64_t crossed_ns; /* 64 KB that wake the way there, or 0; when something last went it; guarded by copying */
    uint32_t sms, major, shared_max; /* bytes of shared memory that a block may ask for */
    struct cu_share share;
    pthread_mutex_t keeping; /* guards whose logits lie in which lane (issue_logits.c) */
    uint32_t pdl, waves, graphs, stream; /* tuning: programmatic launch, blocks per multiprocessor, captured steps, KB of a
                                            block's weights in shared memory (0: k_stream.cu is not used) */
    uint32_t part, rest;                 /* multiprocessors of runs of few rows, and of long ones, while both are at work; part 0:
                                            both have all; rest 0: what part leaves; CU_UNSAID: as measured best */
    uint32_t screen;                     /* 1: choices without logits do not read the whole head */
    uint32_t invariant;                  /* 1: one row takes the kernels of several, so that its sums are theirs */
    uint32_t rank; /* 1: with one row, whole windows by ranks of blocks (issue_cluster.c); more: that many at most */
    cu_mod modules[CU_MODULES];
    uint32_t modules_n;
    struct cu_kernels k;
    atomic_uint_fast64_t states; /* numbers given to states */
    pthread_mutex_t pooling; /* guards pool: memory of states that were freed, for the next ones of their sizes */
    struct cu_piece {
        cu_ptr p;
        size_t bytes;
    } pool[CU_POOL];
    uint32_t pool_n;
    size_t pool_bytes;
    cu_stream copies;        /* states in and out */
    pthread_mutex_t copying; /* guards copies and stage */
    unsigned char *stage;    /* pinned, two halves of CU_STAGE */
    cu_event halves[2];
    struct cu_host pinned;
    struct cu_pending_copy { /* a copy that may grow before it begins; guarded by copying */
        unsigned char *host;
        cu_ptr card;
        size_t n, pitch; /* bytes of a line, 0: none; from one line to the next on the card, in `host` there is nothing between */
        uint32_t lines, out;
    } later;
    int begun; /* 1: since `copies` was waited for, one of those has; guarded by copying */
    atomic_int moving; /* 1: copies from or to pinned memory may be under way in `copies` */
    atomic_uint_fast64_t unused; /* bytes of the card, when they were last counted, less states since */
};

/* Every call into the driver is made between these; they nest. */
void cu_enter(struct sg_unit *u);
void cu_leave(struct sg_unit *u);
segue_status cu_room(struct sg_unit *u, size_t bytes, const char *what, cu_ptr *out, segue_error *err);
void cu_room_free(struct sg_unit *u, cu_ptr *p);
/* Memory of states: kept when it is let go, because the driver takes its time. Nothing may be running on it. */
segue_status cu_piece_take(struct sg_unit *u, size_t bytes, cu_ptr *out, segue_error *err);
void cu_piece_leave(struct sg_unit *u, cu_ptr *p, size_t bytes);
/* Through pinned memory, in order with `copies`; to_host waits. */
segue_status cu_send(struct sg_unit *u, cu_ptr to, const void *from, size_t n, segue_error *err);
segue_status cu_fetch(struct sg_unit *u, void *to, cu_ptr from, size_t n, segue_error *err);
/* Rows and memory of states: at once as those two, or from and to pinned memory begun only: until cu_moves_over. */
segue_status cu_put(struct sg_unit *u, cu_ptr to, const void *from, size_t n, segue_error *err);
segue_status cu_get(struct sg_unit *u, void *to, cu_ptr from, size_t n, segue_error *err);
segue_status cu_moves_over(struct sg_unit *u, segue_error *err);
segue_status cu_moves_go(struct sg_unit *u, segue_error *err); /* what was gathered begins: nothing will join it */
cu_result cu_moves_begin(struct sg_unit *u); /* copying is ours, the GPU current: before anything else in `copies` */
void cu_host_begin(struct sg_unit *u);
void cu_host_end(struct sg_unit *u); /* the GPU is current */
const struct sg_host_memory *cu_host(struct sg_unit *u);
segue_status cu_kernels_load(struct sg_unit *u, segue_error *err);
/* A kernel of k_FILE.cu; one whose launches may ask for up to `bytes` of shared memory. */
segue_status cu_kernel(struct sg_unit *u, const char *file, const char *name, cu_fn *out, segue_error *err);
segue_status cu_kernel_roomy(struct sg_unit *u, const char *file, const char *name, int bytes, cu_fn *out, segue_error *err);
/* Two phases at once (sm_partition.c). The card is parted when it can be; close when no stream of a part is left. */
void cu_share_open(struct sg_unit *u);
void cu_share_close(struct sg_unit *u);
void cu_share_say(struct sg_unit_desc *d); /* among the features: the card is not parted */
cu_result cu_share_stream(struct sg_unit *u, uint32_t kind, cu_stream *out, int priority); /* *out NULL: there is no part */
void cu_share_begin(struct sg_unit *u, uint32_t kind); /* a run on a lane of this kind */
void cu_share_end(struct sg_unit *u, uint32_t kind);
int cu_share_wanted(struct sg_unit *u, uint32_t kind); /* 1: the other kind is at work just now */

/* --- weights (upload.c) --- */

struct cu_tensor {
    const struct sg_tensor *source;
    struct ck_weight w;
    cu_ptr memory; /* data and scales in one */
    int joined;    /* 1: the memory belongs to the tensor before, whose rows these follow */
    size_t bytes;
    cu_ptr vector; /* the same as fp32, for norms, biases and other small ones; 0: not made */
};
/* The tensors of all programs of one compile; reference-counted. */
struct cu_weights {
    struct sg_unit *unit;
    uint32_t references; /* changed only by compile and discard, which do not overlap */
    struct cu_tensor *tensors;
    uint32_t n;
    uint64_t bytes;
    struct sg_pool *pool; /* while they are brought; NULL: none of them is worth threads */
};
segue_status cu_weights_new(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t graphs_n,
                            struct cu_weights **out, segue_error *err);
void cu_weights_free(struct cu_weights *w);
const struct cu_tensor *cu_weight_of(const struct cu_weights *w, const struct sg_tensor *t);

/* --- programs (fuse.c) --- */

enum cu_step_kind { CU_STEP_OP, CU_STEP_PRODUCT, CU_STEP_PREPARE, CU_STEP_NOTHING };
/* What is issued at once: an op as it stands, or a window of ops that one launch does. */
struct cu_step {
    enum cu_step_kind kind;
    const struct sg_op *op;                 /* the op; of a window: the one that it is named after */
    const struct sg_op *norm;               /* product: norm of x before it, or NULL */
    const struct sg_op *parts[CK_SEGMENTS]; /* product: linears of one x. With glu: gate and up */
    uint32_t parts_n;
    const struct sg_op *glu;   /* product: what is done with both */
    const struct sg_op *after; /* product: activation or convolution of part after_part, which nothing else reads */
    uint32_t after_part;
    const struct sg_op *delta; /* product with a convolution behind it: the delta rule that alone reads it, ... */
    const struct sg_op *conv;  /* ... whose own step this is: in chunks it takes the convolution on the way */
    int halves;   /* product with a delta rule: it alone reads the parts, and norms of groups of 128 before products, as gates */
    /* product: 1 + part that nobody reads but the norm of the product behind the next step, the delta rule, as its gate */
    uint32_t gate;
    int for_next; /* product with glu: only the next step reads it, and takes it narrowed to the same 16 bits */
    const struct sg_op *q_norm, *k_norm, *q_rope, *k_rope, *attend; /* prepare */
    const struct cu_window *window; /* that begins with this step, or NULL */
};

/* Steps that ranks of blocks do in one launch when there is one row (k_cluster_ops.cuh): a product, what is behind it, and a product
 * back to what the first one's norm reads, which is added. What they leave lies in parts. */
enum cu_window_weights { CU_WINDOW_F16, CU_WINDOW_BF16, CU_WINDOW_Q8, CU_WINDOW_NONE };
enum cu_window_kind { CU_WINDOW_MLP, CU_WINDOW_LINEAR, CU_WINDOW_HEADS };
struct cu_window {
    enum cu_window_kind kind;
    uint32_t first, steps; /* of the program's fused ones; among them */
    const struct cu_step *of[3]; /* what it does */
    enum cu_window_weights weights;
    uint32_t last;         /* last step that reads y */
    struct sg_operand x;   /* whole */
    int32_t y;
    cu_fn fn[2]; /* K and V in fp16, bf16 */
    size_t shared, room; /* room: where its words begin in the lane's */
    uint32_t ranks, own; /* own: columns of the second product that a rank has */
    uint32_t stages, stage_bytes, fills, ahead, back_rows; /* of the ring of weights; rows of the second product in a stage */
    uint64_t map[16];    /* struct ck_tensor_map of the second product's weight */
};

/* Of a value: its piece begins behind `at` columns of all rows of the room of T or R rows; in the piece, which has rows of
 * `stride` numbers, its own begin at `inside`. Parts of one product share a piece. Chosen rows that are all rows are not copied:
 * the value is read where the one that `rows` chooses from lies, from column from_at on. */
struct cu_place {
    uint32_t at, wanted, inside, stride;
    int32_t from; /* that value; -1: none */
    uint32_t from_at;
};

struct cu_room_pair { /* memory of values for up to rows[0] rows and rows[1] wanted ones */
    cu_ptr memory[2];
    uint32_t rows[2];
};

/* What must be the same for a captured pass to be launched again: rooms that may have moved, too. Compared byte by byte. */
struct cu_graph_key {
    uint32_t rows, wanted, chunks, advance, storage, stops, heading, sms;
    uint16_t best, screen, embedded, quiet;
    struct ck_banned banned;
    cu_ptr rooms[7];
};
enum { CU_CAPTURED = 24, CU_CUTS = 64 };
struct cu_captured { /* steps before ends[i], and not before ends[i - 1], are exec[i] */
    struct cu_graph_key key;
    uint32_t n; /* 0: not captured yet */
    uint32_t ends[CU_CUTS];
    cu_exec exec[CU_CUTS];
};

/* The arrays of struct ck_pass, for CU_MANY rows, in one piece that begins with `head`; and the same in
 * pinned memory. */
struct cu_pass_args {
    cu_ptr head, tokens, place, span, wanted, slots, slots_out;
    unsigned char *pinned;
};
/* A step that was issued before it was asked for: its tokens are the ones that the last run chose. */
struct cu_ahead {
    int active;
    uint32_t heading, spans_n;
    struct ck_banned banned;
    struct {
        uint64_t state, version, first; /* of which state, at which position */
        int32_t token;
    } of[CK_SPANS];
};
struct cu_lora {
    uint64_t id;
    const struct sg_lora_pair *pair;
    cu_ptr room;
};

/* Whose logits lie in the room of values, and which run left them there. */
struct cu_kept {
    struct sg_state *state;
    uint64_t run;
};

/* Between the ranks of a team (issue_join.c); ranks 0: none. */
struct cu_join {
    uint32_t rank, ranks;
    cu_ptr memory;
    uint32_t *told;   /* pinned: 1 when a rank did not come */
    struct ck_join a; /* all but what an op says */
};

/* What one pass needs beside weights and states. One run at a time uses it. */
struct cu_lane {
    struct cu_join join;
    pthread_mutex_t lock;             /* held by that run */
    cu_stream stream;                 /* that passes go to: one of these two */
    cu_stream whole, part;            /* of all multiprocessors; of the lane's part of them (sm_partition.c), NULL: it has none */
    cu_event turn;                    /* between two streams */
    uint32_t kind;                    /* CU_LANE_FEW or CU_LANE_MANY */
    cu_event begin, end;
    struct cu_room_pair few[2], many; /* few[1]: the same but for its own wanted rows */
    struct cu_pass_args headings[2];    /* passes use the first one; a step ahead alternates */
    size_t head_bytes;
    cu_ptr sums;  /* each window's room for the value that it leaves in parts */
    int sums_clear; /* 1: all of it is 0 */
    cu_ptr split; /* rows of x in two parts of 16 bits, for k_batch.cu */
    cu_ptr scratch, narrow, wide, parts, workspace; /* grown on demand */
    size_t scratch_n, narrow_n, wide_n, parts_n;
    cu_ptr best_value, best_index, draws, chosen, stops;
    int32_t *host_chosen;       /* pinned [CU_FEW] */
    int32_t *ring;              /* pinned and mapped [CU_RING] */
    volatile uint32_t *written; /* behind it */
    float *host_logits;         /* pinned [CK_SPANS][vocab], made on demand */
    struct cu_ahead ahead;
    uint32_t embedded; /* 1 + heading of the pass whose one row lies embedded, made by the pass before it; 0: of none */
    cu_stream gives; /* logits of one step go out while the next one runs */
    cu_event done[2], given[2];
    struct cu_captured captured[CU_CAPTURED];
    uint32_t captured_n;
    struct cu_kept kept[CK_SPANS];
    uint32_t kept_n;
    uint64_t runs; /* so far: numbers them */
    struct cu_lora *loras; /* adapters that were sent */
    uint32_t loras_n, loras_cap;
};
enum { CU_RING = 65536, CU_STOPS = 1024, CU_BLOCKS = 2048 };

struct sg_program {
    struct sg_program_base base;
    struct cu_weights *weights;
    cu_ptr *inverse;               /* [ropes_n] */
    struct cu_place *places;       /* [values_n], fused and unfused alike */
    uint32_t columns[2];           /* T and R columns of one row of all values alive at once */
    int may_lead;                  /* 1: a step ahead keeps its hands off what it reads */
    struct cu_step *plain, *fused; /* one per op; windows */
    uint32_t plain_n, fused_n;
    struct cu_window *windows;
    uint32_t windows_n;
    size_t parts; /* words of all windows' rooms */
    uint64_t read_per_token;
    struct cu_lane lanes[CU_LANES];
    struct cu_screen { /* issue_screen.c; head NULL: none */
        const struct sg_op *head;
        cu_ptr memory;
        struct ck_screen a;
    } screen;
};
void cu_captured_forget(struct sg_unit *u, struct cu_lane *l); /* capture.c: frees all graphs of a lane */
segue_status cu_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n,
                        const struct sg_weight_cache *keep, struct sg_program **programs, segue_error *err);
void cu_discard(struct sg_program *p);
/* Windows of ops -> steps; both lists are written into the program. */
segue_status cu_fuse(struct sg_program *p, segue_error *err);

/* --- states (cuda_state.c) --- */

struct cu_slot {
    struct sg_slot slot;
    size_t row_bytes, fixed_bytes; /* one of them is 0 */
    cu_ptr memory;
    cu_ptr other;        /* fixed slots (in the state's two pieces): where a step ahead writes; 0: not made */
    uint64_t room;       /* rows that fit */
    uint64_t first, end; /* rows held */
    uint64_t issued;     /* rows there will be once `there` has come; 0: none beside a run */
    cu_event there;
    int given, together; /* together: memory is a part of the state's `together` */
};
struct cu_mark {
    uint32_t number;
    uint64_t rows;
    cu_ptr copy;
};
struct sg_state {
    struct sg_state_base base;
    pthread_mutex_t lock; /* guards busy, rows and what slots hold */
    pthread_cond_t moved;
    int busy;
    enum sg_storage storage;
    uint64_t rows, until; /* until: of the run that is busy with it; no such row: UINT64_MAX */
    uint32_t slots_n, marks_n, marks_cap, marks_next;
    struct cu_slot *slots;
    struct cu_mark *marks;
    size_t fixed_bytes; /* of all fixed slots together */
    cu_ptr fixed, fixed_other;
    struct cu_together { cu_ptr memory; size_t bytes; uint32_t slots; } together; /* rows of slots that have not grown */
    uint64_t id, version; /* version: unlike any other of this unit; grows when rows are changed from outside of runs */
    struct cu_lane *kept_in; /* logits (issue_logits.c): of which lane, */
    cu_ptr kept_at, kept_own; /* where they are, 0: nowhere; memory of its own for them */
    size_t kept_bytes;
    /* 1: a step ahead may still be running on it; its fixed slots are being cleared, on the stream of copies */
    int ahead, clearing;
};
/* Fixed slots have their other copies. */
segue_status cu_state_others(struct sg_state *s, segue_error *err);
segue_status cu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                          const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void cu_state_free(struct sg_state *s);
segue_status cu_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err);
segue_status cu_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err);
segue_status cu_state_back(struct sg_state *s, uint32_t mark, segue_error *err);
void cu_state_drop(struct sg_state *s, uint32_t mark);
segue_status cu_state_cut(struct sg_state *s, uint64_t rows, segue_error *err);
void cu_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows);
uint64_t cu_state_bytes(const struct sg_state *s);
segue_status cu_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                          enum sg_storage storage, void *out, segue_error *err);
segue_status cu_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                          enum sg_storage storage, const void *in, segue_error *err);
/* What a step ahead may still be doing to the state is over. Marks are forgotten. A slot has room for so many rows, or for all of
 * it. */
segue_status cu_state_settle(struct sg_state *s, segue_error *err);
void cu_state_forget(struct sg_state *s);
segue_status cu_state_fixed(struct sg_state *s, segue_error *err); /* has memory for its fixed slots */
void cu_state_place(struct sg_state *s);                           /* fixed slots point into the two pieces */
segue_status cu_slot_room(struct sg_state *s, uint32_t slot, uint64_t rows, segue_error *err);
segue_status cu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err); /* cuda_state_transfer.c, as the next */
void cu_peer_prewarm(struct sg_unit *from, struct sg_unit *to);
segue_status cu_state_flush(struct sg_state *s, segue_error *err); /* pinned.c */
/* For runs: take (refused when busy), make room for rows in all, move on, give back. */
segue_status cu_state_take(struct sg_state *s, uint64_t rows, segue_error *err);
void cu_state_moved(struct sg_state *s, uint64_t rows);
void cu_state_release(struct sg_state *s);
enum ck_storage cu_storage_of(enum sg_storage s);

/* Logits that stay (issue_logits.c): forget a state's; add the ones that a run left at an address of the lane's room; before a pass
 * of a run over these spans, copy those away that it does not replace. */
void cu_kept_forget(struct sg_state *s);
void cu_kept_add(struct cu_lane *l, struct sg_state *s, cu_ptr at, uint32_t vocab, uint64_t run);
void cu_kept_leave(struct sg_unit *u, struct cu_lane *l); /* the lane ends */
segue_status cu_kept_clear(struct sg_unit *u, struct cu_lane *l, uint64_t run, const struct sg_span *spans, uint32_t n,
                           segue_error *err);
segue_status cu_state_logits(struct sg_state *s, float *out, segue_error *err);
/* Beside a run (layer_events.c): begin, before it; step, behind each step of a pass that ends at row `end`; wait until the rows
 * before `to` of a slot, or its memory, can be copied, and how far it reaches then. */
struct cu_pass;
void cu_flow_begin(struct sg_state *s, uint64_t end);
segue_status cu_flow_step(struct cu_pass *p, const struct cu_step *s, struct sg_state *state, uint64_t end);
int cu_flow_cuts(const struct cu_step *s); /* 1: behind this step a captured pass of many rows is cut */
segue_status cu_flow_wait(struct sg_state *s, struct cu_slot *slot, uint64_t to, uint64_t *first, uint64_t *end,
                          segue_error *err);

/* --- what a program has besides its steps --- */

/* cluster_match.c: the windows of a program's fused steps; none where the GPU or the driver cannot. Bytes of a lane's room for
 * them. */
segue_status cu_rank_open(struct sg_unit *u, segue_error *err); /* their kernels, where there are any for this GPU */
segue_status cu_rank_find(struct sg_unit *u, struct sg_program *p, segue_error *err);
size_t cu_rank_room(const struct sg_program *p);
enum { CU_STEP_OPS = 10 + CK_SEGMENTS };
/* Where an operand's columns lie when all rows are chosen; the part of a product that makes it, or NULL; q, k, v (0, 1, 2) or
 * gate as the product before an attention step makes them. */
struct sg_operand cu_source(const struct sg_program *p, const struct sg_operand *x);
const struct sg_op *cu_part_of(const struct sg_program *p, const struct cu_step *s, const struct sg_operand *x);
const struct sg_operand *cu_raw_of(const struct cu_step *s, int input);
uint32_t cu_step_ops(const struct cu_step *s, const struct sg_op *ops[CU_STEP_OPS]); /* of which it is made */
/* Bytes of a lane for x in two parts (issue_batch.c). */
size_t cu_batch_room(const struct sg_program *p);
segue_status cu_screen_open(struct sg_unit *u, struct sg_program *p, segue_error *err); /* issue_screen.c */
/* issue_join.c: several GPUs as one. reach: `from` reads and writes the memory of `to` from now on. lost: ELOST when a rank of a run
 * on this lane did not come. */
segue_status cu_join_reach(struct sg_unit *from, struct sg_unit *to, segue_error *err);
segue_status cu_link_ranks(struct sg_program *const *programs, uint32_t n, segue_error *err);
void cu_join_close(struct sg_unit *u, struct cu_lane *l);
segue_status cu_join_lost(const struct cu_lane *l, segue_error *err);

/* --- what many need --- */

static inline uint32_t cu_pieces(uint32_t n, uint32_t size) { return (n + size - 1) / size; }
static inline int cu_aligned(const void *p) { return (uintptr_t)p % 16 == 0; }
/* Memory of at least that many bytes; what was in it is gone when it grows. */
segue_status cu_grow(struct sg_unit *u, cu_ptr *p, size_t *have, size_t want, const char *what,
                     segue_error *err);

/* --- runs (cuda_run.c) --- */

segue_status cu_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r,
                      struct sg_run **out, segue_error *err);
segue_status cu_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err);

#endif
