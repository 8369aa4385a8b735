/* cpu_types.h: types shared by the files of the cpu unit: the unit and its runs, packed weights,
 * sequence states, compiled programs and one pass over a batch. A program is read-only while it runs,
 * except for its scratch, which belongs to the single run that computes on the unit at a time
 * (sg_cpu_unit.work).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_CPU_TYPES_H
#define SG_UNIT_CPU_CPU_TYPES_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/file.h"
#include "unit/batch.h"
#include "unit/cpu/kernels/kernels.h"
#include "unit/cpu/rapl.h"
#include "unit/spec.h"
#include "unit/kv/kv_blocks.h"
#include "unit/pool.h"
#include "unit/kv/kv_fit.h"
#include "unit/state_core.h"
#include "unit/unit.h"

/* A range of rows of one tensor in a packed layout (kernels.h). Rows are stored in groups of SG_GROUP;
 * the last group is padded with zero rows. */
struct sg_packed_weight {
    const struct sg_tensor *tensor;
    uint32_t at, rows, groups;
    uint32_t k;                      /* columns */
    enum sg_pack kind;
    size_t group_bytes;
    uint8_t *data;                   /* [groups][group_bytes], 64-byte aligned */
};
/* All packed weights and fp32 vectors of the graphs that were compiled together. Shared by their
 * programs; freed with the last reference. */
struct sg_pack_set {
    atomic_uint refs;
    struct sg_packed_weight **items;
    uint32_t items_n, items_cap;
    struct sg_arena arena;           /* holds the items and the fp32 vectors */
    /* All packed data when it was packed in this process; NULL when the data is mapped from the weight
     * cache. */
    void *memory;
    struct sg_map map;               /* the mapped cache entry, if the data comes from there */
    /* bytes of `memory` and `arena`; a mapped entry is not counted because its pages can be evicted */
    uint64_t bytes;
    const char *cache_result;                /* what sg_unit_ops.kept reports: "mapped", "written", "repacked" or NULL */
    segue_error cache_why;
};
struct sg_cpu_unit;
/* Registers rows [at, at + rows) of t for packing and returns the item; a second request for the same
 * rows returns the same item. The data is written later by sg_pack_fill. NULL: out of memory. */
struct sg_packed_weight *sg_pack_request(struct sg_pack_set *set, const struct sg_tensor *t, uint32_t at,
                               uint32_t rows);
/* Reads a small tensor (norm weight, bias) as fp32 into the set's arena. NULL: out of memory. */
const float *sg_pack_vector(struct sg_pack_set *set, const struct sg_tensor *t);
/* Packs every requested item, or maps an entry of the weight cache with the same contents. Fails when a
 * weight of the graphs is not finite. The source pages of each tensor are released as soon as it is
 * packed. cache may be NULL. */
segue_status sg_pack_fill(struct sg_pack_set *set, struct sg_cpu_unit *u, const struct sg_graph *const *graphs,
                          uint32_t n, const struct sg_weight_cache *cache, segue_error *err);
void sg_pack_unref(struct sg_pack_set *set);

enum { SG_CPU_ROWS_MAX = 2048 };        /* rows of a run */

/* One run: a batch handed to start, executed either by the caller (inline_hint) or by the thread of the unit's queue, which keeps
 * it, so that a run in steady state allocates nothing. */

struct sg_cpu_run {
    struct sg_thread_run common;
    struct sg_cpu_unit *unit;
    struct sg_cpu_program *program;
    uint64_t ns;                     /* of the work, without waiting for other work of the unit */
};

struct sg_cpu_unit {
    struct sg_unit_base base;
    struct sg_kernels k;
    struct sg_pool *pool;
    struct sg_unit_desc desc;
    struct sg_rapl rapl;             /* energy counters of the machine's packages */
    struct sg_run_queue queue;
    pthread_mutex_t work;            /* held by the run that computes; serialises runs of the unit */
    uint32_t invariant;              /* 1: the next compilations make invariant programs */
    uint32_t products_bf16;          /* 1: products of training have factors in bf16 */
    struct sg_fault fault;           /* for tests */
    const struct sg_progress *progress;   /* of the compilation in progress; NULL: none */
};

