/* cpu_types.h: what the files of the cpu unit share: the unit, packed weights, states, stages, programs, one
 * pass of a run. A program is read-only while it runs, except its scratch, which belongs to the one run of
 * the unit at a time.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_CPU_TYPES_H
#define SG_UNIT_CPU_CPU_TYPES_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/file.h"
#include "unit/cpu/kernels/kernels.h"
#include "unit/pool.h"
#include "unit/unit.h"

/* --- packed weights (pack.c) --- */

/* A row window of a tensor in a packed kind: groups of SG_GROUP rows, the last one padded with zeros. */
struct sg_packed {
    const struct sg_tensor *tensor;
    uint32_t at, rows, groups;
    uint32_t k;                      /* columns */
    enum sg_pack kind;
    size_t group_bytes;
    uint8_t *data;                   /* [groups][group_bytes], 64-byte aligned */
};
/* All packed weights and fp32 vectors of the graphs that were compiled together. */
struct sg_pack_set {
    atomic_uint refs;
    struct sg_packed **items;
    uint32_t items_n, items_cap;
    struct sg_arena arena;           /* items, vectors */
    void *memory;                    /* all packed data, or ... */
    struct sg_map map;               /* ... the kept entry that holds it */
    uint64_t bytes;                  /* of memory and arena; a mapped entry is not counted */
    const char *kept;                /* see sg_unit_ops.kept */
    segue_error kept_why;
};
struct sg_cpu_unit;
/* The packed form of this window, once per set: filled in by sg_pack_fill. NULL: out of memory. */
struct sg_packed *sg_pack_want(struct sg_pack_set *set, const struct sg_tensor *t, uint32_t at,
                               uint32_t rows);
/* A tensor of few numbers as fp32 in the set's arena; NULL: out of memory. */
const float *sg_pack_vector(struct sg_pack_set *set, const struct sg_tensor *t);
/* Packs what is wanted and checks that all weights of the graphs are finite, or maps what an earlier start kept. The
 * pages of each tensor are given back as soon as it is packed. keep may be NULL. */
segue_status sg_pack_fill(struct sg_pack_set *set, struct sg_cpu_unit *u, const struct sg_graph *const *graphs,
                          uint32_t n, const struct sg_weight_cache *keep, segue_error *err);
void sg_pack_unref(struct sg_pack_set *set);

/* --- the unit --- */

struct sg_cpu_run {
    struct sg_run_base base;
    struct sg_cpu_unit *unit;
    struct sg_cpu_program *program;
    struct sg_batch batch;           /* its spans are the copy below */
    struct sg_span *spans;
    uint32_t spans_cap;
    struct sg_result *result;
    segue_status status;
    segue_error error;
    int done;
    struct sg_cpu_run *next;
};

struct sg_cpu_unit {
    struct sg_unit_base base;
    struct sg_kernels k;
    struct sg_pool *pool;
    struct sg_unit_desc desc;
    pthread_mutex_t lock;            /* run lists below */
    pthread_cond_t changed;
    struct sg_cpu_run *idle, *queue;
    pthread_mutex_t work;            /* held by the one run that computes */
    pthread_t runner;
    int runner_on, stop;
};

/* --- states (cpu_state.c, kv_pool.c, kv_layout.c) --- */

enum { SG_KV_RUN = 32 };             /* q8: numbers that share a scale */
enum { SG_HEAD_MAX = 512 };          /* numbers of a head in K or V: rows on their way have that much room */

struct sg_kv_slab {
    atomic_uint refs;
    void *memory;
    const struct sg_host_memory *host;   /* that it was taken from; NULL: of this process, cleared */
};
/* SG_CHUNK rows of one K or V slot. K: per head [SG_CHUNK/16][width][16]; V: per head [SG_CHUNK][width]; q8:
 * int8 in that order, then f16 scales [SG_CHUNK/16][blocks][16] or [SG_CHUNK][blocks]. */