enum { SG_KV_Q8_BLOCK = 32 };             /* q8: numbers that share one f16 scale */
/* largest head width of K or V; sizes the stack buffers that convert one row */
enum { SG_HEAD_MAX = 512 };

/* One allocation that holds the blocks of several slots. Freed when none of its blocks is referenced
 * any more. */
struct sg_kv_pool {
    atomic_uint refs;
    void *memory;
    /* allocator that `memory` came from; NULL: the process allocator, which returns zeroed memory */
    const struct sg_host_memory *host;
};
/* SG_CHUNK rows of one K or V slot. K is stored per head as [SG_CHUNK/16][width][16], so that a score
 * kernel loads 16 keys per column with one vector load; V per head as [SG_CHUNK][width]. q8: int8 in
 * the same order, followed by the f16 scales [SG_CHUNK/16][blocks][16] (K) or [SG_CHUNK][blocks] (V),
 * with blocks of SG_KV_Q8_BLOCK columns. */
struct sg_kv_block {
    struct sg_shared_block shared;
    struct sg_kv_pool *pool;
    struct sg_kv_block *next;        /* next in the slot's free list */
    uint8_t *data;
    /* 1: the memory still holds what was in it before the pool was allocated */
    int uncleared;
};
/* One slot of a state: blocks of rows (K, V) or a fixed array (CONV, DELTA). */
struct sg_cpu_slot {
    struct sg_core_slot core;
    size_t head_bytes, block_bytes;  /* K, V: bytes of one head and of one block of SG_CHUNK rows */
    struct sg_block_table table;     /* K, V: blocks of SG_CHUNK positions */
    struct sg_kv_block *spare;       /* free blocks, for the next ones that the table needs */
    /* CONV, DELTA: the current memory (inside sg_cpu_state.fixed) and its copy from before the pass,
     * for undo; both core.fixed_bytes long */
    float *fixed, *undo_copy;
};
/* The memory of one sequence on this unit. Rows at and beyond core.tokens may be written by a running
 * pass and are not valid until it commits. core.lock guards also the block tables, against a get that
 * runs beside a pass. core.changed has no waiters: readers wait as described below. */
struct sg_cpu_state {
    struct sg_state_core core;
    /* allocator that `fixed` came from; NULL: the process allocator */
    const struct sg_host_memory *fixed_host;
    /* recurrent slots, each at a multiple of RECURRENT_ALIGN bytes; NULL in a bare state */
    void *fixed;
    float **undo;                    /* [marks_cap] undo buffers: all recurrent slots, concatenated; NULL: not allocated yet */
    /* stage that the appending pass has reached: all earlier stages are complete */
    atomic_uint stage;
    /* [slots_n] last stage of that pass that writes a slot; NULL: the pass has not started */
    const uint32_t *slot_stage;
    uint64_t tokens_pending;         /* that the pass appends */
    uint32_t capacity;               /* blocks per slot that were allocated up front */
    /* Readers that wait for a running pass. progress counts notifications and is guarded by wait_lock, which is
     * never held during a copy of rows, so that a notifying thread does not wait for a reader. */
    atomic_uint waiters;
    pthread_mutex_t wait_lock;
    pthread_cond_t moved;
    uint32_t progress;
};
static inline struct sg_cpu_state *sg_cpu_state_of(struct sg_state *s) { return (struct sg_cpu_state *)(void *)s; }
static inline const struct sg_cpu_state *sg_cpu_state_of_const(const struct sg_state *s)
{
    return (const struct sg_cpu_state *)(const void *)s;
}
static inline struct sg_cpu_slot *sg_cpu_slot_at(const struct sg_cpu_state *s, uint32_t i)
{
    return (struct sg_cpu_slot *)(void *)sg_core_slot_at(&s->core, i);
}
/* Members of struct sg_unit_ops that state_core.h does not provide. */
segue_status sg_cpu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t n,
                              const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void sg_cpu_state_free(struct sg_state *s);