struct sg_kv_block {
    atomic_uint refs;
    struct sg_kv_slab *slab;
    struct sg_kv_block *next;        /* in a free list */
    uint8_t *data;
    int dirty;                       /* 1: what was there before the slab was taken still is */
};
struct sg_slot_memory {
    struct sg_slot slot;
    size_t head_bytes, block_bytes;  /* K, V */
    struct sg_kv_block **blocks;     /* [blocks_cap] by position / SG_CHUNK; NULL: not held */
    uint32_t blocks_cap;
    struct sg_kv_block *spare;
    uint64_t first, end;             /* rows held */
    int given;                       /* CONV, DELTA: a put has filled it */
    float *fixed, *before;           /* CONV, DELTA: now (in the state's piece), and as it was when the pass began; [fixed_n] */
    size_t fixed_n;
};
struct sg_mark {
    uint32_t number;
    uint64_t rows;
    float *fixed;                    /* all recurrent slots, one after the other */
};
struct sg_cpu_state {
    struct sg_state_base base;
    pthread_mutex_t lock;            /* block tables, against get and put beside a run */
    enum sg_storage kv;
    const struct sg_host_memory *host;   /* sg_state_opts */
    const struct sg_host_memory *fixed_host; /* that `fixed` was taken from; NULL: of this process */
    void *fixed;                     /* recurrent slots, one after the other, each at a multiple of FIXED_STEP; NULL: bare */
    uint64_t rows;
    atomic_int busy;                 /* 1: a run is appending */
    atomic_uint stage;               /* of the pass that appends: stages before this one are over */
    const uint32_t *slot_stage;      /* of that pass, NULL: none yet: [slots_n] the last stage that writes a slot */
    uint64_t coming;                 /* rows that the pass appends */
    struct sg_slot_memory *slots;
    uint32_t slots_n;
    uint32_t capacity;               /* blocks per slot that need no allocation */
    struct sg_mark *marks;
    uint32_t marks_n, marks_cap, next_mark;
    int recurrent;
};
segue_status sg_cpu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t n,
                              const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void sg_cpu_state_free(struct sg_state *s);
segue_status sg_cpu_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err);
segue_status sg_cpu_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err);
segue_status sg_cpu_state_back(struct sg_state *s, uint32_t mark, segue_error *err);
void sg_cpu_state_drop(struct sg_state *s, uint32_t mark);
segue_status sg_cpu_state_cut(struct sg_state *s, uint64_t rows, segue_error *err);
void sg_cpu_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows);
uint64_t sg_cpu_state_bytes(const struct sg_state *s);
segue_status sg_cpu_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, void *out, segue_error *err);
segue_status sg_cpu_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, const void *in, segue_error *err);
segue_status sg_cpu_state_at(struct sg_state *s, uint32_t slot, int write, void **out, segue_error *err);
/* Blocks (kv_pool.c). */
static inline int sg_cpu_is_rows(const struct sg_slot_memory *m)
{
    return m->slot.kind == SG_SLOT_K || m->slot.kind == SG_SLOT_V;
}
void sg_cpu_slab_release(struct sg_kv_slab *slab);
/* `count` more spare blocks for every K and V slot, in one allocation. */
segue_status sg_cpu_slab_add(struct sg_cpu_state *s, uint32_t count, segue_error *err);
segue_status sg_cpu_table_grow(struct sg_cpu_state *s, struct sg_slot_memory *m, uint64_t index, segue_error *err);
/* Block `index` exists and is this state's alone; take: it may be dirty, sg_kv_rows_pass is the next to write there. */
segue_status sg_cpu_block_take(struct sg_cpu_state *s, struct sg_slot_memory *m, uint64_t index, segue_error *err);
segue_status sg_cpu_block_own(struct sg_cpu_state *s, struct sg_slot_memory *m, uint64_t index, segue_error *err);
void sg_cpu_blocks_drop(struct sg_slot_memory *m, uint64_t from, uint64_t to);
void sg_cpu_rows_keep(struct sg_slot_memory *m, uint64_t first, uint64_t end); /* of what is held */
/* Before a pass: blocks for `more` rows, unshared; keep_before: a copy of the recurrent slots for undoing. */
segue_status sg_cpu_state_reserve(struct sg_cpu_state *s, uint64_t more, int keep_before, segue_error *err);
void sg_cpu_state_commit(struct sg_cpu_state *s, uint64_t rows);
/* What a get beside the pass may have before the pass is over (slot_stage NULL: nothing). */
void sg_cpu_state_watch(struct sg_cpu_state *s, const uint32_t *slot_stage, uint64_t rows);
segue_status sg_cpu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err); /* cpu_state_transfer.c */
void sg_cpu_state_undo(struct sg_cpu_state *s); /* recurrent slots as they were at reserve(keep_before) */
/* Rows [from, to), whose blocks are there, canonical in `storage` <-> the blocks (store: into them), by all threads of
 * the unit unless a run keeps them busy. */
void sg_kv_rows_pass(const struct sg_cpu_state *s, const struct sg_slot_memory *m, uint64_t from, uint64_t to,
                     enum sg_storage storage, uint8_t *canonical, int store);
/* One head's row, fp32 -> the state's storage. Only where a pass reserved. */
void sg_kv_store(const struct sg_kernels *k, const struct sg_cpu_state *s, uint32_t slot, uint64_t row,
                 uint32_t head, const float *x);
/* One head's chunk where it lies, in the order of sg_kv_load; NULL when the state is not f16. */
const uint16_t *sg_kv_f16(const struct sg_cpu_state *s, uint32_t slot, uint64_t chunk, uint32_t head);
/* One head's chunk as fp32: K [keys/16][d][16], V [keys][dvp]. */
void sg_kv_load(const struct sg_kernels *k, const struct sg_cpu_state *s, uint32_t slot, uint64_t chunk,
                uint32_t head, uint32_t keys, float *out);