uint64_t sg_cpu_state_bytes(const struct sg_state *s);
segue_status sg_cpu_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, void *out, segue_error *err);
segue_status sg_cpu_state_at(struct sg_state *s, uint32_t slot, int write, void **out, segue_error *err);
/* Moves the memory of `from` to `to` (cpu_state_transfer.c). */
segue_status sg_cpu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err);
/* K and V slots are stored in blocks; CONV and DELTA slots have a fixed size. */
static inline int sg_cpu_is_kv(const struct sg_cpu_slot *m) { return sg_slot_grows(&m->core.slot); }
/* The block that holds position `pos`, which is held. */
static inline struct sg_kv_block *sg_kv_block_at(const struct sg_cpu_slot *m, uint64_t pos)
{
    return (struct sg_kv_block *)(void *)m->table.blocks[pos / SG_CHUNK];
}
/* Adds `count` free blocks to every K and V slot, in one allocation (kv_pool.c). */
segue_status sg_kv_pool_add(struct sg_cpu_state *s, uint32_t count, segue_error *err);
/* Makes block `index` exist and be referenced by this state only (copy on write). The plain form may
 * leave it uncleared: then sg_kv_rows_copy must be the next writer. The zeroed form clears it if
 * needed. EMEMORY, ELIMIT. */
segue_status sg_kv_block_private(struct sg_cpu_state *s, struct sg_cpu_slot *m, uint64_t index, segue_error *err);
segue_status sg_kv_block_private_zeroed(struct sg_cpu_state *s, struct sg_cpu_slot *m, uint64_t index, segue_error *err);
/* Releases the blocks outside of [core.first, core.end). Takes no lock: the caller holds the state's lock or is alone. */
void sg_kv_blocks_trim(struct sg_cpu_slot *m);
/* Frees the table and the free list of a slot. */
void sg_kv_blocks_free(struct sg_cpu_slot *m);
/* Before a pass: makes the blocks for `more` rows private. keep_before: also copies the recurrent
 * slots, so that a canceled pass can be undone. */
segue_status sg_cpu_state_reserve(struct sg_cpu_state *s, uint64_t more, int keep_before, segue_error *err);
/* After a pass: the state has `rows` more rows; blocks that a sliding window no longer needs are
 * released. */
void sg_cpu_state_commit(struct sg_cpu_state *s, uint64_t rows);
/* Tells concurrent get calls which slots of the running pass are complete after which stage (NULL: none
 * are yet). */
void sg_cpu_state_pass_set(struct sg_cpu_state *s, const uint32_t *slot_stage, uint64_t rows);
/* Wakes readers after stage, slot_stage, core.tokens or core.busy have changed. Without waiting readers this is one load. */
void sg_cpu_state_notify(struct sg_cpu_state *s);
void sg_cpu_state_undo(struct sg_cpu_state *s); /* restores the recurrent slots saved by reserve(keep_before) */
/* Converts rows [from, to), whose blocks exist, between the blocks and the canonical layout
 * (docs/STATE.md) in `storage`; store: canonical -> blocks. Uses all threads of the unit unless a run
 * occupies them. */
void sg_kv_rows_copy(const struct sg_cpu_state *s, const struct sg_cpu_slot *m, uint64_t from, uint64_t to,
                     enum sg_storage storage, uint8_t *canonical, int store);
/* Stores one head's fp32 row in the state's storage, and says whether it fits. Only for rows that the pass reserved. */
enum sg_kv_fit sg_kv_store(const struct sg_kernels *k, const struct sg_cpu_state *s, uint32_t slot, uint64_t row,
                 uint32_t head, const float *x);
/* One head's chunk in place, in the order of sg_kv_load, f16 only; NULL when the state has another
 * storage. */
const uint16_t *sg_kv_f16(const struct sg_cpu_state *s, uint32_t slot, uint64_t chunk, uint32_t head);
/* Loads one head's chunk as fp32: K [keys/16][d][16], V [keys][dvp], dvp = dv rounded up to 16. */
void sg_kv_load(const struct sg_kernels *k, const struct sg_cpu_state *s, uint32_t slot, uint64_t chunk,
                uint32_t head, uint32_t keys, float *out);

/* One stage is one parallel region of the pool: its items run on any thread, in any order, and all
 * items of a stage finish before the next stage starts. */