/* --- programs (match.c) --- */

enum sg_stage_kind {
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
/* Forms of activations that the parts of a matrix stage want: quantised in blocks of 32 or 16, fine (16 bits,
 * two passes over the weight in registers) or raised (a second byte for 4 columns of each block); fp32;
 * wide in one term or two. */
enum sg_form {
    SG_FORM_X32_FINE,
    SG_FORM_X16_FINE,
    SG_FORM_X32_RAISED,
    SG_FORM_X16_RAISED,
    SG_FORM_XF,
    SG_FORM_W1,
    SG_FORM_W2,
    SG_FORM_N
};

struct sg_norm_use { const struct sg_op *op; const float *weight, *bias; };

/* One linear op (or gate and up of a pair) of a matrix stage. */
struct sg_part {
    const struct sg_op *op, *op_up;
    struct sg_packed *w, *up;        /* up: out = act(w x) * (up x) */
    const float *bias, *bias_up;
    struct sg_operand residual;
    enum sg_act act;                 /* after bias, before residual; or of the pair */
    int32_t out;                     /* value */
    uint32_t lora, lora_up;          /* columns of the delta area */
    int fine;                        /* 1: fine activations in long prompts too */
};

struct sg_stage {
    enum sg_stage_kind kind;
    const struct sg_op *op;          /* the op, or the first of the window */
    int wanted;                      /* 1: R rows, 0: T rows */
    /* MM, PREP, LORA */
    struct sg_operand x;
    struct sg_norm_use norm;         /* op NULL: none */
    uint32_t k;
    struct sg_part *parts;
    uint32_t parts_n;
    /* KEYS: what is fused before the append */
    struct sg_norm_use norm_q, norm_k;
    const struct sg_op *rope_q, *rope_k;
    struct sg_operand q, key, value;
    int32_t q_out;                   /* value that holds the finished queries; -1: q is used as it is */
    const float *w0, *w1; /* vectors: sinks; conv weight [taps][C], bias; decay, dt; scale; route bias */
    uint32_t scale_n;
    struct sg_packed **experts[3];   /* [experts] each: gate, up, down */
    int narrow;                      /* ATTEND: passes of many rows in integers */
    int32_t hidden;                  /* value: [k * ff] rows between EXPERT_UP and EXPERT_DOWN */
};

/* Where a value lives: columns [at, at + stride) of the T area or the R area, times rows. Chosen rows that are all rows are
 * not copied: the value is read where the one that they are chosen from lies. */
struct sg_value_loc {
    uint32_t at, stride;
    int area;                        /* 0: T, 1: R, 2: logits, -1: nowhere */
    int32_t from;                    /* value that `rows` chooses from, and its first column; -1: another op's */
    uint32_t from_at;
};

/* Rows of one span and one tile of attention. */
struct sg_att_tile {
    uint32_t span, row, rows;        /* row: among T */
    uint32_t base, units;            /* first unit and how many: 1, or the chunks when split over them */
    uint32_t split_row;              /* place of its first row in the split area; UINT32_MAX: not split */
};

struct sg_pass {
    struct sg_cpu_program *p;
    const struct sg_span *spans;
    uint32_t spans_n, t, r;
    const atomic_int *cancel;
    atomic_int stopped;
    int loras;                       /* 1: some span has adapters */
    float *logits;                   /* [r][vocab] */
};

struct sg_cpu_program {
    struct sg_program_base base;
    struct sg_pack_set *set;
    struct sg_stage *stages;
    uint32_t stages_n;
    struct sg_value_loc *places;         /* [values_n] */
    uint32_t t_columns, r_columns;   /* floats per row of the areas */
    size_t x_row_bytes;              /* of the widest prepared activation row */
    uint32_t lora_columns;           /* floats per row of the delta area */
    uint32_t split_row_floats;       /* heads * (dv + 2) of the largest attend, for one chunk */
    uint32_t kv_heads_max, group_max; /* over all attends; group = heads / kv_heads */
    uint32_t rope_value;             /* 1: some op needs angles */
    uint32_t angle_columns;          /* floats per row: all rope tables */
    uint32_t *angle_at;              /* [ropes_n] */
    size_t thread_bytes;             /* of one thread's scratch */
    uint64_t read_per_token;
    int recurrent;
    uint32_t *slot_stage;            /* [slots_n] the last stage that writes a slot */
    struct sg_arena arena;
    /* scratch: grown between passes */
    uint32_t t_cap, r_cap, logits_cap, pending_cap;
    size_t split_cap;                /* floats */
    uint64_t pass_number;
    float *t_area, *r_area, *logits_area, *angles, *lora_area, *split;
    uint8_t *x_area;
    uint8_t **threads;               /* [threads] */
    uint32_t *items;                 /* [stages_n] */
    uint32_t *row_span, *wanted;     /* [t_cap] */
    uint64_t *row_pos;
    int32_t *tokens;
    struct sg_att_tile *tiles;       /* [t_cap] */
    uint32_t tiles_n, units_n, split_chunks;
    atomic_uint *pending;            /* [pending_cap] split rows x kv_heads_max: chunks to come */
    float *sample_row;               /* [vocab] */
    int32_t *history;                /* [history_cap], runs of several steps */
    size_t history_cap;
    struct sg_chooser *chooser;
    struct sg_pass pass;
    uint64_t scratch_bytes;
};

segue_status sg_cpu_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op,
                        segue_error *why);