enum sg_cpu_stage_kind {
    SG_ST_ANGLES,
    SG_ST_EMBED,
    SG_ST_NORM,
    SG_ST_LORA,
    SG_ST_PREP,
    SG_ST_MM,
    SG_ST_ROPE,
    SG_ST_KEYS,
    SG_ST_ATTEND,
    SG_ST_CONV,
    SG_ST_DELTA,
    SG_ST_GLU,
    SG_ST_ACT,
    SG_ST_ADD,
    SG_ST_SCALE,
    SG_ST_ROUTE,
    SG_ST_EXPERT_UP,
    SG_ST_EXPERT_DOWN,
    SG_ST_ROWS
};
/* Forms of activations that the linears of a matrix stage need (kernels.h): int8 in blocks of 32 or 16
 * columns, either fine (16 bits, two passes over the weights in registers) or with outliers (8 bits,
 * plus a high byte for the 4 largest columns of 64); fp32; bf16 in one term or two. */
enum sg_x_form {
    SG_FORM_X32_FINE,
    SG_FORM_X16_FINE,
    SG_FORM_X32_OUTLIER,
    SG_FORM_X16_OUTLIER,
    SG_FORM_XF,
    SG_FORM_BF16_1,
    SG_FORM_BF16_2,
    SG_FORM_N
};

/* A norm op with its weight and bias as fp32; op NULL: none. */
struct sg_cpu_norm { const struct sg_op *op; const float *weight, *bias; };

/* One linear op of a matrix stage, or the gate and up projections of a gated MLP. */
struct sg_cpu_linear {
    const struct sg_op *op, *op_up;
    struct sg_packed_weight *w, *up;        /* up set: out = act(w x) * (up x) */
    const float *bias, *bias_up;
    struct sg_operand residual;
    enum sg_act act;                 /* applied after bias and before residual; or the activation of the gated pair */
    int32_t out;                     /* index of the value that is written */
    uint32_t lora, lora_up;          /* first column in the adapter delta area */
    int fine;                        /* 1: fine activations at every batch size */
};

/* One stage of a program. Which fields are used depends on the kind. */
struct sg_cpu_stage {
    enum sg_cpu_stage_kind kind;
    const struct sg_op *op;          /* the op, or the first op of a fusion */
    int wanted;                      /* 1: r rows (those with logits wanted), 0: all t rows */
    /* Matrix stages MM, PREP, LORA. */
    struct sg_operand x;
    struct sg_cpu_norm norm;         /* norm fused in front of the product; op NULL: none */
    uint32_t k;
    struct sg_cpu_linear *linears;
    uint32_t linears_n;
    /* KEYS: norm and rotation fused in front of the append. */
    struct sg_cpu_norm norm_q, norm_k;
    const struct sg_op *rope_q, *rope_k;
    struct sg_operand q, key, value;
    /* value that receives the rotated queries; -1: q needs no rotation and is read directly */
    int32_t q_out;
    /* vectors by kind: ATTEND sinks; CONV weight [taps][C] and bias; DELTA decay and dt; SCALE factor;
     * ROUTE bias */
    const float *w0, *w1;
    uint32_t scale_n;
    struct sg_packed_weight **experts[3];   /* [experts] each: gate, up, down */
    int attn_i16;                      /* ATTEND: long passes use 16-bit integer arithmetic */
    /* value [k * ff] per row that EXPERT_UP writes and EXPERT_DOWN reads */
    int32_t expert_hidden;
};

/* Where a value is stored: columns [at, at + stride) of the area of all rows (t) or of the wanted rows
 * (r), times the rows. When every row is wanted, an SG_OP_ROWS value is not copied: it is read from its
 * source (`from`). */
struct sg_cpu_value_loc {
    uint32_t at, stride;
    int area;                        /* 0: t_area, 1: r_area, 2: logits, -1: not stored */
    /* SG_OP_ROWS: the source value and its first column; -1: the value of another op */
    int32_t from;
    uint32_t from_at;
};

/* Rows of one span that are attended together. A tile is one job per kv head; a tile of few rows is
 * split over the chunks of keys instead (flash-decoding), one job per chunk and kv head. */