segue_status sg_cpu_match(struct sg_cpu_program *p,
                          segue_error *err); /* ops -> stages, places; wants packed weights */

/* --- running --- */
segue_status sg_cpu_run_now(struct sg_cpu_run *run, segue_error *err);       /* cpu_run.c */
void sg_cpu_spans_busy(const struct sg_span *spans, uint32_t n, int busy);
segue_status sg_cpu_scratch(struct sg_cpu_program *p, uint32_t t, uint32_t r, int own_logits,
                            const atomic_int *cancel, segue_error *err);
void sg_cpu_scratch_free(struct sg_cpu_program *p);

/* 1: the pass was canceled; its results are nobody's. Asked before each item, and in items that grow with the rows or the
 * keys at least once for every SG_CHUNK of them: whatever the chunk of a prompt, what is left to do is bounded. */
static inline int sg_pass_stops(struct sg_pass *a)
{
    if (atomic_load_explicit(&a->stopped, memory_order_relaxed)) return 1;
    if (!a->cancel || !atomic_load_explicit(a->cancel, memory_order_relaxed)) return 0;
    atomic_store_explicit(&a->stopped, 1, memory_order_relaxed);
    return 1;
}

/* Row `row` of an operand; rows lie *stride floats apart. */
static inline float *sg_cpu_rows(const struct sg_pass *a, struct sg_operand x, uint32_t row, size_t *stride)
{
    const struct sg_cpu_program *p = a->p;
    const struct sg_value_loc *place = &p->places[x.value];
    if (place->from >= 0 && a->t == a->r) {
        x.at += place->from_at;
        place = &p->places[place->from];
    }
    *stride = place->stride;
    float *base = place->area == 0   ? p->t_area + (size_t)place->at * p->t_cap
                  : place->area == 1 ? p->r_area + (size_t)place->at * p->r_cap
                                     : a->logits;
    return base + (size_t)row * place->stride + x.at;
}

static inline uint32_t sg_stage_rows(const struct sg_pass *a, const struct sg_stage *st)
{
    return st->wanted ? a->r : a->t;
}
static inline const struct sg_kernels *sg_program_kernels(const struct sg_cpu_program *p)
{
    return &((const struct sg_cpu_unit *)(const void *)p->base.unit)->k;
}
static inline const struct sg_kernels *sg_pass_kernels(const struct sg_pass *a)
{
    return sg_program_kernels(a->p);
}
/* Items and work of a stage, by file: cpu_matrix.c, cpu_attend.c, cpu_rows.c */
uint32_t sg_matrix_items(const struct sg_pass *a, const struct sg_stage *st);
void sg_matrix_work(struct sg_pass *a, const struct sg_stage *st, uint32_t item, uint32_t thread);
size_t sg_matrix_thread_bytes(const struct sg_cpu_program *p, const struct sg_stage *st);
/* Per row, of all forms that it may take. */
size_t sg_matrix_x_bytes(const struct sg_cpu_program *p, const struct sg_stage *st);
uint32_t sg_attend_items(const struct sg_pass *a, const struct sg_stage *st);
void sg_attend_work(struct sg_pass *a, const struct sg_stage *st, uint32_t item, uint32_t thread);
size_t sg_attend_thread_bytes(const struct sg_cpu_program *p, const struct sg_stage *st);
segue_status sg_attend_plan(struct sg_pass *a,
                            segue_error *err); /* tiles of this pass into the program's scratch */
uint32_t sg_rows_items(const struct sg_pass *a, const struct sg_stage *st);
/* Norm of one row as the op says, groups and gate included; gate NULL: none. */
void sg_row_norm(const struct sg_kernels *k, const struct sg_norm_use *use, const float *x, const float *gate,
                 uint32_t width, float *y);
void sg_rows_work(struct sg_pass *a, const struct sg_stage *st, uint32_t item, uint32_t thread);
size_t sg_rows_thread_bytes(const struct sg_cpu_program *p, const struct sg_stage *st);

#endif