struct sg_cpu_attn_tile {
    uint32_t span, row, rows;        /* row: index among the t rows of the pass */
    uint32_t first_job, jobs_n;            /* first job and number of jobs: 1, or the number of chunks of a split tile */
    /* row of its first row in the split area; UINT32_MAX: the tile is not split */
    uint32_t split_row;
};

/* One pass: all spans of a batch through all stages once. t rows enter, r rows have their logits or
 * values wanted. */
struct sg_cpu_pass {
    struct sg_cpu_program *p;
    const struct sg_span *spans;
    uint32_t spans_n, t, r;
    const atomic_int *cancel;
    atomic_int stopped;
    int loras;                       /* 1: some span has adapters */
    float *logits;                   /* [r][vocab] */
    uint32_t stage_from;             /* of the job in the pool */
    atomic_uint unfit_heads[2][SG_KV_FIT_N]; /* of K, of V: heads of rows that the running KEYS stage could not store */
    const struct sg_op *unfit;       /* first attend op with too many of them ... */
    int unfit_is_v;                  /* ... in K or in V ... */
    struct sg_kv_count unfit_count;  /* ... and how many */
};

/* A compiled graph: stages, value placement, packed weights, and the scratch of the run in progress. */
struct sg_cpu_program {
    struct sg_program_base base;
    struct sg_pack_set *set;
    struct sg_cpu_stage *stages;
    uint32_t stages_n;
    uint32_t fault_stage;            /* after it fault_value is altered; UINT32_MAX: never */
    int32_t fault_value;
    struct sg_cpu_value_loc *value_locs;         /* [values_n], plus one per experts op */
    uint32_t t_columns, r_columns;   /* floats per row of t_area and r_area */
    uint32_t invariant;              /* 1: products do not depend on the number of rows (desc.invariant 2) */
    size_t x_row_bytes;              /* bytes of the widest prepared activation row */
    uint32_t lora_columns;           /* floats per row of lora_area */
    /* heads * (dv + 2) of the largest attention op: m, l and o of one row and one chunk */
    uint32_t split_row_floats;
    uint32_t kv_heads_max, group_max; /* maxima over all attention ops; group = heads / kv_heads */
    uint32_t rope_value;             /* 1: some op needs rotation angles */
    uint32_t angle_columns;          /* floats per row of `angles`: all rope tables */
    uint32_t *angle_at;              /* [ropes_n] first column of a table */
    size_t thread_bytes;             /* scratch of one thread, maximum over the stages */
    uint64_t read_per_token;
    int recurrent;
    uint32_t *slot_stage;            /* [slots_n] the last stage that writes a slot */
    struct sg_arena arena;
    /* Scratch: grown between passes, never inside one. t_cap and r_cap are rows, logits_cap rows of
     * logits. */
    uint32_t t_cap, r_cap, logits_cap, pending_cap;
    size_t split_cap;                /* floats */
    uint64_t pass_number;
    float *t_area, *r_area, *logits_area, *angles, *lora_area, *split;
    uint8_t *x_area;
    uint8_t **threads;               /* [threads] scratch of each thread */
    uint32_t *items;                 /* [stages_n] items of each stage of this pass */
    uint32_t *row_span, *wanted;     /* [t_cap] span of each row; t-row of each wanted row */
    uint64_t *row_pos;
    int32_t *tokens;
    struct sg_cpu_attn_tile *tiles;       /* [t_cap] */
    uint32_t tiles_n, jobs_n, split_chunks;
    /* [pending_cap] split rows x kv_heads_max: chunks that are not finished yet */
    atomic_uint *pending;
    float *sample_row;               /* [vocab] logits after penalties */
    struct sg_chooser *chooser;
    struct sg_cpu_pass pass;
    uint64_t scratch_bytes;
};

/* Whether this unit can run the op; the reason goes to why. */
segue_status sg_cpu_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op,
                        segue_error *why);
segue_status sg_cpu_match(struct sg_cpu_program *p,
                          segue_error *err); /* builds the stages, assigns value_locs, requests packed weights (match.c) */

/* The member start of the unit's operations (cpu_run.c). */
segue_status sg_cpu_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                          segue_error *err);
/* Grows the program's scratch to t rows, r wanted rows and, if asked, r rows of logits. EMEMORY;
 * ECANCELED when *cancel is set while large areas are cleared. */
segue_status sg_cpu_scratch(struct sg_cpu_program *p, uint32_t t, uint32_t r, int own_logits,
                            const atomic_int *cancel, segue_error *err);
void sg_cpu_scratch_free(struct sg_cpu_program *p);

/* 1: the pass was canceled and its results are discarded. Checked before each item, and inside items
 * whose work grows with rows or keys at least once per SG_CHUNK of them, so the work left after a
 * cancel is bounded for any prompt length. */
static inline int sg_cpu_pass_canceled(struct sg_cpu_pass *a)
{
    if (atomic_load_explicit(&a->stopped, memory_order_relaxed)) return 1;
    if (!a->cancel || !atomic_load_explicit(a->cancel, memory_order_relaxed)) return 0;
    atomic_store_explicit(&a->stopped, 1, memory_order_relaxed);
    return 1;
}

/* First element of row `row` of an operand; consecutive rows are *stride floats apart. */
static inline float *sg_cpu_operand_row(const struct sg_cpu_pass *a, struct sg_operand x, uint32_t row, size_t *stride)
{
    const struct sg_cpu_program *p = a->p;
    const struct sg_cpu_value_loc *loc = &p->value_locs[x.value];
    if (loc->from >= 0 && a->t == a->r) {
        x.at += loc->from_at;
        loc = &p->value_locs[loc->from];
    }
    *stride = loc->stride;
    float *base = loc->area == 0   ? p->t_area + (size_t)loc->at * p->t_cap
                  : loc->area == 1 ? p->r_area + (size_t)loc->at * p->r_cap
                                     : a->logits;
    return base + (size_t)row * loc->stride + x.at;
}

static inline uint32_t sg_cpu_stage_rows(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st)
{
    return st->wanted ? a->r : a->t;
}
static inline const struct sg_kernels *sg_cpu_program_kernels(const struct sg_cpu_program *p)
{
    return &((const struct sg_cpu_unit *)(const void *)p->base.unit)->k;
}
static inline const struct sg_kernels *sg_cpu_pass_kernels(const struct sg_cpu_pass *a)
{
    return sg_cpu_program_kernels(a->p);
}
/* Number of items of a stage, the work of one item, and the bytes of thread scratch that it needs:
 * cpu_matrix.c, cpu_attend.c, cpu_rows.c. */
uint32_t sg_matrix_items(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st);
void sg_matrix_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t item, uint32_t thread);
size_t sg_matrix_thread_bytes(const struct sg_cpu_program *p, const struct sg_cpu_stage *st);
/* Bytes per row of the prepared activations, for all forms that the stage may use. */
size_t sg_matrix_x_bytes(const struct sg_cpu_program *p, const struct sg_cpu_stage *st);
uint32_t sg_attend_items(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st);
void sg_attend_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t item, uint32_t thread);
void sg_attend_fit(struct sg_cpu_pass *a, const struct sg_cpu_stage *st);
size_t sg_attend_thread_bytes(const struct sg_cpu_program *p, const struct sg_cpu_stage *st);
segue_status sg_attend_plan(struct sg_cpu_pass *a,
                            /* splits the rows of this pass into attention tiles, in the program's
                             * scratch */
                            segue_error *err);
uint32_t sg_rows_items(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st);
/* Norm of one row with the op's groups, followed by the gate if there is one (NULL: none). */
void sg_row_norm(const struct sg_kernels *k, const struct sg_cpu_norm *use, const float *x, const float *gate,
                 uint32_t width, float *y);
void sg_rows_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t item, uint32_t thread);
size_t sg_rows_thread_bytes(const struct sg_cpu_program *p, const struct sg_cpu_stage *st);

/* cpu_fault.c: finds the stage and the value of a fault, after sg_cpu_match; alters it, after that stage. */
void sg_cpu_fault_place(struct sg_cpu_program *p, const struct sg_fault *fault);
void sg_cpu_fault_apply(const struct sg_cpu_pass *a);

#endif
